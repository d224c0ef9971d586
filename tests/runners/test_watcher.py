"""The watcher of a supervisor, with short programs in place of the supervisor and the orchestrator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners import processes

ROOT = Path(__file__).parents[2]
# A supervisor with a child in a session of its own. It prints both pids and its watcher's.
SUPERVISOR = """
import os, signal, subprocess, sys, time
from runners import watcher
watcher.GRACE_SECONDS = 0.2
watcher.fork_supervisor()
child = subprocess.Popen(["sleep", "3600"], start_new_session=True, stdin=-3, stdout=-3)
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
print(os.getppid(), os.getpid(), child.pid, flush=True)
"""
WAITS = "while True: time.sleep(3600)"
ORCHESTRATOR = """
import subprocess, sys
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]], start_new_session=True)
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def printed(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 10
    while any(processes._state(pid) not in (None, "Z") for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    return all(processes._state(pid) in (None, "Z") for pid in pids)


@pytest.mark.parametrize(
    ("end", "code"),
    [("os._exit(0)", 0), ("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)],
)
def test_a_watcher_ends_as_its_supervisor_does_once_nothing_is_left(end: str, code: int) -> None:
    with python(SUPERVISOR + end) as watcher:
        pids = printed(watcher)
        assert watcher.wait(30) == code
        assert all(processes._state(pid) in (None, "Z") for pid in pids)


def test_a_watcher_passes_on_a_request_to_end() -> None:
    with python(SUPERVISOR + WAITS) as watcher:
        _, _, child = printed(watcher)
        watcher.terminate()
        assert watcher.wait(30) == 5
        assert processes._state(child) in (None, "Z")


@pytest.mark.parametrize("stopped", [None, "watcher", "supervisor", "both"])
def test_when_the_orchestrator_dies_a_supervisor_that_does_not_end_is_ended(stopped: str | None) -> None:
    with python(ORCHESTRATOR, SUPERVISOR + WAITS) as orchestrator:
        watcher, supervisor, child = printed(orchestrator)
        for name, pid in (("watcher", watcher), ("supervisor", supervisor)):
            if stopped in (name, "both"):
                os.kill(pid, signal.SIGSTOP)
        orchestrator.kill()
        try:
            assert gone([watcher, supervisor, child])
        finally:
            for pid in (watcher, supervisor, child):
                processes.kill(pid)


def test_a_supervisor_goes_on_when_its_watcher_dies_even_if_it_is_stopped() -> None:
    with python(SUPERVISOR + "os.kill(os.getpid(), signal.SIGSTOP); print('on', flush=True)") as watcher:
        _, supervisor, child = printed(watcher)
        until = time.monotonic() + 10
        while not processes.is_stopped(supervisor) and time.monotonic() < until:
            time.sleep(0.01)
        watcher.kill()
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "on\n"
        processes.kill(child)


NO_ROOM = """
import errno, os
def refuse(): raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
os.fork = refuse
from runners import watcher
watcher.fork_supervisor()
print(os.getpid(), flush=True)
"""


def test_a_supervisor_works_without_a_watcher_where_the_system_has_no_room_for_one() -> None:
    with python(NO_ROOM) as supervisor:
        assert printed(supervisor) == [supervisor.pid]
        assert supervisor.wait(30) == 0
