"""How long the rest of a sweep takes, from the pace of what it has measured so far. It reads no clock itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

from sweeper.plan import Plan

COMPLETE = ("grid", "axes", "list")  # designs that plan every point before the first outcome
CALCULATED = "calculated"  # the queue of all calculated devices: they share the cores
LATEST = 64  # durations that a pace is taken from


class Left(NamedTuple):
    seconds: float
    is_least: bool  # more may follow: the design searches, or something has no pace yet


@dataclass
class _Queue:
    """Attempts that run one after another on a measured device, or side by side on calculated ones."""

    waiting: int = 0
    running: int = 0
    busy_s: float = 0.0  # while at least one ran, up to `since`
    work_s: float = 0.0  # the same, counted for each that ran
    since: float | None = None  # the last change while one runs
    settled_at: list[float] = field(default_factory=list)  # busy seconds at the first and the last settled attempt
    timed: int = 0  # settled after they began: recalled outcomes have no pace

    def change(self, now: float, by: int) -> None:
        """Another attempt runs (1), or one fewer (-1)."""
        if self.since is not None:
            self.busy_s += now - self.since
            self.work_s += (now - self.since) * self.running
        self.running = max(0, self.running + by)
        self.since = now if self.running else None
        if by < 0:
            self.timed += 1
            self.settled_at = [*self.settled_at[:1], self.busy_s]

    def left_s(self, now: float, forks: bool) -> float | None:
        """Seconds until all is settled, one after another. None without a pace.

        `forks`: the start of a template is in the first attempt, which has no pace then.
        """
        if not self.waiting:
            return 0.0
        if self.timed < 1 + forks:
            return None
        first, last = self.settled_at[0], self.settled_at[-1]
        pace = first if self.timed == 1 else (last - first) / (self.timed - 1)
        under_way = 0.0 if self.since is None else self.busy_s + now - self.since - last
        return max(0.0, pace * self.waiting - under_way)


class TimeLeft:
    """Follows the events of a sweep. Times are seconds of any clock that does not go back.

    A calculated point is traced once for each architecture of its cards, and replayed for every other card, which takes
    a tenth of the time: the two have a pace each.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.searches = plan.design not in COMPLETE  # more points may follow
        self._forks = any(point.get("start") == "warm" for point in plan.points)
        self._traced_for = {
            device.name: (device.card.vendor, device.card.architecture) for device in plan.devices if device.card
        }
        self._queues: dict[str, _Queue] = {}
        self._waiting: Counter[str] = Counter()  # by device
        self._traces: Counter[Hashable] = Counter()  # points that wait for each trace
        self._traced: set[Hashable] = set()
        self._traces_left = 0  # that points wait for
        self._began: dict[tuple[str, str], tuple[float, bool]] = {}  # calculated ones: when, and whether by a replay
        self._durations: dict[bool, deque[float]] = {replayed: deque(maxlen=LATEST) for replayed in (False, True)}

    def planned(self, device: str, point: str) -> None:
        self._waiting[device] += 1
        self._queue(device).waiting += 1
        if device in self._traced_for:
            self._wait_for(self._trace(device, point), +1)

    def began(self, device: str, point: str, now: float) -> None:
        self._queue(device).change(now, +1)
        if device in self._traced_for:
            self._began[device, point] = now, self._trace(device, point) in self._traced

    def settled(self, device: str, point: str, now: float, recalled: bool) -> None:
        self._waiting[device] -= 1
        queue, trace = self._queue(device), self._trace(device, point)
        queue.waiting = max(0, queue.waiting - 1)
        began = self._began.pop((device, point), None)
        if device in self._traced_for:
            self._wait_for(trace, -1, is_traced=began is not None)
        if recalled:
            return
        queue.change(now, -1)
        if began is not None:
            self._durations[began[1]].append(now - began[0])

    def gave_up(self, device: str) -> int:
        """The points of the device that are not run."""
        left = max(0, self._waiting.pop(device, 0))
        self._queue(device).waiting -= left
        return left

    def left(self, now: float) -> Left | None:
        """None where nothing has a pace yet, or nothing is left.

        Devices run at the same time, with two exceptions, as in `Sweep._may_start`: a measured device starts after a
        calculated one of the same kind, and the cpu after every other device unless parallel=true.
        """
        own = {name: queue.left_s(now, self._forks) for name, queue in self._queues.items() if name != CALCULATED}
        calculated = self._calculated_s()
        unknown = None in own.values() or calculated is None or self._unknown_replays()
        ends = {CALCULATED: calculated or 0.0}
        measured = [device for device in self._plan.devices if device.name in own]
        for device in sorted(measured, key=lambda device: device.is_cpu):
            has_twin = any(each.stands_for(device) for each in self._plan.devices)
            start = ends[CALCULATED] if has_twin else 0.0
            if device.is_cpu and not self._plan.run.parallel:
                start = max(ends.values())
            ends[device.name] = start + (own[device.name] or 0.0)
        seconds = max(ends.values())
        return Left(seconds, unknown or self.searches) if seconds else None

    def _calculated_s(self) -> float | None:
        """Seconds that the calculated points take on the cores that they share; None without a pace."""
        queue = self._queues.get(CALCULATED)
        if queue is None or not queue.waiting:
            return 0.0
        traces, durations = self._traces_left, self._durations[False]
        if traces and len(durations) < 2:  # the start of a process, which imports torch, is in the first
            return None
        beside = max(1.0, queue.work_s / queue.busy_s if queue.busy_s else 1.0)
        replays = self._durations[True]
        seconds = traces * median_low(durations) if traces else 0.0
        seconds += (queue.waiting - traces) * median_low(replays) if replays else 0.0
        return seconds / beside

    def _unknown_replays(self) -> bool:
        queue = self._queues.get(CALCULATED, _Queue())
        return queue.waiting > self._traces_left and not self._durations[True]

    def _wait_for(self, trace: Hashable, by: int, is_traced: bool = False) -> None:
        """Change how many points wait for a trace."""
        self._traces_left -= self._is_left(trace)
        self._traces[trace] += by
        if is_traced:
            self._traced.add(trace)
        self._traces_left += self._is_left(trace)

    def _is_left(self, trace: Hashable) -> bool:
        return self._traces[trace] > 0 and trace not in self._traced

    def _trace(self, device: str, point: str) -> Hashable:
        return point, self._traced_for.get(device, device)

    def _queue(self, device: str) -> _Queue:
        return self._queues.setdefault(CALCULATED if device in self._traced_for else device, _Queue())
