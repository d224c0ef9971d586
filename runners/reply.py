"""The process that answers one question of the orchestrator: a probe, or the fingerprint of an interpreter.

It may import the user's module, which may hang, start processes, or print. So it has a watcher (runners/watcher.py),
which ends it and everything that it started when it has answered or when the orchestrator dies, and its answer is one
JSON line on a descriptor that nothing else writes to. What an imported module prints goes to standard error.

The syntax is that of Python 3.8, as that of runners/probe.py.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import traceback

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO, Any, NoReturn

OLDEST_PYTHON = (3, 10)  # an older one cannot import the watcher, and imports no module of the user


def reply(find: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """Write what `find` returns, or the traceback of what it raises, and end without waiting for threads."""
    if sys.platform == "linux" and sys.version_info[:2] >= OLDEST_PYTHON:
        importlib.import_module("runners.watcher").fork_answering()
    if _is_closed(0):
        os._exit(1)
    _take_nothing()
    owner, code = os.getpid(), 0
    with _own_output() as out:
        try:
            line = (json.dumps(find()) + "\n").encode()
            if os.getpid() == owner:  # else a fork that the user's module made as it was imported
                out.write(line)
                out.flush()
        except BaseException:  # of the user's package: SystemExit too
            traceback.print_exc()
            code = 1
    sys.stderr.flush()
    os._exit(code)


def _is_closed(descriptor: int) -> bool:
    """Whether it is a pipe that the orchestrator has closed: it died before the watcher could notice that."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _take_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing:
        os.close(nothing)


def _own_output() -> IO[bytes]:
    """The standard output that this process has been given. Descriptor 1 becomes standard error."""
    sys.stdout.flush()
    answers = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(answers, "wb")
