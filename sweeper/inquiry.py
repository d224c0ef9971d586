"""A question to the measured interpreter, which a short-lived process answers (runners/reply.py)."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from runners import launch_command, processes
from runners.engines import watched
from sweeper.errors import Mistake

TIMEOUT_SECONDS = 120.0  # a driver or an import can hang; the slowest `import torch` seen took 40 seconds
LONGEST_ERRORS = 2**16  # bytes kept from the end of standard error
QUIET_SECONDS = 1.0  # after which the answer of a process that has ended is complete, whoever keeps its pipes open


class Unanswered(Exception):
    """There is no answer: `why` in a few words, or None if the time is over."""

    def __init__(self, why: str | None) -> None:
        self.why = why


class Inquiry:
    """A question under way. Leaving the block ends its process and everything that this has started.

    Raises Mistake if the interpreter cannot be started.
    """

    def __init__(self, python: str, module: str, *arguments: str) -> None:
        self._others = processes.Present()
        command = launch_command.command(python, module, *arguments)
        try:
            self._process = watched.start(command, stderr=subprocess.PIPE)
        except OSError as error:
            raise Mistake(f"python={python}: cannot be started: {processes.why_refused(error)}") from None
        self._until = time.monotonic() + TIMEOUT_SECONDS
        self._answer: Mapping[str, Any] | None = None
        self._has_failed = False

    def __enter__(self) -> Inquiry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def has_answered(self) -> bool:
        """Whether `answer` has read the answer, or found that there is none."""
        return self._answer is not None or self._has_failed

    def answer(self) -> Mapping[str, Any]:
        """The first line of its output that is a JSON object. Raises Unanswered.

        Waits for no end of a pipe: a process that the user's module started can hold it.
        """
        if self._answer is None:
            self._has_failed = True
            self._answer = self._read()
            self._has_failed = False
        return self._answer

    def end(self) -> None:
        """End the process, and every process below it, if they have not ended yet."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.closed:
            return
        if self._answer is None:  # else it is ending by itself
            process.terminate()
            process.send_signal(signal.SIGCONT)  # if it was stopped, it would not notice
        watched.end(process, watched.ENDS_WITHIN, self._others.now)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()

    def _read(self) -> Mapping[str, Any]:
        output, errors = self._process.stdout, self._process.stderr
        assert output is not None
        assert errors is not None
        unread, last = b"", b""
        with selectors.DefaultSelector() as selector:
            for stream in (output, errors):
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left = self._until - time.monotonic()
                if left <= 0:
                    raise Unanswered(None)
                ready = selector.select(min(left, QUIET_SECONDS))
                if not ready and self._process.poll() is not None:
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 2**16)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is errors:
                        last = (last + data)[-LONGEST_ERRORS:]
                    else:
                        *lines, unread = (unread + data).split(b"\n")
                        for line in lines:
                            with suppress(ValueError):
                                answer = json.loads(line)
                                if isinstance(answer, dict):
                                    return answer
        printed = last.decode(errors="replace").strip().splitlines()
        raise Unanswered(printed[-1] if printed else f"exit code {self._process.wait()} and no output")
