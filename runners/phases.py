"""The `phase` object of a workload: it names stretches of an attempt and reads the counters at their boundaries."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from runners import facts
from runners.journal import BETWEEN, Journal
from runners.metrics import as_metrics

WHOLE = "whole"


class Unavailable(Exception):
    """Torch, the device, the dtype, a kernel or an optional library is missing. Nothing else is measured instead."""


class ProgramFailed(Exception):
    """A program that is the workload ended with a nonzero exit code or by a signal. `facts` go into the journal."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(facts["chain"][0]["message"])
        self.facts = facts


@dataclass(slots=True)
class Reading:
    """One device at one boundary. Bytes by counter; a counter that could not be read is absent."""

    now: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)  # since the boundary before
    alloc_retries: int | None = None
    num_ooms: int | None = None
    refused: facts.Refused | None = None  # the last since the boundary before
    refusals: int | None = None  # that reached the workload since the boundary before; None if it cannot be observed
    refused_bytes: int | None = None  # the largest of them since the boundary before


class Meter(Protocol):
    """Reads the memory of one kind of device. A counter that raises is absent from the reading and no error."""

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        """Wait for the device, read the bytes held and the peaks since the last boundary, and start new peaks.

        After a failure the peaks are read first, because waiting may raise.
        """
        ...

    def glance(self) -> Mapping[str, Reading]:
        """The peaks so far, without waiting for the device. The heartbeat calls it from its thread."""
        ...


@dataclass(slots=True)
class Notes:
    """Notes of a workload about a phase: `with phase("warmup") as notes: notes.iterations = 3`."""

    iterations: int | None = None
    shapes: dict[str, Any] = field(default_factory=dict)  # of inputs, as they reached the model
    metrics: dict[str, Any] = field(default_factory=dict)


class Phases:
    """A call with a name (and a run index) returns the context manager that measures one phase.

    `phase("step", 0)` is step 0. The stretch between two phases is measured as the phase `between`. A phase inside a
    phase raises RuntimeError, because the inner one would reset the outer one's peak. So does a phase in a process
    that is not the measured one, whose memory the counters do not see. The name `between` raises ValueError. TypeError
    is raised for a name that is no text and a run index that is no whole number.
    """

    def __init__(
        self,
        meter: Meter,
        journal: Journal,
        whole: bool = False,
        unlimited: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`unlimited` lifts the attempt's budget: what fills it may leave no room to write a fact down."""
        self._meter, self._journal, self._whole, self._unlimited = meter, journal, whole, unlimited
        self._process = os.getpid()
        self._current: tuple[str, int | None] = (BETWEEN, None)
        self._notes: Notes | None = None
        self._since = time.perf_counter()
        self._readings: Mapping[str, Reading] = {}
        self.raised: BaseException | None = None  # the last exception that left a phase

    def open(self) -> None:
        """Read the first boundary, where the stretch before the first phase begins."""
        self._readings = self._meter.boundary()
        self._since = time.perf_counter()

    def __call__(self, name: str, run_index: int | None = None) -> AbstractContextManager[Notes]:
        if os.getpid() != self._process:
            raise RuntimeError(f"phase {name!r} was entered in a process that is not measured")
        if not isinstance(name, str):
            raise TypeError(f"phase {name!r}: the name of a phase is a text, and not of type {type(name).__name__}")
        if name == BETWEEN:
            raise ValueError(f"phase {name!r}: this is the name of what happens between two phases; choose another")
        run_index = _whole_number(run_index, f"phase {name!r}: the run index")
        if self._whole and self._current[0] == WHOLE:
            assert self._notes is not None
            return _Once(name, _inside(self._notes))
        return _Once(name, self._measured(name, run_index))

    def model(self, **built: Any) -> None:
        """Report the model: parameters, parameter_bytes, trainable_parameters, storage_dtype, compute_dtype, ..."""
        self._journal.write(facts.Model(as_metrics(built)))

    @contextmanager
    def _measured(self, name: str, run_index: int | None) -> Iterator[Notes]:
        if self._current[0] != BETWEEN:
            raise RuntimeError(f"phase {name!r} inside phase {self._current[0]!r}: it would reset the outer one's peak")
        with self._unlimited():
            ended = self._end(completed=True)
            self._current, self._notes = (name, run_index), Notes()
            baseline = {device: reading.now for device, reading in self._readings.items()}
            self._journal.write(ended, facts.Began(name, run_index, baseline))
        self._since = time.perf_counter()
        try:
            yield self._notes
        except BaseException as error:
            self.raised = error
            self._leave(completed=False)
            raise
        self._leave(completed=True)

    def _leave(self, completed: bool) -> None:
        if os.getpid() != self._process:  # it was forked inside the phase, which is still under way in the measured one
            return
        with self._unlimited():
            ended = self._end(completed)
            self._current, self._notes = (BETWEEN, None), None
            self._journal.write(ended)

    def _end(self, completed: bool) -> facts.Ended:
        """Read the boundary, and return the fact of the phase that ends at it."""
        began, notes, (name, run_index) = self._readings, self._notes or Notes(), self._current
        self._readings = self._meter.boundary(failed=not completed)
        elapsed = time.perf_counter() - self._since  # the boundary waits for the device: its time is the phase's
        self._since += elapsed
        counters = {}
        for device, reading in self._readings.items():
            before = began.get(device, Reading())
            counters[device] = facts.Counters(
                baseline=before.now,
                end=reading.now,
                peak=reading.peak,
                alloc_retries=_rise(before.alloc_retries, reading.alloc_retries),
                num_ooms=_rise(before.num_ooms, reading.num_ooms),
                refused=reading.refused,
                refusals=reading.refusals,
                refused_bytes=reading.refused_bytes,
            )
        return facts.Ended(
            phase=name,
            run_index=run_index,
            elapsed_s=elapsed,
            iterations=_count(notes.iterations),
            completed=completed,
            counters=counters,
            shapes=as_metrics(notes.shapes),
            metrics=as_metrics(notes.metrics),
        )

    def close(self, completed: bool) -> None:
        """End the stretch after the last phase, which counts too, or the phase whose own end raised.

        A kernel's assert shows only when the device is waited for, at the phase's end.
        """
        self._journal.write(self._end(completed))

    @contextmanager
    def heartbeat(self, seconds: float) -> Iterator[None]:
        """Append the peaks so far every `seconds`, so that a hang or a kill leaves later readings than a boundary."""
        stop = threading.Event()

        def beat() -> None:
            current = self._current
            peaks = {device: reading.peak for device, reading in self._meter.glance().items()}
            if current is self._current and self._readings:  # a reading across a boundary belongs to neither phase
                name, run_index = current
                self._journal.write(facts.Heartbeat(name, run_index, peaks))

        def run() -> None:
            while not stop.wait(seconds):
                with suppress(MemoryError):  # the budget is used up: the end of the phase will show it
                    beat()

        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=5)


@contextmanager
def _inside(notes: Notes) -> Iterator[Notes]:
    """A phase of a workload that is measured as a whole: its notes go to the whole."""
    yield notes


class _Once(AbstractContextManager[Notes]):
    """A phase that can be entered once: contextlib gives no reason when it is entered again."""

    def __init__(self, name: str, phase: AbstractContextManager[Notes]) -> None:
        self._name, self._phase, self._is_new = name, phase, True

    def __enter__(self) -> Notes:
        if not self._is_new:
            raise RuntimeError(f"phase {self._name!r} was entered twice; call phase({self._name!r}) for each")
        self._is_new = False
        return self._phase.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self._phase.__exit__(*raised)


def _count(value: Any) -> int | None:
    """A count that a workload noted; None for what is none, as -5, 2.5 or true, and above the column's 64 bits."""
    try:
        count = operator.index(value)
    except TypeError:
        return None
    return count if not isinstance(value, bool) and 0 <= count < 2**63 else None


def _whole_number(value: Any, what: str) -> int | None:
    try:
        number = None if value is None else operator.index(value)
    except TypeError:
        raise TypeError(f"{what} {value!r} is not a whole number") from None
    if number is not None and not -(2**63) <= number < 2**63:
        raise ValueError(f"{what} does not fit into 64 bits")
    return number


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
