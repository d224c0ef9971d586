"""The kernel's counters of this process, compared with what proc(5) defines."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runners.meters import cpu

ROOT = Path(__file__).parents[3]
MIB = 2**20


def test_a_peak_is_since_the_last_boundary() -> None:
    meter = cpu.CpuMeter()
    if not meter.resets:
        pytest.skip("this kernel does not reset the high-water mark")
    meter.boundary()
    bytearray(b"x" * (200 * MIB))
    first = meter.boundary()["cpu"]
    second = meter.boundary()["cpu"]
    assert first.peak["resident"] >= first.now["resident"] + 190 * MIB
    assert second.peak["resident"] < second.now["resident"] + 10 * MIB


def test_resident_memory_is_the_sum_of_file_and_anonymous_pages() -> None:
    reading = cpu.CpuMeter().boundary()["cpu"].now
    assert abs(reading["resident"] - reading["resident_anon"] - reading["resident_file"]) < MIB
    assert all(isinstance(value, int) and value % 1024 == 0 for value in reading.values())


def test_a_kernel_that_refuses_the_reset_gets_no_peak_per_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CLEAR_REFS", cpu.Path("/proc/self/no-such-file"))
    meter = cpu.CpuMeter()
    assert not meter.resets
    assert "resident" not in meter.boundary()["cpu"].peak


def test_a_peak_is_never_below_what_was_held_at_the_boundary_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel sets the mark from counts of pages that lag for each processor, and VmRSS may be their exact sum."""
    lines = {"VmRSS": 400, "RssAnon": 300, "RssFile": 100, "VmData": 500, "VmSize": 900, "VmPeak": 900, "VmHWM": 400}
    monkeypatch.setattr(cpu, "status_lines", lambda *_: {name: 1024 * kib for name, kib in lines.items()})
    meter = cpu.CpuMeter()
    if not meter.resets:
        pytest.skip("this kernel does not reset the high-water mark")
    held = meter.boundary()["cpu"].now["resident"]
    lines |= {"VmRSS": 380, "VmHWM": 390}  # some pages were given back, and the mark had been set too low
    assert meter.glance()["cpu"].peak["resident"] == held
    assert meter.boundary()["cpu"].peak["resident"] == held == 400 * 1024
    assert meter.boundary()["cpu"].peak["resident"] == 390 * 1024


def test_pages_that_are_given_back_leave_the_peak_at_what_was_held() -> None:
    """Pages that threads on two processors touched, which the kernel's approximate count has only in part."""
    meter = cpu.CpuMeter()
    if not meter.resets:
        pytest.skip("this kernel does not reset the high-water mark")
    processors = sorted(os.sched_getaffinity(0))[:2]

    def touch(processor: int, pages: int) -> None:
        os.sched_setaffinity(0, {processor})  # of this thread
        taken.append(mmap.mmap(-1, pages * mmap.PAGESIZE))
        for page in range(pages):
            taken[-1][page * mmap.PAGESIZE] = 1

    for pages in range(16, 64):
        taken: list[mmap.mmap] = []
        threads = [threading.Thread(target=touch, args=(processor, pages)) for processor in processors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = meter.boundary()["cpu"].now["resident"]
        for each in taken:
            each.close()
        assert meter.boundary()["cpu"].peak["resident"] >= held


def test_a_mark_of_the_address_space_that_is_reached_shows_what_is_added_from_then_on() -> None:
    """In a process of its own, since the reservation changes what this one has left."""
    added = subprocess.run(
        [sys.executable, "-c", ADDED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert added == ["64", "0", "16"], "in MiB: the gap, what is added by nothing, and by 16 MiB"


ADDED = """
import mmap
from runners.meters import cpu

MIB = 2**20
def gap(): return (lambda lines: lines["VmPeak"] - lines["VmSize"])(cpu.status_lines())
taken = mmap.mmap(-1, gap() + 64 * MIB)
taken.close()
print(round(gap() / MIB))
reserved = cpu.reserve_to_the_mark()
began = cpu.status_lines()
print(gap())
taken = mmap.mmap(-1, 16 * MIB)
taken.close()
print(round((cpu.status_lines()["VmPeak"] - began["VmSize"]) / MIB))
assert abs(cpu.status_lines()["VmData"] - began["VmData"]) < MIB
"""


def test_a_kernel_that_never_overcommits_leaves_no_more_than_it_can_promise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mode = tmp_path / "overcommit_memory"
    monkeypatch.setattr(cpu, "OVERCOMMIT", mode)
    fields = {"MemAvailable": 8000, "CommitLimit": 6000, "Committed_AS": 5000}
    monkeypatch.setattr(cpu, "_meminfo", fields.get)
    mode.write_text("0\n")
    assert cpu.machine_available_bytes() == 8000
    mode.write_text("2\n")
    assert cpu.machine_available_bytes() == 1000


def test_the_counters_are_read_and_reset_without_a_free_descriptor_and_after_theirs_were_closed(tmp_path: Path) -> None:
    script = (
        "import os, resource, sys\n"
        "from runners.meters import cpu\n"
        "meter = cpu.CpuMeter()\n"
        "meter.boundary()\n"
        "if sys.argv[1] == 'closed': os.closerange(3, 4096)\n"
        "else: resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n"
        "bytearray(b'x' * (200 << 20))\n"
        "first, second = (meter.boundary()['cpu'] for _ in range(2))\n"
        "high, low = first.peak['resident'], second.peak['resident']\n"
        "print((high - first.now['resident']) >> 20, low < high)\n"
    )
    for how in ("closed", "used up"):
        command = [sys.executable, "-c", script, how]
        rise, was_reset = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert int(rise) >= 190
        assert was_reset == "True"


def test_a_process_that_is_gone_has_no_reading() -> None:
    assert cpu.read_status(2**22 + 1) == cpu.Reading()


def test_available_memory_is_within_the_machine() -> None:
    available, total = cpu.available_memory_bytes(), cpu.total_memory_bytes()
    assert available is not None
    assert total is not None
    assert 0 < available < total
