"""Each point as it was estimated, calculated and measured, in figures that count the same bytes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runners.device import MEASURED
from sweeper.estimates.comparison import COMPARED, Deviation, Figure, comparisons
from sweeper.rows import Row

MOST_POINTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """`figures` in the order of the table's devices; None where a device has none of the point."""

    point_id: str
    at: str
    estimate: Figure | None
    figures: Sequence[Figure | None]
    errors: Sequence[Deviation]  # between these figures

    @property
    def known(self) -> Sequence[Figure]:
        """The figures that are whole."""
        found = [figure for figure in (self.estimate, *self.figures) if figure is not None]
        return [figure for figure in found if figure.is_whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`devices`: each with its kind, calculated ones first."""

    devices: Sequence[tuple[str, str]]
    rows: Sequence[ComparedRow]
    hidden: int


def compared(points: Sequence[Row], at: Mapping[str, str], edge: Collection[str]) -> Compared:
    """The points that devices of most kinds tried, those at the `edge` first among equals."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for row in points:
        if row.get("peak_bytes") is not None and not row.get("peak_is_partial"):
            kinds[row["point_id"]].add(row["kind"])
    chosen = sorted(kinds, key=lambda point: (-len(kinds[point]), point not in edge))[:MOST_POINTS]
    kept = [row for row in points if row["point_id"] in set(chosen)]
    devices = sorted({(row["device"], row["kind"]) for row in kept}, key=lambda each: (each[1] == MEASURED, each[0]))
    rows = []
    for point in comparisons(kept):
        figures = [_alike(point.figures, device) for device, _ in devices]
        estimate = next((figure for figure in point.figures if figure.device is None), None)
        errors = [error for error in point.errors if error.of in (estimate, *figures) and error.measured in figures]
        rows.append(
            ComparedRow(
                point_id=point.point_id, at=at[point.point_id], estimate=estimate, figures=figures, errors=errors
            )
        )
    return Compared(devices=devices, rows=rows, hidden=len({row["point_id"] for row in points}) - len(rows))


def _alike(figures: Sequence[Figure], device: str) -> Figure | None:
    """A device's figure in the first of the counters that are compared."""
    own = {figure.counter: figure for figure in figures if figure.device == device}
    return next((own[counter] for counter in COMPARED if counter in own), None)
