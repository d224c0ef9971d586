"""The statistics of PyTorch's CUDA allocator, with peaks that the meter and the workload reset apart from each other.

The allocator has one peak of each counter, and a reset by one reader starts it anew for all. A workload that resets it
would shrink its own figure, and the meter's resets would shrink what the workload reads. So each reset, by
whichever of the functions of torch.cuda, torch.cuda.memory and torch.accelerator, first stores the peak for the other
reader. They all call the functions of torch._C that are replaced here. A reset by a C++ extension is not seen.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from runners import facts
from runners.refusals import large_segment_bytes, least_block_bytes

NATIVE = "native"  # PyTorch's own caching allocator, the only one that keeps every counter
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # set to anything, the empty text included, it disables the allocator
STATISTICS = ("allocated", "reserved", "requested", "active")  # of memory_stats, all pools together
OF_ASYNC = STATISTICS[:2]  # cudaMallocAsync reports what it does not count "as zero" (memory_stats)
COUNTS = ("num_alloc_retries", "num_ooms")

Path = tuple[str, ...]  # of a value in the nested statistics


class Reading(NamedTuple):
    """One device's allocator. Bytes by counter; empty where nothing is counted."""

    now: Mapping[str, int]
    peak: Mapping[str, int]  # since the meter's last reset
    counts: Mapping[str, int]  # by the names of COUNTS, since the meter began


NOTHING = Reading({}, {}, {})


class Statistics:
    """Reads and resets the statistics for the meter. Made once a process, after CUDA was initialised."""

    def __init__(self) -> None:
        self.backend = allocator_backend()
        self.captures_graphs = False  # whether a CUDA graph was captured
        self._bypassed = UNCACHED in os.environ  # allocations that no counter has
        self._for_meter: defaultdict[int, dict[Path, int]] = defaultdict(dict)  # peaks that the workload has reset
        self._for_workload: defaultdict[int, dict[Path, int]] = defaultdict(dict)  # peaks that the meter has reset
        self._counts: defaultdict[int, dict[str, int]] = defaultdict(dict)  # that the workload has reset
        self._refused: dict[int, facts.Refused] = {}
        c = torch._C
        self._stats: Callable[[int], dict[str, Any]] = c._cuda_memoryStats
        self._reset: Callable[[int], None] = c._cuda_resetPeakMemoryStats
        for name, replaced in (
            ("_cuda_memoryStats", self._stats_of_workload),
            ("_accelerator_getDeviceStats", self._stats_of_workload),
            ("_cuda_resetPeakMemoryStats", self._reset_by_workload),
            ("_accelerator_resetPeakStats", self._reset_by_workload),
            ("_cuda_resetAccumulatedMemoryStats", self._reset_counts_by_workload),
            ("_accelerator_resetAccumulatedStats", self._reset_counts_by_workload),
            ("_cuda_cudaCachingAllocator_enable", self._enabled_by_workload),
        ):
            if hasattr(c, name):  # torch.accelerator has statistics since torch 2.9
                setattr(c, name, replaced(getattr(c, name)))
        with suppress(AttributeError):
            torch.cuda.CUDAGraph.capture_begin = self._captured(torch.cuda.CUDAGraph.capture_begin)  # type: ignore[method-assign]
        if self.backend == NATIVE:
            with suppress(Exception):  # without it the message of a refusal has the figures, to two decimals
                c._cuda_attach_out_of_memory_observer(self._observe)  # type: ignore[attr-defined]

    def read(self, index: int) -> Reading:
        """The statistics of a device. Nothing before CUDA is initialised, or of an allocator that does not count."""
        counted = self._counted()
        if not counted or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return NOTHING
        try:
            stats = self._stats(index)  # before what was stored: another thread may store and reset in between
        except Exception:
            return NOTHING
        stored, earlier = self._for_meter[index], self._counts[index]
        now, peak = {}, {}
        for counter in counted:
            amounts = stats.get(f"{counter}_bytes", {}).get("all")
            if amounts is not None:
                now[counter] = amounts["current"]
                peak[counter] = max(amounts["peak"], stored.get((f"{counter}_bytes", "all"), 0))
        counts = {}
        if self.backend == NATIVE:
            counts = {name: stats[name] + earlier.get(name, 0) for name in COUNTS if name in stats}
        return Reading(now, peak, counts)

    def start_new_peaks(self, index: int) -> None:
        """Reset the meter's peaks. What the workload reads stays as it was."""
        with suppress(Exception):
            _store(self._for_workload[index], self._stats(index))
        self._reset(index)
        self._for_meter[index].clear()

    def take_refused(self, index: int) -> facts.Refused | None:
        """The last refusal of a device since the last call; None if there was none or it was not observed."""
        return self._refused.pop(index, None)

    def graph_pools_bytes(self, index: int) -> int:
        """What the private pools of CUDA graphs have reserved: a replay uses it, and `allocated` does not count it."""
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        in_pools = (each for each in segments if tuple(each.get("segment_pool_id", (0, 0))) != (0, 0))
        return sum(each["total_size"] for each in in_pools if each["device"] == index)

    def _counted(self) -> tuple[str, ...]:
        if self._bypassed:
            return ()
        if self.backend == NATIVE:
            return STATISTICS
        return OF_ASYNC if self.backend.endswith("MallocAsync") else ()  # a pluggable allocator counts for itself

    def _observe(self, device: int, requested: int, total: int, free: int) -> None:
        """Called by the allocator before it raises, in the thread that allocates: nothing has been freed yet."""
        with suppress(Exception):  # an exception from here would replace the refusal
            stats = self._stats(device)
            held = {counter: stats[f"{counter}_bytes"]["all"]["current"] for counter in STATISTICS}
            # Not `allocated`: a block can be larger than its tensor, by another amount with another budget.
            needs = held["requested"] + least_block_bytes(requested, large_segment_bytes(allocator_settings()))
            self._refused[device] = facts.Refused(requested, held, needs)

    # What the workload calls

    def _stats_of_workload(self, stats: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
        def read(index: int) -> dict[str, Any]:
            found = stats(index)
            for path, peak in self._for_workload[index].items():
                with suppress(KeyError):
                    amounts = found
                    for key in path:
                        amounts = amounts[key]
                    amounts["peak"] = max(amounts["peak"], peak)
            return found

        return read

    def _reset_by_workload(self, reset: Callable[[int], None]) -> Callable[[int], None]:
        def start_new_peaks(index: int) -> None:
            with suppress(Exception):
                _store(self._for_meter[index], self._stats(index))
            reset(index)
            self._for_workload[index].clear()

        return start_new_peaks

    def _reset_counts_by_workload(self, reset: Callable[[int], None]) -> Callable[[int], None]:
        def start_new_counts(index: int) -> None:
            with suppress(Exception):
                stats, earlier = self._stats(index), self._counts[index]
                for name in COUNTS:
                    earlier[name] = earlier.get(name, 0) + stats[name]
            reset(index)

        return start_new_counts

    def _enabled_by_workload(self, enable: Callable[[bool], None]) -> Callable[[bool], None]:
        def set_enabled(value: bool) -> None:
            self._bypassed = self._bypassed or not value  # such memory may live on when the allocator is used again
            enable(value)

        return set_enabled

    def _captured(self, capture_begin: Callable[..., None]) -> Callable[..., None]:
        def begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            self.captures_graphs = True
            capture_begin(graph, *args, **kwargs)

        return begin


def allocator_backend() -> str:
    """`native`, `cudaMallocAsync` as PYTORCH_ALLOC_CONF chooses it, or `pluggable`."""
    return str(torch.cuda.memory.get_allocator_backend())


def allocator_settings() -> str | None:
    """The settings in force; None where there are none.

    torch has read the first of these variables that is set, even if it is empty (as tried with 2.13); before 2.9 the
    last was not read.
    """
    try:
        return str(torch._C._accelerator_getAllocatorSettings()) or None
    except Exception:
        is_amd = torch.version.hip is not None
        names = ("PYTORCH_CUDA_ALLOC_CONF", *(("PYTORCH_HIP_ALLOC_CONF",) if is_amd else ()))
        return next((os.environ[name] for name in names if name in os.environ), None) or None


def _store(stored: dict[Path, int], stats: Mapping[str, Any]) -> None:
    for path, peak in _peaks(stats):
        stored[path] = max(peak, stored.get(path, 0))


def _peaks(stats: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, int]]:
    for key, value in stats.items():
        if isinstance(value, Mapping):
            yield from _peaks(value, (*path, key))
        elif key == "peak":
            yield path, value
