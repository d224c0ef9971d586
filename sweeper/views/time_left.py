"""How long the rest of a sweep takes, from the pace of what it has measured so far. It reads no clock itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sweeper.plan import Plan

COMPLETE = ("grid", "axes", "list")  # designs that plan every point before the first outcome
CALCULATED = "calculated"  # the queue that all calculated devices share: they run on as many cores as there are


class Left(NamedTuple):
    seconds: float
    is_least: bool  # more may follow: the design searches, or a device has no pace yet


@dataclass
class _Queue:
    """Attempts that share a pace: those of a measured device, or of all calculated ones."""

    waiting: int = 0
    running: int = 0
    timed: int = 0  # settled after they began; recalled outcomes have no pace
    busy_s: float = 0.0  # while at least one ran, up to `since`
    since: float | None = None  # the last change while one runs
    first_s: float = 0.0  # busy seconds until the first was settled: the start of a template is in them
    last_s: float = 0.0  # until the last one was

    def advance(self, now: float) -> None:
        if self.since is not None:
            self.busy_s += now - self.since
        self.since = now if self.running else None

    def pace_s(self, calculates: bool) -> float | None:
        """Seconds from one settled attempt to the next. None without enough of them."""
        if self.timed > 1:
            return (self.last_s - self.first_s) / (self.timed - 1)
        return self.first_s if self.timed == 1 and not calculates else None


class TimeLeft:
    """Follows the events of a sweep. Times are seconds of any clock that does not go back."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.searches = plan.design not in COMPLETE  # more points may follow
        self._calculated = {device.name for device in plan.devices if device.is_calculated}
        self._queues: dict[str, _Queue] = {}
        self._waiting: dict[str, int] = {}  # by device

    def planned(self, device: str) -> None:
        self._waiting[device] = self._waiting.get(device, 0) + 1
        self._queue(device).waiting += 1

    def began(self, device: str, now: float) -> None:
        queue = self._queue(device)
        queue.advance(now)
        queue.running += 1
        queue.since = now

    def settled(self, device: str, now: float, recalled: bool) -> None:
        queue = self._queue(device)
        queue.waiting = max(0, queue.waiting - 1)
        self._waiting[device] = max(0, self._waiting.get(device, 0) - 1)
        if recalled:
            return
        queue.running = max(0, queue.running - 1)
        queue.advance(now)
        queue.timed += 1
        queue.last_s = queue.busy_s
        if queue.timed == 1:
            queue.first_s = queue.busy_s

    def gave_up(self, device: str) -> int:
        """The points of the device that are not run."""
        left = self._waiting.pop(device, 0)
        self._queue(device).waiting -= left
        return left

    def left(self, now: float) -> Left | None:
        """None where nothing has a pace yet, or nothing is left.

        Devices run at the same time, with two exceptions, as in `Sweep._may_start`: a measured device starts after a
        calculated one of the same kind, and the cpu after every other device unless parallel=true.
        """
        unknown = False
        own: dict[str, float] = {}
        for name, queue in self._queues.items():
            seconds = self._seconds(name, queue, now)
            unknown = unknown or seconds is None
            own[name] = seconds or 0.0
        if not any(own.values()):
            return None
        measured = [device for device in self._plan.devices if device.name in own]
        ends = {CALCULATED: own.get(CALCULATED, 0.0)}
        for device in sorted(measured, key=lambda device: device.is_cpu):
            has_twin = any(each.stands_for(device) for each in self._plan.devices)
            start = ends[CALCULATED] if has_twin else 0.0
            if device.is_cpu and not self._plan.run.parallel:
                start = max(ends.values())
            ends[device.name] = start + own[device.name]
        others = (own[name] for name in own if name not in ends)
        return Left(max(*ends.values(), *others, 0.0), unknown or self.searches)

    def _seconds(self, name: str, queue: _Queue, now: float) -> float | None:
        """Seconds that a queue still takes by itself; None if it has no pace yet."""
        if queue.waiting <= 0:
            return 0.0
        pace = queue.pace_s(name == CALCULATED)
        if pace is None:
            return None
        since = 0.0 if queue.since is None else queue.busy_s + now - queue.since - queue.last_s
        return max(0.0, pace * queue.waiting - since)

    def _queue(self, device: str) -> _Queue:
        return self._queues.setdefault(CALCULATED if device in self._calculated else device, _Queue())
