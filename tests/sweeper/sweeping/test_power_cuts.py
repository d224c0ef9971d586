"""A run whose files lost a part of their bytes is continued: every lost point is measured again, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sweeper
from runners.point import Attempt
from sweeper.sweeping.recall import Fingerprint
from tests.sweeper.sweeping.conftest import FINGERPRINT, OOM, PASSES, Lab, plan_of

FILES = ("point.json", "journal.jsonl", "exit.json")
DAMAGES = ("empty", "cut", "but its last bytes", "zeros", "zeros at its end", "removed", "another type")


def ends(attempt: Attempt) -> dict[str, Any]:
    return OOM if attempt.point["batch"] > 2 else PASSES


def damage(file: Path, how: str) -> None:
    whole = file.read_bytes()
    half = len(whole) // 2
    if how == "removed":
        file.unlink()
        return
    file.write_bytes(
        {
            "empty": b"",
            "cut": whole[:half],
            "but its last bytes": whole[:-2],
            "zeros": bytes(len(whole)),
            "zeros at its end": whole[:half] + bytes(len(whole) - half),
            "another type": b"[5]\n",
        }[how]
    )


def edge(run: Path) -> list[tuple[int, bool]]:
    """The decided points of the frontier: batch, and whether it fits."""
    frontier = sweeper.load(run).frontier
    return sorted(zip(frontier["batch"], frontier["side"] == "fits", strict=True))


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_point_with_a_damaged_file_is_measured_again_and_the_frontier_stays(lab: Lab, file: str, how: str) -> None:
    plan = plan_of(batch=(1, 2, 3))
    run = lab.folder / "outputs" / "run"
    code, first = lab.run(plan, ends)
    assert (code, len(first.started)) == (0, 3)
    found = edge(run)
    assert found == [(2, True), (3, False)]
    damaged = next(each for each in first.started if each.point["batch"] == 2)
    damage(run / "points" / damaged.name / file, how)
    code, second = lab.run(plan, ends)
    assert code == 0
    assert [attempt.point["batch"] for attempt in second.started] == [2]
    assert edge(run) == found
    assert lab.run(plan, ends)[1].started == []


def cuts(plan: bytes) -> Iterator[tuple[str, bytes]]:
    """At the beginning of every line and in its middle: cut there, and zeros from there on."""
    at = 0
    for line in plan.splitlines(keepends=True):
        for place in (at, at + len(line) // 2):
            yield f"cut at {place}", plan[:place]
            yield f"zeros from {place} on", plan[:place] + bytes(len(plan) - place)
        at += len(line)


def test_a_plan_that_lost_its_end_anywhere_costs_no_outcome(lab: Lab) -> None:
    plan = plan_of(batch=(1, 2, 3))
    run = lab.folder / "outputs" / "run"
    lab.run(plan, ends)
    whole = (run / "plan.jsonl").read_bytes()
    for how, content in cuts(whole):
        (run / "plan.jsonl").write_bytes(content)
        for table in run.glob("*.parquet"):
            table.unlink()
        code, engine = lab.run(plan, ends)
        assert (code, engine.started) == (0, []), how
        assert edge(run) == [(2, True), (3, False)], how
        assert sorted(sweeper.load(run).points["status"]) == ["ok", "ok", "oom"], how


def test_a_folder_that_was_lost_is_made_again_beside_its_successors(lab: Lab) -> None:
    plan = plan_of(batch=(1,))
    _, engine = lab.run(plan)
    changed = Fingerprint(identity={"torch": "2.14"}, code={})
    lab.run(plan_of(batch=(1,), run={"resume": "anew"}), fingerprint=changed)
    points = lab.folder / "outputs" / "run" / "points"
    shutil.rmtree(points / engine.started[0].name)
    code, engine = lab.run(plan, fingerprint=FINGERPRINT)
    assert (code, [attempt.number for attempt in engine.started]) == (0, [1])
    code, engine = lab.run(plan_of(batch=(1,), run={"resume": "anew", "repeat_points": 2}))
    assert (code, [attempt.number for attempt in engine.started]) == (0, [3])
