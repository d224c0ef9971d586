"""How many points were asked for, did not tell, and are implied by nothing. Of an interval they are counted, and never
written out. Pure.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from runners.point import Point, canonical
from sweeper.frontier.margins import without
from sweeper.interval import Interval
from sweeper.plan_lines import SearchedLine

At = tuple[float, ...]
Values = Sequence[float]

MOST_VALUES = 1 << 20  # of several intervals that overlap, written out; beyond, the longest is counted


@dataclass(frozen=True, slots=True)
class SearchedValues:
    """What a sweep asked of one search with an interval in it: a point of it, and the values of each dimension."""

    point: Point
    dimensions: Mapping[str, Values]

    def rest(self, along: Sequence[str]) -> str:
        return without(canonical(self.point.values), along)

    def lattice(self, along: Sequence[str]) -> tuple[Values, ...] | None:
        """The values of each of these keys; of one that had no several, its own."""
        values = [self.dimensions.get(key, (self.point.get(key),)) for key in along]
        return None if any(None in each for each in values if not isinstance(each, Interval)) else tuple(values)


def searched_in(line: SearchedLine) -> SearchedValues:
    """As a line of plan.jsonl has it."""
    values = {each.key: each.values for each in line.dimensions}
    ascending = {key: each if isinstance(each, Interval) else tuple(sorted(each)) for key, each in values.items()}
    return SearchedValues(Point(values=line.values), ascending)


@dataclass(frozen=True)
class OpenValues:
    """Points of one search, by their values in its dimensions."""

    lattices: Sequence[Sequence[Values]]  # what was asked for beyond the points that have a row
    fits: Sequence[At]  # imply what is smaller
    fails: Sequence[At]  # imply what is larger
    told: Iterable[At]  # whatever they told
    silent: Iterable[At]  # have a row, and did not tell

    def __len__(self) -> int:
        return self.count()

    def count(self, above: At | None = None, below: At | None = None) -> int:
        """How many there are; as large as one point or larger, as small as one or smaller."""
        alone = sum(
            (above is None or _at_least(at, above)) and (below is None or _at_least(below, at)) for at in self._alone
        )
        return alone + sum(column.count(self._axis, above, below) for column in self._columns)

    @cached_property
    def _axis(self) -> int:
        """The dimension that columns run along: the one with the most values."""
        lengths = [max(len(lattice[place]) for lattice in self.lattices) for place in range(len(self.lattices[0]))]
        return lengths.index(max(lengths))

    @cached_property
    def _alone(self) -> list[At]:
        """Those with a row that lie on no lattice."""
        return [
            at
            for at in self.silent
            if not any(all(map(_has, lattice, at)) for lattice in self.lattices)
            and not any(_at_least(at, failing) for failing in self.fails)
            and not any(_at_least(fitting, at) for fitting in self.fits)
        ]

    @cached_property
    def _columns(self) -> list[Column]:
        """Those in which a level is open."""
        if not self.lattices:
            return []
        axis = self._axis
        values: dict[At, list[Values]] = defaultdict(list)
        for lattice in self.lattices:
            for others in product(*_but(lattice, axis)):
                if lattice[axis] not in values[others]:
                    values[others].append(lattice[axis])
        told: dict[At, list[float]] = defaultdict(list)
        for at in self.told:
            told[_but(at, axis)].append(at[axis])
        fits = [(_but(at, axis), at[axis]) for at in self.fits]
        fails = [(_but(at, axis), at[axis]) for at in self.fails]
        columns = []
        for others, asked in values.items():
            low = max((level for at, level in fits if _at_least(at, others)), default=-math.inf)
            high = min((level for at, level in fails if _at_least(others, at)), default=math.inf)
            column = Column(others, _apart(asked), low, high, sorted(set(told.get(others, ()))))
            if column.count(axis):
                columns.append(column)
        return columns


class Column(NamedTuple):
    """What differs in one dimension alone: the values that were asked for, and those between which they are open."""

    others: At
    asked: Sequence[Values]
    low: float
    high: float
    told: Sequence[float]

    def count(self, axis: int, above: At | None = None, below: At | None = None) -> int:
        first, last = -math.inf, math.inf
        if above is not None:
            if not _at_least(self.others, _but(above, axis)):
                return 0
            first = above[axis]
        if below is not None:
            if not _at_least(_but(below, axis), self.others):
                return 0
            last = below[axis]
        told = [each for each in self._open(self.told, first, last) if any(_has(asked, each) for asked in self.asked)]
        return _together([self._open(asked, first, last) for asked in self.asked]) - len(told)

    def _open(self, values: Values, first: float, last: float) -> Slice:
        start = max(bisect.bisect_right(values, self.low), bisect.bisect_left(values, first))
        stop = min(bisect.bisect_left(values, self.high), bisect.bisect_right(values, last))
        return Slice(values, start, max(start, stop))


class Slice(Sequence[float]):
    """Some of the values, one after another."""

    def __init__(self, values: Values, start: int, stop: int) -> None:
        self._values, self._places = values, range(start, stop)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: Any) -> Any:
        return self._values[self._places[at]]


def _together(parts: Sequence[Slice]) -> int:
    """How many different values they have."""
    if len(parts) == 1 or sum(map(len, parts)) > MOST_VALUES:
        return max(map(len, parts))
    return len({value for part in parts for value in part})


def _apart(asked: Sequence[Values]) -> list[Values]:
    """Without those that another one has all of: a wider interval of the same resolution."""
    return [
        one
        for one in asked
        if not any(other is not one and len(other) > len(one) and _has_all(other, one) for other in asked)
    ]


def _has_all(values: Values, others: Values) -> bool:
    if isinstance(others, Interval):
        alike = isinstance(values, Interval) and values.resolution == others.resolution
        return alike and _has(values, others.low) and _has(values, others.high)
    return all(_has(values, each) for each in others)


def _has(values: Values, value: float) -> bool:
    at = bisect.bisect_left(values, value)
    return at < len(values) and values[at] == value


def _but(each: Sequence[Any], place: int) -> tuple[Any, ...]:
    return (*each[:place], *each[place + 1 :])


def _at_least(one: At, other: At) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True))
