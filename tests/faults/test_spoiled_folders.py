"""What a workload can do to the folder, the files and the pipes of its own attempt: it ends as one row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from runners import files
from runners.engines.local import Event
from runners.outcome import Outcome, Status
from runners.record import outcome_in
from tests import command_line
from tests.measuring import Lab

HERE = Path(__file__).parent

# What the workload spoils, whether it also closes its descriptors, and why the attempt is lost; None: nothing is.
FILE_OF_ANOTHER_KIND = "cannot be written: Is a directory"
CHANGED = "not by the measured process"
SPOILED: list[tuple[str, bool, str | None]] = [
    ("removed", False, None),
    ("removed", True, None),
    ("moved", False, None),
    ("by a file", False, "the workload replaced this folder by a file"),
    ("by a link", False, "the workload replaced this folder by a symbolic link"),
    ("by another folder", False, None),
    ("above removed", False, "No such file or directory"),
    ("without permission", False, None),
    ("truncated", False, CHANGED),
    ("stretched", False, "journal.jsonl is larger than 67108864 bytes"),
    ("overwritten", False, "has lines that cannot be read"),
    ("forged", False, CHANGED),
    ("many lines", False, "holds more values than a measured process writes"),
    ("one long line", False, "holds more values than a measured process writes"),
    ("journal.jsonl: nothing", True, None),
    ("journal.jsonl: a folder", False, FILE_OF_ANOTHER_KIND),
    ("journal.jsonl: a pipe", False, None),
    ("journal.jsonl: a pipe", True, "it is a pipe"),
    ("journal.jsonl: a link", False, None),
    ("journal.jsonl: a link", True, "it is a symbolic link"),
    ("journal.jsonl: an endless file", False, None),
    ("journal.jsonl: a huge file", False, "and at most 67108864 are read"),
    ("journal.jsonl: rubbish in it", False, CHANGED),
    ("journal.jsonl: rubbish in it", True, CHANGED),
    ("exit.json: a folder", False, FILE_OF_ANOTHER_KIND),
    ("point.json: a folder", False, FILE_OF_ANOTHER_KIND),
    *[
        (f"{file}: {how}", False, None)
        for file in ("exit.json", "point.json", "output.log")
        for how in ("a pipe", "a link", "an endless file", "a huge file", "rubbish in it")
    ],
    ("output.log: a folder", False, None),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("run") / "points"
    root.mkdir()
    lab = Lab(root, HERE)
    yield lab
    lab.engine.close()


def ended(lab: Lab, how: str, closes: bool) -> tuple[Event, Outcome | None]:
    attempt = lab.start("hostile:spoils", {"how": how, "closes": closes})
    while True:
        for event in lab.engine.wait(60):
            if event.kind == "settled":
                return event, outcome_in(event.folder, attempt)
            if event.kind == "unkept":
                return event, None


@pytest.mark.parametrize(("how", "closes", "why"), SPOILED, ids=lambda each: str(each))
def test_a_workload_that_spoils_its_own_folder_ends_as_one_row(
    lab: Lab, how: str, closes: bool, why: str | None
) -> None:
    event, outcome = ended(lab, how, closes)
    if why is None:
        assert outcome is not None
        assert (outcome.status, outcome.fits, outcome.metrics) == (Status.OK, True, {"kept": 1})
        assert [phase.name for phase in outcome.phases if phase.name != "between"] == ["before", "after"]
        for file in (event.folder.request, event.folder.journal, event.folder.exit):
            assert files.kind_of(file) == files.FILE
    else:
        message = event.detail if outcome is None else outcome.error_message
        assert why in (message or "")
        assert outcome is None or (outcome.status, outcome.fits, outcome.metrics) == (Status.LOST, None, {})
    victim = event.folder.path.parent / "victim"
    assert not victim.exists() or victim.read_text() == "not ours"
    assert ended(lab, "output.log: nothing", False)[1] is not None  # the lane measures the next attempt


@pytest.mark.parametrize("pipe", ["commands", "answers"])
def test_a_workload_that_writes_to_the_pipes_of_its_supervisor_is_lost_and_the_next_is_measured(
    lab: Lab, pipe: str
) -> None:
    outcome = lab.measure("hostile:writes_to_the_supervisor", {"pipe": pipe}).outcome
    assert (outcome.status, outcome.fits) == (Status.LOST, None)
    assert "its supervisor died" in (outcome.error_message or "")
    assert lab.measure("faulty:good").outcome.status is Status.OK


def swept(folder: Path, *words: str) -> tuple[int, str, pd.DataFrame | None]:
    common = ["devices=[cpu]", "parallel=true", "start=warm", "name=run", "workload=custom", "batch=1,2,3"]
    environ = {**os.environ, "PYTHONPATH": str(HERE)}
    done = command_line.run([*common, *words], folder, environ)
    table = folder / "outputs" / "run" / "points.parquet"
    return done.returncode, done.stderr, pd.read_parquet(table) if table.exists() else None


def test_a_sweep_goes_on_after_a_workload_that_replaced_its_folder_and_the_next_one_measures_it_again(
    tmp_path: Path,
) -> None:
    words = ("workload.target=hostile:spoils_at", "workload.params.at=2", f"workload.params.until={tmp_path / 'go'}")
    code, err, points = swept(tmp_path, *words, "workload.params.how=by a file")
    assert (code, err) == (3, "")
    assert points is not None
    assert points["status"].tolist() == ["ok", "lost", "ok"]
    assert points["fits"].tolist() == [True, pd.NA, True]
    assert "the workload replaced this folder by a file" in points["error_message"][1]
    (tmp_path / "go").touch()
    code, err, points = swept(tmp_path, *words, "workload.params.how=by a file")
    assert (code, err) == (0, "")
    assert points is not None
    assert points["status"].tolist() == ["ok", "ok", "ok"]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_run_that_a_workload_removes_or_replaces_ends_the_sweep_in_one_line_and_is_not_made_again(
    tmp_path: Path, how: str
) -> None:
    words = ("workload.target=hostile:spoils_the_run", "workload.params.at=2", f"workload.params.how={how}")
    code, err, points = swept(tmp_path, *words)
    assert (code, points) == (3, None)
    assert err.count("\n") == 1
    assert f"the run's folder was {how}" in err
    left = sorted(path.name for path in (tmp_path / "outputs").rglob("*"))
    assert left == ([] if how == "removed" else ["plan.jsonl", "run"])
