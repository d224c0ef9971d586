"""The boundaries of phases, with a meter and a journal in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy
import pytest

from runners.facts import Began, Counters, Ended, Fact, Heartbeat, Model
from runners.phases import WHOLE, Phases, Reading


class Steps:
    """A meter that holds 1, 2, 3, ... bytes at its boundaries, with ten times as many at the peak before each."""

    def __init__(self) -> None:
        self.failed: list[bool] = []
        self.glances: Iterator[Callable[[], None]] = iter(())

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        self.failed.append(failed)
        held = len(self.failed)
        return {"cpu": Reading(now={"resident": held}, peak={"resident": 10 * held}, alloc_retries=held * held)}

    def glance(self) -> Mapping[str, Reading]:
        next(self.glances, lambda: None)()
        return {"cpu": Reading(peak={"resident": 5})}


class Kept:
    """A journal in memory."""

    bytes = 0

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.beat = threading.Event()

    def write(self, *facts: Fact) -> None:
        self.facts += facts
        if any(isinstance(fact, Heartbeat) for fact in facts):
            self.beat.set()

    @property
    def ended(self) -> list[tuple[str, int | None, bool | None]]:
        return [(fact.phase, fact.run_index, fact.completed) for fact in self.facts if isinstance(fact, Ended)]

    @property
    def heartbeats(self) -> list[Heartbeat]:
        return [fact for fact in self.facts if isinstance(fact, Heartbeat)]


@pytest.fixture
def meter() -> Steps:
    return Steps()


@pytest.fixture
def journal() -> Kept:
    return Kept()


@pytest.fixture
def phase(meter: Steps, journal: Kept) -> Phases:
    return opened(meter, journal)


def opened(meter: Steps, journal: Kept, **options: Any) -> Phases:
    phases = Phases(meter, journal, **options)  # type: ignore[arg-type]
    phases.open()
    return phases


def test_a_phase_and_the_stretches_around_it_have_counters_of_their_own(phase: Phases, journal: Kept) -> None:
    with phase("forward", 0) as notes:
        notes.iterations, notes.shapes, notes.metrics = 2, {"input_ids": [1, 8]}, {"loss": 0.5}
    phase.close(completed=True)
    before, began, forward, after = journal.facts
    assert began == Began("forward", 0, {"cpu": {"resident": 2}})
    assert journal.ended == [("between", None, True), ("forward", 0, True), ("between", None, True)]
    assert isinstance(before, Ended)
    assert isinstance(forward, Ended)
    assert isinstance(after, Ended)
    assert before.counters["cpu"].peak == {"resident": 20}
    assert forward.counters == {"cpu": Counters({"resident": 2}, {"resident": 3}, {"resident": 30}, 9 - 4, None)}
    assert (forward.iterations, forward.shapes, forward.metrics) == (2, {"input_ids": [1, 8]}, {"loss": 0.5})
    assert after.counters["cpu"].baseline == {"resident": 3}
    assert (after.iterations, after.shapes, after.metrics) == (None, {}, {})
    assert all((fact.elapsed_s or 0) > 0 for fact in (before, forward, after))


def test_a_phase_inside_a_phase_is_refused_and_the_outer_one_keeps_its_peak(phase: Phases, journal: Kept) -> None:
    with phase("outer"), pytest.raises(RuntimeError, match="phase 'inner' inside phase 'outer'"), phase("inner"):
        pass
    assert journal.ended == [("between", None, True), ("outer", None, True)]


@pytest.mark.parametrize("whole", [False, True])
def test_a_phase_object_is_entered_once(meter: Steps, journal: Kept, whole: bool) -> None:
    phase = opened(meter, journal, whole=whole)
    with phase(WHOLE) if whole else nullcontext():
        step = phase("step")
        with step:
            pass
        with (
            pytest.raises(RuntimeError, match=r"^phase 'step' was entered twice; call phase\('step'\) for each$"),
            step,
        ):
            pass
        outer = phase("outer")
        with pytest.raises(RuntimeError, match="phase 'outer' was entered twice"), outer, outer:
            pass


@pytest.mark.parametrize(
    ("noted", "kept"),
    [(3, 3), (0, 0), (-5, None), (2.5, None), (True, None), ("3", None), (None, None), (2**70, None)],
)
def test_only_a_count_of_iterations_fills_the_column(
    noted: Any, kept: int | None, phase: Phases, journal: Kept
) -> None:
    with phase("step") as notes:
        notes.iterations = noted
    (ended,) = (fact for fact in journal.facts if isinstance(fact, Ended) and fact.phase == "step")
    assert ended.iterations == kept


def test_a_phase_that_an_exception_leaves_is_incomplete_and_read_as_after_a_failure(
    meter: Steps, journal: Kept
) -> None:
    lifted: list[str] = []

    @contextmanager
    def unlimited() -> Iterator[None]:
        lifted.append("before")
        yield
        lifted.append(f"after {len(meter.failed)} boundaries")

    phase = opened(meter, journal, unlimited=unlimited)
    error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"), phase("forward"):
        raise error
    assert phase.raised is error
    assert journal.ended[-1] == ("forward", None, False)
    assert meter.failed == [False, False, True]
    assert lifted == ["before", "after 2 boundaries", "before", "after 3 boundaries"], (
        "a full budget has no room to write"
    )
    with phase("next"):
        pass
    assert journal.ended[-2:] == [("between", None, True), ("next", None, True)]


def test_a_workload_measured_as_a_whole_has_one_phase_with_the_notes_of_all(meter: Steps, journal: Kept) -> None:
    phase = opened(meter, journal, whole=True)
    with phase(WHOLE):
        with phase("forward", 0) as notes:
            notes.metrics["loss"] = 0.5
        with phase("forward", 1) as notes:
            notes.metrics["tokens"] = 8
    assert journal.ended == [("between", None, True), ("whole", None, True)]
    assert isinstance(journal.facts[-1], Ended)
    assert journal.facts[-1].metrics == {"loss": 0.5, "tokens": 8}


def test_a_phase_in_another_process_is_refused(phase: Phases) -> None:
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            phase("forward")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 1000) == b"phase 'forward' was entered in a process that is not measured"
    os.close(read)


def test_a_workloads_report_of_its_model_is_written_as_it_is(phase: Phases, journal: Kept) -> None:
    phase.model(parameters=5, storage_dtype="float32")
    assert journal.facts == [Model({"parameters": 5, "storage_dtype": "float32"})]


def test_the_name_of_the_stretch_between_phases_and_what_is_no_name_are_refused(phase: Phases, journal: Kept) -> None:
    with pytest.raises(ValueError, match="phase 'between': this is the name of what happens between two phases"):
        phase("between")
    with pytest.raises(TypeError, match="phase 3: the name of a phase is a text, and not of type int"):
        phase(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="phase 'step': the run index 'first' is not a whole number"):
        phase("step", "first")  # type: ignore[arg-type]
    assert journal.facts == []


def test_notes_of_any_type_become_values_that_a_table_can_hold(phase: Phases, journal: Kept) -> None:
    with phase("step", numpy.int64(2)) as notes:  # type: ignore[arg-type]
        notes.iterations, notes.shapes, notes.metrics = "two", [1, 8], numpy.float32(0.5)  # type: ignore[assignment]
    ended = journal.facts[-1]
    assert isinstance(ended, Ended)
    assert (ended.run_index, ended.iterations) == (2, None)
    assert (ended.shapes, ended.metrics) == ({"result": [1, 8]}, {"result": 0.5})
    assert type(ended.run_index) is int


def test_a_process_forked_inside_a_phase_leaves_it_without_a_fact(phase: Phases, journal: Kept) -> None:
    child = False
    with suppress(ValueError), phase("outer"):
        pid = os.fork()
        if child := pid == 0:
            raise ValueError
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if child:
        os._exit(len(journal.ended))
    assert code == 1, "the child has the end of the stretch before the fork, and none of its own"
    assert journal.ended == [("between", None, True), ("outer", None, True)]


# -- heartbeats --------------------------------------------------------------------------------------------------------


def test_a_heartbeat_has_the_peaks_so_far_of_the_phase_under_way(phase: Phases, journal: Kept) -> None:
    with phase.heartbeat(0.001):
        with phase("forward", 3):
            journal.beat.clear()
            assert journal.beat.wait(10)
        assert Heartbeat("forward", 3, {"cpu": {"resident": 5}}) in journal.heartbeats


def test_a_reading_across_a_boundary_is_written_for_neither_phase(meter: Steps, phase: Phases, journal: Kept) -> None:
    reading, moved, next_reading = threading.Event(), threading.Event(), threading.Event()

    def across() -> None:
        reading.set()
        assert moved.wait(10)

    meter.glances = iter([across, next_reading.set])
    with phase.heartbeat(0.001):
        assert reading.wait(10)
        with phase("forward"):
            moved.set()
            assert next_reading.wait(10)
            assert journal.beat.wait(10)
    assert journal.heartbeats[0].phase == "forward"


def test_a_heartbeat_that_finds_no_memory_is_left_out_and_the_next_one_comes(
    meter: Steps, phase: Phases, journal: Kept
) -> None:
    def no_memory() -> None:
        raise MemoryError

    meter.glances = iter([no_memory])
    with phase.heartbeat(0.001):
        assert journal.beat.wait(10)


def test_no_heartbeat_is_written_before_there_is_a_boundary(meter: Steps, journal: Kept) -> None:
    phase = Phases(meter, journal)  # type: ignore[arg-type]
    second = threading.Event()
    meter.glances = iter([lambda: None, second.set])
    with phase.heartbeat(0.001):
        assert second.wait(10)
        assert journal.heartbeats == []
