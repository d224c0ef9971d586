"""Tracing"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from runners import facts
from runners.device import Card
from runners.phases import WHOLE, Phases, Reading, Unavailable
from runners.point import Attempt

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


def card_of(attempt: Attempt) -> Card:
    """The card of a calculated attempt. Raises ValueError for one that is measured."""
    if attempt.device.card is None:
        raise ValueError(f"{attempt.device.name} has no card to calculate with")
    return attempt.device.card


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
        lines.add({"kind": "finished", **finished})
    except BaseException as error:
        lines.add({"kind": "failed", **told(_of_this_machine(error))})
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

    def write(self, *written: facts.Fact) -> None:
        self.add(*map(facts.to_json, written))

    def add(self, *lines: dict[str, Any]) -> None:
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
    from runners.simulation.kernels.torch_gpu_architecture import why_unsupported
    from runners.simulation.torch_device_rules import gpu_architecture

    architecture = gpu_architecture(card)
    for name in (point["dtype"], point.get("workload.precision")):
        if name is not None and (why := why_unsupported(architecture, dtype_named(name))):
            raise Unavailable(f"{attempt.device.name}: {why}")


def _told_to(follower: Any) -> contextlib.AbstractContextManager[None]:
    """What workloads do and no operator shows: `cache=empty`, and that a model is made elsewhere before it moves."""
    from runners.models import torch_models
    from runners.simulation.torch_tracer import replaced

    return replaced(torch_models, empty_cache=lambda device: follower.empty_cache(), made_on_host=follower.made_on_host)
