"""The events of a sweep as a program reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.outcome import Status
from sweeper.views.sweep_events import EventShow
from sweeper.views.sweep_output import JSON, show_for
from tests import command_line
from tests.sweeper.views.test_progress import MIB, follow_a_sweep, outcome, plan, point


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_event_is_an_object_on_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with show_for(plan(batch=(1, 2)), tmp_path, JSON) as show:
        follow_a_sweep(show)
        show.stopping(2)
        show.stopped("the disk\nis full")
        show.unfinished(("sweeper", "a=two words"))
    found = events(capsys.readouterr().out)
    assert [each["event"] for each in found] == [
        *("planned", "waiting", "began", "settled", "remark", "gave_up", "stopping", "stopped", "unfinished"),
    ]
    of_the_point = {"device": "cpu", "point_id": point(batch=1).id, "values": {"batch": 1}}
    assert all(each.items() >= of_the_point.items() for each in found[:4])
    assert found[1]["holder"] == "pid 7"
    settled = {"status": "ok", "fits": True, "recalled": False, "peak_bytes": {"resident": MIB}, "kind": "measured"}
    assert found[3].items() >= settled.items()
    assert found[8] | {"event": ""} == {
        "event": "",
        "command": ["sweeper", "a=two words"],
        "typed": "sweeper 'a=two words'",
    }


def test_a_figure_that_was_not_measured_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    EventShow(plan(batch=(1, 2))).settled("cpu", point(batch=1), outcome(Status.LOST), recalled=False)
    (event,) = events(capsys.readouterr().out)
    assert event["fits"] is None
    assert event["peak_bytes"] == {}
    assert event["duration_s"] is None


def test_a_sweep_with_json_prints_nothing_else_and_ends_with_its_summary(tmp_path: Path) -> None:
    script = "workload.argv=[sh,-c,'[ $1 = 1 ]',sh,'{batch}']"  # it starts faster than what needs torch
    words = ["workload=command", script, "devices=[cpu]", "batch=1,2", "name=run"]
    done = command_line.run([*words, "--json"], tmp_path)
    assert done.returncode == 3, done.stderr
    found = events(done.stdout)
    begins = [each["event"] for each in found]
    assert begins == [*("planned", "planned", "began", "settled", "began", "settled", "ended")]
    summary = {"points": 2, "rows": 2, "statuses": {"ok": 1, "error": 1}, "fit": 1, "do_not_fit": 0, "undecided": 1}
    assert found[-1].items() >= {**summary, "folder": str(tmp_path / "outputs" / "run")}.items()
    assert [(edge["side"], edge["batch"]) for edge in found[-1]["frontier"]] == [("fits", 1)]
    again = command_line.run([*words, "--quiet"], tmp_path)
    assert again.stdout.splitlines()[:2] == ["", "2 points: 1 ok, 1 error; 1 fits, 1 undecided"]
    assert "batch=2  error" not in again.stdout


def test_quiet_and_json_together_are_refused_in_one_line(tmp_path: Path) -> None:
    done = command_line.run(["batch=1", "--json", "--quiet"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "keep one" in done.stderr
