"""Temporary memory of the kernels of softmax and layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_sizes import Rule, ceil_divide, contiguous_copies


# aten/src/ATen/native/transformers/attention.cpp
def safe_softmax(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """The softmax, the masked elements, the fully masked rows, and two numbers from which the result is made."""
    one = result.element_size()
    return [result.nbytes, one, result.numel(), result.numel() // max(result.size(args[1]), 1), one]


# aten/src/ATen/native/cuda/SoftMax.cu
def softmax_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """The gradient times the output."""
    grad, output = args[:2]
    return [grad.numel() * max(grad.element_size(), output.element_size()), *contiguous_copies(output)]


def log_softmax_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Contiguous copies only."""
    return contiguous_copies(*args[:2])


# aten/src/ATen/native/cuda/layer_norm_kernel.cu
def norm_backward(arch: GpuArchitecture, learned: Callable[[Sequence[Any]], Sequence[Tensor | None]]) -> Rule:
    """With many short rows: a sum for each block of rows, for each parameter that has a gradient."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        grad, tensor, shape = args[:3]
        width = math.prod(shape)
        rows = tensor.numel() // max(width, 1)
        copies = contiguous_copies(grad, tensor)
        if rows <= 65536 or width // 32 >= arch.processors // 2:
            return copies
        blocks = min(32768 // ceil_divide(width, 32), ceil_divide(rows, 32))
        parameters = [
            each for each, learns in zip(learned(args), args[-1][1:], strict=True) if each is not None and learns
        ]
        return [*copies, *(blocks * width * each.element_size() for each in parameters)]

    return rule
