"""A run's folder: its lock, its plan and the folders of its attempts."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from runners import stored_files
from runners.device import Device
from runners.point import Attempt, AttemptFolder, Point
from sweeper.errors import Mistake
from sweeper.plan_lines import PLAN, PlanLine

POINTS = "points"
ALLOCATION_TRACES = "followed"
LOCK = ".lock"


class RunFolder:
    """A run's folder, locked from `open_run` until `close`: one sweep writes to it at a time."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path, self._lock = path, lock
        shutil.rmtree(path / ALLOCATION_TRACES, ignore_errors=True)  # left by a sweep that was killed
        self._plan = (path / PLAN).open("a+b")
        self._unsynced = True
        try:
            self._close_torn_line()
        except OSError:  # something that is no file lies there
            self._plan.close()
            raise

    def plan(self, line: PlanLine) -> None:
        """Append a line to the plan. Raises OSError if the disk is full or the folder was removed."""
        self.check()
        self._plan.write(stored_files.sealed(line.to_json()))
        self._plan.flush()
        self._unsynced = True

    def sync(self) -> None:
        """Wait until every line of the plan is on the disk. Raises OSError."""
        if self._unsynced:
            os.fsync(self._plan.fileno())
            self._unsynced = False

    def check(self) -> None:
        """Raises FileNotFoundError if the folder was removed, even if an attempt has created part of it again."""
        if not (self.path / PLAN).exists():
            raise FileNotFoundError(errno.ENOENT, "the run's folder was removed", str(self.path))

    def attempts(self, point: Point, device: Device) -> Iterator[AttemptFolder]:
        """The folders of the attempts at a point on a device, oldest first."""
        number = 1
        while os.path.lexists((folder := self.attempt_folder(Attempt(point=point, device=device, number=number))).path):
            # A sweep ended after it created the folder and before it started an attempt.
            if folder.path.is_dir() and not folder.path.is_symlink() and not folder.began():
                shutil.rmtree(folder.path)
                return
            yield folder
            number += 1

    def attempt_folder(self, attempt: Attempt) -> AttemptFolder:
        return AttemptFolder(self.path / POINTS / attempt.name)

    def allocation_trace(self, point: Point, by: str) -> Path:
        """The trace of a calculated point, shared by the attempts of this sweep with the same `by`.

        It is not kept for the next sweep: what the workload imports may change, and no fingerprint covers that.
        """
        folder = self.path / ALLOCATION_TRACES
        folder.mkdir(exist_ok=True)
        return folder / f"{point.id}.{hashlib.sha256(by.encode()).hexdigest()[:8]}"

    def close(self) -> None:
        shutil.rmtree(self.path / ALLOCATION_TRACES, ignore_errors=True)
        self._plan.close()
        self._lock.close()

    def _close_torn_line(self) -> None:
        """End a line that a killed sweep left half written, so that readers skip that line only."""
        if self._plan.seek(0, os.SEEK_END):
            self._plan.seek(-1, os.SEEK_END)
            if self._plan.read(1) != b"\n":
                self._plan.write(b"\n")


def open_run(outputs: str, name: str | None, slug: str) -> RunFolder:
    """Open `outputs/name`, or without a name a new folder called after the time and the slug.

    Raises Mistake if it cannot be created, is not a run of sweeper, or is open for another sweep.
    """
    parent = Path(outputs).expanduser().absolute()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = _new_folder(parent, slug) if name is None else _named_folder(parent / name)
        lock = _hold(path)
        try:
            return RunFolder(path, lock)
        except OSError:
            lock.close()
            raise
    except OSError as error:
        raise Mistake(f"outputs={outputs}: {error.filename or parent} cannot be written: {error.strerror}") from error


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
    if path.exists() and not path.is_dir():
        raise Mistake(f"name={path.name}: {path} is a file; choose another name")
    if path.is_dir() and not (path / PLAN).exists() and any(entry.name != LOCK for entry in path.iterdir()):
        raise Mistake(f"name={path.name}: {path} holds files and is not a run of sweeper; choose another name")
    path.mkdir(exist_ok=True)
    return path


def _hold(path: Path) -> IO[str]:
    """Take the run's lock. The kernel releases it when this process ends, however it ends."""
    lock = (path / LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        lock.close()
        held = f"{holder} is sweeping into {path}"
        raise Mistake(f"name={path.name}: {held}; wait for it, or choose another name") from None
    lock.truncate(0)
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    lock.write(f"pid {os.getpid()} on {socket.gethostname()}, since {since}\n")
    lock.flush()
    return lock
