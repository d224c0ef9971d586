"""A process under the measured interpreter that has a watcher (runners/watcher.py): its parent starts and ends it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence

from runners import processes

ENDS_WITHIN = 2.0  # seconds for a watcher to end once it is killed or has nothing to watch


def start(
    command: Sequence[str],
    env: Mapping[str, str | bytes] | None = None,
    cwd: str | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, with pipes as its standard input and output. Raises OSError."""
    processes.inherit_orphans()  # of one that dies with its watcher
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=True,
        bufsize=0,
    )


def end(process: subprocess.Popen[bytes], patience: float, spare: Callable[[], Collection[int]]) -> int:
    """Wait `patience` seconds for it, then kill it; end what it has left below this process. Returns its exit code.

    `spare` finds the other processes below this one.
    """
    try:
        code = process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        code = -signal.SIGKILL
    if code != 0:  # else its watcher has ended everything below it
        processes.end_descendants(spare=spare())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN)
    return code
