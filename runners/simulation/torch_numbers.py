"""The numbers of tensors without data: which are known, and what stands for those that are not.

Known are numbers that depend on known numbers only: constants, positions, masks, lengths. A tensor whose numbers are
all the same keeps one of them. No matrix product is computed, and nothing large.

Where a number is read that is not known, an assumed one is given (assumptions.py). What operators make of assumed
numbers is computed from these, so that a program meets one consistent set of numbers. Data on the host that came from
tensors without data are assumed as well, and so is what operators make of them.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from runners.simulation.assumptions import Assumptions
from runners.simulation.levels import Level
from runners.simulation.torch_draws import RANDOM_WHOLE, Draws

aten = torch.ops.aten
HOST = torch.device("cpu")

SINGLE = 8  # bytes of one number of any type
LARGEST = 2**23  # bytes up to which whole numbers are computed: positions and masks, but no length squared
LARGEST_FLOATS = 2**16  # bytes up to which floating-point numbers that differ are computed, by cheap operators
LARGEST_FILLED = 2**20  # bytes of a copy on the host that has the assumed number; larger ones have zeros

# Results without defined values: uninitialised memory.
UNDEFINED = frozenset({aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided})
# Gradients of float16 are assumed to be finite: a step with others skips the update and takes no more memory.
FINITE_GRADIENTS = frozenset({aten._amp_foreach_non_finite_check_and_unscale_.default})
OVERWRITING = frozenset({aten.copy_, aten.fill_, aten.zero_})
ARG_EXTREMES = frozenset({aten.argmax, aten.argmin})
FOR_EACH_ELEMENT = frozenset({aten._to_copy, aten.copy_, aten.fill_, aten.zero_, aten.isin, aten.masked_fill_})
EXTREMES = frozenset({aten.all, aten.any, aten.max, aten.min, aten.amax, aten.amin, aten.mean})
SUMS = frozenset({aten.sum, aten.count_nonzero})
MADE_EQUAL = frozenset(
    {aten.full, aten.ones, aten.zeros, aten.full_like, aten.ones_like, aten.zeros_like}
    | {aten.new_full, aten.new_ones, aten.new_zeros, aten.scalar_tensor}
)
CHEAP = FOR_EACH_ELEMENT | EXTREMES | SUMS | {aten.arange, aten.linspace, aten.cat, aten.stack, aten.cumsum}
CHEAP |= {aten.tril, aten.triu, aten.tril_, aten.triu_}
EQUAL, UNEQUAL = frozenset({aten.eq, aten.isin}), frozenset({aten.ne})
ABOUT_FINITE = frozenset({aten.isnan, aten.isinf, aten.isposinf, aten.isneginf})
EITHER, BOTH = (
    frozenset({aten.logical_or, aten.bitwise_or, aten.bitwise_or_, aten.logical_or_}),
    frozenset({aten.logical_and, aten.bitwise_and, aten.bitwise_and_, aten.logical_and_}),
)
# Bounds stay bounds in these.
GROWING = SUMS | {
    aten.max,
    aten.min,
    aten.amax,
    aten.amin,
    aten.cumsum,
    aten.cat,
    aten.stack,
    aten._to_copy,
    aten.clone,
}


class Value(NamedTuple):
    """The numbers of a storage."""

    storage: torch.UntypedStorage  # on the host; one element if `same`
    level: Level
    same: torch.dtype | None = None  # of the one element that all are equal to


class Read(NamedTuple):
    """The numbers of a tensor, as a tensor on the host."""

    tensor: torch.Tensor
    level: Level
    same: bool


class Numbers:
    """The numbers of storages without data by their address, and what the program may assume of those on the host."""

    def __init__(self, assumptions: Assumptions, draws: Draws | None = None) -> None:
        """`draws` has the generators of a host that is calculated; None for a card, which draws nothing."""
        self.assumptions = assumptions
        self.draws = draws
        self._values: dict[int, Value] = {}
        self._shared: dict[int, tuple[Any, Level]] = {}  # of twins of storages with data
        self._materialised: dict[int, torch.UntypedStorage] = {}  # storages with data, in a process that has them
        self._on_host: dict[int, tuple[Level, Any]] = {}  # storages with data that is assumed

    # --- what is known ---

    def set(self, storage: torch.UntypedStorage, known: torch.UntypedStorage) -> None:
        self._values[storage._cdata] = Value(known, Level.KNOWN)

    def share(self, twin: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        """A storage without data stands for one with data, as long as that lives."""
        self._shared[twin._cdata] = weakref.ref(tensor.untyped_storage()), self.level(tensor)

    def forget(self, key: int) -> None:
        self._values.pop(key, None)
        self._shared.pop(key, None)

    def _get(self, key: int) -> Value | None:
        if self._shared and (shared := self._shared.get(key)) is not None:
            storage = shared[0]()
            return None if storage is None else Value(storage, shared[1])
        return self._values.get(key)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the numbers follow from the program and the assumption that they are finite."""
        return self.level(tensor) <= Level.FINITE

    def level(self, tensor: torch.Tensor) -> Level:
        if tensor.is_meta:
            read = self.read(tensor)
            return Level.ASSUMED if read is None else read.level
        if not self._on_host:
            return Level.KNOWN
        return self._on_host.get(_key(tensor), (Level.KNOWN, None))[0]

    def read(self, tensor: torch.Tensor) -> Read | None:
        """None if nothing is known or assumed of a tensor without data."""
        value = self._get(_key(tensor))
        if value is None or value.same not in (None, tensor.dtype):
            return None
        return Read(_on_cpu(tensor, value), value.level, value.same is not None)

    def answer(self, tensor: torch.Tensor) -> Read:
        """The numbers, or those that are assumed from now on."""
        if not tensor.is_meta:
            return Read(tensor, self.level(tensor), False)
        found = self.read(tensor)
        if found is None:
            value = Value(self._assumed(tensor).untyped_storage(), Level.ASSUMED, tensor.dtype)
            self._values[tensor.untyped_storage()._cdata] = value
            found = Read(_on_cpu(tensor, value), value.level, True)
        return found

    def _assumed(self, tensor: torch.Tensor) -> torch.Tensor:
        """One assumed number of the tensor's type."""
        dtype = tensor.dtype
        if dtype == torch.bool:
            return torch.zeros(1, dtype=dtype)
        assume = self.assumptions.assume
        return torch.full((1,), assume if dtype.is_floating_point or dtype.is_complex else int(assume)).to(dtype)

    def number(self, tensor: torch.Tensor, operator: str) -> Any:
        """The one number of a tensor, as the program is given it."""
        found = self.answer(tensor)
        return self.assumptions.number(found.tensor.item(), found.level, operator)

    def list_of(self, tensor: torch.Tensor, operator: str) -> Any:
        found = self.answer(tensor)
        if found.level is Level.KNOWN:
            return found.tensor.tolist()
        self.assumptions.note(operator)
        return tree_map(lambda each: self.assumptions.remembering(each, found.level), found.tensor.tolist())

    def host_copy(self, tensor: torch.Tensor, operator: str) -> torch.Tensor:
        """A tensor on the host with the numbers, of which it is remembered whether they are assumed."""
        found = self.answer(tensor)
        if found.level is Level.KNOWN:
            return found.tensor.clone()
        self.assumptions.note(operator)
        size = tensor.numel() * tensor.element_size()
        made = found.tensor.clone() if size <= LARGEST_FILLED else _zeros(tensor)
        self.taint(made, found.level)
        return made

    def with_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as one with data, which are remembered to be assumed if they are."""
        key, value = _key(tensor), self._get(_key(tensor))
        storage = self._materialised.get(key)
        if storage is None:
            storage = self._materialised[key] = self._storage_with_data(tensor, value)
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        made = torch.empty(0, dtype=tensor.dtype).set_(storage, *place).requires_grad_(tensor.requires_grad)
        level = Level.ASSUMED if value is None else value.level
        if level > Level.KNOWN:
            self.taint(made, level)
        return made

    def _storage_with_data(self, tensor: torch.Tensor, value: Value | None) -> torch.UntypedStorage:
        if value is not None and value.same is None:
            return value.storage
        size = tensor.untyped_storage().nbytes()
        number = self._assumed(tensor) if value is None else _on_cpu(tensor.new_empty(1, device="meta"), value)
        count = size // number.element_size()
        if size <= LARGEST_FILLED:
            return number.expand(count).clone().untyped_storage()
        return _zeros(torch.empty(count, dtype=number.dtype, device="meta")).untyped_storage()

    # --- data on the host that is assumed ---

    def taint(self, tensor: torch.Tensor, level: Level) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        before = self._on_host.get(key)
        if before is None:
            self._on_host[key] = level, weakref.ref(storage, lambda _: self._on_host.pop(key, None))
        elif before[0] < level:
            self._on_host[key] = level, before[1]

    def follow_host(self, result: Any, args: Any, kwargs: Any) -> None:
        """What an operator makes of assumed data on the host is assumed."""
        if not self._on_host:
            return
        level = max((self.level(each) for each in _tensors((args, kwargs)) if not each.is_meta), default=Level.KNOWN)
        if level > Level.KNOWN:
            for leaf in _tensors(result):
                if not leaf.is_meta:
                    self.taint(leaf, level)

    def written(self, nested: Any) -> None:
        """Forget the numbers of tensors that something which is not traced has written to."""
        for leaf in _tensors(nested):
            if leaf.is_meta:
                self._values.pop(_key(leaf), None)

    def doubt(self, tensor: torch.Tensor, level: Level) -> None:
        """What is known of a tensor was made from an assumed number."""
        if not tensor.is_meta:
            self.taint(tensor, level)
            return
        value = self._values.get(tensor.untyped_storage()._cdata)
        if value is not None and value.level < level:
            self._values[tensor.untyped_storage()._cdata] = value._replace(level=level)

    # --- operators ---

    def follow(self, result: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Compute the numbers of an operator's results where they are known or assumed; forget them if not."""
        if isinstance(result, torch.Tensor):
            if not result.is_meta:
                self.follow_host(result, args, kwargs)
                return
            kind = _kind(func)
            if kind.is_view or result.layout is not torch.strided:
                return
            storage = result.untyped_storage()
            key = storage._cdata
            if kind.is_unknown and storage.nbytes() > SINGLE and (result.is_floating_point() or result.is_complex()):
                self._values.pop(key, None)
                return
            made = self._made(result, key, func, args, kwargs)
            if made is None:
                self._values.pop(key, None)
            elif made is not UNCHANGED:
                self._values[key] = made
            return
        if func in FINITE_GRADIENTS:
            return
        kind = _kind(func)
        if result is None or kind.is_mutable:
            if self._values:
                self.written([args[position] for position in kind.written if position < len(args)])
                self.written([kwargs[name] for name in kind.written_names if name in kwargs])
            return
        self._follow_several(result, func, args, kwargs)

    def _follow_several(self, result: Any, func: Any, args: Any, kwargs: Any) -> None:
        leaves = _tensors(result)
        if not leaves or not leaves[0].is_meta:
            self.follow_host(result, args, kwargs)
            return
        if func is aten.native_dropout.default and args[2] is not False and self.draws is not None:
            self.draws.drop_mask(leaves[0])
        if func.is_view or _is_undefined(func) or any(map(_is_large, leaves)):
            return
        level = Level.KNOWN
        for operand in _tensors((args, kwargs)):
            if operand.is_meta and self._get(_key(operand)) is None:
                return
            level = max(level, self.level(operand))
        if any(_is_large(each) for each in _tensors(args)) or any(each.is_floating_point() for each in _tensors(args)):
            return
        made = _tensors(self._computed(func, args, kwargs))
        for leaf, each in zip(leaves, made, strict=True):
            self.keep(leaf, each, level if level < Level.BOUND else Level.ASSUMED)

    def _made(self, result: torch.Tensor, key: int, func: Any, args: Any, kwargs: Any) -> Value | None:
        """The numbers of one result; None if they are not known, UNCHANGED for those of its storage before."""
        kind = _kind(func)
        packet, mutable = kind.packet, kind.is_mutable
        if packet in UNDEFINED:
            return None
        if packet is aten.set_:  # the tensor takes another storage, whose numbers stay
            return UNCHANGED
        if packet in MADE_EQUAL:
            return self._filled(result, func, args, kwargs)
        if _is_undefined(func):
            return self._drawn(result, func, args, kwargs)
        if packet is aten._is_all_true and self.level(args[0]) > Level.FINITE:
            return _same(torch.ones(1, dtype=torch.bool), Level.FINITE)  # arguments of a distribution are assumed valid
        if packet in ARG_EXTREMES:
            return self._position(args[0], result, args[1] if len(args) > 1 else None)
        is_elementwise = kind.is_elementwise
        if result.is_floating_point() or result.is_complex():
            is_single = result.untyped_storage().nbytes() <= SINGLE
            if kind.is_unknown and not is_single:
                return None
            substitutes = is_single and is_elementwise
        else:
            is_single = result.numel() == 1
            substitutes = is_elementwise and (is_single or result.dtype == torch.bool)
        level = Level.KNOWN
        all_same = True
        given = _tensors((args, kwargs)) if kwargs else _tensors(args)
        for operand in given:
            if not operand.is_meta:
                level = max(level, self.level(operand))
                all_same = all_same and operand.numel() == 1
                continue
            operand_key = _key(operand)
            if operand_key == key and not mutable:
                return UNCHANGED  # a view
            value = self._get(operand_key)
            if value is None or value.same not in (None, operand.dtype):
                overwritten = mutable and operand_key == key and packet in OVERWRITING
                if overwritten and _is_whole(operand):
                    continue
                if not substitutes and not (packet in SUMS and operand.dtype == torch.bool):
                    return None
                level = Level.ASSUMED
            else:
                level = max(level, value.level)
                all_same = all_same and (value.same is not None or operand.numel() == 1)
        if level > Level.KNOWN:
            level = self._level_of(level, packet, given, args)
        if level >= Level.BOUND:
            if packet in SUMS and given and given[0].dtype == torch.bool:
                return _same(
                    torch.full((1,), given[0].numel() // max(result.numel(), 1), dtype=result.dtype), Level.BOUND
                )
            if packet in EQUAL | UNEQUAL and not (result.ndim == 0 and given[0].is_floating_point()):
                return _same(torch.full((1,), packet in UNEQUAL), level)
            if packet in EITHER | BOTH and (decided := self._decided(packet, given)) is not None:
                return _same(torch.full((1,), decided, dtype=result.dtype), Level.KNOWN)
        if all_same and (is_elementwise or packet in EXTREMES or packet in SUMS):
            return self._made_of_one(result, key, func, args, kwargs, level)
        return self._made_of_all(result, key, func, args, kwargs, level)

    def _filled(self, result: torch.Tensor, func: Any, args: Any, kwargs: Any) -> Value:
        packet = func.overloadpacket
        number: Any = 1 if packet in (aten.ones, aten.ones_like, aten.new_ones) else 0
        if packet in (aten.full, aten.full_like, aten.new_full):
            number = kwargs["fill_value"] if "fill_value" in kwargs else args[-1]
        elif packet is aten.scalar_tensor:
            number = args[0]
        return _same(torch.full((1,), number, dtype=result.dtype), Level.KNOWN)

    def _drawn(self, result: torch.Tensor, func: Any, args: Any, kwargs: Any) -> Value | None:
        """Numbers that were drawn. Whole ones are assumed to be within the range that they are drawn from."""
        packet, dtype = func.overloadpacket, result.dtype
        if self.draws is not None and (made := self.draws.draw(result, func, args, kwargs)) is not None:
            return Value(made.untyped_storage(), Level.FINITE)
        if packet is aten.multinomial:
            return self._position(args[0], result, -1)
        if packet not in RANDOM_WHOLE:
            return None
        limits = [each for each in args if type(each) is int]
        if not limits:
            return None
        low, high = (0, limits[0]) if len(limits) == 1 else limits[:2]
        number = min(max(int(self.assumptions.assume), low), max(high - 1, low))
        return _same(torch.full((1,), number, dtype=dtype), Level.ASSUMED)

    def _position(self, chosen_from: torch.Tensor, result: torch.Tensor, dim: int | None) -> Value | None:
        """The position of an element is assumed to be one that exists."""
        read = self.read(chosen_from)
        if read is not None and not _is_large(chosen_from) and result.dtype == torch.int64 and dim is None:
            return _same(read.tensor.argmax().reshape(1), read.level) if read.level <= Level.FINITE else None
        length = chosen_from.numel() if dim is None else chosen_from.shape[dim] if chosen_from.ndim else 1
        number = min(max(int(self.assumptions.assume), 0), max(length - 1, 0))
        return _same(torch.full((1,), number, dtype=result.dtype), Level.ASSUMED)

    def _level_of(self, level: Level, packet: Any, given: Sequence[torch.Tensor], args: Any) -> Level:
        """The level of what an operator makes of numbers of this level at most."""
        if packet in ABOUT_FINITE or (packet in (aten.eq, aten.ne) and _about_finite(given, args)):
            return Level.FINITE
        if level is Level.BOUND and packet not in GROWING:
            return Level.ASSUMED
        return level

    def _decided(self, packet: Any, given: Sequence[torch.Tensor]) -> bool | None:
        """What a known operand alone decides: true or anything is true, false and anything is false."""
        for operand in given:
            read = self.read(operand) if operand.is_meta else Read(operand, self.level(operand), False)
            if read is None or read.level > Level.KNOWN or operand.dtype != torch.bool:
                continue
            numbers = read.tensor.reshape(-1)[:1] if read.same else read.tensor
            if packet in EITHER and bool(numbers.all()):
                return True
            if packet in BOTH and not bool(numbers.any()):
                return False
        return None

    def _made_of_one(
        self, result: torch.Tensor, key: int, func: Any, args: Any, kwargs: Any, level: Level
    ) -> Value | None:
        """All elements of each operand are the same, and so are those of the result."""
        packet, is_mutable = func.overloadpacket, func._schema.is_mutable
        if is_mutable and not (_is_whole(result) and result is args[0]):
            return self._made_of_all(result, key, func, args, kwargs, level)
        if not result.numel():
            return None

        def one(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                found = self._answer_or_assume(leaf)
                return found.as_strided((1,) * leaf.ndim, (1,) * leaf.ndim, found.storage_offset()).clone()
            return HOST if isinstance(leaf, torch.device) else leaf

        operands, options = tree_map(one, (args, kwargs))
        options.pop("memory_format", None)
        made = func(*operands, **options)
        if not isinstance(made, torch.Tensor):
            return None
        if packet in SUMS:
            first = args[0].numel() // max(result.numel(), 1)
            made = made * first
        return _same(made.reshape(-1)[:1].to(result.dtype).clone(), level)

    def _made_of_all(
        self, result: torch.Tensor, key: int, func: Any, args: Any, kwargs: Any, level: Level
    ) -> Value | None:
        largest = LARGEST_FLOATS if result.is_floating_point() or result.is_complex() else LARGEST
        size = result.untyped_storage().nbytes()
        if size > largest or any(_is_large(each) for each in _tensors((args, kwargs))):
            return None
        if func._schema.is_mutable:
            value = self._get(key)
            if value is None and not _is_whole(result):
                return None
            if value is None and func.overloadpacket not in OVERWRITING:
                self.answer(result)
                value = self._values[key]
            if value is None or value.same is not None:
                self._spread(result, value)
            self._computed(func, args, kwargs)
            if (kept := self._values.get(key)) is None:
                return UNCHANGED  # it was changed where the data is
            return Value(kept.storage, max(level, Level.KNOWN if value is None else value.level))
        made = self._computed(func, args, kwargs)
        if isinstance(made, torch.Tensor):
            self.keep(result, made, level)
        return self._values.get(key)

    def _spread(self, tensor: torch.Tensor, value: Value | None) -> None:
        """Give each element of the storage its own number."""
        storage = tensor.untyped_storage()
        dtype = tensor.dtype if value is None or value.same is None else value.same
        elements = torch.empty(storage.nbytes() // dtype.itemsize, dtype=dtype)
        if value is not None:
            elements.copy_(torch.empty(0, dtype=dtype).set_(value.storage, 0, (1,), (1,)))
        level = Level.KNOWN if value is None else value.level
        self._values[storage._cdata] = Value(elements.untyped_storage(), level)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        def known(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._answer_or_assume(leaf)
            return HOST if isinstance(leaf, torch.device) else leaf

        operands, options = tree_map(known, (args, kwargs))
        return func(*operands, **options)

    def _answer_or_assume(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        read = self.read(tensor)
        if read is not None:
            return read.tensor
        assumed = self._assumed(tensor)
        return assumed.as_strided(tensor.shape, (0,) * tensor.ndim)

    def keep(self, leaf: torch.Tensor, made: torch.Tensor, level: Level) -> None:
        """Keep the numbers of a tensor without data, of the same shape and type; others are left out."""
        storage = leaf.untyped_storage()
        if not leaf.is_meta or made.dtype != leaf.dtype or made.shape != leaf.shape:
            return
        if made.stride() != leaf.stride() or made.untyped_storage().nbytes() != storage.nbytes():
            placed = torch.empty(storage.nbytes() // leaf.element_size(), dtype=leaf.dtype)
            placed.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset()).copy_(made)
            made = placed
        self._values[storage._cdata] = Value(made.untyped_storage(), level)


UNCHANGED = Value(torch.UntypedStorage(0), Level.KNOWN)  # type: ignore[no-untyped-call]


def _same(number: torch.Tensor, level: Level) -> Value:
    return Value(number.untyped_storage(), level, number.dtype)


def _tensors(nested: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for leaf in nested if isinstance(nested, (tuple, list)) else (nested,):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, (tuple, list)):
            found += _tensors(leaf)
        elif isinstance(leaf, dict):
            found += _tensors(list(leaf.values()))
    return found


def _key(tensor: torch.Tensor) -> int:
    """The address of its storage; -1 for a sparse tensor, of whose numbers nothing is known."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else -1


def _is_large(tensor: torch.Tensor) -> bool:
    largest = LARGEST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else LARGEST
    return tensor.numel() * tensor.element_size() > largest


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a tensor made from Python numbers are kept."""
    return tensor.is_meta and not _is_large(tensor)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether it has every element of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _about_finite(given: Sequence[torch.Tensor], args: Any) -> bool:
    """x == x, and abs(x) != inf, which torch.isfinite is made of. Two parts of one storage are no x == x."""
    if len(given) == 2:
        return is_same(*given)
    return len(args) > 1 and isinstance(args[1], float) and math.isinf(args[1])


class Kind(NamedTuple):
    """What has to be known of an operator to follow numbers through it."""

    packet: Any
    is_view: bool
    is_mutable: bool
    is_elementwise: bool
    is_unknown: bool  # its results are not computed where they are several floating-point numbers
    written: tuple[int, ...]  # the positions of the arguments that it writes to
    written_names: tuple[str, ...]


@cache
def _kind(func: Any) -> Kind:
    packet, arguments = func.overloadpacket, func._schema.arguments
    is_elementwise = torch.Tag.pointwise in func.tags or packet in FOR_EACH_ELEMENT
    is_special = packet in UNDEFINED | MADE_EQUAL | ARG_EXTREMES | {aten.set_} or _is_undefined(func)
    is_written = [each.alias_info is not None and each.alias_info.is_write for each in arguments]
    return Kind(
        packet,
        func.is_view,
        func._schema.is_mutable,
        is_elementwise,
        not (is_elementwise or is_special or packet in CHEAP),
        tuple(number for number, each in enumerate(is_written) if each),
        tuple(argument.name for argument, each in zip(arguments, is_written, strict=True) if each),
    )


def is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of one storage."""
    if first.shape != second.shape or first.layout is not torch.strided or second.layout is not torch.strided:
        return False
    if first.stride() != second.stride() or first.storage_offset() != second.storage_offset():
        return False
    return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)


@cache
def _is_undefined(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _on_cpu(tensor: torch.Tensor, value: Value) -> torch.Tensor:
    if value.same is not None:
        return torch.empty(0, dtype=value.same).set_(value.storage, 0, tensor.shape, (0,) * tensor.ndim)
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(value.storage, *place)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros that take no memory of this machine until they are written."""
    pages = mmap.mmap(-1, max(1, tensor.numel() * tensor.element_size()))
    return torch.frombuffer(pages, dtype=tensor.dtype, count=tensor.numel()).reshape(tensor.shape)
