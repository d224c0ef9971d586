"""Who else was on an attempt's devices, before it started, while it ran and after it ended; and how short of memory the
machine was meanwhile.

A GPU is asked through NVML, by the supervisor: its answer names processes of every user. What is there before an
attempt starts is somebody else's, since a lane has one attempt at a time. While it runs, a pid is told from the
attempt's own only if the driver's pids are ours: in a container they can be the host's, or none at all. That is
known once a process of an attempt was seen on its device under its own pid. Until then only bytes are compared, before
and after, and the answer says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runners.facts import DeviceUse
from runners.meters import cpu, nvml
from runners.meters.nvml import Other

# For others to go before the start, and for memory to come back after the end. A killed process's memory is back
# within a second or so, a framework takes a few more to leave by itself; who stays for ten seconds works there.
LONGEST_WAIT = 10.0
WAIT_EVERY = 0.5  # seconds between looks meanwhile
LOOK_EVERY = 1.0  # seconds between looks while an attempt runs: a context alone takes most of one to make
# What the driver keeps for itself moves by a few MiB; the smallest context is some 100 MiB.
TOLERANCE_BYTES = 16 * 2**20
LONGEST_NAME = 64  # characters

PRESSURE = Path("/proc/pressure/memory")
BY_PROCESSES, BY_BYTES = "processes", "used_bytes"


class Reading(NamedTuple):
    """What is on a device at one moment: every process but the supervisor, and the bytes in use, whoever uses them."""

    processes: Sequence[Other]
    used_bytes: int | None


@dataclass
class Lane:
    """What a supervisor has learnt of its devices that holds beyond one attempt."""

    tells_pids: bool = False  # an attempt's own pid was seen: the driver's pids are of our namespace
    stayed: Collection[tuple[str, int]] = ()  # (device, pid) that outlasted a wait: not to be waited for again


@dataclass
class Seen:
    """Somebody else's process on a device, and when it was there, in seconds after the start."""

    name: str | None
    most_bytes: int | None
    before: bool = False
    first: float | None = None
    last: float | None = None


@dataclass
class Watch:
    """The devices of one attempt, looked at when the supervisor's loop finds the time: nothing in here waits."""

    uuids: Sequence[str]
    lane: Lane
    read: Callable[[str], Reading | None] = field(default_factory=lambda: read_device)
    name_of: Callable[[int], str | None] = field(default_factory=lambda: process_name)

    def __post_init__(self) -> None:
        self._before: dict[str, Reading] = {}
        self._end: dict[str, Reading] = {}
        self._seen: dict[tuple[str, int], Seen] = {}
        self._ours: set[int] = set()
        self._looks = 0
        self._left: str | None = None
        self._waiting_since: float | None = None
        self._waited = {"before": 0.0, "after": 0.0}

    @property
    def measures(self) -> bool:
        """Whether there is somebody to ask about every device; known after the first look."""
        return bool(self.uuids) and len(self._before) == len(self.uuids)

    def before(self, now: float) -> str | None:
        """Who should go before the attempt starts; None once it may start."""
        readings = {uuid: self.read(uuid) for uuid in self.uuids}
        self._before = {uuid: reading for uuid, reading in readings.items() if reading is not None}
        if not self.measures:
            return None
        there = {(uuid, other.pid): other for uuid, reading in self._before.items() for other in reading.processes}
        if self._may_wait("before", now) and not there.keys() <= set(self.lane.stayed):
            return ", ".join(_said(self.name_of(other.pid), other.pid, other.used_bytes) for other in there.values())
        self._waiting_since = None
        self.lane.stayed = frozenset(there)
        for (uuid, _), other in there.items():
            self._note(uuid, other).before = True
        return None

    def during(self, elapsed: float, ours: Callable[[], Collection[int]]) -> None:
        """Look while it runs. Who is ours is asked before and after: processes come and go while the driver answers."""
        if not self.measures:
            return
        self._ours.update(ours())
        readings = {uuid: self.read(uuid) for uuid in self.uuids}
        self._ours.update(ours())
        for uuid, reading in readings.items():
            if reading is None:
                continue
            self._looks += 1
            were_there = {other.pid for other in self._before[uuid].processes}
            for other in reading.processes:
                if other.pid in self._ours and other.pid not in were_there:
                    self.lane.tells_pids = True
                    continue
                seen = self._note(uuid, other)
                seen.first = elapsed if seen.first is None else seen.first
                seen.last = elapsed

    def after(self, now: float) -> str | None:
        """What should come back after the end, when nothing of the attempt is left; None once it need not be awaited.

        Memory of somebody who came meanwhile counts too: bytes have no owner where the driver names none.
        """
        if not self.measures:
            return None
        may_wait = self._may_wait("after", now)
        left = "; ".join(self._left_over())
        if not left:
            return None
        if may_wait:
            return f"memory not given back ({left})"
        self._left = f"memory not given back {self._waited['after']:.0f} s after the end ({left})"
        return None

    def facts(self) -> dict[str, Any]:
        """For exit.json. `contaminated`: who and when, false for nobody, null where it was not measured."""
        if not self.measures:
            return {"contaminated": None}
        tells = self.lane.tells_pids and self._looks > 0
        found = [
            f"{_said(seen.name, pid, seen.most_bytes)}{self._on(uuid)} {_when(seen)}"
            for (uuid, pid), seen in self._seen.items()
            if seen.before or tells
        ]
        found += [self._left] if self._left else []
        if found and not tells and any(not seen.before for seen in self._seen.values()):
            found.append("others while it ran cannot be told from the attempt: its own pid is not among the driver's")
        return {
            "contaminated": "; ".join(found) or False,
            "contamination_told_by": BY_PROCESSES if tells else BY_BYTES,
            "contamination_waited_s": self._waited,
            "devices": [
                DeviceUse(uuid, reading.used_bytes, self._end[uuid].used_bytes if uuid in self._end else None)
                for uuid, reading in self._before.items()
            ],
        }

    def _may_wait(self, moment: str, now: float) -> bool:
        if self._waiting_since is None:
            self._waiting_since = now
        self._waited[moment] = now - self._waiting_since
        return self._waited[moment] < LONGEST_WAIT

    def _left_over(self) -> Iterator[str]:
        for uuid, before in self._before.items():
            reading = self.read(uuid)
            if reading is None:
                continue
            self._end[uuid] = reading
            if reading.used_bytes is None or before.used_bytes is None:
                continue
            more = reading.used_bytes - before.used_bytes
            if more > TOLERANCE_BYTES:
                had = {other.pid: other.used_bytes or 0 for other in before.processes}
                new = [one for one in reading.processes if one.pid not in had or (one.used_bytes or 0) > had[one.pid]]
                who = ", ".join(_said(self.name_of(one.pid), one.pid, one.used_bytes) for one in new)
                by = f"used by {who}" if who else "used by no process that the driver names"
                yield f"{more} bytes more than before the start{self._on(uuid)}, {by}"

    def _note(self, uuid: str, other: Other) -> Seen:
        seen = self._seen.get((uuid, other.pid))
        if seen is None:
            seen = self._seen[uuid, other.pid] = Seen(self.name_of(other.pid), other.used_bytes)
        elif other.used_bytes is not None:
            seen.most_bytes = max(other.used_bytes, seen.most_bytes or 0)
        return seen

    def _on(self, uuid: str) -> str:
        return f" on {uuid}" if len(self.uuids) > 1 else ""


def read_device(uuid: str) -> Reading | None:
    """What the driver says is on a device; None where there is nobody to ask."""
    try:
        with nvml._nvml() as library:  # one session for both questions: opening it is what takes time
            processes = None if library is None else nvml.others_on(uuid)
            if library is None or processes is None:
                return None
            return Reading(processes, _used_bytes(library, uuid))
    except Exception:  # a library of another version, or half of one: it costs its own answer, never the attempt
        return None


def _used_bytes(library: Any, uuid: str) -> int | None:
    try:
        return int(library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByUUID(uuid)).used)
    except library.NVMLError:
        return None


def process_name(pid: int) -> str | None:
    """The program of a process on a device, as the driver has it: /proc may have another process under that pid.

    Its file's name alone: what stands after it can be arguments, and those can hold secrets.
    """
    try:
        with nvml._nvml() as library:
            name = b"" if library is None else library.nvmlSystemGetProcessName(pid)
    except Exception:
        return None
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    words = re.sub(r"[^\x21-\x7e]+", " ", text).split()
    return words[0].rpartition("/")[2][:LONGEST_NAME] or None if words else None


def _said(name: str | None, pid: int, used_bytes: int | None) -> str:
    used = "its bytes not told" if used_bytes is None else f"{used_bytes} bytes"
    return f"{name or 'a process'} (pid {pid}, {used})"


def _when(seen: Seen) -> str:
    moments = ["before the start"] if seen.before else []
    if seen.first is not None:
        moments.append(f"{seen.first:.1f} to {seen.last:.1f} s after the start")
    return " and ".join(moments)


def machine(moment: str) -> dict[str, Any]:
    """The machine's available memory and memory pressure, for exit.json, at the `start` or the `end` of an attempt."""
    pressure = memory_pressure()
    return {
        f"available_memory_bytes_{moment}": cpu.available_memory_bytes(),
        f"memory_pressure_{moment}_us": None if pressure is None else pressure.total_us,
        f"memory_pressure_{moment}_avg10_percent": None if pressure is None else pressure.avg10_percent,
    }


class Pressure(NamedTuple):
    """How long some task of the machine has waited for memory: of the last 10 seconds, and in all since boot."""

    avg10_percent: float
    total_us: int


def memory_pressure() -> Pressure | None:
    """None where the kernel has none (before Linux 4.20, or switched off)."""
    try:
        found = re.search(r"^some avg10=([\d.]+) .*total=(\d+)$", PRESSURE.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else Pressure(float(found[1]), int(found[2]))
