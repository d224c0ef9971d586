"""Host memory of this process as the kernel counts it: resident memory, its high-water mark, and the address space.

Definitions (proc(5), and the kernel's fs/proc/task_mmu.c):

    resident       VmRSS now; peak VmHWM, which writing 5 to /proc/self/clear_refs sets back to VmRSS
    resident_anon  RssAnon; resident_file RssFile + RssShmem: no high-water mark of their own
    address        VmData now, what RLIMIT_DATA limits; peak VmPeak, of the whole process: it cannot be reset

Never ru_maxrss: a child starts at its parent's peak (a 13 MiB child of a 600 MiB parent shows 613 MiB).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from runners import cgroups
from runners.phases import Reading
from runners.refusals import RefusalCount

KIB = 1024
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = b"5"


class CpuMeter:
    """Reads the memory of this process. `tensors` has the bytes of live tensors, if they are tracked."""

    def __init__(self, device: str = "cpu", tensors: TensorBytes | None = None) -> None:
        self.device = device
        self._tensors = tensors
        self.resets = _reset()  # False where the kernel refuses: peaks are then the process's, not the phase's

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        if self._tensors is not None:
            self._tensors.settle()
        reading = self._read()
        if self.resets:
            _reset()
        if self._tensors is not None:
            refused = self._tensors.refusals
            reading.refusals = refused.count if self._tensors.valid or refused.count else None
            reading.refused_bytes = refused.take_largest()
            self._tensors.start_new_peak()
        return {self.device: reading}

    def glance(self) -> Mapping[str, Reading]:
        return {self.device: self._read()}

    def _read(self) -> Reading:
        reading = read_status()
        if not self.resets:  # it is not the peak of a phase
            reading.peak.pop("resident", None)
        if self._tensors is not None and self._tensors.valid:
            reading.now["tensor"], reading.peak["tensor"] = self._tensors.live, self._tensors.peak
        return reading


class TensorBytes:
    """The bytes of live tensors: now, and the most since the last boundary."""

    live = 0
    peak = 0

    def __init__(self) -> None:
        self.refusals = RefusalCount()  # of tensors

    @property
    def valid(self) -> bool:
        """False once something ran that cannot be tracked: the counter is then absent rather than too small."""
        return True

    def settle(self) -> None:
        """Subtract what died since the last operator. Only the measured thread may call it."""

    def start_new_peak(self) -> None:
        self.peak = self.live


def read_status(pid: int | str = "self") -> Reading:
    """The memory lines of /proc/PID/status in bytes, or an empty reading where there is none (macOS, a zombie)."""
    lines = status_lines(pid)
    now, peak = {}, {}
    if "VmRSS" in lines:
        now["resident"] = lines["VmRSS"]
        now["resident_anon"] = lines["RssAnon"]
        now["resident_file"] = lines["RssFile"] + lines.get("RssShmem", 0)
        now["address"] = lines["VmData"]
        peak["resident"] = lines["VmHWM"]
        peak["address"] = lines["VmPeak"]
    return Reading(now=now, peak=peak)


def status_lines(pid: int | str = "self") -> dict[str, int]:
    """The lines of /proc/PID/status that are in kB, in bytes; none if the process is gone."""
    try:
        text = STATUS.read_bytes() if pid == "self" else Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return {}
    lines = {}
    for line in text.splitlines():
        if line.endswith(b" kB"):
            name, _, value = line[:-3].partition(b":")
            lines[name.decode()] = int(value) * KIB
    return lines


def proportional_bytes(pid: int) -> int | None:
    """Pss in bytes: the resident pages of a process, each divided by how many processes map it. None if it is gone.

    The kernel adds it up page by page: 0.3-0.8 ms for a Python process with torch, more with more memory.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:")), None)


def available_memory_bytes() -> int | None:
    """The bytes available to new allocations: MemAvailable, or less if a memory cgroup allows less."""
    available = _meminfo("MemAvailable")
    if available is None:
        return None
    return min([available, *(max(0, limit - usage) for limit, usage in cgroups.limits())])


def total_memory_bytes() -> int | None:
    """The memory of the cpu device in bytes: the machine's, or less if a memory cgroup allows less."""
    total = _meminfo("MemTotal")
    if total is None:
        return None
    return min([total, *(limit for limit, _ in cgroups.limits())])


def _meminfo(field: str) -> int | None:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields[field].split()[0]) * KIB
    except (OSError, KeyError, ValueError):
        return None


def guard_reserve_bytes(available: int) -> int:
    """The bytes that a cpu attempt without a budget leaves free: a refusal then ends it, not the OOM killer."""
    return max(512 * 2**20, available // 50)


def _reset() -> bool:
    if sys.platform != "linux":
        return False
    try:
        descriptor = os.open(CLEAR_REFS, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, RESET_HIGH_WATER_MARK)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def name() -> str | None:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
