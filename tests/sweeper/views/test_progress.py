"""What a person sees while a sweep runs, from a written plan and written outcomes. Nothing is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.device import Card, device_named
from runners.outcome import Outcome, Phase, Status
from runners.point import Point
from sweeper.objective import TOKENS
from sweeper.plan import Dimension, Plan, RunKeys
from sweeper.views.live import LiveShow
from sweeper.views.progress import ENDINGS, Show, assumed_text, outcome_text, summary
from sweeper.views.sweep_output import QUIET, show_for

MIB = 2**20
CARD = Card(name="a card", vendor="nvidia", architecture="sm_89", total_bytes=2**34, context_bytes=2**29)
RUN = RunKeys(
    name=None, outputs="outputs", python="python", retry=(), resume="same", stop_after_same_error=0,
    objective=TOKENS, heartbeat=0.2, parallel=False,
)  # fmt: skip


def plan(**values: tuple[Any, ...]) -> Plan:
    return Plan(
        run=RUN,
        design="grid",
        design_options={},
        dimensions=tuple(Dimension(key=key, values=each) for key, each in values.items()),
        devices=(),
        settler=Settler(),
        command=(),
    )


class Settler:
    def settle(self, choice: Mapping[str, Any]) -> Point:
        return Point(values=dict(choice))

    def settings(self) -> Mapping[str, Mapping[str, object]]:
        return {}

    @property
    def quality_references(self) -> Mapping[str, str]:
        return {}


TO_STRINGS = (  # of torch, for `.to("cpu", "bfloat16")`
    "to() received an invalid combination of arguments - got (str, str), but expected one of:\n"
    " * (torch.device device = None, torch.dtype dtype = None, bool non_blocking = False, bool copy = False, *,"
    " torch.memory_format memory_format = None)\n * (torch.dtype dtype, bool non_blocking = False)\n"
)


def point(**values: Any) -> Point:
    return Point(values={"model": {"name": "mlp"}, "workload": {"name": "forward"}, **values})


def outcome(status: Status, peak: int | None = None, device: str = "cpu", **more: Any) -> Outcome:
    named = device_named(device)
    counters = {} if peak is None else {named.deciding_counter: peak}
    phase = Phase(name="cold_forward", run_index=0, device=device, completed=status is Status.OK, peak=counters)
    return Outcome(status=status, device=named, phases=(phase,), **more)


# --- an attempt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        (outcome(Status.OK, 913 * MIB), "fits, 913.00 MiB resident"),
        (outcome(Status.OK, 3 * 2**30, "cuda:0"), "fits, 3.00 GiB allocated"),
        (outcome(Status.OK), "fits"),
        (
            outcome(Status.OK, 160 * MIB, other_processes=1, other_processes_resident_bytes=512 * MIB),
            "fits, 160.00 MiB resident, and 512.00 MiB in 1 other process",
        ),
        (
            outcome(Status.OK, 913 * MIB, handled_refusals=1, handled_refusal_bytes=64 * MIB),
            "undecided: the workload continued after a refused allocation of 64.00 MiB, 913.00 MiB resident",
        ),
        (
            outcome(Status.OK, handled_refusals=20, handled_refusal_bytes=64 * MIB),
            "undecided: the workload continued after 20 refused allocations, the largest of 64.00 MiB",
        ),
        (
            outcome(Status.OK, device="cuda:0", handled_refusals=2),
            "undecided: the workload continued after 2 refused allocations",
        ),
        (
            outcome(Status.OOM, 64 * MIB, failed_phase="cold_forward", oom_scope="device", peak_is_partial=True),
            "out of memory in cold_forward, 64.00 MiB resident so far",
        ),
        (outcome(Status.OOM_KILLED, oom_scope="host"), "out of memory, killed by the kernel"),
        (outcome(Status.TIMEOUT, failed_phase="cold_forward"), "timed out in cold_forward"),
        (
            outcome(Status.ERROR, error_type="ValueError", error_message="first\nsecond"),
            "error: ValueError: first",
        ),
        (outcome(Status.UNAVAILABLE, error_message="no device cuda:3"), "unavailable: no device cuda:3"),
        (
            outcome(Status.UNAVAILABLE, error_type="runners.phases.Unavailable", error_message="no device cuda:3"),
            "unavailable: no device cuda:3",
        ),
        (outcome(Status.ERROR, error_message="x" * 500), "error: " + "x" * 317 + "..."),
        (outcome(Status.ERROR, error_type="my.work.Odd", error_message="word " * 99), f"error: Odd:{' word' * 30} ..."),
        (
            outcome(Status.ERROR, error_type="E", error_message="Failed because of this:\n no  file\n x"),
            "error: E: Failed because of this: no file",
        ),
        (
            outcome(Status.ERROR, error_type="TypeError", error_message=TO_STRINGS),
            f"error: TypeError: {TO_STRINGS.splitlines()[0]} * (torch.device device = None, torch.dtype dtype = None,"
            " bool non_blocking = False, bool copy = False, *, torch.memory_format memory_format = None)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_ending_is_one_line_with_the_phase_the_peak_and_the_error(ended: Outcome, text: str) -> None:
    assert outcome_text(ended) == text


def test_a_calculated_refusal_has_the_bytes_that_would_be_enough() -> None:
    refused = outcome(Status.OOM, 64 * MIB, "sim:rtx-4090", oom_scope="device", unlimited={"allocated": 96 * MIB})
    assert outcome_text(refused).endswith("; it would take 96.00 MiB")


def test_an_attempt_that_failed_before_any_phase_names_none() -> None:
    lost = Outcome(status=Status.LOST, device=device_named("cpu"), failed_phase="start")
    assert outcome_text(lost) == "lost"


def test_every_status_has_a_text() -> None:
    assert set(ENDINGS) == set(Status) - {Status.SKIPPED, Status.NOT_RUN}


# --- plain lines ------------------------------------------------------------------------------------------------------


def test_a_finished_attempt_is_a_line_with_its_device_and_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(plan(batch=(1, 2), **{"workload.checkpointing": (True, False)}))
    first = point(batch=2, workload={"name": "train", "checkpointing": True})
    show.planned("cpu", first)
    show.began("cpu", first)
    show.tick()
    assert capsys.readouterr().out == ""
    show.settled("cpu", first, outcome(Status.OK, MIB), recalled=False)
    show.settled("cpu", first, outcome(Status.OK, MIB), recalled=True)
    show.waiting("cpu", first, "pid 7 on node1")
    show.gave_up("cpu", "the first 3 ended with ValueError")
    assert capsys.readouterr().out.splitlines() == [
        "cpu  batch=2 workload.checkpointing=true  fits, 1.00 MiB resident",
        "cpu  batch=2 workload.checkpointing=true  fits, 1.00 MiB resident  (measured before)",
        "cpu  waits: in use by pid 7 on node1",
        "cpu  stops here: the first 3 ended with ValueError",
    ]


def test_without_a_dimension_a_point_is_named_by_its_workload(capsys: pytest.CaptureFixture[str]) -> None:
    Show(plan()).settled("cpu", point(), outcome(Status.CRASHED), recalled=False)
    assert capsys.readouterr().out == "cpu  forward  crashed\n"


def test_a_message_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Show(plan()).stopped("the sweep stopped: no space")
    assert capsys.readouterr() == ("", "sweeper: the sweep stopped: no space\n")


def test_the_end_counts_the_statuses_and_names_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweeper.views.frontier_text.frontier_text", lambda *values: "THE FRONTIER")
    statuses = ("ok", "oom", "ok", "not_run")
    fits = {"ok": True, "oom": False}
    rows = [
        {"status": status, "fits": fits.get(status), "point_id": str(at), "device": "cpu"}
        for at, status in enumerate(statuses)
    ]
    Show(plan(batch=(1, 2))).ended(rows, tmp_path / "outputs" / "mine")
    assert capsys.readouterr().out.splitlines() == [
        *("", "4 points: 2 ok, 1 oom, 1 not_run; 2 fit, 1 does not fit, 1 undecided", "", "THE FRONTIER", ""),
        "tables: outputs/mine/points.parquet, attempts, phases, environment, estimates, frontier",
    ]


@pytest.mark.parametrize(
    ("left_out", "total"), [(0, "2 points x 2 devices: 4 ok; all fit"), (1, "2 points on 2 devices: 3 ok; all fit")]
)
def test_the_end_counts_a_point_on_two_devices_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left_out: int, total: str
) -> None:
    monkeypatch.setattr("sweeper.views.frontier_text.frontier_text", lambda *values: "")
    rows = [
        {"status": "ok", "fits": True, "point_id": point, "device": device}
        for point in "ab"
        for device in ("cpu", "sim:cpu")
    ]
    Show(plan()).ended(rows[left_out:], tmp_path)
    assert capsys.readouterr().out.splitlines()[1] == total


def test_without_a_terminal_the_lines_are_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with show_for(plan(), tmp_path) as show:
        show.began("cpu", point())
        show.settled("cpu", point(), outcome(Status.OK), recalled=False)
    assert type(show) is Show
    assert capsys.readouterr().out == "cpu  forward  fits\n"


@pytest.mark.parametrize("variable", ["TERM=dumb", "TERM=xterm-color", "JPY_PARENT_PID=7"])
def test_a_terminal_that_cannot_redraw_and_that_of_a_notebook_have_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    with show_for(plan(), tmp_path) as show:
        assert type(show) is LiveShow
    monkeypatch.setenv(*variable.split("="))
    with show_for(plan(), tmp_path) as show:
        assert type(show) is Show


def test_a_device_that_another_sweep_holds_at_every_point_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(plan(batch=(1, 2, 4)))
    for batch, holder in ((1, "mine"), (2, "mine"), (4, "other")):
        path = f"/a/long/folder/outputs/{holder}/points/0123.{batch}.cpu.1 (pid 7)"
        show.waiting("cpu", point(batch=batch), path)
    assert capsys.readouterr().out.splitlines() == [
        "cpu  waits: in use by the sweep mine (pid 7)",
        "cpu  waits: in use by the sweep other (pid 7)",
    ]


def test_quiet_breaks_lines_between_words_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sweeper.views.frontier_text.frontier_text", lambda *values: "what fits " * 12)
    monkeypatch.setenv("COLUMNS", "80")
    ended = [{"status": "ok", "fits": True, "point_id": "a", "device": "cpu"}]
    with show_for(plan(), tmp_path, QUIET) as show:
        show.ended(ended, tmp_path)
        assert "what fits " * 12 in capsys.readouterr().out, "the reader of a pipe may search for lines"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        show.ended(ended, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "fits" in line and "point" not in line]
    assert len(lines) == 2
    assert all(len(line) <= 80 and line.rstrip().endswith(("what", "fits")) for line in lines)


def test_quiet_prints_the_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sweeper.views.frontier_text.frontier_text", lambda *values: "THE FRONTIER")
    with show_for(plan(batch=(1, 2)), tmp_path, QUIET) as show:
        follow_a_sweep(show)
        show.ended([{"status": "ok", "fits": True, "point_id": "a", "device": "cpu"}], tmp_path)
    assert capsys.readouterr().out.split("\n")[:4] == ["", "1 point: 1 ok; it fits", "", "THE FRONTIER"]


def follow_a_sweep(show: Show) -> None:
    """Every event of a sweep except those of its end."""
    first = point(batch=1)
    show.planned("cpu", first)
    show.waiting("cpu", first, "pid 7")
    show.began("cpu", first)
    show.tick()
    show.settled("cpu", first, outcome(Status.OK, MIB), recalled=False)
    show.remark("cpu", "a remark")
    show.gave_up("cpu", "the first 3 ended with ValueError")


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (["ok", "ok"], "2 ok; all fit"),
        (["ok"], "1 ok; it fits"),
        (["ok", "undecided"], "2 ok; 1 fits, 1 undecided"),
        (["ok", "ok", "oom", "error"], "2 ok, 1 oom, 1 error; 2 fit, 1 does not fit, 1 undecided"),
        (["oom", "oom", "skipped"], "2 oom, 1 skipped; 2 do not fit, 1 implied"),
    ],
)
def test_a_pass_that_decides_nothing_does_not_count_as_fitting(ends: list[str], text: str) -> None:
    rows = [
        {"status": "ok" if end == "undecided" else end, "fits": {"ok": True, "oom": False}.get(end)} for end in ends
    ]
    named = [{**row, "point_id": str(at), "device": "cpu"} for at, row in enumerate(rows)]
    assert summary(named).partition(": ")[2] == text


def test_a_note_is_printed_once_and_named_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(plan(batch=(1, 2)))
    for batch, notes in ((1, ("long words",)), (2, ("long words", "others"))):
        show.settled("cpu", point(batch=batch), outcome(Status.OK, MIB, notes=notes), recalled=False)
    assert capsys.readouterr().out.splitlines() == [
        "note 1: long words",
        "cpu  batch=1  fits, 1.00 MiB resident; note 1",
        "note 2: others",
        "cpu  batch=2  fits, 1.00 MiB resident; note 1, 2",
    ]


def test_a_long_message_is_printed_whole_once(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(plan(batch=(1, 2)))
    for batch in (1, 2):
        failed = outcome(Status.ERROR, error_type="ValueError", error_message="word " * 29)
        show.settled("cpu", point(batch=batch), failed, recalled=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" ".join(["word"] * 29))
    assert second.endswith("word ... (as before)")
    assert len(second) < 160


def test_an_error_has_its_place_in_the_users_code_and_the_file_with_what_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    show = Show(plan(batch=(1, 2)), tmp_path / "outputs" / "run")
    raised = f'Traceback (most recent call last):\n  File "{tmp_path}/train.py", line 7, in run\nValueError: odd\n'
    failed = outcome(Status.ERROR, error_type="ValueError", error_message="odd", traceback=raised, attempt=1)
    show.settled("cpu", point(batch=1), failed, recalled=False)
    assert capsys.readouterr().out == "cpu  batch=1  error: ValueError: odd; at train.py:7\n"  # it printed nothing
    id = point(batch=2).id
    log = Path("outputs", "run", "points", id[:2], f"{id}.cpu.1", "output.log")
    log.parent.mkdir(parents=True)
    log.write_text("what it printed")
    show.settled("cpu", point(batch=2), failed, recalled=False)
    assert capsys.readouterr().out == f"cpu  batch=2  error: ValueError: odd; at train.py:7; output: {log}\n"


def test_on_cpu_the_tensors_come_before_what_is_resident() -> None:
    phase = Phase(
        name="cold_forward", run_index=0, device="cpu", completed=True, peak={"resident": 445 * MIB, "tensor": 68 * MIB}
    )
    ended = Outcome(status=Status.OK, device=device_named("cpu"), phases=(phase,))
    assert outcome_text(ended) == "fits, 68.00 MiB tensors, 445.00 MiB resident"


def test_assumed_values_of_a_built_in_workload_have_no_line() -> None:
    inside, line = {"file": "the workload", "line": 0}, {"file": "train.py", "line": 7}
    assert assumed_text(283, [inside], []) == ", 283 assumed values in the built-in workload"
    assert assumed_text(1, [inside, line], []) == ", 1 assumed value, train.py:7"
