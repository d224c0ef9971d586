"""Chooses the most valuable attempt of a search: the one that is expected to leave the fewest points open. Pure.

A pass decides everything smaller and a failure everything larger. What both would decide is summed for all points of
the lattice at once, in arrays of columns x levels.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from sweeper.designs.expectation import CERTAINTY, SHORT, Expectation
from sweeper.designs.lattice import Cell, Lattice
from sweeper.interval import Interval
from sweeper.objective import Number

Array = np.ndarray
Levels = Sequence[int]

DIGITS = 9  # of a point's value: rounding errors, which depend on the build of LAPACK, must not decide between ties
SAMPLED = 32  # columns of a long lattice in which the middles are looked up
SHARES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)  # of what is open in a column
TINY = 1e-12


def most_valuable(
    lattice: Lattice, expected: Expectation | None, low: Levels, high: Levels, ran: Collection[Cell]
) -> Cell | None:
    """The best of the points that lie between two levels of their column and were not run; None if there is none.

    `low`, `high`: for each column the highest level that is known to fit, and the lowest that is known to fail. Without
    an expectation the worst case counts.
    """
    if expected is None or expected.source is None:
        return _Choice(lattice, np.asarray(low), np.asarray(high)).best(ran)
    kind = _LongExpectedChoice if len(lattice.levels) > SHORT else _ExpectedChoice
    return kind(lattice, np.asarray(low), np.asarray(high), expected).best(ran)


def remaining(lattice: Lattice, expected: Expectation, low: Levels, high: Levels, ran: Collection[Cell]) -> int:
    """How many points of the expected edge, on both of its sides, lie between the bounds and were not run.

    Without an expectation: 0.
    """
    if expected.source is None:
        return 0
    edges = np.empty(lattice.width, dtype=np.int64)  # the highest level that is expected to fit
    for column in range(lattice.width):
        between = range(int(low[column]) + 1, int(high[column]))
        fails = bisect.bisect_left(between, 0.5, key=lambda level: 1 - expected.probability((column, level)))
        edges[column] = low[column] + fails
    open_columns = [column for column in range(lattice.width) if high[column] - low[column] > 1]
    found = 0
    for column in open_columns:
        level = int(edges[column])
        larger, smaller = _next_columns(lattice, column, 1), _next_columns(lattice, column, -1)
        fits = low[column] < level and all(edges[other] < level for other in larger)
        fails = level + 1 < high[column] and all(edges[other] > level for other in smaller)
        found += (fits and (column, level) not in ran) + (fails and (column, level + 1) not in ran)
    return found


def _next_columns(lattice: Lattice, column: int, steps: int) -> list[int]:
    neighbours = (lattice.neighbour((column, 0), name, steps) for name in lattice.others)
    return [other[0] for other in neighbours if other is not None]


class _Choice:
    """Without an expectation: the attempt that decides most in the worst case."""

    shares: Sequence[float] = (0.5,)

    def __init__(self, lattice: Lattice, low: Array, high: Array) -> None:
        self.lattice, self.low, self.high = lattice, low, high
        self.opened = np.flatnonzero(high - low > 1)
        levels = lattice.levels
        self.prior = _logarithmic(levels) if isinstance(levels, Interval) else _even(len(levels))

    def best(self, ran: Collection[Cell]) -> Cell | None:
        if not len(self.opened):
            return None
        levels = np.array(self.levels())
        candidates = (self.low[:, None] < levels) & (levels < self.high[:, None])
        place_of = {int(level): place for place, level in enumerate(levels)}
        for column, level in ran:
            if level in place_of:
                candidates[column, place_of[level]] = False
        columns, places = np.nonzero(candidates)
        if not len(columns):
            return self._next_to(ran)
        value, tie = self.values(levels, columns, places)
        best = np.lexsort((-np.arange(len(columns)), tie, value))[-1]
        return int(columns[best]), int(levels[places[best]])

    def _next_to(self, ran: Collection[Cell]) -> Cell | None:
        """The first open point, if all that were compared have been run."""
        cells = ((int(c), level) for c in self.opened for level in range(self.low[c] + 1, self.high[c]))
        return next((cell for cell in cells if cell not in ran), None)

    def levels(self) -> Levels:
        """The levels to compare: all or, on a long dimension, the middles and those where the limit is expected."""
        if len(self.lattice.levels) <= SHORT:
            return range(len(self.lattice.levels))
        promising: set[int] = set()
        for column in map(int, self.opened[:: -(-len(self.opened) // SAMPLED)]):
            low, high = int(self.low[column]), int(self.high[column])
            for share in self.shares:
                at = low + 1 + _bisected(partial(self.mass, column), low, high, share)
                promising.update(i for i in (at - 2, at - 1, at, at + 1) if low < i < high)
            promising.update((low + 1, high - 1))
        return sorted(promising)

    def values(self, levels: Array, columns: Array, places: Array) -> tuple[Array, Array]:
        """The value of running each candidate, and what decides between equal ones."""
        if_fits, if_fails = (each[columns, places] for each in self.gains(levels))
        return np.minimum(if_fits, if_fails), np.maximum(if_fits, if_fails)

    def gains(self, levels: Array) -> tuple[Array, Array]:
        """How much a pass and a failure of each point would decide in all columns."""
        below, above = self.masses_at(self.low)[:, None], self.masses_at(self.high)[:, None]
        above = np.maximum(below, above)  # expected peaks need not ascend
        at = np.clip(self.masses(levels), below, above)
        is_open = (self.high - self.low > 1)[:, None]
        if_fits, if_fails = np.where(is_open, at - below, 0.0), np.where(is_open, above - at, 0.0)
        return self._summed(if_fits), np.flip(self._summed(np.flip(if_fails, 0)), 0)

    def _summed(self, rows: Array) -> Array:
        """For each column the sum of the rows of all smaller or equal columns."""
        summed = rows.reshape(*reversed(self.lattice.sizes), rows.shape[1])
        for axis in range(summed.ndim - 1):
            summed = np.cumsum(summed, axis)
        return summed.reshape(rows.shape)

    # How much of a column lies up to a level

    def mass(self, column: int, level: int) -> float:
        return self.prior(level)

    def masses(self, levels: Array) -> Array:
        """The masses of all columns up to each level."""
        return np.array([[self.prior(int(level)) for level in levels]])

    def masses_at(self, levels: Array) -> Array:
        """The mass of each column up to its own level."""
        return np.array([self.mass(column, int(level)) for column, level in enumerate(levels)])


class _ExpectedChoice(_Choice):
    """The attempt after which the fewest points are expected to be open."""

    shares = SHARES
    whole = 1.0  # added to what is left, so that its logarithm is finite: one point
    least = 1 - CERTAINTY  # a probability
    closed = 1.0  # of the mass between the bounds of a column: the level that fails

    def __init__(self, lattice: Lattice, low: Array, high: Array, expected: Expectation) -> None:
        super().__init__(lattice, low, high)
        self.expected = expected

    def values(self, levels: Array, columns: Array, places: Array) -> tuple[Array, Array]:
        if_fits, if_fails = (each[columns, places] for each in self.gains(levels))
        spans = np.maximum(0.0, self.masses_at(self.high) - self.masses_at(self.low))
        total = (spans - self.closed)[self.opened].sum()
        fits = self._chance(self.fits(levels, columns, places), if_fits, if_fails)
        after = fits * np.log(total + self.whole - if_fits) + (1 - fits) * np.log(total + self.whole - if_fails)
        return np.round(-after, DIGITS), fits

    def fits(self, levels: Array, columns: Array, places: Array) -> Array:
        """The probability that each candidate fits."""
        found: Array = self.expected.probabilities(levels, np.arange(self.lattice.width))[columns, places]
        return found

    def _chance(self, fits: Array, if_fits: Array, if_fails: Array) -> Array:
        """The probability that each candidate fits, corrected by what it would decide.

        If nothing else is known, a point fits the more probably, the more points are larger than it. This decides where
        the expectation says little, because the peaks of the open points differ by less than its error. Otherwise every
        point would be as likely to fit as not, and the corners, which could decide everything at once, would seem best:
        in the benchmark's worst case a search on 16 x 16 walked from a corner through 161 points.
        """
        fits = np.clip(fits, self.least, 1 - self.least)
        odds = fits / (1 - fits) * ((if_fails + TINY) / (if_fits + TINY)) ** self._openness()
        found: Array = np.clip(odds / (1 + odds), self.least, 1 - self.least)
        return found

    def _openness(self) -> float:
        """How unsure the expectation is about the open points: 0 if it is sure of each, 1 if it knows nothing."""
        count = len(self.lattice.levels)
        levels = np.array(range(count) if count <= SHORT else [self._quantile(k / SHORT) for k in range(1, SHORT)])
        columns = self.opened[:: -(-len(self.opened) // SHORT)]
        is_open = (self.low[columns, None] < levels) & (levels < self.high[columns, None])
        if not is_open.any():
            return 1.0
        fits = self.expected.probabilities(levels, columns)[is_open]
        return float(np.mean(4 * fits * (1 - fits)))

    def _quantile(self, share: float) -> int:
        """The level up to which a share of a column lies, if nothing is known."""
        return _bisected(self.prior, -1, len(self.lattice.levels), share)

    def mass(self, column: int, level: int) -> float:
        return float(level)

    def masses(self, levels: Array) -> Array:
        return np.array([levels], dtype=float)


class _LongExpectedChoice(_ExpectedChoice):
    """On a long dimension: the mass of a column is the probability that its edge lies up to a level."""

    closed, least = 0.0, TINY

    def fits(self, levels: Array, columns: Array, places: Array) -> Array:
        below, above = self.masses_at(self.low)[columns], self.masses_at(self.high)[columns]
        above = np.maximum(below, above)
        at = np.clip(self.masses(levels)[columns, places], below, above)
        found: Array = np.divide(above - at, above - below, out=np.full(len(at), 0.5), where=above > below)
        return found

    def mass(self, column: int, level: int) -> float:
        if not 0 <= level < len(self.lattice.levels):
            return self.prior(level)
        return float(_blended(1 - self.expected.probability((column, level)), self.prior(level)))

    def masses(self, levels: Array) -> Array:
        fails = 1 - self.expected.probabilities(levels, np.arange(self.lattice.width))
        found: Array = _blended(fails, np.array([self.prior(int(level)) for level in levels]))
        return found


def _blended(fails: Any, prior: Any) -> Any:
    """What is expected, with a share of what holds if nothing is known."""
    return (2 * CERTAINTY - 1) * fails + 2 * (1 - CERTAINTY) * prior


def _bisected(mass: Callable[[int], float], low: int, high: int, share: float) -> int:
    """How many of the levels between two others come before the share of the mass between them."""
    below, above = mass(low), mass(high)
    places = range(low + 1, high)
    return min(len(places) - 1, bisect.bisect_left(places, below + share * (above - below), key=mass))


def _even(count: int) -> Callable[[int], float]:
    return lambda level: (level + 1) / (count + 1)


def _logarithmic(levels: Sequence[Number]) -> Callable[[int], float]:
    """The chance that the edge of an interval lies up to a level, if every doubling is equally likely.

    Bisecting this doubles at first and halves at the end; on 1..4096 it takes 9 attempts, plain bisection 12.
    """
    shift = max(0, 1 - levels[0])
    first, last = np.log2(levels[0] + shift) - 1, np.log2(levels[-1] + shift) + 1

    def share(level: int) -> float:
        if level < 0:
            return 0.0
        if level >= len(levels):
            return 1.0
        return float((np.log2(float(levels[level] + shift)) - first) / (last - first))

    return share
