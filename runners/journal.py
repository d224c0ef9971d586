"""The facts of one attempt, one JSON line each, appended as they happen by the measured process alone.

Kinds of line, each with `t` (seconds, the machine's monotonic clock):

    environment  pid, at (UTC), record {host, python, torch, ...}, shared by every attempt in the same surroundings
    baseline     counters {resident, ...}: after the imports, before the workload; available_memory_bytes;
                 of: program, if all counters are of a program that the process starts, and not of itself
    budget       budget_kind (guard / data_limit / allocator), budget_bytes
    model        parameters, parameter_bytes, trainable_parameters, storage_dtype, compute_dtype, model_revision, ...
    began        phase, run_index, counters {device: {baseline}}
    heartbeat    phase, run_index, counters {device: {peak}}: the last one of an unfinished phase is its partial peak
    ended        phase, run_index, elapsed_s, iterations, completed, shapes, metrics,
                 counters {device: {baseline, end, peak, alloc_retries, num_ooms}}
    report       pid, torch, devices, failure: what a Python of a measured program said at its end
    failed       chain [{type, bases, message}], traceback: what the workload raised, cause by cause;
                 exit_code or signal, of a program
    trace        file, bytes, scope, or file null and a reason: after `failed`, if trace=on_failure asked for it
    finished     metrics, steps, tokens: the workload returned

What happens between two phases is the phase `between`: it has no `began`, it starts where the one before it ended.
Counters are whole bytes by name (allocated, reserved, requested, active, used, tensor, resident, resident_anon,
resident_file, address); one that was not read is absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BETWEEN = "between"
QUALITY = "quality"  # the phase of a metric of the user's: no part of the workload, and in no peak of the point

# Workloads close descriptors and open files of their own; a high number is out of the way of both.
HIGH = 700
DEEPEST = 20  # containers within containers; one that contains itself ends here


class Journal:
    """Appends lines to one file. Used by the main thread and by the heartbeat of the same process."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = threading.Lock()
        self._descriptor, self._identity = self._open()

    def write(self, *lines: dict[str, Any]) -> None:
        """Append the lines in one write, each stamped with the time. Opens the file again if the workload closed it."""
        now = time.monotonic()
        text = "".join(_dumps({"t": now, **line}) + "\n" for line in lines)
        with self._lock:
            try:
                seen = os.fstat(self._descriptor)
                if (seen.st_dev, seen.st_ino) != self._identity:
                    raise OSError("the descriptor is somebody else's file now")
            except OSError:
                self._descriptor, self._identity = self._open()
            data = text.encode("utf-8", "replace")  # half of a surrogate pair is text that no table can hold
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _open(self) -> tuple[int, tuple[int, int]]:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            low = os.open(self.path, flags, 0o644)
        except FileNotFoundError:  # the workload removed its own folder
            self.path.parent.mkdir(parents=True, exist_ok=True)
            low = os.open(self.path, flags, 0o644)
        try:
            high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
        except OSError:  # the limit of open files is lower than that
            high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 50)
        os.close(low)
        seen = os.fstat(high)
        return high, (seen.st_dev, seen.st_ino)


def _dumps(line: dict[str, Any]) -> str:
    try:
        return json.dumps(line, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        return json.dumps(plain(line), allow_nan=False, ensure_ascii=False)


def plain(value: Any, depth: int = 0) -> Any:
    """A value in JSON's own types. What has no such form (an object, nan, a number of numpy's) is told as text."""
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


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line, oldest first. A torn line (its writer died in it) is skipped; no file, no lines."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    lines = [line for line in text.split(b"\n") if line]
    try:  # all at once: two thirds of the time of one by one, and only a journal whose writer died has a torn line
        facts = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        facts = _whole(lines)
    return [fact for fact in facts if isinstance(fact, dict) and "kind" in fact]


def _whole(lines: Iterable[bytes]) -> Iterable[Any]:
    for line in lines:
        with contextlib.suppress(ValueError):
            yield json.loads(line)
