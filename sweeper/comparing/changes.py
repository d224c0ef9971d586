"""What changed between two runs: statuses first, then peaks, then what the measurements depended on. Pure.

Two peaks are compared only if they are of one counter and both are whole. A difference within the spread of repeats of
the same point, in either run, is no change.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runners.device import CALCULATED, MEASURED, device_named
from runners.outcome import Status
from sweeper.comparing.matching import Matched, matched
from sweeper.comparing.thresholds import Threshold
from sweeper.rows import Row

# Of one attempt's own memory. `used` is of all processes on the device, `requested` a part of allocated.
COUNTERS = ("allocated", "reserved", "tensor", "resident")
UNDECIDED = tuple(
    status.value for status in (Status.NOT_RUN, Status.UNAVAILABLE, Status.INTERRUPTED, Status.LOST, Status.SKIPPED)
)
NO_LONGER_FITS, NOW_FITS, OTHER = "no longer fits", "now fits", "other"
ENVIRONMENT = (
    *("host", "system", "python", "torch", "backend", "backend_version", "driver", "threads"),
    *("device_name", "device_uuid", "device_total_bytes", "allocator_backend", "allocator_settings"),
)
FROM_RECORD = ("workload_code", "transparent_huge_pages")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A point that ended otherwise. `how`: no longer fits, now fits, or other."""

    first: Row
    second: Row
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakDifference:
    """One counter of a point in both runs, in bytes. `spread_bytes`: of repeats, the larger of both runs; None without.

    `is_change`: beyond that spread and beyond the threshold.
    """

    first: Row
    second: Row
    counter: str
    first_bytes: int
    second_bytes: int
    spread_bytes: int | None
    is_change: bool

    @property
    def bytes(self) -> int:
        return self.second_bytes - self.first_bytes

    @property
    def hundredths_of_percent(self) -> int | None:
        """In hundredths of a percent of the first run's bytes, rounded half away from zero; None if those are 0."""
        if self.first_bytes == 0:
            return None
        size = (20_000 * abs(self.bytes) + self.first_bytes) // (2 * self.first_bytes)
        return size if self.bytes >= 0 else -size


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """A property of the environments of points that are in both runs: its values in each run."""

    name: str
    first: Sequence[str]
    second: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculatedPair:
    """One counter of a point that one row calculated and the other measured.

    `across`: whether the rows are of two runs.
    """

    across: bool
    calculated: Row
    measured: Row
    counter: str
    calculated_bytes: int
    measured_bytes: int

    @property
    def bytes(self) -> int:
        return self.calculated_bytes - self.measured_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanges:
    """What changed from the first run to the second. `peaks`: every pair of whole peaks, changes first."""

    points: Matched
    statuses: Sequence[StatusChange]
    peaks: Sequence[PeakDifference]
    partial: Sequence[tuple[Row, Row]]  # shared points of which at least one peak is not whole
    environment: Sequence[EnvironmentChange]
    calculated: Sequence[CalculatedPair]

    @property
    def changed_peaks(self) -> list[PeakDifference]:
        return [each for each in self.peaks if each.is_change]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """The rows of one run's tables that a comparison needs."""

    name: str
    points: Sequence[Row]
    attempts: Sequence[Row]
    environment: Sequence[Row]
    sweeper: Sequence[str] = ()  # its versions


def changes(first: RunRows, second: RunRows, threshold: Threshold) -> RunChanges:
    found = matched(first.points, second.points)
    repeats = [_repeats(run.attempts) for run in (first, second)]
    peaks = [each for pair in found.pairs for each in _peaks(*pair, repeats, threshold)]
    return RunChanges(
        points=found,
        statuses=sorted(_statuses(found.pairs), key=lambda each: (NO_LONGER_FITS, NOW_FITS, OTHER).index(each.how)),
        peaks=sorted(peaks, key=lambda each: (not each.is_change, -abs(each.bytes) if each.is_change else 0)),
        partial=[pair for pair in found.pairs if not all(map(_is_whole, pair)) and any(map(_has_peak, pair))],
        environment=list(_environment(first, second, found.pairs)),
        calculated=list(_calculated(first.points, second.points)),
    )


def fits(row: Row) -> bool:
    """Whether a point counts as fitting: one that passes only sometimes does not."""
    return row["fits"] is True and not row.get("flaky")


def undecided(row: Row) -> bool:
    """Whether nothing was learned of a point: it had no turn, or passed and may have done less than was requested."""
    return row["status"] in UNDECIDED or (row["status"] == Status.OK.value and row["fits"] is None)


def _statuses(pairs: Iterable[tuple[Row, Row]]) -> Iterator[StatusChange]:
    for first, second in pairs:
        if (first["status"], fits(first)) == (second["status"], fits(second)):
            continue
        how = OTHER
        if fits(first) and not undecided(second) and not fits(second):
            how = NO_LONGER_FITS
        elif fits(second) and not undecided(first) and not fits(first):
            how = NOW_FITS
        yield StatusChange(first=first, second=second, how=how)


def _is_whole(row: Row) -> bool:
    return row["status"] == Status.OK.value and not row["peak_is_partial"] and not row["handled_refusals"]


def _has_peak(row: Row) -> bool:
    return row["peak_bytes"] is not None


Repeats = Mapping[tuple[str, str, str | None], Sequence[Row]]


def _repeats(attempts: Iterable[Row]) -> Repeats:
    """The attempts that passed, by point, device and environment."""
    found: dict[tuple[str, str, str | None], list[Row]] = defaultdict(list)
    for row in attempts:
        if _is_whole(row):
            found[row["point_id"], row["device"], row["environment_id"]].append(row)
    return found


def _peaks(first: Row, second: Row, repeats: Sequence[Repeats], threshold: Threshold) -> Iterator[PeakDifference]:
    if not (_is_whole(first) and _is_whole(second)):
        return
    for counter in COUNTERS:
        name = f"peak_{counter}_bytes"
        if first[name] is None or second[name] is None:
            continue
        ranges = [
            _range(name, row, of_run.get((row["point_id"], row["device"], row["environment_id"]), ()))
            for row, of_run in zip((first, second), repeats, strict=True)
        ]
        spreads = [high - low for low, high, count in ranges if count > 1]
        by = second[name] - first[name]
        apart = ranges[0][1] < ranges[1][0] or ranges[1][1] < ranges[0][0]
        beyond_spread = apart and abs(by) > max(spreads, default=0)
        yield PeakDifference(
            first=first,
            second=second,
            counter=counter,
            first_bytes=first[name],
            second_bytes=second[name],
            spread_bytes=max(spreads, default=None),
            is_change=beyond_spread and threshold.is_exceeded(first[name], by),
        )


def _range(name: str, row: Row, attempts: Sequence[Row]) -> tuple[int, int, int]:
    """The least and the largest peak of a point's repeats, and their number."""
    found = [each[name] for each in attempts if each[name] is not None] or [row[name]]
    return min(found), max(found), len(found)


def _environment(first: RunRows, second: RunRows, pairs: Sequence[tuple[Row, Row]]) -> Iterator[EnvironmentChange]:
    used = [{pair[side]["environment_id"] for pair in pairs} for side in (0, 1)]
    records = [
        [_facts(row) for row in run.environment if row["environment_id"] in ids]
        for run, ids in zip((first, second), used, strict=True)
    ]
    names = dict.fromkeys(name for side in records for record in side for name in record)
    if set(first.sweeper) != set(second.sweeper):
        yield EnvironmentChange(name="sweeper", first=sorted(first.sweeper), second=sorted(second.sweeper))
    for name in names:
        values = [sorted({record[name] for record in side if record.get(name) is not None}) for side in records]
        if values[0] != values[1]:
            yield EnvironmentChange(name=name, first=values[0], second=values[1])


def _facts(row: Row) -> dict[str, str]:
    """What a measurement depended on, one text for each name."""
    found = {name: row[name] for name in ENVIRONMENT}
    record = json.loads(row["record"] or "{}")
    found |= {name: record.get(name) for name in FROM_RECORD}
    found |= {f"library {name}": version for name, version in json.loads(row["libraries"] or "{}").items()}
    found |= {f"variable {name}": value for name, value in json.loads(row["variables"] or "{}").items()}
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in found.items()
        if value is not None
    }


def _calculated(first: Sequence[Row], second: Sequence[Row]) -> Iterator[CalculatedPair]:
    """Each calculated row with each measured one of the same point, for the same kind of memory.

    Pairs within a run come first, so that a run that is compared with itself has none across runs.
    """
    sides = [_whole_by_point(first), _whole_by_point(second)]
    seen = set()
    for here, there in ((0, 0), (1, 1), (0, 1), (1, 0)):
        for id, rows in sides[here].items():
            for calculated in (row for row in rows if row["kind"] == CALCULATED):
                for measured in (row for row in sides[there].get(id, ()) if row["kind"] == MEASURED):
                    for counter, *values in _same_counters(calculated, measured):
                        key = (id, calculated["device"], measured["device"], counter, *values)
                        if key not in seen:
                            seen.add(key)
                            yield CalculatedPair(
                                across=here != there,
                                calculated=calculated,
                                measured=measured,
                                counter=counter,
                                calculated_bytes=values[0],
                                measured_bytes=values[1],
                            )


def _whole_by_point(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if _is_whole(row):
            found[row["point_id"]].append(row)
    return found


def _same_counters(calculated: Row, measured: Row) -> Iterator[tuple[str, int, int]]:
    if device_named(calculated["device"]).stands_for(device_named(measured["device"])):
        for counter in COUNTERS:
            values = (calculated[f"peak_{counter}_bytes"], measured[f"peak_{counter}_bytes"])
            if None not in values:
                yield counter, *values
