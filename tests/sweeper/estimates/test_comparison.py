"""The figures of a point side by side, and the differences that are errors."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runners.device import CALCULATED, MEASURED
from sweeper.estimates.comparison import ESTIMATED, NEEDS, PointComparison, comparisons
from tests import command_line

MODEL = {"name": "mlp", "library": "torch", "width": 1000}
WEIGHTS = 4 * 2 * (1000 * 1000 + 1000)


def row(device: str, status: str = "ok", point: str = "a", **known: Any) -> dict[str, Any]:
    config = {"model": MODEL, "workload": {"name": "forward"}, "dtype": "float32", "batch": 1, "context": 8}
    kind = CALCULATED if device.startswith("sim:") else MEASURED
    columns = {"point_id": point, "device": device, "kind": kind, "status": status, "config": json.dumps(config)}
    peaks = {f"peak_{name}_bytes": known.pop(name) for name in tuple(known) if "_" not in name}
    fits = {"ok": True, "oom": False}.get(status)
    return {**dict.fromkeys(NEEDS), **columns, "fits": fits, **peaks, **known}


def errors(found: PointComparison) -> dict[tuple[str, str | None, str | None, str], int]:
    return {(e.of.kind, e.of.device, e.measured.device, e.measured.counter): e.bytes for e in found.errors}


def one(*rows: dict[str, Any]) -> PointComparison:
    (found,) = comparisons(rows)
    return found


def test_every_figure_has_one_kind() -> None:
    found = one(row("cpu", tensor=10_000_000, resident=90_000_000), row("sim:cpu", tensor=9_000_000))
    assert [(figure.kind, figure.device, figure.counter, figure.bytes) for figure in found.figures] == [
        (ESTIMATED, None, "terms in forward", WEIGHTS),
        (CALCULATED, "sim:cpu", "tensor", 9_000_000),
        (MEASURED, "cpu", "tensor", 10_000_000),
        (MEASURED, "cpu", "resident", 90_000_000),
    ]


def test_only_figures_that_count_the_same_bytes_have_an_error() -> None:
    found = one(
        row("cpu", tensor=10_000_000, resident=90_000_000),
        row("cuda:0", requested=10_100_000, allocated=10_200_000, reserved=20_000_000, used=500_000_000),
        row("sim:cpu", tensor=9_000_000),
        row("sim:a", requested=10_100_000, allocated=10_300_000, reserved=22_000_000, used=600_000_000),
    )
    assert errors(found) == {
        (ESTIMATED, None, "cpu", "tensor"): WEIGHTS - 10_000_000,
        (ESTIMATED, None, "cuda:0", "requested"): WEIGHTS - 10_100_000,
        (CALCULATED, "sim:cpu", "cpu", "tensor"): -1_000_000,
        (CALCULATED, "sim:a", "cuda:0", "requested"): 0,
        (CALCULATED, "sim:a", "cuda:0", "allocated"): 100_000,
        (CALCULATED, "sim:a", "cuda:0", "reserved"): 2_000_000,
    }


@pytest.mark.parametrize(
    ("calculated", "measured", "hundredths"), [(101, 100, 100), (99, 100, -100), (2, 3, -3333), (10_000, 10_001, -1)]
)
def test_an_error_is_a_signed_share_of_the_measured_bytes(calculated: int, measured: int, hundredths: int) -> None:
    found = one(row("cpu", tensor=measured), row("sim:cpu", tensor=calculated))
    (error,) = (error for error in found.errors if error.of.kind == CALCULATED)
    assert error.hundredths_of_percent == hundredths


def test_a_refused_calculated_point_is_compared_by_its_unlimited_peak() -> None:
    refused = row("sim:a", "oom", allocated=5_000_000, reserved=6_000_000, unlimited_peak_bytes=12_000_000)
    found = one(row("cuda:0", allocated=11_000_000), {**refused, "peak_is_partial": True})
    assert errors(found) == {(CALCULATED, "sim:a", "cuda:0", "allocated"): 1_000_000}
    notes = {figure.counter: figure.note for figure in found.figures if figure.kind == CALCULATED}
    assert "unlimited" in str(notes["allocated"])
    assert "partial" in str(notes["reserved"])


def test_an_attempt_that_did_not_finish_is_shown_and_not_compared() -> None:
    found = one(row("cpu", "oom", tensor=10_000_000, peak_is_partial=True), row("sim:cpu", tensor=9_000_000))
    assert found.errors == ()
    assert [figure.bytes for figure in found.figures if figure.kind == MEASURED] == [10_000_000]


def test_a_device_without_figures_has_its_status() -> None:
    assert one(row("cpu", tensor=1), row("cuda:0", "unavailable")).without_figures == {"cuda:0": "unavailable"}


def test_points_are_never_mixed() -> None:
    found = list(
        comparisons([row("cpu", tensor=5), row("sim:cpu", point="b", tensor=4), row("cpu", point="b", tensor=3)])
    )
    assert [each.point_id for each in found] == ["a", "b"]
    assert [len(each.errors) for each in found] == [1, 2]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return command_line.run(arguments, cwd)


def test_a_run_is_shown_with_all_three_kinds_and_calculated_tensors_are_the_measured_ones(tmp_path: Path) -> None:
    words = ("model=mlp", "workload=train", "context=64", "devices=[cpu,sim:cpu]", "start=warm", "name=mine")
    assert run(*words, cwd=tmp_path).returncode == 0
    found = json.loads(run("estimate", "outputs/mine", "--json", cwd=tmp_path).stdout)
    (point,) = found["points"]
    by_kind = {(error["of"], error["counter"]): error for error in point["errors"]}
    assert set(by_kind) == {("estimate", "tensor"), ("calculated", "tensor")}
    assert by_kind["calculated", "tensor"]["bytes"] == 0
    assert -25 < by_kind["estimate", "tensor"]["percent"] < 0  # an mlp has tensors that no term counts
    printed = run("estimate", "outputs/mine", cwd=tmp_path).stdout
    for said in ("estimate ", "calculated  sim:cpu", "measured    cpu", "of cpu tensor", "never added, never averaged"):
        assert said in printed


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["nosuch"], "nosuch: no such folder"),
        (["one", "two"], "estimate takes keys or one run"),
        (["outputs/mine", "batch=1"], "estimate takes keys or one run"),
    ],
)
def test_an_argument_that_is_no_run_is_refused_in_one_line(typed: list[str], said: str, tmp_path: Path) -> None:
    done = run("estimate", *typed, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"sweeper: {said}")
    assert done.stderr.count("\n") == 1
