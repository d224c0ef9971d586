"""How an attempt ended: the statuses, and the one function that decides a status from the facts."""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from runners import facts
from runners.device import Device
from runners.facts import Baseline, Began, Cause, Ended, Exit, Fact, Heartbeat, highest
from runners.journal import BETWEEN, QUALITY
from runners.point import Attempt
from runners.refusals import Refusal, gave_up, large_segment_bytes, refusal_in

F = TypeVar("F", bound=Fact)

OUR_OWN_BYTES = 2**20  # the most that writing our own lines takes between two phases
RESIDENT = "resident"
AT_BOUNDARIES = ("used", "graph_pools")  # counters without a peak
UNCERTAIN_BYTES = 2**20  # that a figure of the budget may be too high
# How far the kernel's high-water mark may lag behind a reading: it counts pages for each processor, in batches, and
# sets the mark from an approximate sum (include/linux/percpu_counter.h).
MARK_LAGS_BYTES = 2**24
START = "start"  # the failed phase of an attempt that did not reach its baseline: the interpreter and the imports

UNAVAILABLE = "runners.phases.Unavailable"  # the qualified name: a user's class may have the same short one
# Of CUDA and ROCm: torch was built without code for this kind of device; another process has the device for itself
NOT_TO_BE_HAD = re.compile(r"no kernel image is available|invalid device function|busy or unavailable")


class Status(str, enum.Enum):
    """How an attempt ended, or why there was no attempt."""

    OK = "ok"
    OOM = "oom"
    OOM_KILLED = "oom_killed"
    KILLED = "killed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNAVAILABLE = "unavailable"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    SKIPPED = "skipped"
    NOT_RUN = "not_run"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase on one device. Counters are bytes by name (`resident`, `allocated`, ...), absent where not read."""

    name: str
    run_index: int | None
    device: str
    completed: bool
    iterations: int | None = None
    elapsed_s: float | None = None
    baseline: Mapping[str, int] = field(default_factory=dict)
    end: Mapping[str, int] = field(default_factory=dict)
    peak: Mapping[str, int] = field(default_factory=dict)
    alloc_retries: int | None = None
    num_ooms: int | None = None
    refused: facts.Refused | None = None  # the last allocation that was refused
    refusals: int | None = None  # refused allocations that reached the workload
    refused_bytes: int | None = None  # the largest of them
    shapes: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True  # false for a phase outside the workload: the point's peaks leave it out
    # Of a phase that completed: whether the peak of the deciding counter may be higher than the one that was read.
    is_partial: bool = False
    # Marks that this phase or one before it reached, since no reading is between them. They count for the point only.
    marks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)  # without slots, for the cached property
class Outcome:
    """The result of one attempt. A figure that was not measured is None."""

    status: Status
    device: Device
    attempt: int | None = None
    oom_scope: str | None = None
    failed_phase: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    requested_bytes: int | None = None
    needs_at_least_bytes: int | None = None  # lower bound after a refusal, as _bytes_of decides it
    handled_refusals: int | None = None  # refused allocations that the workload caught; None if not observable
    handled_refusal_bytes: int | None = None  # the largest size that was refused
    skipped_because: str | None = None
    phases: tuple[Phase, ...] = ()
    peak_is_partial: bool | None = None
    gaps: frozenset[str] = frozenset()  # counters that a phase of the measured process has no peak of, and others have
    process_baseline: Mapping[str, int] = field(default_factory=dict)
    available_memory_bytes: int | None = None
    available_memory_end_bytes: int | None = None
    memory_pressure_start_us: int | None = None
    memory_pressure_end_us: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    budget_kind: str | None = None
    budget_bytes: int | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    unlimited: Mapping[str, int] = field(default_factory=dict)  # calculated peaks, as if memory were unlimited
    assumed_values: int | None = None  # numbers that a calculated attempt read and that are assumed
    assumed_places: Sequence[Mapping[str, Any]] = ()
    assumed_bounds: Sequence[Mapping[str, Any]] = ()  # where a size is at most what it was taken as
    metrics: Mapping[str, Any] = field(default_factory=dict)
    host_tensor_peak_bytes: int | None = None  # of tensors in host memory, for a program on a calculated card
    notes: tuple[str, ...] = ()  # assumptions, bounds and what was left out
    steps: int | None = None
    tokens: int | None = None
    pid: int | None = None
    started_at: str | None = None
    started_cold_because: str | None = None  # why an attempt with start=warm was not forked
    duration_s: float | None = None
    contaminated: bool | None = None
    contaminated_by: str | None = None
    contamination_told_by: str | None = None
    used_before_bytes: int | None = None  # on the device before the attempt began; the most of several devices
    instrumented: bool | None = None
    other_processes: int | None = None  # the most that the workload had running at once; no counter has their memory
    other_processes_resident_bytes: int | None = None  # their sum: pages that they share count in each
    record_bytes: int = 0  # size of its journal, which decides how many outcomes wait in memory
    void: bool = False  # it never began, or its record is damaged or was never written: the point is measured again

    @property
    def fits(self) -> bool | None:
        """Whether the point fits on the device, or None if this attempt did not decide it.

        A workload that continued after a refused allocation may have done so with less than was requested. One that
        held more than the budget in memory that the kernel does not limit has not shown that it fits. A limit that the
        workload set itself decides as a budget does: it stands for a smaller device.
        """
        if self.status is Status.OK:
            return None if self.handled_refusals or self.exceeds_budget else True
        if self.status in (Status.OOM, Status.OOM_KILLED):
            own = self.oom_scope == "device" or self.device.is_host
            return False if own else None
        return None

    @property
    def unlimited_peak_bytes(self) -> int | None:
        """The peak of the deciding counter of a calculated attempt, as if the device's memory were unlimited."""
        if self.status is Status.OOM:
            return self.unlimited.get(self.device.deciding_counter)
        passed = self.status is Status.OK and self.device.is_calculated
        return self.peak(self.device.deciding_counter) if passed else None

    def peak(self, counter: str) -> int | None:
        """The point's peak of one counter in bytes, or None if it was not read."""
        return self.peaks.get(counter)

    @cached_property
    def peaks(self) -> Mapping[str, int]:
        """The point's peak of each counter in bytes: the highest of all phases that count.

        With several devices it is the highest of any one of them. If it is partial, zeros are left out: they are
        readings of earlier phases, and nothing was read of the unfinished one. Where it is not, a counter that a phase
        has no reading of is left out: the peak may have been in that phase.
        """
        peaks = peaks_of(phase for phase in self.phases if phase.counts)
        if self.peak_is_partial:
            return {counter: peak for counter, peak in peaks.items() if peak}
        return {counter: peak for counter, peak in peaks.items() if counter not in self.gaps}

    @property
    def budget_used_bytes(self) -> int | None:
        """The most of the budget that was used at once, by the counter that the limit counts.

        On cpu the most that was added to the data segment since the baseline, or to the address space if RLIMIT_AS is
        the limit: the resident peak counts file pages, which neither limit is about. None after a refusal, when VmPeak
        is no longer meaningful, and where the readings leave more than `UNCERTAIN_BYTES` open.
        """
        if not self.device.is_cpu:
            return self.peak(self.device.budget_counter)
        if self.status is not Status.OK or self.handled_refusals:
            return None
        data, addresses = self._added
        return addresses if self.budget_kind == facts.ADDRESS_LIMIT else data

    @property
    def used_with_shared_bytes(self) -> int | None:
        """The most bytes added since the baseline to the data segment and to resident shared memory together.

        A lower bound, of what boundaries and heartbeats read. Only on cpu and of an attempt that passed.
        """
        before = self.process_baseline.get("data_and_shared")
        held = [
            phase.end["data_and_shared"] for phase in self.phases if phase.counts and "data_and_shared" in phase.end
        ]
        if self.status is not Status.OK or before is None or not held:
            return None
        return max(0, max(held) - before)

    @property
    def exceeds_budget(self) -> bool:
        """Whether an attempt on cpu held more than its budget: RLIMIT_DATA does not limit shared memory."""
        used = self.used_with_shared_bytes
        if used is None or self.budget_bytes is None or self.budget_kind != facts.DATA_LIMIT:
            return False
        return used > self.budget_bytes + UNCERTAIN_BYTES  # the limit is lifted for a moment at each boundary

    @property
    def _added(self) -> tuple[int | None, int | None]:
        """The most bytes added since the baseline to the data segment and to the address space.

        The kernel keeps a mark of the address space only (VmPeak). At any time the data segment (VmData) is the address
        space (VmSize) less what is mapped otherwise, which the boundaries of a phase bracket. A mark that a phase did
        not raise bounds that phase from above only, and so does a limit that refused nothing.
        """
        before = self.process_baseline
        if not {"address", "virtual", "virtual_peak"} <= before.keys():
            return None, None
        held, mark = before["address"], before["virtual_peak"]
        mapped = before["virtual"] - held
        most = least = held  # bounds of the highest VmData
        was = before["virtual"] if mark == before["virtual"] else None  # the highest VmSize, if the mark shows it
        for phase in self.phases:
            if phase.device != self.device.parts[0] or not phase.counts:
                continue
            if "address" not in phase.peak or not {"address", "virtual", "mapped"} <= phase.end.keys():
                return None, None
            data, peak = phase.end["address"], phase.peak["address"]
            mapped, began = phase.end["virtual"] - data, mapped
            most = max(most, peak - min(began, mapped))
            least = max(least, data)
            if peak > mark:
                least = max(least, peak - max(began, phase.end["mapped"]))
                was, mark = peak, peak
        if self.budget_bytes is not None and self.budget_kind != facts.ADDRESS_LIMIT:
            most = min(most, held + self.budget_bytes)
        # Without an upper bound that is at least the lower one, a file was mapped and unmapped within a phase.
        added = most - held if 0 <= most - least <= UNCERTAIN_BYTES else None
        return added, None if was is None else was - before["virtual"]

    @property
    def peak_phase(self) -> str | None:
        """The first phase that reached the peak of the deciding counter.

        Writing our own lines between phases takes some pages, so a named phase wins within `OUR_OWN_BYTES`.
        """
        counter = self.device.deciding_counter
        peak = self.peak(counter)
        if peak is None:
            return None
        counting = [phase for phase in self.phases if phase.counts and counter in phase.peak]
        if all(phase.peak[counter] < peak for phase in counting):
            return None  # it is a mark that more than one phase may have reached
        named = [phase for phase in counting if phase.name != BETWEEN]
        top = max(named, key=lambda phase: phase.peak[counter], default=None)
        return BETWEEN if top is None or top.peak[counter] + OUR_OWN_BYTES < peak else top.name


def peaks_of(phases: Iterable[Phase]) -> dict[str, int]:
    """The highest reading of each counter in bytes.

    The driver keeps no high-water mark of a device's used memory, nor torch one of a graph's private pools: the highest
    reading at a boundary replaces it.
    """
    return highest(_readings(phases))


def _readings(phases: Iterable[Phase]) -> Iterator[Mapping[str, int]]:
    for phase in phases:
        yield phase.peak
        yield phase.marks
        for reading in (phase.baseline, phase.end):
            if not reading.keys().isdisjoint(AT_BOUNDARIES):
                yield {counter: reading[counter] for counter in AT_BOUNDARIES if counter in reading}


def _gaps(phases: Sequence[Phase]) -> frozenset[str]:
    """The counters of which a phase has no peak and another phase of its device has one."""
    read: dict[str, set[str]] = {}  # by device
    for phase in phases:
        read.setdefault(phase.device, set()).update(phase.peak)
    missing = {counter for phase in phases for counter in read[phase.device] - phase.peak.keys()}
    return frozenset(missing.difference(AT_BOUNDARIES))


def outcome_of(
    attempt: Attempt, journal: Sequence[Fact], exit: Exit | None, damage: str | None = None, record_bytes: int = 0
) -> Outcome:
    """Decide how an attempt ended, from its journal and its supervisor's exit.json (None: the supervisor died).

    `damage` is what is wrong with these files: no figure is taken from them then.
    """
    unsettled = exit is None
    if exit is None or exit == Exit():
        exit = Exit(lost=True)
    if damage is not None:
        journal = ()
    last: dict[type, Fact] = {type(fact): fact for fact in journal}  # of each kind
    baseline, environment = _last(last, Baseline), _last(last, facts.Environment)
    notes = _last(last, facts.Notes)
    budget, model, unlimited = _last(last, facts.Budget), _last(last, facts.Model), _last(last, facts.Unlimited)
    failed, finished = _last(last, facts.Failed), _last(last, facts.Finished)
    is_of_program = baseline is not None and _is_of_program(baseline)
    phases = tuple(_counting(attempt, _phases(attempt, journal, exit)))
    gaps: frozenset[str] = frozenset()
    if not is_of_program and not attempt.device.is_calculated:
        phases = _with_mark_at_death(phases, exit, ended_alone=finished is not None)
        gaps = _gaps([phase for phase in phases if phase.counts])
    has_finished = finished is not None and not unsettled  # what never settled is measured again: it would count twice
    partial = (
        not has_finished
        or attempt.device.deciding_counter in gaps
        or any(not phase.completed or (phase.is_partial and phase.counts) for phase in phases)
    )
    available = None if baseline is None else baseline.available_memory_bytes
    before = [device.used_bytes_before for device in exit.devices if device.used_bytes_before is not None]
    common: dict[str, Any] = {
        "device": attempt.device,
        "attempt": attempt.number,
        "record_bytes": record_bytes,
        "phases": phases,
        "peak_is_partial": partial if phases else None,
        "gaps": gaps,
        "process_baseline": {} if baseline is None else baseline.counters or {},
        "available_memory_bytes": exit.available_memory_bytes_start if available is None else available,
        "available_memory_end_bytes": exit.available_memory_bytes_end,
        "memory_pressure_start_us": exit.memory_pressure_start_us,
        "memory_pressure_end_us": exit.memory_pressure_end_us,
        "instrumented": None if baseline is None else baseline.instrumented,
        "environment": {} if environment is None else environment.record or {},
        "budget_kind": None if budget is None else budget.budget_kind,
        "budget_bytes": None if budget is None else budget.budget_bytes,
        "unlimited": {} if unlimited is None else unlimited.peak or {},
        "model": {} if model is None else model.facts,
        "notes": () if notes is None else tuple(map(str, notes.notes or ())),
        "pid": exit.pid or (None if environment is None else environment.pid),
        "started_at": exit.started_at,
        "started_cold_because": exit.started_cold_because,
        "duration_s": exit.duration_s,
        "contaminated": None if exit.contaminated is None else bool(exit.contaminated),
        "contaminated_by": exit.contaminated or None,
        "contamination_told_by": exit.contamination_told_by,
        "used_before_bytes": max(before, default=None),
        "signal": exit.signal,
        "exit_code": exit.code,
    }
    if not is_of_program:  # the counters are those of a program's processes
        common["other_processes"] = exit.other_processes
        common["other_processes_resident_bytes"] = exit.other_processes_resident_bytes
    assumed = _last(last, facts.Assumed)
    if attempt.device.is_calculated:
        common["assumed_values"] = 0 if assumed is None else assumed.values
        common["assumed_places"] = () if assumed is None else assumed.places or ()
        common["assumed_bounds"] = () if assumed is None else assumed.bounds or ()
        on_host = _last(last, facts.HostTensors)
        common["host_tensor_peak_bytes"] = None if on_host is None else on_host.peak_bytes
    if damage is not None:
        return Outcome(status=Status.LOST, void=True, error_message=f"its record is damaged: {damage}", **common)
    refusals = _refusals(attempt, phases)
    if has_finished and finished is not None:
        common |= _handled(refusals, phases)
        common |= {"metrics": finished.metrics or {}, "steps": finished.steps, "tokens": finished.tokens}
        return Outcome(status=Status.OK, **common)
    unfinished = _unfinished_of(phases)
    has_begun = baseline is not None or phases  # a calculated attempt has no baseline
    common["failed_phase"] = unfinished.name if unfinished else BETWEEN if has_begun else START
    if failed is not None and failed.signal is None:  # the process dies of the signal that ended its program
        if failed.exit_code is not None:
            common["exit_code"] = failed.exit_code
        raised = _raised(failed, phases, common["environment"], attempt.device, refusals)
        uncaught = "requested_bytes" in raised
        common |= _handled(max(0, refusals - uncaught) if refusals else refusals, phases)
        if common.get("assumed_bounds") and raised["status"] is Status.OOM:
            raised = {"status": Status.UNAVAILABLE, "error_message": _refused_with(common["assumed_bounds"])}
        most, needs = common["unlimited"].get(attempt.device.deciding_counter), raised.get("needs_at_least_bytes")
        if most is not None and needs is not None:  # a program can catch a refusal, and then take what it does not need
            raised["needs_at_least_bytes"] = min(needs, most)
        return Outcome(**raised, **common)
    common |= _handled(refusals, phases)
    if failed is None and exit.code == facts.UNRECORDED:
        why = exit.last_output or "the journal could not be written"
        return Outcome(status=Status.LOST, void=True, error_message=why, **common)
    is_unified = bool(common["environment"].get("device_integrated"))
    return Outcome(**_ended(exit, is_unified), void=bool(exit.lost) and not journal, **common)


def _refused_with(bounds: Sequence[Mapping[str, Any]]) -> str:
    first = bounds[0]
    return (
        f"it is not known that it does not fit: {first['file']}:{first['line']}, {first['operator']} was taken as "
        f"{first['bound']}, and with that an allocation is refused"
    )


def _last(journal: Mapping[type, Fact], kind: type[F]) -> F | None:
    found = journal.get(kind)
    return found if isinstance(found, kind) else None


def _is_of_program(baseline: facts.Baseline) -> bool:
    """Whether the counters are those of a program that the process started, rather than its own."""
    return baseline.of == facts.PROGRAM


def _unfinished_of(phases: Sequence[Phase]) -> Phase | None:
    """The phase an attempt failed in: the last that did not complete. The workload caught earlier failures."""
    return next((phase for phase in reversed(phases) if not phase.completed), None)


def _free_bytes(phases: Sequence[Phase], environment: Mapping[str, Any]) -> int | None:
    """The least free memory of a device at the end of the failed phase; None if it is not known."""
    total, failed = environment.get("device_total_bytes"), _unfinished_of(phases)
    if total is None or failed is None:
        return None
    used = [phase.end["used"] for phase in phases if _is_same(phase, failed) and "used" in phase.end]
    return total - max(used) if used else None


def _is_same(phase: Phase, other: Phase) -> bool:
    """Whether two phases are one, on two devices."""
    return (phase.name, phase.run_index, phase.completed) == (other.name, other.run_index, other.completed)


def _refusals(attempt: Attempt, phases: Iterable[Phase]) -> int | None:
    """The refused allocations that reached the workload: at least so many, or None if nothing is known of them.

    A process counts its own on the first device. 0 only if every stretch was observed.
    """
    counts = [phase.refusals for phase in phases if phase.device == attempt.device.parts[0]]
    known = sum(count for count in counts if count is not None)
    return known if known or (counts and None not in counts) else None


def _handled(count: int | None, phases: Iterable[Phase]) -> dict[str, Any]:
    largest = max((phase.refused_bytes for phase in phases if phase.refused_bytes is not None), default=None)
    return {"handled_refusals": count, "handled_refusal_bytes": largest if count else None}


def _raised(
    failed: facts.Failed,
    phases: Sequence[Phase],
    environment: Mapping[str, Any],
    device: Device,
    refusals: int | None,
) -> dict[str, Any]:
    outermost = failed.chain[0]
    found: dict[str, Any] = {
        "status": Status.ERROR,
        "error_type": outermost.type,
        "error_message": outermost.message,
        "traceback": failed.traceback,
    }
    segment = large_segment_bytes(environment.get("allocator_settings"))
    refusal = refusal_in(failed.chain, failed.traceback, _free_bytes(phases, environment), segment)
    if any(_is_unavailable(cause) for cause in failed.chain):
        found["status"] = Status.UNAVAILABLE
    elif refusal is not None:
        found |= {"status": Status.OOM, "oom_scope": refusal.scope, **_bytes_of(refusal, phases)}
    elif refusals and gave_up(failed.chain):
        found |= {"status": Status.OOM, "oom_scope": "host" if device.is_host else "device"}
    return found


def _bytes_of(refusal: Refusal, phases: Sequence[Phase]) -> dict[str, int | None]:
    """What was requested, and a lower bound of what the point needs: with what was held when it was refused.

    The record of the refusal is exact: an allocator's own, or on cpu the tracked tensors. The message has two decimals.
    The readings at the end of the phase are no bound: on a device the exception freed memory, and resident memory of a
    process includes what was freed to malloc, which can become part of the request.
    """
    seen = _observed(refusal, phases)
    if seen is not None:
        return {"requested_bytes": seen.requested_bytes, "needs_at_least_bytes": seen.needs_bytes}
    return {"requested_bytes": refusal.requested_bytes, "needs_at_least_bytes": refusal.needs_bytes}


def _observed(refusal: Refusal, phases: Sequence[Phase]) -> facts.Refused | None:
    """The record of this refusal, rather than of an earlier one that the workload handled."""
    failed, printed = _unfinished_of(phases), refusal.requested_bytes
    if failed is None or printed is None:
        return None
    seen = [phase.refused for phase in phases if _is_same(phase, failed) and phase.refused is not None]
    return next((each for each in seen if 0 <= each.requested_bytes - printed <= each.requested_bytes / 100), None)


def _is_unavailable(cause: Cause) -> bool:
    if cause.type == UNAVAILABLE:
        return True
    is_torchs = "RuntimeError" in (cause.type, *cause.bases)
    return is_torchs and NOT_TO_BE_HAD.search(cause.message or "") is not None


def _ended(exit: Exit, is_unified: bool) -> dict[str, Any]:
    """The status of a process that neither finished nor reported a failure.

    `is_unified`: the device has no memory of its own but the host's (Jetson, GB10), so what the kernel ran out of is
    the device's.
    """
    if exit.lost:
        why = exit.reason or "its supervisor ended before the attempt had settled"
        return {"status": Status.LOST, "error_message": why}
    if exit.interrupted:
        return {"status": Status.INTERRUPTED, "error_message": exit.reason}
    if exit.timed_out:
        return {"status": Status.TIMEOUT, "error_message": exit.reason}
    if exit.unavailable:
        return {"status": Status.UNAVAILABLE, "error_message": exit.unavailable}
    if exit.signal == signal.SIGKILL:
        if exit.oom_kill_proof:
            scope = "device" if is_unified else "host"
            return {"status": Status.OOM_KILLED, "oom_scope": scope, "error_message": exit.oom_kill_proof}
        return {"status": Status.KILLED, "error_message": "SIGKILL from an unknown sender"}
    how = f"ended without reporting a result, exit code {exit.code}"
    if exit.signal is not None:
        how = f"ended by {_signal_name(exit.signal)}"
    output = f": {exit.last_output}" if exit.last_output else ""
    return {"status": Status.CRASHED, "error_message": how + output}


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def _phases(attempt: Attempt, journal: Sequence[Fact], exit: Exit) -> Iterator[Phase]:
    """The phases that ended, then the unfinished one with its last readings."""
    current: Began | Ended | Baseline | None = None  # after Baseline and Ended the phase `between` is under way
    seen: list[Heartbeat] = []  # of the current phase
    reported = False  # whether the process itself reported how it ended
    of_program = observed = False  # observed: the process has read its own resident memory
    is_lost = False  # whether it could not, at the last boundary
    first = attempt.device.parts[0]  # the process's own memory is in its counters
    # Where the kernel does not reset the mark, it is that of the process.
    has_marks = any(
        RESIDENT in fact.counters[first].peak for fact in journal if isinstance(fact, Ended) and first in fact.counters
    )
    for fact in journal:
        if isinstance(fact, Ended):
            for device, counters in fact.counters.items():
                phase = _ended_phase(fact, device, counters)
                is_own = observed and device == first
                outside = _outside_of(current, fact, exit) if is_own and has_marks else []
                phase = _with_readings(phase, attempt.device, outside, seen, is_own)
                yield _unplaced(phase) if is_lost and device == first else phase
            is_lost = observed and first in fact.counters and RESIDENT not in fact.counters[first].end
        if isinstance(fact, (Baseline, Began, Ended)):
            current, seen = fact, []
            if isinstance(fact, Baseline):
                of_program = of_program or _is_of_program(fact)
                observed = not (of_program or attempt.device.is_calculated) and RESIDENT in (fact.counters or {})
        elif isinstance(fact, Heartbeat) and current is not None and _is_of(fact, current):
            seen.append(fact)
        elif isinstance(fact, (facts.Failed, facts.Finished)):
            reported = True
            break
    if current is None or (reported and not isinstance(current, Began)):
        return
    if isinstance(current, Baseline) and not seen and exit.signal is None:
        return
    # Readings from outside are of a process in which nothing is measured where a program is, or a device is calculated.
    elsewhere = of_program or attempt.device.is_calculated
    for phase in _unfinished(attempt, current, seen, Exit() if elsewhere else exit):
        yield _unplaced(phase) if is_lost and phase.device == first else phase


def _counting(attempt: Attempt, phases: Iterable[Phase]) -> Iterator[Phase]:
    """Stop counting at the user's metric: it may take more memory than the workload, and leave more behind."""
    assessed = False
    for phase in phases:
        assessed = assessed or (phase.name == QUALITY and attempt.point.get("quality.target") is not None)
        yield replace(phase, counts=False) if assessed else phase


def _unfinished(
    attempt: Attempt, current: Began | Ended | Baseline, seen: Sequence[Heartbeat], exit: Exit
) -> Iterator[Phase]:
    first = attempt.device.parts[0]  # the process's own memory is in its counters
    began = _began(current, first)
    baseline = began.baseline or {first: {}}
    for device in dict.fromkeys([*baseline, *(device for heartbeat in seen for device in heartbeat.peak)]):
        peak = highest(heartbeat.peak.get(device, {}) for heartbeat in seen)
        resident = _resident_from_outside(began, exit) if device == first else None
        if resident is not None:
            peak = highest([peak, {"resident": resident}])
        held = baseline.get(device, {})
        marks = peak.keys() - {"address"}  # whose peak is that of another counter
        peak |= {counter: max(peak[counter], held.get(counter, 0)) for counter in marks}
        yield Phase(
            name=began.phase,
            run_index=began.run_index,
            device=device,
            completed=False,
            baseline=baseline.get(device, {}),
            peak=peak,
        )


def _with_readings(
    phase: Phase, device: Device, outside: Sequence[int], seen: Sequence[Heartbeat], is_own: bool
) -> Phase:
    """A phase that ended, with the readings inside it: its peak is at least each of them.

    A workload can reset the counters itself, and then the counter at the end is below an earlier reading. `is_own`: the
    process's own memory is among the counters.
    """
    is_lost = is_own and RESIDENT not in phase.end
    if not (seen or outside or is_lost):  # as most of a run's phases, which may be millions
        return phase
    read = highest(
        [*(heartbeat.peak.get(phase.device, {}) for heartbeat in seen), *({RESIDENT: each} for each in outside)]
    )
    peak = dict(phase.peak)
    for counter, bytes_read in read.items():
        if counter in peak or (is_lost and counter == RESIDENT):
            peak[counter] = max(bytes_read, peak.get(counter, 0))
    counter = device.deciding_counter
    lag = MARK_LAGS_BYTES if counter == RESIDENT else 0
    is_above = counter in phase.peak and peak[counter] > phase.peak[counter] + lag
    is_partial = is_above or (is_lost and counter == RESIDENT)
    return replace(phase, peak=peak, is_partial=is_partial)


def _unplaced(phase: Phase) -> Phase:
    """A phase without a resident peak of its own: nothing was read as it began, so its mark may be an earlier one."""
    if RESIDENT not in phase.peak:
        return phase
    peak = {counter: value for counter, value in phase.peak.items() if counter != RESIDENT}
    return replace(phase, peak=peak, marks={RESIDENT: phase.peak[RESIDENT]})


def _with_mark_at_death(phases: tuple[Phase, ...], exit: Exit, ended_alone: bool) -> tuple[Phase, ...]:
    """The phases with the process's mark at its death, if nothing was read at the end of the last one.

    See `_resident_from_outside` for when that mark is the process's own.
    """
    if not phases or not phases[-1].is_partial or not all(phase.counts for phase in phases):
        return phases
    at_death = _at_death(exit)
    if at_death is None or not (ended_alone or exit.signal is not None):
        return phases
    *others, last = phases
    return (*others, replace(last, marks=highest([last.marks, {RESIDENT: at_death}])))


def _outside_of(current: Began | Ended | Baseline | None, ended: Ended, exit: Exit) -> list[int]:
    """The readings of the supervisor that were taken within a phase that ended, in bytes."""
    if current is None or current.t is None or ended.t is None:
        return []
    return [
        reading.resident
        for reading in exit.outside
        if reading.resident is not None and reading.until is not None
        if current.t <= reading.t and reading.until <= ended.t
    ]


def _is_of(heartbeat: Heartbeat, current: Began | Ended | Baseline) -> bool:
    """Whether a heartbeat belongs to the phase under way: it can be written just after its own phase ended."""
    under_way = (current.phase, current.run_index) if isinstance(current, Began) else (BETWEEN, None)
    return (heartbeat.phase, heartbeat.run_index) == under_way


def _began(current: Began | Ended | Baseline, first: str) -> Began:
    """The beginning of the phase under way; `between` starts where another phase ended, or at the baseline."""
    if isinstance(current, Began):
        return current
    if isinstance(current, Baseline):
        return Began(BETWEEN, None, {first: current.counters or {}}, current.t)
    return Began(BETWEEN, None, {device: counters.end for device, counters in current.counters.items()}, current.t)


def _resident_from_outside(began: Began, exit: Exit) -> int | None:
    """The unfinished phase's resident high-water mark in bytes, as the kernel and the supervisor have it.

    `wait4` gives the mark at death, to the page, but never less than what an exec'd or forked process starts from:
    only a figure above the supervisor's own size at the start is the child's (a 15 MiB child showed 515 MiB).
    A reading from outside counts if it was taken after the phase began.
    """
    since = began.t or 0.0
    readings = [reading.resident for reading in exit.outside if reading.resident is not None and reading.t >= since]
    at_death = _at_death(exit)
    if at_death is not None and exit.signal is not None:
        readings.append(at_death)
    return max(readings, default=None)


def _at_death(exit: Exit) -> int | None:
    """The process's own high-water mark at its death, in bytes; None where it may be the supervisor's."""
    at_death, started_at = exit.maxrss_bytes, exit.supervisor_resident_bytes or 0
    return at_death if at_death is not None and at_death > started_at else None


def _ended_phase(ended: Ended, device: str, counters: facts.Counters) -> Phase:
    return Phase(
        name=ended.phase,
        run_index=ended.run_index,
        device=device,
        completed=bool(ended.completed),
        iterations=ended.iterations,
        elapsed_s=ended.elapsed_s,
        baseline=counters.baseline,
        end=counters.end,
        peak=counters.peak,
        alloc_retries=counters.alloc_retries,
        num_ooms=counters.num_ooms,
        refused=counters.refused,
        refusals=counters.refusals,
        refused_bytes=counters.refused_bytes,
        shapes=ended.shapes or {},
        metrics=ended.metrics or {},
    )
