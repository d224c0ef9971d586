"""Memory of the program that this process starts, and of every process that the program starts: its tree.

    resident    of one process, its high-water mark as the kernel keeps it: VmHWM while it runs, and to the page once it
                was reaped (ru_maxrss, where that is above this process's own, which a child starts from). Of several at
                once, the highest sum of their Pss (proc(5), smaps_rollup) in samples: what they share counts once, and
                what lies between two samples is not seen. The peak is the higher of the two
    used        what NVML says is used on a device, whoever uses it; its peak is the highest sample
    allocated   and reserved, requested, active: PyTorch's own, from what a hook reports as a Python of the tree ends
                (workloads/program_hook). Of several such processes the highest one's, and no sum

Before the program starts and after it ended there is nothing of it to read: no counter but `used` has a baseline.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runners import processes
from runners.meters import cpu, nvml
from runners.phases import Reading

SAMPLE_EVERY = 0.02  # seconds, or nine times what the last one took of a core: the kernel adds Pss up page by page
DEVICE_EVERY = 0.2  # seconds between questions to the driver
HIGH_WATER_MARK, SAMPLES = "high_water_mark", "samples"


class ProgramMeter:
    """Devices go by their names, and by their UUIDs where they are GPUs. `reports` is the folder the hook writes to."""

    def __init__(self, names: Sequence[str], uuids: Sequence[str], reports: Path) -> None:
        self._names, self._uuids, self._folder = tuple(names), tuple(uuids), reports
        self._lock = threading.Lock()
        self._resident: int | None = None  # the highest since the last boundary
        self._used: dict[str, int] = {}  # likewise, by device
        self._used_by_program: dict[str, int] = {}
        self._next_question = 0.0
        self._reaped = 0
        self.samples = 0
        self.processes = 0  # most at once

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        started = self.processes > 0
        self._sample()
        readings = self.glance()
        for name, used in self._ask_devices().items():
            readings[name].now["used"] = used
        if started:
            self._after_the_end(readings, failed)
        else:
            for reading in readings.values():
                reading.alloc_retries = reading.num_ooms = 0
        with self._lock:
            self._resident, self._used = None, {}
        return readings

    def glance(self) -> Mapping[str, Reading]:
        with self._lock:
            readings = {name: Reading() for name in self._names}
            if self._resident is not None:
                readings[self._names[0]].peak["resident"] = self._resident
            for name, used in self._used.items():
                readings[name].peak["used"] = used
        return readings

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample from a thread of its own, until left."""
        stop = threading.Event()

        def run() -> None:
            pause = 0.0
            while not stop.wait(pause):
                before = time.thread_time()
                self._sample()
                pause = max(SAMPLE_EVERY, 9 * (time.thread_time() - before))
                if self._uuids and time.monotonic() >= self._next_question:
                    self._next_question = time.monotonic() + DEVICE_EVERY
                    self._ask_devices()

        thread = threading.Thread(target=run, name="samples", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5)

    def facts(self) -> dict[str, Any]:
        """How the figures came about, for the phase's metrics."""
        facts: dict[str, Any] = {
            "processes": self.processes or None,
            "resident_told_by": HIGH_WATER_MARK if self.processes <= 1 else SAMPLES,
            "samples": self.samples,
        }
        if self._uuids:
            facts["used_by_program_bytes"] = {name: self._used_by_program.get(name) for name in self._names}
        return facts

    def reports(self) -> list[dict[str, Any]]:
        """What the hook wrote, the first to end first. A file that its process died in is left out."""
        found = []
        for file in self._folder.glob("*.json"):
            with suppress(OSError, ValueError):
                found.append(json.loads(file.read_bytes()))
        return sorted(found, key=lambda report: float(report["t"]))

    def _sample(self) -> None:
        pids = [pid for pid in processes.family_of(os.getpid()) if not processes.borrows_memory(pid)]
        marks = [mark for mark in (cpu.read_status(pid).peak.get("resident") for pid in pids) if mark is not None]
        if not marks:
            return
        held = max(marks)
        if len(marks) > 1:
            held = max(held, sum(cpu.proportional_bytes(pid) or 0 for pid in pids))
        with self._lock:
            self.samples += 1
            self.processes = max(self.processes, len(marks))
            self._resident = max(held, self._resident or 0)

    def _ask_devices(self) -> dict[str, int]:
        """What is used on each device now. Its highest, and the program's own part of it, are kept."""
        now = {}
        ours = set(processes.family_of(os.getpid())) if self._uuids else set()
        for name, uuid in zip(self._names, self._uuids, strict=False):
            used, on_it = nvml.used_bytes(uuid), nvml.others_on(uuid) or []
            by_program = [other.used_bytes for other in on_it if other.pid in ours and other.used_bytes is not None]
            with self._lock:
                if used is not None:
                    now[name] = used
                    self._used[name] = max(used, self._used.get(name, 0))
                if by_program:
                    self._used_by_program[name] = max(sum(by_program), self._used_by_program.get(name, 0))
        return now

    def _after_the_end(self, readings: Mapping[str, Reading], failed: bool) -> None:
        """What is known only then: the mark of the largest process that was reaped, and the hook's reports."""
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        host = readings[self._names[0]]
        if reaped > max(self._reaped, cpu.status_lines().get("VmHWM", 0)):
            host.peak["resident"] = max(reaped, host.peak.get("resident", 0))
        self._reaped = reaped
        reports = self.reports()
        if failed:
            held = [report["failure"].get("resident") for report in reports if report["failure"]]
            host.now |= {"resident": held[-1]} if held and held[-1] is not None else {}
        for index, name in enumerate(self._names):
            of_device = [device for report in reports for device in report["devices"] if self._is(device, index)]
            if not of_device:
                continue
            highest = max(of_device, key=lambda device: int(device["peak"].get("allocated", 0)))
            reading = readings[name]
            reading.peak |= highest["peak"]
            if failed:
                reading.now |= highest["now"]
            reading.alloc_retries, reading.num_ooms = highest["alloc_retries"], highest["num_ooms"]

    def _is(self, device: Mapping[str, Any], index: int) -> bool:
        """Whether what a process reports of a device is of ours: it may have hidden some from itself, or from a child.

        torch has the UUID without the driver's prefix. Where it has none, or ours is not known, the order decides.
        """
        if device["uuid"] is not None and index < len(self._uuids) and self._uuids[index].startswith("GPU-"):
            return self._uuids[index].endswith(str(device["uuid"]))
        return bool(device["index"] == index)
