"""The lines of plan.jsonl: what is written is read again, and what cannot be read is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sweeper
from runners.point import Point
from sweeper.interval import Interval
from sweeper.plan import Dimension
from sweeper.plan_lines import (
    PARSERS,
    PLAN,
    DeviceLine,
    EndedLine,
    NeighbourLine,
    PlanLine,
    PlannedLine,
    RunLine,
    SearchedLine,
    SkippedLine,
    read_plan,
)

POINT = Point(values={"batch": 1, "model": {"name": "mlp"}})
BATCH = Dimension(key="batch", values=(1, 2))
CONTEXT = Dimension(key="context", values=Interval(1, 512, 8))
LINES: list[PlanLine] = [
    RunLine(
        version="1.0",
        command=("batch=1,2",),
        design="grid",
        dimensions=(BATCH, CONTEXT),
        keys={"objective": "batch^2*context", "margin": {"spread": 1}, "quality": None},
        started_at="2026-11-30T12:00:00+00:00",
    ),
    SearchedLine(values=POINT.values, dimensions=(CONTEXT,)),
    DeviceLine(name="cuda:0", device_kind="cuda", uuid="GPU-1", total_bytes=2**36, unavailable=None),
    PlannedLine(id=POINT.id, order=0, device="cuda:0", values=POINT.values, quality_reference="f" * 16),
    NeighbourLine(id=POINT.id, device="cuda:0", changed_from="f" * 16, changed=("batch", "context")),
    SkippedLine(id=POINT.id, device="cuda:0", because="ff/ff.cuda-0.1"),
    EndedLine(how="interrupted", ended_at="2026-11-30T13:00:00+00:00", why="SIGINT"),
]


def written(folder: Path, *lines: Any) -> Path:
    (folder / PLAN).write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return folder


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.kind)
def test_a_line_that_is_written_is_read_again(line: PlanLine, tmp_path: Path) -> None:
    assert list(read_plan(written(tmp_path, line.to_json()))) == [line]
    assert line.to_json()["kind"] == line.kind


def test_every_kind_has_a_parser() -> None:
    assert set(PARSERS) == {line.kind for line in LINES} == {
        "run", "searched", "device", "asked", "neighbour", "skipped", "ended",
    }  # fmt: skip


def test_the_run_keys_are_parsed() -> None:
    run = LINES[0]
    assert isinstance(run, RunLine)
    assert run.objective is not None
    assert run.objective.exponents == {"batch": 2, "context": 1}
    assert (run.margin, run.quality) == ({"spread": 1}, None)


def test_lines_without_later_additions_are_read(tmp_path: Path) -> None:
    run, point = read_plan(
        written(tmp_path, {"kind": "run"}, {"kind": "asked", "id": POINT.id, "values": POINT.values})
    )
    assert isinstance(run, RunLine)
    assert (run.objective, run.margin, run.dimensions) == (None, {}, ())
    assert point == PlannedLine(id=POINT.id, values=POINT.values)


@pytest.mark.parametrize(
    "damaged", ['{"kind": "ask', '{"kind": "asked", "id": "a"}', '{"kind": "of another time"}', "[1]", '{"id": "a"}']
)
def test_a_damaged_or_unknown_line_is_skipped(damaged: str, tmp_path: Path) -> None:
    lines = [LINES[3].to_json(), damaged, LINES[5].to_json()]
    assert list(read_plan(written(tmp_path, *lines))) == [LINES[3], LINES[5]]


def test_a_run_without_a_plan_has_no_lines(tmp_path: Path) -> None:
    assert list(read_plan(tmp_path)) == []


def test_the_name_of_the_file_is_written_once() -> None:
    package = Path(sweeper.__file__).parent
    assert [path.name for path in package.rglob("*.py") if '"plan.jsonl"' in path.read_text()] == ["plan_lines.py"]
