"""Designs that run every point: grid, axes and list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sweeper.designs.dialogue import Design
from sweeper.designs.neighbours import Choice, Neighbours
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.plan import Dimension, Plan, PlannedPoint


def grid(plan: Plan, *_: Any) -> Design:
    """Every combination, the first dimension outermost, each point one step in one dimension from the one before it."""
    return _each(plan, boustrophedon(plan.dimensions))


def axes(plan: Plan, *_: Any) -> Design:
    """The first value of every dimension, then each dimension varied alone from there."""
    return _each(plan, star(plan.dimensions))


def listed(plan: Plan, *_: Any) -> Design:
    """The points as they are listed."""
    return _each(plan, plan.design_options["points"])


def _each(plan: Plan, choices: Iterable[Choice]) -> Design:
    """All points, `repeat_points` times. Two attempts at one point have all others between them."""
    for dimension in plan.dimensions:
        if isinstance(dimension.values, Interval):
            key = dimension.key
            raise Mistake(
                f"{key}={dimension.values}: design={plan.design} lists its values, as in {key}=1,2,4;"
                " design=frontier searches an interval"
            )
    batch = plan.first_batch or planned(plan, choices)
    for nth in range(1, plan.run.repeat_points + 1):
        yield [replace(each, nth=nth) for each in batch]


def boustrophedon(dimensions: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Every combination. Each row runs against the one before it, so that only one dimension changes at a time."""
    if not dimensions:
        return [{}]
    first, *rest = dimensions
    rows = boustrophedon(rest)
    walk = []
    for turn, value in enumerate(first.values):
        walk += [{first.key: value, **row} for row in (rows if turn % 2 == 0 else reversed(rows))]
    return walk


def star(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    base = {dimension.key: dimension.values[0] for dimension in dimensions}
    yield base
    for dimension in dimensions:
        yield from ({**base, dimension.key: value} for value in dimension.values[1:])


def planned(plan: Plan, choices: Iterable[Choice]) -> list[PlannedPoint]:
    """The points of the choices without repetitions, each with its nearest neighbour among those before it."""
    neighbours = Neighbours(plan)
    batch: dict[str, PlannedPoint] = {}
    for choice in choices:
        each = neighbours.of(choice)
        batch.setdefault(each.point.id, each)
    return list(batch.values())
