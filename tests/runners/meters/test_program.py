"""What is known of a measured program only after its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.meters import program
from runners.meters.program import ProgramMeter

MIB = 2**20


def report(pid: int, **device: Any) -> dict[str, Any]:
    found = {"index": 0, "uuid": None, "now": {}, "peak": {"allocated": 64 * MIB}, "alloc_retries": 1, "num_ooms": 2}
    return {"pid": pid, "t": 1.0, "failure": None, "torch": "2.13.0", "devices": [found | device]}


def test_the_reports_of_a_program_that_ended_before_any_sample_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that ends within milliseconds, while the machine is busy, is in no sample."""
    monkeypatch.setattr(program.processes, "family_of", lambda pid: ())
    meter = ProgramMeter(("cuda:0",), (), tmp_path)
    before = meter.boundary()["cuda:0"]
    assert (before.peak, before.num_ooms, before.refusals) == ({}, 0, 0)
    with meter.sampling():
        (tmp_path / "7.json").write_text(json.dumps(report(7)))
    after = meter.boundary()["cuda:0"]
    assert meter.facts()["processes"] is None
    assert (after.peak["allocated"], after.alloc_retries, after.num_ooms, after.refusals) == (64 * MIB, 1, 2, 2)


@pytest.mark.parametrize(
    "damaged",
    [b"", b"[]", b"\xff", b"[" * 100_000, b'{"pid": "7", "t": 1.0, "devices": []}', b'{"pid": 7, "devices": []}'],
    ids=["empty", "list", "bytes", "deep", "type", "no time"],
)
def test_a_report_that_is_damaged_hides_no_other(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "1.json").write_bytes(damaged)
    (tmp_path / "7.json").write_text(json.dumps(report(7)))
    (tmp_path / "8.json").mkdir()
    assert [each["pid"] for each in ProgramMeter(("cuda:0",), (), tmp_path).reports()] == [7]
