"""The processes below one, and how to end them all. On Linux; elsewhere there are none to find."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

TYPE_CHECKING = False  # typing and dataclasses are slow to import, and every probe waits for this module
if TYPE_CHECKING:
    from typing import NoReturn

PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_CHILD_SUBREAPER = 36
PF_FORKNOEXEC = 0x40  # a flag in /proc/PID/stat: forked, without an exec since
KCMP = {"x86_64": 312, "aarch64": 272}  # the number of the system call kcmp(2)
KCMP_VM = 1
# The workload may replace them.
getpid, leave, set_recursion_limit = os.getpid, os._exit, sys.setrecursionlimit
LIMITS = {errno.EMFILE: ("ulimit -n", resource.RLIMIT_NOFILE), errno.EAGAIN: ("ulimit -u", resource.RLIMIT_NPROC)}


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, at once if it is dead.

    The child has to call it itself: the kernel watches the thread that forked, and a preexec_fn may run in another.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def go_on_when_the_parent_dies() -> None:
    """Have the kernel send SIGCONT to this process when its parent dies, so that it notices even if it is stopped."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def inherit_orphans() -> None:
    """Become the parent of descendants whose own parent dies, in any session."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_of(number: int) -> None:
    """End this process by a signal, so that its parent sees how its program ended. Writes no core file."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def duplicate(descriptor: int, number: int) -> int:
    """A duplicate that is not inherited, numbered `number` or more, or as high as the limit of open files allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number if number < soft else soft // 2)


def why_refused(error: OSError) -> str:
    """Why the system refused something, with the name and the value of the limit that it reports, if it is one."""
    reason = error.strerror or str(error)
    name, limit = LIMITS.get(error.errno or 0, (None, 0))
    return reason if name is None else f"{reason} ({name} is {_as_typed(resource.getrlimit(limit)[0])})"


def _as_typed(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


class forks_end_here(contextlib.AbstractContextManager[None]):
    """End every process that is forked inside the block where it would leave the block.

    Such a process is a copy of this one and would go on with everything that follows the block. It ends as a Python
    program does that ends there, with the same exit code, but without atexit handlers: they are this process's.

    No generator: contextlib sets `__traceback__` of an exception that passes through one, and an exception that allows
    no changes, such as a frozen dataclass, is then replaced by another.
    """

    def __init__(self) -> None:
        self._owner = getpid()
        self._recursion_limit = sys.getrecursionlimit()
        self.raised: BaseException | None = None  # what left the block

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        set_recursion_limit(self._recursion_limit)  # the block may have lowered it below what the code after it needs
        if getpid() != self._owner:
            _end_with(error)
        self.raised = error


def _end_with(error: BaseException | None) -> NoReturn:
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif error is not None:
            code = 1
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(error, KeyboardInterrupt):
            die_of(signal.SIGINT)
    finally:
        leave(code)


class Reaped:
    """A child that ended."""

    def __init__(self, pid: int, status: int, maxrss_bytes: int | None) -> None:
        self.pid, self.status = pid, status
        self.maxrss_bytes = maxrss_bytes  # resident high-water mark; None if that may be the mark of its own child


def reap(pid: int = -1, wait: bool = False) -> Reaped | None:
    """The end of a child (-1: of any), or None if it runs. Raises ChildProcessError if there is no such child.

    wait4(2) reports the highest ru_maxrss of a process and of the children it waited for: a process of 300 MiB whose
    child took 700 MiB showed 1,012 MiB. A zombie still counts the page faults of those children, and no process starts
    without one.
    """
    alone = True
    if hasattr(os, "waitid"):  # not on macOS, where nothing counts these faults either
        kind = os.P_ALL if pid == -1 else os.P_PID
        ended = os.waitid(kind, max(pid, 0), os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG))
        if ended is None:
            return None
        pid = ended.si_pid
        fields = _stat(pid)
        alone = fields is None or int(fields[8]) == 0  # cminflt
    pid, status, usage = os.wait4(pid, 0 if wait else os.WNOHANG)
    if pid == 0:
        return None
    return Reaped(pid, status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) if alone else None)


def borrows_memory(pid: int) -> bool:
    """Whether a process runs in its parent's memory, as between vfork and exec, and has none of its own to count.

    Where the kernel cannot compare the two, this is true of every process that forked and has not called exec.
    """
    fields = _stat(pid)
    if fields is None or not int(fields[6]) & PF_FORKNOEXEC:
        return False
    call = KCMP.get(platform.machine())
    compared = -1 if call is None else ctypes.CDLL(None).syscall(call, pid, int(fields[1]), KCMP_VM, 0, 0)
    return compared in (0, -1)


def descendants_of(ancestor: int) -> list[int]:
    """The pids of the children, their children and so on, nearest first."""
    by_parent: dict[int, list[int]] = {}
    for pid, ppid in _parents():
        by_parent.setdefault(ppid, []).append(pid)
    found, waiting = [], [ancestor]
    while waiting:
        children = by_parent.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def family_of(pid: int) -> list[int]:
    """As `descendants_of`, from the kernel's lists of children: 40 us, where reading all of /proc takes 5 ms.

    Cheap enough during a measurement, but not exact while processes come and go (proc(5), children).
    """
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for listed in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in listed.read_text().split()]
                found += children
                waiting += children
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended, or may belong to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def threads() -> int:
    """The threads of this process, those of libraries included; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or by a tracer."""
    return _state(pid) in ("T", "t")


def kill_descendants(spare: Collection[int] = ()) -> set[int]:
    """Kill the processes below this one that are alive, with their process groups. Returns their pids.

    `spare` has pids that are left alone, with everything below them.
    """
    return _kill(_below(os.getpid(), spare))


def end_descendants(spare: Collection[int] = (), patience: float = 3.0) -> set[int]:
    """Kill the processes below this one until none is alive, or `patience` (seconds) is over. Returns their pids.

    `spare` has pids that are left alone, with everything below them. It repeats, because a process that forks while it
    is killed can leave one more, and the children of a process that ends become ours. What the system does not end in
    time stays, and so does a zombie that another process traces.
    """
    ended: set[int] = set()
    until = time.monotonic() + patience
    while _has_children():
        below = _below(os.getpid(), spare)
        living = _kill(below)
        reaped = sum(map(_is_reaped, below.keys() - living))
        if (not living and not reaped) or time.monotonic() > until:
            return ended
        if living <= ended:
            time.sleep(0.001)  # they have been killed already, and take a moment to end
        ended |= living
    return ended


def _has_children() -> bool:
    """Whether this process has a child, or a zombie of one: reading all of /proc to see none takes 5 ms."""
    try:
        if hasattr(os, "waitid"):  # not on macOS
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class Present:
    """The descendants that this process had when this was made: they and what they start belong to somebody else.

    A process belongs to one of their sessions or has one of them above it. Sessions tell the orphans of different
    children apart: a process can leave its session only for a new one of its own.
    """

    def __init__(self) -> None:
        self._pids = frozenset(descendants_of(os.getpid()))
        self._sessions = frozenset(map(_session, (os.getpid(), *self._pids)))

    def now(self) -> list[int]:
        """Their pids, and those that their sessions have now."""
        below = descendants_of(os.getpid())
        return [pid for pid in below if pid in self._pids or _session(pid) in self._sessions]


def _below(ancestor: int, spare: Collection[int] = ()) -> dict[int, list[bytes]]:
    """The fields of /proc/PID/stat of each process below one that is not spared."""
    spared = {pid for root in spare for pid in (root, *descendants_of(root))}
    found = {pid: _stat(pid) for pid in family_of(ancestor) or descendants_of(ancestor) if pid not in spared}
    return {pid: fields for pid, fields in found.items() if fields is not None}


def _kill(below: Mapping[int, Sequence[bytes]]) -> set[int]:
    """Kill the processes that are alive. Returns their pids.

    The kernel kills a whole group at once. A process that ends as soon as it has forked another is gone before its pid
    can be used, and its group is not.
    """
    living = {pid: int(fields[2]) for pid, fields in below.items() if fields[0] != b"Z"}
    for group in {*living.values()} - {os.getpgrp()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for pid in living:
        kill(pid)
    return {*living}


def _is_reaped(zombie: int) -> bool:
    with contextlib.suppress(ChildProcessError):  # a grandchild is ours only once its parent is reaped
        return os.waitpid(zombie, os.WNOHANG)[0] != 0
    return False


def _session(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[3])


def _parents() -> Iterator[tuple[int, int]]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None:
                yield int(name), int(fields[1])


def _state(pid: int) -> str | None:
    fields = _stat(pid)
    return None if fields is None else fields[0].decode()


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the name (which may have spaces and parentheses): state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
