"""Every column of every table, declared once: its name, type, unit and meaning, and the fact it is taken from.

Version (in each file's metadata, `sweeper.schema`):
    1   the first: points, attempts, phases, environment, estimates, frontier
    2   contaminated is true or false, and who it was is contaminated_by. New in points and attempts: how that was told,
        memory at the end, memory pressure, and the processes a workload started
    3   new in points and attempts: attention_used, the lengths of inputs of one's own, the quality columns,
        loss_check, spreads, allocator_peaks_differ; in frontier: confirmed, margin_bytes, the side with_margin
    4   new in points and attempts: unlimited_peak_bytes
    5   new in points and attempts: beyond_training, used_by_others_bytes; in frontier: margin_terms. untested_between
        counts the values of an interval
    6   new in estimates: alive. Not all terms of a point are there at once: their sum over all rows means nothing

Every table has the same fixed columns whatever happened, also when every point failed. Counters are nullable int64,
never floats: a double keeps 53 bits, and is what pandas makes of a nullable integer it is not told about. So a `pandas`
block in each file's metadata names the nullable types, and a plain `pd.read_parquet` keeps every integer exact.
A measure that was not taken is null, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from sweeper import quality
from sweeper.rows import MeasuredPhase, PlannedRow

VERSION = 6

INT, TEXT, BOOL, FLOAT = pa.int64(), pa.string(), pa.bool_(), pa.float64()
TIME = pa.timestamp("us", tz="UTC")
PANDAS = {  # how the `pandas` metadata names a type, and what it asks pandas to make of it
    INT: ("int64", "Int64"),
    BOOL: ("bool", "boolean"),
    FLOAT: ("float64", "float64"),
    TEXT: ("unicode", "object"),
    TIME: ("datetimetz", "datetime64[us]"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `of` takes its value from what a row is made of; one without it is known only when it is written.

    Columns that share `together` are taken by it at once, of many rows, and in their order.
    """

    name: str
    type: pa.DataType
    meaning: str
    unit: str | None = None
    of: Callable[[Any], Any] | None = None
    together: Callable[[Sequence[Any]], Iterable[Sequence[Any]]] | None = None

    @property
    def is_kept(self) -> bool:
        return self.of is not None or self.together is not None


def as_text(value: Any) -> str | None:
    """JSON for a person and a program; nothing for what is empty."""
    return _SORTED.encode(value) if value else None


_SORTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


def as_one_text(value: Any) -> str | None:
    """A value that a column of text holds: as it is if it is text, else JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def as_time(iso: str | None) -> datetime | None:
    try:
        return None if iso is None else datetime.fromisoformat(iso.replace("Z", "+00:00"))
    except ValueError:
        return None


def _key(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    take: Callable[[PlannedRow], Any] = lambda planned: planned.point.get(name)  # noqa: E731
    if type == TEXT:
        take = lambda planned: as_one_text(planned.point.get(name))  # noqa: E731
    return Column(name, type, meaning, unit, take)


def _outcome(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    return Column(name, type, meaning, unit, attrgetter(f"outcome.{name}"))


def _peak(counter: str, meaning: str) -> Column:
    name = f"peak_{counter}_bytes"
    return Column(name, INT, meaning, "bytes", lambda settled: settled.peaks.get(counter))


def _lengths(name: str, meaning: str, unit: str = "tokens") -> Column:
    return Column(name, INT, meaning, unit, lambda settled: settled.lengths.get(name))


def _model(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    if type == TEXT:
        return Column(name, type, meaning, unit, lambda settled: as_one_text(settled.outcome.model.get(name)))
    return Column(name, type, meaning, unit, lambda settled: settled.outcome.model.get(name))


RUN = Column("run", TEXT, "the name of the run's folder")
POINT_ID = Column("point_id", TEXT, "hash of the point's settled values", None, attrgetter("point_id"))
DEVICE = Column("device", TEXT, "the device asked for, as it is named on the command line")
KIND = Column("kind", TEXT, "measured, or calculated (devices sim:*): never to be mixed")

DIMENSIONS = (
    _key("model", TEXT, "the model's name in conf/model"),
    _key("workload", TEXT, "the workload's name in conf/workload"),
    _key("dtype", TEXT, "data type of the weights"),
    _key("batch", INT, "samples in a pass", "samples"),
    _key("context", INT, "length of a sample", "tokens"),
    _key("warmup", INT, "passes between the first and the repeats", "passes"),
    _key("repeats", INT, "later passes that are measured", "passes"),
    _key("seed", INT, "seed of the inputs"),
    _key("start", TEXT, "cold: a new interpreter; warm: forked from a clean template that has imported the libraries"),
    _key("allocator", TEXT, "system: as a user's own run would; repeatable: a fixed mmap threshold"),
    _key("phases", TEXT, "each: counters at every phase's boundary; whole: the loop as one phase"),
    _key("cache", TEXT, "keep, or empty the allocator's cache between repeats"),
)
PLAN = (
    POINT_ID,
    *DIMENSIONS,
    Column("config", TEXT, "everything that was settled, JSON", None, lambda planned: as_text(planned.point.values)),
    Column("order", INT, "place in the plan, from 0", None, attrgetter("order")),
    Column(
        "changed",
        TEXT,
        "the keys that differ from changed_from, separated by commas",
        None,
        lambda planned: ",".join(planned.changed) or None,
    ),
    Column(
        "changed_from",
        TEXT,
        "point_id of the neighbour it is compared with",
        None,
        attrgetter("changed_from"),
    ),
    Column(
        "weights",
        TEXT,
        "random, or of a checkpoint: quality is not assessable with random ones",
        None,
        lambda planned: quality.weights_of(planned.point.values),
    ),
    Column(
        "quality_target",
        TEXT,
        "the function that told how good the model is",
        None,
        lambda planned: planned.point.get("quality.target"),
    ),
    Column(
        "quality_reference",
        TEXT,
        "point_id of the point its quality is held against",
        None,
        attrgetter("quality_reference"),
    ),
)
WHERE = (
    Column("environment_id", TEXT, "hash of the record in environment.parquet", None, lambda s: s.environment_id),
    Column("engine", TEXT, "what started the attempt: local, slurm, ray", None, lambda s: s.attempt.engine),
    Column("host", TEXT, "the machine it ran on", None, lambda s: as_one_text(s.outcome.environment.get("host"))),
    _outcome("pid", INT, "the measured process"),
)
ENDED = (
    Column("status", TEXT, "how it ended, one of a closed set", None, lambda settled: settled.outcome.status.value),
    _outcome("fits", BOOL, "whether it fits; null if the attempt did not tell. Only this moves the frontier"),
    _outcome("oom_scope", TEXT, "whose memory was refused: device or host"),
    _outcome("failed_phase", TEXT, "where it failed"),
    _outcome("error_type", TEXT, "the exception's type"),
    _outcome("error_message", TEXT, "the exception's message, or why there is no measurement"),
    _outcome("signal", INT, "the signal that ended the process"),
    _outcome("exit_code", INT, "the exit code of the process"),
    _outcome("requested_bytes", INT, "what the refused allocation asked for", "bytes"),
    _outcome("needs_at_least_bytes", INT, "held plus requested when it was refused: a lower bound", "bytes"),
    _outcome(
        "unlimited_peak_bytes", INT, "calculated: the peak of the deciding counter if nothing were refused", "bytes"
    ),
    Column("skipped_because", TEXT, "the attempt that implies this point"),
    Column(
        "spreads",
        TEXT,
        "by peak, how far the attempts that passed in the same surroundings lie apart, in bytes, JSON; null with fewer "
        "than two of them",
    ),
    Column("allocator_peaks_differ", BOOL, "whether theirs on CUDA differ at all; null where nothing tells"),
    Column("flaky", BOOL, "whether attempts told both ways; null with fewer than two that told"),
    _outcome("contaminated", BOOL, "whether somebody else was on the device; null where not measured, as on cpu"),
    _outcome("contaminated_by", TEXT, "who was, and when: name, pid, bytes; or how much was not given back at the end"),
    _outcome(
        "contamination_told_by",
        TEXT,
        "processes: by their pids, every second; used_bytes: before and after it alone, its own pid was never seen",
    ),
    _outcome("instrumented", BOOL, "whether tensors were followed"),
)
PEAKS = (
    _peak(
        "allocated", "highest given out by the caching allocator, part of reserved; of one device where there are more"
    ),
    _peak("reserved", "highest taken by the caching allocator from the device; of one device where there are more"),
    _peak("requested", "highest asked of the caching allocator, before its rounding"),
    _peak("used", "highest reading of what the driver says is used on the device, whoever uses it"),
    _peak("tensor", "highest live bytes of tensors' storages, as followed; without kernels' scratch"),
    _peak("resident", "highest resident host memory of the process, baseline included"),
    Column(
        "process_baseline_bytes",
        INT,
        "resident after the imports and before the workload",
        "bytes",
        lambda settled: settled.outcome.process_baseline.get("resident"),
    ),
    _outcome("peak_phase", TEXT, "the first phase that reached the peak (allocated; resident on cpu)"),
    _outcome("peak_is_partial", BOOL, "whether a phase did not complete, so that the true peak may be higher"),
    Column(
        "beyond_training",
        TEXT,
        "of the phases evaluation and export, how far their peaks lie above those of all phases before, by counter, in "
        "bytes, JSON; 0 where they do not; null without such a phase",
        None,
        lambda settled: as_text(settled.beyond_training),
    ),
)
LIMITS = (
    _outcome("budget_bytes", INT, "what the workload may take", "bytes"),
    _outcome(
        "budget_kind",
        TEXT,
        "data_limit or guard (RLIMIT_DATA over what is held at its start), allocator, tensors (calculated, on sim:cpu)",
    ),
    _outcome(
        "budget_used_bytes",
        INT,
        "what a budget counts, at its highest: reserved; on cpu an upper bound of it, the growth of the address space, "
        "which counts what a thread's arena only reserves; null unless it passed, and where that is beyond the budget",
        "bytes",
    ),
    Column("device_total_bytes", INT, "the device's memory", "bytes"),
    Column("device_uuid", TEXT, "the device's own identity", None, lambda settled: settled.attempt.device.uuid),
    Column(
        "used_by_others_bytes",
        INT,
        "used on the device before the attempt began, as its driver counts: whoever used it, and what the driver keeps "
        "for itself; calculated: what the card's file says; null on cpu, and where nobody tells",
        "bytes",
        lambda settled: settled.used_by_others,
    ),
)
MODEL = (
    _model("parameters", INT, "parameters of the model, shared ones once", "parameters"),
    _model("parameter_bytes", INT, "bytes of the parameters, shared ones once", "bytes"),
    _model("trainable_parameters", INT, "parameters that are trained", "parameters"),
    _model("storage_dtype", TEXT, "data type the parameters are stored in"),
    _model("compute_dtype", TEXT, "data type it computes in"),
    _model("attention_used", TEXT, "attention that its layers call, joined where they differ; null where it has none"),
    _model("model_revision", TEXT, "revision of a model from the hub"),
)
DONE = (
    _outcome("steps", INT, "steps done", "steps"),
    _outcome("tokens", INT, "tokens done", "tokens"),
    Column("metrics", TEXT, "what the workload returned, JSON", None, lambda settled: as_text(settled.outcome.metrics)),
    Column(
        "loss_check",
        TEXT,
        "whether its losses are those of the point without checkpointing, accumulate and compile: same, or how they"
        " differ; with dropout, which draws other numbers, not comparable; null where there is no other point, and of"
        " training that did not end",
    ),
    Column("started_at", TIME, "when it started", None, lambda settled: as_time(settled.outcome.started_at)),
    _outcome("duration_s", FLOAT, "from its start to its end", "seconds"),
    _outcome("available_memory_bytes", INT, "host memory available at its start", "bytes"),
    _outcome("available_memory_end_bytes", INT, "host memory available when it had ended", "bytes"),
    _outcome(
        "memory_pressure_start_us",
        INT,
        "when it started, how long since boot some task of the machine had waited for memory (/proc/pressure/memory)",
        "microseconds",
    ),
    _outcome("memory_pressure_end_us", INT, "the same when it had ended: the difference fell into it", "microseconds"),
    _outcome("other_processes", INT, "most that the workload had started at once: in no peak", "processes"),
    _outcome(
        "other_processes_resident_bytes",
        INT,
        "what those held at most, added up: pages that they share count in each",
        "bytes",
    ),
)
QUALITY = (
    Column("quality", FLOAT, "what quality.target returned", None, lambda settled: settled.quality),
    Column("quality_verdict", TEXT, "same (within the tolerance), worse or better than its reference; not assessable"),
    Column("quality_worse_by", FLOAT, "how much worse than its reference; negative where it is better"),
    Column("quality_because", TEXT, "why it is not assessable", None, lambda settled: settled.quality_error),
)
INPUTS = (
    _lengths("asked_tokens", "batch times context; null, like the next four, where inputs are no text of the user's"),
    _lengths("real_tokens", "tokens of the text that reached the model"),
    _lengths("padded_tokens", "tokens that reached it beside them, to make samples equally long"),
    _lengths("truncated_tokens", "tokens of the samples that were cut off"),
    _lengths("truncated_samples", "samples that something was cut off", "samples"),
)
NUMBER = Column(
    "attempt", INT, "1 for the first attempt of this point on this device", None, attrgetter("attempt.number")
)
RESULT = tuple(c for c in (NUMBER, *WHERE, *ENDED, *PEAKS, *LIMITS, *MODEL, *QUALITY, *INPUTS, *DONE) if c.is_kept)

POINTS = (
    *(RUN, POINT_ID, DEVICE, KIND, NUMBER),
    Column("attempts", INT, "how many attempts there were", "attempts"),
    *WHERE,
    *PLAN[1:],
    *ENDED,
    *PEAKS,
    *LIMITS,
    *MODEL,
    *QUALITY,
    *INPUTS,
    *DONE,
)
ATTEMPTS = (*POINTS, Column("counts", BOOL, "whether this attempt is the one in points.parquet"))


COUNTERS = {
    "allocated": "given out by the caching allocator; part of reserved",
    "reserved": "taken from the device by the caching allocator",
    "requested": "asked of the caching allocator, before its rounding",
    "active": "given out or waiting for a stream",
    "used": "used on the device as the driver says, whoever uses it",
    "tensor": "live storages of tensors, as followed",
    "resident": "host memory of the process that is resident",
    "resident_anon": "resident and not of a file",
    "resident_file": "resident and of a file or shared",
    "address": "now VmData; its peak VmPeak, of the whole process",
}
MOMENTS = {
    "baseline": "when the phase began",
    "end": "when it ended",
    "peak": "at most, what was there before included",
}


def _counters_of(rows: Sequence[MeasuredPhase]) -> Iterable[Sequence[int | None]]:
    """Every counter at every moment, column by column. A call for each of them was half the time of a large run."""
    moments: tuple[list[Mapping[str, int]], ...] = (
        [row.phase.baseline for row in rows],
        [row.phase.end for row in rows],
        [row.phase.peak for row in rows],
    )
    for readings in moments:
        read = set().union(*readings)
        for counter in COUNTERS:
            yield [reading.get(counter) for reading in readings] if counter in read else [None] * len(rows)


def _phase(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    return Column(name, type, meaning, unit, attrgetter(f"phase.{name}"))


def _counter(moment: str, counter: str) -> Column:
    meaning = f"{COUNTERS[counter]}: {MOMENTS[moment]}"
    name = f"{moment}_{counter}_bytes"
    return Column(name, INT, meaning, "bytes", together=_counters_of)


PHASES = (
    RUN,
    POINT_ID,
    Column("device", TEXT, DEVICE.meaning, None, attrgetter("attempt.device.name")),
    Column("kind", TEXT, KIND.meaning, None, lambda measured: measured.attempt.device.kind),
    NUMBER,
    Column("position", INT, "place of the phase in its attempt, from 0", None, attrgetter("position")),
    Column("phase_device", TEXT, "the device these counters are of", None, attrgetter("phase.device")),
    Column("phase", TEXT, "the phase's name; between: from one phase to the next", None, attrgetter("phase.name")),
    _phase("run_index", INT, "which repeat of the phase, from 0"),
    _phase("iterations", INT, "passes inside the phase", "passes"),
    _phase("completed", BOOL, "false where the attempt ended in it: its peak is a partial one"),
    _phase("elapsed_s", FLOAT, "until the device was done", "seconds"),
    *(_counter(moment, counter) for moment in MOMENTS for counter in COUNTERS),
    _phase("alloc_retries", INT, "allocations that succeeded after the cache was freed", "times"),
    _phase("num_ooms", INT, "allocations the caching allocator refused", "times"),
    Column("shapes", TEXT, "shapes as they reached the model, JSON", None, lambda m: as_text(m.phase.shapes)),
    Column("metrics", TEXT, "what the workload said of the phase, JSON", None, lambda m: as_text(m.phase.metrics)),
)


def _record(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    if type == TEXT:
        return Column(name, type, meaning, unit, lambda record: as_one_text(record.get(name)))
    return Column(name, type, meaning, unit, lambda record: record.get(name))


ENVIRONMENT = (
    Column("environment_id", TEXT, "hash of the record", None, lambda record: record["environment_id"]),
    _record("host", TEXT, "the machine's name"),
    _record("system", TEXT, "operating system, its version, architecture"),
    _record("python", TEXT, "version of the measured interpreter"),
    _record("torch", TEXT, "version of torch"),
    _record("backend", TEXT, "what torch was built for: cuda, hip, cpu"),
    _record("backend_version", TEXT, "its version"),
    _record("driver", TEXT, "the device's driver"),
    _record("libraries", TEXT, "versions of the libraries that were loaded, JSON"),
    _record("threads", INT, "threads of torch's operations", "threads"),
    _record("device_name", TEXT, "what the device is called"),
    _record("device_uuid", TEXT, "the device's own identity"),
    _record("device_total_bytes", INT, "the device's memory", "bytes"),
    _record("allocator_backend", TEXT, "malloc, native, cudaMallocAsync"),
    _record("allocator_settings", TEXT, "the allocator's settings"),
    _record("variables", TEXT, "the environment variables that move memory, JSON"),
    Column("record", TEXT, "all that was recorded, JSON", None, lambda record: as_text(record["record"])),
)


def _term(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    return Column(name, type, meaning, unit, attrgetter(f"term.{name}"))


ESTIMATES = (
    RUN,
    POINT_ID,
    _term("term", TEXT, "weights, gradients, optimizer, activations, logits, kv_cache, ...: docs/estimate.md"),
    _term("bytes", INT, "calculated, never measured", "bytes"),
    Column(
        "alive",
        TEXT,
        "the moments it is alive in, separated by commas: forward, loss, backward, step, decode. Terms of one moment "
        "may be added, and no others",
        None,
        lambda estimated: ",".join(estimated.term.alive) or None,
    ),
    _term("formula", TEXT, "how it was calculated"),
    _term("assumption", TEXT, "what was assumed"),
    _term("source", TEXT, "where the formula is from"),
)


FRONTIER = (
    *(RUN, DEVICE, KIND),
    *(Column(column.name, column.type, column.meaning, column.unit) for column in DIMENSIONS),
    Column("budget_bytes", INT, "what the workload may take at this point", "bytes"),
    Column("budget_kind", TEXT, "what stands behind budget_bytes"),
    Column("along", TEXT, "the keys of more and more memory that were searched, separated by commas"),
    Column(
        "side",
        TEXT,
        "fits: nothing that fits is larger; fails: nothing that fails is smaller; with_margin: the largest that was "
        "measured and leaves margin_bytes",
    ),
    Column("confirmed", BOOL, "whether another attempt told the same; null where there was no second that told"),
    Column("point_id", TEXT, "the edge point; null in the one row of a search in which nothing fits"),
    Column("attempt", INT, "the attempt that told"),
    Column("largest", BOOL, "of the points that fit, the largest by the objective; null for those that fail"),
    Column(
        "limit",
        TEXT,
        "why nothing larger fits: memory, host_memory, other (a limit of the model or a kernel, a timeout, ...), "
        "unknown (what is larger did not tell; of with_margin: a term that nothing told), not_reached (nothing larger "
        "was asked for)",
    ),
    Column("limiting_phase", TEXT, "the phase in which the next larger one failed, or this one"),
    Column("monotone", BOOL, "false if something fails that is smaller than something that fits"),
    Column(
        "headroom_bytes",
        INT,
        "left at the edge: the budget, or the device's total, less headroom_counter; null where either is not known",
        "bytes",
    ),
    Column("headroom_counter", TEXT, "the column of points.parquet that decides"),
    Column("margin_bytes", INT, "the terms of the margin that are known, added up; of with_margin alone", "bytes"),
    Column(
        "margin_terms",
        TEXT,
        "each term with its bytes (null: nothing told), its source (measured, calculated, assumed), and whether the "
        "point's peak holds it already, so that it is not added; JSON, of with_margin alone",
    ),
    Column(
        "untested_between",
        INT,
        "points asked for that did not tell, larger than this one that fits (smaller than this one that fails), and "
        "not implied by another that told and that nothing contradicts; of an interval every value at its resolution",
        "points",
    ),
)
FIXED = frozenset(column.name for table in (ATTEMPTS, FRONTIER) for column in table)
USUAL = frozenset(column.name for column in DIMENSIONS)
TABLES = ("points", "attempts", "phases", "environment", "estimates", "frontier")


def column_of(key: str) -> str:
    """The column of a key: its name as it is typed, with a prefix if some other fixed column is called like it."""
    return f"dim.{key}" if key in FIXED and key not in USUAL else key


def swept_column(key: str, values: Iterable[Any]) -> Column:
    """The column of a swept key, typed by its values; by text, or JSON where they do not agree."""
    return Column(column_of(key), type_of(values), f"the swept key {key}")


def type_of(values: Iterable[Any]) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return BOOL
    if kinds == {int}:
        return INT
    if kinds and kinds <= {int, float}:
        return FLOAT
    return TEXT


def swept_values(values: Sequence[Any], type: pa.DataType) -> list[Any]:
    """The values as a column of that type holds them: of mixed kinds each as JSON, so that 1 and "1" stay apart."""
    if type == FLOAT:
        return [None if value is None else float(value) for value in values]
    if type != TEXT or all(value is None or isinstance(value, str) for value in values):
        return list(values)
    return [None if value is None else json.dumps(value, sort_keys=True) for value in values]


def with_swept(columns: Sequence[Column], swept: Sequence[Column]) -> tuple[Column, ...]:
    """The table's columns with those of the swept keys after the usual dimensions."""
    after = next(place for place, column in enumerate(columns) if column.name == DIMENSIONS[-1].name) + 1
    return (*columns[:after], *swept, *columns[after:])


def schema_of(columns: Sequence[Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The file's schema: unit and meaning with each field, the nullable types of pandas with the file."""
    fields = [
        pa.field(c.name, c.type, metadata={"meaning": c.meaning, **({} if c.unit is None else {"unit": c.unit})})
        for c in columns
    ]
    pandas = {
        "index_columns": [],
        "column_indexes": [],
        "columns": [_for_pandas(column) for column in columns],
        "creator": {"library": "sweeper", "version": str(VERSION)},
        "pandas_version": "2.2.0",
    }
    own = {"pandas": json.dumps(pandas), "sweeper.schema": str(VERSION)}
    return pa.schema(fields, metadata=own | dict(metadata or {}))


def _for_pandas(column: Column) -> dict[str, Any]:
    kind, numpy = PANDAS[column.type]
    zone = {"timezone": "UTC"} if column.type == TIME else None
    names = {"name": column.name, "field_name": column.name}
    return {**names, "pandas_type": kind, "numpy_type": numpy, "metadata": zone}


NAMED = ("model", "workload", "dtype")
VARYING = tuple(column.name for column in DIMENSIONS if column.name not in NAMED)
