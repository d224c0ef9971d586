"""Sizes that the rules of several kernel families compute with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Rule = Callable[[Sequence[Any], Mapping[str, Any], Any], Sequence[int]]

MIB = 2**20
FLOAT = 4  # bytes of the type that halves are accumulated in
HALVES = (torch.float16, torch.bfloat16)


def round_up(number: int, to: int) -> int:
    return ceil_divide(number, to) * to


def ceil_divide(number: int, by: int) -> int:
    return -(-number // by)


def contiguous_copies(*tensors: Tensor) -> list[int]:
    """Of those that a kernel first makes contiguous."""
    return [each.nbytes for each in tensors if not each.is_contiguous()]
