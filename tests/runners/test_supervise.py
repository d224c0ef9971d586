"""How a supervisor locks devices before an attempt starts, and that it runs what was sent."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners import launch_command
from runners.device import device_named
from runners.engines.local import EngineFailed
from runners.outcome import Status
from runners.point import Attempt, AttemptFolder, Point, write_aside
from runners.supervise import MOST_REFUSALS, Output, Running, Supervisor, quiet_stderr
from tests.measuring import SETTLED, Lab


def test_an_attempt_on_two_devices_waits_for_either_and_locks_neither_meanwhile(lab: Lab, tmp_path: Path) -> None:
    first, second = tmp_path / "first.lock", tmp_path / "second.lock"
    workload = {"name": "custom", "target": "faulty:good", "params": {}}
    attempt = Attempt(
        point=Point(values={**SETTLED, "model": None, "workload": workload}),
        device=device_named("cpu"),
        number=10_000,
        cwd=str(lab.cwd),
        environ={"OMP_WAIT_POLICY": "PASSIVE"},
        locks=(str(first), str(second)),
    )
    with second.open("w") as held:
        held.write("held by a test")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        folder = lab.folder(attempt)
        folder.create(attempt)
        lab.engine.start(attempt, folder, "cpu")
        assert lab.wait_for("waiting").detail == "held by a test"
        with first.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert lab.settle(attempt).outcome.status is Status.OK


def requests(folder: Path) -> tuple[Attempt, Attempt]:
    """What a sweep requests, and what another user puts in its place."""
    ours, theirs = (
        Attempt(
            point=Point(values={**SETTLED, "start": start, "workload": {"name": "command", "argv": argv}}),
            device=device_named("cpu"),
            cwd=str(folder),
        )
        for start, argv in (("cold", ["true"]), ("cold", ["touch", "was-run"]))
    )
    return ours, theirs


def test_a_request_that_was_replaced_in_its_folder_is_not_run_by_a_supervisor(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "attempts", tmp_path)
    ours, theirs = requests(tmp_path)
    folder = lab.folder(ours)
    folder.create(ours)
    write_aside(folder.request, theirs.to_json())
    try:
        lab.engine.start(ours, folder, "cpu")
        with pytest.raises(EngineFailed, match=r"point\.json was replaced after it was written"):
            lab.wait_for("settled")
    finally:
        lab.engine.close()
    assert not (tmp_path / "was-run").exists()
    assert not folder.journal.exists()


def test_a_request_that_was_replaced_in_its_folder_is_not_run_by_a_cold_process(tmp_path: Path) -> None:
    ours, theirs = requests(tmp_path)
    folder = AttemptFolder(tmp_path / "attempt")
    folder.create(theirs)
    command = launch_command.command(sys.executable, "child", str(folder.path), "0", ours.digest)
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "point.json was replaced after it was written" in refused.stderr
    assert not (tmp_path / "was-run").exists()
    assert not folder.journal.exists()


class Full(Supervisor):
    """A supervisor whose system has room for another process at its third request, or never."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.answers = self._answers = io.StringIO()
        self.refused, self.refusals = 0, refusals

    def _start(self, running: Running) -> None:
        running.journal = os.open(running.folder.journal, os.O_RDONLY | os.O_CREAT)
        if self.refused < self.refusals:
            self.refused += 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        running.output, running.pid = Output(os.open(os.devnull, os.O_RDONLY), running.folder.output), os.getpid()
        self._selector = Everything()  # type: ignore[assignment]


class Everything:
    def register(self, *_: object) -> None: ...


def handed_to(supervisor: Full, folder: Path) -> Running:
    values = {**SETTLED, "start": "cold", "workload": {"name": "command", "argv": ["true"]}}
    attempt = Attempt(point=Point(values=values), device=device_named("cpu"), cwd=str(folder))
    place = AttemptFolder(folder / "attempt")
    place.create(attempt)
    running = supervisor._running = Running(folder=place, attempt=attempt)
    supervisor._begin(running)
    while running.pid is None and place.settled() is None:
        supervisor._next_look = 0.0
        supervisor._check_time()
    return running


def test_an_attempt_starts_once_the_system_has_room_for_its_process_again(tmp_path: Path) -> None:
    supervisor = Full(refusals=2)
    running = handed_to(supervisor, tmp_path)
    assert running.folder.settled() is None
    waiting, began = map(json.loads, supervisor.answers.getvalue().splitlines())
    assert waiting["for"].startswith("no process could be started: Resource temporarily unavailable (ulimit -u is ")
    assert "began" in began


def test_an_attempt_for_which_the_system_has_no_process_is_unavailable_with_the_limit(tmp_path: Path) -> None:
    supervisor = Full(refusals=1000)
    exit = handed_to(supervisor, tmp_path).folder.settled()
    assert supervisor.refused == MOST_REFUSALS
    assert exit is not None
    assert "Resource temporarily unavailable (ulimit -u is " in (exit.unavailable or "")


def test_messages_of_imported_libraries_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_stderr():
        os.write(2, b"Failed to load a kernel")
    os.write(2, b"a traceback of the supervisor")
    assert capfd.readouterr().err == "a traceback of the supervisor"


@pytest.mark.parametrize("command", [b"5\n", b'{"run": "a"}\n'])
def test_an_error_of_a_supervisor_is_one_line(command: bytes) -> None:
    ended = subprocess.run(launch_command.command(sys.executable, "supervise"), input=command, capture_output=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith("sweeper: a supervisor ended: ")
