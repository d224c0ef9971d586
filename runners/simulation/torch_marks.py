"""The phases of a program that is not changed: one, `run`, or those that the program marks itself for a profiler.

Marks are `torch.profiler.record_function` and `torch.cuda.nvtx.range` (also range_push and range_pop). Only those in
the program's own files count: PyTorch and other libraries mark what they do, too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.autograd.profiler import record_function

from runners.journal import BETWEEN, QUALITY
from runners.phases import LONGEST_NAME, WHOLE, Notes, Phases
from runners.simulation import torch_replaced
from runners.simulation.torch_replaced import intercepted
from runners.unlisted import UNLISTED
from runners.workloads.python_program import Ended

RUN = "run"
TAKEN = (BETWEEN, UNLISTED, QUALITY, WHOLE, RUN)  # names of phases that mean something else
# Files between a mark and the program's line that makes it, and those of libraries
OF_MARKS = ("contextlib.py", os.path.join("autograd", "profiler.py"), os.path.join("cuda", "nvtx.py"), "_contextlib.py")
OF_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.dirname(torch.__file__))


class MarkedPhases(AbstractContextManager[Notes]):
    """Entered around a program. Its outermost marks are phases, and `run` is what comes before the first.

    Where a mark is made in another thread, or inside another mark, it is no phase: phases do not overlap.
    """

    def __init__(self, phase: Phases) -> None:
        self._phase = phase
        self._open: AbstractContextManager[Notes] | None = None
        self._marks: list[Any] = []  # under way, the outermost first; None for one that is not the program's own
        self._times: Counter[str] = Counter()
        self._thread = threading.get_ident()
        self._is_over = False
        self._replaced = ExitStack()

    def __enter__(self) -> Notes:
        """The notes of `run`."""
        notes = self._begin(RUN, None)
        nvtx = torch.cuda.nvtx
        for function, by in (
            (record_function.__enter__, self._enter_record),
            (record_function.__exit__, self._exit_record),
            (nvtx.range_push, self._push),
            (nvtx.range_pop, self._pop),
        ):
            self._replaced.enter_context(intercepted(function, by))
        return notes

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._replaced.close()
        self._end(error)

    @property
    def has_marks(self) -> bool:
        return bool(self._times)

    def _enter_record(self, enter: Any, record: Any) -> Any:
        entered = enter(record)
        self._mark(record, record.name)
        return entered

    def _exit_record(self, leave: Any, record: Any, kind: Any, error: Any, trace: Any) -> None:
        leave(record, kind, error, trace)
        if any(each is record for each in self._marks) and self._is_here():
            while self._marks[-1] is not record:  # a range that was not popped
                self._marks.pop()
            self._unmark(error)

    def _push(self, push: Any, message: Any) -> Any:
        depth = push(message)
        self._mark(str(message), message)
        return depth

    def _pop(self, pop: Any) -> Any:
        depth = pop()
        if self._marks and isinstance(self._marks[-1], str) and self._is_here():
            self._unmark(sys.exc_info()[1])
        return depth

    def _mark(self, mark: Any, name: Any) -> None:
        if not self._is_here() or not _is_of_program():
            return
        self._marks.append(mark)
        if len(self._marks) == 1:
            name = str(name)[: LONGEST_NAME - 5] or "unnamed"
            name = f"{name} mark" if name in TAKEN else name
            self._end(None)
            self._begin(name, self._times[name])
            self._times[name] += 1

    def _unmark(self, error: BaseException | None) -> None:
        self._marks.pop()
        if not self._marks:
            # The program was ended here, which is no failure. What it does from now on has no phases.
            self._is_over = isinstance(error, Ended)
            self._end(None if self._is_over else error)

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread and not self._is_over

    def _begin(self, name: str, run_index: int | None) -> Notes:
        self._open = self._phase(name, run_index)
        return self._open.__enter__()

    def _end(self, error: BaseException | None) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            opened.__exit__(None if error is None else type(error), error, None)


def _is_of_program() -> bool:
    """Whether the program's own code makes the mark that is made now."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in (__file__, torch_replaced.__file__) and not file.endswith(OF_MARKS):
            return not any(each in file for each in OF_LIBRARIES)
        frame = frame.f_back
    return False
