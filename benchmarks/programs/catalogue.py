"""The programs of the zoo: how each is called, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program. `name` is its file without the suffix, beside this one.

    A program with an `entry` is called as a workload `custom`, one without is a script, run as a workload `command`
    with `arguments`. `libraries` are the modules that it imports beside torch and numpy.

    The card's peak differs from the processor's: the data of a program stay on the host, a card computes in 16 bits
    where the program asks for it, and its matrix products have a workspace. `ratio` is the range in which the card's
    peak over the processor's is expected, that workspace aside; a peak outside of it is reported as suspect.
    """

    name: str
    entry: str | None = None
    arguments: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    ratio: tuple[float, float] = (0.6, 1.5)
    because: str = ""  # why the ratio is another

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]

    @property
    def is_script(self) -> bool:
        return self.entry is None

    @property
    def calculated_as(self) -> str:
        """The value of the key `workload.target` or `workload.argv`, as it is typed."""
        if self.is_script:
            return f"[{','.join(('python', f'{self.name}.py', *self.arguments))}]"
        return f"{self.name.replace('/', '.')}:{self.entry}"


PROGRAMS = (
    Program(name="vision/cifar_cnn", entry="main"),
    Program(name="vision/timm_resnet", entry="main", libraries=("timm", "torchvision")),
    Program(name="vision/timm_vit", entry="run", libraries=("timm", "torchvision", "tqdm")),
    Program(name="vision/transfer_learning", entry="main", libraries=("torchvision",)),
    Program(name="vision/distillation", entry="main"),
    Program(name="vision/masked_autoencoder", entry="run", libraries=("einops",)),
    Program(name="detection/faster_rcnn", entry="main", libraries=("torchvision",)),
    Program(
        name="detection/ssdlite",
        entry="run",
        libraries=("torchvision",),
        ratio=(0.5, 1.5),
        because="autocast: the features are of 16 bits on a card",
    ),
    Program(name="detection/yolo", entry="main", libraries=("tqdm",)),
    Program(name="detection/detr_hf", entry="main", libraries=("transformers", "lightning", "scipy")),
    Program(name="segmentation/unet", entry="train_model", libraries=("tqdm",)),
    Program(name="segmentation/smp_unet", entry="main", libraries=("segmentation_models_pytorch", "lightning")),
    Program(name="segmentation/deeplab", entry="main", libraries=("torchvision",)),
    Program(name="segmentation/segformer_hf", entry="main", libraries=("transformers", "tqdm")),
    Program(name="diffusion/diffusers_ddpm", entry="main", libraries=("diffusers", "accelerate", "tqdm")),
    Program(name="diffusion/annotated_ddpm", entry="main", libraries=("einops", "tqdm")),
    Program(
        name="diffusion/text_to_image_lora", entry="main", libraries=("diffusers", "transformers", "accelerate", "peft")
    ),
    Program(name="diffusion/stable_diffusion_sample", entry="main", libraries=("diffusers", "transformers")),
    Program(name="diffusion/flow_matching_dit", entry="run"),
    Program(name="speech/ctc_lstm", entry="main"),
    Program(name="speech/seq2seq_attention", entry="main"),
    Program(name="speech/lstm_forecast", entry="run"),
    Program(name="speech/wav2vec2_ctc", entry="main", libraries=("transformers", "accelerate")),
    Program(name="speech/whisper_seq2seq", entry="main", libraries=("transformers", "accelerate")),
    Program(name="graphs/gcn_nodes", entry="main", libraries=("torch_geometric",)),
    Program(name="graphs/gin_graphs", entry="main", libraries=("torch_geometric",)),
    Program(name="graphs/link_prediction", entry="main", libraries=("torch_geometric",)),
    Program(name="graphs/sparse_gcn", entry="main"),
    Program(name="recommenders/dlrm", entry="main"),
    Program(name="recommenders/matrix_factorization", entry="run", libraries=("tqdm",)),
    Program(name="recommenders/word2vec", entry="main"),
    Program(name="recommenders/sasrec", entry="main"),
    Program(name="reinforcement/dqn", entry="main", libraries=("gymnasium",)),
    Program(name="reinforcement/ppo", entry="main", libraries=("gymnasium",)),
    Program(name="reinforcement/sac", entry="main", libraries=("gymnasium",)),
    Program(name="medical/monai_unet", entry="main", libraries=("monai",)),
    Program(name="medical/swin_unetr", entry="main", libraries=("monai", "einops", "tqdm")),
    Program(name="medical/vnet", entry="run"),
    Program(name="medical/classification", entry="main", libraries=("monai",)),
    Program(name="language/hf_trainer", entry="main", libraries=("transformers", "datasets", "accelerate")),
    Program(name="language/lora_sft", entry="main", libraries=("transformers", "datasets", "trl", "peft")),
    Program(name="language/dpo", entry="main", libraries=("transformers", "datasets", "trl")),
    Program(name="language/qlora", entry="main", libraries=("transformers", "peft", "bitsandbytes", "accelerate")),
    Program(name="language/lightning_gpt", entry="main", libraries=("lightning",)),
    Program(
        name="language/accelerate_bert",
        entry="training_function",
        libraries=("transformers", "accelerate", "torchmetrics"),
    ),
    Program(
        name="language/sentence_embeddings",
        entry="main",
        libraries=("sentence_transformers", "transformers", "datasets"),
    ),
    Program(name="language/t5_summarization", entry="main", libraries=("transformers",)),
    Program(name="language/transformer_translation", entry="main"),
    Program(name="scripts/nanogpt_train"),
    Program(name="scripts/mnist_main"),
    Program(name="scripts/imagenet_main", arguments=("--dummy",), libraries=("torchvision",)),
    Program(name="scripts/dcgan", libraries=("torchvision",)),
    Program(name="scripts/vae_main"),
    Program(name="scripts/word_language_model", arguments=("--tied",)),
    Program(name="scripts/actor_critic", libraries=("gymnasium",)),
)
