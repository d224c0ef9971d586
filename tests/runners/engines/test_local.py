"""The engine of this machine, with real supervisors and short programs: what it reports and what it leaves behind."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners import processes
from runners.device import CPU_CARD, device_named
from runners.engines.local import EngineFailed, Event, Local
from runners.outcome import Status
from runners.point import Attempt, Point
from runners.record import outcome_in
from tests.measuring import SETTLED, Lab

OTHERS: set[int] = set()  # the children of other tests: an engine leaves them alone


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    OTHERS.update(processes.descendants_of(os.getpid()))
    lab = Lab(tmp_path / "attempts", tmp_path)
    yield lab
    lab.engine.close()


def start(lab: Lab, *argv: str, start: str = "cold", environ: dict[str, str | None] | None = None) -> Attempt:
    workload = {"name": "command", "argv": list(argv) or ["true"], "params": {}}
    values: dict[str, Any] = {**SETTLED, "model": None, "workload": workload, "start": start}
    return lab.start_values(values, environ=environ)


def events(engine: Local, until: str = "settled") -> list[Event]:
    found: list[Event] = []
    while not any(event.kind == until for event in found):
        found += engine.wait(30)
    return found


def test_an_attempt_begins_and_settles_in_its_lane(lab: Lab) -> None:
    attempt = start(lab)
    found = events(lab.engine)
    assert [(event.kind, event.lane) for event in found] == [("began", "cpu"), ("settled", "cpu")]
    assert {event.folder.path for event in found} == {lab.folder(attempt).path}
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.code, exit.signal, exit.timed_out) == (0, None, False)


def test_waiting_ends_after_its_timeout_or_when_the_descriptor_is_written_to() -> None:
    read, write = os.pipe()
    engine = Local("python", lanes=1, wake=read)
    try:
        assert engine.wait(0) == []
        os.write(write, b"2")
        assert engine.wait(None) == []
        assert not select.select([read], [], [], 0)[0], "else it would end every later wait at once"
    finally:
        engine.close()
        os.close(read)
        os.close(write)


def test_a_supervisor_serves_what_it_can_and_another_takes_the_rest(lab: Lab) -> None:
    supervisors = []
    for how, environ in (
        ("cold", {"OMP_WAIT_POLICY": "PASSIVE"}),
        ("cold", {"OMP_WAIT_POLICY": "ACTIVE"}),  # each process is started with its own
        ("warm", {"OMP_WAIT_POLICY": "ACTIVE"}),
        ("warm", {"OMP_WAIT_POLICY": "ACTIVE"}),
        ("warm", {"OMP_WAIT_POLICY": "PASSIVE"}),  # a template has read its variables
    ):
        start(lab, start=how, environ=dict(environ))
        events(lab.engine)
        supervisors.append(lab.supervisor)
    first, second, third, fourth, fifth = supervisors
    assert first == second
    assert third == fourth
    assert len({first, third, fifth}) == 3
    lab.engine.renew("cpu")
    start(lab, start="warm", environ={"OMP_WAIT_POLICY": "PASSIVE"})
    events(lab.engine)
    assert lab.supervisor != fifth


def test_an_expected_calculation_finds_its_libraries_imported(lab: Lab) -> None:
    """The attempt is the first of its supervisor, and yet torch is in sys.modules before the workload is imported."""
    (lab.cwd / "early.py").write_text(
        "import sys\nWAS_THERE = 'runners.simulation.torch_tracer' in sys.modules\n"
        "def run(**_):\n    import torch\n    return {'imported': WAS_THERE, 'bytes': torch.empty(4).nbytes}\n"
    )
    values = {**SETTLED, "model": None, "workload": {"name": "custom", "target": "early:run", "params": {}}}
    environ: dict[str, str | None] = {"OMP_WAIT_POLICY": "PASSIVE"}
    expected = Attempt(
        point=Point(values={"workload": {"name": "custom"}}),
        device=device_named("sim:cpu"),
        environ=environ,
        cwd=str(lab.cwd),
    )
    lab.engine.expect(expected, "cpu")
    watcher = lab.watcher
    attempt = lab.start_values(values, environ, device="sim:cpu", card=CPU_CARD.to_json())
    assert lab.settle(attempt).outcome.metrics == {"imported": True, "bytes": 16}
    assert lab.watcher == watcher


def test_an_expected_calculation_that_never_comes_delays_nothing_and_leaves_nothing(lab: Lab) -> None:
    point = Point(values={"workload": {"name": "custom"}})
    lab.engine.expect(Attempt(point=point, device=device_named("sim:cpu"), cwd=str(lab.cwd)), "cpu")
    watcher = lab.watcher
    began = time.monotonic()
    lab.engine.close()
    assert time.monotonic() - began < 1, "it would be importing torch for longer"
    assert watcher not in processes.descendants_of(os.getpid())


def test_what_is_cancelled_settles_as_interrupted(lab: Lab) -> None:
    attempt = start(lab, "sleep", "3600")
    events(lab.engine, "began")
    lab.engine.cancel("Ctrl-C")
    events(lab.engine)
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.interrupted, exit.reason) == (True, "Ctrl-C")


def test_an_attempt_whose_supervisor_dies_settles_as_lost_and_nothing_of_it_is_left(lab: Lab) -> None:
    attempt = start(lab, "sleep", "3600")
    events(lab.engine, "began")
    os.kill(lab.supervisor, signal.SIGKILL)
    assert [event.kind for event in events(lab.engine)] == ["settled"]
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.lost, exit.reason) == (True, "its supervisor died (SIGKILL)")
    assert running() == []
    start(lab)
    events(lab.engine)


def test_a_supervisor_that_dies_without_an_attempt_is_replaced_and_no_event(lab: Lab) -> None:
    start(lab)
    events(lab.engine)
    before = lab.supervisor
    os.kill(before, signal.SIGKILL)
    assert lab.engine.wait(30) == []
    start(lab)
    events(lab.engine)
    assert lab.supervisor != before


def test_an_attempt_that_is_handed_to_a_supervisor_that_ended_runs_on_another(lab: Lab) -> None:
    start(lab)
    events(lab.engine)
    os.kill(lab.supervisor, signal.SIGKILL)
    attempt = start(lab)
    found = events(lab.engine)
    assert [event.kind for event in found] == ["began", "settled"]
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.code, exit.lost) == (0, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_attempt_that_waits_when_its_supervisor_is_ended_runs_on_another(
    lab: Lab, tmp_path: Path, number: int
) -> None:
    lock = tmp_path / "device.lock"
    workload = {"name": "command", "argv": ["true"], "params": {}}
    values: dict[str, Any] = {**SETTLED, "model": None, "workload": workload, "start": "cold"}
    attempt = Attempt(point=Point(values=values), device=device_named("cpu"), cwd=str(lab.cwd), locks=(str(lock),))
    folder = lab.folder(attempt)
    folder.create(attempt)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lab.engine.start(attempt, folder, "cpu")
        events(lab.engine, "waiting")
        before = lab.supervisor
        os.kill(before, number)
        events(lab.engine, "waiting")
        assert lab.supervisor != before
    events(lab.engine)
    exit = folder.settled()
    assert exit is not None
    assert (exit.code, exit.lost, exit.interrupted) == (0, None, None)


@pytest.mark.parametrize("ended", ["supervisor", "watcher"])
def test_an_attempt_whose_supervisor_is_sent_sigterm_is_lost_and_so_not_repeated(lab: Lab, ended: str) -> None:
    attempt = start(lab, "sh", "-c", "echo > runs; exec sleep 3600")
    until = time.monotonic() + 30
    while not (lab.cwd / "runs").exists() and time.monotonic() < until:
        lab.engine.wait(0.02)
    os.kill(getattr(lab, ended), signal.SIGTERM)
    events(lab.engine)
    outcome = outcome_in(lab.folder(attempt), attempt)
    assert (outcome.status, outcome.fits, outcome.void) == (Status.LOST, None, False)
    assert outcome.error_message == "its supervisor was ended by SIGTERM"
    after = start(lab)
    events(lab.engine)
    assert outcome_in(lab.folder(after), after).status is Status.OK


def test_an_attempt_is_interrupted_if_its_sweep_is_stopped_when_its_supervisor_is_sent_sigterm(lab: Lab) -> None:
    """A batch system sends it to every process of a job."""
    attempt = start(lab, "sleep", "3600")
    events(lab.engine, "began")
    os.kill(lab.supervisor, signal.SIGTERM)
    lab.engine.cancel("the sweep was stopped by SIGTERM")
    events(lab.engine)
    outcome = outcome_in(lab.folder(attempt), attempt)
    assert (outcome.status, outcome.error_message) == (Status.INTERRUPTED, "the sweep was stopped by SIGTERM")


def test_an_attempt_that_no_supervisor_begins_is_lost_after_some_and_void(lab: Lab, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho >> supervisors\nread line\nexit 3\n")
    python.chmod(0o755)
    lab.engine.close()
    lab.engine = Local(str(python), lanes=1)
    attempt = start(lab)
    assert [event.kind for event in events(lab.engine)] == ["settled"]
    outcome = outcome_in(lab.folder(attempt), attempt)
    assert (outcome.status, outcome.void) == (Status.LOST, True)
    assert outcome.error_message == "3 supervisors died before the attempt began (exit code 3)"
    assert len((tmp_path / "supervisors").read_text().splitlines()) == 3


def test_an_attempt_that_is_cancelled_before_it_began_is_handed_to_no_other_supervisor(lab: Lab) -> None:
    start(lab)
    events(lab.engine)
    os.kill(lab.supervisor, signal.SIGKILL)
    attempt = start(lab)
    lab.engine.cancel("Ctrl-C")
    assert [event.kind for event in events(lab.engine)] == ["settled"]
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.interrupted, exit.reason, exit.pid) == (True, "Ctrl-C", None)


def test_an_interpreter_that_cannot_be_started_ends_the_sweep_with_the_reason(lab: Lab, tmp_path: Path) -> None:
    lab.engine.close()
    lab.engine = Local(str(tmp_path / "no-python"), lanes=1)
    with pytest.raises(EngineFailed, match="no-python cannot be started: No such file or directory"):
        start(lab)


def test_an_attempt_whose_folder_is_gone_is_not_kept_and_the_engine_goes_on(lab: Lab) -> None:
    """The program puts a file where the folder of its attempt was."""
    start(lab, "sh", "-c", f"rm -r {lab.root}; touch {lab.root}")
    *_, last = events(lab.engine, "unkept")
    assert last.kind == "unkept"
    assert "cannot be written" in (last.detail or "")


def test_killed_or_closed_an_engine_leaves_no_process(lab: Lab) -> None:
    start(lab, "sleep", "3600")
    events(lab.engine, "began")
    lab.engine.kill()
    assert running() == []
    start(lab)
    lab.engine.close()
    assert running() == []
    lab.engine = Local("python", lanes=1)


def test_a_supervisor_that_dies_with_its_watcher_takes_nothing_with_it_that_was_there_before(
    lab: Lab, tmp_path: Path
) -> None:
    """A shell with a child, and a child whose parent has ended: an orphan comes to the engine's process."""
    lab.engine.close()
    script = "sleep 3600 & echo $!; sh -c 'sleep 3600 & echo $!'; read _; exit"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        others = [int(shell.stdout.readline()) for _ in range(2)]
        try:
            lab.engine = Local(sys.executable, lanes=1)
            start(lab, "setsid", "sleep", "3600")
            events(lab.engine, "began")
            ours = [lab.watcher, *processes.descendants_of(lab.watcher)]
            shell.stdin.close()  # it ends, and both its children are orphans
            shell.wait()
            os.kill(lab.watcher, signal.SIGSTOP)
            os.kill(lab.supervisor, signal.SIGKILL)
            os.kill(lab.watcher, signal.SIGKILL)
            events(lab.engine)
            assert [pid for pid in ours if processes._state(pid) not in (None, "Z")] == []
            assert [pid for pid in others if processes._state(pid) in (None, "Z")] == []
        finally:
            for pid in others:
                processes.kill(pid)
                os.waitpid(pid, 0)


def test_an_attempt_that_settled_while_this_process_was_stopped_is_not_overdue(lab: Lab) -> None:
    attempt = start(lab)
    events(lab.engine, "began")
    while not lab.folder(attempt).exit.exists():
        time.sleep(0.01)
    lab.engine._lanes["cpu"].due = 0.0
    events(lab.engine)
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.code, exit.timed_out) == (0, False)


def test_an_attempt_that_was_begun_anew_does_not_settle(lab: Lab) -> None:
    """As by a supervisor that goes on after its orchestrator died and the run was resumed."""
    attempt = start(lab, "sleep", "3600")
    events(lab.engine, "began")
    lab.folder(replace(attempt, number=attempt.number + 1)).path.mkdir()
    lab.engine.cancel("Ctrl-C")
    events(lab.engine)
    exit = lab.folder(attempt).settled()
    assert exit is not None
    assert (exit.lost, exit.interrupted, exit.pid) == (True, None, None)


def running() -> list[int]:
    found = processes.descendants_of(os.getpid())
    return [pid for pid in found if pid not in OTHERS and processes._state(pid) != "Z"]
