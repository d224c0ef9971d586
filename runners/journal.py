"""The journal of an attempt: its facts, one JSON line each, appended as they happen by the measured process alone."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from runners import facts, files, processes
from runners.facts import Fact

BETWEEN = "between"
QUALITY = "quality"  # the phase of the user's metric: not part of the workload, and in no peak of the point

# Workloads close descriptors and open files of their own; a high number avoids both.
HIGH = 700
DEEPEST = 20  # nested containers; one that contains itself ends here


class Journal:
    """Appends facts to one file. The main thread and the heartbeat of one process share it; a fork of it may not."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._descriptor, self._identity = self._open()

    def write(self, *written: Fact) -> None:
        """Append the facts in one write, stamped with the time. Opens the file again if the workload closed it.

        Raises RuntimeError in a process that was forked from the writer: its facts are not those of the attempt. Ends
        the process if the file cannot be written: a workload that handles such an error would finish without the fact.
        """
        if os.getpid() != self._process:
            raise RuntimeError("a process that is not measured reported a fact of the attempt")
        now = time.monotonic()
        text = "".join(_dumps({"t": now, **facts.to_json(fact)}) + "\n" for fact in written)
        with self._lock:
            try:
                seen = os.fstat(self._descriptor)
                if (seen.st_dev, seen.st_ino) != self._identity:
                    raise OSError("the descriptor belongs to another file now")
            except OSError:
                self._descriptor, self._identity = self._open()
            data = text.encode("utf-8", "replace")  # no table can hold half of a surrogate pair
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                self._leave(error)

    def _open(self) -> tuple[int, tuple[int, int]]:
        try:
            return self._opened()
        except OSError as error:
            self._leave(error)

    def _leave(self, error: OSError) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(2, f"sweeper: {self.path} cannot be written: {processes.why_refused(error)}\n".encode())
        os._exit(facts.UNRECORDED)

    def _opened(self) -> tuple[int, tuple[int, int]]:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            low = files.open_to_write(self.path, flags)
        except FileNotFoundError:  # the workload removed its own folder
            self.path.parent.mkdir(parents=True, exist_ok=True)
            low = files.open_to_write(self.path, flags)
        high = processes.duplicate(low, HIGH)
        os.close(low)
        seen = os.fstat(high)
        return high, (seen.st_dev, seen.st_ino)


def _dumps(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        return json.dumps(plain(line), allow_nan=False, ensure_ascii=False)


def plain(value: Any, depth: int = 0) -> Any:
    """A value in JSON's own types. Other values (an object, nan, a NumPy scalar) become their text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {str(plain(key)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth < DEEPEST:
        return [plain(item, depth + 1) for item in value]
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # the user's own __str__
        return f"<{type(value).__name__} that cannot be printed>"


class Kept(NamedTuple):
    """The lines of a .jsonl file that can be read."""

    lines: list[dict[str, Any]]  # the objects that have a `kind`, oldest first
    bytes: int = 0  # of the file
    torn: bool = False  # the last line is incomplete, as a writer that was killed leaves it
    damaged: bool = False  # another line cannot be read, or bytes were replaced by zeros


def read(path: Path) -> list[Fact]:
    """The facts of a journal, oldest first. Damaged lines and unknown kinds are skipped; a missing file is empty."""
    return facts_of(kept_in(path))[0]


def facts_of(kept: Kept) -> tuple[list[Fact], bool]:
    """The facts of a journal's lines, and whether a line of a known kind has other fields than its kind."""
    known = [line for line in kept.lines if facts.is_known(line)]
    try:
        return list(map(facts.from_json, known)), False
    except (KeyError, TypeError, ValueError, AttributeError):
        found: list[Fact] = []
        for line in known:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                found.append(facts.from_json(line))
        return found, True


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a .jsonl file that have a `kind`, oldest first. Damaged lines are skipped.

    The last line of a writer that died is torn; a missing file has no lines.
    """
    return kept_in(path).lines


def kept_in(path: Path) -> Kept:
    """What can be read of a .jsonl file. A missing file has no lines. Raises PermissionError."""
    try:
        text = files.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return Kept([])
    except PermissionError:
        raise
    except OSError:  # something else has the file's name
        return Kept([], damaged=True)
    lines = [line for line in text.split(b"\n") if line]
    torn = damaged = False
    try:  # all at once takes two thirds of the time, and only a writer that died leaves a torn line
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                is_last = line is lines[-1] and not text.endswith(b"\n")
                torn, damaged = torn or is_last, damaged or not is_last or b"\0" in line
    kept = [line for line in found if isinstance(line, dict) and "kind" in line]
    return Kept(kept, len(text), torn, damaged)
