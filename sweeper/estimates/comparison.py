"""Compare the estimated, the calculated and the measured memory of each point. Pure.

The three kinds are never added and never averaged. An error is the difference between a figure of a point and a
measured one, negative if the figure is smaller, and only between figures that count the same bytes:

    estimate    less the measured bytes of tensors: `tensor` on cpu, `requested` on CUDA
    calculated  less the measured counter of the same name
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
OF_TENSORS = ("tensor", "requested")  # bytes of tensors before any rounding
# Without `used` and `resident`: they include the card's context and the process, which differ between devices.
COMPARED = ("tensor", "requested", "allocated", "reserved")
ESTIMATED = "estimate"
UNLIMITED = "with unlimited memory"
PARTIAL = "partial: the attempt did not finish, or was not read whole"
NEEDS = (
    *(
        "point_id",
        "device",
        "kind",
        "status",
        "handled_refusals",
        "config",
        "peak_is_partial",
        "unlimited_peak_bytes",
        "environment_id",
    ),
    *(f"peak_{counter}_bytes" for counter in COUNTERS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The peak of one counter on one device, in bytes. `note` qualifies a figure that is not a plain peak."""

    kind: str
    device: str | None
    counter: str
    bytes: int
    status: str | None = None
    note: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the peak of a workload that finished, or would finish with unlimited memory."""
        return self.note in (None, UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The difference between a figure of a point and a measured one."""

    of: Figure
    measured: Figure

    @property
    def bytes(self) -> int:
        return self.of.bytes - self.measured.bytes

    @property
    def hundredths_of_percent(self) -> int:
        """The difference in hundredths of a percent of the measured bytes, rounded half away from zero."""
        size = (20_000 * abs(self.bytes) + self.measured.bytes) // (2 * self.measured.bytes)
        return size if self.bytes >= 0 else -size


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparison:
    """One point. `without_figures`: the devices that have no figure, with their status."""

    point_id: str
    config: Mapping[str, Any]
    estimate: Estimate
    figures: tuple[Figure, ...]
    errors: tuple[Deviation, ...]
    without_figures: Mapping[str, str]


def comparisons(rows: Iterable[Row]) -> Iterator[PointComparison]:
    """The comparison of each point, in the order of their first rows. `rows`: those of points.parquet."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        points.setdefault(row["point_id"], []).append(row)
    for id, of_point in points.items():
        config = json.loads(of_point[0]["config"])
        found = estimate(config)
        counted = [figure for row in of_point for figure in _figures(row)]
        figures = [*_estimated(found), *sorted(counted, key=lambda figure: figure.kind)]
        with_figures = {figure.device for figure in figures}
        yield PointComparison(
            point_id=id,
            config=config,
            estimate=found,
            figures=tuple(figures),
            errors=tuple(_errors(figures)),
            without_figures={row["device"]: row["status"] for row in of_point if row["device"] not in with_figures},
        )


def _estimated(found: Estimate) -> Iterator[Figure]:
    if found.at_least is not None:
        moment, count = found.at_least
        yield Figure(kind=ESTIMATED, device=None, counter=f"terms in {moment}", bytes=count)


def _figures(row: Row) -> Iterator[Figure]:
    deciding = device_named(row["device"]).deciding_counter
    for counter in COUNTERS:
        peak = row[f"peak_{counter}_bytes"]
        note = PARTIAL if row["peak_is_partial"] or row["handled_refusals"] or row["status"] != "ok" else None
        if note and counter == deciding and row["unlimited_peak_bytes"] is not None:
            peak, note = row["unlimited_peak_bytes"], UNLIMITED
        if peak is not None:
            yield Figure(
                kind=row["kind"], device=row["device"], counter=counter, bytes=peak, status=row["status"], note=note
            )


def _errors(figures: Sequence[Figure]) -> Iterator[Deviation]:
    """Each estimated or calculated figure with each measured one that counts the same bytes."""
    measured = [each for each in figures if each.kind == MEASURED and each.note is None and each.bytes]
    for figure in figures:
        if figure.kind == MEASURED or not figure.is_whole:
            continue
        for other in measured:
            counts_the_same = other.counter == figure.counter and figure.counter in COMPARED
            if counts_the_same or (figure.kind == ESTIMATED and other.counter in OF_TENSORS):
                yield Deviation(of=figure, measured=other)
