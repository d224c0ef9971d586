"""The Python threads that a workload starts, and the refused allocations that end them."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from runners.refusals import RefusalCount


class Threads(AbstractContextManager[None]):
    """Watches the threads of a workload. An exception that ends a thread does not reach the thread that started it."""

    def __init__(self) -> None:
        self.refusals = RefusalCount()  # that ended a thread

    def __enter__(self) -> None:
        """Enter around the workload. `threading.excepthook` still does what it did before.

        A workload that replaces the hook without calling the one before, and a thread that is started without
        `threading`, are not seen.
        """
        ended = threading.excepthook

        def hook(failed: Any) -> None:
            if failed.exc_value is not None:
                self.refusals.see(failed.exc_value)
            ended(failed)

        self._before, self._hook = ended, hook
        threading.excepthook = hook

    def __exit__(self, *raised: object) -> None:
        if threading.excepthook is self._hook:
            threading.excepthook = self._before


class EnteredInThreads(AbstractContextManager[None]):
    """Has each thread that starts in the block run inside what `enter` returns: PyTorch's modes are a thread's own.

    No generator: see `processes.forks_end_here`.
    """

    def __init__(self, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        self._enter = enter

    def __enter__(self) -> None:
        enter = self._enter
        bootstrap: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        start: Any = _thread.start_new_thread

        def bootstrapped(thread: threading.Thread) -> None:
            with enter():
                bootstrap(thread)

        def started(function: Callable[..., Any], *arguments: Any) -> int:
            def run(*args: Any, **kwargs: Any) -> None:
                with enter():
                    function(*args, **kwargs)

            identity: int = start(run, *arguments)
            return identity

        self._before = bootstrap, start
        threading.Thread._bootstrap_inner = bootstrapped  # type: ignore[attr-defined]
        _thread.start_new_thread = started

    def __exit__(self, *raised: object) -> None:
        threading.Thread._bootstrap_inner, _thread.start_new_thread = self._before  # type: ignore[attr-defined]
