"""The effect of each dimension: rows of points.parquet and phases.parquet in, differences and costs out. Pure.

measured     the difference between two neighbours: points that differ by one step of one dimension;
             the phase that has the peak of a point
calculated   everything from a fit to the measured peaks (memory_fit.py), also within the measured range

Points that did not pass completely are left out: their peaks are too small. On a calculated device everything is
calculated, and its rows are never compared with those of a measured device.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from runners.device import CALCULATED, Device, device_named
from runners.journal import BETWEEN, QUALITY
from runners.outcome import OUR_OWN_BYTES, Status
from sweeper import columns
from sweeper.columns import NAMED
from sweeper.effects.memory_fit import MemoryFit, NotFitted, Size, fit_memory
from sweeper.errors import Mistake
from sweeper.estimates.memory_terms import DTYPE_BITS
from sweeper.plan import typed_value
from sweeper.requested import rest_of, settings_text, value_in
from sweeper.rows import Row
from sweeper.settled_keys import has_key, without_followers
from sweeper.units import format_count

PEAKS = tuple(column.name for column in columns.PEAKS if column.name.startswith("peak_") and column.unit == "bytes")
# A phase takes over the peak if it exceeds it by more: resident memory repeats to 0.3-1.7 MiB at best.
UNSTEADY = {"resident": 2 * 2**20}
FARTHEST = 8  # fits are extrapolated up to this multiple of the largest measured size; tested at 1.2 to 9
SIZE = ("batch", "context")

NEEDS = (
    *("unlimited_peak_bytes", "settings"),
    *("run", "point_id", "device", "kind", "attempt"),
    *(column.name for column in columns.DIMENSIONS),
    *("config", "order", "changed", "status", "fits", "flaky", "contaminated", "failed_phase"),
    *("handled_refusals", "error_type", "error_message", "compute_dtype", "attention_used", "tokens"),
    *(*PEAKS, "peak_is_partial"),
)
NEEDS_OF_PHASES = (
    *("point_id", "device", "attempt", "phase_device", "phase", "run_index", "elapsed_s", "metrics"),
    *(f"{moment}_{name}_bytes" for moment in ("baseline", "peak") for name in ("allocated", "tensor", "resident")),
)


# --- neighbours -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The effect of one step of one dimension. A difference that is not known is None, with the reason in `because`."""

    device: str
    kind: str
    dimension: str
    step: tuple[Any, Any]
    at: Mapping[str, Any]  # the other dimensions
    points: tuple[str, str]
    bytes: Mapping[str, int | None]  # by column of points.parquet
    seconds: float | None  # the change of a warm repeat's duration
    seconds_spread: float | None  # between the repeats of one point, of both points the larger; None with one repeat
    time_of: str | None  # the phases that the duration is the sum of
    because: Mapping[str, str]  # by column, or `seconds`


def differences(points: Sequence[Row], phases: Iterable[Row]) -> list[Difference]:
    """The difference of every pair of neighbours, larger less smaller, dimension by dimension."""
    dimensions = dimensions_of(points)
    phases_of = _phases_of(points, phases)
    configs = [json.loads(row["config"]) for row in points]
    return [
        _difference(key, pair, dimensions, phases_of)
        for key in dimensions
        for pair in _neighbours(points, key, dimensions, _following(key, configs))
    ]


def dimensions_of(points: Sequence[Row]) -> list[str]:
    """The keys that the plan varied, and those of batch, context and the swept keys that differ between its sweeps."""
    swept = [name.removeprefix("dim.") for name in (points[0] if points else {}) if name not in columns.FIXED]
    found = [key for changed in {row["changed"]: None for row in points} for key in (changed or "").split(",") if key]
    keys = dict.fromkeys((*SIZE, *swept, *found))
    return [key for key in keys if _differs(value_in(row, key) for row in points)]


def _differs(values: Iterator[Any]) -> bool:
    first = _plain(next(values, None))
    return any(_plain(value) != first for value in values)


def _plain(value: Any) -> str:
    return json.dumps(value)  # keeps 1, true and 1.0 distinct


def _following(key: str, configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The keys that change along with a dimension: the passes of a workload, and keys that are null without effect."""
    if key == "workload":
        return ("warmup", "repeats")
    if not key.startswith("workload."):
        return ()
    leaves = (leaf for config in configs for leaf in (config.get("workload") or {}).items())
    return tuple(dict.fromkeys(f"workload.{name}" for name, value in leaves if value is None))


def _neighbours(
    points: Sequence[Row], key: str, dimensions: Sequence[str], following: Sequence[str]
) -> Iterator[tuple[Row, Row]]:
    others = [other for other in dimensions if other != key]
    lines: dict[tuple[str, ...], dict[str, Row]] = defaultdict(dict)
    for row in points:
        rest = rest_of(row, (key, *following))
        same = (row["device"], row["kind"], rest, *(_plain(value_in(row, other)) for other in others))
        lines[same].setdefault(_plain(value_in(row, key)), row)
    for line in lines.values():
        yield from pairwise(sorted(line.values(), key=lambda row: _place(row, key)))


def _place(row: Row, key: str) -> tuple[bool, float, int]:
    """A sort key: numbers by size, everything else in the plan's order."""
    value, order = value_in(row, key), row["order"] or 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number, float(value) if is_number else 0.0, order


def _difference(
    key: str, pair: tuple[Row, Row], dimensions: Sequence[str], phases_of: Mapping[tuple[str, str], Sequence[Row]]
) -> Difference:
    before, after = pair
    because: dict[str, str] = {}
    changes: dict[str, int | None] = {}
    for column in PEAKS:
        peaks = [peak_of(row, column) for row in pair]
        known = [peak for peak in peaks if peak is not None]
        changes[column] = known[1] - known[0] if len(known) == len(pair) else None
        without = [row for row, peak in zip(pair, peaks, strict=True) if peak is None]
        reason = next(filter(None, (why_not(row, of) for of in ("", column) for row in without)), None)
        because |= {column: reason} if reason else {}
    times = [warm_repeat(row, phases_of.get((row["point_id"], row["device"]), ())) for row in pair]
    reason = next((time for time in times if isinstance(time, str)), None)
    seconds, spread, time_of = None, None, None
    if reason is None:
        (first, time_of), (second, other) = (time for time in times if not isinstance(time, str))
        if time_of == other:
            seconds = second - first
            spread = max_spread([phases_of.get((row["point_id"], row["device"]), ()) for row in pair])
        else:
            reason, time_of = f"different phases: {time_of} and {other}", None
    return Difference(
        device=before["device"],
        kind=before["kind"],
        dimension=key,
        step=(value_in(before, key), value_in(after, key)),
        at={other: value_in(before, other) for other in dimensions if other != key},
        points=(before["point_id"], after["point_id"]),
        bytes=changes,
        seconds=seconds,
        seconds_spread=spread,
        time_of=time_of,
        because=because | ({"seconds": reason} if reason else {}),
    )


def peak_of(row: Row, column: str) -> int | None:
    """A row's complete peak in bytes, None if it is not known.

    A refused point has one on a calculated device, in the deciding counter: its peak with unlimited memory.
    """
    deciding = f"peak_{device_named(row['device']).deciding_counter}_bytes"
    unlimited: int | None = row.get("unlimited_peak_bytes") if column == deciding else None
    peak: int | None = row[column]
    return unlimited if unlimited is not None or why_not(row, column) else peak


def why_not(row: Row, column: str = "") -> str | None:
    """Why a row's peak is not known, or None if it is known."""
    if row["status"] != Status.OK.value:
        phase = f" in {row['failed_phase']}" if row["failed_phase"] else ""
        return f"{row['status']}{phase}" + (": its peak is partial" if row["peak_is_partial"] else "")
    if row["peak_is_partial"]:
        return "a phase did not complete or was not read whole: its peak is partial"
    if row["handled_refusals"]:
        return "the workload was refused memory and continued"
    if row["flaky"]:
        return "it passes only sometimes"
    if column == "peak_used_bytes" and row["contaminated"]:
        return "another process was on the device"
    if column and row[column] is None:
        return "not read"
    return None


def warm_repeat(row: Row, phases: Sequence[Row]) -> tuple[float, str] | str:
    """The seconds of one warm repeat with the phases they are the sum of, or why there is no such time."""
    if row["kind"] == CALCULATED:
        return "a calculated device has no times"
    reason = why_not(row)
    if reason is not None:
        return reason
    device = phases[0]["phase_device"] if phases else None  # every device has a row with the same time
    warm = [p for p in phases if p["phase"].startswith("warm_") and p["run_index"] is not None]
    warm = [phase for phase in warm if phase["phase_device"] == device]
    if not warm or any(phase["elapsed_s"] is None for phase in warm):
        return "no phase named warm_... has a time"
    repeats = len({phase["run_index"] for phase in warm})
    names = " + ".join(dict.fromkeys(phase["phase"] for phase in warm))
    total = sum(phase["elapsed_s"] for phase in warm)
    return total / repeats, names + (f", mean of {repeats} repeats" if repeats > 1 else "")


def warm_repeats(phases: Sequence[Row]) -> list[float]:
    """The seconds of each warm repeat, of which `warm_repeat` is the mean. Every phase of them has a time."""
    found: dict[int, float] = defaultdict(float)
    for phase in phases:
        is_warm = phase["phase"].startswith("warm_") and phase["run_index"] is not None
        if is_warm and phase["phase_device"] == phases[0]["phase_device"]:
            found[phase["run_index"]] += phase["elapsed_s"]
    return list(found.values())


def max_spread(of_points: Iterable[Sequence[Row]]) -> float | None:
    """The seconds between the shortest and the longest warm repeat, the most of the points.

    None if a point has one repeat. The phases are of points for which `warm_repeat` found a time.
    """
    repeats = [warm_repeats(phases) for phases in of_points]
    if any(len(each) < 2 for each in repeats):
        return None
    return max((max(each) - min(each) for each in repeats), default=None)


def _phases_of(points: Sequence[Row], phases: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The phases of the attempts that count, in order."""
    counting = {(row["point_id"], row["device"]): row["attempt"] for row in points}
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for phase in phases:
        key = (phase["point_id"], phase["device"])
        if phase["phase"] != QUALITY and counting.get(key, -1) == phase["attempt"]:
            found[key].append(phase)
    return found


# --- points that differ in batch and context only ---------------------------------------------------------------------


class PhaseKey(NamedTuple):
    """A phase on one of the attempt's devices."""

    phase: str
    device: str


class PeakRange(NamedTuple):
    """The values of a dimension over which a phase has the peak. `last` is None for a calculated range beyond them."""

    phase: PhaseKey
    first: int
    last: int | None
    kind: str


class Share(NamedTuple):
    """A part of a measured peak: what it is, and how it is known."""

    of: str
    bytes: int
    share: float
    kind: str
    known_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPeak:
    """The peaks of a size by the fits of each phase: whole bytes, or why there are none."""

    size: Size
    phases: Mapping[PhaseKey, int | NotFitted]
    is_within_measured: bool
    measured_bytes: int | None

    @property
    def peak_phase(self) -> PhaseKey | None:
        known = {phase: bytes for phase, bytes in self.phases.items() if not isinstance(bytes, NotFitted)}
        return max(known, key=lambda phase: known[phase], default=None)

    @property
    def bytes(self) -> int | None:
        peaks = (peak for peak in self.phases.values() if not isinstance(peak, NotFitted))
        return max(peaks, default=None)

    @property
    def is_lower_bound(self) -> bool:
        return any(isinstance(peak, NotFitted) for peak in self.phases.values())


@dataclass(frozen=True)
class Family:
    """Points on one device that differ in batch and context only, by one counter."""

    counter: str
    rows: Sequence[Row]
    phases_of: Mapping[tuple[str, str], Sequence[Row]]

    @cached_property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rows[0]["config"])
        return found

    @cached_property
    def passed(self) -> dict[Size, Row]:
        """The points that passed completely, by size."""
        return {size: row for row in self.rows if (size := _size(row)) is not None and why_not(row) is None}

    @cached_property
    def left_out(self) -> dict[str, int]:
        """The number of points that are left out, by reason."""
        reasons = [why_not(row) or ("it has no batch or context" if _size(row) is None else None) for row in self.rows]
        return dict(Counter(reason for reason in reasons if reason))

    @cached_property
    def peaks(self) -> dict[PhaseKey, dict[Size, int]]:
        """The measured peak of every phase in bytes, of all its repeats. `between` only if it has a point's peak."""
        found: dict[PhaseKey, dict[Size, int]] = defaultdict(dict)
        for size, row in self.passed.items():
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
        # The attention that the layers call: a model without another kind is eager even if the key requests one.
        used = (row["attention_used"] or self.config.get("attention") or "" for row in self.passed.values())
        eager = any("eager" in attention for attention in used)
        return {phase: fit_memory(of, eager) for phase, of in self.peaks.items()}

    @cached_property
    def sizes(self) -> list[Size]:
        return sorted({size for of in self.peaks.values() for size in of})

    @cached_property
    def largest(self) -> Size | None:
        """The size with the most tokens of those that passed."""
        return max(self.sizes, key=lambda size: (size.batch * size.context, size), default=None)

    def peak_phase(self, size: Size, before: PhaseKey | None = None) -> PhaseKey:
        """The phase with the measured peak. `before` keeps the peak unless another phase is clearly above it."""
        there = {phase: of[size] for phase, of in self.peaks.items() if size in of}
        top = max(there, key=lambda phase: there[phase])
        if before in there and there[top] - there[before] <= UNSTEADY.get(self.counter, 0):
            return before
        return top

    def peak_ranges(self) -> list[tuple[str, int, list[PeakRange]]]:
        """For each dimension and each value of the other one: the phases that have the peak, by range.

        The last range may be calculated: beyond the measured sizes, where another phase takes over by the fits.
        """
        found = []
        for along in SIZE:
            other = SIZE[1 - SIZE.index(along)]
            for value in sorted({getattr(size, other) for size in self.sizes}):
                line = sorted(size for size in self.sizes if getattr(size, other) == value)
                if len(line) > 1:
                    found.append((along, value, self._ranges(line, along)))
        return found

    def _ranges(self, line: Sequence[Size], along: str) -> list[PeakRange]:
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

    def _taken_over(self, last: Size, highest: PhaseKey, along: str) -> PeakRange | None:
        """The first phase that takes over the peak beyond the measured sizes, by the fits."""
        end = FARTHEST * getattr(last, along)
        found = None
        for phase in self.fits:
            low, high = getattr(last, along), end
            if phase == highest or not self._is_above(phase, highest, last._replace(**{along: end})):
                continue
            while high - low > 1:
                middle = (low + high) // 2
                above = self._is_above(phase, highest, last._replace(**{along: middle}))
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

    def size(self, given: Mapping[str, int]) -> Size:
        """The given size, completed by keys that were not varied. Raises Mistake if a varied key is missing."""
        values = {}
        for key in SIZE:
            measured = sorted({getattr(size, key) for size in self.sizes})
            if key not in given and len(measured) > 1:
                raise Mistake(f"--at: {key} was varied too, from {measured[0]} to {measured[-1]}: give it a value")
            values[key] = given.get(key, measured[0])
        return Size(**values)

    def at(self, size: Size) -> PredictedPeak:
        """The peaks that the fits give for a size."""
        found = {phase: self._calculated(phase, size) for phase in self.fits}
        phases = {phase: peak if isinstance(peak, NotFitted) else int(peak) for phase, peak in found.items()}
        is_known = any(not isinstance(peak, NotFitted) for peak in phases.values())
        measured = [of[size] for of in self.peaks.values() if size in of]
        return PredictedPeak(
            size=size,
            phases=phases,
            is_within_measured=is_known and all(f.holds(size) for f in self.fits.values() if isinstance(f, MemoryFit)),
            measured_bytes=max(measured, default=None),
        )

    def shares(self) -> list[Share]:
        """The parts of the largest point's measured peak, the largest part first; none if fixed costs are not known."""
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
        shares = [Share(of, part, part / peak if peak else 0.0, kind, by) for of, part, kind, by in parts]
        return sorted(shares, key=lambda share: -share.bytes)

    def held(self, size: Size) -> int | None:
        """Bytes held when the first warm pass begins, at a measured size."""
        warm = (phase for phase in self._phases(self.passed[size]) if phase["phase"].startswith("warm_"))
        first = next(warm, None)
        found: int | None = None if first is None else first[f"baseline_{self.counter}_bytes"]
        return found

    def logits(self, size: Size, phase: PhaseKey) -> tuple[int, str] | None:
        """Bytes of one copy of the logits of every token, with the calculation; None if the phase does not hold them.

        It is a lower bound: how many copies a loss keeps alive is not known here.
        """
        vocabulary = ((self.config.get("model") or {}).get("config") or {}).get("vocab_size")
        bits = DTYPE_BITS.get(self.rows[0].get("compute_dtype") or self.rows[0]["dtype"])
        if not isinstance(vocabulary, int) or bits is None or not self._has_all_logits(phase):
            return None
        samples, tokens = self._of_a_pass(size, phase)
        count = samples * tokens * vocabulary * bits // 8
        positions = f"{format_count(samples, 'sample')} x {format_count(tokens, 'token')}"
        return count, f"one copy: {positions} x vocab_size {vocabulary} x {bits // 8} bytes"

    def _of_a_pass(self, size: Size, phase: PhaseKey) -> tuple[int, int]:
        """The samples and tokens that the model runs at once: a microbatch in training, a chunk of prompts."""
        workload = self.config["workload"]
        is_training = workload["name"] == "train" and not phase.phase.endswith("evaluation")
        if is_training:
            return max(1, size.batch // (workload.get("accumulate") or 1)), size.context
        rows, tokens = size
        if workload.get("packing") == "packed":  # all prompts in one row
            rows, tokens = 1, size.batch * size.context
        chunk = workload.get("prefill_chunk")
        if chunk is not None and workload.get("cache") == "paged":  # of all prompts together
            rows = max(1, min(rows, chunk // tokens))
        return rows, min(tokens, chunk or tokens)

    def _has_all_logits(self, phase: PhaseKey) -> bool:
        """Whether a phase runs the model for the logits of every token, not only of the last."""
        if self.rows[0]["workload"] == "generate":
            return phase.phase.endswith("prefill") and self.config["workload"].get("logits") == "all"
        return phase.phase.endswith(("forward", "loss", "backward", "warmup", "evaluation", "whole"))

    def _cache(self, size: Size, phase: PhaseKey) -> int | None:
        if self.rows[0]["workload"] == "custom":  # its metrics are the user's
            return None
        metrics = [
            json.loads(p["metrics"] or "{}") for p in self._phases(self.passed[size]) if p["phase"] == phase.phase
        ]
        last = metrics[-1] if metrics else {}
        held = last.get("cache_bytes_on_device", last.get("cache_bytes"))
        return held if isinstance(held, int) else None

    def _phases(self, row: Row) -> Sequence[Row]:
        return self.phases_of.get((row["point_id"], row["device"]), ())


def families(points: Sequence[Row], phases: Iterable[Row]) -> list[Family]:
    """The points grouped by everything but batch and context, one family for each counter that was read."""
    phases_of = _phases_of(points, phases)
    together: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in points:
        together[row["device"], row["kind"], rest_of(row, SIZE)].append(row)
    found = []
    for (device, _, _), rows in together.items():
        seen = [Family(counter, rows, phases_of) for counter in _fitted_counters(device_named(device))]
        found += [family for family in seen if family.peaks]
    return found


def _fitted_counters(device: Device) -> tuple[str, ...]:
    """The counters that costs are fitted to, the most useful first.

    On cpu `tensor` is exact and holds nothing but the workload; `resident` is nearest to the limit of a budget. On a
    GPU `reserved` grows in jumps.
    """
    return ("tensor", "resident") if device.is_cpu else (device.deciding_counter,)


def title(family: Family, families: Sequence[Family]) -> list[str]:
    """The values that name a family: those in which it differs from the others, and those that are not defaults."""
    row = family.rows[0]
    others = [name.removeprefix("dim.") for name in row if columns.is_key(name) and name not in (*NAMED, *SIZE)]
    apart = [key for key in others if len({_plain(value_in(each.rows[0], key)) for each in families}) > 1]
    apart = without_followers(apart, (each.rows[0]["config"] for each in families))
    named = dict.fromkeys((*(["allocator"] if device_named(row["device"]).is_cpu else []), *apart))
    names = [str(row[name]) for name in ("device", *NAMED) if row[name] is not None]
    named = {key: None for key in named if has_key(row["config"], key)}
    names += [f"{key}={typed_value(key, value_in(row, key))}" for key in named]
    return names + settings_text(row, (*named, *SIZE))


def _size(row: Row) -> Size | None:
    batch, context = row["batch"], row["context"]
    return None if batch is None or context is None else Size(batch, context)


def _rises_above(between: Mapping[Size, int], named: Sequence[Mapping[Size, int]]) -> bool:
    """Whether `between` has a peak of its own: more than the pages that writing our own lines takes."""
    highest = {size: max((of[size] for of in named if size in of), default=0) for size in between}
    return any(peak > highest[size] + OUR_OWN_BYTES for size, peak in between.items())
