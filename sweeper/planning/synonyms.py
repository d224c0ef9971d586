"""What people type, and what sweeper calls it. Data alone: nothing here is taken in place of what it stands for.

A text is what to type. `key={value}` in it carries the typed value over, as the key would have it. A text without
`{value}` is for a switch: after `false`, the advice is to leave the key out.
"""

from __future__ import annotations

from collections.abc import Mapping


def _each(names: str, text: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), text)


# Names of keys, in small letters, with _ for -. A key that has this name in another workload is found without them.
KEYS: Mapping[str, str] = {
    **_each(
        "seq_len seqlen seq_length sequence_len sequence_length max_seq_len max_seq_length max_sequence_length ctx"
        " ctx_len ctx_size ctx_length context_len context_length context_size context_window max_context n_ctx num_ctx"
        " max_model_len max_len max_length model_max_length block_size length tokens n_tokens num_tokens prompt_len"
        " seq_lens prompt_length input_len input_length max_input_length max_position_embeddings n_positions contexts",
        "context={value}",
    ),
    "cutoff_len": "context={value}",
    "sweep": "KEY=A,B to try several values of a key",
    **_each(
        "bs bsz b n_batch num_batch batchsize batch_size batchsizes batches train_batch_size eval_batch_size"
        " per_device_batch_size per_device_train_batch_size per_device_eval_batch_size per_gpu_batch_size"
        " device_batch_size batch_sizes global_batch_size total_batch_size effective_batch_size num_samples",
        "batch={value}",
    ),
    **_each(
        "micro_batch_size micro_batch microbatch mbs train_micro_batch_size_per_gpu",
        "batch={value}; workload.accumulate=N splits a batch into N equal parts",
    ),
    **_each(
        "concurrency max_num_seqs num_seqs max_concurrency max_concurrent_requests num_requests users",
        "workload=generate batch={value}, the number of sequences that are generated at once",
    ),
    **_each("torch_dtype data_type datatype param_dtype compute_dtype", "dtype={value}"),
    "precision": "dtype={value}, or workload=train workload.precision={value} for autocast",
    **_each("fp16 half float16 f16", "dtype=float16, or workload=train workload.precision=float16 for autocast"),
    **_each("bf16 bfloat16", "dtype=bfloat16, or workload=train workload.precision=bfloat16 for autocast"),
    **_each("fp32 float32 float f32", "dtype=float32"),
    **_each("amp autocast mixed_precision", "workload=train workload.precision=bfloat16"),
    **_each(
        "device dev gpu gpu_id gpu_ids gpu_index cuda cuda_device cuda_visible_devices accelerator backend hardware"
        " device_map n_gpu",
        "devices={value}",
    ),
    **_each(
        "gpus num_gpus ngpus nproc_per_node",
        "devices=cuda:0,cuda:1 for each point on both, or devices=cuda:0+cuda:1"
        " for one workload of yours that uses both",
    ),
    **_each(
        "card gpu_type gpu_name gpu_model sim simulate",
        "devices=sim:{value} to calculate, or budget=card:{value} to measure within its memory",
    ),
    **_each("peft adapter", "workload=train workload.method=lora"),
    **_each("lora use_lora", "workload=train workload.method=lora"),
    **_each("qlora use_qlora", "workload=train workload.method=lora quantize=nf4"),
    **_each("r lora_r lora_rank lora_dim", "workload=train workload.method=lora workload.rank={value}"),
    "lora_alpha": "workload=train workload.method=lora workload.alpha={value}",
    "lora_dropout": "workload=train workload.method=lora workload.dropout={value}",
    **_each(
        "target_modules lora_target_modules lora_targets",
        "workload=train workload.method=lora workload.targets={value}",
    ),
    **_each("quantization quant quantized quantise quantization_config weight_bits bits bit", "quantize={value}"),
    **_each("load_in_4bit use_4bit nf4", "quantize=nf4"),
    **_each("int4", "quantize=int4"),
    **_each("int8", "quantize=int8"),
    **_each("fp8 float8", "quantize=int8: there is no fp8, which has as many bits"),
    **_each("load_in_8bit use_8bit", "quantize=int8"),
    **_each(
        "gradient_checkpointing activation_checkpointing grad_checkpointing checkpoint_activations recompute"
        " use_gradient_checkpointing",
        "workload=train workload.checkpointing={value}",
    ),
    **_each(
        "gradient_accumulation_steps gradient_accumulation grad_accum grad_accumulation accumulate_grad_batches"
        " accumulation_steps accumulation accum",
        "workload=train workload.accumulate={value}, which splits each batch into equal parts",
    ),
    **_each("optim opt", "workload=train workload.optimizer={value}"),
    **_each("learning_rate", "workload=train workload.lr={value}"),
    **_each(
        "grad_clip gradient_clip_val clip_grad max_norm gradient_clipping",
        "workload=train workload.max_grad_norm={value}",
    ),
    **_each("torch_compile", "workload=train workload.compile={value}"),
    **_each(
        "flash flash_attn flash_attention flash_attention_2 use_flash_attention use_flash_attention_2 use_flash_attn",
        "attention=flash_attention_2",
    ),
    **_each("sdpa use_sdpa", "attention=sdpa"),
    **_each("attn attn_implementation attn_impl attention_implementation attention_backend", "attention={value}"),
    **_each(
        "max_new_tokens max_tokens output_len output_length output_tokens gen_len gen_length num_new_tokens"
        " min_new_tokens n_predict decode_tokens",
        "workload=generate workload.new_tokens={value}",
    ),
    **_each("kv_cache cache_implementation cache_type kv_cache_type", "workload=generate workload.cache={value}"),
    **_each(
        "chunked_prefill prefill_chunk_size max_num_batched_tokens chunk_size",
        "workload=generate workload.prefill_chunk={value}",
    ),
    "kv_cache_dtype": "workload=generate workload.cache=quantized workload.cache_backend=fp8",
    **_each("offload cpu_offload offload_kv_cache", "workload=generate workload.cache=offloaded"),
    **_each(
        "ngl n_gpu_layers gpu_layers num_gpu_layers",
        "devices=cuda:0, which holds every layer: the workloads of sweeper use one device",
    ),
    "prompt": "inputs=text inputs.file=FILE",
    "reserve": "margin.reserve={value}",
    **_each(
        "gres sbatch slurm partition array qos nodes ntasks cpus_per_task gpus_per_node",
        "the scheduler's options before sweeper, as in srun --gpus 1 sweeper KEY=VALUE",
    ),
    **_each("num_hidden_layers layers n_layers num_layers n_layer depth", "model.config.num_hidden_layers={value}"),
    **_each("hidden_size d_model n_embd hidden hidden_dim dim", "model.config.hidden_size={value}"),
    **_each(
        "model_name model_id model_path model_name_or_path hf_model pretrained checkpoint ckpt base_model",
        "model={value}",
    ),
    **_each("data dataset train_file input input_file corpus prompts text", "inputs=text inputs.file={value}"),
    **_each("task mode job_type", "workload={value}"),
    **_each("train training finetune do_train fit", "workload=train"),
    **_each("inference generate generation do_sample", "workload=generate"),
    **_each("forward eval evaluate do_eval", "workload=forward"),
    **_each("function fn func callable entry_point entrypoint", "workload=custom workload.target={value}"),
    **_each("command cmd script program", "workload=command 'workload.argv=[python,train.py]'"),
    **_each("strategy sampler algorithm sweep_type search_space", "design={value}"),
    **_each(
        "search find_max auto_find_batch_size max_batch find_batch_size",
        "design=frontier 'batch=interval(1,512)'",
    ),
    **_each("random_seed manual_seed rng_seed random_state", "seed={value}"),
    **_each(
        "steps max_steps num_steps n_steps train_steps training_steps iterations iters num_iters n_iter num_iterations"
        " passes loops",
        "repeats={value}, the measured passes (steps, if it trains) that follow the first one",
    ),
    **_each(
        "epochs num_epochs num_train_epochs max_epochs",
        "repeats=N: a point is N passes after the first one (steps, if it trains), not an epoch",
    ),
    **_each("warmups warmup_steps warmup_iters num_warmup warm_up", "warmup={value}"),
    **_each(
        "n runs n_runs num_runs trials n_trials num_trials attempts samples repetitions count",
        "repeat_points={value} for attempts in new processes, or repeats={value} for passes in one",
    ),
    **_each("repeat n_repeats num_repeats reps", "repeats={value}"),
    **_each(
        "o out outdir out_dir output output_dir output_path output_folder outputs_dir save_dir save_path log_dir logdir"
        " results results_dir dir folder",
        "outputs={value}",
    ),
    **_each("run run_name run_id experiment_name exp_name exp job_name project title tag", "name={value}"),
    **_each(
        "memory mem ram vram gpu_memory gpu_mem max_memory memory_limit mem_limit max_mem device_memory limit"
        " vram_limit total_memory",
        "budget={value}",
    ),
    **_each(
        "gpu_memory_utilization mem_fraction memory_fraction gpu_memory_fraction mem_fraction_static",
        "budget=SIZE, as in budget=21GiB, and not a share",
    ),
    **_each("time_limit max_time max_seconds timelimit time walltime deadline timeout_s", "timeout={value}"),
    **_each("interval poll poll_interval sampling_interval sample_interval", "heartbeat={value}"),
    **_each(
        "j jobs n_jobs num_jobs workers n_workers num_workers num_processes processes max_workers parallelism",
        "devices=cuda:0,cuda:1 to use several devices: on each, one point is measured at a time",
    ),
    **_each("threads num_threads n_threads nthreads cpu_threads omp_num_threads", "env.OMP_NUM_THREADS={value}"),
    **_each("python_path python_bin python_exe interpreter venv python_executable", "python={value}"),
    **_each("params num_params n_params parameters num_parameters", "sweeper estimate parameters={value} bits=16"),
    **_each(
        "tensor_parallel_size tp tp_size pp dp data_parallel pipeline_parallel_size world_size fsdp deepspeed zero"
        " zero_stage",
        "devices=cuda:0+cuda:1 with a workload of your own; those of sweeper use one device",
    ),
    **_each("dry_run dryrun plan_only", "sweeper estimate KEY=VALUE,..., which shows the plan and runs nothing"),
    **_each("overwrite force rerun redo fresh", "name=NAME retry=all, or resume=anew after a change of the code"),
    **_each("continue restart", "name=NAME, the name of the run: what it has is not measured again"),
    **_each(
        "v verbose verbosity debug quiet q log_level loglevel logging silent",
        "nothing: a sweep prints one line for each attempt, and keeps the output of each in its folder",
    ),
    **_each("y yes confirm_all", "nothing: sweeper asks no questions"),
    **_each("format json csv output_format", "sweeper frontier RUN --json; a sweep writes Parquet tables"),
    **_each(
        "config c config_file cfg config_name conf",
        "-cd FOLDER experiment=NAME for the file FOLDER/experiment/NAME.yaml",
    ),
}

# Values of a key, in small letters. A text with = replaces the key too.
VALUES: Mapping[str, Mapping[str, str]] = {
    "dtype": {
        **_each("16 16bit", "dtype=float16 or dtype=bfloat16"),
        **_each("fp16 f16 float16", "float16"),
        **_each("bf bf16 brain bfloat bfp16", "bfloat16"),
        **_each("32 tf32 fp32 single full", "float32"),
        **_each("64 fp64", "float64"),
        **_each("int8 8bit 8 i8 uint8", "quantize=int8"),
        **_each("int4 4bit 4 q4", "quantize=int4"),
        "nf4": "quantize=nf4",
        **_each("fp8 float8 e4m3 float8_e4m3fn", "quantize=int8 for stored weights; nothing computes in fp8"),
        **_each("mixed amp autocast bf16-mixed bf16_mixed", "workload=train workload.precision=bfloat16"),
        **_each("16-mixed fp16-mixed fp16_mixed", "workload=train workload.precision=float16"),
    },
    "quantize": {
        **_each("4bit 4 4-bit q4 fp4 bnb bitsandbytes bnb4 qlora w4", "nf4"),
        **_each("i4 w4a16 torchao", "int4"),
        **_each("8bit 8 8-bit q8 i8 w8a16", "int8"),
        **_each("16 32 16bit false off no", "none"),
        **_each("awq gptq gguf q4_k_m exl2 marlin mxfp4 nvfp4", "quantize=int4 or quantize=nf4, which have 4 bits"),
        **_each("fp8 float8 e4m3", "quantize=int8, which has as many bits"),
    },
    "attention": {
        **_each(
            "flash flash2 flash-attention flash-attention-2 flash_attention flash_attn flash-attn fa fa2 flash_2"
            " flashattention flashattention2 true",
            "flash_attention_2",
        ),
        **_each("math manual naive vanilla none", "eager"),
        **_each("torch pytorch efficient mem_efficient memory_efficient xformers", "sdpa"),
        **_each("default auto", "null"),
    },
    "workload": {
        **_each("serve serving inference infer server chat decode sample sampling completion vllm", "generate"),
        **_each("finetune fine-tune finetuning fine-tuning training sft pretrain pretraining fit backward", "train"),
        **_each("eval evaluate evaluation prefill predict prediction embed embedding encode test", "forward"),
        **_each("function callable mine own", "workload=custom workload.target=module:function"),
        **_each("program script exec shell", "workload=command 'workload.argv=[python,train.py]'"),
        **_each("lora peft", "workload=train workload.method=lora"),
        "qlora": "workload=train workload.method=lora quantize=nf4",
    },
    "design": {
        **_each(
            "search binary bisect bisection binary_search max largest limit edge optimize bayes optuna", "frontier"
        ),
        **_each("sweep full product cartesian all random exhaustive factorial gridsearch grid_search", "grid"),
        **_each("one ofat one_at_a_time star", "axes"),
    },
    "inputs": {**_each("random dummy fake none", "synthetic"), **_each("image", "images"), **_each("max", "limit")},
    "retry": {
        **_each("failed failures fail failure true yes on any everything", "all"),
        **_each("errors", "error"),
        **_each("ooms", "oom"),
        **_each("false no off never none", "[]"),
        **_each("skipped not_run", "nothing: what was not run is run"),
        "ok": "resume=anew, which measures again after a change, or another name",
    },
    "resume": {
        **_each("true yes on auto continue 1", "same"),
        **_each("false no off never restart new fresh 0", "anew"),
    },
    "confirm": {**_each("true yes on 1 largest", "edge"), **_each("false no off never 0", "none")},
    "trace": {
        **_each("true yes on always failure failed oom 1", "on_failure"),
        **_each("false no off none 0", "never"),
    },
    "start": {**_each("hot fork forked", "warm"), **_each("spawn new fresh", "cold")},
    "phases": {**_each("all every separate true", "each"), **_each("one none single false", "whole")},
    "edge": {**_each("max maximum one best", "largest"), **_each("full whole", "all")},
    "cache": {
        **_each("clear empty_cache", "empty"),
        **_each("dynamic static sliding quantized offloaded", "workload=generate workload.cache={value}"),
    },
    "allocator": {
        **_each(
            "expandable_segments expandable expandable_segments:true",
            "env.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        **_each("default malloc glibc", "system"),
        **_each("stable fixed deterministic", "repeatable"),
    },
    "objective": {**_each("largest max size", "tokens")},
    "timeout": {**_each("none never no off inf infinite 0 false", "null, which is no limit")},
    "devices": {
        **_each("gpu nvidia rocm hip amd cuda_0 geforce tesla", "cuda:0"),
        **_each("gpus cuda:all cuda:* every multi", "all"),
        **_each("host processor x86 cpus cpu:0 cpu0", "cpu"),
        **_each("any default best", "auto"),
        **_each("true", "cuda:0"),
    },
    "workload.method": {
        "qlora": "workload.method=lora quantize=nf4",
        **_each("peft adapter adapters", "lora"),
        **_each("finetune full_finetune all sft none", "full"),
    },
    "workload.optimizer": {
        **_each("adamw_torch adamw_hf", "adamw"),
        **_each("adamw_torch_fused fused", "adamw-fused"),
        **_each("adamw_8bit adamw8bit adam8bit adam_8bit adamw_bnb_8bit paged_adamw_8bit paged_adamw", "adamw-8bit"),
    },
    "workload.precision": {
        **_each("bf16 mixed amp true", "bfloat16"),
        **_each("fp16 half 16", "float16"),
        **_each("fp32 float32 32 no none false", "null"),
    },
    "workload.cache": {"quantised": "quantized", "offload": "offloaded", "default": "dynamic"},
    "workload.targets": {**_each("all linear", "all-linear")},
}

# Names of the same thing in the configurations of models and in the keys of workloads.
SAME = (
    ("num_hidden_layers", "n_layer", "n_layers", "layers", "num_layers", "depth"),
    ("hidden_size", "n_embd", "d_model", "hidden", "hidden_dim", "dim", "width"),
    ("num_attention_heads", "n_head", "n_heads", "heads", "num_heads"),
    ("max_position_embeddings", "n_positions", "positions", "max_seq_len", "max_len"),
    ("intermediate_size", "d_ff", "ffn_dim", "ffn_size", "mlp_dim"),
    ("vocab_size", "vocab", "vocabulary", "n_vocab"),
    ("checkpointing", "checkpoint", "gradient_checkpointing", "activation_checkpointing", "recompute"),
    ("accumulate", "grad_accum", "gradient_accumulation_steps", "gradient_accumulation", "accumulation_steps"),
    ("lr", "learning_rate"),
    ("rank", "lora_rank", "lora_r", "r"),
    ("alpha", "lora_alpha"),
    ("dropout", "lora_dropout"),
    ("targets", "target_modules"),
    ("precision", "amp", "autocast", "mixed_precision"),
    ("method", "peft", "adapter"),
    ("optimizer", "optim", "opt"),
    ("max_grad_norm", "grad_clip", "gradient_clip_val", "clip"),
    ("new_tokens", "max_new_tokens", "max_tokens", "num_tokens", "output_len", "gen_len", "length"),
    ("prefill_chunk", "chunked_prefill", "chunk_size", "chunk"),
    ("cache", "kv_cache", "cache_implementation", "kv"),
    ("prompt_lengths", "concurrency"),
    ("target", "function", "fn", "func", "entrypoint"),
    ("argv", "command", "cmd", "args"),
    ("file", "path", "data", "dataset"),
)
TRUE, FALSE = ("true", "yes", "on", "1", "y"), ("false", "no", "off", "0", "n", "none", "null")
# What sweeper has no meter for.
NO_METER = ("mps", "metal", "xpu", "tpu", "npu", "hpu", "vulkan", "opencl", "directml", "meta", "xla")
# Makers and product lines, which the names of cards leave out.
MAKERS = ("nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "quadro")

# Keys that count GPUs.
COUNTS = ("gpus", "num_gpus", "ngpus", "n_gpus", "n_gpu", "nproc_per_node")

# Names that other tools have for a file's list of values.
GRIDS = ("sweep", "sweeps", "parameters", "matrix", "search_space", "space", "values", "variables", "product", "list")

FLAGS: Mapping[str, str] = {
    "-V": "--version",
    **_each("-? --man --usage", "--help"),
    "--estimate": "sweeper estimate KEY=VALUE",
    "--effects": "sweeper effects RUN",
    "--frontier": "sweeper frontier RUN, or sweeper design=frontier KEY=VALUE to search",
    "--environment": "sweeper environment",
    "--list": "sweeper list",
    "--show": "sweeper show RUN",
    "--compare": "sweeper compare BEFORE AFTER",
}

# First words that are no command, with what does it. {words}: the rest of the line.
COMMANDS: Mapping[str, str] = {
    **_each(
        "run start measure bench benchmark profile exec execute go launch", "sweeper {words}: a sweep needs no command"
    ),
    **_each("sweeper python python3", "sweeper {words}"),
    **_each("plan dry-run dryrun dry_run preview estimates predict", "sweeper estimate {words}"),
    **_each("fit fits check memory", "sweeper estimate {words} for arithmetic, or sweeper design=frontier {words}"),
    **_each(
        "search find max bisect optimize tune",
        "sweeper design=frontier {words}, with a key as in 'batch=interval(1,512)'",
    ),
    **_each("report summary best", "sweeper frontier RUN"),
    **_each("results result view open table tables points cat", "sweeper show RUN"),
    **_each("diff regression gate", "sweeper compare BEFORE AFTER, two runs; --fail-above 2% makes it a gate"),
    **_each("ls runs history", "sweeper list"),
    **_each("plot draw chart graph picture", "sweeper effects RUN --picture peaks.png"),
    **_each("analyze analyse analysis effect sensitivity", "sweeper effects RUN"),
    **_each("models model", "sweeper --help model, which lists the models: model=NAME"),
    **_each("cards card gpus", "sweeper --help card, which lists the cards: devices=sim:CARD"),
    **_each("workloads designs experiments inputs options keys", "sweeper --help, which lists them"),
    **_each("devices device env doctor hardware info system diagnose nvidia-smi", "sweeper environment"),
    **_each("help man usage", "sweeper --help"),
    **_each("version", "sweeper --version"),
    **_each("config cfg conf", "sweeper --cfg job {words}"),
    **_each("status progress watch", "sweeper frontier RUN, also while the sweep runs"),
    **_each("resume continue retry rerun", "the command of the sweep again with its name=NAME: the rest is measured"),
    **_each("delete clean rm remove purge", "rm -r outputs/NAME: a run is a folder"),
    **_each("init new setup create install configure", "sweeper batch=1,2,4: there is nothing to set up"),
    **_each("export", "pandas.read_parquet: the tables in a run's folder are Parquet files"),
    **_each("stop kill cancel", "Ctrl-C where the sweep runs: what has finished is kept"),
    **_each("completion completions", "sweeper -sc install=bash"),
}
