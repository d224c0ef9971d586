"""An unchanged Lightning module: a callback marks each step as a phase.

python -m sweeper workload=custom workload.target=lightning_module:run batch=2,8 context=16
"""

import lightning
import torch
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def training_step(self, batch, index):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Phases(lightning.Callback):
    def __init__(self, phase):
        self.phase = phase

    def on_train_batch_start(self, trainer, module, batch, index):
        self.step = self.phase("step", index)
        self.step.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.step.__exit__(None, None, None)


def run(*, batch, context, dtype, device, seed, phase, width=64):
    lightning.seed_everything(seed, verbose=False)
    with phase("model_load"):
        module = Module(width).to(getattr(torch, dtype))
    rows = torch.randn(2 * batch, context, width, dtype=getattr(torch, dtype))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=1,
        callbacks=[Phases(phase)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=batch))
    return {"steps": trainer.global_step}
