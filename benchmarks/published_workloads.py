"""What published figures were measured on beside models of transformers: called by workload=custom of the product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runners.phases import Phases


def cross_entropy_forward_backward(device: str, rows: int, vocabulary: int, phase: Phases) -> None:
    """Loss and gradient of float32 logits twice, the gradient of the first kept: Liger-Kernel,
    benchmark/scripts/benchmark_cross_entropy.py, bench_memory_cross_entropy."""
    logits = torch.randn(rows, vocabulary, device=device, requires_grad=True)
    targets = torch.randint(vocabulary, (rows,), device=device)
    for index in range(2):
        with phase("forward_backward", index):
            functional.cross_entropy(logits, targets).backward()  # type: ignore[no-untyped-call]


# --- lit_gpt ----------------------------------------------------------------------------------------------------------


def lit_gpt_lora(
    device: str, dtype: str, batch: int, context: int, rank: int, sizes: Mapping[str, Any], phase: Phases
) -> dict[str, Any]:
    """One micro-batch of finetune/lora.py at https://github.com/Lightning-AI/litgpt/tree/8641822: adapters on queries
    and values in the model's dtype, logits and losses in chunks of 128 tokens, gradients added up, then an update."""
    with phase("model_load"):
        with torch.device(device), _default(getattr(torch, dtype)):
            model = _LitGpt(rank=rank, context=context, **sizes)
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "lora_" in name
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained)
        tokens = torch.zeros(batch, context, dtype=torch.long, device=device)
    for index in range(2):
        with phase("forward", index):
            # Fabric gives what a model in 16 bits returns in torch's default dtype: lightning/fabric/plugins/precision/
            # half.py, convert_output.
            chunks = [chunk.float() for chunk in model(tokens)]
            chunks[-1] = chunks[-1][:, :-1]
        with phase("loss", index):
            targets = tokens[:, 1:].split(chunks[0].shape[1], dim=1)
            losses = [
                functional.cross_entropy(chunk.reshape(-1, chunk.shape[-1]), target.reshape(-1), reduction="none")
                for chunk, target in zip(chunks, targets, strict=True)
            ]
            loss = torch.cat(losses).mean()
            del losses
        with phase("backward", index):
            loss.backward()  # type: ignore[no-untyped-call]
        with phase("step", index):
            optimizer.step()
            optimizer.zero_grad()
        del chunks, loss
    return {"trainable": sum(each.numel() for each in trained)}


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _LitGpt(nn.Module):
    """lit_gpt/lora.py, GPT: the model of lit_gpt/model.py with adapters on queries and values."""

    def __init__(
        self, *, vocab: int, width: int, layers: int, heads: int, inner: int, rotary: float, bias: bool, kind: str,
        rank: int, context: int,
    ) -> None:  # fmt: skip
        super().__init__()
        norm = nn.LayerNorm if kind == "neox" else _Norm
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(_Block(width, heads, inner, bias, kind, rank) for _ in range(layers))
        self.norm = norm(width)
        self.head = nn.Linear(width, vocab, bias=bias)
        self.rotated = int(width // heads * rotary)
        self.register_buffer("cos", torch.empty(context, self.rotated))
        self.register_buffer("sin", torch.empty(context, self.rotated))

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return [self.head(part) for part in self.norm(x).split(128, dim=1)]


class _Norm(nn.Module):
    """lit_gpt/rmsnorm.py: in the model's dtype throughout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = torch.mean(x * x, dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean + 1e-5)
        scaled: torch.Tensor = self.weight * normed
        return scaled


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, bias: bool, kind: str, rank: int) -> None:
        super().__init__()
        self.parallel = kind == "neox"
        self.norm_1 = nn.LayerNorm(width) if self.parallel else _Norm(width)
        self.attention = _Attention(width, heads, bias, rank)
        if not self.parallel:
            self.norm_2 = _Norm(width)
            self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first = self.norm_1(x)
        attended = self.attention(first, cos, sin)
        if self.parallel:
            return x + attended + self._mlp(first)
        x = x + attended
        return x + self._mlp(self.norm_2(x))

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        if self.parallel:
            made: torch.Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
            return made
        gate, up = self.gate(x), self.up(x)
        made = self.down(functional.silu(gate) * up)
        return made


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.lora_a = nn.Parameter(torch.empty(2 * rank, width))
        self.lora_b = nn.Parameter(torch.empty(2 * width, rank))
        self.dropout = nn.Dropout(0.05)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self._adapted(x).view(batch, length, self.heads, 3, width // self.heads).permute(0, 2, 3, 1, 4)
        q, k, v = (part.reshape(batch, -1, length, width // self.heads) for part in qkv.split((1, 1, 1), dim=2))
        q, k = self._rotated(q, cos, sin), self._rotated(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        attended: torch.Tensor = self.out(y.reshape(batch, length, width))
        return attended

    def _adapted(self, x: torch.Tensor) -> torch.Tensor:
        """LoRAQKVLinear: a grouped convolution for queries and values, with zeros in the keys' place."""
        made = self.qkv(x)
        low = functional.linear(self.dropout(x), self.lora_a)
        high = functional.conv1d(low.transpose(-2, -1), self.lora_b.unsqueeze(-1), groups=2).transpose(-2, -1)
        high = high.transpose(0, 1)
        padded = high.new_zeros(*high.shape[:-1], made.shape[-1]).view(-1, made.shape[-1])
        place = torch.empty(high.shape[-1], dtype=torch.long, device=x.device)
        padded = padded.index_copy(1, place, high.reshape(-1, high.shape[-1]))
        adapters = padded.view(*high.shape[:-1], made.shape[-1]).transpose(0, 1)
        scaled: torch.Tensor = made + adapters * 2.0
        return scaled

    @staticmethod
    def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        size = cos.shape[-1]
        part = x[..., :size]
        turned = torch.cat((-part[..., size // 2 :], part[..., : size // 2]), dim=-1)
        roped = ((part * cos) + (turned * sin)).to(x.dtype)
        return torch.cat((roped, x[..., size:]), dim=-1)
