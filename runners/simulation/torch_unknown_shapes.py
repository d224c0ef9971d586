"""Results whose shape depends on numbers that are not known: how large they are at most.

Indices, classes and random whole numbers take no more different values than what they were chosen from. How many that
are is kept for the storages of such tensors, and follows them through operators that only copy, choose or join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runners.simulation.assumptions import AT_MOST_ALL

aten = torch.ops.aten
TRUTHS = 2


class Bounded(NamedTuple):
    """The largest result of an operator, and which bound it is."""

    result: Any
    bound: str = AT_MOST_ALL


class Distinct:
    """How many different numbers a tensor can have, by the address of its storage."""

    def __init__(self) -> None:
        self._most: dict[int, int] = {}

    def of(self, tensor: Tensor) -> int:
        """At most so many: that of its elements if no less is known."""
        most = self._most.get(tensor.untyped_storage()._cdata, tensor.numel())
        return min(most, tensor.numel(), TRUTHS if tensor.dtype == torch.bool else tensor.numel())

    def forget(self, key: int) -> None:
        if self._most:
            self._most.pop(key, None)

    def follow(self, result: Any, operator: Any, args: Sequence[Any]) -> None:
        """Keep the number for what an operator makes, or forget that of a storage that it writes to."""
        if (most := MAKES.get(operator)) is not None:
            made = result if isinstance(result, Tensor) else result[-1]
            if made.is_meta:
                self._most[made.untyped_storage()._cdata] = most(args)
        elif self._most and isinstance(result, Tensor) and result.is_meta and result.layout is torch.strided:
            if operator.overloadpacket in COPIES and not operator._schema.is_mutable:
                self._copied(result, args[0])
            elif operator._schema.is_mutable:
                self.forget(result.untyped_storage()._cdata)

    def _copied(self, result: Tensor, source: Any) -> None:
        sources = [source] if isinstance(source, Tensor) else list(source)
        keys = [each.untyped_storage()._cdata for each in sources if each.layout is torch.strided]
        if keys and all(key in self._most for key in keys):
            self._most[result.untyped_storage()._cdata] = sum(self._most[key] for key in keys)


def _along(at: int, default: Any = None) -> Callable[[Sequence[Any]], int]:
    """The length of the dimension that an operator chooses from."""

    def length(args: Sequence[Any]) -> int:
        dim = args[at] if len(args) > at else default
        return int(args[0].numel() if dim is None or not args[0].ndim else args[0].shape[dim])

    return length


# How many different numbers the result has, or the last one of several.
MAKES: dict[Any, Callable[[Sequence[Any]], int]] = {
    **dict.fromkeys((aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim), _along(1)),
    aten.multinomial.default: lambda args: int(args[0].shape[-1]),
    aten.topk.default: _along(2, -1),
    aten.sort.default: _along(1, -1),
    aten.randint.default: lambda args: int(args[0]),
    aten.randint.low: lambda args: int(args[1]) - int(args[0]),
}
COPIES = frozenset(
    {aten.clone, aten._to_copy, aten.index, aten.index_select, aten.gather, aten.masked_select, aten.cat, aten.stack}
    | {aten.flip, aten.repeat, aten.take, aten.take_along_dim}
)


# --- operators --------------------------------------------------------------------------------------------------------


def _unique(
    distinct: Distinct, input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Bounded:
    most = distinct.of(input)
    whole = torch.int64
    return Bounded(
        (
            input.new_empty((most,)),
            input.new_empty(input.shape if return_inverse else (0,), dtype=whole),
            input.new_empty((most if return_counts else 0,), dtype=whole),
        ),
        AT_MOST_ALL if most == input.numel() else f"at most {most} different numbers",
    )


def _unique_dim(
    distinct: Distinct,
    input: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Bounded:
    length = input.shape[dim]
    counts = length if return_counts else 0
    inverse = length if return_inverse else 0
    return Bounded(
        (torch.empty_like(input), *(input.new_empty((each,), dtype=torch.int64) for each in (inverse, counts)))
    )


def _unique_consecutive(
    distinct: Distinct,
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Bounded:
    if dim is not None:
        return _unique_dim(distinct, input, dim, True, return_inverse, return_counts)
    inverse = input.new_empty(input.shape if return_inverse else (0,), dtype=torch.int64)
    counts = input.new_empty((input.numel() if return_counts else 0,), dtype=torch.int64)
    return Bounded((input.new_empty((input.numel(),)), inverse, counts))


def _bincount(distinct: Distinct, input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Bounded | None:
    """At most `minlength` counts, which is right for a confusion matrix: its classes are below `minlength`."""
    if not minlength:
        return None
    dtype = torch.int64 if weights is None else weights.dtype if weights.dtype == torch.float32 else torch.float64
    return Bounded(input.new_empty((minlength,), dtype=dtype), "no longer than minlength")


OPERATORS: dict[Any, Callable[..., Bounded | None]] = {
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique_dim,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.bincount.default: _bincount,
}
# The most elements of results whose size a library's rule leaves open, by the operator's name.
MOST_OF_EXTENSIONS: dict[str, Callable[..., int]] = {
    "torchvision::nms": lambda boxes, scores, threshold: int(boxes.shape[0]),
}


def at_most(distinct: Distinct, operator: Any, args: Any, kwargs: Any) -> Bounded | None:
    """The largest result; None if there is no bound."""
    make = OPERATORS.get(operator)
    return None if make is None else make(distinct, *args, **kwargs)
