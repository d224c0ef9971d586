"""Quality next to memory: verdicts, their differences, points that cannot be assessed, and refused comparisons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.point import Point
from sweeper.errors import Mistake
from sweeper.quality import Assessed, Verdict, fixed, verdict
from sweeper.tables import loading
from sweeper.tables.run_tables import Tables
from sweeper.views import decision_sheet, decision_text
from tests import command_line

HOW = {"reference": {"dtype": "float32"}, "tolerance": 0.01, "better": "higher"}
REFERENCE = Assessed(status="ok", quality=0.8)
KEYS: dict[str, Any] = {"reference": {}, "tolerance": None, "better": "higher"}
CHECKPOINT = {"name": "pretrained", "library": "transformers", "path": "somewhere"}


def row(quality: float | None, **changes: Any) -> Assessed:
    known: dict[str, Any] = {"status": "ok", "weights": "checkpoint", "target": "mine:accuracy", "reference": "r"}
    return Assessed(quality=quality, **known | changes)


@pytest.mark.parametrize(
    ("better", "number", "expected", "by"),
    [
        ("higher", 0.795, "same", 0.005),
        ("higher", 0.7, "worse", 0.1),
        ("higher", 0.9, "better", -0.1),
        ("lower", 0.9, "worse", 0.1),
        ("lower", 0.7, "better", -0.1),
    ],
)
def test_a_row_is_the_same_better_or_worse(better: str, number: float, expected: str, by: float) -> None:
    found = verdict(row(number), REFERENCE, HOW | {"better": better})
    assert (found.verdict, found.because) == (expected, None)
    assert found.worse_by == pytest.approx(by)


def test_a_difference_of_the_tolerance_is_the_same() -> None:
    assert verdict(row(0.5), Assessed("ok", 1.0), HOW | {"tolerance": 0.5}).verdict == "same"
    assert verdict(row(1.0), Assessed("ok", 1.0), HOW | {"tolerance": 0.0}).verdict == "same"


@pytest.mark.parametrize(
    ("one", "reference", "how", "because"),
    [
        (row(0.8, weights="random"), REFERENCE, HOW, "random weights"),
        (row(0.8, target=None), REFERENCE, HOW, "no quality.target"),
        (row(None, status="oom"), REFERENCE, HOW, "it ended as oom"),
        (row(None), REFERENCE, HOW, "no number"),
        (row(0.8), REFERENCE, None, "no reference was fixed before it was measured"),
        (row(0.8, reference=None), None, HOW, "no reference was fixed before it was measured"),
        (row(0.8), None, HOW, "its reference is not in the run"),
        (row(0.8), Assessed("oom", None), HOW, "its reference has no number (it ended as oom)"),
    ],
)
def test_a_row_that_cannot_be_assessed_has_a_reason(one: Assessed, reference: Any, how: Any, because: str) -> None:
    assert verdict(one, reference, how) == Verdict("not assessable", None, because)


def test_a_reference_is_fixed_with_its_tolerance() -> None:
    keys = KEYS | {"reference": {"dtype": "float32", "workload": {"method": "full"}}, "tolerance": 1}
    reference = {"dtype": "float32", "workload.method": "full"}
    assert fixed(keys) == {"reference": reference, "tolerance": 1.0, "better": "higher"}
    assert fixed(KEYS) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reference": {"dtype": "float32"}}, "quality.tolerance has no value"),
        ({"tolerance": 0.1}, "quality.tolerance: there is no reference; name one"),
        ({"reference": {"dtype": "float32"}, "tolerance": -1}, "quality.tolerance=-1"),
        ({"reference": {"dtype": "float32"}, "tolerance": float("nan")}, "quality.tolerance=nan"),
        ({"better": "up"}, "quality.better=up"),
    ],
)
def test_an_incomplete_comparison_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(Mistake, match="quality") as mistake:
        fixed(KEYS | keys)
    assert str(mistake.value).startswith(message)


# --- the rows of a run ------------------------------------------------------------------------------------------------


def compared(written: Callable[..., Any], **better: Any) -> tuple[Any, Point, Point]:
    """Two unmeasured points of one checkpoint; the quality of the second is compared with that of the first."""
    run = written({"dtype": ["float32", "bfloat16"]}, objective="tokens", quality=HOW | better)
    values = {"model": CHECKPOINT, "quality": {"target": "mine:accuracy"}}
    points = [Point(values=run.ask(dtype=dtype, **values).values) for dtype in ("float32", "bfloat16")]
    lines = [json.loads(line) for line in (run.folder / "plan.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "asked":
            line["quality_reference"] = points[0].id
    (run.folder / "plan.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run, *points


def verdicts(run: Any) -> list[tuple[Any, ...]]:
    names = ["dtype", "quality", "quality_verdict", "quality_worse_by", "quality_because"]
    return [tuple(row.values()) for row in Tables(run.folder).arrow()["points"].select(names).to_pylist()]


def test_each_row_is_compared_with_the_reference_in_the_plan(written: Callable[..., Any]) -> None:
    run, reference, other = compared(written)
    run.passes(reference, metrics={"quality": 0.75})
    run.passes(other, metrics={"quality": 0.25})
    assert verdicts(run) == [
        ("float32", 0.75, "same", 0.0, None),
        ("bfloat16", 0.25, "worse", 0.5, None),
    ]


def test_a_metric_that_ran_out_of_memory_or_gave_no_number_is_not_assessable(written: Callable[..., Any]) -> None:
    run, reference, other = compared(written)
    run.is_refused(reference)
    run.passes(other, metrics={"quality_error": "the metric is nan"})
    assert verdicts(run) == [
        ("float32", None, "not assessable", None, "it ended as oom"),
        ("bfloat16", None, "not assessable", None, "the metric is nan"),
    ]


def test_the_decision_sheet_has_the_quality_of_a_smaller_peak(written: Callable[..., Any]) -> None:
    run, reference, other = compared(written)
    run.passes(reference, peak=300 * 2**20, metrics={"quality": 0.75})
    run.passes(other, peak=250 * 2**20, metrics={"quality": 0.25})
    text = decision_text.as_text(decision_sheet.decision_sheet(run.folder, loading.read(run.folder)))
    assert (
        "smaller than dtype=float32: cpu dtype=bfloat16 batch=1 context=64: peak_resident_bytes 250.00 MiB against"
        " 300.00 MiB; quality worse by 0.5 (0.25 against 0.75)"
    ) in text


def test_the_decision_sheet_counts_what_was_not_assessed(written: Callable[..., Any]) -> None:
    run = written({"batch": [1, 2]})
    for batch in (1, 2):
        run.passes(run.ask(batch=batch))
    said = "quality: no verdict for 2 points that passed: no quality.target"
    assert said in decision_sheet.decision_sheet(run.folder, loading.read(run.folder))["assumed"]


# --- a sweep ----------------------------------------------------------------------------------------------------------

METRIC = """
def spread(module, device, dtype):
    import torch

    kept = torch.ones(64, 2**18)  # 64 MiB: many times what the workload takes
    return sum(parameter.float().pow(2).sum().item() for parameter in module.parameters())

def lacks(module, dataset):
    return 1.0
"""


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(METRIC)
    small = ["model=mlp", "model.width=8", "context=4", "devices=cpu", "parallel=true", "start=warm", "name=run"]
    return command_line.run([*small, *arguments], folder)


def test_a_metric_is_called_after_the_measurement_and_is_in_no_peak(tmp_path: Path) -> None:
    how = ["quality.target=mine:spread", "quality.reference.dtype=half", "quality.tolerance=0.1"]
    done = sweep(tmp_path, "dtype=float32,float16", *how)
    assert done.returncode == 0, done.stderr
    found = Tables(tmp_path / "outputs" / "run").arrow()
    points, phases = found["points"].to_pylist(), found["phases"].to_pylist()
    assert [point["quality_because"] for point in points] == ["random weights"] * 2
    assert all(point["quality"] > 0 and point["peak_phase"] != "quality" for point in points)
    assert len({point["quality_reference"] for point in points}) == 1
    for point in points:
        named = [phase for phase in phases if phase["point_id"] == point["point_id"] and phase["phase"] != "between"]
        assert named[-1]["phase"] == "quality"
        assert named[-1]["peak_tensor_bytes"] >= 64 * 2**20 > point["peak_tensor_bytes"]
    again = sweep(tmp_path, "dtype=float32,float16", *how[:2], "quality.tolerance=0.5")
    assert again.returncode == 2
    assert "name=run: the run compares quality as its first sweep fixed it" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("quality.target=mine:spread quality.reference.dtype=half quality.tolerance=0", "no such point is in"),
        ("quality.reference.dtype=float32 quality.tolerance=0", "there is no quality to compare"),
        ("quality.target=mine:lacks", "quality.target=mine:lacks: needs dataset"),
        ("quality.target=mine:nothing", "quality.target=mine:nothing: mine has no nothing"),
        ("quality.target=mine:spread phases=whole", "phases=whole"),
        ("quality.tolerance=1,2", "quality.tolerance takes one value"),
    ],
)
def test_an_impossible_comparison_is_refused_before_anything_starts(
    tmp_path: Path, arguments: str, message: str
) -> None:
    done = sweep(tmp_path, *arguments.split())
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr
    assert not (tmp_path / "outputs").exists()
