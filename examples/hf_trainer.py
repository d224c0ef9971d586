"""An unchanged transformers Trainer: a callback marks each step as a phase.

python -m sweeper workload=custom workload.target=hf_trainer:run batch=1,4 context=32
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Phases(TrainerCallback):
    """Enters a phase where a step begins and leaves it where the step ends.

    A step that raises leaves the phase open, so the row names it as the phase that failed.
    """

    def __init__(self, phase):
        self.phase = phase

    def on_step_begin(self, args, state, control, **kwargs):
        self.step = self.phase("step", state.global_step)
        self.step.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        self.step.__exit__(None, None, None)


def run(*, batch, context, dtype, device, seed, phase, width=64, layers=2):
    config = LlamaConfig(
        vocab_size=512, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4
    )
    with phase("model_load"):
        model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    rows = torch.randint(config.vocab_size, (2 * batch, context))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=2,
            per_device_train_batch_size=batch,
            use_cpu=device == "cpu",
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        dataset = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[Phases(phase)])
        return {"loss": trainer.train().training_loss}
