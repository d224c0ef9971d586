"""Temporary memory of reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_sizes import FLOAT, HALVES, Rule, ceil_divide

# aten/src/ATen/native/cuda/Reduce.cuh, TensorIterator.cpp, ReduceOpsUtils.h


@dataclass(frozen=True, slots=True)
class _Dim:
    size: int
    stride: int  # elements, in the input
    kept: int  # elements, in the result


def _reduction(arch: GpuArchitecture, tensor: Tensor, reduced: Sequence[int], number: int, vector: int) -> list[int]:
    """If several blocks share a result: a buffer for their partial results, and a counter for each column of blocks.

    `number` is the bytes of a partial result, `vector` the neighbouring elements that a thread loads at once. If
    neighbours belong to different results, the buffer is as many times larger as a block is wide, and mostly unused.
    """
    inner, outer = _dims(tensor, set(reduced))
    if tensor.numel() == 0 or not inner:
        return []
    inner, outer = _within_32_bits(inner, outer, tensor.element_size())
    results, inputs = (math.prod(each.size for each in dims) for dims in (outer, inner))
    along = not outer or inner[0].stride < outer[0].stride  # neighbouring elements belong to one result
    width_limit, height_limit = (inputs, results) if along else (results, inputs)
    together = 1
    if along and inner[0].stride == 1 and len(inner) == 1 and inputs >= 128:
        width_limit //= vector
    elif not along and outer[0].stride == 1:
        together = _aligned(tensor, inner, outer)
        width_limit //= together
    width, height = _block(width_limit, height_limit, 512 // together)
    step = width if along else 1
    outputs = 1 if along else width
    shares = ceil_divide(inputs, step) >= min(16 * height, 256)
    if shares:
        step *= height
    else:
        outputs *= height
    columns = ceil_divide(results // together, outputs)
    target = arch.processors * (arch.threads // (width * height))
    each = ceil_divide(inputs, step)
    if not shares or each < 256 or columns > target:
        return []
    blocks = max(min(ceil_divide(target, columns), ceil_divide(each, 16)), ceil_divide(each, 256))
    return [number * results * blocks * (1 if along else width * together), 4 * columns] if blocks > 1 else []


def _dims(tensor: Tensor, reduced: set[int]) -> tuple[list[_Dim], list[_Dim]]:
    """Reduced and kept dimensions, the fastest first, with adjacent dimensions joined."""
    kept, dims = 1, []
    for dim in reversed(range(tensor.dim())):
        size = tensor.size(dim)
        dims.append((dim, _Dim(size, tensor.stride(dim), 0 if dim in reduced else kept)))
        kept *= 1 if dim in reduced else size
    inner = sorted((each for dim, each in dims if dim in reduced and each.size > 1), key=lambda each: each.stride)
    outer = [each for dim, each in dims if dim not in reduced and each.size > 1]
    return _joined(inner), _joined(outer)


def _joined(dims: list[_Dim]) -> list[_Dim]:
    joined: list[_Dim] = []
    for each in dims:
        last = joined[-1] if joined else None
        if last and last.size * last.stride == each.stride and last.size * last.kept == each.kept:
            joined[-1] = _Dim(last.size * each.size, last.stride, last.kept)
        else:
            joined.append(each)
    return joined


def _within_32_bits(inner: list[_Dim], outer: list[_Dim], one: int) -> tuple[list[_Dim], list[_Dim]]:
    """The half, quarter, ... of the dimensions that one launch reduces, if they span more than 2 GiB."""
    inner, outer = list(inner), list(outer)
    while sum((each.size - 1) * each.stride * one for each in inner + outer) >= 2**31:
        dims = max((inner, outer), key=lambda dims: max(((each.size - 1) * each.stride for each in dims), default=0))
        at = max(range(len(dims)), key=lambda at: (dims[at].size - 1) * dims[at].stride)
        dims[at] = _Dim(ceil_divide(dims[at].size, 2), dims[at].stride, dims[at].kept)
    return inner, outer


def _aligned(tensor: Tensor, inner: list[_Dim], outer: list[_Dim]) -> int:
    """The number of neighbouring results that a thread loads at once: 4, 2 or 1."""
    numbers = [tensor.storage_offset(), outer[0].size, *(each.stride for each in [*inner, *outer[1:]])]
    return next(together for together in (4, 2, 1) if all(number % together == 0 for number in numbers))


def _block(width_limit: int, height_limit: int, threads: int) -> tuple[int, int]:
    """The width and height of a block of threads."""
    widest, highest = (
        threads if limit >= threads else 1 << max(limit, 1).bit_length() - 1 for limit in (width_limit, height_limit)
    )
    height = min(highest, threads // min(widest, 32))
    return min(widest, threads // height), height


def _every(tensor: Tensor, dim: Any) -> list[int]:
    """The dimensions that are reduced, given as one, several or none for all."""
    dims = [dim] if isinstance(dim, int) else dim
    return [each % tensor.dim() for each in dims] if dims and tensor.dim() else list(range(tensor.dim()))


def sum_or_mean(arch: GpuArchitecture, has_dim: bool) -> Rule:
    """ReduceSumProdKernel.cu, ReduceMomentKernel.cu. An input of another dtype than the result is converted first,
    except from half precision to float32."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
        tensor, wanted = args[0], result.dtype
        number = FLOAT if wanted in HALVES else result.element_size()
        converts = tensor.dtype != wanted and not (tensor.dtype in HALVES and wanted == torch.float32)
        size = result.element_size() if converts else tensor.element_size()
        dims = _every(tensor, args[1] if has_dim and len(args) > 1 else kwargs.get("dim"))
        own = _reduction(arch, tensor, dims, number, 8 if size == 2 else 4)
        return [*([tensor.numel() * size] if converts else []), *own]

    return rule


def vector_norm(arch: GpuArchitecture) -> Rule:
    """ReduceNormKernel.cu."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
        number = FLOAT if result.dtype in HALVES else result.element_size()
        return _reduction(arch, args[0], _every(args[0], args[2] if len(args) > 2 else kwargs.get("dim")), number, 4)

    return rule


def argmax(arch: GpuArchitecture) -> Rule:
    """ReduceArgMaxKernel.cu: a value and its index."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
        return _reduction(arch, args[0], _every(args[0], args[1] if len(args) > 1 else kwargs.get("dim")), 16, 4)

    return rule
