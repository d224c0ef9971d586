"""Temporary memory of the kernels of indexing, sorting and sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from runners.simulation.kernels.torch_sizes import FLOAT, HALVES, contiguous_copies


# aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu
def embedding_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Above 3072 tokens: sorted and original positions, the starts of segments of one token, the number and the starts
    of the parts of at most ten rows in each segment, and a row of float32 for each part."""
    grad, indices, weights, _, by_frequency = args[:5]
    count, one = indices.numel(), indices.element_size()
    copies = contiguous_copies(grad)
    if count <= 3072 and not by_frequency:
        return copies
    segments = min(count, weights)
    parts = count // 10 + segments
    row = grad.size(-1) * (FLOAT if grad.dtype in HALVES else grad.element_size())
    counted = [count * one] if by_frequency else []
    return [
        *copies,
        *(count * one, count * one, *counted, count * one, 8),
        *(segments * one, segments * one, 8, parts * one, parts * row),
    ]


# aten/src/ATen/native/cuda/Indexing.cu
def index_put(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Accumulation sorts: linear positions, the values if they were expanded, sorted and original positions, a range,
    and the second buffers of the sort for keys and values. Without accumulation there are none."""
    tensor, indices, values = args[:3]
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulates or not given or any(each.dtype in (torch.bool, torch.uint8) for _, each in given):
        return []
    sizes = zip_longest(*(reversed(each.shape) for _, each in given), fillvalue=1)  # of the broadcast indices
    count = math.prod(map(max, sizes))
    dims = [dim for dim, _ in given]
    kept = [size for dim, size in enumerate(tensor.shape) if dim not in dims]
    adjacent = dims[-1] - dims[0] == len(dims) - 1
    slice_ = math.prod(tensor.shape[dims[-1] + 1 :] if adjacent else kept)
    full = count * math.prod(kept)
    expanded = values.numel() != full or not values.is_contiguous()
    bits = max((tensor.numel() - 1) // max(slice_, 1), 1).bit_length()
    copies = [full * values.element_size()] if expanded else []
    return [*contiguous_copies(tensor), 8 * count, *copies, *[8 * count] * 3, *_radix_sort(8, 8, count, bits)]


# NVIDIA's CUB, device/dispatch/dispatch_radix_sort.cuh
def _radix_sort(key: int, value: int, count: int, bits: int) -> list[int]:
    """A pass sorts eight bits, and more than one pass needs second buffers."""
    return [(key + value) * count] if bits > 8 else []


# aten/src/ATen/native/cuda/Sort.h, SortStable.cu
def sort(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """Above 4096 elements in a row. One row: its positions. A few rows: positions and rows, before and after, and the
    keys. Many rows are sorted by segments."""
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    length = tensor.size(dim) if tensor.dim() else 1
    if length <= 4096:
        return []
    count, key = tensor.numel(), tensor.element_size()
    rows = count // length
    if rows == 1 or length >= 1_000_000:
        return [8 * length, *_radix_sort(key, 8, length, 8 * key)]
    if rows < 128:
        return [8 * count, 8 * count, key * count, *_radix_sort(key, 8, count, 8 * key)]
    return [8 * count, *_radix_sort(key, 8, count, 16)]  # second buffers for keys of any width


# aten/src/ATen/native/Distributions.cpp
def multinomial(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Without replacement, or for one sample: random numbers that divide the probabilities. For several samples also
    the largest quotients."""
    weights, samples = args[:2]
    replaces = args[2] if len(args) > 2 else kwargs.get("replacement", False)
    if replaces and samples != 1:
        return []
    return [weights.nbytes] + ([result.numel() * weights.element_size()] if samples != 1 else [])


# aten/src/ATen/native/cuda/Indexing.cu, IndexKernel.cpp
def masked_scatter(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """For each element the number of masked elements before it, and the mask if it was expanded."""
    tensor, mask = args[:2]
    full = mask.shape == tensor.shape and mask.is_contiguous()
    return [8 * tensor.numel(), *([] if full else [tensor.numel()])]
