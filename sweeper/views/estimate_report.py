"""What `estimate` shows: a plan with its arithmetic before anything runs, and a run with all three kinds beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import Any

from runners.device import CALCULATED, MEASURED
from runners.point import Attempt, AttemptFolder, Point, canonical
from sweeper.errors import Mistake
from sweeper.estimates.comparison import NEEDS, Deviation, Figure, PointComparison, comparisons
from sweeper.estimates.estimate import Estimate, estimate
from sweeper.estimates.memory_terms import MOMENTS
from sweeper.plan import Plan, PlannedPoint, typed
from sweeper.run_folder import POINTS
from sweeper.units import format_both, format_count

Group = tuple[Estimate, list[Point]]  # points with one and the same estimate

FAMILY = ("model", "workload", "dtype")
LISTED = 40  # points on the screen; --json has all of them


def main(plan: Plan, json: bool = False) -> int:
    """Show what would be run, in its order, and the arithmetic of it. Starts nothing."""
    asked = plan.first_batch
    done = _measured(plan, [each.point for each in asked])
    groups = _alike([each.point for each in asked])
    if json:
        print(dumps(_plan_as_json(plan, asked, done, groups)))
    else:
        print("\n".join([*_plan_lines(plan, asked, done), *_estimate_lines(plan, groups)]))
    return 0


def _measured(plan: Plan, points: Iterable[Point]) -> set[tuple[str, str]]:
    """(point id, device) of what has ended already, in the run that `name` would extend."""
    if plan.run.name is None:
        return set()
    folder = Path(plan.run.outputs).expanduser() / plan.run.name / POINTS
    return {
        (point.id, device.name)
        for point in points
        for device in plan.devices
        if _has_ended(folder, Attempt(point=point, device=device))
    }


def _has_ended(folder: Path, first: Attempt) -> bool:
    """Whether any attempt ended: they are numbered from 1 without a gap, and one that was cut off is made again."""
    attempt = first
    while (there := AttemptFolder(folder / attempt.name)).path.exists():
        if there.settled() is not None:
            return True
        attempt = replace(attempt, number=attempt.number + 1)
    return False


def _alike(points: Iterable[Point]) -> list[Group]:
    """Points with one and the same estimate, together, in the order they are met."""
    groups: dict[str, Group] = {}
    for point in points:
        found = estimate(point.values)
        key = canonical([*(point[key] for key in FAMILY), _as_json(found)])
        groups.setdefault(key, (found, []))[1].append(point)
    return list(groups.values())


def _plan_lines(plan: Plan, asked: Sequence[PlannedPoint], done: Set[tuple[str, str]]) -> Iterator[str]:
    names = [device.name for device in plan.devices]
    measured = sum((each.point.id, name) in done for each in asked for name in names)
    yield (
        f"plan: {format_count(len(asked), 'point')} x {format_count(len(names), 'device')} ({', '.join(names)}),"
        f" design {plan.design}, {measured} of {len(asked) * len(names)} measured already"
    )
    yield from (
        f"  {device.name} is unavailable: {device.unavailable}" for device in plan.devices if device.unavailable
    )
    if plan.design == "frontier":
        yield "  these are the first it asks for; the rest depends on how they end"
    keys = [dimension.key for dimension in plan.dimensions]
    for order, each in enumerate(asked[:LISTED], 1):
        there = [name for name in names if (each.point.id, name) in done]
        note = f"  measured on {', '.join(there)}" if there else ""
        yield f"  {order:>4}  {_told(each.point, keys) or each.point.id}{note}"
    if len(asked) > LISTED:
        yield f"        and {len(asked) - LISTED:,} more: --json lists every one"


def _estimate_lines(plan: Plan, groups: Sequence[Group]) -> Iterator[str]:
    """Of each model, workload and dtype the terms of the largest point, and what each point takes at least."""
    keys = [dimension.key for dimension in plan.dimensions]
    for family in _families(groups):
        points = [point for _, points in family for point in points]
        shared = [key for key in keys if len({canonical(point.get(key)) for point in points}) == 1]
        differing = [key for key in keys if key not in shared and key not in FAMILY]
        heading = [key for key in dict.fromkeys([*FAMILY, *shared]) if points[0].get(key) is not None]
        largest, of_it = max(family, key=lambda group: _size(group[0]))
        yield ""
        yield f"estimate: {_told(points[0], heading)} ({format_count(len(points), 'point')})"
        if len(family) > 1:
            yield f"  {_told(of_it[0], differing)}, the largest:"
        yield from (f"  {line}" for line in _lines(largest))
        if len(family) > 1:
            yield "  at least, of each:"
            yield from (f"    {line}" for line in _at_least_lines(family[:LISTED], differing))
        if len(family) > LISTED:
            yield f"    and {len(family) - LISTED:,} more: --json has every one"
    yield ""
    yield "calculated, nothing was run. Temporaries, inputs, rounding and the device's context are not in it."


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(canonical([group[1][0].get(key) for key in FAMILY]), []).append(group)
    return list(found.values())


def _size(found: Estimate) -> tuple[int, int]:
    """The highest moment; of points that are equal in it, the one with most in the others."""
    return max(found.together.values(), default=0), sum(found.together.values())


def _at_least_lines(family: Sequence[Group], differing: Sequence[str]) -> Iterator[str]:
    """Points with one estimate together, told by the first of them."""
    for found, points in family:
        more = f" and {format_count(len(points) - 1, 'point')} alike" if len(points) > 1 else ""
        if found.at_least is not None:
            moment, count = found.at_least
            yield f"{_told(points[0], differing)}{more}: {format_both(count)}, in {moment}"


def _plan_as_json(
    plan: Plan,
    asked: Sequence[PlannedPoint],
    done: Set[tuple[str, str]],
    groups: Sequence[Group],
) -> dict[str, Any]:
    return {
        "design": plan.design,
        "devices": [
            {"device": device.name, "kind": device.type, "unavailable": device.unavailable} for device in plan.devices
        ],
        "points": [
            {
                "order": order,
                "id": each.point.id,
                "changed_from": each.changed_from,
                "changed": list(each.changed),
                "measured": [device.name for device in plan.devices if (each.point.id, device.name) in done],
                "values": each.point.values,
            }
            for order, each in enumerate(asked)
        ],
        "estimates": [{"points": [point.id for point in points], **_as_json(found)} for found, points in groups],
    }


def _told(point: Point, keys: Iterable[str]) -> str:
    return " ".join(f"{key}={typed(point.get(key))}" for key in keys)


# --- a run ------------------------------------------------------------------------------------------------------------

HEADS = ("kind", "device", "counter", "peak", "above what was measured")
NEVER_ADDED = (
    "estimate, calculated and measured are three kinds: never added, never averaged. An estimate is of the terms that"
    " have a closed form, those alive together added: at least so much, without temporaries, inputs and rounding. An"
    " error is of one point, between figures that count the same bytes; against an estimate those of tensors."
)


def is_run(arguments: Sequence[str]) -> bool:
    """Whether a folder was named, and no key."""
    return any("=" not in argument and not argument.startswith(("-", "+", "~")) for argument in arguments)


def of_run(arguments: Sequence[str], json: bool = False) -> int:
    """`estimate RUN [--json]`: each point as it was estimated, calculated and measured, and how far apart that is."""
    if len(arguments) != 1:
        raise Mistake(f"estimate takes keys or one run, the folder of a sweep, got {' '.join(arguments)}")
    from sweeper import columns
    from sweeper.tables import loading

    folder = loading.run_folder(arguments[0])
    found = loading.read(folder)
    points = found["points"]
    swept = [name for name in points.column_names if name not in columns.FIXED]
    usual = [column.name for column in columns.DIMENSIONS]
    rows = points.select([*NEEDS, *usual, *swept]).to_pylist()
    environment = found["environment"].select(["environment_id", "device_name"]).to_pylist()
    names = {row["environment_id"]: row["device_name"] for row in environment}
    devices = {row["device"]: names.get(row["environment_id"]) for row in rows if row["environment_id"]}
    at = {row["point_id"]: {key: row[key] for key in (*usual, *swept) if row[key] is not None} for row in rows}
    every = list(comparisons(rows))
    if json:
        print(dumps({"run": folder.name, "devices": devices, "points": [_joined_as_json(each, at) for each in every]}))
    else:
        print("\n".join(_run_lines(folder.name, every, devices, at)))
    return 0


def _run_lines(
    run: str, every: Sequence[PointComparison], devices: Mapping[str, str | None], at: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    keys = list(dict.fromkeys(key for values in at.values() for key in values))
    differing = [key for key in keys if len({canonical(values.get(key)) for values in at.values()}) > 1]
    shared = [key for key in ("model", "workload", "dtype", "batch", "context") if key in keys and key not in differing]
    first: Mapping[str, Any] = next(iter(at.values()), {})
    yield f"{run}: {format_count(len(every), 'point')}, {' '.join(f'{key}={typed(first[key])}' for key in shared)}"
    yield from (f"  {device} is {name}" for device, name in devices.items() if name)
    for each in every[:LISTED]:
        yield ""
        yield " ".join(f"{key}={typed(at[each.point_id].get(key))}" for key in differing) or each.point_id
        yield from _aligned([HEADS, *(_row(figure, each.errors) for figure in each.figures)])
        yield from (f"  {device}: {status}" for device, status in each.without_figures.items())
    if len(every) > LISTED:
        yield f"and {len(every) - LISTED:,} more points: --json has every one"
    yield ""
    yield from dict.fromkeys(reason for each in every for reason in each.estimate.not_estimated)
    yield NEVER_ADDED


def _row(figure: Figure, errors: Sequence[Deviation]) -> tuple[str, ...]:
    said = [
        f"{error.bytes:+,} bytes = {_percent(error)} of {error.measured.device} {error.measured.counter}"
        for error in errors
        if error.of == figure
    ]
    note = [] if figure.note is None else [f"({figure.note})"]
    return figure.kind, figure.device or "", figure.counter, format_both(figure.bytes), "; ".join([*note, *said])


def _percent(error: Deviation) -> str:
    hundredth = error.hundredths_of_percent
    return f"{'-' if hundredth < 0 else '+'}{abs(hundredth) // 100}.{abs(hundredth) % 100:02d} %"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))).rstrip()


def _joined_as_json(each: PointComparison, at: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "id": each.point_id,
        "at": at[each.point_id],
        "estimate": _as_json(each.estimate),
        **{
            kind: [
                {
                    "device": figure.device,
                    "status": figure.status,
                    "counter": figure.counter,
                    "peak_bytes": figure.bytes,
                    "note": figure.note,
                }
                for figure in each.figures
                if figure.kind == kind
            ]
            for kind in (CALCULATED, MEASURED)
        },
        "errors": [
            {
                "of": error.of.kind,
                "device": error.of.device,
                "against": error.measured.device,
                "counter": error.measured.counter,
                "bytes": error.bytes,
                "measured_bytes": error.measured.bytes,
                "percent": error.hundredths_of_percent / 100,
            }
            for error in each.errors
        ],
        "without_a_figure": dict(each.without_figures),
    }


# --- an estimate ------------------------------------------------------------------------------------------------------


def _lines(found: Estimate) -> Iterator[str]:
    width = max(10, *(len(term.term) for term in found.terms), 0)
    for term in found.terms:
        yield f"{term.term:<{width}} {format_both(term.bytes)}"
        yield f"{'':<{width}} = {term.formula}"
        yield f"{'':<{width}} assumed: {term.assumption}"
        yield f"{'':<{width}} source: {term.source}"
    if found.at_least is not None:
        highest, count = found.at_least
        if len(found.together) > 1:
            yield "alive together:"
            for moment, held in found.together.items():
                yield f"  {moment:<{width - 2}} {format_both(held)}, {MOMENTS[moment]}"
        yield f"{'at least':<{width}} {format_both(count)}, {MOMENTS[highest]}"
    yield from found.not_estimated


def _as_json(found: Estimate) -> dict[str, Any]:
    highest, count = found.at_least or (None, None)
    return {
        "terms": [asdict(term) for term in found.terms],
        "together_bytes": found.together,
        "at_least_bytes": count,
        "at_least_in": highest,
        "not_estimated": list(found.not_estimated),
    }
