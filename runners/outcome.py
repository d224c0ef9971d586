"""How an attempt ended: the closed set of statuses, and the one place where a status is decided from the facts."""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runners.device import Device
from runners.journal import BETWEEN, QUALITY
from runners.point import Attempt
from runners.refusals import Refusal, refusal_in

OUR_OWN_BYTES = 2**20
START = "start"  # where an attempt failed that did not reach its baseline: the interpreter and the imports

UNAVAILABLE = "runners.phases.Unavailable"  # by its name: a user's class may be called the same
# What the driver says where torch was built without code for this kind of device (CUDA and ROCm)
NO_KERNEL = re.compile(r"no kernel image is available|invalid device function")


class Status(str, enum.Enum):
    """How an attempt ended, or why there was none."""

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
    """One phase on one device. Counters are bytes by name (`resident`, `allocated`, ...); one not read is absent."""

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
    shapes: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True  # false of what is no part of the workload: its peak is not the point's


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt ended. What was not measured is None."""

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
    skipped_because: str | None = None
    phases: tuple[Phase, ...] = ()
    peak_is_partial: bool | None = None
    process_baseline: Mapping[str, int] = field(default_factory=dict)
    available_memory_bytes: int | None = None
    available_memory_end_bytes: int | None = None
    memory_pressure_start_us: int | None = None
    memory_pressure_end_us: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    budget_kind: str | None = None
    budget_bytes: int | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    unlimited: Mapping[str, int] = field(default_factory=dict)  # calculated peaks, as if the device had no end
    metrics: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    tokens: int | None = None
    pid: int | None = None
    started_at: str | None = None
    duration_s: float | None = None
    contaminated: bool | None = None
    contaminated_by: str | None = None
    contamination_told_by: str | None = None
    used_before_bytes: int | None = None  # on the device before the attempt began; of several, the most
    instrumented: bool | None = None
    other_processes: int | None = None  # most that the workload had started at once; their memory is in no counter
    other_processes_resident_bytes: int | None = None  # added up: pages that they share count in each

    @property
    def fits(self) -> bool | None:
        """Whether the point fits on the device, or None if this attempt did not tell."""
        if self.status is Status.OK:
            return True
        if self.status in (Status.OOM, Status.OOM_KILLED):
            own = self.oom_scope == "device" or self.device.is_host
            return False if own else None
        return None

    @property
    def unlimited_peak_bytes(self) -> int | None:
        """Of a calculated attempt: the peak of the deciding counter as if the device had no end."""
        if self.status is Status.OOM:
            return self.unlimited.get(self.device.deciding_counter)
        passed = self.status is Status.OK and self.device.is_calculated
        return self.peak(self.device.deciding_counter) if passed else None

    def peak(self, counter: str) -> int | None:
        """The highest reading of one counter over all phases, in bytes; of one device, where there are several.

        None if there was no reading, or only zeros of phases before the one that was not finished.
        """
        counting = [phase for phase in self.phases if phase.counts and counter in phase.peak]
        highest = max((phase.peak[counter] for phase in counting), default=None)
        return None if highest == 0 and self.peak_is_partial else highest

    @property
    def budget_used_bytes(self) -> int | None:
        """What the limit counts, at its highest. On cpu it is what the address space grew by (VmPeak over VmSize): the
        resident peak counts file pages, which RLIMIT_DATA does not. After a refusal VmPeak says nothing, nor where it
        counts what is only reserved (64 MiB of a thread's arena): more than the budget cannot have been used of it."""
        if not self.device.is_cpu:
            return self.peak(self.device.budget_counter)
        before, peak = self.process_baseline.get("virtual"), self.peak("address")
        if before is None or peak is None or self.status is not Status.OK:
            return None
        used = peak - before
        return None if self.budget_bytes is not None and used > self.budget_bytes else used

    @property
    def peak_phase(self) -> str | None:
        """The first phase that reached the peak of the deciding counter.

        Between phases our own lines are written, which takes some pages: a phase that has a name wins by so much.
        """
        highest = self.peak(self.device.deciding_counter)
        if highest is None:
            return None
        counting = [phase for phase in self.phases if phase.counts and self.device.deciding_counter in phase.peak]
        named = [phase for phase in counting if phase.name != BETWEEN]
        top = max(named, key=lambda phase: phase.peak[self.device.deciding_counter], default=None)
        return BETWEEN if top is None or top.peak[self.device.deciding_counter] + OUR_OWN_BYTES < highest else top.name

    @property
    def needs_at_least_bytes(self) -> int | None:
        """With an allocation refused: what was held when it was asked, and what was asked. A lower bound.

        None with several devices: the exception does not say, in the user's names, which of them refused.
        """
        if self.status is not Status.OOM or self.requested_bytes is None or self.fits is None or self.device.parts[1:]:
            return None
        failed = _failed(self.phases)
        held = None if failed is None else failed.end.get(self.device.deciding_counter)
        return None if held is None else held + self.requested_bytes


def outcome_of(attempt: Attempt, journal: Sequence[Mapping[str, Any]], exit: Mapping[str, Any] | None) -> Outcome:
    """What the attempt's facts say: its journal, and its supervisor's last word (None: the supervisor was lost)."""
    exit = exit or {"lost": True}
    facts: dict[str, Mapping[str, Any]] = {fact["kind"]: fact for fact in journal}
    phases = tuple(_counting(attempt, _phases(attempt, journal, exit)))
    partial = any(not phase.completed for phase in phases)
    baseline = facts.get("baseline", {})
    surroundings = facts.get("environment", {})
    budget = facts.get("budget", {})
    failed, finished = facts.get("failed"), facts.get("finished")
    common: dict[str, Any] = {
        "device": attempt.device,
        "attempt": attempt.number,
        "phases": phases,
        "peak_is_partial": partial if phases else None,
        "process_baseline": baseline.get("counters", {}),
        "available_memory_bytes": baseline.get("available_memory_bytes", exit.get("available_memory_bytes_start")),
        "available_memory_end_bytes": exit.get("available_memory_bytes_end"),
        "memory_pressure_start_us": exit.get("memory_pressure_start_us"),
        "memory_pressure_end_us": exit.get("memory_pressure_end_us"),
        "instrumented": baseline.get("instrumented"),
        "environment": surroundings.get("record", {}),
        "budget_kind": budget.get("budget_kind"),
        "budget_bytes": budget.get("budget_bytes"),
        "unlimited": facts.get("unlimited", {}).get("peak", {}),
        "model": {key: value for key, value in facts.get("model", {}).items() if key not in ("kind", "t")},
        "pid": exit.get("pid") or surroundings.get("pid"),
        "started_at": exit.get("started_at"),
        "duration_s": exit.get("duration_s"),
        **_contamination(exit),
        "signal": exit.get("signal"),
        "exit_code": exit.get("code"),
    }
    if not _is_of_program(baseline):  # whose processes are what is measured
        common["other_processes"] = exit.get("other_processes")
        common["other_processes_resident_bytes"] = exit.get("other_processes_resident_bytes")
    if finished is not None:
        common |= {"metrics": finished.get("metrics") or {}}
        common |= {"steps": finished.get("steps"), "tokens": finished.get("tokens")}
        return Outcome(status=Status.OK, **common)
    unfinished = _failed(phases)
    common["failed_phase"] = unfinished.name if unfinished else BETWEEN if "baseline" in facts else START
    if failed is not None and failed.get("signal") is None:  # of a signal that ended its program the process dies too
        common["exit_code"] = failed.get("exit_code", common["exit_code"])
        return Outcome(**_raised(failed), **common)
    return Outcome(**_ended(exit), **common)


def _is_of_program(baseline: Mapping[str, Any]) -> bool:
    """Whether the counters are of a program that the process has started, and not of the process itself."""
    return baseline.get("of") == "program"


def _contamination(exit: Mapping[str, Any]) -> dict[str, Any]:
    who = exit.get("contaminated")
    before = (device.get("used_bytes_before") for device in exit.get("devices", ()))
    return {
        "contaminated": None if who is None else bool(who),
        "contaminated_by": who or None,
        "contamination_told_by": exit.get("contamination_told_by"),
        "used_before_bytes": max((used for used in before if used is not None), default=None),
    }


def _failed(phases: Sequence[Phase]) -> Phase | None:
    """The phase an attempt failed in: the last one that did not complete. An earlier one's failure was caught."""
    return next((phase for phase in reversed(phases) if not phase.completed), None)


def _raised(failed: Mapping[str, Any]) -> dict[str, Any]:
    chain = failed["chain"]
    outermost = chain[0]
    told: dict[str, Any] = {
        "status": Status.ERROR,
        "error_type": outermost["type"],
        "error_message": outermost.get("message"),
        "traceback": failed.get("traceback"),
    }
    refusal: Refusal | None = refusal_in(chain)
    if any(_is_unavailable(cause) for cause in chain):
        told["status"] = Status.UNAVAILABLE
    elif refusal is not None:
        told |= {"status": Status.OOM, "oom_scope": refusal.scope, "requested_bytes": refusal.requested_bytes}
    return told


def _is_unavailable(cause: Mapping[str, Any]) -> bool:
    if cause["type"] == UNAVAILABLE:
        return True
    is_torchs = "RuntimeError" in (cause["type"], *cause.get("bases", ()))
    return is_torchs and NO_KERNEL.search(cause.get("message") or "") is not None


def _ended(exit: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a process that left no word of its own."""
    if exit.get("lost"):
        why = exit.get("reason") or "its supervisor ended before it could say how the attempt did"
        return {"status": Status.LOST, "error_message": why}
    if exit.get("interrupted"):
        return {"status": Status.INTERRUPTED, "error_message": exit.get("reason")}
    if exit.get("timed_out"):
        return {"status": Status.TIMEOUT, "error_message": exit.get("reason")}
    if exit.get("unavailable"):
        return {"status": Status.UNAVAILABLE, "error_message": exit["unavailable"]}
    number = exit.get("signal")
    if number == signal.SIGKILL:
        proof = exit.get("oom_kill_proof")
        if proof:
            return {"status": Status.OOM_KILLED, "oom_scope": "host", "error_message": proof}
        return {"status": Status.KILLED, "error_message": "SIGKILL, and nothing says from whom"}
    if number is not None:
        return {"status": Status.CRASHED, "error_message": f"ended by {_signal_name(number)}{_last_words(exit)}"}
    return {
        "status": Status.CRASHED,
        "error_message": f"ended without a word, exit code {exit.get('code')}{_last_words(exit)}",
    }


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def _last_words(exit: Mapping[str, Any]) -> str:
    words = exit.get("last_output")
    return f": {words}" if words else ""


def _phases(attempt: Attempt, journal: Sequence[Mapping[str, Any]], exit: Mapping[str, Any]) -> Iterator[Phase]:
    """The phases that ended, then the one that did not, with the last that was seen of it."""
    current: Mapping[str, Any] | None = None  # began, or the ended / baseline line that `between` starts from
    seen: dict[str, dict[str, int]] = {}  # device -> highest readings of the current phase
    told = False  # how it ended, by the process itself
    of_program = False
    for fact in journal:
        kind = fact["kind"]
        if kind == "ended":
            for device, counters in fact.get("counters", {}).items():
                yield _phase(fact, device, counters, completed=bool(fact.get("completed")))
        if kind in ("baseline", "began", "ended"):
            current, seen = fact, {}
            of_program = of_program or _is_of_program(fact)
        elif kind == "heartbeat" and current is not None and _is_of(fact, current):
            _keep_highest(seen, fact)
        elif kind in ("failed", "finished"):
            told = True
            break
    if current is None or (told and current["kind"] != "began"):
        return
    if current["kind"] == "baseline" and not seen and exit.get("signal") is None:
        return
    # What was seen from outside is of a process in which nothing is measured, where a device is calculated.
    elsewhere = of_program or attempt.device.is_calculated
    yield from _unfinished(attempt, current, seen, {} if elsewhere else exit)


def _counting(attempt: Attempt, phases: Iterable[Phase]) -> Iterator[Phase]:
    """A metric of the user's may take more than the workload, and leave more behind: what follows it counts neither."""
    assessed = False
    for phase in phases:
        assessed = assessed or (phase.name == QUALITY and attempt.point.get("quality.target") is not None)
        yield replace(phase, counts=False) if assessed else phase


def _keep_highest(seen: dict[str, dict[str, int]], heartbeat: Mapping[str, Any]) -> None:
    for device, counters in heartbeat.get("counters", {}).items():
        peaks = seen.setdefault(device, {})
        for counter, value in counters.get("peak", {}).items():
            peaks[counter] = max(value, peaks.get(counter, value))


def _unfinished(
    attempt: Attempt, current: Mapping[str, Any], seen: Mapping[str, Mapping[str, int]], exit: Mapping[str, Any]
) -> Iterator[Phase]:
    first = attempt.device.parts[0]  # where the process's own memory stands
    began = current if current["kind"] == "began" else _between(current, first)
    counters = began.get("counters") or {first: {}}
    for device in dict.fromkeys([*counters, *seen]):
        peak = dict(seen.get(device, {}))
        resident = _resident_from_outside(current, exit) if device == first else None
        if resident is not None:
            peak["resident"] = max(resident, peak.get("resident", resident))
        known = {"baseline": counters.get(device, {}).get("baseline", {}), "peak": peak}
        yield _phase(began, device, known, completed=False)


def _is_of(heartbeat: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Whether a heartbeat belongs to the phase that is under way: it can be written just after its own phase ended."""
    under_way = (current["phase"], current.get("run_index")) if current["kind"] == "began" else (BETWEEN, None)
    return (heartbeat["phase"], heartbeat.get("run_index")) == under_way


def _between(previous: Mapping[str, Any], first: str) -> dict[str, Any]:
    """The stretch that starts where another ended, or at the process's baseline, as if it had a `began` of its own."""
    if previous["kind"] == "baseline":
        counters = {first: {"baseline": previous.get("counters", {})}}
    else:
        ended = previous.get("counters", {})
        counters = {device: {"baseline": readings.get("end", {})} for device, readings in ended.items()}
    return {"phase": BETWEEN, "run_index": None, "counters": counters}


def _resident_from_outside(began: Mapping[str, Any], exit: Mapping[str, Any]) -> int | None:
    """The unfinished phase's resident high-water mark as the kernel and the supervisor have it.

    `wait4` gives the mark at death, to the page, but never less than what an exec'd or forked process starts from:
    only a figure above the supervisor's own size at the start is the child's (facts: 515 MiB shown for a 15 MiB child).
    A reading from outside counts if it was taken after the phase began.
    """
    readings = [
        reading["resident"]
        for reading in exit.get("outside", ())
        if reading.get("resident") is not None and reading["t"] >= began["t"]
    ]
    at_death, started_at = exit.get("maxrss_bytes"), exit.get("supervisor_resident_bytes") or 0
    if at_death is not None and exit.get("signal") is not None and at_death > started_at:
        readings.append(at_death)
    return max(readings, default=None)


def _phase(fact: Mapping[str, Any], device: str, counters: Mapping[str, Any], completed: bool) -> Phase:
    return Phase(
        name=fact["phase"],
        run_index=fact.get("run_index"),
        device=device,
        completed=completed,
        iterations=fact.get("iterations"),
        elapsed_s=fact.get("elapsed_s"),
        baseline=counters.get("baseline", {}),
        end=counters.get("end", {}),
        peak=counters.get("peak", {}),
        alloc_retries=counters.get("alloc_retries"),
        num_ooms=counters.get("num_ooms"),
        shapes=fact.get("shapes") or {},
        metrics=fact.get("metrics") or {},
    )
