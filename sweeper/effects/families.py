"""What one dimension does: rows of points.parquet and phases.parquet in, differences and costs out. Pure.

measured     the difference between two neighbours, that is two points that differ by one step in one dimension alone;
             which phase has the peak at a point
calculated   everything that comes of a fit to the measured peaks (memory_fit.py), also within what was measured

Points that did not pass whole are in neither: the peak of what was cut off is too small. On a calculated device
everything is calculated, and no row of it meets one of a measured device.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from runners.device import CALCULATED, device_named
from runners.journal import BETWEEN, QUALITY
from runners.outcome import OUR_OWN_BYTES, Status
from sweeper import columns
from sweeper.columns import NAMED, VARYING
from sweeper.effects.memory_fit import MemoryFit, NotFitted, Size, fit_memory
from sweeper.errors import Mistake
from sweeper.estimates.memory_terms import DTYPE_BITS
from sweeper.frontier.edges import rest_of
from sweeper.rows import Row

PEAKS = tuple(column.name for column in columns.PEAKS if column.name.startswith("peak_") and column.unit == "bytes")
# The counters that costs are fitted to, the one to look at first. `tensor` is exact, and of the workload alone;
# `resident` is what a budget of cpu comes nearest to. Of a GPU allocated, which reserved follows in jumps.
DECIDING = {"cpu": ("tensor", "resident"), "sim:cpu": ("tensor",)}
ALLOCATED = ("allocated",)
# By less than this no phase takes over from another: resident memory repeats to 0.3-1.7 MiB at its best.
UNSTEADY = {"resident": 2 * 2**20}
FARTHEST = 8  # times the largest measured: fits were tried on points of 1.2 to 9 times that
SIZE = ("batch", "context")

NEEDS = (
    "unlimited_peak_bytes",
    *("run", "point_id", "device", "kind", "attempt"),
    *(column.name for column in columns.DIMENSIONS),
    *("config", "order", "changed", "status", "fits", "flaky", "contaminated", "failed_phase"),
    *("error_type", "error_message", "compute_dtype", "attention_used", *PEAKS, "peak_is_partial"),
)
NEEDS_OF_PHASES = (
    *("point_id", "device", "attempt", "phase_device", "phase", "run_index", "elapsed_s", "metrics"),
    *(f"{moment}_{name}_bytes" for moment in ("baseline", "peak") for name in ("allocated", "tensor", "resident")),
)


# --- between neighbours -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What one step of one dimension did. A difference that is not known is None, and `because` says why."""

    device: str
    kind: str
    dimension: str
    step: tuple[Any, Any]
    at: Mapping[str, Any]  # the other dimensions
    points: tuple[str, str]
    bytes: Mapping[str, int | None]  # by column of points.parquet
    seconds: float | None  # of a warm repeat
    time_of: str | None  # the phases that were added up
    because: Mapping[str, str]  # by column, and by `seconds`


def differences(points: Sequence[Row], phases: Iterable[Row]) -> list[Difference]:
    """Of every pair of neighbours, the smaller first; dimension by dimension."""
    dimensions = dimensions_of(points)
    of_attempt = _phases_of(points, phases)
    configs = [json.loads(row["config"]) for row in points]
    return [
        _difference(key, pair, dimensions, of_attempt)
        for key in dimensions
        for pair in _neighbours(points, key, dimensions, _following(key, configs))
    ]


def dimensions_of(points: Sequence[Row]) -> list[str]:
    """The keys that the plan varied, and batch, context and swept ones that differ between its sweeps."""
    swept = [name.removeprefix("dim.") for name in (points[0] if points else {}) if name not in columns.FIXED]
    found = [key for row in points for key in (row["changed"] or "").split(",") if key]
    values = {key: {_plain(row.get(columns.column_of(key))) for row in points} for key in (*SIZE, *swept, *found)}
    return [key for key in dict.fromkeys((*SIZE, *swept, *found)) if len(values[key]) > 1]


def _plain(value: Any) -> str:
    return json.dumps(value)  # 1, true and 1.0 are three values


def _following(key: str, configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The keys that change with a dimension without being asked: with a workload the passes that it makes, with a key
    of a workload those that are null where they make no difference."""
    if key == "workload":
        return ("warmup", "repeats")
    if not key.startswith("workload."):
        return ()
    leaves = (leaf for config in configs for leaf in (config.get("workload") or {}).items())
    return tuple(dict.fromkeys(f"workload.{name}" for name, value in leaves if value is None))


def _neighbours(
    points: Sequence[Row], key: str, dimensions: Sequence[str], following: Sequence[str]
) -> Iterator[tuple[Row, Row]]:
    column = columns.column_of(key)
    others = [columns.column_of(other) for other in dimensions if other != key]
    lines: dict[tuple[str, ...], dict[str, Row]] = defaultdict(dict)
    for row in points:
        rest = rest_of(row, (key, *following))
        same = (row["device"], row["kind"], rest, *(_plain(row.get(other)) for other in others))
        lines[same].setdefault(_plain(row.get(column)), row)
    for line in lines.values():
        yield from pairwise(sorted(line.values(), key=lambda row: _place(row, column)))


def _place(row: Row, column: str) -> tuple[bool, float, int]:
    """Numbers by size, everything else as it was asked for."""
    value, order = row.get(column), row["order"] or 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number, float(value) if is_number else 0.0, order  # type: ignore[arg-type]


def _difference(
    key: str, pair: tuple[Row, Row], dimensions: Sequence[str], of_attempt: Mapping[tuple[str, str], Sequence[Row]]
) -> Difference:
    before, after = pair
    because: dict[str, str] = {}
    changes: dict[str, int | None] = {}
    for column in PEAKS:
        reason = next(filter(None, (why_not(row, of) for of in ("", column) for row in pair)), None)
        if reason is not None and None not in (wanted := [_unlimited(row, column) for row in pair]):
            reason, changes[column] = None, wanted[1] - wanted[0]
        else:
            changes[column] = None if reason else after[column] - before[column]
        because |= {column: reason} if reason else {}
    times = [_repeat(row, of_attempt.get((row["point_id"], row["device"]), ())) for row in pair]
    reason = next((time for time in times if isinstance(time, str)), None)
    seconds, time_of = None, None
    if reason is None:
        (first, time_of), (second, other) = (time for time in times if not isinstance(time, str))
        if time_of == other:
            seconds = second - first
        else:
            reason, time_of = f"other phases: {time_of} and {other}", None
    column = columns.column_of(key)
    return Difference(
        device=before["device"],
        kind=before["kind"],
        dimension=key,
        step=(before.get(column), after.get(column)),
        at={other: before.get(columns.column_of(other)) for other in dimensions if other != key},
        points=(before["point_id"], after["point_id"]),
        bytes=changes,
        seconds=seconds,
        time_of=time_of,
        because=because | ({"seconds": reason} if reason else {}),
    )


def _unlimited(row: Row, column: str) -> Any:
    """A calculated peak as if the device had no end: also of a point that was refused."""
    deciding = f"peak_{device_named(row['device']).deciding_counter}_bytes"
    return row.get("unlimited_peak_bytes") if column == deciding else None


def why_not(row: Row, column: str = "") -> str | None:
    """Why a row's peak is not known; None if it is."""
    if row["status"] != Status.OK.value:
        phase = f" in {row['failed_phase']}" if row["failed_phase"] else ""
        return f"{row['status']}{phase}" + (": its peak is partial" if row["peak_is_partial"] else "")
    if row["peak_is_partial"]:
        return "a phase did not complete: its peak is partial"
    if row["flaky"]:
        return "it passes sometimes"
    if column == "peak_used_bytes" and row["contaminated"]:
        return "somebody else was on the device"
    if column and row[column] is None:
        return "not read"
    return None


def _repeat(row: Row, phases: Sequence[Row]) -> tuple[float, str] | str:
    """Seconds of one warm repeat and the phases that were added up, or why there is no such time."""
    if row["kind"] == CALCULATED:
        return "nothing was computed"
    reason = why_not(row)
    if reason is not None:
        return reason
    device = phases[0]["phase_device"] if phases else None  # every device has a row of the same time
    warm = [p for p in phases if p["phase"].startswith("warm_") and p["run_index"] is not None]
    warm = [phase for phase in warm if phase["phase_device"] == device]
    if not warm or any(phase["elapsed_s"] is None for phase in warm):
        return "no phase warm_... with its time"
    repeats = len({phase["run_index"] for phase in warm})
    names = " + ".join(dict.fromkeys(phase["phase"] for phase in warm))
    total = sum(phase["elapsed_s"] for phase in warm)
    return total / repeats, names + (f", mean of {repeats} repeats" if repeats > 1 else "")


def _phases_of(points: Sequence[Row], phases: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The phases of the attempts that count, in their order."""
    counting = {(row["point_id"], row["device"]): row["attempt"] for row in points}
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for phase in phases:
        key = (phase["point_id"], phase["device"])
        if phase["phase"] != QUALITY and counting.get(key, -1) == phase["attempt"]:
            found[key].append(phase)
    return found


# --- of points that differ in batch and context alone -----------------------------------------------------------------


class PhaseKey(NamedTuple):
    """A phase on one of the attempt's devices."""

    phase: str
    device: str


class PeakRange(NamedTuple):
    """A phase has the peak from one value of a dimension to another; calculated: from there on."""

    phase: PhaseKey
    first: int
    last: int | None
    kind: str


class Share(NamedTuple):
    """A part of a measured peak: what it is, how it is known, and what would make it less."""

    of: str
    bytes: int
    share: float
    kind: str
    known_by: str
    lever: str
    brings_bytes: int | None = None  # not known of this run: other points would tell


@dataclass(frozen=True)
class Family:
    """Points on one device that differ in nothing but batch and context, seen through one counter."""

    counter: str
    rows: Sequence[Row]
    of_attempt: Mapping[tuple[str, str], Sequence[Row]]

    @cached_property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rows[0]["config"])
        return found

    @cached_property
    def whole(self) -> dict[Size, Row]:
        """What passed, by size."""
        return {size: row for row in self.rows if (size := _size(row)) is not None and why_not(row) is None}

    @cached_property
    def left_out(self) -> dict[str, int]:
        """How many points are in nothing of this, by what became of them."""
        reasons = [why_not(row) or ("no batch or context" if _size(row) is None else None) for row in self.rows]
        return dict(Counter(reason for reason in reasons if reason))

    @cached_property
    def peaks(self) -> dict[PhaseKey, dict[Size, int]]:
        """Measured peaks of every phase, of its repeats the highest. `between` is there where it has a point's peak."""
        found: dict[PhaseKey, dict[Size, int]] = defaultdict(dict)
        for size, row in self.whole.items():
            for phase in self._phases(row):
                peak = phase[f"peak_{self.counter}_bytes"]
                if peak is not None:
                    of = found[PhaseKey(phase["phase"], phase["phase_device"])]
                    of[size] = max(peak, of.get(size, 0))
        named = [of for phase, of in found.items() if phase.phase != BETWEEN]
        kept = [phase for phase, of in found.items() if phase.phase != BETWEEN or _rises_above(of, named)]
        return {phase: dict(sorted(found[phase].items())) for phase in kept}

    @cached_property
    def fits(self) -> dict[PhaseKey, MemoryFit | NotFitted]:
        # What its layers really call: a model without another kind is eager whatever was asked for.
        used = (row["attention_used"] or self.config.get("attention") or "" for row in self.whole.values())
        eager = any("eager" in attention for attention in used)
        return {phase: fit_memory(of, eager) for phase, of in self.peaks.items()}

    @cached_property
    def sizes(self) -> list[Size]:
        return sorted({size for of in self.peaks.values() for size in of})

    @cached_property
    def largest(self) -> Size | None:
        """Of what passed, the one with the most tokens."""
        return max(self.sizes, key=lambda size: (size.batch * size.context, size), default=None)

    def peak_phase(self, size: Size, before: PhaseKey | None = None) -> PhaseKey:
        """The phase with the measured peak; the one `before` unless another is clearly above it."""
        there = {phase: of[size] for phase, of in self.peaks.items() if size in of}
        top = max(there, key=lambda phase: there[phase])
        if before in there and there[top] - there[before] <= UNSTEADY.get(self.counter, 0):
            return before
        return top

    def reigns(self) -> list[tuple[str, int, list[PeakRange]]]:
        """For each dimension, and each value of the other: which phase has the peak from where to where.

        The last may be calculated: where another phase takes over by the fits, beyond what was measured.
        """
        found = []
        for along in SIZE:
            other = SIZE[1 - SIZE.index(along)]
            for value in sorted({getattr(size, other) for size in self.sizes}):
                line = sorted(size for size in self.sizes if getattr(size, other) == value)
                if len(line) > 1:
                    found.append((along, value, self._reigns(line, along)))
        return found

    def _reigns(self, line: Sequence[Size], along: str) -> list[PeakRange]:
        found: list[PeakRange] = []
        for size in line:
            at: int = getattr(size, along)
            phase = self.peak_phase(size, found[-1].phase if found else None)
            if found and found[-1].phase == phase:
                found[-1] = found[-1]._replace(last=at)
            else:
                found.append(PeakRange(phase, at, at, self.rows[0]["kind"]))
        beyond = self._taken_over(line[-1], found[-1].phase, along)
        return found + ([] if beyond is None else [beyond])

    def _taken_over(self, last: Size, reigning: PhaseKey, along: str) -> PeakRange | None:
        """The next phase with the peak by the fits, from where it has it."""
        end = FARTHEST * getattr(last, along)
        found = None
        for phase in self.fits:
            low, high = getattr(last, along), end
            if phase == reigning or not self._is_above(phase, reigning, last._replace(**{along: end})):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                above = self._is_above(phase, reigning, last._replace(**{along: middle}))
                low, high = (low, middle) if above else (middle, high)
            if found is None or high < found.first:
                found = PeakRange(phase, high, None, CALCULATED)
        return found

    def _is_above(self, phase: PhaseKey, other: PhaseKey, size: Size) -> bool:
        mine, theirs = self._calculated(phase, size), self._calculated(other, size)
        if isinstance(mine, NotFitted) or isinstance(theirs, NotFitted):
            return False
        return mine > theirs + UNSTEADY.get(self.counter, 0)

    def _calculated(self, phase: PhaseKey, size: Size) -> float | NotFitted:
        found = self.fits[phase]
        return found if isinstance(found, NotFitted) else found.at(size)

    def size(self, asked: Mapping[str, int]) -> Size:
        """A size of which only what was varied has to be said. Raises Mistake."""
        values = {}
        for key in SIZE:
            there = sorted({getattr(size, key) for size in self.sizes})
            if key not in asked and len(there) > 1:
                raise Mistake(f"--at: {key} was varied too, from {there[0]} to {there[-1]}: say which")
            values[key] = asked.get(key, there[0])
        return Size(**values)

    def at(self, size: Size) -> dict[str, Any]:
        """What the fits say of a size, phase by phase, and which of them has the peak there."""
        told = {phase: self._calculated(phase, size) for phase in self.fits}
        known = {phase: int(found) for phase, found in told.items() if not isinstance(found, NotFitted)}
        missing = {phase: found.because for phase, found in told.items() if isinstance(found, NotFitted)}
        top = max(known, key=lambda phase: known[phase], default=None)
        inside = all(fit.holds(size) for fit in self.fits.values() if isinstance(fit, MemoryFit)) and bool(known)
        measured = {phase: of[size] for phase, of in self.peaks.items() if size in of}
        return {
            **size._asdict(),
            "kind": CALCULATED,
            "within_what_was_measured": inside,
            "peak_phase": None if top is None else top.phase,
            "peak_bytes": None if top is None else known[top],
            "is_a_lower_bound": bool(missing),
            "measured_peak_bytes": max(measured.values(), default=None),
            "phases": [
                {"phase": phase.phase, "phase_device": phase.device, "bytes": known.get(phase)}
                | {"because": missing.get(phase)}
                for phase in self.fits
            ],
        }

    def shares(self) -> list[Share]:
        """What the measured peak of the largest point is made of, the largest part first."""
        size = self.largest
        if size is None:
            return []
        phase = self.peak_phase(size)
        peak, found = self.peaks[phase][size], self.fits[phase]
        held = self.held(size)
        parts = []
        if isinstance(found, MemoryFit) and (cost := found.costs["fixed"]) <= peak:
            parts.append(("fixed costs", round(cost), CALCULATED, f"the fit of {phase.phase}"))
        elif held is not None:
            parts.append(("fixed costs", held, self.rows[0]["kind"], "held when a warm pass begins"))
        else:
            return []
        grows = peak - parts[0][1]
        cache = self._cache(size, phase)
        if cache is not None and cache <= grows:
            parts.append(("cache", cache, self.rows[0]["kind"], f"cache_bytes of {phase.phase}"))
            grows -= cache
        logits = self.logits(size, phase)
        if logits is not None and logits[0] <= grows:
            parts.append(("logits", logits[0], CALCULATED, logits[1]))
            grows -= logits[0]
        parts.append(("activations", grows, CALCULATED, "the peak less the other parts"))
        levers = LEVERS | LEVERS_OF.get(str(self.rows[0]["workload"]), {})
        shares = [Share(of, part, part / peak if peak else 0.0, kind, by, levers[of]) for of, part, kind, by in parts]
        return sorted(shares, key=lambda share: -share.bytes)

    def held(self, size: Size) -> int | None:
        """What is held when the first warm pass begins, at a size that was measured."""
        warm = (phase for phase in self._phases(self.whole[size]) if phase["phase"].startswith("warm_"))
        first = next(warm, None)
        found: int | None = None if first is None else first[f"baseline_{self.counter}_bytes"]
        return found

    def logits(self, size: Size, phase: PhaseKey) -> tuple[int, str] | None:
        """Bytes of one copy of the logits of every token, and how that is calculated; None where there is none.

        How many copies a loss keeps alive is not known here, so that their share is at least this.
        """
        vocabulary = ((self.config.get("model") or {}).get("config") or {}).get("vocab_size")
        bits = DTYPE_BITS.get(self.rows[0].get("compute_dtype") or self.rows[0]["dtype"])
        if not isinstance(vocabulary, int) or bits is None or not self._has_all_logits(phase):
            return None
        count = size.batch * size.context * vocabulary * bits // 8
        tokens = f"{size.batch} samples x {size.context} tokens"
        return count, f"one copy: {tokens} x vocab_size {vocabulary} x {bits // 8} bytes"

    def _has_all_logits(self, phase: PhaseKey) -> bool:
        """Whether a phase could hold logits of every token: a model passes in it, and not for the last ones alone."""
        if self.rows[0]["workload"] == "generate":
            return phase.phase.endswith("prefill") and self.config["workload"].get("logits") == "all"
        return phase.phase.endswith(("forward", "loss", "backward", "warmup", "evaluation", "whole"))

    def _cache(self, size: Size, phase: PhaseKey) -> int | None:
        told = [json.loads(p["metrics"] or "{}") for p in self._phases(self.whole[size]) if p["phase"] == phase.phase]
        held = told[-1].get("cache_bytes_on_device", told[-1].get("cache_bytes")) if told else None
        return held if isinstance(held, int) else None

    def _phases(self, row: Row) -> Sequence[Row]:
        return self.of_attempt.get((row["point_id"], row["device"]), ())


LEVERS = {
    "fixed costs": "another precision of the weights (dtype, quantize)",
    "activations": "shorter (context), a smaller batch",
    "logits": "the last ones only, or taken in chunks",
    "cache": "a shorter context, fewer at once (batch, workload.concurrency), another kind (workload.cache)",
}
LEVERS_OF = {
    "train": {
        "fixed costs": "an adapter (workload.method=lora), another precision (dtype, workload.precision, quantize)",
        "activations": "shorter (context), a smaller batch (workload.accumulate), workload.checkpointing=true",
        "logits": "a loss in chunks",
    },
    "generate": {"logits": "workload.logits=last"},
}


def families(points: Sequence[Row], phases: Iterable[Row]) -> list[Family]:
    """The points by what they have in common beside batch and context; one for each counter that was read."""
    of_attempt = _phases_of(points, phases)
    together: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in points:
        together[row["device"], row["kind"], rest_of(row, SIZE)].append(row)
    found = []
    for (device, _, _), rows in together.items():
        seen = [Family(counter, rows, of_attempt) for counter in DECIDING.get(device, ALLOCATED)]
        found += [family for family in seen if family.peaks]
    return found


def title(family: Family, families: Sequence[Family]) -> list[str]:
    """What a family is called beside the others; on cpu with the allocator."""
    row = family.rows[0]
    swept = [name for name in row if name not in columns.FIXED]
    others = [column for column in (*VARYING, *swept) if column not in SIZE]
    apart = [column for column in others if len({_plain(each.rows[0].get(column)) for each in families}) > 1]
    always = ["allocator"] if device_named(row["device"]).is_cpu else []
    said = [str(row[name]) for name in ("device", *NAMED) if row[name] is not None]
    return said + [f"{column}={typed(row.get(column))}" for column in dict.fromkeys((*always, *apart))]


def typed(value: Any) -> str:
    """A value as a person types it."""
    return value if isinstance(value, str) else json.dumps(value)


def _size(row: Row) -> Size | None:
    batch, context = row["batch"], row["context"]
    return None if batch is None or context is None else Size(batch, context)


def _rises_above(between: Mapping[Size, int], named: Sequence[Mapping[Size, int]]) -> bool:
    """Between phases our own lines are written, which takes some pages."""
    highest = {size: max((of[size] for of in named if size in of), default=0) for size in between}
    return any(peak > highest[size] + OUR_OWN_BYTES for size, peak in between.items())
