"""A copy of this process from before the program ran, in which the program can run a second time.

A program is first followed without any limit, which gives a trace that holds for every card. Where a card refuses, the
program has to be followed again, since it may catch the refusal and go on with less. What the first run left behind in
modules, files and generators must not reach the second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from runners import processes

RUN, NOT_NEEDED = b"r", b"n"


class SpareProcess:
    """Forks at the start of the block. `run` has the copy call the function, and returns the bytes that it returns."""

    def __init__(self, function: Callable[[], bytes]) -> None:
        self._function = function

    def __enter__(self) -> SpareProcess:
        starts, self._start = os.pipe()
        self._result, result = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid:
            os.close(starts)
            os.close(result)
            return self
        code = 1
        try:
            processes.die_with(parent)
            os.close(self._start)
            os.close(self._result)
            if os.read(starts, 1) == RUN:
                with open(result, "wb") as stream:
                    stream.write(self._function())
                code = 0
        finally:
            os._exit(code)

    def run(self) -> bytes | None:
        """What the function returned; None if its process ended before."""
        os.write(self._start, RUN)
        with open(self._result, "rb", closefd=False) as stream:
            found = stream.read()
        return found or None

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.write(self._start, NOT_NEEDED)  # a process that the program has left may hold this end open
        os.close(self._start)
        os.close(self._result)
        os.waitpid(self._pid, 0)
