"""Temporary memory of operators over lists of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runners.simulation.kernels.torch_sizes import FLOAT, HALVES, ceil_divide


# aten/src/ATen/native/cuda/ForeachReduceOp.cu, MultiTensorApply.cuh
def foreach_norm(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """One number for each chunk of 65536 elements, for each tensor as many as for the largest."""
    tensors = args[0]
    order = float(args[1]) if len(args) > 1 else 2.0
    one_kind = len({(each.dtype, each.device) for each in tensors}) == 1
    if not one_kind or not tensors[0].is_floating_point() or order not in (1.0, 2.0, math.inf):
        return []
    dtype = kwargs.get("dtype") or (args[2] if len(args) > 2 else None) or tensors[0].dtype
    chunks = max(ceil_divide(each.numel(), 65536) for each in tensors)
    return [len(tensors) * chunks * (FLOAT if dtype in HALVES else dtype.itemsize)]
