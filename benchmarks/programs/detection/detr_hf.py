"""Fine-tuning a DETR of transformers with Lightning, as its object detection notebooks do: Hungarian matching on the host."""

import lightning as L
import torch
from torch.utils.data import DataLoader
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig


class Detr(L.LightningModule):
    def __init__(self, lr, lr_backbone, weight_decay):
        super().__init__()
        backbone = ResNetConfig(
            embedding_size=32,
            hidden_sizes=[32, 64, 128, 256],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_features=["stage4"],
        )
        config = DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=128,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=512,
            decoder_ffn_dim=512,
            num_queries=50,
            num_labels=3,
            auxiliary_loss=True,
        )
        self.model = DetrForObjectDetection(config)
        self.lr, self.lr_backbone, self.weight_decay = lr, lr_backbone, weight_decay

    def forward(self, pixel_values, pixel_mask):
        return self.model(pixel_values=pixel_values, pixel_mask=pixel_mask)

    def common_step(self, batch, batch_idx):
        labels = [{k: v.to(self.device) for k, v in t.items()} for t in batch["labels"]]
        outputs = self.model(pixel_values=batch["pixel_values"], pixel_mask=batch["pixel_mask"], labels=labels)
        return outputs.loss, outputs.loss_dict

    def training_step(self, batch, batch_idx):
        loss, loss_dict = self.common_step(batch, batch_idx)
        self.log("training_loss", loss)
        for k, v in loss_dict.items():
            self.log("train_" + k, v.item())
        return loss

    def validation_step(self, batch, batch_idx):
        loss, loss_dict = self.common_step(batch, batch_idx)
        self.log("validation_loss", loss)
        return loss

    def configure_optimizers(self):
        named = list(self.named_parameters())
        param_dicts = [
            {"params": [p for n, p in named if "backbone" not in n and p.requires_grad]},
            {"params": [p for n, p in named if "backbone" in n and p.requires_grad], "lr": self.lr_backbone},
        ]
        return torch.optim.AdamW(param_dicts, lr=self.lr, weight_decay=self.weight_decay)


def make_sample(index):
    generator = torch.Generator().manual_seed(index)
    height, width = 224 + 32 * (index % 2), 256
    count = 1 + index % 3
    boxes = torch.rand(count, 4, generator=generator) * 0.4 + 0.2
    return {
        "pixel_values": torch.randn(3, height, width, generator=generator),
        "labels": {"class_labels": torch.randint(3, (count,), generator=generator), "boxes": boxes},
    }


def collate_fn(batch):
    height = max(each["pixel_values"].shape[1] for each in batch)
    width = max(each["pixel_values"].shape[2] for each in batch)
    pixel_values = torch.zeros(len(batch), 3, height, width)
    pixel_mask = torch.zeros(len(batch), height, width, dtype=torch.long)
    for i, each in enumerate(batch):
        _, h, w = each["pixel_values"].shape
        pixel_values[i, :, :h, :w] = each["pixel_values"]
        pixel_mask[i, :h, :w] = 1
    return {"pixel_values": pixel_values, "pixel_mask": pixel_mask, "labels": [each["labels"] for each in batch]}


def main():
    L.seed_everything(0)
    train_dataloader = DataLoader([make_sample(i) for i in range(8)], collate_fn=collate_fn, batch_size=4, shuffle=True)
    val_dataloader = DataLoader([make_sample(i) for i in range(8, 12)], collate_fn=collate_fn, batch_size=4)
    model = Detr(lr=1e-4, lr_backbone=1e-5, weight_decay=1e-4)
    trainer = L.Trainer(
        max_steps=2,
        gradient_clip_val=0.1,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    trainer.fit(model, train_dataloader, val_dataloader)
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
