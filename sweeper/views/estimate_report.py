"""`estimate KEY=VALUE,...`: a plan and its arithmetic, before anything runs, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runners.point import Attempt, AttemptFolder, Point, canonical
from sweeper.designs.dialogue import NOTHING
from sweeper.designs.registry import DESIGNS
from sweeper.estimates.estimate import Estimate, estimate
from sweeper.estimates.memory_terms import MOMENTS
from sweeper.plan import Plan, PlannedPoint
from sweeper.run_folder import POINTS
from sweeper.units import format_both, format_count
from sweeper.views.layout import assignments, indent, more, term_lines

Group = tuple[Estimate, list[Point]]  # points with the same estimate

FAMILY = ("model", "workload", "dtype")
LISTED = 40  # points on the screen; --json has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """The first batch of a plan. `measured`: (point id, device) of attempts that have ended in the run it extends."""

    plan: Plan
    planned: Sequence[PlannedPoint]
    measured: Set[tuple[str, str]]
    groups: Sequence[Group]


def plan_estimate(plan: Plan) -> PlanEstimate:
    """The first batch of the plan's design, which is all of it unless the design searches. Starts nothing."""
    planned = list(next(iter(DESIGNS[plan.design](plan, NOTHING)), []))
    points = [each.point for each in planned]
    return PlanEstimate(plan=plan, planned=planned, measured=_measured(plan, points), groups=_grouped(points))


def _measured(plan: Plan, points: Iterable[Point]) -> set[tuple[str, str]]:
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
    """Whether any attempt ended. Attempts are numbered from 1 without a gap; one that was cut off is made again."""
    attempt = first
    while (found := AttemptFolder(folder / attempt.name)).path.exists():
        if found.exit.exists():
            return True
        attempt = replace(attempt, number=attempt.number + 1)
    return False


def _grouped(points: Iterable[Point]) -> list[Group]:
    """Points with the same estimate together, in the order of the first of each."""
    groups: dict[str, Group] = {}
    for point in points:
        found = estimate(point.values)
        key = canonical([*(point[key] for key in FAMILY), estimate_as_json(found)])
        groups.setdefault(key, (found, []))[1].append(point)
    return list(groups.values())


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(found: PlanEstimate) -> str:
    return "\n".join([*_plan_lines(found), *_estimate_lines(found)])


def _plan_lines(found: PlanEstimate) -> Iterator[str]:
    plan, planned = found.plan, found.planned
    names = [device.name for device in plan.devices]
    measured = sum((each.point.id, name) in found.measured for each in planned for name in names)
    yield (
        f"plan: {format_count(len(planned), 'point')} x {format_count(len(names), 'device')} ({', '.join(names)}),"
        f" design {plan.design}, {measured} of {len(planned) * len(names)} have a result already"
    )
    yield from (
        f"  {device.name} is unavailable: {device.unavailable}" for device in plan.devices if device.unavailable
    )
    if plan.design in ("frontier", "levers"):
        yield "  these are the first points; the next ones depend on how they end"
    keys = [dimension.key for dimension in plan.dimensions]
    for order, each in enumerate(planned[:LISTED], 1):
        already = [name for name in names if (each.point.id, name) in found.measured]
        note = f"  has a result on {', '.join(already)}" if already else ""
        yield f"  {order:>4}  {_values(each.point, keys or _named(each.point))}{note}"
    yield from indent(more(len(planned), LISTED), 8)


def _named(point: Point) -> list[str]:
    """The keys that name a point where none was swept."""
    return [key for key in (*FAMILY, "batch", "context") if point.get(key) is not None]


def _estimate_lines(found: PlanEstimate) -> Iterator[str]:
    """For each model, workload and dtype: the terms of the largest point, and the lower bound of each point."""
    keys = [dimension.key for dimension in found.plan.dimensions]
    settings = found.plan.settler.settings
    for family in _families(found.groups):
        points = [point for _, points in family for point in points]
        shared = [key for key in keys if len({canonical(point.get(key)) for point in points}) == 1]
        differing = [key for key in keys if key not in shared and key not in FAMILY]
        fixed = (key for key in settings.get(points[0].id, {}) if key not in keys)
        heading = [key for key in dict.fromkeys([*FAMILY, *shared, *fixed]) if points[0].get(key) is not None]
        largest, points_of_largest = max(family, key=lambda group: _size(group[0]))
        yield ""
        heading += [key for key in ("batch", "context") if len(points) == 1 and key not in heading]
        yield f"estimate: {_values(points[0], heading)} ({format_count(len(points), 'point')})"
        if len(family) > 1:
            yield f"  {_values(points_of_largest[0], differing)}, the largest:"
        yield from indent(_term_lines(largest))
        if len(family) > 1:
            yield "  lower bound of each point:"
            yield from indent(_lower_bound_lines(family[:LISTED], differing), 4)
        yield from indent(more(len(family), LISTED), 4)
    yield ""
    yield "calculated; nothing was run. Temporaries, inputs, rounding and the device's context are not included."


def _families(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(canonical([group[1][0].get(key) for key in FAMILY]), []).append(group)
    return list(found.values())


def _size(found: Estimate) -> tuple[int, int]:
    """The bytes of the highest moment, then the sum over all moments, which decides between equal ones."""
    return max(found.together.values(), default=0), sum(found.together.values())


def _term_lines(found: Estimate) -> Iterator[str]:
    width = max(10, *(len(term.term) for term in found.terms), 0)
    yield from term_lines(found.terms, width)
    if found.at_least is not None:
        highest, count = found.at_least
        if len(found.together) > 1:
            yield "alive together:"
            for moment, held in found.together.items():
                yield f"  {moment:<{width - 2}} {format_both(held)}, {MOMENTS[moment]}"
        yield f"{'at least':<{width}} {format_both(count)}, {MOMENTS[highest]}"
    yield from found.not_estimated


def _lower_bound_lines(family: Sequence[Group], differing: Sequence[str]) -> Iterator[str]:
    """A line for each estimate, with the values of its first point."""
    for found, points in family:
        others = f" and {format_count(len(points) - 1, 'point')} alike" if len(points) > 1 else ""
        if found.at_least is not None:
            moment, count = found.at_least
            yield f"{_values(points[0], differing)}{others}: {format_both(count)}, in {moment}"


def _values(point: Point, keys: Iterable[str]) -> str:
    return assignments({key: point.get(key) for key in keys})


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(found: PlanEstimate) -> dict[str, Any]:
    devices = found.plan.devices
    return {
        "design": found.plan.design,
        "devices": [
            {"device": device.name, "kind": device.type, "unavailable": device.unavailable} for device in devices
        ],
        "points": [
            {
                "order": order,
                "id": each.point.id,
                "changed_from": each.changed_from,
                "changed": list(each.changed),
                "measured": [device.name for device in devices if (each.point.id, device.name) in found.measured],
                "values": each.point.values,
            }
            for order, each in enumerate(found.planned)
        ],
        "estimates": [
            {"points": [point.id for point in points], **estimate_as_json(each)} for each, points in found.groups
        ],
    }


def estimate_as_json(found: Estimate) -> dict[str, Any]:
    highest, count = found.at_least or (None, None)
    return {
        "terms": [asdict(term) for term in found.terms],
        "together_bytes": found.together,
        "at_least_bytes": count,
        "at_least_in": highest,
        "not_estimated": list(found.not_estimated),
    }
