"""Temporary memory of the kernels of sparse tensors of coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from runners.simulation.kernels.torch_sizes import contiguous_copies

INT, LONG = 4, 8  # bytes of an index


def _is_coo(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.sparse_coo


# aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu
def coalesce(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Linear positions, the original ones and the starts of segments, and the second buffers of their sort."""
    count = args[0]._indices().size(1)
    return [LONG * count] * 3 + [2 * LONG * count]


# aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu
def add_to_dense(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Linear positions, and the values times a factor."""
    if not _is_coo(args[1]) or _is_coo(args[0]):
        return []
    values = args[1]._values()
    return [LONG * args[1]._indices().size(1), *([values.nbytes] if kwargs.get("alpha", 1) != 1 else [])]


# aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu, SparseCUDABlas.cpp
def product(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """A coalesced copy, and its positions as rows of 32 bits. The buffer of cuSPARSE is not covered."""
    sparse = next((each for each in args[:2] if _is_coo(each)), None)
    if sparse is None:
        return []
    count, dense = sparse._indices().size(1), [each for each in args if isinstance(each, Tensor) and not _is_coo(each)]
    copy = [] if sparse.is_coalesced() else [sparse._indices().nbytes, sparse._values().nbytes]
    rows = INT * (sparse.size(0) + 1)
    return [*copy, INT * count, INT * count, rows, *contiguous_copies(*dense)]
