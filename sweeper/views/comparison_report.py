"""`estimate RUN`: each point of a run as it was estimated, calculated and measured, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from runners.device import CALCULATED, MEASURED
from runners.point import canonical
from sweeper import columns
from sweeper.estimates.comparison import NEEDS, Deviation, Figure, PointComparison, comparisons
from sweeper.requested import settings_of
from sweeper.units import format_both, format_count
from sweeper.views import estimate_report
from sweeper.views.estimate_report import LISTED
from sweeper.views.layout import assignments, indent, more, signed_percent, table

HEADS = ("kind", "device", "counter", "peak", "above what was measured")
NEVER_ADDED = (
    "estimate, calculated and measured are three kinds of figures: never added, never averaged. An estimate is the sum"
    " of the terms that have a closed form and are alive together: a lower bound, without temporaries, inputs and"
    " rounding. An error compares two figures of one point that count the same bytes; an estimate is compared with the"
    " bytes of tensors."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """`devices`: the name of each device that has one. `values`: by point id, of each key that has one.

    `settings`: the keys that some point has at another value than the default.
    """

    run: str
    devices: Mapping[str, str | None]
    values: Mapping[str, Mapping[str, Any]]
    settings: Sequence[str]
    points: Sequence[PointComparison]


def run_comparison(run: str, tables: Mapping[str, pa.Table]) -> RunComparison:
    points = tables["points"]
    keys = [column.name for column in columns.DIMENSIONS]
    keys += [name for name in points.column_names if name not in columns.FIXED]
    rows = points.select([*NEEDS, "settings", *keys]).to_pylist()
    environment = tables["environment"].select(["environment_id", "device_name"]).to_pylist()
    names = {row["environment_id"]: row["device_name"] for row in environment}
    return RunComparison(
        run=run,
        devices={row["device"]: names.get(row["environment_id"]) for row in rows if row["environment_id"]},
        values={row["point_id"]: {key: row[key] for key in keys if row[key] is not None} for row in rows},
        settings=tuple(dict.fromkeys(key for row in rows for key in settings_of(row))),
        points=list(comparisons(rows)),
    )


def as_text(found: RunComparison) -> str:
    return "\n".join(_lines(found))


def _lines(found: RunComparison) -> Iterator[str]:
    keys = list(dict.fromkeys(key for values in found.values.values() for key in values))
    differing = [key for key in keys if len({canonical(values.get(key)) for values in found.values.values()}) > 1]
    named = dict.fromkeys(("model", "workload", "dtype", "batch", "context", *map(columns.column_of, found.settings)))
    shared = [key for key in named if key in keys and key not in differing]
    first: Mapping[str, Any] = next(iter(found.values.values()), {})
    yield f"{found.run}: {format_count(len(found.points), 'point')}, {assignments(first, shared)}"
    yield from (f"  {device} is {name}" for device, name in found.devices.items() if name)
    for point in found.points[:LISTED]:
        yield ""
        yield assignments(found.values[point.point_id], differing or shared)
        if point.figures:
            heads = HEADS if any(figure.kind == MEASURED for figure in point.figures) else (*HEADS[:-1], "")
            yield from indent(table([heads, *(_row(figure, point.errors) for figure in point.figures)], "<<<<<"))
        yield from (f"  {device}: {status}" for device, status in point.without_figures.items())
    yield from more(len(found.points), LISTED, "points")
    yield ""
    yield from dict.fromkeys(reason for point in found.points for reason in point.estimate.not_estimated)
    yield NEVER_ADDED


def _row(figure: Figure, errors: Sequence[Deviation]) -> tuple[str, ...]:
    deviations = [
        f"{error.bytes:+,} bytes = {signed_percent(error.hundredths_of_percent, error.bytes)}"
        f" of {error.measured.device} {error.measured.counter}"
        for error in errors
        if error.of == figure
    ]
    note = [] if figure.note is None else [f"({figure.note})"]
    return figure.kind, figure.device or "", figure.counter, format_both(figure.bytes), "; ".join([*note, *deviations])


def as_json(found: RunComparison) -> dict[str, Any]:
    points = [_point_as_json(point, found.values[point.point_id]) for point in found.points]
    return {"run": found.run, "devices": found.devices, "points": points}


def _point_as_json(point: PointComparison, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": point.point_id,
        "at": values,
        "estimate": estimate_report.estimate_as_json(point.estimate),
        **{
            kind: [_figure_as_json(figure) for figure in point.figures if figure.kind == kind]
            for kind in (CALCULATED, MEASURED)
        },
        "errors": [_error_as_json(error) for error in point.errors],
        "without_a_figure": dict(point.without_figures),
    }


def _figure_as_json(figure: Figure) -> dict[str, Any]:
    return {
        "device": figure.device,
        "status": figure.status,
        "counter": figure.counter,
        "peak_bytes": figure.bytes,
        "note": figure.note,
    }


def _error_as_json(error: Deviation) -> dict[str, Any]:
    return {
        "of": error.of.kind,
        "device": error.of.device,
        "against": error.measured.device,
        "counter": error.measured.counter,
        "bytes": error.bytes,
        "measured_bytes": error.measured.bytes,
        "percent": error.hundredths_of_percent / 100,
    }
