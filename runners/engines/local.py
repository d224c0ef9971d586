"""The engine of this machine: one supervisor process per lane, under the measured interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runners import launch_command, processes
from runners.facts import Exit
from runners.point import Attempt, AttemptFolder


class EngineFailed(Exception):
    """No process can be started, or results can no longer be written (a full disk): the sweep has to end."""


MOST_SUPERVISORS = 3  # that are started for an attempt that does not begin


@dataclass(frozen=True, slots=True)
class Event:
    """A change of an attempt: it `began`, is `waiting` for its device (`detail`: for what), or has `settled`."""

    kind: str
    folder: AttemptFolder
    lane: str
    detail: str | None = None


@dataclass
class _Lane:
    process: subprocess.Popen[bytes]
    environment: tuple[object, ...]  # properties of the supervisor that a template cannot change
    under_way: AttemptFolder | None = None
    attempt: Attempt | None = None  # under way
    began: bool = False  # as far as the supervisor has reported
    tries: int = 0  # supervisors that were handed the attempt
    unread: bytes = b""


class Local:
    """An engine: `start` an attempt in a lane, `wait` for events, `cancel` what runs, `close`.

    A lane runs one attempt at a time. There are no threads: the orchestrator waits in `wait` only, and a byte written
    to the descriptor `wake` (such as a signal's number) ends the waiting.
    """

    name = "local"

    def __init__(self, python: str, lanes: int, wake: int | None = None) -> None:
        processes.inherit_orphans()  # of a supervisor that dies
        self._python, self._count = python, lanes
        self._lanes: dict[str, _Lane] = {}
        self._cancelled: str | None = None  # why
        self._selector = selectors.DefaultSelector()
        if wake is not None:
            self._selector.register(wake, selectors.EVENT_READ, None)

    def start(self, attempt: Attempt, folder: AttemptFolder, lane: str) -> None:
        """Send an attempt, whose folder is created, to the lane's supervisor. Raises EngineFailed if there is none."""
        self._cancelled = None
        self._hand_over(attempt, folder, lane, tries=1)

    def _hand_over(self, attempt: Attempt, folder: AttemptFolder, lane: str, tries: int) -> None:
        supervisor = self._supervisor(lane, attempt)
        supervisor.under_way, supervisor.attempt = folder, attempt
        supervisor.began, supervisor.tries = False, tries
        self._send(supervisor, {"run": str(folder.path.absolute()), "digest": attempt.digest})

    def wait(self, timeout: float | None) -> list[Event]:
        """The events since the last call, after at most `timeout` seconds. Raises EngineFailed."""
        events: list[Event] = []
        for key, _ in self._selector.select(timeout):
            if key.data is not None:
                events += self._read(key.data)
        return events

    def renew(self, lane: str) -> None:
        """Give the lane's next attempt a new supervisor, and so a new template."""
        if lane in self._lanes:
            self._dismiss(lane)

    def cancel(self, reason: str) -> None:
        """End every attempt under way. Each still settles."""
        self._cancelled = reason
        for lane in self._lanes.values():
            if lane.under_way is not None:
                self._send(lane, {"cancel": reason})

    def kill(self) -> None:
        """Kill everything now. Attempts under way do not settle."""
        for lane in self._lanes.values():
            with contextlib.suppress(ProcessLookupError):
                lane.process.kill()
        processes.end_descendants(os.getpid())

    def close(self) -> None:
        """End the supervisors and every process below them."""
        for name in list(self._lanes):
            self._dismiss(name)
        processes.end_descendants(os.getpid())
        self._selector.close()

    def _supervisor(self, name: str, attempt: Attempt) -> _Lane:
        environment = _environment(attempt)
        lane = self._lanes.get(name)
        if lane is not None and lane.environment != environment:
            self._dismiss(name)
            lane = None
        if lane is None:
            try:
                process = subprocess.Popen(
                    launch_command.command(self._python, "supervise", str(self._count)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=launch_command.environ(attempt.environ or {}),
                    cwd=attempt.cwd,
                    start_new_session=True,
                    bufsize=0,
                )
            except OSError as error:
                raise EngineFailed(f"{self._python} cannot be started: {processes.why_refused(error)}") from error
            lane = self._lanes[name] = _Lane(process, environment)
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ, name)
        return lane

    def _send(self, lane: _Lane, command: Mapping[str, str]) -> None:
        assert lane.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: `_read` finds its stdout closed, and the attempt is lost
            lane.process.stdin.write(json.dumps(command).encode() + b"\n")

    def _read(self, name: str) -> list[Event]:
        lane = self._lanes[name]
        assert lane.process.stdout is not None
        try:
            data = os.read(lane.process.stdout.fileno(), 2**16)
        except BlockingIOError:
            return []
        if not data:
            return self._handle_death(name)
        *lines, lane.unread = (lane.unread + data).split(b"\n")
        events = []
        for line in lines:
            answer = json.loads(line)
            if "failed" in answer:
                raise EngineFailed(f"{answer['failed']}: {answer['error']}")
            kind = next(kind for kind in ("began", "waiting", "settled") if kind in answer)
            events.append(Event(kind, AttemptFolder(Path(answer[kind])), name, answer.get("for")))
            lane.began = lane.began or kind == "began"
            if kind == "settled":
                lane.under_way = None
        return events

    def _handle_death(self, name: str) -> list[Event]:
        """End what a supervisor that died has left, and settle its attempt as lost.

        An attempt that had not begun is handed to a new supervisor, up to MOST_SUPERVISORS in all.
        """
        lane = self._lanes.pop(name)
        self._forget(lane)
        code = lane.process.wait()
        processes.end_descendants(os.getpid(), spare=frozenset(other.process.pid for other in self._lanes.values()))
        folder, attempt = lane.under_way, lane.attempt
        if folder is None or attempt is None:
            return []
        if not folder.exit.exists():
            began = lane.began or folder.began()
            if not began and self._cancelled is None and lane.tries < MOST_SUPERVISORS:
                self._hand_over(attempt, folder, name, lane.tries + 1)
                return []
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            exit = Exit(lost=True, reason=f"its supervisor died ({ended})")
            if not began:
                exit = Exit(lost=True, reason=f"{lane.tries} supervisors died before the attempt began ({ended})")
            if not began and self._cancelled is not None:
                exit = Exit(interrupted=True, reason=self._cancelled)
            try:
                folder.settle(exit)
            except OSError as error:
                raise EngineFailed(f"{folder.exit} cannot be written: {error}") from error
        return [Event("settled", folder, name)]

    def _dismiss(self, name: str) -> None:
        lane = self._lanes.pop(name)
        self._forget(lane)
        try:
            lane.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            lane.process.kill()
            lane.process.wait()

    def _forget(self, lane: _Lane) -> None:
        assert lane.process.stdout is not None
        assert lane.process.stdin is not None
        self._selector.unregister(lane.process.stdout)
        lane.process.stdin.close()
        lane.process.stdout.close()


def _environment(attempt: Attempt) -> tuple[object, ...]:
    """The properties that a running supervisor needs for an attempt; attempts with equal values can share one.

    A cold attempt can use any. A warm one is a copy of its supervisor, which read its environment variables when it
    imported the libraries, and a template that imported another point's libraries too is not clean.
    """
    if not attempt.warm:
        return ("cold",)
    if attempt.device.is_calculated:  # no process's memory is measured
        return ("calculated", tuple(sorted((attempt.environ or {}).items())))
    model = attempt.point.get("model")
    return ("warm", attempt.point.get("workload"), model, tuple(sorted((attempt.environ or {}).items())))
