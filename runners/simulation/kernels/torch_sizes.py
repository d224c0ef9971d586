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


class Estimate(int):
    """Bytes that are not known exactly, since a library decides them: the value to calculate with, and bounds."""

    low: int
    high: int

    def __new__(cls, bytes_: int, low: int, high: int) -> Estimate:
        estimate = super().__new__(cls, bytes_)
        estimate.low, estimate.high = low, high
        return estimate
