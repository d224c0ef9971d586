"""Planned points that are neither decided nor implied. Those of an interval are counted without listing them."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from runners.point import Point
from sweeper.frontier.evidence import At, Evidence, but, covers
from sweeper.interval import Interval
from sweeper.plan_lines import SearchedLine
from sweeper.requested import Settings, rest

Values = Sequence[float]

MOST_VALUES = 1 << 20  # of overlapping intervals, compared one by one; beyond that only the longest counts


@dataclass(frozen=True, slots=True)
class SearchedValues:
    """One search of a sweep that has an interval: a point of it with its settings, the values of each dimension."""

    point: Point
    dimensions: Mapping[str, Values]
    settings: Settings = field(default_factory=dict)

    def rest(self, along: Sequence[str]) -> str:
        return rest(self.point.values, self.settings, along)

    def lattice(self, along: Sequence[str]) -> tuple[Values, ...] | None:
        """The values of each of these keys, one value for a key that was not swept; None if a key has no value."""
        values = [self.dimensions.get(key, (self.point.get(key),)) for key in along]
        return None if any(None in each for each in values if not isinstance(each, Interval)) else tuple(values)


def searched_in(line: SearchedLine) -> SearchedValues:
    """As a line of plan.jsonl has it."""
    values = {each.key: each.values for each in line.dimensions}
    ascending = {key: each if isinstance(each, Interval) else tuple(sorted(each)) for key, each in values.items()}
    return SearchedValues(Point(values=line.values), ascending, line.settings)


@dataclass(frozen=True)
class OpenValues:
    """Points of one group, by their values in its dimensions."""

    lattices: Sequence[Sequence[Values]]  # the searched values, most of which have no row
    evidence: Evidence
    decided: Iterable[At]
    undecided: Iterable[At]  # points with a row

    def __len__(self) -> int:
        return self.count()

    def count(self, above: At | None = None, below: At | None = None) -> int:
        """The number of open points; those that cover one point, or that another one covers."""
        alone = sum((above is None or covers(at, above)) and (below is None or covers(below, at)) for at in self._alone)
        return alone + sum(column.count(self._axis, above, below) for column in self._columns)

    @cached_property
    def _axis(self) -> int:
        """The dimension with the most values, along which the columns run."""
        lengths = [max(len(lattice[axis]) for lattice in self.lattices) for axis in range(len(self.lattices[0]))]
        return lengths.index(max(lengths))

    @cached_property
    def _alone(self) -> list[At]:
        """The open points that lie on no lattice."""
        lattices = self.lattices
        alone = (at for at in self.undecided if not any(all(map(_has, lattice, at)) for lattice in lattices))
        return [at for at in alone if self.evidence.implied(at) is None]

    @cached_property
    def _columns(self) -> list[Column]:
        """The columns that have open values."""
        if not self.lattices:
            return []
        axis = self._axis
        values: dict[At, list[Values]] = defaultdict(list)
        for lattice in self.lattices:
            for others in product(*lattice[:axis], *lattice[axis + 1 :]):
                if lattice[axis] not in values[others]:
                    values[others].append(lattice[axis])
        decided: dict[At, set[float]] = defaultdict(set)
        for at in self.decided:
            decided[but(at, axis)].add(at[axis])
        found = []
        for others, several in values.items():
            low, high = self.evidence.bounds(axis, others)
            column = Column(others, _without_contained(several), low, high, sorted(decided.get(others, ())))
            if column.count(axis):
                found.append(column)
        return found


class Column(NamedTuple):
    """Points that differ in one dimension only: their values, and the bounds between which these are open."""

    others: At
    values: Sequence[Values]
    low: float | None
    high: float | None
    decided: Sequence[float]

    def count(self, axis: int, above: At | None = None, below: At | None = None) -> int:
        first, last = -math.inf, math.inf
        if above is not None:
            if not covers(self.others, but(above, axis)):
                return 0
            first = above[axis]
        if below is not None:
            if not covers(but(below, axis), self.others):
                return 0
            last = below[axis]
        decided = [each for each in self._open(self.decided, first, last) if any(_has(v, each) for v in self.values)]
        return _number_of_values([self._open(values, first, last) for values in self.values]) - len(decided)

    def _open(self, values: Values, first: float, last: float) -> Slice:
        start, stop = bisect.bisect_left(values, first), bisect.bisect_right(values, last)
        if self.low is not None:
            start = max(start, bisect.bisect_right(values, self.low))
        if self.high is not None:
            stop = min(stop, bisect.bisect_left(values, self.high))
        return Slice(values, start, max(start, stop))


class Slice(Sequence[float]):
    """A range of values that is not copied."""

    def __init__(self, values: Values, start: int, stop: int) -> None:
        self._values, self._places = values, range(start, stop)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: Any) -> Any:
        return self._values[self._places[at]]


def _number_of_values(parts: Sequence[Slice]) -> int:
    """The number of different values in all parts."""
    if len(parts) == 1 or sum(map(len, parts)) > MOST_VALUES:
        return max(map(len, parts))
    return len({value for part in parts for value in part})


def _without_contained(several: Sequence[Values]) -> list[Values]:
    """The values without those that another one contains, such as a wider interval of the same resolution."""
    return [
        one
        for one in several
        if not any(other is not one and len(other) > len(one) and _has_all(other, one) for other in several)
    ]


def _has_all(values: Values, others: Values) -> bool:
    if isinstance(others, Interval):
        alike = isinstance(values, Interval) and values.resolution == others.resolution
        return alike and _has(values, others.low) and _has(values, others.high)
    return all(_has(values, each) for each in others)


def _has(values: Values, value: float) -> bool:
    at = bisect.bisect_left(values, value)
    return at < len(values) and values[at] == value
