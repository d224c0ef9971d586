"""A copy of a calculated attempt's process, from after the import of the user's module and before its run.

The module is imported within the calculated device, since what it does then may depend on the device: a template that
imports libraries for every device cannot do that. Attempts of the same program on the same device begin in copies of
this copy, so that the module, and the libraries that only it imports, are imported once.

The supervisor and the copy have a socket. A request is one message, with the descriptor for the attempt's output; the
answer is the pid of the process that runs it, which is the supervisor's child.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from runners import processes
from runners.point import Attempt, AttemptFolder

LONGEST = 2**16  # bytes of a message
ANSWERS_WITHIN = 10.0  # seconds
POLL = 0.0005  # seconds between looks at who the parent is
HIGH = 200  # workloads close low descriptors


def key_of(attempt: Attempt) -> tuple[object, ...] | None:
    """What the import of the user's module can depend on; None for an attempt that cannot begin in a copy."""
    if not attempt.device.is_calculated or attempt.point["workload"] != "custom" or sys.platform != "linux":
        return None
    point = attempt.point
    module = str(point.get("workload.target")).partition(":")[0]
    of_the_card = (attempt.device, point.get("used_by_others"))
    of_the_program = (module, point.get("workload.rules"), point.get("workload.assume"))
    return (*of_the_card, *of_the_program, attempt.cwd, tuple(sorted((attempt.environ or {}).items())))


class ReadyCopy:
    """The supervisor's end."""

    def __init__(self, attempt: Attempt) -> None:
        """For an attempt whose process is about to be forked and gets `theirs`; `forked` closes it here."""
        self.key = key_of(attempt)
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid: int | None = None

    def forked(self) -> None:
        self.theirs.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """The copy ends."""
        self._socket.close()
        self.theirs.close()

    @property
    def pids(self) -> list[int]:
        """The copy's pid, once there is one."""
        if self._pid is None:
            answer = self._answer(within=0.0)
            self._pid = None if answer is None else answer.get("copy")
        return [] if self._pid is None else [self._pid]

    def begin(self, folder: AttemptFolder, attempt: Attempt, output: int) -> int | None:
        """Start an attempt. Returns the pid of its process; None if there is no copy that answers."""
        if not self.pids:
            return None
        request = {"folder": str(folder.path), "digest": attempt.digest}
        try:
            sent = array.array("i", [output])
            self._socket.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        except OSError:
            return None
        answer = self._answer(ANSWERS_WITHIN)
        pid: int | None = None if answer is None else answer.get("pid")
        return pid

    def _answer(self, within: float) -> dict[str, Any] | None:
        try:
            if not select.select([self._socket], [], [], within)[0]:
                return None
            answer = json.loads(self._socket.recv(LONGEST))
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None


class CopyKeeper:
    """The end of an attempt's process, which leaves a copy behind."""

    def __init__(self, theirs: socket.socket, supervisor: int) -> None:
        self._socket = socket.socket(fileno=processes.duplicate(theirs.fileno(), HIGH))
        theirs.close()
        self.supervisor = supervisor

    def keep(self, run: Callable[[AttemptFolder, Attempt], NoReturn]) -> None:
        """Fork the copy, which calls `run` in a process of its own for each request. Call it in one thread only."""
        for stream in (sys.stdout, sys.stderr):  # else each copy would print what waits in them
            stream.flush()
        pid = os.fork()
        if not pid:
            self._be_the_copy(run)
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"copy": pid}).encode())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _be_the_copy(self, run: Callable[[AttemptFolder, Attempt], NoReturn]) -> NoReturn:
        try:
            os.setsid()
            gc.freeze()  # a collection in a fork copies every page of the heap
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            os.close(nothing)
            while True:
                message, passed, _, _ = self._socket.recvmsg(LONGEST, socket.CMSG_SPACE(4))
                if not message:  # the supervisor has ended, or needs no copy any more
                    break
                output = array.array("i", passed[0][2])[0]
                self._begin(json.loads(message), output, run)
                os.close(output)
        finally:
            processes.leave(0)

    def _begin(self, request: dict[str, str], output: int, run: Callable[[AttemptFolder, Attempt], NoReturn]) -> None:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return
        if os.fork():
            processes.leave(0)  # the supervisor inherits the process
        try:
            while os.getppid() != self.supervisor:
                time.sleep(POLL)
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            self._socket.send(json.dumps({"pid": os.getpid()}).encode())
            self._socket.close()
            folder = AttemptFolder(Path(request["folder"]))
            run(folder, folder.attempt(request["digest"]))
        except BaseException:
            traceback.print_exc()  # a bug of ours: its last line becomes the row's message
        finally:
            processes.leave(70)  # EX_SOFTWARE: `run` never returns
