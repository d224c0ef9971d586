"""For each point of a design, the earlier point that is nearest to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runners.point import Point, canonical
from sweeper.plan import Plan, PlannedPoint, follows

Choice = Mapping[str, Any]  # a value for each dimension


class Neighbours:
    """The points planned so far for one device, with their values in each dimension."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keys = [dimension.key for dimension in plan.dimensions]
        self._earlier: dict[str, list[str]] = {}  # point id -> its value in each dimension

    def of(self, choice: Choice, nth: int = 1) -> PlannedPoint:
        """The point of a choice, with its nearest earlier point if this is the first attempt at it."""
        point = self._plan.settle(choice)
        if point.id in self._earlier:
            return PlannedPoint(point=point, nth=nth)
        values = [canonical(self._requested(key, choice, point)) for key in self._keys]
        nearest, changed = self._nearest(values)
        self._earlier[point.id] = values
        return PlannedPoint(point=point, changed_from=nearest, changed=tuple(self._keys[at] for at in changed), nth=nth)

    def _requested(self, key: str, choice: Choice, point: Point) -> Any:
        """The value of a key as it settled, or the expression by which it follows others: that does not change."""
        return choice[key] if follows(choice.get(key)) else point.get(key)

    def _nearest(self, values: Sequence[str]) -> tuple[str | None, Sequence[int]]:
        """The latest of the points that differ in the fewest dimensions, and the places of these dimensions."""
        nearest: str | None = None
        fewest: Sequence[int] = ()
        for point_id in reversed(self._earlier):
            there = self._earlier[point_id]
            changed = [place for place in range(len(values)) if values[place] != there[place]]
            if nearest is None or len(changed) < len(fewest):
                nearest, fewest = point_id, changed
            if len(fewest) <= 1:
                break
        return nearest, fewest
