"""A run's folder: when it can be opened, and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runners.device import device_named
from runners.point import Attempt, AttemptFolder, Point
from sweeper.errors import Mistake
from sweeper.plan_lines import PlannedLine, read_plan
from sweeper.run_folder import RunFolder, open_run

POINT, CPU = Point(values={"batch": 1}), device_named("cpu")
LINE = PlannedLine(id=POINT.id, order=0, device="cpu", values=POINT.values)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RunFolder]:
    with closing(open_run(str(tmp_path), "run", "slug")) as run:
        yield run


def test_a_named_run_is_that_folder_and_can_be_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        run = open_run(str(tmp_path / "outputs"), "run", "slug")
        assert run.path == tmp_path / "outputs" / "run"
        run.close()


def test_a_run_without_a_name_is_a_new_folder_every_time(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with closing(open_run(str(tmp_path), None, "train/gpt 2")) as run:
            names.add(run.path.name)
    assert len(names) == 3
    assert all("-train-gpt-2" in name for name in names)


def test_a_run_is_open_for_one_sweep_at_a_time(opened: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match=r"name=run: pid \d+ on .* is sweeping into"):
        open_run(str(tmp_path), "run", "slug")
    opened.close()
    open_run(str(tmp_path), "run", "slug").close()


def test_a_folder_that_is_no_run_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    with pytest.raises(Mistake, match=r"name=mine: .* is not a run of sweeper"):
        open_run(str(tmp_path), "mine", "slug")
    with pytest.raises(Mistake, match=r"name=file: .* is a file"):
        open_run(str(tmp_path), "file", "slug")


def test_outputs_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Mistake, match=r"outputs=.*/file/outputs: .* cannot be written"):
        open_run(str(tmp_path / "file" / "outputs"), "run", "slug")


def test_a_line_of_the_plan_is_on_disk_at_once(opened: RunFolder) -> None:
    opened.plan([LINE])
    assert list(read_plan(opened.path)) == [LINE]


def test_a_torn_line_is_skipped_and_damages_none_after_it(opened: RunFolder, tmp_path: Path) -> None:
    opened.plan([LINE])
    opened.close()
    with (opened.path / "plan.jsonl").open("a") as plan:
        plan.write('{"kind": "asked", "id": "f')
    with closing(open_run(str(tmp_path), "run", "slug")) as again:
        again.plan([LINE])
        assert list(read_plan(again.path)) == [LINE, LINE]


def test_a_removed_folder_is_noticed(opened: RunFolder) -> None:
    opened.check()
    (opened.path / "plan.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="the run's folder was removed"):
        opened.plan([LINE])


def attempted(run: RunFolder, number: int) -> AttemptFolder:
    attempt = Attempt(point=POINT, device=CPU, number=number)
    folder = run.attempt_folder(attempt)
    folder.create(attempt)
    folder.journal.write_text('{"kind": "baseline"}\n')
    return folder


def test_the_attempts_at_a_point_come_in_the_order_they_were_made(opened: RunFolder) -> None:
    folders = [attempted(opened, number) for number in (1, 2, 3)]
    assert list(opened.attempts(POINT, CPU)) == folders
    assert list(opened.attempts(POINT, device_named("cuda:0"))) == []
    assert list(opened.attempts(Point(values={"batch": 2}), CPU)) == []


def test_a_folder_in_which_nothing_began_is_no_attempt_and_is_removed(opened: RunFolder) -> None:
    first = attempted(opened, 1)
    half_made = opened.attempt_folder(Attempt(point=POINT, device=CPU, number=2))
    half_made.path.mkdir()
    (half_made.path / "point.json.123.tmp").touch()
    assert list(opened.attempts(POINT, CPU)) == [first]
    assert not half_made.path.exists()
    half_made.create(Attempt(point=POINT, device=CPU, number=2))
    half_made.journal.touch()
    assert list(opened.attempts(POINT, CPU)) == [first]
    assert not half_made.path.exists()


def test_traces_are_kept_for_one_sweep_only(opened: RunFolder, tmp_path: Path) -> None:
    file = opened.allocation_trace(POINT, "sm_90")
    assert file == opened.allocation_trace(POINT, "sm_90") != opened.allocation_trace(POINT, "sm_80")
    file.write_text(json.dumps({}))
    opened.close()
    assert not file.exists()
