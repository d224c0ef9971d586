"""Workloads of published figures other than models of transformers, for workload=custom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runners.phases import Phases


def cross_entropy_forward_backward(device: str, rows: int, vocabulary: int, phase: Phases) -> None:
    """Loss and gradient of float32 logits, twice, with the gradient of the first pass kept: Liger-Kernel,
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
    """Two steps of finetune/lora.py at https://github.com/Lightning-AI/litgpt/tree/8641822, each of one micro-batch:
    adapters on queries and values in the model's dtype, and logits and losses in chunks of 128 tokens."""
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
            # Fabric converts the output of a 16-bit model to torch's default dtype:
            # lightning/fabric/plugins/precision/half.py, convert_output.
            chunks = [chunk.float() for chunk in model(tokens)]
            chunks[-1] = chunks[-1][:, :-1]
        with phase("loss", index):
            targets = torch.split(tokens[:, 1:], chunks[0].shape[1], dim=1)
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
        return [self.head(part) for part in torch.split(self.norm(x), 128, dim=1)]


class _Norm(nn.Module):
    """lit_gpt/rmsnorm.py, which computes in the model's dtype."""

    in_float32 = False  # True from 6178c7c on: the backward pass then keeps a copy of twice the bytes

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.float() if self.in_float32 else x
        mean = torch.mean(x * x, dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean + 1e-5)
        scaled: torch.Tensor = self.weight * normed
        return scaled.to(dtype)


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
            both: torch.Tensor = x + attended + self._mlp(first)
            return both
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
        q, k, v = (part.reshape(batch, -1, length, width // self.heads) for part in torch.split(qkv, [1, 1, 1], dim=2))
        q, k = self._rotated(q, cos, sin), self._rotated(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        attended: torch.Tensor = self.out(y.reshape(batch, length, width))
        return attended

    def _adapted(self, x: torch.Tensor) -> torch.Tensor:
        """LoRAQKVLinear: a grouped convolution for queries and values, with zeros in place of keys."""
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


# --- torchao ----------------------------------------------------------------------------------------------------------


def torchao_generate(
    device: str,
    dtype: str,
    cache_size: int,
    quantized: bool,
    linear_mask: bool,
    config: Mapping[str, Any],
    phase: Phases,
) -> None:
    """torchao/_models/llama/generate.py and model.py at https://github.com/pytorch/ao/tree/00109449, not compiled: a
    prompt of six tokens, a cache of `cache_size` allocated at once, then tokens with the composite attention. Three
    tokens are enough, since each takes the same memory."""
    with phase("model_load"), torch.device(device), _default(getattr(torch, dtype)):
        model = _Ao(config)
    with torch.inference_mode():
        with phase("caches"), torch.device(device), _default(getattr(torch, dtype)):
            model.allocate_caches(cache_size, quantized, linear_mask)
        with phase("prefill"):
            token = model(torch.zeros(1, PROMPT, dtype=torch.int, device=device), PROMPT)[:, -1].argmax(
                -1, keepdim=True
            )
        with phase("decode"), nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            for _ in range(3):
                token = model(token, 1)[:, -1].argmax(-1, keepdim=True)


PROMPT = 6  # tokens of "Hello, my name is"


class _Ao(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, vocabulary = config["hidden_size"], config["vocab_size"]
        self.positions = config["max_position_embeddings"]
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = width // config["num_attention_heads"]
        self.layers = nn.ModuleList(_AoLayer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = _AoNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def allocate_caches(self, size: int, quantized: bool, linear_mask: bool) -> None:
        self.linear = linear_mask
        if linear_mask:
            self.mask = torch.zeros(1, 1, 1, size, dtype=torch.bool)
        else:
            self.mask = torch.ones(size, size, dtype=torch.bool).tril()
        layer: Any
        for layer in self.layers:
            layer.allocate_caches(size, quantized)
        self.frequencies = self._frequencies()

    def _frequencies(self) -> torch.Tensor:
        """model.py, precompute_freqs_cis: for all positions of the model."""
        angles = torch.outer(torch.arange(self.positions), torch.empty(self.head // 2, dtype=torch.float32))
        turns = torch.polar(torch.ones_like(angles), angles)
        return torch.stack([turns.real, turns.imag], dim=-1).to(torch.get_default_dtype())

    def forward(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        place = torch.zeros(length, dtype=torch.int, device=tokens.device)
        if not self.linear:
            mask = self.mask[None, None, place]
        elif length > 1:
            mask = torch.ones(length, self.mask.shape[-1], dtype=torch.bool, device=tokens.device).tril()[None, None]
        else:
            mask = self.mask
        turns = self.frequencies[place]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turns, mask, place)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


class _AoNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = (wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5)).type_as(x)
        scaled: torch.Tensor = normed * self.weight
        return scaled


class _AoLayer(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.heads, self.groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.head = width // self.heads
        self.qkv = nn.Linear(width, (self.heads + 2 * self.groups) * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm, self.norm_2 = _AoNorm(width), _AoNorm(width)

    def allocate_caches(self, size: int, quantized: bool) -> None:
        shape = (1, self.groups, size, self.head)
        self.kept = [torch.zeros(shape, dtype=torch.int8 if quantized else None) for _ in range(2)]
        self.scales = [torch.ones(*shape[:-1], 1) for _ in range(2)] if quantized else None

    def forward(self, x: torch.Tensor, turns: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        h = x + self._attended(self.norm(x), turns, mask, place)
        y = self.norm_2(h)
        made: torch.Tensor = h + self.down(functional.silu(self.gate(y)) * self.up(y))
        return made

    def _attended(self, x: torch.Tensor, turns: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        kv = self.groups * self.head
        q, k, v = torch.split(self.qkv(x), [width, kv, kv], dim=-1)
        q = self._turned(q.view(batch, length, self.heads, self.head), turns).transpose(1, 2)
        k = self._turned(k.view(batch, length, self.groups, self.head), turns).transpose(1, 2)
        v = v.view(batch, length, self.groups, self.head).transpose(1, 2)
        k, v = (self._kept(index, new, place) for index, new in enumerate((k, v)))
        k, v = (each.repeat_interleave(self.heads // self.groups, dim=1) for each in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        attended: torch.Tensor = self.out(y.transpose(1, 2).contiguous().view(batch, length, width))
        return attended

    def _kept(self, index: int, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        kept = self.kept[index]
        if self.scales is None:
            kept[:, :, place] = new
            return kept
        scale = new.abs().amax(-1) / 127
        kept[:, :, place] = (new / scale[..., None]).to(torch.int8)
        self.scales[index][:, :, place] = scale[..., None]
        wide: torch.Tensor = kept * self.scales[index]
        wide[:, :, place] = new
        return wide

    @staticmethod
    def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        turns = turns.view(1, pairs.shape[1], 1, pairs.shape[3], 2)
        first = pairs[..., 0] * turns[..., 0] - pairs[..., 1] * turns[..., 1]
        second = pairs[..., 1] * turns[..., 0] + pairs[..., 0] * turns[..., 1]
        return torch.stack([first, second], -1).flatten(3).type_as(x)
