"""Temporary memory of the attention kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_sizes import FLOAT, HALVES, Rule, ceil_divide, contiguous_copies, round_up

# aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp


def _rounded_head(head: int) -> int:
    return round_up(head, 32 if head <= 128 else 64)


def _splits(tiles: int, processors: int, blocks: int) -> int:
    """The number of parts that the keys are split into, so that few queries occupy all multiprocessors."""
    if tiles >= 0.8 * processors:
        return 1

    def is_new(parts: int) -> bool:
        return parts == 1 or ceil_divide(blocks, parts) != ceil_divide(blocks, parts - 1)

    def efficiency(parts: int) -> float:
        waves = tiles * parts / processors
        return waves / math.ceil(waves)

    candidates = [parts for parts in range(1, min(128, processors, blocks) + 1) if is_new(parts)]
    best = max(map(efficiency, candidates))
    return next(parts for parts in candidates if efficiency(parts) >= 0.85 * best)


def _flash_forward_sizes(arch: GpuArchitecture, query: Tensor, key: Tensor, dropout_p: float) -> list[int]:
    """Statistics and results in float32 of the parts that the keys are split into.

    query and key are (batch, length, heads, head size).
    """
    batch, length, heads, head = query.shape
    length_k, heads_k = key.shape[1:3]
    if dropout_p:
        return [16]  # no split, and the seed is made twice
    if length == 1 and heads > heads_k:  # one token: the heads of a group become its queries
        length, heads = heads // heads_k, heads_k
    block = 256 if head <= 64 else 128 if head <= 128 else 64
    parts = _splits(batch * heads * ceil_divide(length, 64), 2 * arch.processors, ceil_divide(length_k, block))
    rows = parts * batch * heads * length
    return [rows * FLOAT, rows * _rounded_head(head) * FLOAT] if parts > 1 else []


def _flash_backward_sizes(grad: Tensor, query: Tensor, key: Tensor, out: Tensor) -> list[int]:
    """A sum for each row and the gradient of queries, in float32, with rows in blocks of 128; with grouped heads also
    the gradients of keys and values for every head. All tensors are (batch, length, heads, head size)."""
    batch, length, heads, head = query.shape
    rows = batch * heads * round_up(length, 128)
    grouped = [batch * key.size(1) * heads * head * key.element_size()] * 2 if key.size(2) != heads else []
    return [*contiguous_copies(grad, out), rows * FLOAT, rows * _rounded_head(head) * FLOAT, *grouped]


def flash_forward(arch: GpuArchitecture) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        query, key = (each.transpose(1, 2) for each in args[:2])
        return _flash_forward_sizes(arch, query, key, args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0))

    return rule


def flash_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    grad, query, key, _, out = (each.transpose(1, 2) for each in args[:5])
    return _flash_backward_sizes(grad, query, key, out)


# aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kernels/cutlassF.h


def efficient_forward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """The result in float32, if it is in half precision and a head is too wide for registers."""
    query, _, value = args[:3]
    wide = max(query.size(-1), value.size(-1)) > 128
    return [result[0].numel() * FLOAT] if wide and query.dtype in HALVES else []


# aten/src/ATen/native/transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h, kernels/cutlassB.h


def efficient_backward(arch: GpuArchitecture) -> Rule:
    """A sum for each row, and a workspace for each batch and head: tiles of the gradient of queries with a lock of 16
    bytes, and the gradients of keys and values for each part of the keys if a head is too wide for registers."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        grad, query, key, value = (each.transpose(1, 2) for each in args[:4])
        batch, length, heads, head = query.shape
        half = query.dtype in HALVES
        rows, columns = _tile(arch, half, max(head, value.size(3)))
        tiles = ceil_divide(length, rows) * ceil_divide(head, columns) * (4 + rows * columns)
        sums = 0
        if half and max(head, value.size(3)) > 128:
            parts = max(1, min(_parts(batch * heads, key.size(1), columns), 200 // (batch * heads)))
            sums = parts * columns * (round_up(head, rows) + round_up(value.size(3), rows))
        delta = batch * heads * length * FLOAT
        workspace = batch * heads * round_up(tiles + sums, 4) * FLOAT
        product = batch * heads * length * value.size(3) * FLOAT  # gradient times result, which delta sums
        own = [delta, workspace] if half or product < delta + workspace else [product]
        return [*contiguous_copies(grad), *own]

    return rule


def _tile(arch: GpuArchitecture, half: bool, head: int) -> tuple[int, int]:
    """The tile of the first kernel for such a head: 64 x 64, or larger with the shared memory of A100 and H100."""
    large = arch.capability in ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
    if half and 64 < head <= 96 and arch.capability in ((8, 6), (8, 9)):
        return 128, 64
    if not large or head <= 64:
        return 64, 64
    return (128, 128) if half and head <= 128 else (128, 64)


def _parts(heads: int, length_k: int, columns: int) -> int:
    return 1 if heads >= 256 and length_k <= 2 * columns else ceil_divide(length_k, columns)


# NVIDIA's cudnn-frontend 1.23, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h


def cudnn_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """One workspace: the gradient of queries and a sum for each row, in float32, as the frontend requests."""
    batch, heads, length, head = args[1].shape
    return [batch * heads * length * (head + 1) * FLOAT]
