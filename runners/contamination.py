"""Other processes on an attempt's devices before, while and after it runs, and the machine's memory pressure meanwhile.

The supervisor reads a GPU through NVML, which lists the processes of every user. A lane has one attempt at a time, so
all processes on a device before an attempt starts belong to others. While it runs, pids separate the attempt from
others only if the driver and this process use one pid namespace: in a container the driver's pids can be the host's, or
missing. That is known once a process of an attempt was seen on its device under its own pid. Until then only bytes are
compared, before and after, and `contamination_told_by` records this.

A process that was there before and keeps the same memory (a display server, MPS, another container) is no
contamination: it takes nothing from one attempt that it does not take from the next. Its memory is in what was used
before.
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

# Seconds for others to leave before the start, and for memory to be freed after the end. The memory of a killed process
# is free within about a second, a framework takes a few seconds to exit; a process that stays for ten works there.
LONGEST_WAIT = 10.0
WAIT_EVERY = 0.5  # seconds between readings meanwhile
LOOK_EVERY = 1.0  # seconds between readings while an attempt runs: creating a context takes most of one
# The driver's own memory varies by a few MiB; the smallest context is some 100 MiB.
TOLERANCE_BYTES = 16 * 2**20
LONGEST_NAME = 64  # characters
# Programs that stay, and are not waited for; what MPS's server holds is also its clients', the attempt among them.
BELONG_THERE = ("nvidia-cuda-mps-server",)

PRESSURE = Path("/proc/pressure/memory")
BY_PROCESSES, BY_BYTES = "processes", "used_bytes"


class Reading(NamedTuple):
    """One device at one moment: its processes without the supervisor, and the bytes that all processes use."""

    processes: Sequence[Other]
    used_bytes: int | None


@dataclass
class Lane:
    """A supervisor's knowledge about its devices that outlasts one attempt."""

    has_our_pids: bool = False  # an attempt's own pid was seen: the driver uses our pid namespace
    stayed: Collection[tuple[str, int]] = ()  # (device, pid) that outlasted a wait and are not waited for again


@dataclass
class OtherProcess:
    """Another process on a device, and when it was there, in seconds after the start."""

    name: str | None
    most_bytes: int | None
    least_bytes: int | None
    before: bool = False
    left: bool = False  # before the attempt had ended
    first: float | None = None
    last: float | None = None

    @property
    def changed(self) -> bool:
        """Whether its memory changed; where the driver reports none, that it left is the only sign."""
        known = self.most_bytes is not None and self.least_bytes is not None
        return self.left or (known and self.most_bytes - self.least_bytes > TOLERANCE_BYTES)  # type: ignore[operator]


@dataclass
class Watch:
    """Watches the devices of one attempt. The supervisor's loop calls it; no method waits."""

    uuids: Sequence[str]
    lane: Lane
    read: Callable[[str], Reading | None] = field(default_factory=lambda: read_device)
    name_of: Callable[[int], str | None] = field(default_factory=lambda: process_name)

    def __post_init__(self) -> None:
        self._before: dict[str, Reading] = {}
        self._end: dict[str, Reading] = {}
        self._seen: dict[tuple[str, int], OtherProcess] = {}
        self._ours: set[int] = set()
        self._looks = 0
        self._left: str | None = None
        self._waiting_since: float | None = None
        self._waited = {"before": 0.0, "after": 0.0}

    @property
    def measures(self) -> bool:
        """Whether every device can be read; known after the first reading."""
        return bool(self.uuids) and len(self._before) == len(self.uuids)

    def before(self, now: float) -> str | None:
        """The processes to wait for before the attempt starts, as text; None once it may start."""
        readings = {uuid: self.read(uuid) for uuid in self.uuids}
        self._before = {uuid: reading for uuid, reading in readings.items() if reading is not None}
        if not self.measures:
            return None
        there = {(uuid, other.pid): other for uuid, reading in self._before.items() for other in reading.processes}
        come = [key for key, other in there.items() if key not in self.lane.stayed and not self._belongs(other)]
        if self._may_wait("before", now) and come:
            return ", ".join(_label(self.name_of(other.pid), other.pid, other.used_bytes) for other in there.values())
        self._waiting_since = None
        self.lane.stayed = frozenset(there)
        for (uuid, _), other in there.items():
            self._note(uuid, other).before = True
        return None

    def during(self, elapsed: float, ours: Callable[[], Collection[int]]) -> None:
        """Read while the attempt runs. `ours` is called before and after: processes come and go during the reading."""
        if not self.measures:
            return
        self._ours.update(ours())
        readings = {uuid: self.read(uuid) for uuid in self.uuids}
        self._ours.update(ours())
        for uuid, reading in readings.items():
            if reading is None:
                continue
            self._looks += 1
            self._note_absence(uuid, reading)
            were_there = {other.pid for other in self._before[uuid].processes}
            for other in reading.processes:
                if other.pid in self._ours and other.pid not in were_there:
                    self.lane.has_our_pids = True
                    continue
                seen = self._note(uuid, other)
                seen.first = elapsed if seen.first is None else seen.first
                seen.last = elapsed

    def after(self, now: float) -> str | None:
        """The memory to wait for once no process of the attempt is left, as text; None if there is nothing to wait for.

        It includes the memory of processes that came meanwhile: where the driver names no process, bytes have no owner.
        """
        if not self.measures:
            return None
        may_wait = self._may_wait("after", now)
        left = "; ".join(self._left_over())
        if not left:
            return None
        if may_wait:
            return f"memory not freed ({left})"
        self._left = f"memory not freed {self._waited['after']:.0f} s after the end ({left})"
        return None

    def facts(self) -> dict[str, Any]:
        """The fields of facts.Exit about other processes."""
        if not self.measures:
            return {"contaminated": None}
        by_processes = self.lane.has_our_pids and self._looks > 0
        found = [
            f"{_label(seen.name, pid, seen.most_bytes)}{self._on(uuid)} {_when(seen)}"
            for (uuid, pid), seen in self._seen.items()
            if seen.name not in BELONG_THERE and (seen.changed if seen.before else by_processes)
        ]
        found += [self._left] if self._left else []
        if found and not by_processes and any(not seen.before for seen in self._seen.values()):
            found.append("others while it ran are not known: the driver does not list the attempt under its own pid")
        return {
            "contaminated": "; ".join(found) or False,
            "contamination_told_by": BY_PROCESSES if by_processes else BY_BYTES,
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
            if uuid not in self._end:  # later readings are of the time after the attempt
                self._note_absence(uuid, reading)
                for other in reading.processes:
                    if (uuid, other.pid) in self._seen:
                        self._note(uuid, other)
            self._end[uuid] = reading
            if reading.used_bytes is None or before.used_bytes is None:
                continue
            more = reading.used_bytes - before.used_bytes
            if more > TOLERANCE_BYTES:
                had = {other.pid: other.used_bytes or 0 for other in before.processes}
                new = [one for one in reading.processes if one.pid not in had or (one.used_bytes or 0) > had[one.pid]]
                who = ", ".join(_label(self.name_of(one.pid), one.pid, one.used_bytes) for one in new)
                by = f"used by {who}" if who else "used by no process that the driver lists"
                yield f"{more} bytes more than before the start{self._on(uuid)}, {by}"

    def _note(self, uuid: str, other: Other) -> OtherProcess:
        seen = self._seen.get((uuid, other.pid))
        if seen is None:
            used = other.used_bytes
            seen = self._seen[uuid, other.pid] = OtherProcess(self.name_of(other.pid), used, used)
        elif other.used_bytes is not None:
            seen.most_bytes = max(other.used_bytes, seen.most_bytes or 0)
            seen.least_bytes = other.used_bytes if seen.least_bytes is None else min(other.used_bytes, seen.least_bytes)
        return seen

    def _note_absence(self, uuid: str, reading: Reading) -> None:
        """Note which of the processes that were there before have left."""
        there = {other.pid for other in reading.processes}
        for (on, pid), seen in self._seen.items():
            seen.left = seen.left or (seen.before and on == uuid and pid not in there)

    def _belongs(self, other: Other) -> bool:
        return other.only_graphics or self.name_of(other.pid) in BELONG_THERE

    def _on(self, uuid: str) -> str:
        return f" on {uuid}" if len(self.uuids) > 1 else ""


def read_device(uuid: str) -> Reading | None:
    """A device according to NVML; None where it cannot be read."""
    processes = nvml.others_on(uuid)
    return None if processes is None else Reading(processes, nvml.used_bytes(uuid))


def process_name(pid: int) -> str | None:
    """The program of a process on a device.

    Only the name of its file: what follows can be arguments, and those can hold secrets.
    """
    words = re.sub(r"[^\x21-\x7e]+", " ", nvml.process_name(pid) or "").split()
    return words[0].rpartition("/")[2][:LONGEST_NAME] or None if words else None


def _label(name: str | None, pid: int, used_bytes: int | None) -> str:
    used = "bytes unknown" if used_bytes is None else f"{used_bytes} bytes"
    return f"{name or 'a process'} (pid {pid}, {used})"


def _when(seen: OtherProcess) -> str:
    moments = ["before the start"] if seen.before else []
    if seen.first is not None:
        moments.append(f"{seen.first:.1f} to {seen.last:.1f} s after the start")
    return " and ".join(moments)


def machine(moment: str) -> dict[str, Any]:
    """The fields of facts.Exit about the machine's memory at the `start` or the `end` of an attempt."""
    pressure = memory_pressure()
    return {
        f"available_memory_bytes_{moment}": cpu.available_memory_bytes(),
        f"memory_pressure_{moment}_us": None if pressure is None else pressure.total_us,
        f"memory_pressure_{moment}_avg10_percent": None if pressure is None else pressure.avg10_percent,
    }


class Pressure(NamedTuple):
    """The time that some task of the machine waited for memory: in the last 10 seconds, and since boot."""

    avg10_percent: float
    total_us: int


def memory_pressure() -> Pressure | None:
    """The kernel's memory pressure; None where it has none (before Linux 4.20, or switched off)."""
    try:
        found = re.search(r"^some avg10=([\d.]+) .*total=(\d+)$", PRESSURE.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else Pressure(float(found[1]), int(found[2]))
