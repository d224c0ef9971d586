"""Conclusions from measured points about others, assuming that memory never decreases along a dimension. Pure.

A point that fits implies that everything smaller fits, and a point that fails implies that everything larger fails.
The search, the edges of a table and the count of open values all draw their conclusions here.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from operator import ge, neg

At = tuple[float, ...]  # the value of a point in each dimension, or its place among the values

# Keys, by the last part of their name, whose larger values never take less memory. For any other key (warmup, a
# loop's length, a parameter of a custom workload) this is unknown; searching along it would hide its effect.
GROWING = frozenset(
    (
        *("batch", "context", "new_tokens", "prompt_tokens", "sequences", "prompt_lengths"),
        *("width", "layers", "num_hidden_layers", "n_layer", "hidden_size", "n_embd"),
        *("intermediate_size", "n_inner", "vocab_size", "num_key_value_heads", "rank"),
    )
)


class Evidence:
    """Points that fit and points that fail, and what they imply.

    A failure below a pass contradicts the assumption. Both remain on the edge, but imply nothing about other points.
    `flaky` points stay on the edge in the same way. `tested`: whether an attempt could have contradicted the assumption
    (see `could_contradict`).
    """

    def __init__(
        self, fits: Iterable[At] = (), fails: Iterable[At] = (), flaky: Container[At] = (), tested: bool = False
    ) -> None:
        self._fits, self._fails, self._flaky, self._tested = list(fits), list(fails), flaky, tested

    @property
    def largest_fitting(self) -> list[At]:
        """The points that fit and have no larger one that fits."""
        return self._fitting.points

    @property
    def smallest_failing(self) -> list[At]:
        """The points that fail and have no smaller one that fails."""
        return [_negative(at) for at in self._failing.points]

    @cached_property
    def consistent(self) -> bool:
        """Whether no failure lies below a pass."""
        return not any(self._fitting.cover(at) for at in self.smallest_failing)

    @property
    def monotone(self) -> bool | None:
        """Whether the assumption held where it was tested; None if nothing tested it, and it is only assumed."""
        if not self.consistent:
            return False
        return True if self._tested else None

    @cached_property
    def contradicted_fits(self) -> list[At]:
        """The points that fit although a smaller one fails."""
        return [] if self.consistent else [at for at in self._fits if self._failing.cover(_negative(at))]

    @cached_property
    def contradicted_fails(self) -> list[At]:
        """The points that fail although a larger one fits."""
        return [] if self.consistent else [at for at in self._fails if self._fitting.cover(at)]

    def implied(self, at: At) -> bool | None:
        """Whether a point fits; None if nothing implies it."""
        if self._implying_fits.cover(at):
            return True
        return False if self._implying_fails.cover(_negative(at)) else None

    def implied_by(self, at: At) -> At | None:
        """The point at the edge that implies whether another one fits. If there are several, the earliest decides."""
        if self._implying_fits.cover(at):
            return self._implying_fits.above(at)
        if self._implying_fails.cover(_negative(at)):
            return _negative(self._implying_fails.above(_negative(at)))
        return None

    def bounds(self, axis: int, others: At) -> tuple[float | None, float | None]:
        """The highest value along one axis that is implied to fit, and the lowest that is implied to fail, where the
        other values are these."""
        lowest = self._implying_fails.highest(axis, _negative(others))
        return self._implying_fits.highest(axis, others), None if lowest is None else -lowest

    @cached_property
    def _fitting(self) -> Staircase:
        return Staircase(self._fits)

    @cached_property
    def _failing(self) -> Staircase:
        return Staircase(map(_negative, self._fails))

    @cached_property
    def _implying_fits(self) -> Staircase:
        return Staircase(self._implying(self._fits, self.contradicted_fits))

    @cached_property
    def _implying_fails(self) -> Staircase:
        return Staircase(map(_negative, self._implying(self._fails, self.contradicted_fails)))

    def _implying(self, points: list[At], contradicted: list[At]) -> list[At]:
        without = set(contradicted)
        return [at for at in points if at not in without and at not in self._flaky]


def could_contradict(in_order: Iterable[tuple[At, bool]]) -> bool:
    """Whether an attempt could have contradicted the assumption: an earlier one had implied its result.

    A search runs only points whose results nothing implies, so that its attempts alone can never contradict each other.
    `in_order`: points in the order in which they were measured, and whether they fit.
    """
    fits: list[At] = []
    fails: list[At] = []
    for at, fit in in_order:
        if any(covers(other, at) for other in fits) or any(covers(at, other) for other in fails):
            return True
        side = fits if fit else fails
        side[:] = [other for other in side if not (covers(at, other) if fit else covers(other, at))]
        side.append(at)
    return False


class Staircase:
    """Points, and the largest of them, which no other one covers."""

    def __init__(self, points: Iterable[At]) -> None:
        self._all = list(points)  # in the order in which they were measured
        self.points = maximal(self._all)  # with two dimensions: the first value descends, the second ascends
        self._tops: dict[At, At] = {}
        self._from_highest: dict[int, list[tuple[float, At]]] = {}  # by axis: each value there, and the other values

    def cover(self, at: At) -> bool:
        """Whether a point covers this one, or is it."""
        if len(at) == 2:
            level = self.highest(1, at[:1])
            return level is not None and level >= at[1]
        return any(covers(point, at) for point in self.points)

    def highest(self, axis: int, others: At) -> float | None:
        """The highest value along one axis of the points that cover the other values."""
        if len(others) == 1:  # a bisection, for lattices of 512 x 512
            if axis == 1:
                place = bisect.bisect_right(self.points, -others[0], key=lambda point: -point[0]) - 1
            else:
                place = bisect.bisect_left(self.points, others[0], key=lambda point: point[1])
            return self.points[place][axis] if 0 <= place < len(self.points) else None
        if axis not in self._from_highest:
            ordered = sorted(self.points, key=lambda point: -point[axis])
            self._from_highest[axis] = [(point[axis], but(point, axis)) for point in ordered]
        return next((level for level, rest in self._from_highest[axis] if covers(rest, others)), None)

    def above(self, at: At) -> At:
        """The largest point above the first one that covers a covered point."""
        first = next(point for point in self._all if covers(point, at))
        if first not in self._tops:
            top = first
            for point in self._all:
                top = point if covers(point, top) else top
            self._tops[first] = top
        return self._tops[first]


class Columns:
    """Points in columns along their last dimension, to find the smallest ones above another point."""

    def __init__(self, points: Iterable[At]) -> None:
        self._columns: dict[At, list[At]] = defaultdict(list)
        for at in sorted(points):
            self._columns[at[:-1]].append(at[-1:])

    def smallest_above(self, at: At | None) -> list[At]:
        """The points that cover a point (or all, with None), without those that cover another of these."""
        found = []
        for others, levels in self._columns.items():
            if at is None:
                found.append(others + levels[0])
            elif covers(others, at[:-1]) and levels[-1] >= at[-1:]:
                found.append(others + levels[bisect.bisect_left(levels, at[-1:])])
        return minimal(found)


def covers(larger: At, smaller: At) -> bool:
    """Whether one point is at least as large as another in every dimension."""
    return all(map(ge, larger, smaller))


def maximal(points: Iterable[At]) -> list[At]:
    """The points that no other one covers, in descending order."""
    found: list[At] = []
    for at in sorted(set(points), reverse=True):  # points that cover a point come before it
        # In two dimensions the last one found has the highest second value of all before it.
        rivals = found[-1:] if len(at) <= 2 else found
        if not any(covers(other, at) for other in rivals):
            found.append(at)
    return found


def minimal(points: Iterable[At]) -> list[At]:
    """The points that cover no other one, in ascending order."""
    return [_negative(at) for at in maximal(map(_negative, points))]


def but(values: Sequence[float], axis: int) -> At:
    """All values except the one along an axis."""
    return (*values[:axis], *values[axis + 1 :])


def _negative(at: At) -> At:
    return tuple(map(neg, at))
