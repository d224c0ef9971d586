"""A script of its own: trains a GPT as nanoGPT does, on a file of tokens or, without one, on random tokens.

python -m sweeper workload=command 'workload.argv=[python,examples/train.py,--batch,"{batch}"]' batch=8,16,32
                  'devices=[sim:rtx-4090]'
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 50304


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        samples, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (part.view(samples, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(samples, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width, bias=False), Attention(width, heads)
        self.between = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.last(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--evaluate-every", type=int, default=2000)
    parser.add_argument("--data", help="tokens as numbers of 16 bits")
    parser.add_argument("--out", default="checkpoint.pt")
    given = parser.parse_args()

    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    autocast = torch.amp.autocast(device_type=device, dtype=torch.bfloat16)
    if given.data:
        tokens = np.memmap(given.data, dtype=np.uint16, mode="r")
    else:
        tokens = np.random.randint(0, VOCABULARY, 2**20, dtype=np.uint16)

    def next_batch():
        starts = torch.randint(len(tokens) - given.context - 1, (given.batch,))
        rows = torch.stack(
            [torch.from_numpy(tokens[start : start + given.context + 1].astype(np.int64)) for start in starts]
        )
        if device == "cuda":
            rows = rows.pin_memory().to(device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]

    model = GPT(given.layers, given.width, given.heads, given.context).to(device)
    print(f"{sum(each.numel() for each in model.parameters()) / 1e6:.1f} M parameters on {device}")
    decayed = [each for each in model.parameters() if each.ndim >= 2]
    others = [each for each in model.parameters() if each.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=device == "cuda")

    @torch.no_grad()
    def evaluate():
        model.eval()
        losses = torch.zeros(2)
        for index in range(2):
            with autocast:
                losses[index] = model(*next_batch()).item()
        model.train()
        return losses.mean().item()

    best = float("inf")
    for step in range(given.steps):
        if given.evaluate_every and step % given.evaluate_every == 0:
            loss = evaluate()
            print(f"step {step}: loss {loss:.3f}")
            if loss < best:
                best = loss
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, given.out)
        for _ in range(given.accumulate):
            with autocast:
                loss = model(*next_batch()) / given.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            print(f"step {step}: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
