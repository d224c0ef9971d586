"""A small GPT as a Lightning module: 16-bit precision on a card, accumulation, early stopping, checkpoints, a progress bar."""

import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, length, context, words):
        self.data = torch.randint(words, (length, context + 1), generator=torch.Generator().manual_seed(length))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index, :-1], self.data[index, 1:]


class LitGPT(L.LightningModule):
    def __init__(self, words=5000, width=256, layers=4, heads=4, context=128, lr=3e-4):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.zeros(1, context, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=self.device)
        hidden = self.transformer(self.embed(tokens) + self.position[:, : tokens.size(1)], mask=mask, is_causal=True)
        return self.head(hidden)

    def training_step(self, batch, batch_idx):
        tokens, targets = batch
        logits = self(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, targets = batch
        logits = self(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        accuracy = (logits.argmax(-1) == targets).float().mean()
        self.log_dict({"val_loss": loss, "val_acc": accuracy}, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, betas=(0.9, 0.95))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main(batch_size=8, epochs=1):
    L.seed_everything(42)
    train_loader = DataLoader(Tokens(4 * batch_size, 128, 5000), batch_size=batch_size, shuffle=True, num_workers=1)
    val_loader = DataLoader(Tokens(batch_size, 128, 5000), batch_size=batch_size, num_workers=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="auto",
            devices=1,
            precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            log_every_n_steps=1,
            logger=CSVLogger(folder),
            callbacks=[
                EarlyStopping(monitor="val_loss", patience=2),
                ModelCheckpoint(dirpath=folder, monitor="val_loss", save_top_k=1),
                LearningRateMonitor(logging_interval="step"),
            ],
        )
        model = LitGPT()
        trainer.fit(model, train_loader, val_loader)
        results = trainer.validate(model, val_loader, ckpt_path="best", verbose=False)
    print(results)


if __name__ == "__main__":
    main()
