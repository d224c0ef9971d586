"""Every column of every table, declared once: its name, type, unit, meaning and source.

Version (in each file's metadata, `sweeper.schema`):
    1   points, attempts, phases, environment, estimates, frontier
    2   contaminated becomes a boolean, its text becomes contaminated_by. New in points and attempts: how contamination
        was checked, memory at the end, memory pressure, the processes that a workload started
    3   new in points and attempts: attention_used, the lengths of the user's own inputs, the quality columns,
        loss_check, spreads, allocator_peaks_differ; in frontier: confirmed, margin_bytes, the side with_margin
    4   new in points and attempts: unlimited_peak_bytes
    5   new in points and attempts: beyond_training, used_by_others_bytes; in frontier: margin_terms. untested_between
        counts the values of an interval
    6   new in estimates: alive. The sum of all terms of a point has no meaning: they are not alive at the same time
    7   new in points, attempts and frontier: the keys of every workload, attention, quantize, inputs, tensors, timeout
        and budget, whether or not they were swept; in points and attempts: settings, peak_bytes, peak_counter,
        limit_bytes, headroom_bytes, headroom_counter, handled_refusals, handled_refusal_bytes, started_cold_because,
        peak_graph_pools_bytes, context_bytes; in phases: refusals, refused_bytes, graph_pools. contaminated is about
        change: a process that was there before and stayed as it was is none
    8   new in points and attempts: notes, workload.steps, workload.rules, workload.assume, assumed_values,
        assumed_places, assumed_bounds, host_tensor_peak_bytes
    9   new in points and attempts: context_most_bytes

The fixed columns do not depend on the rows: they are the same if every point failed. Counters are nullable int64, not
floats, because a double is exact to 53 bits only. pandas reads nullable integers as doubles by default, so a `pandas`
block in each file's metadata names the nullable types, and `pd.read_parquet` keeps every integer exact.
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

VERSION = 9
SCHEMA = "sweeper.schema"  # the key of the version in each file's metadata

INT, TEXT, BOOL, FLOAT = pa.int64(), pa.string(), pa.bool_(), pa.float64()
TIME = pa.timestamp("us", tz="UTC")
PANDAS = {  # the name of a type in the `pandas` metadata, and the dtype that pandas reads it as
    INT: ("int64", "Int64"),
    BOOL: ("bool", "boolean"),
    FLOAT: ("float64", "float64"),
    TEXT: ("unicode", "object"),
    TIME: ("datetimetz", "datetime64[us]"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `of` takes its value from a row's source (sweeper/rows.py).

    Columns that share a function `together` get their values from it at once, for many rows, in the columns' order.
    Columns with neither are computed when the file is written.
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
    """The value as JSON with sorted keys; None if it is empty."""
    return _SORTED.encode(value) if value else None


_SORTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


def as_one_text(value: Any) -> str | None:
    """The value for a text column: text unchanged, anything else as JSON."""
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


def _listed(name: str, meaning: str) -> Column:
    return Column(name, TEXT, meaning, None, lambda settled: as_text(getattr(settled.outcome, name)))


def _peak(counter: str, meaning: str) -> Column:
    name = f"peak_{counter}_bytes"
    return Column(name, INT, meaning, "bytes", lambda settled: settled.outcome.peak(counter))


def _lengths(name: str, meaning: str, unit: str = "tokens") -> Column:
    return Column(name, INT, meaning, unit, lambda settled: settled.lengths.get(name))


def _model(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    if type == TEXT:
        return Column(name, type, meaning, unit, lambda settled: as_one_text(settled.outcome.model.get(name)))
    return Column(name, type, meaning, unit, lambda settled: settled.outcome.model.get(name))


RUN = Column("run", TEXT, "name of the run's folder")
POINT_ID = Column("point_id", TEXT, "id of the point: a hash of all its settled values", None, attrgetter("point_id"))
DEVICE = Column("device", TEXT, "the requested device, as on the command line")
KIND = Column("kind", TEXT, "measured or calculated (devices sim:*): two kinds that must not be mixed")

DIMENSIONS = (
    _key("model", TEXT, "name of the model in conf/model"),
    _key("workload", TEXT, "name of the workload in conf/workload"),
    _key("dtype", TEXT, "data type of the weights"),
    _key("batch", INT, "samples per pass", "samples"),
    _key("context", INT, "length of a sample", "tokens"),
    _key("warmup", INT, "passes between the first one and the measured repeats", "passes"),
    _key("repeats", INT, "measured passes after the warm-up", "passes"),
    _key("seed", INT, "random seed of the inputs"),
    _key(
        "start",
        TEXT,
        "cold: a new interpreter for the attempt; warm: a fork of a clean process that has imported the libraries",
    ),
    _key(
        "allocator",
        TEXT,
        "allocator of host memory. system: unchanged; repeatable: a fixed mmap threshold, so that peaks repeat",
    ),
    _key(
        "phases",
        TEXT,
        "each: counters are read at the boundaries of every phase; whole: the complete loop is one phase",
    ),
    _key("cache", TEXT, "keep or empty the caching allocator's cache between repeats"),
    _key("attention", TEXT, "requested attention implementation; null: the library's own choice (attention_used)"),
    _key("quantize", TEXT, "stored weights: none, int8, int4 or nf4"),
    _key("inputs", TEXT, "name of the inputs in conf/inputs"),
    _key("tensors", BOOL, "whether the bytes of live tensors are counted too"),
    _key("timeout", FLOAT, "time after which the attempt is ended", "seconds"),
    _key("budget", INT, "memory limit that stands for a smaller device", "bytes"),
    # of conf/workload; null for points of a workload without the key
    _key("workload.logits", TEXT, "forward, generate: logits of all positions, or of the last only"),
    _key("workload.new_tokens", INT, "generate: new tokens per sequence", "tokens"),
    _key("workload.cache", TEXT, "generate: kind of the cache"),
    _key("workload.cache_backend", TEXT, "generate: backend of a quantized cache"),
    _key(
        "workload.prefill_chunk",
        INT,
        "generate: tokens of each prompt that a pass reads, with pages of all; null: all at once",
        "tokens",
    ),
    _key("workload.prompt_lengths", INT, "generate: number of different prompt lengths, each `batch` times"),
    _key("workload.packing", TEXT, "generate: padded rows, or all prompts packed in one row"),
    _key("workload.method", TEXT, "train: full or lora"),
    _key("workload.rank", INT, "train: rank of LoRA's matrices"),
    _key("workload.alpha", INT, "train: LoRA's output is multiplied by alpha / rank"),
    _key("workload.targets", TEXT, "train: modules that LoRA adapts, as JSON if they are listed"),
    _key("workload.dropout", FLOAT, "train: dropout before LoRA's matrices"),
    _key("workload.checkpointing", BOOL, "train: whether layers are recomputed in the backward pass"),
    _key("workload.precision", TEXT, "train: data type of autocast; null: none"),
    _key("workload.accumulate", INT, "train: parts of a batch whose gradients are summed for one update"),
    _key("workload.compile", BOOL, "train: whether the model is compiled"),
    _key("workload.optimizer", TEXT, "train: name of the optimizer"),
    _key("workload.lr", FLOAT, "train: learning rate"),
    _key("workload.max_grad_norm", FLOAT, "train: norm at which gradients are clipped"),
    _key("workload.set_to_none", BOOL, "train: whether gradients are freed between steps"),
    _key("workload.evaluation.batch", INT, "train: batch of the evaluation after the steps", "samples"),
    _key("workload.evaluation.context", INT, "train: context of the evaluation after the steps", "tokens"),
    _key("workload.export", TEXT, "train: how the model is written after the steps"),
    _key("workload.target", TEXT, "custom: the function, as module:function"),
    _key("workload.argv", TEXT, "command: the program's arguments, as JSON"),
    _key(
        "workload.steps",
        INT,
        "command: a calculated program ends after these steps of its optimizer; null: at its end",
    ),
    _key("workload.rules", TEXT, "custom, command: the module with the rules of extensions' operators"),
    _key("workload.assume", FLOAT, "custom, command: what stands for a number that is not calculated; null: 1"),
)
PLAN = (
    POINT_ID,
    *DIMENSIONS,
    Column(
        "config", TEXT, "all settled values of the point, as JSON", None, lambda planned: as_text(planned.point.values)
    ),
    Column(
        "settings",
        TEXT,
        "the values in config that differ from the defaults of the model, the workload and the inputs, as JSON; a "
        "value that follows other keys is the expression as it was written, such as ${batch}",
        None,
        lambda planned: as_text(planned.line.settings),
    ),
    Column("order", INT, "position in the plan, from 0", None, attrgetter("line.order")),
    Column(
        "changed",
        TEXT,
        "keys whose values differ from those of changed_from, separated by commas",
        None,
        lambda planned: ",".join(planned.line.changed) or None,
    ),
    Column(
        "changed_from",
        TEXT,
        "point_id of the nearest earlier point, from which the keys in changed differ",
        None,
        attrgetter("line.changed_from"),
    ),
    Column(
        "weights",
        TEXT,
        "random or checkpoint. Quality cannot be assessed with random weights",
        None,
        lambda planned: quality.weights_of(planned.point.values),
    ),
    Column(
        "quality_target",
        TEXT,
        "the user's function that measures the quality of the model",
        None,
        lambda planned: planned.point.get("quality.target"),
    ),
    Column(
        "quality_reference",
        TEXT,
        "point_id of the point that its quality is compared with",
        None,
        attrgetter("line.quality_reference"),
    ),
)
WHERE = (
    Column(
        "environment_id", TEXT, "id of the environment: a row of environment.parquet", None, lambda s: s.environment_id
    ),
    Column("engine", TEXT, "engine that started the attempt: local, slurm or ray", None, lambda s: s.attempt.engine),
    Column(
        "host",
        TEXT,
        "machine that ran the attempt",
        None,
        lambda s: as_one_text(s.outcome.environment.get("host")),
    ),
    _outcome("pid", INT, "process id of the measured process"),
    _outcome(
        "started_cold_because",
        TEXT,
        "start=warm only: why the attempt was started cold all the same; its host memory is that of a cold start",
    ),
)
ENDED = (
    Column(
        "status",
        TEXT,
        "how the attempt ended, or why there was none: ok, oom, oom_killed, killed, crashed, timeout, error, "
        "unavailable, interrupted, lost, skipped or not_run",
        None,
        lambda settled: settled.outcome.status.value,
    ),
    _outcome(
        "fits",
        BOOL,
        "whether the point fits in memory; null if the attempt did not decide it. The frontier depends on nothing else",
    ),
    _outcome("oom_scope", TEXT, "device or host: the memory that was exhausted"),
    _outcome("failed_phase", TEXT, "phase in which the attempt failed"),
    _outcome("error_type", TEXT, "type of the exception"),
    _outcome("error_message", TEXT, "message of the exception, or the reason why there is no measurement"),
    _outcome("signal", INT, "number of the signal that ended the process"),
    _outcome("exit_code", INT, "exit code of the process"),
    _outcome(
        "requested_bytes",
        INT,
        "size of the refused allocation; of CUDA's caching allocator the segment that it requested from the driver",
        "bytes",
    ),
    _outcome(
        "handled_refusals",
        INT,
        "refused allocations after which the workload continued, at least so many; a pass with any does not decide "
        "whether the point fits. null where they cannot all be observed, as on cpu with tensors=false",
        "times",
    ),
    Column(
        "notes",
        TEXT,
        "what has to be known to read the figures: assumptions, bounds, and what was left out. A JSON list of clauses; "
        "null without any",
        None,
        lambda settled: json.dumps(settled.outcome.notes) if settled.outcome.notes else None,
    ),
    _outcome("handled_refusal_bytes", INT, "size of the largest refused allocation of such an attempt", "bytes"),
    _outcome(
        "needs_at_least_bytes",
        INT,
        "lower bound of the memory needed, at most unlimited_peak_bytes: what tensors held when the allocation was "
        "refused, without what blocks add to them, plus the least that makes the allocator request requested_bytes. "
        "On cpu live tensors plus requested_bytes, which can be scratch memory that peak_tensor_bytes leaves out: no "
        "bound of the resident memory. null where what was held is not known, as with tensors=false, for programs, "
        "and after an earlier refusal of another size",
        "bytes",
    ),
    _outcome(
        "unlimited_peak_bytes",
        INT,
        "calculated points only: the peak of the deciding counter if memory were unlimited",
        "bytes",
    ),
    _outcome(
        "assumed_values",
        INT,
        "calculated points only: how often the program read a number that is not calculated, and was given an assumed "
        "one (workload.assume)",
        "values",
    ),
    _listed(
        "assumed_places",
        "where it did, as JSON: file, line, function, operator, times; the first fifty places",
    ),
    _listed(
        "assumed_bounds",
        "calculated points only: where such a number decides a size or the length of a loop, so that the peak is at "
        "most the true one's bound, as JSON: file, line, function, operator, bound, times",
    ),
    _outcome(
        "host_tensor_peak_bytes",
        INT,
        "calculated cards and programs of your own only (custom, command): peak of the live tensors that operators "
        "returned in host memory, such as batches before they are moved. The card's peaks do not include it",
        "bytes",
    ),
    Column("skipped_because", TEXT, "attempt whose result implies this point's, so that it was skipped"),
    Column(
        "spreads",
        TEXT,
        "for each peak, the largest less the smallest value of the attempts that passed in the same "
        "environment, in bytes, as JSON; null with fewer than two such attempts",
    ),
    Column(
        "allocator_peaks_differ",
        BOOL,
        "whether the CUDA allocator's peaks differ between the attempts of spreads; null where they cannot be compared",
    ),
    Column(
        "flaky",
        BOOL,
        "whether some attempts fit and others did not, in the same environment; null with fewer than two that"
        " decided it",
    ),
    _outcome(
        "contaminated",
        BOOL,
        "whether another process came to the device, left it or changed its memory during the attempt; one that was "
        "there and stayed as it was is in used_by_others_bytes alone; null where it was not checked, as on cpu",
    ),
    _outcome(
        "contaminated_by",
        TEXT,
        "the other processes with name, pid, bytes and time, or the bytes that were not released at the end",
    ),
    _outcome(
        "contamination_told_by",
        TEXT,
        "how contamination was checked. processes: by pid, every second; used_bytes: only by the used bytes "
        "before and after, because the driver did not report the attempt's own pid",
    ),
    _outcome("instrumented", BOOL, "whether live tensors were tracked"),
)
DECIDING = (
    Column(
        "peak_bytes",
        INT,
        "the point's peak: of the counter in peak_counter, baseline included; partial where peak_is_partial",
        "bytes",
        lambda settled: settled.outcome.peak(settled.attempt.device.deciding_counter),
    ),
    Column(
        "peak_counter",
        TEXT,
        "counter of peak_bytes: allocated; on cpu resident, on sim:cpu tensor",
        None,
        lambda settled: settled.attempt.device.deciding_counter,
    ),
)
PEAKS = (
    _peak(
        "allocated",
        "peak of the bytes that the caching allocator handed out, a part of reserved; with several devices, "
        "the highest one",
    ),
    _peak(
        "reserved",
        "peak of the bytes that the caching allocator took from the device; with several devices, the highest one",
    ),
    _peak("requested", "peak of the bytes requested from the caching allocator, before its rounding"),
    _peak(
        "graph_pools",
        "highest reading of what private pools of CUDA graphs have reserved, a part of reserved that a replay uses and "
        "allocated does not count; null without a captured graph",
    ),
    _peak("used", "highest reading of the device's used memory as the driver reports it, of all processes"),
    _peak("tensor", "peak of the live bytes of tensor storages, as tracked; without scratch memory of kernels"),
    _peak("resident", "peak of the process's resident host memory, baseline included"),
    Column(
        "process_baseline_bytes",
        INT,
        "resident host memory after the imports and before the workload",
        "bytes",
        lambda settled: settled.outcome.process_baseline.get("resident"),
    ),
    _outcome("peak_phase", TEXT, "first phase that reached the peak (of allocated; on cpu of resident)"),
    _outcome(
        "peak_is_partial", BOOL, "whether the true peak may be higher: a phase did not complete, or was not read whole"
    ),
    Column(
        "beyond_training",
        TEXT,
        "how far the peaks of the phases evaluation and export exceed those of all phases before them, by "
        "phase and counter, in bytes, as JSON; 0 if they do not; null without such a phase",
        None,
        lambda settled: as_text(settled.beyond_training),
    ),
)
LIMITS = (
    _outcome(
        "budget_bytes",
        INT,
        "memory that the workload may use: the budget, or less where another limit holds (budget_kind)",
        "bytes",
    ),
    _outcome(
        "budget_kind",
        TEXT,
        "which limit budget_bytes is, the least of those that hold. allocator: the budget, which the caching allocator "
        "enforces; data_limit: the budget as RLIMIT_DATA, above the bytes held at the start; tensors: the budget of "
        "calculated tensors, on sim:cpu; guard: the machine's available memory less a reserve, as RLIMIT_DATA; cgroup: "
        "the same of a memory cgroup; inherited_data_limit: RLIMIT_DATA, and address_limit: RLIMIT_AS, that the "
        "process was started with; workload_limit: either of them, as a workload lowered it before it failed",
    ),
    _outcome(
        "budget_used_bytes",
        INT,
        "peak of the memory that counts against budget_bytes: reserved; tensor on sim:cpu; on cpu what was added to "
        "the data segment (to the address space, for address_limit), known to 1 MiB. On cpu null unless the attempt "
        "passed without a refusal, and where the readings leave more open",
        "bytes",
    ),
    _outcome(
        "used_with_shared_bytes",
        INT,
        "on cpu, the most that boundaries and heartbeats read of what was added to the data segment and to resident "
        "shared memory together. The budget does not limit shared memory: fits is null where this exceeds it. null "
        "unless the attempt passed, and for programs",
        "bytes",
    ),
    Column("device_total_bytes", INT, "total memory of the device", "bytes"),
    Column("limit_bytes", INT, "memory that headroom_counter may reach: the budget, or the device's total", "bytes"),
    Column(
        "headroom_bytes",
        INT,
        "points that fit: limit_bytes less the peak of headroom_counter; null if either is not known",
        "bytes",
    ),
    Column("headroom_counter", TEXT, "column whose peak is compared with limit_bytes"),
    Column("device_uuid", TEXT, "unique id of the device", None, lambda settled: settled.attempt.device.uuid),
    Column(
        "context_bytes",
        INT,
        "calculated cards only: memory taken off the total for the context and libraries, from the card's file",
        "bytes",
        lambda settled: settled.context_bytes,
    ),
    Column(
        "context_most_bytes",
        INT,
        "calculated cards only: the largest published figure for context_bytes, from the card's file; null if it has "
        "none",
        "bytes",
        lambda settled: settled.context_most_bytes,
    ),
    Column(
        "used_by_others_bytes",
        INT,
        "used memory of the device before the attempt began, as the driver counts: by other processes, with old "
        "drivers and libraries (before version 2 of NVML's structure) by the driver itself too; calculated: the "
        "key used_by_others, or the figure in the card's file; null on cpu and where it is not known",
        "bytes",
        lambda settled: settled.used_by_others,
    ),
)
MODEL = (
    _model("parameters", INT, "number of the model's parameters, shared ones counted once", "parameters"),
    _model("parameter_bytes", INT, "size of the parameters, shared ones counted once", "bytes"),
    _model("trainable_parameters", INT, "number of parameters that are trained", "parameters"),
    _model("storage_dtype", TEXT, "data type that the parameters are stored in"),
    _model("compute_dtype", TEXT, "data type that the model computes in"),
    _model(
        "attention_used",
        TEXT,
        "attention implementation that the layers call, joined if they differ; null without attention",
    ),
    _model("model_revision", TEXT, "revision of a model from the Hugging Face hub"),
)
DONE = (
    _outcome("steps", INT, "steps that were completed", "steps"),
    _outcome("tokens", INT, "tokens processed", "tokens"),
    Column(
        "metrics",
        TEXT,
        "metrics that the workload returned, as JSON",
        None,
        lambda settled: as_text(settled.outcome.metrics),
    ),
    Column(
        "loss_check",
        TEXT,
        "whether the losses equal those of the same point without checkpointing, accumulate and compile: "
        "same, or how they differ; not comparable with dropout, which draws other random numbers; null "
        "without such a point, and for training that did not finish",
    ),
    Column("started_at", TIME, "when the attempt started", None, lambda settled: as_time(settled.outcome.started_at)),
    _outcome("duration_s", FLOAT, "duration of the attempt; of a calculated one, of the calculation", "seconds"),
    _outcome("available_memory_bytes", INT, "available host memory when the attempt started", "bytes"),
    _outcome("available_memory_end_bytes", INT, "available host memory after the attempt ended", "bytes"),
    _outcome(
        "memory_pressure_start_us",
        INT,
        "time since boot that some task of the machine waited for memory, when the attempt started "
        "(/proc/pressure/memory)",
        "microseconds",
    ),
    _outcome(
        "memory_pressure_end_us",
        INT,
        "memory_pressure_start_us when the attempt ended: the difference is the waiting during the attempt",
        "microseconds",
    ),
    _outcome(
        "other_processes",
        INT,
        "largest number of other processes that the workload ran at once; their memory is in no peak",
        "processes",
    ),
    _outcome(
        "other_processes_resident_bytes",
        INT,
        "peak of the summed resident memory of the other processes; shared pages count in each",
        "bytes",
    ),
)
QUALITY = (
    Column("quality", FLOAT, "number that quality.target returned", None, lambda settled: settled.quality),
    Column(
        "quality_verdict", TEXT, "same (within the tolerance), worse or better than the reference, or not assessable"
    ),
    Column("quality_worse_by", FLOAT, "how much worse it is than the reference; negative if it is better"),
    Column("quality_because", TEXT, "why the quality is not assessable", None, lambda settled: settled.quality_error),
)
INPUTS = (
    _lengths(
        "asked_tokens",
        "batch times context; null, like the next four columns, unless the inputs are the user's own text",
    ),
    _lengths("real_tokens", "tokens of text that reached the model"),
    _lengths("padded_tokens", "padding tokens that reached the model, added to make samples equally long"),
    _lengths("truncated_tokens", "tokens of text that were cut off"),
    _lengths("truncated_samples", "samples that were cut off", "samples"),
)
NUMBER = Column(
    "attempt",
    INT,
    "number of the attempt, 1 for the first of this point on this device",
    None,
    attrgetter("attempt.number"),
)
RESULT = tuple(
    c for c in (NUMBER, *WHERE, *ENDED, *DECIDING, *PEAKS, *LIMITS, *MODEL, *QUALITY, *INPUTS, *DONE) if c.is_kept
)

POINTS = (
    *(RUN, POINT_ID, DEVICE, KIND, NUMBER),
    Column("attempts", INT, "number of attempts of this point on this device", "attempts"),
    *WHERE,
    *PLAN[1:],
    *ENDED,
    *DECIDING,
    *PEAKS,
    *LIMITS,
    *MODEL,
    *QUALITY,
    *INPUTS,
    *DONE,
)
ATTEMPTS = (*POINTS, Column("counts", BOOL, "whether this attempt is the one in points.parquet"))


COUNTERS = {
    "allocated": "bytes that the caching allocator handed out, a part of reserved",
    "reserved": "bytes that the caching allocator took from the device",
    "requested": "bytes requested from the caching allocator, before its rounding",
    "active": "bytes handed out, or freed and still in use by a stream",
    "graph_pools": "bytes that private pools of captured CUDA graphs have reserved; a replay uses them, and allocated "
    "leaves out what the graph freed while it was captured; no peak",
    "used": "used memory of the device, by all processes, as the driver reports it",
    "tensor": "live bytes of tensor storages, as tracked",
    "resident": "resident host memory of the process",
    "resident_anon": "the part of resident that is not backed by a file",
    "resident_file": "the part of resident that is backed by a file or shared",
    "address": "address space of the process (VmData; the peak is VmPeak, of the whole process)",
}
MOMENTS = {
    "baseline": "when the phase began",
    "end": "when the phase ended",
    "peak": "the highest during the phase, baseline included",
}


def _counters_of(rows: Sequence[MeasuredPhase]) -> Iterable[Sequence[int | None]]:
    """Every counter at every moment, column by column. A call for each value took half the time of a large run."""
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
    meaning = f"{COUNTERS[counter]}, {MOMENTS[moment]}"
    name = f"{moment}_{counter}_bytes"
    return Column(name, INT, meaning, "bytes", together=_counters_of)


PHASES = (
    RUN,
    POINT_ID,
    Column("device", TEXT, DEVICE.meaning, None, attrgetter("attempt.device.name")),
    Column("kind", TEXT, KIND.meaning, None, lambda measured: measured.attempt.device.kind),
    NUMBER,
    Column("position", INT, "position of the phase in the attempt, from 0", None, attrgetter("position")),
    Column("phase_device", TEXT, "device of these counters", None, attrgetter("phase.device")),
    Column(
        "phase",
        TEXT,
        "name of the phase; between: from the end of one phase to the start of the next; unlisted: later phases of a "
        "long attempt together, with what happened between them",
        None,
        attrgetter("phase.name"),
    ),
    _phase("run_index", INT, "index of the repeat, from 0"),
    _phase("iterations", INT, "passes in the phase; of unlisted the number of phases", "passes"),
    _phase("completed", BOOL, "false if the phase did not complete: its peak is then partial"),
    _phase("elapsed_s", FLOAT, "duration, until the device had finished; null if calculated", "seconds"),
    *(_counter(moment, counter) for moment in MOMENTS for counter in COUNTERS),
    _phase("alloc_retries", INT, "allocations that succeeded only after the allocator freed its cache", "times"),
    _phase(
        "num_ooms",
        INT,
        "allocations that the caching allocator refused, those included that a library replaced by smaller ones",
        "times",
    ),
    _phase(
        "refusals",
        INT,
        "refused allocations that reached the workload as exceptions. On cpu those of tracked tensors; of a program, "
        "num_ooms of all its processes; null where they cannot be observed",
        "times",
    ),
    _phase("refused_bytes", INT, "size of the largest of them", "bytes"),
    Column(
        "shapes",
        TEXT,
        "shapes of the inputs as they reached the model, as JSON",
        None,
        lambda m: as_text(m.phase.shapes),
    ),
    Column(
        "metrics",
        TEXT,
        "metrics that the workload reported for the phase, as JSON",
        None,
        lambda m: as_text(m.phase.metrics),
    ),
)


def _record(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    if type == TEXT:
        return Column(name, type, meaning, unit, lambda record: as_one_text(record.get(name)))
    return Column(name, type, meaning, unit, lambda record: record.get(name))


ENVIRONMENT = (
    Column(
        "environment_id",
        TEXT,
        "id of the environment: a hash of the record",
        None,
        lambda record: record["environment_id"],
    ),
    _record("host", TEXT, "name of the machine"),
    _record("system", TEXT, "operating system, its version and the machine's architecture"),
    _record("python", TEXT, "version of the Python that ran the attempts"),
    _record("torch", TEXT, "version of torch"),
    _record("backend", TEXT, "backend that torch was built for: cuda, hip or cpu"),
    _record("backend_version", TEXT, "version of the backend"),
    _record("driver", TEXT, "version of the device's driver"),
    _record("libraries", TEXT, "versions of the loaded libraries, as JSON"),
    _record("threads", INT, "threads that torch uses for an operation", "threads"),
    _record("device_name", TEXT, "product name of the device"),
    _record("device_uuid", TEXT, "unique id of the device"),
    _record("device_total_bytes", INT, "total memory of the device", "bytes"),
    _record("allocator_backend", TEXT, "allocator in use: malloc, native or cudaMallocAsync"),
    _record("allocator_settings", TEXT, "settings of the allocator"),
    _record("variables", TEXT, "environment variables that affect memory, as JSON"),
    Column("record", TEXT, "the complete record, as JSON", None, lambda record: as_text(record["record"])),
)


def _term(name: str, type: pa.DataType, meaning: str, unit: str | None = None) -> Column:
    return Column(name, type, meaning, unit, attrgetter(f"term.{name}"))


ESTIMATES = (
    RUN,
    POINT_ID,
    _term(
        "term",
        TEXT,
        "name of the term: weights, gradients, optimizer, activations, logits, kv_cache, ... (docs/estimate.md)",
    ),
    _term("bytes", INT, "size of the term; estimated, never measured", "bytes"),
    Column(
        "alive",
        TEXT,
        "moments at which the term is alive, separated by commas: forward, loss, backward, step, decode. Add "
        "up only terms of the same moment",
        None,
        lambda estimated: ",".join(estimated.term.alive) or None,
    ),
    _term("formula", TEXT, "calculation of the bytes"),
    _term("assumption", TEXT, "assumptions of the calculation"),
    _term("source", TEXT, "source of the formula"),
)


FRONTIER = (
    *(RUN, DEVICE, KIND),
    *(Column(column.name, column.type, column.meaning, column.unit) for column in DIMENSIONS),
    Column("budget_bytes", INT, "memory that the workload may use at this point", "bytes"),
    Column("budget_kind", TEXT, "what enforces budget_bytes"),
    Column("along", TEXT, "searched keys, in which memory grows, separated by commas"),
    Column(
        "side",
        TEXT,
        "fits: the point fits and no larger one does; fails: it fails and no smaller one does; with_margin: "
        "the largest measured point that leaves margin_bytes free",
    ),
    Column(
        "confirmed", BOOL, "whether another attempt confirmed the result; null without a second attempt that decided it"
    ),
    Column("point_id", TEXT, "the point at the edge; null in the fits row of a search in which nothing fits"),
    Column("attempt", INT, "attempt that decided the result"),
    Column("largest", BOOL, "whether it is the largest point that fits, by the objective; null on the side fails"),
    Column(
        "limit",
        TEXT,
        "why nothing larger fits: memory, host_memory, other (a limit of the model or a kernel, a timeout, "
        "...), unknown (larger points were not decided; with_margin: a term of the margin is not known), "
        "not_reached (nothing larger was planned)",
    ),
    Column("limiting_phase", TEXT, "phase in which the next larger point failed, or this point"),
    Column(
        "monotone",
        BOOL,
        "false if a point fails that is smaller than one that fits; true if an attempt could have shown this, because"
        " an earlier one had implied its result, and did not; null if none could: it is assumed",
    ),
    Column(
        "headroom_bytes",
        INT,
        "memory left at the edge: the budget, or the device's total, less headroom_counter; null if either is"
        " not known",
        "bytes",
    ),
    Column("headroom_counter", TEXT, "column of points.parquet that is compared with the limit"),
    Column("margin_bytes", INT, "side with_margin only: sum of the known terms of the margin", "bytes"),
    Column(
        "margin_terms",
        TEXT,
        "side with_margin only: each term with its bytes (null if not known), its source (measured, "
        "calculated or assumed) and whether the point's peak includes it already, so that it is not added; as"
        " JSON",
    ),
    Column(
        "untested_between",
        INT,
        "planned points that were not decided, larger than this point if it fits, smaller if it fails, and "
        "not implied by the uncontradicted result of another point; an interval counts each value at its "
        "resolution",
        "points",
    ),
)
FIXED = frozenset(column.name for table in (ATTEMPTS, FRONTIER) for column in table)
USUAL = frozenset(column.name for column in DIMENSIONS)
DECLARED: Mapping[str, tuple[Column, ...]] = {
    "points": POINTS,
    "attempts": ATTEMPTS,
    "phases": PHASES,
    "environment": ENVIRONMENT,
    "estimates": ESTIMATES,
    "frontier": FRONTIER,
}
TABLES = tuple(DECLARED)
WITH_SWEPT = ("points", "attempts", "frontier")  # tables that have the columns of the swept keys too


def is_key(name: str) -> bool:
    """Whether a column has the values of a key: one that every table has, or one that was set in this run."""
    return name in USUAL or name not in FIXED


def column_of(key: str) -> str:
    """The column name of a key: the key, prefixed with `dim.` if a fixed column has that name already."""
    return f"dim.{key}" if key in FIXED and key not in USUAL else key


def swept_column(key: str, values: Iterable[Any]) -> Column:
    """The column of a key that was set. Its type is that of the values, or text (JSON) if their types differ."""
    return Column(column_of(key), type_of(values), f"value of the key {key}")


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
    """The values for a column of this type. Values of mixed types become JSON, which keeps 1 and "1" apart."""
    if type == FLOAT:
        return [None if value is None else float(value) for value in values]
    if type != TEXT or all(value is None or isinstance(value, str) for value in values):
        return list(values)
    return [None if value is None else json.dumps(value, sort_keys=True) for value in values]


def with_swept(columns: Sequence[Column], swept: Sequence[Column]) -> tuple[Column, ...]:
    """The table's columns, with those of the swept keys after the usual dimensions."""
    after = next(place for place, column in enumerate(columns) if column.name == DIMENSIONS[-1].name) + 1
    return (*columns[:after], *swept, *columns[after:])


def schema_of(columns: Sequence[Column], metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The Arrow schema. Fields carry unit and meaning as metadata, the schema the nullable types for pandas."""
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
    own = {"pandas": json.dumps(pandas), SCHEMA: str(VERSION)}
    return pa.schema(fields, metadata=own | dict(metadata or {}))


def _for_pandas(column: Column) -> dict[str, Any]:
    kind, numpy = PANDAS[column.type]
    zone = {"timezone": "UTC"} if column.type == TIME else None
    names = {"name": column.name, "field_name": column.name}
    return {**names, "pandas_type": kind, "numpy_type": numpy, "metadata": zone}


NAMED = ("model", "workload", "dtype")
VARYING = tuple(column.name for column in DIMENSIONS if column.name not in NAMED)
