"""What a person sees while a sweep runs, from a written plan and written outcomes. Nothing is started."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.device import Card, device_named
from runners.outcome import Outcome, Phase, Status
from runners.point import Point
from sweeper.objective import TOKENS
from sweeper.plan import Dimension, Plan, RunKeys
from sweeper.views import progress
from sweeper.views.progress import ENDINGS, Show, assumed_text, outcome_text, show_for

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


def point(**values: Any) -> Point:
    return Point(values={"model": {"name": "mlp"}, "workload": {"name": "forward"}, **values})


def outcome(status: Status, peak: int | None = None, device: str = "cpu", **more: Any) -> Outcome:
    named = device_named(device)
    counters = {} if peak is None else {named.deciding_counter: peak}
    phase = Phase(name="cold_forward", run_index=0, device=device, completed=status is Status.OK, peak=counters)
    return Outcome(status=status, device=named, phases=(phase,), **more)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Takes the place of stdout from now on. Not a fixture: pytest sets stdout anew when the test begins."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return terminal


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
        "cpu  batch=2 workload.checkpointing=true  waits for cpu, which is in use by pid 7 on node1",
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
    rows = [{"status": status, "point_id": str(at), "device": "cpu"} for at, status in enumerate(statuses)]
    Show(plan(batch=(1, 2))).ended(rows, tmp_path / "outputs" / "mine")
    assert capsys.readouterr().out.splitlines() == [
        *("", "4 points: 2 ok, 1 oom, 1 not_run", "", "THE FRONTIER", ""),
        "tables: outputs/mine/points.parquet, attempts, phases, environment, estimates, frontier",
    ]


@pytest.mark.parametrize(("left_out", "total"), [(0, "2 points x 2 devices: 4 ok"), (1, "2 points on 2 devices: 3 ok")])
def test_the_end_counts_a_point_on_two_devices_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left_out: int, total: str
) -> None:
    monkeypatch.setattr("sweeper.views.frontier_text.frontier_text", lambda *values: "")
    rows = [{"status": "ok", "point_id": point, "device": device} for point in "ab" for device in ("cpu", "sim:cpu")]
    Show(plan()).ended(rows[left_out:], tmp_path)
    assert capsys.readouterr().out.splitlines()[1] == total


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_without_a_terminal_the_lines_are_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with show_for(plan(), tmp_path) as show:
        show.began("cpu", point())
        show.settled("cpu", point(), outcome(Status.OK), recalled=False)
    assert type(show) is Show
    assert capsys.readouterr().out == "cpu  forward  fits\n"


def test_a_terminal_shows_what_runs_and_how_much_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    points = [point(batch=batch) for batch in (1, 2, 4)]
    with show_for(plan(batch=(1, 2, 4)), tmp_path) as show:
        for each in points:
            show.planned("cpu", each)
        show.began("cpu", points[0])
        show.settled("cpu", points[0], outcome(Status.OK, MIB, duration_s=30.0), recalled=False)
        show.began("cpu", points[1])
        now[0] += 12
        terminal.truncate(0)
        show.tick()
        assert "1 of 3 · cpu  batch=2, 12 s · about 60 s left" in terminal.getvalue()
        show.settled("cpu", points[1], outcome(Status.OK, MIB, duration_s=30.0), recalled=False)
        terminal.truncate(0)
        show.tick()
        assert "2 of 3 · about 30 s left" in terminal.getvalue()


def test_what_was_recalled_does_not_count_in_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    with show_for(plan(batch=(1, 2)), tmp_path) as show:
        for batch in (1, 2):
            show.planned("cpu", point(batch=batch))
        show.settled("cpu", point(batch=1), outcome(Status.OK, MIB, duration_s=0.0), recalled=True)
        show.tick()
    assert "1 of 2" in terminal.getvalue()
    assert "left" not in terminal.getvalue()


def test_markup_and_emoji_codes_in_a_value_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = a_terminal(monkeypatch)
    text = "[red]x[/] :smile:"
    with show_for(plan(**{"workload.params.text": (text,)}), tmp_path) as show:
        named = point(workload={"name": "custom", "params": {"text": text}})
        show.settled("cpu", named, outcome(Status.ERROR, error_message=text), recalled=False)
    assert f"workload.params.text={text}  error: {text}" in terminal.getvalue()


def test_assumed_values_of_a_built_in_workload_have_no_line() -> None:
    inside, line = {"file": "the workload", "line": 0}, {"file": "train.py", "line": 7}
    assert assumed_text(283, [inside], []) == ", 283 assumed values in the built-in workload"
    assert assumed_text(1, [inside, line], []) == ", 1 assumed value, train.py:7"
