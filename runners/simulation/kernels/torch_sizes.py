"""Arithmetic of sizes for the rules of several kernel families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# From the arguments, keyword arguments and result of an operator: the bytes of each temporary of its kernel.
Rule = Callable[[Sequence[Any], Mapping[str, Any], Any], Sequence[int]]

MIB = 2**20
FLOAT = 4  # bytes of float32, in which halves are accumulated
HALVES = (torch.float16, torch.bfloat16)


def round_up(number: int, to: int) -> int:
    """The next multiple of `to`."""
    return ceil_divide(number, to) * to


def ceil_divide(number: int, by: int) -> int:
    return -(-number // by)


def contiguous_copies(*tensors: Tensor) -> list[int]:
    """The bytes of the copies of tensors that are not contiguous, for kernels that need them so."""
    return [each.nbytes for each in tensors if not each.is_contiguous()]
