"""A run's folder: its lock, its plan and the folders of its attempts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from runners import files, locks, stored_json
from runners.device import Device
from runners.point import Attempt, AttemptFolder, Point
from sweeper.errors import Mistake
from sweeper.plan_lines import PLAN, PlanLine, check_format

POINTS = files.POINTS
LOCK = ".lock"


class RunFolder:
    """A run's folder, locked from `open_run` until `close`: one sweep writes to it at a time."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path, self._lock = path, lock
        self._traces, self._has_traces = path / files.TRACES, False
        self._remove_traces()  # left by a sweep that was killed
        self._plan = os.fdopen(files.open_to_write(path / PLAN, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b")
        self._unsynced = True
        try:
            self._close_torn_line()
        except OSError:  # something that is no file lies there
            self._plan.close()
            raise

    def plan(self, lines: Iterable[PlanLine]) -> None:
        """Append lines to the plan. Raises OSError if the disk is full or the folder was removed."""
        self.check()
        for line in lines:
            self._plan.write(stored_json.sealed(line.to_json()))
        self._plan.flush()
        self._unsynced = True

    def sync(self) -> None:
        """Wait until every line of the plan is on the disk. Raises OSError."""
        if self._unsynced:
            os.fsync(self._plan.fileno())
            self._unsynced = False

    def check(self) -> None:
        """Raises FileNotFoundError if the folder was removed or replaced, by one with a plan of its own too."""
        try:
            is_ours = os.path.samestat(os.lstat(self.path / PLAN), os.fstat(self._plan.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, "the run's folder was removed", str(self.path)) from None
        if not is_ours:
            raise FileNotFoundError(errno.ENOENT, "the run's folder was replaced", str(self.path))

    def was_replaced(self) -> bool:
        """Whether there is a folder with another plan in its place."""
        try:
            return not os.path.samestat(os.lstat(self.path / PLAN), os.fstat(self._plan.fileno()))
        except OSError:
            return False

    def attempts(self, point: Point, device: Device) -> Iterator[AttemptFolder]:
        """The folders of the attempts at a point on a device, oldest first."""
        number = 0
        while True:
            number += 1
            folder = self.attempt_folder(Attempt(point=point, device=device, number=number))
            kind = files.kind_of(folder.path)
            if kind is None:
                return
            if kind != files.FOLDER:
                continue
            if not folder.began():  # a sweep ended after it created the folder and before it started an attempt
                shutil.rmtree(folder.path)
                return
            yield folder

    def attempt_folder(self, attempt: Attempt) -> AttemptFolder:
        return AttemptFolder(self.path / POINTS / attempt.name)

    def allocation_trace(self, point: Point, by: str) -> Path:
        """The trace of a calculated point, shared by the attempts of this sweep with the same `by`.

        It is not kept for the next sweep: what the workload imports may change, and no fingerprint covers that.
        """
        if not self._has_traces:
            files.make_folder(self._traces)
            self._has_traces = True
        return self._traces / f"{point.id}.{hashlib.sha256(by.encode()).hexdigest()[:8]}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._remove_traces()
        with contextlib.suppress(OSError):  # a line that a full disk refused is still in the buffer; `plan` raised then
            self._plan.close()
        self._lock.close()

    def _remove_traces(self) -> None:
        if files.kind_of(self._traces) == files.FOLDER:
            shutil.rmtree(self._traces)
        else:
            files.remove(self._traces)
        self._has_traces = False

    def _close_torn_line(self) -> None:
        """End a line that a killed sweep left half written, so that readers skip that line only."""
        if self._plan.seek(0, os.SEEK_END):
            self._plan.seek(-1, os.SEEK_END)
            if self._plan.read(1) != b"\n":
                self._plan.write(b"\n")


def open_run(outputs: str, name: str | None, slug: str) -> RunFolder:
    """Open `outputs/name`, or without a name a new folder called after the time and the slug.

    Raises Mistake if it cannot be created, is not a run of sweeper, is open for another sweep, or holds something else
    in place of a file or a folder of a run.
    """
    parent = Path(outputs).expanduser().absolute()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = _new_folder(parent, slug) if name is None else _named_folder(parent / name)
        with contextlib.ExitStack() as opened:
            run = RunFolder(path, opened.enter_context(_hold(path)))
            opened.pop_all()  # the run closes its lock
        return run
    except OSError as error:
        place = error.filename or parent
        raise Mistake(f"outputs={outputs}: {place} cannot be written: {files.why(error)}") from error


def _new_folder(parent: Path, slug: str) -> Path:
    stem = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{re.sub(r'[^A-Za-z0-9._-]+', '-', slug)}"
    number = 1
    while True:  # two sweeps can start in the same second
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _named_folder(path: Path) -> Path:
    kind = files.kind_of(path)
    if kind == files.LINK:
        there = Path(os.path.realpath(path))
        instead = f"outputs={there.parent} name={there.name}"
        raise Mistake(f"name={path.name}: {path} is a symbolic link, which a sweep does not follow; type {instead}")
    if kind not in (None, files.FOLDER):
        raise Mistake(f"name={path.name}: {path} is {kind}; choose another name")
    if kind is None:
        path.mkdir()
        return path
    inside = {entry.name for entry in path.iterdir()}
    if not inside & {PLAN, POINTS} and inside - {LOCK}:
        raise Mistake(f"name={path.name}: {path} holds files and is not a run of sweeper; choose another name")
    _check_inside(path)
    check_format(f"name={path.name}", path)
    return path


def _check_inside(path: Path) -> None:
    """Raises Mistake if something else is in place of the plan, the lock, or a folder with attempts; and OSError.

    Opening them would fail too, but in the middle of a sweep.
    """
    folders = [path / POINTS]
    if files.kind_of(path / POINTS) == files.FOLDER:
        folders += sorted((path / POINTS).iterdir())
    expected = {path / LOCK: files.FILE, path / PLAN: files.FILE} | dict.fromkeys(folders, files.FOLDER)
    # A new table takes the place of anything but a folder.
    expected |= {table: files.FILE for table in path.glob("*.parquet") if files.kind_of(table) == files.FOLDER}
    for place, right in expected.items():
        kind = files.kind_of(place)
        if kind not in (None, right):
            raise Mistake(f"name={path.name}: {place} is {kind} and not {right}; remove it, or choose another name")
        if kind is not None and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))


def _hold(path: Path) -> IO[str]:
    """Take the run's lock. The kernel releases it when this process ends, however it ends."""
    try:
        lock = locks.take(path / LOCK)
    except locks.Held as held:
        sweeps = f"{held.holder or 'another process'} is sweeping into {path}"
        raise Mistake(f"name={path.name}: {sweeps}; wait for it, or choose another name") from None
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    locks.sign(lock, f"pid {os.getpid()} on {socket.gethostname()}, since {since}")
    return lock
