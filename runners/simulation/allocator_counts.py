"""All statistics of PyTorch's caching allocator, by pool, for a program that reads them.

A replay counts only what a row has, since it applies hundreds of thousands of events. The keys and what each counts are
those of c10/core/CachingDeviceAllocator.h and c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

from runners.simulation.allocator import NOTHING, CachingAllocator, Settings, _Block, _Pool

COUNTED = ("allocation", "segment", "active", "inactive_split")
BYTES = tuple(f"{name}_bytes" for name in ("allocated", "reserved", "active", "inactive_split", "requested"))
OVERSIZE = ("oversize_allocations", "oversize_segments")


class _Count:
    """A quantity that rises and falls: its value, the highest, and what was added and taken away over time."""

    __slots__ = ("added", "current", "peak", "taken")

    def __init__(self) -> None:
        self.current = self.peak = self.added = self.taken = 0

    def change(self, by: int) -> None:
        self.current += by
        if by > 0:
            self.added += by
            self.peak = max(self.peak, self.current)
        else:
            self.taken -= by

    def as_dict(self) -> dict[str, int]:
        return {"current": self.current, "peak": self.peak, "allocated": self.added, "freed": self.taken}


class _ByPool:
    """A count of each pool, and of both."""

    def __init__(self) -> None:
        self.all, self.small_pool, self.large_pool = _Count(), _Count(), _Count()

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {name: getattr(self, name).as_dict() for name in ("all", "small_pool", "large_pool")}


class CountingAllocator(CachingAllocator):
    """A caching allocator with the statistics of torch.cuda.memory_stats()."""

    def __init__(
        self,
        capacity: int | None,
        total: int | None = None,
        limit: int | None = None,
        settings: Settings | None = None,
        outside: int = 0,
    ) -> None:
        super().__init__(capacity, total, limit, settings, outside)
        self._counts = {name: _ByPool() for name in (*COUNTED, *BYTES)}
        self._oversize = {name: _Count() for name in OVERSIZE}
        self._segments_made = self._segments_released = 0
        self._found = 0  # bytes of the free block that the last allocation was taken from
        self._found_split = False  # whether it was a part of its segment

    def _change(self, name: str, pool: _Pool, by: int) -> None:
        count = self._counts[name]
        count.all.change(by)
        (count.small_pool if pool is self._small else count.large_pool).change(by)

    def _is_oversize_size(self, size: int) -> bool:
        return self._settings.max_split_size is not None and size >= self._settings.max_split_size

    def _fitting(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        return self._noted(super()._fitting(pool, size, stream))

    def _obtained(self, pool: _Pool, size: int, stream: int) -> _Block:
        block = super()._obtained(pool, size, stream)
        self._noted(block)
        return block

    def _noted(self, block: _Block | None) -> _Block | None:
        if block is not None:
            self._found, self._found_split = block.size, not block.is_whole()
        return block

    def allocate(self, size: int, stream: int = 0) -> int:
        address = super().allocate(size, stream)
        if address == NOTHING:
            return address
        block = self._held[address]
        pool, change = block.pool, self._change
        change("allocation", pool, 1)
        change("active", pool, 1)
        change("allocated_bytes", pool, block.size)
        change("active_bytes", pool, block.size)
        change("requested_bytes", pool, size)
        if self._is_oversize_size(block.size):
            self._oversize["oversize_allocations"].change(1)
        if block.room is None:  # expandable segments are left out, since their pages can be released
            if self._found_split:
                change("inactive_split_bytes", pool, -block.size)
                if block.size == self._found:
                    change("inactive_split", pool, -1)
            elif block.size < self._found:
                change("inactive_split_bytes", pool, self._found - block.size)
                change("inactive_split", pool, 1)
        return address

    def free(self, handle: int) -> None:
        if handle == NOTHING:
            return
        block = self._held[handle]
        pool, size, requested, change = block.pool, block.size, block.requested, self._change
        joined = [each.size for each in (block.before, block.after) if each is not None and not each.allocated]
        super().free(handle)
        change("allocation", pool, -1)
        change("active", pool, -1)
        change("allocated_bytes", pool, -size)
        change("active_bytes", pool, -size)
        change("requested_bytes", pool, -requested)
        if self._is_oversize_size(size):
            self._oversize["oversize_allocations"].change(-1)
        if block.room is None:
            is_part = not block.is_whole()
            if blocks := is_part - len(joined):
                change("inactive_split", pool, blocks)
            if rise := is_part * block.size - sum(joined):
                change("inactive_split_bytes", pool, rise)

    def _reserve(self, size: int, pool: _Pool) -> None:
        super()._reserve(size, pool)
        self._segments_made += 1
        self._change("reserved_bytes", pool, size)
        if not self._settings.expandable_segments:
            self._change("segment", pool, 1)
            if self._is_oversize_size(size):
                self._oversize["oversize_segments"].change(1)

    def _give_back(self, size: int, pool: _Pool) -> None:
        super()._give_back(size, pool)
        self._segments_released += 1
        self._change("reserved_bytes", pool, -size)
        if not self._settings.expandable_segments:
            self._change("segment", pool, -1)
            if self._is_oversize_size(size):
                self._oversize["oversize_segments"].change(-1)

    def _every_count(self) -> list[_Count]:
        by_pool = [each for pools in self._counts.values() for each in (pools.all, pools.small_pool, pools.large_pool)]
        return [*by_pool, *self._oversize.values()]

    def reset_peaks(self) -> None:
        super().reset_peaks()
        for count in self._every_count():
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """What was added and taken away over time, and the counts of events, start at 0 again."""
        for count in self._every_count():
            count.added = count.taken = 0
        self.alloc_retries = self.num_ooms = self._segments_made = self._segments_released = 0

    def statistics(self) -> dict[str, Any]:
        """As torch.cuda.memory_stats_as_nested_dict()."""
        whole_from = self._settings.max_split_size
        return {
            "num_alloc_retries": self.alloc_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.alloc_retries,
            "num_device_alloc": self._segments_made,
            "num_device_free": self._segments_released,
            "num_oom_rejections": 0,
            "max_split_size": -1 if whole_from is None else whole_from,
            **{name: count.as_dict() for name, count in self._counts.items()},
            **{name: count.as_dict() for name, count in self._oversize.items()},
            "reserved_bytes_by_private_pools": {},
        }
