"""The tensors alive when a workload fails on cpu, with the lines that made them.

A tracker of tensors that records the operator and the stack of each storage. The plain tracker does not: stacks cost
time and memory that only a run with trace=on_failure pays.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

from runners import facts, threads
from runners.journal import BETWEEN, plain
from runners.meters import torch_tensors
from runners.meters.torch_tensors import TensorTracker
from runners.phases import Phases

FORMAT = 1
MOST_TENSORS = 50
MOST_LINES = 10  # of a stack, the innermost first
LONGEST_LINE = 500  # characters

MEASURING = str(Path(__file__).with_name("child.py"))  # it calls the workload: frames below are not the workload's
# Frames of torch, of ours and of the import system
NOT_LINES = (os.path.dirname(torch.__file__) + os.sep, __file__, torch_tensors.__file__, threads.__file__, "<frozen ")

# Set on an exception that an operator raises, to the tensors alive at that moment: it stays with the exception, also
# when this becomes the cause of another, and disappears with one that the workload catches.
AT_THE_RAISE = "_sweeper_alive"

Where = tuple[str, "int | None"]  # phase and run index
Stack = tuple[tuple[CodeType, int], ...]


class Origin(NamedTuple):
    """Where a storage came from, unformatted: most storages die before a failure."""

    operator: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    stack: Stack
    where: Where


class TensorHistory(TensorTracker):  # type: ignore[no-untyped-call]
    scope = (
        f"The {MOST_TENSORS} largest storages alive that operators had returned, counted once "
        "even if views share them, each with the first tensor and operator that returned it and the lines that ran "
        "it, innermost first, without torch's own; in a backward pass the line is the one that called it. Not in it: "
        "the scratch memory of kernels, tensors of compiled code, storages that were made before "
        "the workload began, and what was freed before the failure."
    )

    def __init__(self) -> None:
        super().__init__()
        self.where: Callable[[], Where] = lambda: (BETWEEN, None)
        self._called = threading.local()
        self._origins: dict[int, Origin] = {}  # by the same keys as the storages
        self._left: dict[str, Any] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._called.operator = func
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except BaseException as error:
            with suppress(Exception):  # without memory for it, the tensors alive as the phase is left are taken
                setattr(error, AT_THE_RAISE, self._alive(raised_by=func))
            raise

    def track(self, tensor: torch.Tensor) -> None:
        super().track(tensor)
        key = tensor.untyped_storage()._cdata
        if key in self._storages and key not in self._origins:
            self._origins[key] = Origin(self._called.operator, tensor.shape, tensor.dtype, _stack(), self.where())

    def _died(self, key: int, reference: Any) -> None:
        self._origins.pop(key, None)
        super()._died(key, reference)

    def phase_failed(self) -> None:
        """Record what is alive as an exception leaves a phase; its frames keep their tensors until it is handled."""
        with suppress(Exception):
            self._left = None
            self._left = self._alive()

    def write(self, path: Path, causes: Iterable[BaseException]) -> None:
        kept = (getattr(cause, "__dict__", {}).get(AT_THE_RAISE) for cause in causes)
        alive = next((each for each in kept if each is not None), None) or self._left or self._alive()
        path.write_text(json.dumps({"format": FORMAT, "scope": self.scope, **alive}, indent=1, allow_nan=False) + "\n")

    def _alive(self, raised_by: Any = None) -> dict[str, Any]:
        phase, run_index = self.where()
        with self._counting:
            self.settle()
            sizes = {key: size for key, (size, _) in self._storages.items()}
        largest = heapq.nlargest(MOST_TENSORS, sizes, key=sizes.__getitem__)
        return {
            "phase": phase,
            "run_index": run_index,
            "raised_by": None if raised_by is None else {"operator": str(raised_by), "lines": _lines(_stack())},
            "live_bytes": self.live,
            "live_storages": len(sizes),
            "complete": self.valid,  # compiled code, which is not tracked, did not run
            "tensors": [_as_json(sizes[key], self._origins[key]) for key in largest if key in self._origins],
        }


class TracedPhases(Phases):
    """Phases that report to a history which one is under way and when one has failed."""

    def __init__(self, history: TensorHistory, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._history = history
        history.where = lambda: self._current

    def _end(self, completed: bool) -> facts.Ended:
        if not completed:
            self._history.phase_failed()
        return super()._end(completed)


def _as_json(size: int, origin: Origin) -> dict[str, Any]:
    phase, run_index = origin.where
    return {
        "bytes": size,
        "shape": list(origin.shape),
        "dtype": str(origin.dtype).removeprefix("torch."),
        "operator": str(origin.operator),
        "lines": _lines(origin.stack),
        "phase": phase,
        "run_index": run_index,
    }


def _stack() -> Stack:
    """The workload's own frames, the innermost first. Code objects rather than text: each storage has a stack."""
    found: list[tuple[CodeType, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < MOST_LINES and frame.f_code.co_filename != MEASURING:
        if not frame.f_code.co_filename.startswith(NOT_LINES):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def _lines(stack: Stack) -> list[str]:
    return [str(plain(f"{code.co_filename}:{line} in {code.co_name}"))[:LONGEST_LINE] for code, line in stack]
