"""Every point with what was estimated, what was calculated and what was measured of it, side by side. Pure.

Three kinds, which are never added to one another and never averaged. An error is how much one figure is above another
(below, if it is negative), of one point, and only where both count the same bytes:

    an estimate  against the bytes of tensors that were measured: `tensor` on cpu, `requested` on CUDA
    calculated   against what was measured under the same counter's name
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.device import MEASURED, device_named
from sweeper.estimates.estimate import Estimate, estimate
from sweeper.rows import Row

COUNTERS = ("tensor", "requested", "allocated", "reserved", "used", "resident")
OF_TENSORS = ("tensor", "requested")  # bytes of tensors as they were asked for, before any rounding
# `used` has the context of one card in it, and `resident` the process: no two kinds of device have the same of either.
COMPARED = ("tensor", "requested", "allocated", "reserved")
ESTIMATED = "estimate"
WITHOUT_AN_END = "what it would take on a device without an end"
PARTIAL = "partial: it did not come to its end"
NEEDS = (
    *("point_id", "device", "kind", "status", "config", "peak_is_partial", "unlimited_peak_bytes", "environment_id"),
    *(f"peak_{counter}_bytes" for counter in COUNTERS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The highest of one counter on one device. `note`: what keeps it from being a whole peak."""

    kind: str
    device: str | None
    counter: str
    bytes: int
    status: str | None = None
    note: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the peak of a workload that came to its end, if only on a device without one."""
        return self.note in (None, WITHOUT_AN_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How much one figure of a point is above what was measured of it."""

    of: Figure
    measured: Figure

    @property
    def bytes(self) -> int:
        return self.of.bytes - self.measured.bytes

    @property
    def hundredths_of_percent(self) -> int:
        """Of what was measured, rounded half away from zero. Whole numbers all the way."""
        size = (20_000 * abs(self.bytes) + self.measured.bytes) // (2 * self.measured.bytes)
        return size if self.bytes >= 0 else -size


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparison:
    """One point. `silent`: the devices that gave no figure, and how their attempts ended."""

    point_id: str
    config: Mapping[str, Any]
    estimate: Estimate
    figures: tuple[Figure, ...]
    errors: tuple[Deviation, ...]
    silent: Mapping[str, str]


def comparisons(rows: Iterable[Row]) -> Iterator[PointComparison]:
    """Rows of points.parquet, each device's; the points in the order of their first."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        points.setdefault(row["point_id"], []).append(row)
    for id, of_point in points.items():
        config = json.loads(of_point[0]["config"])
        found = estimate(config)
        counted = [figure for row in of_point for figure in _figures(row)]
        figures = [*_estimated(found), *sorted(counted, key=lambda figure: figure.kind)]
        told = {figure.device for figure in figures}
        yield PointComparison(
            point_id=id,
            config=config,
            estimate=found,
            figures=tuple(figures),
            errors=tuple(_errors(figures)),
            silent={row["device"]: row["status"] for row in of_point if row["device"] not in told},
        )


def _estimated(found: Estimate) -> Iterator[Figure]:
    if found.at_least is not None:
        moment, count = found.at_least
        yield Figure(kind=ESTIMATED, device=None, counter=f"terms in {moment}", bytes=count)


def _figures(row: Row) -> Iterator[Figure]:
    deciding = device_named(row["device"]).deciding_counter
    for counter in COUNTERS:
        peak = row[f"peak_{counter}_bytes"]
        note = PARTIAL if row["peak_is_partial"] or row["status"] != "ok" else None
        if note and counter == deciding and row["unlimited_peak_bytes"] is not None:
            peak, note = row["unlimited_peak_bytes"], WITHOUT_AN_END
        if peak is not None:
            yield Figure(
                kind=row["kind"], device=row["device"], counter=counter, bytes=peak, status=row["status"], note=note
            )


def _errors(figures: Sequence[Figure]) -> Iterator[Deviation]:
    """Each figure that was not measured, against each that was and counts the same."""
    measured = [each for each in figures if each.kind == MEASURED and each.note is None and each.bytes]
    for figure in figures:
        if figure.kind == MEASURED or not figure.is_whole:
            continue
        for other in measured:
            counts_the_same = other.counter == figure.counter and figure.counter in COMPARED
            if counts_the_same or (figure.kind == ESTIMATED and other.counter in OF_TENSORS):
                yield Deviation(of=figure, measured=other)
