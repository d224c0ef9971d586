"""Cases of cases.md: a sweep that is stopped, or typed again, and what it measures then."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.conftest import Ran, Sweep, command, environment, is_gone, workload

PATIENCE = 60  # seconds


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def hangs(folder: Path) -> bool:
    """Whether the third point is in its workload."""
    journals = [path.read_text() for path in folder.glob("points/**/journal.jsonl")]
    return len(journals) == 3 and all('"began"' in journal for journal in journals)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["the sweep", "its process group"])
def test_ctrl_c_keeps_finished_points_and_the_next_run_measures_the_rest(sweep: Sweep, tmp_path: Path, to: str) -> None:
    """Case 55 (QUARK#111, talos#278, minimal-ai#22)."""
    words = [*workload("threshold,state_leak,hang_until", gate=tmp_path / "gate")]
    folder = tmp_path / "outputs" / "case"
    with subprocess.Popen(
        command(words), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as sweeping:
        wait_for(lambda: hangs(folder))
        (os.kill if to == "the sweep" else os.killpg)(sweeping.pid, signal.SIGINT)
        since = time.monotonic()
        sweeping.communicate(timeout=PATIENCE)
    assert time.monotonic() - since < 5
    assert sweeping.returncode == 130
    stopped = Ran(code=130, out="", err="", folder=folder).points
    assert list(stopped["status"]) == ["ok", "ok", "interrupted"]
    assert all(is_gone(pid) for pid in stopped["pid"])

    (tmp_path / "gate").touch()
    later = sweep(*words)
    assert later.code == 0
    assert list(later.points["status"]) == ["ok", "ok", "ok"]
    assert list(later.points["attempts"]) == [1, 1, 2]
    assert list(later.points["pid"][:2]) == list(stopped["pid"][:2])


@pytest.mark.slow
def test_a_run_typed_again_measures_only_what_retry_names(sweep: Sweep) -> None:
    """Case 56 (MARRVEL_MCP#315, automlbenchmark#394, wandb#2980): four statuses, none measured twice without retry."""
    words = [*workload("grows,always_oom,partial_then_raise,hang"), "timeout=2"]
    first = sweep(*words)
    ends = ["ok", "oom", "error", "timeout"]
    assert list(first.points["status"]) == ends
    assert first.code == 3

    again = sweep(*words)
    assert again.code == 3
    assert again.out.count("(measured before)") == 4
    assert list(again.points["pid"]) == list(first.points["pid"])
    assert len(again.table("attempts")) == 4

    retried = sweep(*words, "retry=oom,error")
    assert list(retried.points["status"]) == ends
    assert list(retried.points["attempts"]) == [1, 2, 2, 1]
    assert len(retried.table("attempts")) == 6
