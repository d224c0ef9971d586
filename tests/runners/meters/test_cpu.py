"""The kernel's counters of this process, compared with what proc(5) defines."""

from __future__ import annotations

import pytest

from runners.meters import cpu

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


def test_a_process_that_is_gone_has_no_reading() -> None:
    assert cpu.read_status(2**22 + 1) == cpu.Reading()


def test_available_memory_is_within_the_machine() -> None:
    available, total = cpu.available_memory_bytes(), cpu.total_memory_bytes()
    assert available is not None
    assert total is not None
    assert 0 < available < total
