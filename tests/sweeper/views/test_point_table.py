"""`show RUN`: every point of a run, in a form that a person or a program reads."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper import cli
from sweeper.errors import Mistake
from sweeper.tables import loading
from sweeper.tables.records import place_of, record_of
from sweeper.tables.run_tables import Tables
from sweeper.views.point_table import PointTable, as_text, csv_of, markdown_of, named_by, point_table
from tests.sweeper.conftest import MIB, WrittenRun, failed, phase, started

Written = Callable[..., WrittenRun]
TRACEBACK = """Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/nn/module.py", line 9, in _call_impl
    return forward_call(*args)
  File "/home/me/mine.py", line 12, in run
    x = table[7]
  File "/opt/lib/python3.11/site-packages/lookup/core.py", line 3, in __getitem__
    raise IndexError
IndexError: no row 7
"""


@pytest.fixture
def run(written: Written) -> WrittenRun:
    """Batch 1, 2 and 10 by context 64 and 128: all pass, but the largest is refused and one raises."""
    run = written({"batch": [1, 2, 10], "context": [64, 128]})
    for batch in (10, 1, 2):
        for context in (128, 64):
            point = run.ask(batch=batch, context=context)
            if (batch, context) == (10, 128):
                run.is_refused(point)
            elif (batch, context) == (2, 64):
                cause = {"type": "IndexError", "bases": ["LookupError"], "message": "no row 7"}
                fails = failed(cause) | {"traceback": TRACEBACK}
                lines = [*started(), *phase("cold_forward", 220 * MIB, False), fails]
                run.attempt(point, lines, {"code": 0, "signal": None})
            else:
                run.passes(point, (300 + batch) * MIB)
    Tables(run.folder).write()
    return run


def table_of(run: WrittenRun, *names: str, sort: str | None = None) -> PointTable:
    return point_table(run.folder, loading.read(run.folder), names or None, sort)


def test_two_dimensions_are_a_matrix_in_the_order_of_their_sizes(run: WrittenRun) -> None:
    lines = [line.split() for line in as_text(table_of(run)).splitlines()]
    head = lines.index(["context=64", "context=128"])
    assert lines[head + 1] == ["batch=1", "301.00", "MiB", "301.00", "MiB"]
    assert lines[head + 2] == ["batch=2", "error", "302.00", "MiB"]
    assert lines[head + 3] == ["batch=10", "310.00", "MiB", "oom"]


def test_a_third_key_and_a_second_device_have_matrices_of_their_own(written: Written) -> None:
    run = written({"batch": [1, 2], "context": [64, 128], "seed": [0, 1]}, devices=("cpu", "sim:cpu"))
    for seed in (0, 1):
        for batch in (1, 2):
            for context in (64, 128):
                point = run.ask(batch=batch, context=context, seed=seed)
                for device in ("cpu", "sim:cpu"):
                    run.passes(point, device=device)
    Tables(run.folder).write()
    titles = [line for line in as_text(table_of(run)).splitlines() if "seed=" in line and "peak" in line]
    calculated = "peak tensor  (calculated, not measured)"
    assert titles == [
        f"{device}  seed={seed}  {counter}"
        for seed in (0, 1)
        for device, counter in (("cpu", "peak resident"), ("cpu", "peak tensor"), ("sim:cpu", calculated))
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_a_matrix_that_is_too_wide_is_continued_below(written: Written, width: int) -> None:
    contexts = [64 * number for number in range(1, 13)]
    run = written({"batch": [1, 2], "context": contexts})
    for batch in (1, 2):
        for context in contexts:
            run.passes(run.ask(batch=batch, context=context))
    Tables(run.folder).write()
    text = as_text(table_of(run), width)
    matrices, _, _ = text.partition("sweeper show")
    assert max(map(len, matrices.splitlines())) <= width
    assert all(f"context={context}" in text for context in contexts)


def test_a_partial_peak_is_marked_in_every_form_for_a_person(run: WrittenRun) -> None:
    found = table_of(run, "batch", "context", "status", "peak_bytes")
    for text in (as_text(found), markdown_of(found)):
        refused = next(line for line in text.splitlines() if "oom" in line and "10" in line)
        assert ">=251.00 MiB" in refused
    assert as_text(found).count(">=") == 2


def test_a_failure_has_its_phase_its_place_and_the_command_that_runs_it_again(run: WrittenRun) -> None:
    text = as_text(table_of(run))
    assert "cpu  out of memory in cold_forward: 1 point" in text
    assert "error in cold_forward: IndexError: no row 7" in text
    assert "at /home/me/mine.py:12 in run" in text
    (again,) = [line for line in text.splitlines() if line.strip().startswith("again:")]
    assert {"batch=2", "context=64"} <= set(shlex.split(again))


def test_the_output_of_a_failed_point_is_named_if_there_is_any(run: WrittenRun) -> None:
    assert "output:" not in as_text(table_of(run))
    row = next(row for row in table_of(run).rows if row["status"] == "error")
    record = record_of(run.folder, row)
    assert record is not None
    record.output.write_text("a line\n")
    assert f"output: {record.output}" in as_text(table_of(run))


def test_csv_has_whole_bytes_and_an_empty_cell_for_what_is_not_known(run: WrittenRun) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of(table_of(run)))))
    assert len(rows) == 6
    fits = next(row for row in rows if (row["batch"], row["context"]) == ("10", "64"))
    assert (fits["peak_bytes"], fits["fits"], fits["peak_allocated_bytes"]) == (str(310 * MIB), "true", "")
    failure = next(row for row in rows if row["status"] == "error")
    assert (failure["fits"], failure["failed_at"]) == ("", "/home/me/mine.py:12 in run")


def test_rows_are_sorted_by_size_and_those_without_a_value_come_last(run: WrittenRun) -> None:
    rows = table_of(run, "batch", sort="-headroom_bytes").rows
    known = [row["headroom_bytes"] for row in rows if row["headroom_bytes"] is not None]
    assert known == sorted(known, reverse=True)
    assert all(row["headroom_bytes"] is None for row in rows[len(known) :])
    assert [row["batch"] for row in table_of(run, sort="batch").rows] == [1, 1, 2, 2, 10, 10]


@pytest.mark.parametrize(("flag", "value"), [("--columns", "batch,peek_bytes"), ("--sort", "peek_bytes")])
def test_a_column_that_there_is_not_is_a_mistake_with_the_nearest_name(run: WrittenRun, flag: str, value: str) -> None:
    with pytest.raises(Mistake, match=rf"{flag} peek_bytes: no such column \(did you mean peak_bytes\?\)"):
        cli.run(["show", str(run.folder), flag, value])


def test_one_form_is_printed_at_a_time(run: WrittenRun) -> None:
    with pytest.raises(Mistake, match="--csv --markdown: choose one"):
        cli.run(["show", str(run.folder), "--csv", "--markdown"])


def test_the_beginning_of_an_id_names_a_point(run: WrittenRun, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table_of(run).rows
    id = next(row["point_id"] for row in rows if row["status"] == "error")
    ids = [row["point_id"] for row in rows]
    assert named_by(ids, id[:6]) == id
    with pytest.raises(Mistake, match="no point of this run"):
        named_by(ids, "0" * 16)
    with pytest.raises(Mistake, match="6 points have ids"):
        named_by(ids, "")
    cli.run(["show", str(run.folder), id[:6], "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["point_id"] == id
    (device,) = found["devices"]
    assert [each["phase"] for each in device["phases"] if each["phase"] != "between"] == ["cold_forward"]
    assert device["failed_at"] == "/home/me/mine.py:12 in run"


def test_a_point_is_shown_with_its_phases_and_its_traceback(
    run: WrittenRun, capsys: pytest.CaptureFixture[str]
) -> None:
    id = next(row["point_id"] for row in table_of(run).rows if row["status"] == "error")
    cli.run(["show", str(run.folder), id])
    text = capsys.readouterr().out
    assert "cold_forward 0 (did not complete)" in text
    assert ">=220.00 MiB" in text
    assert "IndexError: no row 7" in text
    assert "batch=2 context=64" in text.splitlines()[0]


def test_a_point_on_two_devices_has_each_of_them(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    run = written({"batch": [1]}, devices=("cpu", "sim:cpu"))
    point = run.ask()
    for device in ("cpu", "sim:cpu"):
        run.passes(point, device=device)
    Tables(run.folder).write()
    cli.run(["show", str(run.folder), point.id])
    text = capsys.readouterr().out
    assert text.index("CPU: ok") < text.index("SIM:CPU (calculated, not measured): ok")


@pytest.mark.parametrize(
    ("traceback", "place"),
    [
        (TRACEBACK, "/home/me/mine.py:12 in run"),
        ('  File "/x/site-packages/a.py", line 1, in f\n  File "/x/site-packages/torch/b.py", line 2, in g\n',
         "/x/site-packages/a.py:1 in f"),
        ('  File "/x/site-packages/torch/b.py", line 2, in g\n', None),
        (None, None),
    ],
)  # fmt: skip
def test_the_place_of_a_failure_is_in_code_that_its_reader_can_change(traceback: str | None, place: str | None) -> None:
    assert place_of(traceback) == place


def test_a_run_of_one_point_is_a_table(written: Written, tmp_path: Path) -> None:
    run = written({})
    run.passes(run.ask(), 300 * MIB)
    Tables(run.folder).write()
    (line,) = [line for line in as_text(table_of(run)).splitlines() if "300.00 MiB" in line]
    assert line.split()[1:3] == ["cpu", "ok"]


def test_a_run_without_points_is_shown_as_one_in_every_form(written: Written) -> None:
    run = written({"batch": [1]})
    Tables(run.folder).write()
    found = table_of(run)
    assert as_text(found).splitlines()[0] == "bill: 0 points"
    assert csv_of(found).count("\n") == 0
    assert markdown_of(found).count("\n") == 1


def test_a_table_on_a_narrow_terminal_cuts_no_figure_and_names_the_columns_it_leaves_out(run: WrittenRun) -> None:
    text = as_text(table_of(run, sort="batch"), 60)
    table, _, _ = text.partition("FAILURES")
    assert max(map(len, table.splitlines())) <= 60
    assert table.count("301.00 MiB") == 2
    assert "no room for in phase, failed in, headroom, seconds: --csv has every column" in " ".join(table.split())


def test_the_phase_next_to_a_peak_is_the_peaks_and_the_failures_has_a_column_of_its_own(written: Written) -> None:
    run = written({"batch": [1, 2]})
    point = run.ask(batch=1)
    cause = {"type": "ValueError", "bases": ["Exception"], "message": "after build"}
    lines = [*started(), *phase("build", 300 * MIB), *phase("step", 250 * MIB, False), failed(cause)]
    run.attempt(point, lines, {"code": 0, "signal": None})
    run.passes(run.ask(batch=2), 310 * MIB)
    Tables(run.folder).write()
    rows = [line.split("|") for line in markdown_of(table_of(run)).splitlines()]
    heads, _, first, second = ([cell.strip() for cell in row] for row in rows)
    shown = [dict(zip(heads, row, strict=True)) for row in (first, second)]
    assert [each["peak"] for each in shown] == [">=300.00 MiB", "310.00 MiB"]
    assert [each["in phase"] for each in shown] == ["build", "cold_forward"]
    assert [each["failed in"] for each in shown] == ["step", "-"]
