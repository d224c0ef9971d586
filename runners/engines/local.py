"""The engine of this machine: one supervisor process per lane, under the measured interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import launch_command, processes
from runners.engines import watched
from runners.facts import Exit
from runners.point import Attempt, AttemptFolder


class EngineFailed(Exception):
    """No process can be started, or results can no longer be written (a full disk): the sweep has to end."""


KINDS = ("began", "waiting", "settled", "unkept")
MOST_SUPERVISORS = 3  # that are started for an attempt that does not begin
# Seconds after an attempt's deadline in which its supervisor reports its end: it takes up to 6 for processes that do
# not end when they are killed. After that the supervisor itself must have been stopped.
OVERDUE_SECONDS = 7.0
LEAVES_WITHIN = 10.0  # seconds for a supervisor to leave when its lane is closed


@dataclass(frozen=True, slots=True)
class Event:
    """A change of an attempt: it `began`, is `waiting` for its device (`detail`: for what), or has `settled`.

    `unkept`: it has ended, and its workload left no place to write that to (`detail`: why).
    """

    kind: str
    folder: AttemptFolder
    lane: str
    detail: str | None = None


@dataclass
class _Lane:
    process: subprocess.Popen[bytes]  # the supervisor's watcher, on Linux; elsewhere the supervisor
    environment: tuple[object, ...]  # properties of the supervisor that a template cannot change
    under_way: AttemptFolder | None = None
    attempt: Attempt | None = None  # under way
    began: bool = False  # as far as the supervisor has reported
    tries: int = 0  # supervisors that were handed the attempt
    due: float | None = None  # by time.monotonic(): when the attempt's end must have been reported
    overdue: bool = False
    unread: bytes = b""


class Local:
    """An engine: `start` an attempt in a lane, `wait` for events, `cancel` what runs, `close`.

    A lane runs one attempt at a time. There are no threads: the orchestrator waits in `wait` only, and a byte written
    to the descriptor `wake` (such as a signal's number) ends the waiting. Children that this process had before are
    left alone.
    """

    name = "local"

    def __init__(self, python: str, lanes: int, wake: int | None = None) -> None:
        self._others = processes.Present()
        self.python, self.count = python, lanes
        self._lanes: dict[str, _Lane] = {}
        self._cancelled: str | None = None  # why
        self._selector = selectors.DefaultSelector()
        self._wake: int | None = None
        if wake is not None:
            self.wake_by(wake)

    def wake_by(self, descriptor: int) -> None:
        """Let a byte written to the descriptor end the waiting."""
        self._wake = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, None)

    def expect(self, attempt: Attempt, lane: str) -> None:
        """Start the lane's supervisor before its first attempt is known; it imports the libraries meanwhile.

        `attempt`: a calculated one in the same environment, of whose values only those that name libraries matter. If
        the first attempt needs another environment, it gets another supervisor. Raises EngineFailed.
        """
        self._send(self._supervisor(lane, attempt), {"expect": attempt.to_json()})

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
        selected = [key.data for key, _ in self._selector.select(self._seconds_to_wait(timeout))]
        for name in selected:
            if name is None:
                self._drain()
            else:
                events += self._read(name)
        for name in [each for each in self._lanes if each not in selected]:  # what they have reported is read
            events += self._check_deadline(name)
        return events

    def _seconds_to_wait(self, timeout: float | None) -> float | None:
        """The time until an attempt is overdue, `timeout` at the most."""
        times = [lane.due - time.monotonic() for lane in self._lanes.values() if lane.due is not None]
        times += [] if timeout is None else [timeout]
        return max(0.0, min(times)) if times else None

    def _drain(self) -> None:
        """Read what has ended the waiting, or it would end every later one at once."""
        assert self._wake is not None
        os.read(self._wake, 2**16)

    def has(self, lane: str) -> bool:
        """Whether the lane has a supervisor already, which imports libraries or has imported them."""
        return lane in self._lanes

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
            lane.process.kill()
        processes.end_descendants(spare=self._others.now())

    def close(self) -> None:
        """End the supervisors and every process below them."""
        for name in list(self._lanes):
            self._dismiss(name)
        self._selector.close()

    def _supervisor(self, name: str, attempt: Attempt) -> _Lane:
        environment = _environment(attempt)
        lane = self._lanes.get(name)
        if lane is not None and lane.environment != environment:
            self._dismiss(name)
            lane = None
        if lane is None:
            try:
                process = watched.start(
                    launch_command.command(self.python, "supervise", str(self.count)),
                    env=launch_command.environ(attempt.environ or {}),
                    cwd=attempt.cwd,
                )
            except OSError as error:
                raise EngineFailed(f"{self.python} cannot be started: {processes.why_refused(error)}") from error
            lane = self._lanes[name] = _Lane(process, environment)
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ, name)
        return lane

    def _send(self, lane: _Lane, command: Mapping[str, Any]) -> None:
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
        events: list[Event] = []
        for line in lines:
            answer = _answer(line)
            if answer is None:  # a workload can write to this pipe, as every process of its user can
                for pid in processes.family_of(lane.process.pid):  # the supervisor too, or it settles the attempt first
                    processes.kill(pid)
                lane.process.kill()
                return [*events, *self._handle_death(name)]
            if "failed" in answer:
                raise EngineFailed(f"{answer['failed']}: {answer['error']}")
            kind = next(kind for kind in KINDS if kind in answer)
            detail = answer.get("for") or answer.get("error")
            events.append(Event(kind, AttemptFolder(Path(answer[kind])), name, detail))
            lane.began = lane.began or kind == "began"
            lane.due = self._due(lane) if kind == "began" else None  # it waits for its device without a deadline
            if kind in ("settled", "unkept"):
                lane.under_way = None
        return events

    def _due(self, lane: _Lane) -> float | None:
        timeout = None if lane.attempt is None else lane.attempt.timeout
        return None if timeout is None else time.monotonic() + timeout + OVERDUE_SECONDS

    def _check_deadline(self, name: str) -> list[Event]:
        """End a supervisor that does not end its attempt, and settle the attempt as timed out.

        A workload can stop its supervisor, or trace it.
        """
        lane = self._lanes[name]
        if lane.due is None or time.monotonic() < lane.due:
            return []
        lane.overdue = True
        lane.process.kill()
        return self._handle_death(name)

    def _handle_death(self, name: str) -> list[Event]:
        """End what a supervisor that died has left, and settle its attempt as lost.

        An attempt that had not begun is handed to a new supervisor, up to MOST_SUPERVISORS in all.
        """
        lane = self._lanes.pop(name)
        self._forget(lane)
        code = self._end(lane, watched.ENDS_WITHIN)
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
            if lane.overdue:
                why = f"not done after timeout={attempt.timeout:g} seconds; its supervisor did not end it"
                exit = Exit(timed_out=True, reason=why)
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
        self._end(lane, LEAVES_WITHIN if lane.attempt is not None else 0.0)  # it may be importing for seconds

    def _end(self, lane: _Lane, patience: float) -> int:
        """Wait for a lane's process, then kill it; end what it has left below us. Returns its exit code."""
        lanes = [other.process.pid for other in self._lanes.values()]
        return watched.end(lane.process, patience, spare=lambda: [*lanes, *self._others.now()])

    def _forget(self, lane: _Lane) -> None:
        assert lane.process.stdout is not None
        assert lane.process.stdin is not None
        self._selector.unregister(lane.process.stdout)
        lane.process.stdin.close()
        lane.process.stdout.close()


def _answer(line: bytes) -> dict[str, str] | None:
    """The answer of a supervisor; None for a line that no supervisor writes."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    if not isinstance(answer, dict) or not {*KINDS, "failed"} & answer.keys():
        return None
    return answer


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
