"""The watcher: a small process between the orchestrator and one that it started, which ends what they leave.

It watches the supervisor of a lane, or a process that answers one question (runners/reply.py).

A measured process dies with its supervisor, because the kernel kills it. The processes that it started do not: they
become children of their nearest ancestor that inherits orphans. The supervisor is the first such ancestor and the
orchestrator the last. The watcher is between them, so that one is alive after any two of the three were killed. It
also ends a supervisor that is stopped (SIGSTOP) when the orchestrator dies. Linux only: no other system has
subreapers.
"""

from __future__ import annotations

import os
import signal
import time

from runners import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Seconds for the supervisor to end its attempt and write exit.json after the orchestrator's death.
GRACE_SECONDS = 3.0
PATIENCE_SECONDS = 10.0  # for everything below to end
WATCHED = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTERM)


def fork_supervisor() -> None:
    """Fork. Return in the child, which becomes the supervisor; the caller becomes its watcher and never returns.

    Where the system has no room for another process, the caller becomes a supervisor without a watcher.
    """
    _fork_watched(GRACE_SECONDS)
    processes.go_on_when_the_parent_dies()


def fork_answering() -> None:
    """As `fork_supervisor`, for a process that has nothing to keep: whoever dies, everything below ends at once."""
    watcher = os.getpid()
    _fork_watched(0.0)
    if os.getpid() != watcher:
        processes.die_with(watcher)


def _fork_watched(grace_seconds: float) -> None:
    orchestrator = os.getppid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    processes.inherit_orphans()
    processes.go_on_when_the_parent_dies()
    try:
        supervisor = os.fork()
    except OSError:
        supervisor = 0
    if supervisor:
        _watch(supervisor, orchestrator, grace_seconds)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _watch(supervisor: int, orchestrator: int, grace_seconds: float) -> NoReturn:
    """Wait for the supervisor's end, or bring it about; end what is left; end as the supervisor did.

    Three signals report what happens: SIGCHLD a process that ended, SIGCONT the orchestrator's death, and SIGTERM,
    which is passed on, is a request. The supervisor has `grace_seconds` to end after either of the last two.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_standard_streams()
    status, until = None, float("inf")
    while status is None:
        if os.getppid() != orchestrator and until == float("inf"):
            until = time.monotonic() + (0.0 if processes.is_stopped(supervisor) else grace_seconds)
        if time.monotonic() >= until:
            processes.kill(supervisor)
            break
        number = _next_signal(until)
        if number == signal.SIGTERM:
            processes.kill(supervisor, signal.SIGTERM)
            if grace_seconds == 0:
                until = time.monotonic()
        status = _reap(supervisor)
    processes.end_descendants(patience=PATIENCE_SECONDS)
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    if code < 0:
        processes.die_of(-code)
    os._exit(code)


def _next_signal(until: float) -> int:
    """The number of the next signal; 0 if none arrives in time."""
    if until == float("inf"):
        return signal.sigwait(WATCHED)
    found = signal.sigtimedwait(WATCHED, max(0.0, until - time.monotonic()))
    return 0 if found is None else found.si_signo


def _reap(supervisor: int) -> int | None:
    """Reap every child that ended. Returns the supervisor's wait status if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == supervisor:
            found = status


def _close_standard_streams() -> None:
    """Leave the pipes to the supervisor: each end notices by them that the other has died."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
