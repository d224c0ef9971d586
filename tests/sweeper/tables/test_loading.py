from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sweeper
from sweeper.errors import Mistake
from sweeper.tables.loading import Frames, load
from sweeper.tables.run_tables import Tables


def test_missing_or_torn_tables_are_rebuilt_from_the_journals(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    assert list(load(run.folder).points.status) == ["ok"]
    Tables(run.folder).write()
    capsys.readouterr()
    assert list(load(run.folder).points.status) == ["ok"]
    assert capsys.readouterr().err == ""
    torn = run.folder / "phases.parquet"
    torn.write_bytes(torn.read_bytes()[:-100])
    assert len(load(run.folder).phases) == 4
    message = capsys.readouterr().err
    assert "journals" in message
    assert message.count("\n") == 1


def test_tables_behind_the_journals_are_rebuilt(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = written({"batch": [1, 2]})
    one, two = run.ask(batch=1), run.ask(batch=2)
    run.passes(one)
    Tables(run.folder).write()
    run.passes(two)  # and the orchestrator was killed before it wrote them again
    assert list(load(run.folder).points.status) == ["ok", "ok"]
    assert "behind" in capsys.readouterr().err


def test_a_reader_does_not_report_a_running_attempt_as_lost(written: Any) -> None:
    run = written({"batch": [1, 2]})
    run.passes(run.ask(batch=1))
    run.attempt(run.ask(batch=2), [], None)
    assert list(load(run.folder).points.status) == ["ok", "not_run"]


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_that_is_no_run_is_a_mistake_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Mistake, match=name):
        load(tmp_path / name)


def test_sweeper_load_gives_data_frames(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    frames = sweeper.load(str(run.folder))
    assert isinstance(frames, Frames)
    assert all(isinstance(frame, pd.DataFrame) for frame in frames)
    Tables(run.folder).write()
    for frame, again in zip(frames, load(run.folder), strict=True):
        pd.testing.assert_frame_equal(frame, again)
