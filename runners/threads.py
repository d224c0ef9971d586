"""The Python threads that a workload starts, and the refused allocations that end them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runners.refusals import RefusalCount


class Threads:
    """Watches the threads of a workload. An exception that ends a thread does not reach the thread that started it."""

    def __init__(self) -> None:
        self.started = False  # whether there were any: what they catch themselves is not seen
        self.refusals = RefusalCount()  # that ended a thread

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Enter around the workload. `threading.excepthook` still does what it did before.

        A workload that replaces the hook without calling the one before, and a thread that is started without
        `threading`, are not seen.
        """
        start, ended = threading.Thread.start, threading.excepthook

        def started(thread: threading.Thread) -> None:
            self.started = True
            start(thread)

        def hook(failed: Any) -> None:
            if failed.exc_value is not None:
                self.refusals.see(failed.exc_value)
            ended(failed)

        threading.Thread.start = started  # type: ignore[assignment, method-assign]
        threading.excepthook = hook
        try:
            yield
        finally:
            threading.Thread.start = start  # type: ignore[method-assign]
            if threading.excepthook is hook:
                threading.excepthook = ended
