"""The `phase` object of a workload: it names stretches of an attempt and reads the counters at their boundaries."""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from runners import facts
from runners.journal import BETWEEN, QUALITY, Journal
from runners.metrics import Room, as_metrics
from runners.unlisted import UNLISTED, Unlisted

WHOLE = "whole"
LONGEST_NAME = 200  # characters of a phase's name
LISTED_BYTES = 2**24  # of the journal, until which every phase has its lines: some 9,000 phases on cpu
LARGEST_NOTES_BYTES = 2**21  # of the metrics and the shapes of all phases together, as JSON
MOST_NAMES = 1000  # of phases that get lines after LISTED_BYTES since their name is new
MOST_HEARTBEATS = 1000  # until they become rarer: an attempt of a day has 7,000 of them and not 432,000
OWN_FRAMES = 200
LARGEST_RECURSION_LIMIT = 2**31 - 1  # an int in C

# The workload may replace them.
clock, getpid = time.perf_counter, os.getpid
recursion_limit, set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit


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


@runtime_checkable
class Cuttable(Protocol):
    """A meter that can leave out what follows."""

    def cut(self) -> None: ...


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
    that is not the measured one, whose memory the counters do not see. The names `between` and `unlisted`, a name of
    more than LONGEST_NAME characters and a run index of more than 64 bits raise ValueError. TypeError is raised for a
    name that is no text and a run index that is no whole number.

    Once the journal has LISTED_BYTES, a phase whose name it has already is measured as before, but gets no line of its
    own: it becomes a part of the next line `unlisted` (runners.unlisted).
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
        self._process = getpid()
        self._current: tuple[str, int | None] = (BETWEEN, None)
        self._notes: Notes | None = None
        self._since = clock()
        self._readings: Mapping[str, Reading] = {}
        self._room, self._model_room = Room(LARGEST_NOTES_BYTES), Room(LARGEST_NOTES_BYTES)
        self._listed: set[str] = set()  # names of phases that the journal has
        self._unlisted = Unlisted()
        self._pending: facts.Began | None = None  # the beginning of the current phase, if the journal does not have it
        self._lock = threading.RLock()  # of the two above and of the current phase: the heartbeat writes them down too
        self.raised: BaseException | None = None  # the last exception that left a phase

    def open(self) -> None:
        """Read the first boundary, where the stretch before the first phase begins."""
        self._readings = self._meter.boundary()
        self._since = clock()

    @property
    def is_open(self) -> bool:
        return bool(self._readings)

    @property
    def under_way(self) -> tuple[str, int | None]:
        """The name and the run index of the phase under way."""
        return self._current

    def __call__(self, name: str, run_index: int | None = None) -> AbstractContextManager[Notes]:
        if getpid() != self._process:
            raise RuntimeError(f"phase {name!r} was entered in a process that is not measured")
        name = _name(name)
        run_index = _whole_number(run_index, f"phase {name!r}: the run index")
        if self._whole and self._current[0] == WHOLE:
            assert self._notes is not None
            inside = self._notes  # a phase of a workload that is measured as a whole: its notes go to the whole
            return _Phase(name, lambda: inside, lambda error: None)
        return _Phase(name, lambda: self._enter(name, run_index), self._leave)

    def model(self, **built: Any) -> None:
        """Report the model: parameters, parameter_bytes, trainable_parameters, storage_dtype, compute_dtype, ...

        The last report counts. Raises RuntimeError if the reports exceed LARGEST_NOTES_BYTES together.
        """
        if self._model_room.left <= 0:
            raise RuntimeError(f"phase.model was given {LARGEST_NOTES_BYTES} bytes and more; report the model once")
        self._journal.write(facts.Model(as_metrics(built, self._model_room)))

    def _enter(self, name: str, run_index: int | None) -> Notes:
        if self._current[0] != BETWEEN:
            raise RuntimeError(f"phase {name!r} inside phase {self._current[0]!r}: it would reset the outer one's peak")
        with self._unlimited(), self._lock:
            ended = self._end(completed=True)
            self._current, self._notes = (name, run_index), Notes()
            baseline = {device: reading.now for device, reading in self._readings.items()}
            began = facts.Began(name, run_index, baseline)
            # What follows the phase `quality` counts in no peak, so it is never joined with what was before.
            if self._journal.bytes < LISTED_BYTES or name == QUALITY or name not in self._listed:
                self._list(ended, began)
            else:
                self._unlisted.add(ended)
                self._pending = began
        self._since = clock()
        return self._notes

    def _leave(self, error: BaseException | None) -> None:
        if getpid() != self._process:  # it was forked inside the phase, which is still under way in the measured one
            return
        if error is not None:
            self.raised = error
        with self._unlimited(), self._lock:
            ended = self._end(completed=error is None)
            self._current, self._notes = (BETWEEN, None), None
            if self._pending is None:
                self._journal.write(ended)
            else:
                self._unlisted.add(ended)
                self._pending = None

    def _list(self, *written: facts.Fact) -> None:
        """Write facts, after those that the journal does not have yet. The lock is held."""
        pending = () if self._pending is None else (self._pending,)
        self._journal.write(*self._unlisted.joined, *pending, *written)
        self._unlisted.clear()  # afterwards: there may have been no memory to write
        self._pending = None
        for fact in (*pending, *written):
            if isinstance(fact, facts.Began) and len(self._listed) < MOST_NAMES:
                self._listed.add(fact.phase)

    def _end(self, completed: bool) -> facts.Ended:
        """Read the boundary, and return the fact of the phase that ends at it."""
        began, notes, (name, run_index) = self._readings, self._notes or Notes(), self._current
        self._readings = self._meter.boundary(failed=not completed)
        elapsed = clock() - self._since  # the boundary waits for the device: its time is the phase's
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
            shapes=as_metrics(notes.shapes, self._room),
            metrics=as_metrics(notes.metrics, self._room),
        )

    def cut(self) -> None:
        """Leave out of the counters what follows, where the meter can: a calculated program has shown enough."""
        if isinstance(self._meter, Cuttable):
            self._meter.cut()

    def close(self, completed: bool) -> None:
        """End the stretch after the last phase, which counts too, or the phase whose own end raised.

        A kernel's assert shows only when the device is waited for, at the phase's end.
        """
        with self._lock:
            self._list(self._end(completed))

    def heartbeat(self, seconds: float) -> AbstractContextManager[None]:
        """Append the peaks so far every `seconds`, so that a hang or a kill leaves later readings than a boundary.

        After MOST_HEARTBEATS they become rarer (`pause`), and they end when the journal has twice LISTED_BYTES.
        """
        return _Heartbeat(self._beat, seconds)

    def _beat(self) -> None:
        if self._journal.bytes >= 2 * LISTED_BYTES:
            return
        current = self._current
        peaks = {device: reading.peak for device, reading in self._meter.glance().items()}
        with self._lock:
            if current is self._current and self._readings:  # a reading across a boundary belongs to neither phase
                self._list(facts.Heartbeat(*current, peaks))


class _Heartbeat(AbstractContextManager[None]):
    """A thread that calls `beat` until the context is left. No generator: see `processes.forks_end_here`."""

    def __init__(self, beat: Callable[[], None], seconds: float) -> None:
        self._beat, self._seconds, self._stop = beat, seconds, threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        began = clock()
        while not self._stop.wait(pause(self._seconds, clock() - began)):
            with suppress(MemoryError):  # the budget is used up: the end of the phase will show it
                self._beat()


def pause(seconds: float, elapsed: float) -> float:
    """The time to the next heartbeat, in seconds: as requested, or if more, a thousandth of the time elapsed."""
    return max(seconds, elapsed / MOST_HEARTBEATS)


class _Phase(AbstractContextManager[Notes]):
    """A phase that can be entered once: contextlib gives no reason when it is entered again.

    Leaves room for our own frames: a workload may have reached the limit of recursion, or lowered it. No generator: see
    `processes.forks_end_here`.
    """

    def __init__(self, name: str, enter: Callable[[], Notes], leave: Callable[[BaseException | None], None]) -> None:
        self._name, self._enter, self._leave, self._is_new = name, enter, leave, True

    def __enter__(self) -> Notes:
        if not self._is_new:
            raise RuntimeError(f"phase {self._name!r} was entered twice; call phase({self._name!r}) for each")
        self._is_new = False
        limit = recursion_limit()
        set_recursion_limit(min(limit + OWN_FRAMES, LARGEST_RECURSION_LIMIT))
        try:
            return self._enter()
        finally:
            _restore(limit)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        limit = recursion_limit()
        set_recursion_limit(min(limit + OWN_FRAMES, LARGEST_RECURSION_LIMIT))
        try:
            self._leave(error)
        except MemoryError:
            if error is None:
                raise
            # What the workload holds leaves no room to read the boundary: its own error is the reason of the failure.
        finally:
            _restore(limit)


def _restore(limit: int) -> None:
    with suppress(RecursionError):  # lower than the frames that there are
        set_recursion_limit(limit)


def _name(given: Any) -> str:
    if not issubclass(type(given), str):
        raise TypeError(f"phase {given!r}: the name of a phase is a text, and not of type {type(given).__name__}")
    name: str = str.__str__(given)  # of exactly this type
    if name == BETWEEN:
        raise ValueError(f"phase {name!r}: this is the name of what happens between two phases; choose another")
    if name == UNLISTED:
        raise ValueError(f"phase {name!r}: this is the name of phases without a line of their own; choose another")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"phase {name[:50]!r}...: its name has {len(name)} characters, and at most {LONGEST_NAME}")
    return name


def _count(value: Any) -> int | None:
    """A count that a workload noted; None for what is none, as -5, 2.5 or true, and above the column's 64 bits."""
    try:
        count = operator.index(value)
    except BaseException:  # a TypeError, or what the value's own code raises
        return None
    return count if type(value) is not bool and 0 <= count < 2**63 else None


def _whole_number(value: Any, what: str) -> int | None:
    if value is None:
        return None
    try:
        number = int.__add__(operator.index(value), 0)  # of exactly this type
    except TypeError:
        raise TypeError(f"{what} {value!r} is not a whole number") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{what} has {number.bit_length()} bits, and at most 63")
    return number


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
