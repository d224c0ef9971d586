"""The facts that an attempt leaves: each kind of line of journal.jsonl, and the content of exit.json, as types.

A line is one JSON object with `kind` (the key in `KINDS`), `t` and the fields of its type. Where a field is
None, it is left out of the JSON if it has a default, and written as null if it has none. A reader takes a missing field
as None and ignores fields and kinds that it does not know, so that it can read other versions.

Bytes are whole numbers by counter: allocated, reserved, requested, active, used, tensor, resident, resident_anon,
resident_file, address, virtual, mapped, data_and_shared (runners/meters). A counter that was not read is absent. What
happens between two phases is the phase `between`: it has no `began` line and starts where the phase before it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from runners.field_types import check_fields, check_keys

Bytes = Mapping[str, int]  # by counter

# NamedTuples rather than frozen dataclasses: a large run has millions of lines, and one is made in a quarter of the
# time (1.4 us against 5.5 us for nine fields).


class Environment(NamedTuple):
    """The environment of the attempt. Attempts in the same environment have the same record."""

    pid: int | None  # of the measured process
    at: str | None  # UTC, ISO 8601
    record: Mapping[str, Any]  # host, python, torch, ... (runners.fingerprint.record)
    t: float | None = None  # here and below: seconds on the machine's monotonic clock, when the line was written


class Baseline(NamedTuple):
    """Memory of the process after its imports and before the workload."""

    counters: Bytes  # also virtual_peak: VmPeak
    available_memory_bytes: int | None  # on the machine, or less if a memory cgroup allows less
    instrumented: bool | None  # whether tensors are tracked
    of: str | None = None  # PROGRAM if every counter is of a program that the process starts, and not of itself
    t: float | None = None


PROGRAM = "program"


ALLOCATOR = "allocator"  # the budget, as the caching allocator's own limit
TENSORS = "tensors"  # the budget of sim:cpu, in bytes of tensors
DATA_LIMIT = "data_limit"  # the budget, imposed as RLIMIT_DATA
GUARD = "guard"  # the memory that the machine has available, less a reserve, imposed in the same way
CGROUP = "cgroup"  # the same of the memory that a cgroup leaves, where that is less
INHERITED_DATA_LIMIT = "inherited_data_limit"  # RLIMIT_DATA that the process was started with
ADDRESS_LIMIT = "address_limit"  # RLIMIT_AS that the process was started with (ulimit -v)
WORKLOAD_LIMIT = "workload_limit"  # RLIMIT_DATA or RLIMIT_AS that the workload lowered itself, where it then failed


class Budget(NamedTuple):
    """The memory limit that is in force: the least of those that hold."""

    budget_kind: str
    budget_bytes: int
    t: float | None = None


class Model(NamedTuple):
    """The model that the workload built."""

    facts: Mapping[str, Any]  # parameters, parameter_bytes, trainable_parameters, storage_dtype, compute_dtype, ...
    t: float | None = None


class Began(NamedTuple):
    """A phase begins. On the line: `counters: {device: {"baseline": ...}}`."""

    phase: str
    run_index: int | None
    baseline: Mapping[str, Bytes]  # held at the boundary, by device
    t: float | None = None


class Heartbeat(NamedTuple):
    """A reading inside a phase; the last of an unfinished phase is its partial peak.

    On the line: `counters: {device: {"peak": ...}}`.
    """

    phase: str
    run_index: int | None
    peak: Mapping[str, Bytes]  # the highest since the phase began, by device
    t: float | None = None


class Refused(NamedTuple):
    """An allocation that was refused, at that moment: before an exception freed anything."""

    requested_bytes: int  # of the driver, for a segment
    held: Bytes  # by counter: those of the device's allocator; `tensor` on cpu
    # What tensors held, without what blocks add to them, and the least that makes the allocator request so much
    needs_bytes: int


class Counters(NamedTuple):
    """One device over one phase."""

    baseline: Bytes  # held when the phase began
    end: Bytes  # held when it ended
    peak: Bytes  # the highest in between
    alloc_retries: int | None  # how often the allocator gave its cache back to make room
    num_ooms: int | None  # allocations that it refused
    refused: Refused | None = None  # the last of them; None if there was none, or where none is observed
    refusals: int | None = None  # refused allocations that reached the workload as exceptions
    refused_bytes: int | None = None  # the largest of them


class Ended(NamedTuple):
    """A phase ends, by itself or by an exception."""

    phase: str
    run_index: int | None
    elapsed_s: float | None
    iterations: int | None
    completed: bool | None  # false if an exception left it
    counters: Mapping[str, Counters]  # by device
    shapes: Mapping[str, Any] | None  # of inputs, as they reached the model
    metrics: Mapping[str, Any] | None
    t: float | None = None


class Report(NamedTuple):
    """Report of a Python process of a measured program as it ends (runners/workloads/program_hook)."""

    pid: int
    failure: Mapping[str, Any] | None  # chain and traceback as in Failed, and resident: bytes
    devices: Sequence[Mapping[str, Any]]  # index, uuid, now, peak (bytes by counter), alloc_retries, num_ooms
    torch: str | None = None  # version
    t: float | None = None  # when the process wrote it


class Cause(NamedTuple):
    """One exception of a failure."""

    type: str  # qualified name
    bases: Sequence[str] = ()  # qualified names of its base classes, nearest first
    message: str | None = None


class Failed(NamedTuple):
    """The exception that the workload raised, or the end of the measured program."""

    chain: Sequence[Cause]  # the exception and the causes behind it, the outermost first
    traceback: str | None
    exit_code: int | None = None  # of a program
    signal: int | None = None  # that ended a program
    t: float | None = None


class Trace(NamedTuple):
    """The file with the allocator's history (trace=on_failure). It follows `failed`."""

    file: str | None  # its name in the attempt's folder
    bytes: int | None = None  # of the file
    scope: str | None = None  # a description of what the file contains and leaves out
    reason: str | None = None  # why there is no file
    t: float | None = None


class Finished(NamedTuple):
    """The workload returned."""

    metrics: Mapping[str, Any] | None
    steps: int | None
    tokens: int | None
    t: float | None = None


# The end of the message of a calculated refusal that this setting of the allocator avoids.
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
FITS_IF_EXPANDABLE = f"; with {EXPANDABLE} the point fits (calculated)"


class Unlimited(NamedTuple):
    """The peaks that a refused calculated attempt would have with unlimited memory."""

    peak: Bytes  # empty if it failed for another reason as well
    t: float | None = None


class Assumed(NamedTuple):
    """What a calculated attempt assumed so far, in place of numbers that are not calculated. The last one counts.

    A place has `file` (relative to the current folder where it is inside), `line`, `function`, `operator` and `times`.
    """

    values: int | None  # numbers that the program read
    places: Sequence[Mapping[str, Any]]  # where it did
    bounds: Sequence[Mapping[str, Any]]  # where one decided a size or the length of a loop, with `bound`
    t: float | None = None


class HostTensors(NamedTuple):
    """The host memory of a program on a calculated card."""

    peak_bytes: int | None  # of live tensors there
    t: float | None = None


class Notes(NamedTuple):
    """What has to be known to read the figures of an attempt: an assumption, a bound, or what was left out."""

    notes: Sequence[str]  # each a short clause
    t: float | None = None


Fact = (
    Environment
    | Baseline
    | Budget
    | Model
    | Began
    | Heartbeat
    | Ended
    | Report
    | Failed
    | Trace
    | Finished
    | Unlimited
    | Assumed
    | HostTensors
    | Notes
)


# The keys of an environment's record that are calculated with, or that a table has as a number.
OF_A_RECORD = {
    "device_total_bytes": int | None,
    "threads": int | None,
    "allocator_settings": str | None,
    "workload_code": str | None,
    "libraries": Mapping[str, Any] | None,
    "variables": Mapping[str, Any] | None,
}
OF_A_MODEL = dict.fromkeys(("parameters", "parameter_bytes", "trainable_parameters"), int | None)


# --- journal.jsonl ----------------------------------------------------------------------------------------------------


def from_json(line: Mapping[str, Any]) -> Fact:
    """The fact of a journal's line.

    Raises KeyError for a line of no known kind, and KeyError, TypeError, ValueError or AttributeError for other fields
    than those of its kind.
    """
    fact: Fact = _READERS[line["kind"]](line)
    check_fields(fact)
    return fact


def to_json(fact: Fact) -> dict[str, Any]:
    """The fact's line, with `kind` first; `t` only if the fact has one."""
    kind = KINDS[type(fact)]
    line = {"kind": kind, **_fields(fact)}
    if isinstance(fact, Began):
        line["counters"] = {device: {"baseline": held} for device, held in line.pop("baseline").items()}
    elif isinstance(fact, Heartbeat):
        line["counters"] = {device: {"peak": peak} for device, peak in line.pop("peak").items()}
    elif isinstance(fact, Ended):
        line["counters"] = {device: _counters_to_json(counters) for device, counters in fact.counters.items()}
    elif isinstance(fact, Failed):
        line["chain"] = [cause._asdict() for cause in fact.chain]
    return line


def is_known(line: Mapping[str, Any]) -> bool:
    kind = line.get("kind")
    return isinstance(kind, str) and kind in _READERS


def failed(facts: Mapping[str, Any]) -> Failed:
    """A failure as JSON has it: chain, traceback, and exit_code or signal of a program. Raises as `from_json` does."""
    chain = [Cause(cause["type"], cause.get("bases", ()), cause.get("message")) for cause in facts.get("chain") or ()]
    if not chain:
        raise ValueError("a failure without an exception")
    return Failed(
        chain=chain,
        traceback=facts.get("traceback"),
        exit_code=facts.get("exit_code"),
        signal=facts.get("signal"),
        t=facts.get("t"),
    )


def report(facts: Mapping[str, Any]) -> Report:
    """A report as the hook wrote it."""
    return Report._make(map(facts.get, Report._fields))


def highest(readings: Iterable[Bytes]) -> dict[str, int]:
    """The highest bytes of each counter."""
    peaks: dict[str, int] = {}
    for reading in readings:
        for counter, value in reading.items():
            if value > peaks.get(counter, -1):
                peaks[counter] = value
    return peaks


def _fields(fact: Any) -> dict[str, Any]:
    optional = fact._field_defaults
    return {name: value for name, value in fact._asdict().items() if value is not None or name not in optional}


def _reader(kind: Any) -> Callable[[Mapping[str, Any]], Any]:
    make, fields = kind._make, kind._fields
    return lambda line: make(map(line.get, fields))


def _environment(line: Mapping[str, Any]) -> Environment:
    record = line.get("record")
    check_keys(record if isinstance(record, Mapping) else {}, OF_A_RECORD)
    return Environment._make(map(line.get, Environment._fields))


def _model(line: Mapping[str, Any]) -> Model:
    if isinstance(facts := line.get("facts"), Mapping):
        return Model(facts, line.get("t"))
    # Earlier versions wrote each fact of the model as a field of the line.
    return Model({name: value for name, value in line.items() if name not in ("kind", "t")}, line.get("t"))


def _began(line: Mapping[str, Any]) -> Began:
    baseline = {device: found.get("baseline", _NONE) for device, found in line.get("counters", _NONE).items()}
    return Began(line["phase"], line.get("run_index"), baseline, line.get("t"))


def _heartbeat(line: Mapping[str, Any]) -> Heartbeat:
    peak = {device: found.get("peak", _NONE) for device, found in line.get("counters", _NONE).items()}
    return Heartbeat(line["phase"], line.get("run_index"), peak, line.get("t"))


def _ended(line: Mapping[str, Any]) -> Ended:
    get = line.get
    return Ended(
        line["phase"],
        get("run_index"),
        get("elapsed_s"),
        get("iterations"),
        get("completed"),
        {device: _counters(found) for device, found in get("counters", _NONE).items()},
        get("shapes"),
        get("metrics"),
        get("t"),
    )


def _counters_to_json(counters: Counters) -> dict[str, Any]:
    line = counters._asdict()
    refused = line.pop("refused")
    return line if refused is None else line | {"refused": refused._asdict()}


def _counters(found: Mapping[str, Any]) -> Counters:
    get = found.get
    refused = get("refused")
    return Counters(
        get("baseline", _NONE),
        get("end", _NONE),
        get("peak", _NONE),
        get("alloc_retries"),
        get("num_ooms"),
        None if refused is None else Refused._make(map(refused.get, Refused._fields)),
        get("refusals"),
        get("refused_bytes"),
    )


_NONE: Mapping[str, Any] = {}

KINDS: Mapping[type[Fact], str] = {
    Environment: "environment",
    Baseline: "baseline",
    Budget: "budget",
    Model: "model",
    Began: "began",
    Heartbeat: "heartbeat",
    Ended: "ended",
    Report: "report",
    Failed: "failed",
    Trace: "trace",
    Finished: "finished",
    Unlimited: "unlimited",
    Assumed: "assumed",
    HostTensors: "host_tensors",
    Notes: "notes",
}
_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {kind: _reader(made) for made, kind in KINDS.items()} | {
    "environment": _environment,
    "model": _model,
    "began": _began,
    "heartbeat": _heartbeat,
    "ended": _ended,
    "failed": failed,
}


# --- exit.json --------------------------------------------------------------------------------------------------------


class OutsideReading(NamedTuple):
    """A reading of the measured process by the supervisor."""

    t: float  # seconds on the machine's monotonic clock, before the reading
    resident: int | None  # VmHWM, bytes
    until: float | None = None  # after the reading: one across the end of a phase may be of the next


class DeviceUse(NamedTuple):
    """Used memory of a GPU according to the driver, of all processes, in bytes."""

    uuid: str
    used_bytes_before: int | None  # before the attempt started
    used_bytes_end: int | None  # after it had ended and its memory was waited for


class Exit(NamedTuple):
    """How an attempt ended, according to its supervisor. If that died, only `lost` and `reason` are known."""

    started_at: str | None = None  # UTC, ISO 8601; the measured process was started
    pid: int | None = None  # of the measured process
    code: int | None = None  # its exit code, if no signal ended it
    signal: int | None = None  # the signal that ended it
    timed_out: bool | None = None
    duration_s: float | None = None
    # ru_maxrss of wait4: at least what the supervisor held when it started the process. None if the process had waited
    # for children, since the highest of theirs is in it.
    maxrss_bytes: int | None = None
    supervisor_resident_bytes: int | None = None  # the supervisor's own high-water mark at that time
    outside: Sequence[OutsideReading] = ()  # the last five
    other_processes: int | None = None  # the most that the workload had started at once
    other_processes_resident_bytes: int | None = None  # their sum; pages that they share count in each
    leftover_processes: int | None = None  # that outlived the measured process and were killed
    journal_bytes: int | None = None  # size of journal.jsonl: a smaller file has lost its end
    output_truncated: bool | None = None  # whether output.log has only the start and the end
    last_output: str | None = None  # the last line printed, or where faulthandler saw the crash
    available_memory_bytes_start: int | None = None
    memory_pressure_start_us: int | None = None  # that some task waited for memory since boot (/proc/pressure/memory)
    memory_pressure_start_avg10_percent: float | None = None
    available_memory_bytes_end: int | None = None
    memory_pressure_end_us: int | None = None
    memory_pressure_end_avg10_percent: float | None = None
    # The other processes on the device and when; false: none; None: not measured
    contaminated: str | bool | None = None
    contamination_told_by: str | None = None  # contamination.BY_PROCESSES or BY_BYTES
    contamination_waited_s: Mapping[str, float] | None = None  # before the start, after the end
    devices: Sequence[DeviceUse] = ()  # empty where nothing reads them, as on cpu
    reason: str | None = None  # why it was interrupted, timed out or lost
    interrupted: bool | None = None
    oom_kill_proof: str | None = None  # the evidence that its SIGKILL came from the OOM killer
    unavailable: str | None = None  # why no process could be started
    lost: bool | None = None  # its supervisor died
    started_cold_because: str | None = None  # why an attempt with start=warm was not forked
    # CRC-32 of point.json and journal.jsonl, by name, as they were when the attempt had settled. A file that was not
    # there has none.
    checksums: Mapping[str, int] | None = None


# Written only where they apply; every other field is null where it is not known.
_ONLY_IF_KNOWN = Exit._fields[Exit._fields.index("contamination_told_by") :]


def exit_from_json(content: Mapping[str, Any]) -> Exit:
    """Raises TypeError, ValueError or AttributeError for a content that no supervisor writes."""
    outside, devices = content.get("outside") or (), content.get("devices") or ()
    exit = Exit._make(map(content.get, Exit._fields))._replace(
        outside=tuple(OutsideReading._make(map(each.get, OutsideReading._fields)) for each in outside),
        devices=tuple(DeviceUse._make(map(each.get, DeviceUse._fields)) for each in devices),
    )
    check_fields(exit)
    if exit == Exit():
        raise ValueError("it has no key of a supervisor")
    return exit


UNRECORDED = 74  # exit code of a measured process that could not write its journal: EX_IOERR of sysexits.h


def exit_to_json(exit: Exit) -> dict[str, Any]:
    content = exit._asdict()
    for name in ("outside", "devices"):
        content[name] = [each._asdict() for each in content[name]]
    return {name: value for name, value in content.items() if value not in (None, []) or name not in _ONLY_IF_KNOWN}
