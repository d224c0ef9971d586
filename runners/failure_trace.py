"""The file with the allocator's history that a failed attempt leaves (trace=on_failure).

This module decides when the file is written, how large it may be and what the journal records of it. Meters write it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from runners import facts, files, untrusted
from runners.phases import Phases
from runners.point import AttemptFolder

LARGEST_BYTES = 64 * 2**20  # of the file: hundreds of failures in a sweep must not fill the disk
LONGEST_REASON = 500  # characters


class History(Protocol):
    """Records the memory of one kind of device, and can write the record to a file."""

    @property
    def scope(self) -> str:
        """A description of what the file contains and leaves out."""
        ...

    def write(self, path: Path, causes: Iterable[BaseException]) -> None:
        """Write the file. `causes` are the failure and the exceptions behind it, the outermost first."""
        ...


class FailureTrace:
    """The trace of one attempt: whether it was requested, and its history or the reason why there is none."""

    def __init__(self, folder: AttemptFolder, requested: bool) -> None:
        self.folder = AttemptFolder(folder.path.absolute())  # a workload may change the current folder
        self.requested = requested
        self.missing = "the attempt failed before there was anything to record"
        self.unlimited: Callable[[], AbstractContextManager[None]] = nullcontext
        self.phases: Callable[..., Phases] = Phases  # or a class that reports the current phase to the history
        self._history: History | None = None
        self._path = self.folder.trace

    @property
    def records(self) -> bool:
        return self._history is not None

    def record(self, begin: Callable[[], History], path: Path) -> None:
        """Begin the history that `keep` would write to `path`. If it cannot begin, the trace is missing."""
        try:
            self._history, self._path = begin(), path
        except Exception as error:
            self.missing = _reason(error)

    def keep(self, causes: Iterable[BaseException]) -> list[facts.Trace]:
        """Write the file if it was requested, and return its fact. Never raises, so that the failure is not hidden."""
        if not self.requested:
            return []
        if self._history is None:
            return [_none(self.missing)]
        try:
            with self.unlimited():
                return [self._written(self._history, causes)]
        except BaseException as error:  # a full disk, no memory, a device that no longer answers, a workload's patch
            return [_none(_reason(error))]

    def _written(self, history: History, causes: Iterable[BaseException]) -> facts.Trace:
        aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            os.close(files.create(aside))
            history.write(aside, causes)
            size = aside.stat().st_size
            if size > LARGEST_BYTES:
                return _none(f"it has {size} bytes, and at most {LARGEST_BYTES} are kept")
            files.replace(aside, self._path)
        finally:
            files.remove(aside)
        return facts.Trace(self._path.name, bytes=size, scope=history.scope)


def _none(why: str) -> facts.Trace:
    return facts.Trace(None, reason=why)


def _reason(error: BaseException) -> str:
    first, _, _ = untrusted.text(error, LONGEST_REASON).strip().partition("\n")
    return f"{untrusted.type_name(type(error))}: {first}"
