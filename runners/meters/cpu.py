"""Host memory of this process as the kernel counts it: resident memory, its high-water mark, and the address space.

Definitions (proc(5), and the kernel's fs/proc/task_mmu.c):

    resident       VmRSS now; peak VmHWM, which writing 5 to /proc/self/clear_refs sets back to VmRSS
    resident_anon  RssAnon; resident_file RssFile + RssShmem: no high-water mark of their own
    address        VmData now, what RLIMIT_DATA limits; peak VmPeak, of the whole process: it cannot be reset
    virtual        VmSize now, what RLIMIT_AS limits
    mapped         VmSize less VmData: files, and reserved addresses
    data_and_shared  VmData + RssShmem. RLIMIT_DATA does not limit shared memory (shared mmap, /dev/shm)

A reading has the highest values of `mapped` and `data_and_shared` since the last boundary, with those of heartbeats.

Never ru_maxrss: a child starts at its parent's peak (a 13 MiB child of a 600 MiB parent shows 613 MiB).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from runners import cgroups, facts, processes
from runners.journal import HIGH
from runners.phases import Reading
from runners.refusals import RefusalCount
from runners.threads import Threads

KIB = 1024
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = b"5"
SAMPLED = ("mapped", "data_and_shared")
NO_ACCESS = 0  # PROT_NONE, mmap(2)
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
NEVER_OVERCOMMIT = "2"
LARGEST_STATUS_BYTES = 2**16

# The workload may replace them.
open_, open_descriptor, fstat, pread, write, close = open, os.open, os.fstat, os.pread, os.write, os.close


class CpuMeter:
    """Reads the memory of this process.

    `tensors` has the bytes of live tensors, if they are tracked. `threads` has the refusals that ended threads, if
    those of this device are counted.
    """

    def __init__(self, device: str = "cpu", tensors: TensorBytes | None = None, threads: Threads | None = None) -> None:
        self.device = device
        self._tensors, self._threads = tensors, threads
        self._status = _KeptOpen(STATUS, os.O_RDONLY)
        self._clear_refs = _KeptOpen(CLEAR_REFS, os.O_WRONLY)
        self.resets = self._reset()  # False where the kernel refuses: peaks are then the process's, not the phase's
        self._was_reset = self.resets  # at the last boundary
        self._held: int | None = None  # resident at the last boundary
        self._most = dict.fromkeys(SAMPLED, 0)  # since the last boundary

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        if self._tensors is not None:
            self._tensors.settle()
        reading = self._read()
        for counter in reading.now.keys() & SAMPLED:
            now, most = reading.now[counter], self._most[counter]
            reading.now[counter], self._most[counter] = max(now, most), now
        self._held = reading.now.get("resident")
        if self._held is not None:  # else the mark is still to be read: the next reading has it
            self._was_reset = self.resets and self._reset()
        reading.refusals, reading.refused_bytes = self._take_refusals()
        if self._tensors is not None:
            reading.refused = self._tensors.take_refused()
            self._tensors.start_new_peak()
        return {self.device: reading}

    def _take_refusals(self) -> tuple[int | None, int | None]:
        """The refusals since the last boundary and the largest; none are 0 only if none could have been missed."""
        counts = [each.refusals.take() for each in (self._tensors, self._threads) if each is not None]
        known = sum(count for count, _ in counts)
        is_observed = self._tensors is not None and self._tensors.valid
        largest = max((size for _, size in counts if size is not None), default=None)
        return known if known or is_observed else None, largest

    def glance(self) -> Mapping[str, Reading]:
        reading = self._read()
        self._most = {counter: max(most, reading.now.get(counter, 0)) for counter, most in self._most.items()}
        return {self.device: reading}

    def _read(self) -> Reading:
        reading = read_status("self", self._status)
        if not self._was_reset:  # it is not the peak of a phase
            reading.peak.pop("resident", None)
        elif self._held is not None and "resident" in reading.peak:
            # Linux 6.2 and later count pages for each processor, in batches of 32 (include/linux/percpu_counter.h).
            # VmRSS is their exact sum in some versions, and the mark is set from the approximate one
            # (reset_mm_hiwater_rss): up to 340 KiB lower in a trial with two processors. What was held at the boundary
            # was held in this stretch too.
            reading.peak["resident"] = max(reading.peak["resident"], self._held)
        if self._tensors is not None and self._tensors.valid:
            reading.now["tensor"], reading.peak["tensor"] = self._tensors.live, self._tensors.peak
        return reading

    def _reset(self) -> bool:
        if sys.platform != "linux":
            return False
        try:
            write(self._clear_refs.descriptor(), RESET_HIGH_WATER_MARK)
        except OSError:
            return False
        return True


class _KeptOpen:
    """A file of /proc/self that stays open: a workload may use up all descriptors, change its root or hide /proc.

    A fork of this process would read or reset this process with it.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._path, self._flags = path, flags | os.O_CLOEXEC
        self._descriptor, self._identity = -1, (0, 0)
        with contextlib.suppress(OSError):
            self._open()

    def descriptor(self) -> int:
        """The descriptor, opened again if the workload closed it. Raises OSError."""
        try:
            if _identity(self._descriptor) == self._identity:
                return self._descriptor
        except OSError:
            pass
        self._open()
        return self._descriptor

    def _open(self) -> None:
        low = open_descriptor(self._path, self._flags)
        try:
            self._descriptor = processes.duplicate(low, HIGH)
        except OSError:  # it was the last one
            self._descriptor = low
        else:
            close(low)
        self._identity = _identity(self._descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    found = fstat(descriptor)
    return found.st_dev, found.st_ino


class TensorBytes:
    """The bytes of live tensors: now, and the most since the last boundary."""

    live = 0
    peak = 0

    def __init__(self) -> None:
        self.refusals = RefusalCount()  # of tensors
        self._refused: facts.Refused | None = None

    def was_refused(self, error: BaseException) -> None:
        """Count an exception of an operator if it is a refused allocation, and record what was live at the first.

        What was live and the request must fit at once. After a refusal that it handled, a workload may hold what it
        would not have held without it.
        """
        refusal = self.refusals.see(error)
        if refusal is not None and refusal.requested_bytes is not None and self.refusals.count == 1 and self.valid:
            self.settle()
            requested, held = refusal.requested_bytes, self.live
            self._refused = facts.Refused(requested, {"tensor": held}, held + requested)

    def take_refused(self) -> facts.Refused | None:
        """The first refusal, if it came after the last call."""
        refused, self._refused = self._refused, None
        return refused

    @property
    def valid(self) -> bool:
        """False once something ran that cannot be tracked: the counter is then absent rather than too small."""
        return True

    def settle(self) -> None:
        """Subtract what died since the last operator."""

    def start_new_peak(self) -> None:
        self.peak = self.live


def read_status(pid: int | str = "self", kept: _KeptOpen | None = None) -> Reading:
    """The memory lines of /proc/PID/status in bytes, or an empty reading where there is none (macOS, a zombie).

    `kept` is the file, if it is open already.
    """
    lines = status_lines(pid, kept)
    now, peak = {}, {}
    if "VmRSS" in lines:
        now["resident"] = lines["VmRSS"]
        now["resident_anon"] = lines["RssAnon"]
        now["resident_file"] = lines["RssFile"] + lines.get("RssShmem", 0)
        now["address"] = lines["VmData"]
        now["virtual"] = lines["VmSize"]
        now["mapped"] = lines["VmSize"] - lines["VmData"]
        now["data_and_shared"] = lines["VmData"] + lines.get("RssShmem", 0)
        peak["resident"] = lines["VmHWM"]
        peak["address"] = lines["VmPeak"]
    return Reading(now=now, peak=peak)


def reserve_to_the_mark() -> mmap.mmap | None:
    """Reserve address space up to the high-water mark VmPeak, so that the mark shows all that is added from now on.

    It cannot be reset, and threads leave it far above: glibc reserves 128 MiB for an arena to keep 64 of them aligned
    (malloc/arena.c, alloc_new_heap). The reservation cannot be accessed: it is neither data nor resident. None where
    RLIMIT_AS would count it.
    """
    lines = status_lines()
    gap = lines.get("VmPeak", 0) - lines.get("VmSize", 0)
    if gap <= 0 or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return None
    return mmap.mmap(-1, gap, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=NO_ACCESS)


def status_lines(pid: int | str = "self", kept: _KeptOpen | None = None) -> dict[str, int]:
    """The lines of /proc/PID/status that are in kB, in bytes; none if the process is gone."""
    try:
        if kept is not None:
            text = pread(kept.descriptor(), LARGEST_STATUS_BYTES, 0)
        else:
            with open_(STATUS if pid == "self" else f"/proc/{pid}/status", "rb", buffering=0) as file:
                text = file.read()
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
    """The bytes available to new allocations: the machine's, or less if a memory cgroup allows less."""
    found = (machine_available_bytes(), cgroup_available_bytes())
    return min((each for each in found if each is not None), default=None)


def machine_available_bytes() -> int | None:
    """MemAvailable, or less if the kernel promises no more than it can keep (vm.overcommit_memory=2)."""
    available = _meminfo("MemAvailable")
    with contextlib.suppress(OSError):
        if OVERCOMMIT.read_text().strip() == NEVER_OVERCOMMIT and available is not None:
            limit, promised = _meminfo("CommitLimit"), _meminfo("Committed_AS")
            return available if limit is None or promised is None else min(available, max(0, limit - promised))
    return available


def cgroup_available_bytes() -> int | None:
    """What the memory cgroups leave, or None without a limit."""
    return min((max(0, limit - usage) for limit, usage in cgroups.limits()), default=None)


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


def name() -> str | None:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
