"""Replays a trace on the simulated memory of a card or a host, to add the counters to the journal's lines."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from runners.device import Card
from runners.journal import BETWEEN
from runners.phases import Reading
from runners.simulation.allocator import CachingAllocator, Refused, Settings
from runners.simulation.trace import EVENT, AllocationTrace

ALIGNMENT = 64  # bytes, of tensors on a host: c10/core/alignment.h


class Memory(Protocol):
    """Memory that a trace is replayed on. Sizes are in bytes; `allocate` returns a handle or raises Refused."""

    @property
    def alloc_retries(self) -> int | None: ...
    @property
    def num_ooms(self) -> int | None: ...
    @property
    def allocate(self) -> Callable[[int], int]: ...
    @property
    def free(self) -> Callable[[int], None]: ...
    @property
    def empty_cache(self) -> Callable[[], None]: ...
    def workspace_bytes(self) -> int: ...

    def boundary(self) -> Reading:
        """The counters now, and their peaks since the last boundary."""
        ...


def memory_of(card: Card, budget: int | None, unlimited: bool = False) -> Memory:
    """The card's memory under a budget in bytes, or without any limit, which shows the demand of a refused point.

    Raises ValueError if the card's allocator settings cannot be simulated.
    """
    return _HostMemory(budget) if card.is_host else _CardMemory(card, budget, unlimited)


def replay(trace: AllocationTrace, device: str, memory: Memory) -> Iterator[dict[str, Any]]:
    """The journal's lines with the counters of `memory`, under the name `device`. A refusal ends them."""
    handles: list[int] = []
    done, before = 0, memory.boundary()
    phase: dict[str, Any] = {"phase": BETWEEN, "run_index": None}
    for line in trace.lines:
        retries, ooms = memory.alloc_retries, memory.num_ooms
        line = dict(line)
        until = line.pop(EVENT)
        try:
            _apply(trace.events, done, until, memory, handles)
        except Refused as refused:
            yield {
                **{"kind": "ended", **phase, "completed": False, "elapsed_s": None},
                "counters": {device: _counters(before, memory.boundary(), memory, retries, ooms)},
            }
            yield {"kind": "failed", "chain": [_error_of(refused, memory)], "traceback": None}
            return
        done = until
        if line["kind"] == "ended":
            after = memory.boundary()
            line |= {"counters": {device: _counters(before, after, memory, retries, ooms)}, "elapsed_s": None}
            before, phase = after, {"phase": BETWEEN, "run_index": None}
        elif line["kind"] == "began":
            line["counters"] = {device: {"baseline": before.now}}
            phase = {"phase": line["phase"], "run_index": line["run_index"]}
        yield line


def _apply(events: array[int], first: int, end: int, memory: Memory, handles: list[int]) -> None:
    from runners.simulation.torch_tracer import EMPTY_CACHE, WORKSPACE

    allocate, free = memory.allocate, memory.free
    for event in events[first:end]:
        if event < 0:
            free(handles[-event - 1])
        elif event < WORKSPACE:
            handles.append(allocate(event))
        elif event == EMPTY_CACHE:
            memory.empty_cache()
        else:
            handles.append(allocate(memory.workspace_bytes()))


def _counters(before: Reading, after: Reading, memory: Memory, retries: int | None, ooms: int | None) -> dict[str, Any]:
    def rise(then: int | None, now: int | None) -> int | None:
        return None if then is None or now is None else now - then

    return {
        "baseline": before.now,
        "end": after.now,
        "peak": after.peak,
        "alloc_retries": rise(retries, memory.alloc_retries),
        "num_ooms": rise(ooms, memory.num_ooms),
    }


def _error_of(refused: Refused, memory: Memory) -> dict[str, Any]:
    """PyTorch's own exception for this refusal, so that the outcome recognises it as for a measured attempt."""
    kind = "RuntimeError" if isinstance(memory, _HostMemory) else "torch.OutOfMemoryError"
    return {"type": kind, "bases": ["RuntimeError", "Exception"], "message": str(refused)}


class _CardMemory:
    """The caching allocator with what the context, the libraries and other processes leave of the card."""

    def __init__(self, card: Card, budget: int | None, unlimited: bool) -> None:
        from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture
        from runners.simulation.kernels.torch_products import workspace_bytes

        self._workspace = workspace_bytes(gpu_architecture(card))
        self._outside = card.outside_bytes
        self._allocator = CachingAllocator(
            capacity=None if unlimited or card.total_bytes is None else card.total_bytes - self._outside,
            total=card.total_bytes or 0,
            limit=budget,
            settings=Settings.parse(card.settings),
            outside=self._outside,
        )
        self.allocate, self.free = self._allocator.allocate, self._allocator.free
        self.empty_cache = self._allocator.empty_cache

    def workspace_bytes(self) -> int:
        return int(self._workspace)

    @property
    def alloc_retries(self) -> int:
        return self._allocator.alloc_retries

    @property
    def num_ooms(self) -> int:
        return self._allocator.num_ooms

    def boundary(self) -> Reading:
        allocator = self._allocator
        now = {name: getattr(allocator, name) for name in ("allocated", "reserved", "requested", "active")}
        peak = {name: getattr(allocator, f"peak_{name}") for name in now}
        allocator.reset_peaks()
        used = {"used": self._outside + now["reserved"]}
        return Reading(now=now | used, peak=peak | {"used": self._outside + peak["reserved"]})


class _HostMemory:
    """Tensors on the host, each rounded up to its alignment. Only a budget refuses."""

    alloc_retries = num_ooms = None

    def __init__(self, budget: int | None) -> None:
        self._budget, self._allocated, self._peak = budget, 0, 0
        self._sizes: list[int] = []

    def allocate(self, size: int) -> int:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self._budget is not None and self._allocated + size > self._budget:
            raise Refused(
                f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes (calculated)",
                size, self._budget - self._allocated, self._allocated, self._allocated,
            )  # fmt: skip
        self._allocated += size
        self._peak = max(self._peak, self._allocated)
        self._sizes.append(size)
        return len(self._sizes) - 1

    def free(self, handle: int) -> None:
        self._allocated -= self._sizes[handle]

    def empty_cache(self) -> None:
        pass

    def workspace_bytes(self) -> int:
        return 0

    def boundary(self) -> Reading:
        reading = Reading(now={"tensor": self._allocated}, peak={"tensor": self._peak})
        self._peak = self._allocated
        return reading
