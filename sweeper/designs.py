"""Which points are asked for, and in which order.

A design is a dialogue without I/O: a generator that yields batches of points and is sent the outcomes of each batch, in
the same order. Every device gets a dialogue of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from runners.outcome import Outcome
from runners.point import canonical
from sweeper.plan import Asked, Dimension, Plan

Choice = Mapping[str, Any]  # a value for each dimension
Design = Generator[list[Asked], list[Outcome], None]


def grid(plan: Plan) -> Design:
    """Every combination, the first dimension outermost, each point one step in one dimension from the one before it."""
    yield asked(plan, boustrophedon(plan.dimensions))


def axes(plan: Plan) -> Design:
    """The first value of every dimension, then each dimension varied alone from there."""
    yield asked(plan, star(plan.dimensions))


def listed(plan: Plan) -> Design:
    """The points as they were written out."""
    yield asked(plan, plan.design_options["points"])


DESIGNS: Mapping[str, Callable[[Plan], Design]] = {"grid": grid, "axes": axes, "list": listed}


def boustrophedon(dimensions: Sequence[Dimension]) -> list[dict[str, Any]]:
    """As the ox ploughs: where a row ends the next begins, so that only one dimension moves at a time."""
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


def asked(plan: Plan, choices: Iterable[Choice]) -> list[Asked]:
    """The points of the choices, each point once, each with its nearest neighbour among those before it."""
    keys = [dimension.key for dimension in plan.dimensions]
    earlier: dict[str, list[str]] = {}  # point id -> its value in each dimension
    batch = []
    for choice in choices:
        point = plan.settle(choice)
        if point.id not in earlier:
            values = [canonical(point.get(key)) for key in keys]
            neighbour, changed = _nearest(values, earlier)
            batch.append(Asked(point=point, changed_from=neighbour, changed=tuple(keys[place] for place in changed)))
            earlier[point.id] = values
    return batch


def _nearest(values: Sequence[str], earlier: dict[str, list[str]]) -> tuple[str | None, Sequence[int]]:
    """The one that differs in the fewest dimensions, and in which; of several, the latest."""
    nearest: str | None = None
    fewest: Sequence[int] = ()
    for point_id in reversed(earlier):
        there = earlier[point_id]
        changed = [place for place in range(len(values)) if values[place] != there[place]]
        if nearest is None or len(changed) < len(fewest):
            nearest, fewest = point_id, changed
        if len(fewest) <= 1:
            break
    return nearest, fewest
