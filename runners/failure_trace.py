"""What is kept of the allocator's history when an attempt fails, if that was asked for (trace=on_failure).

Knows when it is written, how large it may be, and what the journal says of it; what is in it the meters know.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from runners import facts
from runners.journal import plain
from runners.phases import Phases
from runners.point import AttemptFolder

LARGEST_BYTES = 64 * 2**20  # of the file: hundreds of failures of one sweep are not to fill the disk
LONGEST_REASON = 500  # characters


class History(Protocol):
    """What has followed the memory of one kind of device, and can write down what it knows."""

    @property
    def scope(self) -> str:
        """What is in the file and what is not, for a person."""
        ...

    def write(self, path: Path, causes: Iterable[BaseException]) -> None:
        """Write the file. `causes` are the failure and the exceptions behind it, the outermost first."""
        ...


class FailureTrace:
    """One attempt's trace: whether it was asked for, what has it, or why there is none."""

    def __init__(self, folder: AttemptFolder, asked: bool) -> None:
        self.folder = AttemptFolder(folder.path.absolute())  # a workload may change where relative paths begin
        self.asked = asked
        self.missing = "the attempt failed before there was anything to follow"
        self.unlimited: Callable[[], AbstractContextManager[None]] = nullcontext
        self.phases: Callable[..., Phases] = Phases  # the attempt's, or ones that tell the history where it is
        self._history: History | None = None
        self._path = self.folder.trace

    @property
    def follows(self) -> bool:
        return self._history is not None

    def follow(self, begin: Callable[[], History], path: Path) -> None:
        """Begin a history that would be kept at `path`. One that cannot begin is a trace that is missing."""
        try:
            self._history, self._path = begin(), path
        except Exception as error:
            self.missing = _reason(error)

    def keep(self, causes: Iterable[BaseException]) -> list[facts.Trace]:
        """Write the file; the journal's line about it, if it was asked for. Never raises: the failure is the news."""
        if not self.asked:
            return []
        if self._history is None:
            return [_none(self.missing)]
        try:
            with self.unlimited():
                return [self._written(self._history, causes)]
        except Exception as error:  # a full disk, no memory, a device that does not answer any more
            return [_none(_reason(error))]

    def _written(self, history: History, causes: Iterable[BaseException]) -> facts.Trace:
        aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            history.write(aside, causes)
            size = aside.stat().st_size
            if size > LARGEST_BYTES:
                return _none(f"it has {size} bytes, and at most {LARGEST_BYTES} are kept")
            os.replace(aside, self._path)
        finally:
            aside.unlink(missing_ok=True)
        return facts.Trace(self._path.name, bytes=size, scope=history.scope)


def _none(why: str) -> facts.Trace:
    return facts.Trace(None, reason=why)


def _reason(error: BaseException) -> str:
    first, _, _ = str(plain(error)).strip().partition("\n")
    return f"{type(error).__name__}: {first[:LONGEST_REASON]}"
