"""The signals that stop a sweep."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Signals:
    """The signals caught so far. `descriptor` becomes readable when one arrives."""

    descriptor: int
    caught: list[int] = field(default_factory=list)


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Raise SystemExit with the code 143 at SIGTERM and 129 at SIGHUP, as Python raises KeyboardInterrupt at SIGINT.

    So what was started ends on the way out, while a sweep is planned too. The handlers are restored afterwards.
    """

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    ending = _ending()
    before = [signal.signal(number, leave) for number in ending]
    try:
        yield
    finally:
        for number, handler in zip(ending, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def catch_signals() -> Iterator[Signals]:
    """Catch SIGINT, SIGTERM and SIGHUP, which would end this process. The handlers are restored afterwards.

    SIGHUP stays ignored where it is (nohup). A terminal that is closed can send it twice, from the shell and from the
    kernel: only the first counts.
    """
    read_end, write_end = os.pipe()
    for descriptor in (read_end, write_end):
        os.set_blocking(descriptor, False)
    signals = Signals(read_end)

    def catch(number: int, _: Any) -> None:
        if number != signal.SIGHUP or not signals.caught:
            signals.caught.append(number)

    stopping = [signal.SIGINT, *_ending()]
    before = [signal.signal(number, catch) for number in stopping]
    wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(stopping, before, strict=True):
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)


def _ending() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP unless it is ignored (nohup)."""
    hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGHUP] if hangs_up else [signal.SIGTERM]
