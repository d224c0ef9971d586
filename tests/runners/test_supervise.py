"""How a supervisor locks devices before an attempt starts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from runners.device import device_named
from runners.outcome import Status
from runners.point import Attempt, Point
from runners.supervise import quiet_stderr
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


def test_messages_of_imported_libraries_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_stderr():
        os.write(2, b"Failed to load a kernel")
    os.write(2, b"a traceback of the supervisor")
    assert capfd.readouterr().err == "a traceback of the supervisor"
