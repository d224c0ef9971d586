"""Memory of a program that this process starts, and of every process that the program starts: its tree.

    resident    One process: its high-water mark, VmHWM as the kernel keeps it. It is sampled while the process runs,
                and exact to the page once the process is reaped (ru_maxrss), unless it is below this process's own
                mark, from which the ru_maxrss of a child starts: then the last sample before the end stands, a lower
                bound.
                Several at once: the highest sum of their Pss (proc(5), smaps_rollup) in any sample, in which shared
                pages count once. Peaks between two samples are not seen. The peak is the higher of the two.
    used        Used memory of a device according to NVML, of all processes; the peak is the highest sample.
    allocated   and reserved, requested, active: PyTorch's own counters, from what a hook reports when a Python process
                of the tree ends (workloads/program_hook). The highest of several such processes counts, not the sum.

Nothing can be read of a program before it starts and after it ends: only `used` has a baseline.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from runners import facts, processes, stored_json
from runners.field_types import check_fields
from runners.meters import cpu, nvml
from runners.phases import Reading
from runners.stored_json import Damaged

# Seconds between samples: at most a tenth of the time since the start, so that the last sample of a short program comes
# shortly before its end, and at least nine times the core time of the last one: the kernel adds up Pss page by page.
SAMPLE_EVERY = 0.02
LARGEST_REPORT_BYTES = 2**21  # 20 exceptions with messages of 10,000 characters, as JSON, and a traceback
DEVICE_EVERY = 0.2  # seconds between readings of the driver
HIGH_WATER_MARK, SAMPLES = "high_water_mark", "samples"


class ProgramMeter:
    """Samples a program's tree and its devices, given by name and, for GPUs, by UUID. `reports`: the hook's folder."""

    def __init__(self, names: Sequence[str], uuids: Sequence[str], reports: Path) -> None:
        self._names, self._uuids, self._folder = tuple(names), tuple(uuids), reports
        self._lock = threading.Lock()
        self._resident: int | None = None  # the highest since the last boundary
        self._used: dict[str, int] = {}  # the same, by device
        self._used_by_program: dict[str, int] = {}
        self._next_device_reading = 0.0
        self._started = False  # a program that ends at once is in no sample
        self._reaped = 0
        self._ooms = 0  # at the last boundary
        self.samples = 0
        self.processes = 0  # the most at once

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        self._sample()
        readings = self.glance()
        for name, used in self._read_devices().items():
            readings[name].now["used"] = used
        if self._started:
            self._after_the_end(readings, failed)
        else:
            for reading in readings.values():
                reading.alloc_retries = reading.num_ooms = reading.refusals = 0
        with self._lock:
            self._resident = None
            self._used = {name: reading.now["used"] for name, reading in readings.items() if "used" in reading.now}
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
        """Sample from a thread until the context is left, which the program runs in."""
        self._started = True
        stop = threading.Event()

        def run() -> None:
            pause, started = 0.0, time.monotonic()
            while not stop.wait(pause):
                before = time.thread_time()
                self._sample()
                pause = min(SAMPLE_EVERY, (time.monotonic() - started) / 10)
                pause = max(pause, 9 * (time.thread_time() - before))
                if self._uuids and time.monotonic() >= self._next_device_reading:
                    self._next_device_reading = time.monotonic() + DEVICE_EVERY
                    self._read_devices()

        thread = threading.Thread(target=run, name="samples", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5)

    def facts(self) -> dict[str, Any]:
        """Where the figures come from, for the phase's metrics."""
        facts: dict[str, Any] = {
            "processes": self.processes or None,
            "resident_told_by": HIGH_WATER_MARK if self.processes <= 1 and self._reaped_mark() else SAMPLES,
            "samples": self.samples,
        }
        if self._uuids:
            facts["used_by_program_bytes"] = {name: self._used_by_program.get(name) for name in self._names}
        return facts

    def reports(self) -> list[dict[str, Any]]:
        """The hook's reports, in the order in which their processes ended, without those that are damaged or larger
        than the hook writes them."""
        found = []
        for file in self._folder.glob("*.json"):
            with suppress(OSError, Damaged, ValueError, KeyError, TypeError, AttributeError, OverflowError):
                report = stored_json.parsed(stored_json.content_of(file, LARGEST_REPORT_BYTES))
                check_fields(facts.report(report))
                found.append((float(report["t"]), report))
        return [report for _, report in sorted(found, key=itemgetter(0))]

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

    def _read_devices(self) -> dict[str, int]:
        """The bytes used on each device now. Keeps the highest, and the program's own part of it."""
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
        """Add what is known only after the end: the mark of the largest reaped process, and the hook's reports."""
        host = readings[self._names[0]]
        if (reaped := self._reaped_mark()) is not None:
            host.peak["resident"] = max(reaped, host.peak.get("resident", 0))
            self._reaped = reaped
        reports = self.reports()
        if failed:
            held = [report["failure"].get("resident") for report in reports if report["failure"]]
            host.now |= {"resident": held[-1]} if held and held[-1] is not None else {}
        # A program's exceptions are not seen, so this includes what libraries handle themselves.
        ooms = [device["num_ooms"] for report in reports for device in report["devices"]]
        if ooms and None not in ooms:
            host.refusals, self._ooms = sum(ooms) - self._ooms, sum(ooms)
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

    def _reaped_mark(self) -> int | None:
        """The high-water mark of the largest process reaped since the last boundary; None where it is not known."""
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return reaped if reaped > max(self._reaped, cpu.status_lines().get("VmHWM", 0)) else None

    def _is(self, device: Mapping[str, Any], index: int) -> bool:
        """Whether a device in a process's report is the one at `index`; the program may hide devices from itself.

        torch has the UUID without the driver's prefix. Where either UUID is missing, the order decides.
        """
        if device["uuid"] is not None and index < len(self._uuids) and self._uuids[index].startswith("GPU-"):
            return self._uuids[index].endswith(str(device["uuid"]))
        return bool(device["index"] == index)
