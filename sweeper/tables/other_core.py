"""Half of a computation on another core: in a fork of this process, which sends what it computed through a pipe."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from runners import processes

T = TypeVar("T")


def is_free() -> bool:
    """Whether this process may use a second core, and can be forked.

    Locks that other threads of Python hold would stay locked in a fork. Those of Arrow do not count: it starts its
    threads anew after a fork (arrow/util/atfork_internal.h).
    """
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


class Computing(Generic[T]):
    """A computation under way in a fork."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid, self._pipe = pid, pipe

    def result(self) -> T | None:
        """What was computed, once it is; None if the fork ended without it (out of memory, killed)."""
        with open(self._pipe, "rb", closefd=False) as pipe:
            sent = pipe.read()
        try:
            found: T = pickle.loads(sent)  # from our own fork
        except (EOFError, pickle.UnpicklingError):
            return None
        return found

    def end(self) -> None:
        processes.kill(self.pid)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)


@contextlib.contextmanager
def computing(compute: Callable[[], T]) -> Iterator[Computing[T]]:
    """Start a computation in a fork, which is ended with the block. Raises OSError if there can be no process."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about the threads of Arrow
            pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if not pid:
        _compute(compute, write_end, parent)
    os.close(write_end)
    under_way: Computing[T] = Computing(pid, read_end)
    try:
        yield under_way
    finally:
        under_way.end()


def _compute(compute: Callable[[], Any], pipe: int, parent: int) -> None:
    try:
        signal.set_wakeup_fd(-1)  # that of the parent
        processes.die_with(parent)
        sent = pickle.dumps(compute())
        with open(pipe, "wb") as opened:
            opened.write(sent)
        processes.leave(0)
    finally:
        processes.leave(1)  # the parent then computes it itself, and has the exception
