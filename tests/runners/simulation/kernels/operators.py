"""Tensors without data, architectures, and the temporaries of an operator by its rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_temporaries import temporaries

aten = torch.ops.aten
AMPERE, ADA, HOPPER = (GpuArchitecture("nvidia", each) for each in ((8, 0), (8, 9), (9, 0)))
TURING, VOLTA, BLACKWELL = (GpuArchitecture("nvidia", each) for each in ((7, 5), (7, 0), (10, 0)))
AMD = GpuArchitecture("amd", None)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def sizes(op: Any, *args: Any, arch: GpuArchitecture = AMPERE, result: Any = None, **kwargs: Any) -> list[int]:
    """The bytes of an operator's temporaries by its rule. The operator runs unless its `result` is given."""
    result = op(*args, **kwargs) if result is None else result
    return list(temporaries(arch)[op](args, kwargs, result))
