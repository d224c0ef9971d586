"""A device that is calculated: a point is followed once without data, then decided for a card from what was followed.

Followed: the lines of the workload's journal, with the place in the events where each was written, and the events, the
births and deaths of storages in their order. Decided: the events handed to an imitation of the card's allocator; the
journal's lines get the counters it had at their places, and end where it refuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from runners.device import Card
from runners.journal import BETWEEN, Journal
from runners.phases import WHOLE, Phases, Reading, Unavailable
from runners.point import Attempt
from runners.simulation.allocator import CachingAllocator, Refused, Settings

ALIGNMENT = 64  # of tensors on a host: c10/core/alignment.h
EVENT = "event"  # in a followed line, in the place of the counters: how many events there were

Told = Callable[[BaseException], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """What a point does on the cards of an architecture."""

    lines: list[dict[str, Any]]
    events: array[int]

    @classmethod
    def read(cls, path: Path) -> AllocationTrace | None:
        try:
            head, _, packed = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        events = array("q")
        try:
            events.frombytes(zlib.decompress(packed))
            return cls(json.loads(head), events)
        except (ValueError, zlib.error):  # not as it was written: it is followed anew
            return None

    def write(self, path: Path) -> None:
        """Aside, then renamed: a reader sees the whole of it or nothing."""
        aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        aside.write_bytes(json.dumps(self.lines).encode() + b"\n" + zlib.compress(self.events.tobytes(), 1))
        os.replace(aside, path)


def measure(attempt: Attempt, workload: ModuleType, journal: Journal, told: Told) -> None:
    """Write the journal of an attempt on a card, and how it ends. `told` gives an exception as facts."""
    card = card_of(attempt)
    path = Path(attempt.followed or os.devnull)
    followed = AllocationTrace.read(path) if attempt.followed else None
    if followed is None:
        followed = trace(attempt, workload, told)
        if attempt.followed and followed.lines[-1]["kind"] == "finished":  # a failure may be gone the next time
            followed.write(path)
    budget = attempt.point.get("budget")
    if budget is not None:
        kind, room = "tensors", budget
        if card.total_bytes is not None:
            kind, room = "allocator", min(budget, card.total_bytes - card.outside_bytes)
        journal.write({"kind": "budget", "budget_kind": kind, "budget_bytes": room})
    refused = False
    for line in replay(followed, attempt.device.name, device_of(card, budget)):
        journal.write(line)
        refused = refused or line["kind"] == "failed"
    if refused:
        unlimited = replay(followed, attempt.device.name, device_of(card, None, endless=True))
        journal.write({"kind": "unlimited", "peak": _peaks(unlimited)})


def card_of(attempt: Attempt) -> Card:
    """The card of a calculated attempt. Raises ValueError for one that is measured."""
    if attempt.device.card is None:
        raise ValueError(f"{attempt.device.name} has no card to calculate with")
    return attempt.device.card


def describe(card: Card) -> dict[str, Any]:
    """What of a card goes into the environment's record."""
    return {
        "device_name": card.name,
        "device_total_bytes": card.total_bytes,
        "allocator_backend": "calculated",
        "allocator_settings": card.settings or None,
    }


# --- following --------------------------------------------------------------------------------------------------------


def trace(attempt: Attempt, workload: ModuleType, told: Told) -> AllocationTrace:
    """Run the workload on tensors without data, in this process."""
    from runners.simulation.torch_tracer import MetaTracer

    values, follower = attempt.point.values, MetaTracer(_rules(card_of(attempt)))
    meter = _Place(attempt.device.name, follower.events)
    lines = _Lines(meter)
    try:
        if hasattr(workload, "measure"):
            name = attempt.point["workload"]
            raise Unavailable(f"workload={name}: a program of its own cannot be followed without data")
        _refuse_what_it_lacks(attempt)
        workload.prepare(values, "meta")
        phases = Phases(meter, lines, whole=values.get("phases") == WHOLE)  # type: ignore[arg-type]
        phases.open()
        with _told_to(follower), follower.around_workload():
            if values.get("phases") == WHOLE:
                with phases(WHOLE):
                    finished = workload.run(values, "meta", phases)
            else:
                finished = workload.run(values, "meta", phases)
        phases.close(completed=True)
        lines.write({"kind": "finished", **finished})
    except BaseException as error:
        lines.write({"kind": "failed", **told(_of_this_machine(error))})
    if follower.lost is None:
        return AllocationTrace(lines.lines, follower.events)
    # Wherever it went from there, it went by what nobody knows.
    until = follower.lost_at
    known = [line for line in lines.lines if line[EVENT] <= until and line["kind"] not in ("failed", "finished")]
    failed = {"kind": "failed", **told(Unavailable(follower.lost)), EVENT: until}
    return AllocationTrace([*known, failed], follower.events[:until])


def _of_this_machine(error: BaseException) -> BaseException:
    """What says something of the machine that follows, and nothing of the device: that it has no such device, no
    compiler for it, or no room for the whole numbers that are really there."""
    if "not compiled with CUDA" in str(error) or type(error).__module__.startswith("torch._dynamo"):
        return Unavailable(f"it asks for more than the device it is given, which has no data: {error}")
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        return Unavailable(f"there is no room here to follow it: {error}")
    return error


class _Place:
    """The meter of a workload that is followed: instead of counters it reads how many events there were."""

    def __init__(self, device: str, events: array[int]) -> None:
        self._device, self._events = device, events

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        return {self._device: Reading(now={EVENT: len(self._events)})}

    glance = boundary

    @property
    def now(self) -> int:
        return len(self._events)


class _Lines:
    """A journal in memory."""

    def __init__(self, place: _Place) -> None:
        self.lines: list[dict[str, Any]] = []
        self._place = place

    def write(self, *lines: dict[str, Any]) -> None:
        self.lines += [{**line, EVENT: self._place.now} for line in lines]


def _rules(card: Card) -> Any:
    from runners.simulation import torch_device_rules

    if card.is_host:
        return torch_device_rules.CpuRules()
    return torch_device_rules.CudaRules(torch_device_rules.gpu_architecture(card))


def _refuse_what_it_lacks(attempt: Attempt) -> None:
    """Bytes alone do not make it fit: a card without the dtype is no place for the point."""
    card, point = card_of(attempt), attempt.point
    if card.is_host:
        return
    from runners.models.torch_models import dtype_named
    from runners.simulation import torch_device_rules, torch_kernels

    architecture = torch_device_rules.gpu_architecture(card)
    for name in (point["dtype"], point.get("workload.precision")):
        if name is not None and (why := torch_kernels.why_unsupported(architecture, dtype_named(name))):
            raise Unavailable(f"{attempt.device.name}: {why}")


def _told_to(follower: Any) -> contextlib.AbstractContextManager[None]:
    """What workloads do and no operator shows: `cache=empty`, and that a model is made elsewhere before it moves."""
    from runners.models import torch_models
    from runners.simulation.torch_tracer import replaced

    return replaced(torch_models, empty_cache=lambda device: follower.empty_cache(), made_on_host=follower.made_on_host)


# --- deciding ---------------------------------------------------------------------------------------------------------


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


def _peaks(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The highest of each counter; nothing if the workload did not come to its end."""
    highest: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "failed":
            return {}
        for counters in line.get("counters", {}).values():
            for counter, value in counters.get("peak", {}).items():
                highest[counter] = max(value, highest.get(counter, 0))
    return highest


class _Card:
    """A card with its allocator: what is left of it beside the context, the libraries and others."""

    def __init__(self, card: Card, budget: int | None, endless: bool) -> None:
        from runners.simulation import torch_device_rules, torch_kernels

        self._workspace = torch_kernels.workspace_bytes(torch_device_rules.gpu_architecture(card))
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
