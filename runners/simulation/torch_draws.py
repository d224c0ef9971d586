"""The random numbers of a host that is calculated: drawn in the order in which a program draws them.

What a program draws later depends on what it drew before from the same generator: the order in which a loader shuffles
its data on the initial weights, and so how long the longest batch is. Floating-point numbers are drawn and dropped, as
tensors have no data, and the generator has then the state that it has in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten

SINGLE = 8  # bytes of one number of any type
LARGEST_KEPT = 2**23  # bytes up to which whole numbers are kept
LARGEST_ALONE = 2**12  # the same where the generator's state is not followed
MOST = 2**27  # numbers that are drawn to follow the state: about a second
CHUNK = 2**16  # numbers that are drawn at once; PyTorch draws normal ones in blocks of 16
MOST_OF_BLOCK = 15
ROUNDS = 6  # about how often truncated normal numbers are drawn
MOST_OF_ROUNDS = 2**26  # numbers that are drawn in rounds, and kept meanwhile in this machine's memory
NOTE = (
    f"the program draws more than the {MOST} random numbers that are drawn: what depends on later ones, such as the "
    "order of shuffled data, may differ from a run with the same seed"
)
BY_NUMBERS = "{} draws as many random numbers as its arguments' numbers demand: later ones may differ from a run's"
NAMES_OF_DRAWN = ("randint", "randint_like", "rand", "randn", "random_", "uniform_", "normal_", "bernoulli_")
# Those whose values are kept where they are few: not those that draw by a tensor's numbers.
DRAWN = frozenset(getattr(aten, name) for name in NAMES_OF_DRAWN)
# The method that draws for each element what an operator draws, with the same arguments after the first.
ALIKE = {getattr(aten, f"{name}_"): name for name in ("uniform", "normal", "random", "bernoulli")}
ALIKE |= {getattr(aten, f"{name}_"): name for name in ("exponential", "cauchy", "log_normal", "geometric")}
OF_ITS_OWN = {aten.rand: "uniform", aten.rand_like: "uniform", aten.randn: "normal", aten.randn_like: "normal"}
OF_ITS_OWN |= {aten.normal: "normal"}
RANDOM_WHOLE = frozenset({aten.randint, aten.randint_like})


class Draws:
    """The generators of a calculated host."""

    def __init__(self, note: Callable[[str], None], is_abstract: Callable[[], bool]) -> None:
        """`is_abstract`: whether what is drawn is for a tensor on no device, which draws nothing in a run either."""
        self.follows_state = False  # whether also what is not kept is drawn
        self._note, self._is_abstract = note, is_abstract
        self._generator: torch.Generator | None = None
        self._left = MOST

    @contextmanager
    def by(self, generator: torch.Generator) -> Iterator[None]:
        """Enter around a call that draws from this generator: PyTorch accepts none for a tensor without data."""
        before, self._generator = self._generator, generator
        try:
            yield
        finally:
            self._generator = before

    def draw(self, result: Tensor, operator: Any, args: Sequence[Any], kwargs: Any) -> Tensor | None:
        """The numbers that an operator draws, on the host; None if they are not kept."""
        if self._is_abstract():
            return None
        packet, size = operator.overloadpacket, result.untyped_storage().nbytes()
        is_whole = result.numel() * result.element_size() == size
        if packet is aten.randperm and size <= LARGEST_KEPT:
            return torch.randperm(args[0], dtype=result.dtype, generator=self._generator)
        largest = LARGEST_KEPT if self.follows_state else LARGEST_ALONE
        if result.is_floating_point() or result.is_complex():
            largest = SINGLE
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        if is_whole and size <= largest and packet in DRAWN and all(each is args[0] for each in tensors):
            first = [torch.empty(args[0].shape, dtype=args[0].dtype)] if tensors else args[:1]
            options = {name: each for name, each in kwargs.items() if name != "device"}
            made: Tensor = operator(*first, *args[1:], **{**options, **self._options()})
            return made.to(result.dtype)
        if self.follows_state:
            self._drop(result, packet, args)
        return None

    def drop_mask(self, result: Tensor) -> None:
        """Draw what dropout draws for its result."""
        if self.follows_state and not self._is_abstract():
            self._drop(result, aten.bernoulli_, (result, 0.5))

    @contextmanager
    def for_all_rounds(
        self, tensor: Tensor, draw: Callable[[Tensor, torch.Generator | None], Any], generator: torch.Generator | None
    ) -> Iterator[None]:
        """Enter around operators that draw nothing, in place of `draw`, which draws as often as its numbers demand."""
        if self.follows_state and not self._is_abstract():
            count = tensor.numel() * ROUNDS
            if count > min(self._left, MOST_OF_ROUNDS):
                self._left = 0
                self._note(NOTE)
            else:
                self._left -= count
                with _disable_current_modes(), torch._C.DisableTorchFunction():
                    draw(torch.empty(tensor.shape, dtype=tensor.dtype), generator)
        before, self._is_abstract = self._is_abstract, lambda: True
        try:
            yield
        finally:
            self._is_abstract = before

    def _options(self) -> dict[str, Any]:
        return {} if self._generator is None else {"generator": self._generator}

    def _drop(self, result: Tensor, packet: Any, args: Sequence[Any]) -> None:
        """Draw as many numbers, of the same type, as an operator does."""
        plain = [each for each in args if isinstance(each, (int, float)) and not isinstance(each, bool)]
        name, count, dtype = ALIKE.get(packet), result.numel(), result.dtype
        if packet is aten.bernoulli_ and isinstance(args[1] if len(args) > 1 else 0.5, Tensor):
            name, plain, dtype = "uniform", [], args[1].dtype
        elif packet is aten.bernoulli:
            name, plain, dtype = ("bernoulli", plain, dtype) if plain else ("uniform", [], args[0].dtype)
        elif packet in OF_ITS_OWN:
            name, plain = OF_ITS_OWN[packet], []
        elif packet in RANDOM_WHOLE:
            name = "random"
        elif packet is aten.randperm:
            name, plain, count, dtype = "random", [], max(count - 1, 0), torch.int32
        elif packet is aten.multinomial:  # aten/src/ATen/native/Distributions.cpp: the largest of weighted numbers
            is_largest = args[1] == 1 or not (len(args) > 2 and args[2])
            name, plain = ("exponential" if is_largest else "uniform"), []
            count, dtype = (args[0].numel(), args[0].dtype) if is_largest else (count, torch.float64)
        if name is None:
            self._note(BY_NUMBERS.format(packet))
            return
        if count > self._left:
            self._left = 0
            self._note(NOTE)
            return
        self._left -= count
        if name == "bernoulli" and _draws_masks_at_once():
            count = min(count, 1)
        while count:
            taken = count if count <= CHUNK + MOST_OF_BLOCK else CHUNK
            getattr(torch.empty(taken, dtype=dtype), f"{name}_")(*plain, **self._options())
            count -= taken


@cache
def _draws_masks_at_once() -> bool:
    """Whether a mask of any size takes one number of the generator, which seeds that of MKL."""
    states = []
    for count in (64, 128):
        generator = torch.Generator().manual_seed(0)
        torch.empty(count).bernoulli_(0.5, generator=generator)
        states.append(generator.get_state())
    return torch.equal(*states)
