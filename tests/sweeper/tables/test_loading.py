from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import sweeper
from sweeper.columns import TABLES
from sweeper.errors import Mistake
from sweeper.tables.loading import Frames, load, read, run_folder
from sweeper.tables.run_tables import Tables

ROOT = Path(__file__).resolve().parents[3]


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


# Kills the writer of the tables before its k-th rename, in a copy of the run for each k.
KILLED_AT_A_RENAME = """
import os, shutil, signal, sys
from sweeper.tables.run_tables import Tables
run, copies = sys.argv[1:]
for k in range(1, 6):
    copy = os.path.join(copies, str(k))
    shutil.copytree(run, copy)
    writer = os.fork()
    if writer == 0:
        left, replace = [k], os.replace
        def replace_or_die(*paths, **folders):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            replace(*paths, **folders)
        os.replace = replace_or_die
        Tables(copy).write()
        os._exit(0)
    os.waitpid(writer, 0)
"""


def test_a_kill_between_two_renames_leaves_no_tables_of_two_moments(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written({"batch": [1, 2, 4]})
    one, two, four = (run.ask(batch=batch) for batch in (1, 2, 4))
    run.passes(one)
    Tables(run.folder).write()
    run.passes(two)
    run.is_refused(four)
    (tmp_path / "copies").mkdir()
    subprocess.run([sys.executable, "-c", KILLED_AT_A_RENAME, run.folder, tmp_path / "copies"], check=True, cwd=ROOT)
    now = {name: table.to_pylist() for name, table in Tables(run.folder).arrow().items()}
    for k in range(1, 6):
        copy = tmp_path / "copies" / str(k)
        generations = {pq.read_schema(copy / f"{name}.parquet").metadata[b"sweeper.generation"] for name in TABLES}
        assert len(generations) == 2
        found = {name: table.to_pylist() for name, table in read(copy).items()}
        assert found == {name: [row | {"run": str(k)} if "run" in row else row for row in now[name]] for name in now}
        message = capsys.readouterr().err
        assert "are of several writings" in message
        assert message.count("\n") == 1


def test_tables_of_two_writings_without_their_journals_are_refused_in_one_line(written: Any) -> None:
    run = written({"batch": [1, 2]})
    run.passes(run.ask(batch=1))
    Tables(run.folder).write()
    earlier = (run.folder / "phases.parquet").read_bytes()
    run.passes(run.ask(batch=2))
    Tables(run.folder).write()
    journals = run.folder / "points"
    shutil.rmtree(next(journals.iterdir()))
    assert len(load(run.folder).points) == 2  # all of one writing: the journals are not needed
    (run.folder / "phases.parquet").write_bytes(earlier)
    with pytest.raises(Mistake) as mistake:
        load(run.folder)
    assert str(mistake.value) == (
        f"{run.folder}: the tables are of several writings, and the journals of 1 attempt in points/ are missing, so"
        " they cannot be rebuilt"
    )


WRITES = """
import sys
from sweeper.tables.run_tables import Tables
tables = Tables(sys.argv[1])
print("ready", flush=True)
for _ in range(12):
    tables.write()
"""


def test_a_reader_beside_a_writer_reads_every_time(written: Any) -> None:
    run = written({"batch": [1, 2, 4]})
    for batch in (1, 2, 4):
        run.passes(run.ask(batch=batch))
    Tables(run.folder).write()
    command = [sys.executable, "-c", WRITES, str(run.folder)]
    writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        reads = 0
        while writer.poll() is None:
            assert {name: len(table) for name, table in read(run.folder).items()}["points"] == 3
            # as the documents show it for a reader by path
            points = pd.read_parquet(io.BytesIO((run.folder / "points.parquet").read_bytes()))
            assert list(points.batch) == [1, 2, 4]
            reads += 1
    finally:
        writer.kill()
        writer.communicate()
    assert writer.returncode == 0
    assert reads > 0


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


def test_a_link_to_a_run_is_read_as_the_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "points").mkdir(parents=True)
    (tmp_path / "latest").symlink_to("run")
    assert run_folder(tmp_path / "latest") == run_folder(tmp_path / "run") == tmp_path / "run"
