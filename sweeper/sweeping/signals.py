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

    stopping = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        stopping.append(signal.SIGHUP)
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
