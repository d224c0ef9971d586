"""Pre-training a masked autoencoder: random masking by argsort and gather, and a step of a cosine schedule by hand."""

import math

import torch
import torch.nn as nn
from einops import rearrange
from torch.utils.data import DataLoader


class MaskedAutoencoderViT(nn.Module):
    def __init__(
        self, img_size=96, patch_size=8, embed_dim=192, depth=4, num_heads=6, decoder_dim=128, decoder_depth=2
    ):
        super().__init__()
        self.patch_size = patch_size
        num_patches = (img_size // patch_size) ** 2
        self.patch_embed = nn.Conv2d(3, embed_dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches + 1, embed_dim))
        layer = nn.TransformerEncoderLayer(embed_dim, num_heads, 4 * embed_dim, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(embed_dim), enable_nested_tensor=False)
        self.decoder_embed = nn.Linear(embed_dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.decoder_pos_embed = nn.Parameter(torch.zeros(1, num_patches + 1, decoder_dim))
        layer = nn.TransformerEncoderLayer(decoder_dim, 4, 4 * decoder_dim, 0.0, batch_first=True, norm_first=True)
        self.decoder_blocks = nn.TransformerEncoder(layer, decoder_depth, enable_nested_tensor=False)
        self.decoder_pred = nn.Linear(decoder_dim, patch_size**2 * 3)
        for parameter in (self.cls_token, self.pos_embed, self.mask_token, self.decoder_pos_embed):
            torch.nn.init.normal_(parameter, std=0.02)

    def patchify(self, imgs):
        p = self.patch_size
        return rearrange(imgs, "n c (h p) (w q) -> n (h w) (p q c)", p=p, q=p)

    def random_masking(self, x, mask_ratio):
        N, L, D = x.shape
        len_keep = int(L * (1 - mask_ratio))
        noise = torch.rand(N, L, device=x.device)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :len_keep]
        x_masked = torch.gather(x, dim=1, index=ids_keep.unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones([N, L], device=x.device)
        mask[:, :len_keep] = 0
        mask = torch.gather(mask, dim=1, index=ids_restore)
        return x_masked, mask, ids_restore

    def forward(self, imgs, mask_ratio=0.75):
        x = self.patch_embed(imgs).flatten(2).transpose(1, 2) + self.pos_embed[:, 1:, :]
        x, mask, ids_restore = self.random_masking(x, mask_ratio)
        cls_token = (self.cls_token + self.pos_embed[:, :1, :]).expand(x.shape[0], -1, -1)
        latent = self.blocks(torch.cat((cls_token, x), dim=1))
        x = self.decoder_embed(latent)
        mask_tokens = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] + 1 - x.shape[1], 1)
        x_ = torch.cat([x[:, 1:, :], mask_tokens], dim=1)
        x_ = torch.gather(x_, dim=1, index=ids_restore.unsqueeze(-1).repeat(1, 1, x.shape[2]))
        x = self.decoder_blocks(torch.cat([x[:, :1, :], x_], dim=1) + self.decoder_pos_embed)
        pred = self.decoder_pred(x)[:, 1:, :]
        target = self.patchify(imgs)
        mean, var = target.mean(dim=-1, keepdim=True), target.var(dim=-1, keepdim=True)
        target = (target - mean) / (var + 1.0e-6) ** 0.5
        loss = ((pred - target) ** 2).mean(dim=-1)
        return (loss * mask).sum() / mask.sum(), pred, mask


def adjust_learning_rate(optimizer, epoch, lr=1.5e-4, warmup_epochs=1, epochs=4):
    if epoch < warmup_epochs:
        lr = lr * epoch / warmup_epochs
    else:
        lr = lr * 0.5 * (1.0 + math.cos(math.pi * (epoch - warmup_epochs) / (epochs - warmup_epochs)))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    return lr


def run(batch_size=32, device=None):
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    loader = DataLoader(torch.randn(3 * batch_size, 3, 96, 96), batch_size=batch_size, shuffle=True, drop_last=True)
    model = MaskedAutoencoderViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95))
    accum_iter = 1
    for data_iter_step, samples in enumerate(loader):
        if data_iter_step % accum_iter == 0:
            adjust_learning_rate(optimizer, data_iter_step / len(loader))
        samples = samples.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss, _, _ = model(samples, mask_ratio=0.75)
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            raise SystemExit(f"Loss is {loss_value}, stopping training")
        (loss / accum_iter).backward()
        if (data_iter_step + 1) % accum_iter == 0:
            optimizer.step()
            optimizer.zero_grad()
        print(f"[{data_iter_step}/{len(loader)}] loss: {loss_value:.4f}")
    if device.type == "cuda":
        print(f"max mem: {torch.cuda.max_memory_allocated() / 1024.0 / 1024.0:.2f} MB")
    return {"loss": loss_value}


if __name__ == "__main__":
    run()
