"""A simulation of PyTorch's caching allocator for CUDA: the same sizes, segments and refusals, without a device.

It covers one device, eager mode and the common pool (PyTorch 2.13; c10/cuda/CUDACachingAllocator.cpp,
c10/core/AllocatorConfig.h), without graph captures, private pools and tensors that several streams use:

    size        rounded up to 512 bytes, or to a division of a power of two (roundup_power2_divisions)
    pool        small up to 1 MiB, large above; free blocks are kept by pool and stream
    block       the smallest free block that is large enough, at the lowest address among equals; it is split if the
                rest is large enough: 512 bytes in the small pool, more than 1 MiB in the large pool
    segment     requested from the device when no block fits: 2 MiB for small sizes, 20 MiB below 10 MiB, else the size
                rounded up to 2 MiB
    free        the block joins its free neighbours and stays reserved
    refusal     unused cached segments are released, and the request is repeated once
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

MIB = 2**20
BLOCK = 512  # bytes; every size is a multiple
SMALL = MIB  # the largest size of the small pool
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB  # from this size on, a segment is made for one block
PAGE = 2 * MIB  # such a segment is a multiple, as is all memory that the device gives
INTERVALS = 16  # of sizes, each twice as large as the one before: from 1 MiB to 64 GiB
NOTHING = 0  # the handle of an allocation of 0 bytes
# An address of the device. No process has memory from here on: reading it ends the process by a signal.
FIRST_ADDRESS = 2**56

SUPPORTED = (
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "backend",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of PYTORCH_ALLOC_CONF. Sizes are in bytes."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    max_non_split_rounding_size: int | None = None  # None: large_segment_size
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS  # for each interval; 0 and 1 round to 512 bytes
    garbage_collection_threshold: float = 0.0  # a share of the limit; without a limit nothing is collected
    large_segment_size: int = 20 * MIB

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Parse the value of PYTORCH_ALLOC_CONF. Raises ValueError for unsupported settings and wrong values."""
        given = dict(_items(text))
        large = _megabytes(given, "large_segment_size_mb", OWN_SEGMENT // MIB + 1) or cls().large_segment_size
        return cls(
            expandable_segments=_flag(given, "expandable_segments"),
            max_split_size=_megabytes(given, "max_split_size_mb", large // MIB),
            max_non_split_rounding_size=_megabytes(given, "max_non_split_rounding_mb", large // MIB),
            roundup_power2_divisions=_divisions(given, "roundup_power2_divisions"),
            garbage_collection_threshold=_fraction(given, "garbage_collection_threshold"),
            large_segment_size=large,
        )


def _items(text: str) -> Iterator[tuple[str, str]]:
    text = "".join(text.split()).removesuffix(",")
    for item in re.split(r",(?![^\[]*\])", text) if text else ():
        key, _, value = item.partition(":")
        if key == "per_process_memory_fraction":
            raise ValueError(f"allocator setting {item} is not simulated; use a budget in bytes instead")
        if key not in SUPPORTED:  # a setting without effect here is refused too: it would look supported
            raise ValueError(f"allocator setting {item} is not simulated; supported: {', '.join(SUPPORTED)}")
        if key == "backend" and value != "native":
            raise ValueError(f"allocator setting {item} is not simulated; supported: backend:native")
        yield key, value


def _wrong(key: str, value: str, right: str) -> ValueError:
    return ValueError(f"allocator setting {key} must be {right}, got {value!r}")


def _flag(given: dict[str, str], key: str) -> bool:
    value = given.get(key, "False")
    if value not in ("True", "False"):
        raise _wrong(key, value, "True or False")
    return value == "True"


def _megabytes(given: dict[str, str], key: str, least: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < least:
        raise _wrong(key, value, f"a whole number of MiB, at least {least}")
    return int(value) * MIB


def _fraction(given: dict[str, str], key: str) -> float:
    value = given.get(key)
    if value is None:
        return 0.0
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise _wrong(key, value, "a number above 0 and below 1")
    return number


def _divisions(given: dict[str, str], key: str) -> tuple[int, ...]:
    """One number for all sizes, or a list like [256:1,512:2,>:8] of the starts of intervals in MiB with divisions."""
    value = given.get(key)
    if value is None:
        return (0,) * INTERVALS
    if _is_power_of_two(value):
        return (int(value),) * INTERVALS
    pairs = [pair.partition(":") for pair in value[1:-1].split(",")]
    if value[:1] + value[-1:] != "[]" or not all(
        (start == ">" or _is_power_of_two(start)) and (number == "0" or _is_power_of_two(number))
        for start, _, number in pairs
    ):
        raise _wrong(key, value, "a power of two, or a list like [256:1,512:2,>:8] of powers of two")
    divisions = [0] * INTERVALS
    last: int | None = None
    for start, _, number in pairs:
        if start == ">":  # all intervals above the last; PyTorch skips the first interval if > is the only item
            above = (last or 0) + 1
            divisions[above:] = [int(number)] * (INTERVALS - above)
            continue
        index = min(int(start).bit_length() - 1, INTERVALS - 1)
        if last is None:  # the first item also applies below its interval
            divisions[:index] = [int(number)] * index
        divisions[index] = int(number)
        last = index
    return tuple(divisions)


def _is_power_of_two(text: str) -> bool:
    return text.isdecimal() and int(text).bit_count() == 1


class Refused(Exception):
    """An allocation that did not fit. The message has the form of torch.OutOfMemoryError's, which others parse."""

    def __init__(
        self, message: str, requested: int, free: int, allocated: int, reserved: int, needs: int | None = None
    ) -> None:
        super().__init__(message)
        self.requested = requested  # bytes of the requested segment, as in the message
        self.needs = allocated + requested if needs is None else needs  # bytes allocated that no larger memory avoids
        self.free = free
        self.allocated = allocated
        self.reserved = reserved


class CachingAllocator:
    """Allocates and frees by PyTorch's rules, and counts like torch.cuda.memory_stats. All sizes are in bytes.

    `capacity` is the memory that the device has for segments and `limit` the most that may be reserved; None means
    unlimited. The message of a refusal also names `total`, the card's memory, and `outside`, the part that the process
    holds outside segments.
    """

    def __init__(
        self,
        capacity: int | None,
        total: int | None = None,
        limit: int | None = None,
        settings: Settings | None = None,
        outside: int = 0,
    ) -> None:
        settings = settings or Settings()
        self.requested = self.allocated = self.reserved = 0
        self.peak_requested = self.peak_allocated = self.peak_reserved = 0
        self.alloc_retries = self.num_ooms = 0
        self._settings = settings
        self.limit = limit
        self._outside = outside
        self._device = _Device(capacity)
        self._total = total if total is not None else outside + (capacity if capacity is not None else limit or 0)
        self._rounds = any(number > 1 for number in settings.roundup_power2_divisions)
        self._collects = settings.garbage_collection_threshold > 0
        self._small = _Pool(BLOCK, None, SMALL_SEGMENT)
        if settings.expandable_segments:
            self._large = _Pool(BLOCK, None, settings.large_segment_size)
        else:
            self._large = _Pool(SMALL + BLOCK, settings.max_split_size, settings.large_segment_size)
        self._held: dict[int, _Block] = {}

    # A block is free as soon as it is freed, since no other stream uses it. So active equals allocated.
    @property
    def active(self) -> int:
        return self.allocated

    @property
    def peak_active(self) -> int:
        return self.peak_allocated

    def allocate(self, size: int, stream: int = 0) -> int:
        """The address of `size` bytes, which is their handle. Raises Refused."""
        if not size:
            return NOTHING
        rounded = self._rounded(size) if self._rounds else -(-size // BLOCK) * BLOCK
        pool = self._small if rounded <= SMALL else self._large
        block = self._fitting(pool, rounded, stream) or self._obtained(pool, rounded, stream)
        block.allocated = True
        block.requested = size
        rest = block.size - rounded
        if rest >= pool.least_rest and (pool.whole_from is None or rounded < pool.whole_from):
            pool.insert(block.cut(rounded))
        self._held[block.address] = block
        self.requested += size
        self.allocated += block.size
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block.address

    def free(self, handle: int) -> None:
        if handle == NOTHING:
            return
        block = self._held.pop(handle)
        self.requested -= block.requested
        self.allocated -= block.size
        block.allocated = False
        block.requested = 0
        block.pool.join(block)

    def empty_cache(self) -> None:
        """Release every unused segment, and every unused page of an expandable segment."""
        for pool in (self._large, self._small):
            for block in pool.blocks():
                if block.room is not None:
                    self._unmap(block)
                elif block.is_whole():
                    self._release(block)

    def reset_peaks(self) -> None:
        self.peak_requested = self.requested
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def left(self) -> int | None:
        """Bytes that can be reserved before a segment is refused; None without any limit."""
        limits = [self._device.left(), None if self.limit is None else self.limit - self.reserved]
        return min((each for each in limits if each is not None), default=None)

    def most_reserved(self, size: int) -> int:
        """The most bytes that one allocation of this size reserves. Rounding doubles a size at most."""
        return 2 * PAGE if 2 * size <= SMALL else 2 * size + self._settings.large_segment_size + PAGE

    def segments(self) -> list[dict[str, Any]]:
        """The segments as in torch.cuda.memory_snapshot(): of an expandable segment, each mapped part."""
        blocks = [*self._held.values(), *self._small.blocks(), *self._large.blocks()]
        first = (block for block in blocks if block.before is None or not block.before.mapped)
        return [self._segment(block) for block in sorted(first, key=lambda block: block.address)]

    def _segment(self, first: _Block) -> dict[str, Any]:
        blocks = []
        block: _Block | None = first
        while block is not None and block.mapped:
            blocks.append(block)
            block = block.after
        allocated = sum(block.size for block in blocks if block.allocated)
        return {
            "address": first.address,
            "total_size": sum(block.size for block in blocks),
            "allocated_size": allocated,
            "active_size": allocated,
            "requested_size": sum(block.requested for block in blocks),
            "stream": first.stream,
            "segment_type": "small" if first.pool is self._small else "large",
            "is_expandable": first.room is not None,
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": "active_allocated" if block.allocated else "inactive",
                }
                for block in blocks
            ],
        }

    def _rounded(self, size: int) -> int:
        interval = min(max(0, size.bit_length() - MIB.bit_length()), INTERVALS - 1)
        divisions = self._settings.roundup_power2_divisions[interval]
        step = BLOCK
        if divisions > 1 and size > BLOCK * divisions:
            step = 2 ** (size.bit_length() - 1) // divisions
        return -(-size // step) * step

    def _fitting(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        """The free block for this size, removed from its pool."""
        pool.searches += self._collects
        free = pool.free[stream]
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        block: _Block = free[index][2]
        if block.room is not None:  # an expandable segment: its blocks are compared by the size that they can grow to
            while index + 1 < len(free) and free[index + 1][2].reach() < block.reach():
                index += 1
                block = free[index][2]
        if self._settings.max_split_size is not None and self._is_oversize(block, size):
            return None
        del free[index]
        return block

    def _is_oversize(self, block: _Block, size: int) -> bool:
        """Whether the block is too large for the size, given that from max_split_size on it would not be split."""
        whole_from = self._settings.max_split_size
        assert whole_from is not None
        if size < whole_from:
            return block.size >= whole_from
        return block.size >= size + (self._settings.max_non_split_rounding_size or self._settings.large_segment_size)

    def _obtained(self, pool: _Pool, size: int, stream: int) -> _Block:
        """A block from the device, after releasing cached segments if necessary. Raises Refused."""
        segment = self._segment_size(size)
        if self._collects:
            self._collect_garbage()
        block = self._new(pool, size, segment, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._new(pool, size, segment, stream)
        if block is None:
            self.empty_cache()
            self.alloc_retries += 1
            block = self._new(pool, size, segment, stream)
        if block is None:
            self.num_ooms += 1
            raise self._refused(segment, size)
        return block

    def _segment_size(self, size: int) -> int:
        if size <= SMALL:
            return SMALL_SEGMENT
        if size < OWN_SEGMENT:
            return self._settings.large_segment_size
        return -(-size // PAGE) * PAGE

    def _new(self, pool: _Pool, size: int, segment: int, stream: int) -> _Block | None:
        # As in PyTorch, the limit is compared with the segment that cudaMalloc would be asked for. An expandable
        # segment may grow by less or by more, so that its pages can exceed the limit.
        if self.limit is not None and self.reserved + segment > self.limit:
            return None
        if self._settings.expandable_segments:
            return self._grown(pool, size, stream)
        if not self._device.take(segment):
            return None
        self._reserve(segment, pool)
        return _Block(self._device.place(segment), segment, stream, pool)

    def _reserve(self, size: int, pool: _Pool) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _give_back(self, size: int, pool: _Pool) -> None:
        self.reserved -= size
        self._device.give_back(size)

    def _release(self, block: _Block) -> None:
        """Release a whole segment."""
        block.pool.remove(block)
        self._give_back(block.size, block.pool)
        self._device.vacate(block.address, block.size)

    def _release_oversize(self, pool: _Pool, size: int, stream: int) -> bool:
        """Release the smallest free oversize block that is large enough, or several that together are.

        Such blocks are withheld by max_split_size. Returns whether the released bytes suffice.
        """
        if self._settings.max_split_size is None or self._settings.expandable_segments:
            return False
        free = pool.free[stream]
        index = bisect_left(free, (size,))
        if index < len(free):
            self._release(free[index][2])
            return True
        released = 0
        for block_size, _, block in reversed(list(free)):
            if released >= size or block_size < self._settings.max_split_size:
                break
            released += block_size
            self._release(block)
        return released >= size

    def _collect_garbage(self) -> None:
        """Above the threshold, release whole segments of at least the mean age until it is no longer exceeded.

        The age is the number of searches in the pool since the block was freed.
        """
        if self.limit is None:
            return
        excess = self.reserved - int(self._settings.garbage_collection_threshold * self.limit)
        if excess <= 0:
            return
        whole = [block for block in self._large.blocks() if block.is_whole()]
        while excess > 0 and whole:
            ages = [self._large.searches - block.freed_at for block in whole]
            for age, block in zip(ages, list(whole), strict=True):
                if age * len(ages) >= sum(ages):
                    whole.remove(block)
                    excess -= block.size
                    self._release(block)

    def _needs(self, size: int) -> int:
        """The least bytes allocated with one more block of this size, whatever blocks are free.

        A block of the large pool can be up to 1 MiB larger than its size, and which one is depends on the segments that
        a full card has released: with more memory the same tensors can take fewer bytes than `allocated`.
        """
        return size + sum(self._rounded(block.requested) for block in self._held.values())

    def _refused(self, segment: int, size: int) -> Refused:
        free = self._device.left()
        if free is None:
            free = max(0, self._total - self._outside - self.reserved)
        allowed = "" if self.limit is None else f"{_printed(self.limit)} allowed; "
        message = (
            f"CUDA out of memory. Tried to allocate {_printed(segment)}. GPU 0 has a total capacity of "
            f"{_printed(self._total)} of which {_printed(free)} is free. Including non-PyTorch memory, this process "
            f"has {_printed(self._outside + self.reserved)} memory in use. {allowed}Of the allocated memory "
            f"{_printed(self.allocated)} is allocated by PyTorch, and {_printed(self.reserved - self.allocated)} is "
            "reserved by PyTorch but unallocated."
        )
        return Refused(message, segment, free, self.allocated, self.reserved, self._needs(size))

    # Expandable segments: ranges of addresses larger than the card, whose pages are mapped on demand.

    def _grown(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        """A free block of at least this size at the lowest address, after mapping the pages that are missing."""
        block = self._stretch(pool, size, stream)
        if not block.mapped and not self._map(block, min(size, block.size)):
            return None
        while block.size < size:
            following = block.after
            assert following is not None  # the row is long enough
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # it has joined the block before it
        pool.remove(block)
        return block

    def _stretch(self, pool: _Pool, size: int, stream: int) -> _Block:
        """The first of adjacent free and unmapped blocks that together are large enough."""
        for _, block in pool.unmapped[stream]:
            first = block.before if block.before is not None and not block.before.allocated else block
            if first.row() >= size:
                return first
        room = self._device.room(self._total, pool.page)
        block = _Block(room.address, room.size, stream, pool, room)
        block.mapped = False
        pool.insert(block)
        return block

    def _map(self, block: _Block, size: int) -> bool:
        size = -(-size // block.pool.page) * block.pool.page
        if not self._device.take(size):
            return False
        block.pool.remove(block)
        if size < block.size:
            block.pool.insert(block.cut(size))
        block.mapped = True
        block.pool.join(block)
        self._reserve(size, block.pool)
        return True

    def _unmap(self, block: _Block) -> None:
        """Release the pages that lie entirely in this free block."""
        assert block.room is not None
        pool, page = block.pool, block.pool.page
        offset = block.address - block.room.address
        start, end = -(-offset // page) * page, (offset + block.size) // page * page
        if start >= end:
            return
        pool.remove(block)
        if start > offset:
            rest = block.cut(start - offset)
            pool.insert(block)
            block = rest
        if end - start < block.size:
            pool.insert(block.cut(end - start))
        block.mapped = False
        pool.join(block)
        self._give_back(end - start, pool)
        if block.is_whole():
            assert block.room is not None
            pool.remove(block)
            self._device.vacate(*block.room)


def _printed(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


class _AddressRange(NamedTuple):
    """A range of addresses."""

    address: int
    size: int

    @property
    def end(self) -> int:
        return self.address + self.size


class _Block:
    """A part of a segment, linked with its neighbours."""

    __slots__ = (
        "address",
        "after",
        "allocated",
        "before",
        "freed_at",
        "mapped",
        "pool",
        "requested",
        "room",
        "size",
        "stream",
    )

    def __init__(self, address: int, size: int, stream: int, pool: _Pool, room: _AddressRange | None = None) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.room = room
        self.requested = 0
        self.allocated = False
        self.mapped = True
        self.freed_at = 0
        self.before: _Block | None = None
        self.after: _Block | None = None

    def is_whole(self) -> bool:
        return self.before is None and self.after is None

    def cut(self, size: int) -> _Block:
        """Keep `size` bytes and return the rest as a new block."""
        rest = _Block(self.address + size, self.size - size, self.stream, self.pool, self.room)
        rest.mapped = self.mapped
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.size = size
        return rest

    def reach(self) -> int:
        """Bytes with the unmapped block that follows."""
        after = self.after
        return self.size + (after.size if after is not None and not after.mapped else 0)

    def row(self) -> int:
        """Bytes from here to the next block in use."""
        size = 0
        block: _Block | None = self
        while block is not None and not block.allocated:
            size += block.size
            block = block.after
        return size


class _Pool:
    """The free blocks of a pool by stream, sorted for best fit, and the unmapped blocks, sorted by address."""

    def __init__(self, least_rest: int, whole_from: int | None, page: int) -> None:
        self.least_rest = least_rest  # bytes; a block is split if the rest is at least as large
        self.whole_from = whole_from  # bytes; for such a size a block is not split
        self.page = page  # bytes by which an expandable segment grows
        self.searches = 0
        self.free: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)  # (size, address, block)
        self.unmapped: defaultdict[int, list[tuple[int, _Block]]] = defaultdict(list)

    def blocks(self) -> list[_Block]:
        return [block for free in self.free.values() for _, _, block in free]

    def insert(self, block: _Block) -> None:
        if block.mapped:
            block.freed_at = self.searches
            insort(self.free[block.stream], (block.size, block.address, block))
        else:
            insort(self.unmapped[block.stream], (block.address, block))

    def remove(self, block: _Block) -> None:
        if block.mapped:
            free = self.free[block.stream]
            del free[bisect_left(free, (block.size, block.address))]
        else:
            self.unmapped[block.stream].remove((block.address, block))

    def join(self, block: _Block) -> None:
        """Insert a block that has become free, joined with free neighbours that are mapped or unmapped as it is."""
        before, after = block.before, block.after
        if before is not None and not before.allocated and before.mapped == block.mapped:
            self.remove(before)
            block.address = before.address
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and not after.allocated and after.mapped == block.mapped:
            self.remove(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self.insert(block)


class _Device:
    """The device's memory and addresses.

    Best fit prefers the lower of two equal blocks, and CUDA does not document the addresses of cudaMalloc. They are
    assumed to be multiples of 2 MiB, in ascending order, with the lowest gap that is large enough used first.
    """

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._taken = 0
        self._vacant = [_AddressRange(FIRST_ADDRESS, 2**62)]

    def left(self) -> int | None:
        return None if self._capacity is None else max(0, self._capacity - self._taken)

    def take(self, size: int) -> bool:
        size = -(-size // PAGE) * PAGE
        if self._capacity is not None and self._taken + size > self._capacity:
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        self._taken -= -(-size // PAGE) * PAGE

    def room(self, total: int, page: int) -> _AddressRange:
        """Addresses for an expandable segment: 9/8 of the card, and without a capacity those of 2**50 bytes."""
        total = max(total, self._capacity or 2**50)
        size = -(-(total + total // 8) // page) * page
        return _AddressRange(self.place(size), size)

    def place(self, size: int) -> int:
        size = -(-size // PAGE) * PAGE
        index, vacant = next((index, room) for index, room in enumerate(self._vacant) if room.size >= size)
        self._vacant[index] = _AddressRange(vacant.address + size, vacant.size - size)
        if vacant.size == size:
            del self._vacant[index]
        return vacant.address

    def vacate(self, address: int, size: int) -> None:
        end = address + -(-size // PAGE) * PAGE
        index = bisect_left(self._vacant, (address, 0))
        if self._vacant[index].address == end:
            end += self._vacant.pop(index).size
        if index and self._vacant[index - 1].end == address:
            index -= 1
            address = self._vacant.pop(index).address
        self._vacant.insert(index, _AddressRange(address, end - address))
