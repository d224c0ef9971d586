"""Operators whose results depend on the numbers in tensors, where tensors have no data.

A number, the count of a mask's elements or the equality of two tensors is answered from the numbers that are known
(runners/simulation/torch_numbers.py), else it is bounded by all elements or assumed, and the row reports which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from runners.phases import Unavailable
from runners.simulation.assumptions import Assumptions
from runners.simulation.levels import Level
from runners.simulation.torch_numbers import Numbers, is_same
from runners.simulation.torch_unknown_shapes import Distinct, at_most

aten = torch.ops.aten

OF_MASKS = frozenset({aten.nonzero.default, aten.masked_select.default})  # of which the last argument is one


class DataDependent:
    """Results of such operators. `unavailable` makes the exception for an operator and a reason."""

    def __init__(
        self, numbers: Numbers, assumptions: Assumptions, unavailable: Callable[[Any, str], Unavailable]
    ) -> None:
        self.numbers, self.assumptions, self.unavailable = numbers, assumptions, unavailable
        self.distinct = Distinct()

    def item(self, tensor: torch.Tensor) -> Any:
        """A number that an operator reads, and not the program itself."""
        operator = aten._local_scalar_dense.default
        found = self.numbers.answer(tensor)
        number = found.tensor.item()
        if found.level > Level.KNOWN and isinstance(number, int) and not isinstance(number, bool):
            if found.level is Level.ASSUMED:
                raise self.unavailable(operator, "it reads a whole number that is not calculated")
            if found.level is Level.BOUND:
                self.assumptions.bound(str(operator))
            else:
                self.assumptions.note(str(operator))
        elif found.level > Level.KNOWN:
            self.assumptions.note(str(operator))
        return number

    def are_close(self, close: torch.Tensor) -> bool:
        """What a program that checks its numbers reads from one truth: assumed where it is not known."""
        if self.numbers.knows(close):
            return bool(self.item(close))
        return self.assumptions.truth(True, Level.ASSUMED, "torch.allclose")

    def equal(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Whether all numbers of two tensors are equal. Those that are not known are assumed to differ somewhere."""
        if first.shape != second.shape:
            return False
        if first.dtype is second.dtype is torch.bool and not first.ndim:  # torch.istft: do its windows leave a gap?
            return False
        if is_same(first, second):
            return True
        if self.numbers.knows(first) and self.numbers.knows(second):
            return torch.equal(*(self.numbers.answer(each).tensor for each in (first, second)))
        return self.assumptions.truth(False, Level.ASSUMED, "torch.equal")

    def result(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[int]]:
        """The result of an operator whose shape depends on numbers: as they are where known, else at most all.

        With the bytes of the kernel's temporaries. Raises Unavailable if neither is known.
        """
        if not is_on_device((args, kwargs)):
            return self._with_data(func, args, kwargs), []
        if func is aten.index.Tensor:
            indices, counts = self._without_masks(args[1], func)
            return func(args[0], indices), counts
        if func is aten.masked_select.default:
            shape: Any = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
            return args[0].new_empty((self._count(args[1].expand(shape), func),)), []
        if func is aten.nonzero.default:
            count = self._count(args[0], func)
            return torch.empty((args[0].ndim, count), dtype=torch.int64, device="meta").t(), []
        if all(map(self.numbers.knows, tensors_of(args))):
            made = func(*tree_map(self._value_if_meta, args), **kwargs)
            return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, made), []
        bounded = at_most(self.distinct, func, args, kwargs)
        if bounded is None:
            raise self.unavailable(func, "the shape of its result depends on numbers that are not calculated")
        self.assumptions.bound(str(func.overloadpacket), bounded.bound)
        return bounded.result, []

    def _with_data(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same where there are data, which may be assumed."""
        given = self.with_true_masks(func, args)
        of_masks = func in OF_MASKS or func is aten.index.Tensor
        if not of_masks and not all(map(self.numbers.knows, tensors_of(args))):
            raise self.unavailable(func, "the shape of its result depends on numbers that are not calculated")
        return func(*given, **kwargs)

    def with_true_masks(self, func: Any, args: Any) -> list[Any]:
        """The arguments with masks of assumed data taken as true everywhere."""
        given = list(args)
        masks = given[1] if func is aten.index.Tensor else given[-1:] if func in OF_MASKS else []
        for position, mask in enumerate(masks):
            if isinstance(mask, torch.Tensor) and self.numbers.level(mask) > Level.FINITE:
                self.assumptions.bound(str(func.overloadpacket))
                all_true = torch.ones_like(mask)
                if func is aten.index.Tensor:
                    given[1] = [*masks[:position], all_true, *masks[position + 1 :]]
                else:
                    given[-1] = all_true
        return given

    def _count(self, mask: torch.Tensor, func: Any) -> int:
        """How many elements are not zero, or the most that can be."""
        found = self.numbers.answer(mask)
        if found.level is Level.KNOWN:
            return int(found.tensor.count_nonzero())
        operator = str(func.overloadpacket)
        if found.level is Level.FINITE:
            self.assumptions.note(operator)
            return int(found.tensor.count_nonzero())
        self.assumptions.bound(operator)
        return mask.numel()

    def _without_masks(self, indices: Any, func: Any) -> tuple[list[Any], list[int]]:
        """The indices with positions in place of masks, as the kernel computes them, and the bytes of those."""
        found: list[Any] = []
        counts = []
        for index in indices:
            if not is_mask(index):
                found.append(index)
                continue
            count = self._count(index, func)
            found += [torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.ndim)]
            counts.append(count * index.ndim * torch.int64.itemsize)
        return found, counts

    def _value_if_meta(self, leaf: Any) -> Any:
        return self.numbers.answer(leaf).tensor if isinstance(leaf, torch.Tensor) and leaf.is_meta else leaf


def is_on_device(values: Any) -> bool:
    """Whether there is a tensor without data among them."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in tree_iter(values))


def needs_values(func: Any, args: Any) -> bool:
    """An index of positions has a result of known shape, a mask does not."""
    return func is not aten.index.Tensor or any(map(is_mask, args[1]))


def is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def tensors_of(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(values) if isinstance(leaf, torch.Tensor)]
