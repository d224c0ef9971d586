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

from runners import facts, files, processes, stored_json, untrusted
from runners.facts import Fact
from runners.stored_json import LARGEST_OF_AN_ATTEMPT, Damaged

BETWEEN = "between"
QUALITY = "quality"  # the phase of the user's metric: not part of the workload, and in no peak of the point

# Workloads close descriptors and open files of their own; a high number avoids both.
HIGH = 700
DEEPEST = 20  # nested containers; one that contains itself ends here
LARGEST_NUMBER_BITS = 1024
# Of a journal that is read; a measured process writes less (runners.phases has its limits).
MOST_VALUES = {b"{": 1_500_000, b"[": 1_500_000, b",": 8_000_000}  # each takes some 50 to 250 bytes of memory
LONGEST_TEXT = 10_000  # characters of a value of no type of JSON

# The workload may replace them.
write, close, mkdir, fstat, getpid = os.write, os.close, os.mkdir, os.fstat, os.getpid
dumps, monotonic = json.dumps, time.monotonic


class Journal:
    """Appends facts to one file. The main thread and the heartbeat of one process share it; a fork of it may not."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = threading.Lock()
        self._process = getpid()
        self._descriptor, self._identity, self.bytes = self._open()

    def write(self, *written: Fact) -> None:
        """Append the facts in one write, stamped with the time and with their place in the file.

        Opens the file again if the workload closed it. Raises RuntimeError in a process that was forked from the
        writer: its facts are not those of the attempt. Ends the process if the file cannot be written: a workload that
        handles such an error would finish without the fact.
        """
        if getpid() != self._process:
            raise RuntimeError("a process that is not measured reported a fact of the attempt")
        now = monotonic()
        with self._lock:
            at, lines = self.bytes, []
            for fact in written:
                # No table can hold half of a surrogate pair.
                lines.append(_dumps({"t": now, "place": at, **facts.to_json(fact)}).encode("utf-8", "replace") + b"\n")
                at += len(lines[-1])
            try:
                seen = fstat(self._descriptor)
                if (seen.st_dev, seen.st_ino) != self._identity:
                    raise OSError("the descriptor belongs to another file now")
            except OSError:
                self._descriptor, self._identity, _ = self._open()
            data = b"".join(lines)
            try:
                while data:
                    data = data[write(self._descriptor, data) :]
            except OSError as error:
                self._leave(error)
            self.bytes = at

    def _open(self) -> tuple[int, tuple[int, int], int]:
        try:
            return self._opened()
        except OSError as error:
            self._leave(error)

    def _leave(self, error: OSError) -> NoReturn:
        with contextlib.suppress(OSError):
            write(2, f"sweeper: {self.path} cannot be written: {processes.why_refused(error)}\n".encode())
        processes.leave(facts.UNRECORDED)

    def _opened(self) -> tuple[int, tuple[int, int], int]:
        """The descriptor, the file's device and inode, and its size in bytes."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            low = files.open_to_write(self.path, flags)
        except FileNotFoundError:  # the workload removed its own folder; one above it is not the attempt's to make
            mkdir(self.path.parent)
            low = files.open_to_write(self.path, flags)
        high = processes.duplicate(low, HIGH)
        close(low)
        seen = fstat(high)
        return high, (seen.st_dev, seen.st_ino), seen.st_size


def _dumps(line: dict[str, Any]) -> str:
    try:
        return dumps(line, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        return dumps(plain(line), allow_nan=False, ensure_ascii=False)


def plain(value: Any, depth: int = 0) -> Any:
    """A value in JSON's own types. Other values (an object, nan, a NumPy scalar) become their text."""
    kind = type(value)
    if value is None or kind is bool or (kind is int and value.bit_length() <= LARGEST_NUMBER_BITS):
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if kind is str:
        return value.encode("utf-8", "replace").decode()
    if issubclass(kind, Mapping) and depth < DEEPEST:
        return {str(plain(key)): plain(item, depth + 1) for key, item in value.items()}
    if issubclass(kind, (list, tuple, set, frozenset)) and depth < DEEPEST:
        return [plain(item, depth + 1) for item in value]
    return untrusted.text(value, LONGEST_TEXT)


END_BYTES = 2**14  # of a journal that is read to find where its attempt is


def phase_under_way(path: Path) -> str | None:
    """The phase that the last whole lines of a journal are in. None if they name none, or there is no such file.

    It reads the end of the file only, so that it can be called while the attempt is measured.
    """
    try:
        with files.open_to_read(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - END_BYTES))
            lines = file.read(END_BYTES).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):  # half of a line, where the end of the file begins
            continue
        if isinstance(fact, dict) and fact.get("kind") in ("began", "heartbeat", "ended"):
            phase = BETWEEN if fact["kind"] == "ended" else fact.get("phase")
            return phase if isinstance(phase, str) else None
    return None


class Kept(NamedTuple):
    """The lines of a journal that can be read."""

    lines: list[dict[str, Any]]  # the objects that have a `kind`, oldest first
    bytes: int = 0  # of the file
    checksum: int | None = None  # None for a missing file
    torn: bool = False  # the last line is incomplete, as a writer that was killed leaves it
    damage: str | None = None  # why another line, or the file, cannot be read


def read(path: Path) -> list[Fact]:
    """The facts of a journal, oldest first. Damaged lines and unknown kinds are skipped; a missing file is empty."""
    return facts_of(kept_in(path))[0]


def facts_of(kept: Kept) -> tuple[list[Fact], str | None]:
    """The facts of a journal's lines, and what is wrong with a line whose fields are not those of its kind."""
    found: list[Fact] = []
    damage = None
    for line in kept.lines:
        if facts.is_known(line):
            try:
                found.append(facts.from_json(line))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = stored_json.why(error)
                damage = damage or f"has lines that cannot be read, one of the kind {line['kind']}: {reason}"
    return found, damage


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a journal that have a `kind`, oldest first. Damaged lines are skipped.

    The last line of a writer that died is torn; a missing file has no lines.
    """
    return kept_in(path).lines


def kept_in(path: Path) -> Kept:
    """What can be read of a journal. A missing file has no lines.

    Nothing is read of one that is larger than a measured process writes.
    """
    try:
        text = stored_json.content_of(path, LARGEST_OF_AN_ATTEMPT)
    except FileNotFoundError:
        return Kept([])
    except Damaged as damaged:
        return Kept([], damage=str(damaged))
    if any(text.count(sign) > most for sign, most in MOST_VALUES.items()):
        return Kept([], len(text), damage="holds more values than a measured process writes")
    lines = [line for line in text.split(b"\n") if line]
    torn, damage = False, None
    try:  # only a writer that died leaves a torn line
        found = stored_json.parsed_lines(lines)
    except Damaged:
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(stored_json.parsed(line))
            except Damaged as damaged:
                is_last = number == len(lines) and not text.endswith(b"\n")
                torn = torn or is_last
                if not is_last or b"\0" in line:
                    damage = damage or f"has lines that cannot be read, the first is line {number}: it {damaged}"
    damage = damage or _displaced(lines, found)
    found = stored_json.printable(found, text)
    kept = [line for line in found if isinstance(line, dict) and "kind" in line]
    return Kept(kept, len(text), stored_json.checksum(text), torn, damage)


def _displaced(lines: list[bytes], found: list[Any]) -> str | None:
    """Whether lines were added to a journal, taken out of it, or are not the measured process's.

    Each has its place, in bytes, since the workload can open the file too. An earlier version wrote none.
    """
    place = 0
    has_places = bool(found) and isinstance(found[0], dict) and "place" in found[0]
    for line, value in zip(lines, found, strict=False):
        if has_places and (not isinstance(value, dict) or value.get("place") != place):
            return f"was changed at byte {place}, not by the measured process"
        place += len(line) + 1
    return None
