"""Replay"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from runners.device import Card
from runners.journal import BETWEEN
from runners.phases import Reading
from runners.simulation.allocator import CachingAllocator, Refused, Settings
from runners.simulation.trace import EVENT, AllocationTrace

ALIGNMENT = 64  # of tensors on a host: c10/core/alignment.h


class Device(Protocol):
    """What events are handed to. `boundary`: what is held, and the peaks since the last one."""

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
    def boundary(self) -> Reading: ...


def device_of(card: Card, budget: int | None, endless: bool = False) -> Device:
    """Under a budget; or without any end, to see what a point that was refused would have taken."""
    return _Host(budget) if card.is_host else _Card(card, budget, endless)


class _Card:
    """A card with its allocator: what is left of it beside the context, the libraries and others."""

    def __init__(self, card: Card, budget: int | None, endless: bool) -> None:
        from runners.simulation.kernels.torch_products import workspace_bytes
        from runners.simulation.torch_device_rules import gpu_architecture

        self._workspace = workspace_bytes(gpu_architecture(card))
        self._outside = card.outside_bytes
        self._allocator = CachingAllocator(
            capacity=None if endless or card.total_bytes is None else card.total_bytes - self._outside,
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
        held = self._allocator
        now = {name: getattr(held, name) for name in ("allocated", "reserved", "requested", "active")}
        peak = {name: getattr(held, f"peak_{name}") for name in now}
        held.reset_peaks()
        used = {"used": self._outside + now["reserved"]}
        return Reading(now=now | used, peak=peak | {"used": self._outside + peak["reserved"]})


class _Host:
    """Tensors on the host, each rounded up to its alignment, under a budget if there is one."""

    alloc_retries = num_ooms = None

    def __init__(self, budget: int | None) -> None:
        self._budget, self._held, self._peak = budget, 0, 0
        self._sizes: list[int] = []

    def allocate(self, size: int) -> int:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self._budget is not None and self._held + size > self._budget:
            raise Refused(
                f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes (calculated)",
                size, self._budget - self._held, self._held, self._held,
            )  # fmt: skip
        self._held += size
        self._peak = max(self._peak, self._held)
        self._sizes.append(size)
        return len(self._sizes) - 1

    def free(self, handle: int) -> None:
        self._held -= self._sizes[handle]

    def empty_cache(self) -> None:
        pass

    def workspace_bytes(self) -> int:
        return 0

    def boundary(self) -> Reading:
        reading = Reading(now={"tensor": self._held}, peak={"tensor": self._peak})
        self._peak = self._held
        return reading


def replay(followed: AllocationTrace, name: str, device: Device) -> Iterator[dict[str, Any]]:
    """The journal's lines on that device."""
    handles: list[int] = []
    done, before = 0, device.boundary()
    phase: dict[str, Any] = {"phase": BETWEEN, "run_index": None}
    for line in followed.lines:
        retries, ooms = device.alloc_retries, device.num_ooms
        line = dict(line)
        until = line.pop(EVENT)
        try:
            _hand_over(followed.events, done, until, device, handles)
        except Refused as refused:
            yield {
                **{"kind": "ended", **phase, "completed": False, "elapsed_s": None},
                "counters": {name: _counters(before, device.boundary(), device, retries, ooms)},
            }
            yield {"kind": "failed", "chain": [_refusal(refused, device)], "traceback": None}
            return
        done = until
        if line["kind"] == "ended":
            after = device.boundary()
            line |= {"counters": {name: _counters(before, after, device, retries, ooms)}, "elapsed_s": None}
            before, phase = after, {"phase": BETWEEN, "run_index": None}
        elif line["kind"] == "began":
            line["counters"] = {name: {"baseline": before.now}}
            phase = {"phase": line["phase"], "run_index": line["run_index"]}
        yield line


def _hand_over(events: array[int], first: int, end: int, device: Device, handles: list[int]) -> None:
    from runners.simulation.torch_tracer import EMPTY_CACHE, WORKSPACE

    allocate, free = device.allocate, device.free
    for event in events[first:end]:
        if event < 0:
            free(handles[-event - 1])
        elif event < WORKSPACE:
            handles.append(allocate(event))
        elif event == EMPTY_CACHE:
            device.empty_cache()
        else:
            handles.append(allocate(device.workspace_bytes()))


def _counters(before: Reading, after: Reading, device: Device, retries: int | None, ooms: int | None) -> dict[str, Any]:
    def rise(then: int | None, now: int | None) -> int | None:
        return None if then is None or now is None else now - then

    return {
        "baseline": before.now,
        "end": after.now,
        "peak": after.peak,
        "alloc_retries": rise(retries, device.alloc_retries),
        "num_ooms": rise(ooms, device.num_ooms),
    }


def _refusal(refused: Refused, device: Device) -> dict[str, Any]:
    """In the words of the real one, so that it is told apart from other failures in the same place."""
    kind = "RuntimeError" if isinstance(device, _Host) else "torch.OutOfMemoryError"
    return {"type": kind, "bases": ["RuntimeError", "Exception"], "message": str(refused)}
