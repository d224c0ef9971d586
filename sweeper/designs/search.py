"""Chooses the next point to attempt, so that few attempts find what fits. Pure.

The points form a lattice. The only assumption is that of `sweeper.frontier.evidence`: more of everything never takes
less memory. When the search ends, both sides of the edge have been run, and these points imply all others.

The next attempt is the one expected to decide the most points. The expectation comes from a predictor of bytes or from
a fit to the peaks measured so far; without either, the worst case counts.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sweeper.designs.expectation import PREDICTOR_ERROR, SHORT, Expectation, Predictor, Verdict
from sweeper.designs.lattice import Cell, Lattice, LatticePoint
from sweeper.errors import Mistake
from sweeper.frontier.evidence import Evidence, covers
from sweeper.interval import Interval
from sweeper.objective import TOKENS, Number, Objective

Bounds = Sequence[tuple[int, int]]  # by column: the highest level that fits and the lowest that does not
Mass = Callable[[int, int], float]  # how much of a column lies up to a level

UNSURE = 0.05  # above this, a pass and a failure must both help: else 16 x 16 with 30 % took 34.2 attempts, not 25.6
CERTAINTY = 0.98  # beyond this, no expectation is used
DIGITS = 9  # of a point's value: rounding errors, which depend on the build of LAPACK, must not decide between ties
IN_A_ROW = 3  # undecided attempts in a row above other undecided points: not an accident, and the search stops there
AFTER_A_CONTRADICTION = 64  # attempts at points that a withdrawn inference had decided; the others stay unknown


class NextAttempt(NamedTuple):
    point: LatticePoint
    reason: str  # search; retry, because the last attempt was undecided; confirm


class LatticeSearch:
    """One search: `next_attempt` names the point to run, `record` takes its verdict, `evidence` has the conclusions.

    `limit_bytes` and the peaks in the verdicts belong to the counter that decides whether a point fits. `confirm`:
    `edge` repeats the largest point and the failures next to it, `all` the whole edge, `none` nothing. Raises Mistake
    for any other value, and ValueError for dimensions that cannot be searched (see `Lattice`).
    """

    def __init__(
        self,
        dimensions: Mapping[str, Sequence[Number]],
        *,
        limit_bytes: int | None = None,
        predictor: Predictor | None = None,
        predictor_error: float = PREDICTOR_ERROR,
        objective: Objective = TOKENS,
        confirm: str = "edge",
    ) -> None:
        if confirm not in ("edge", "all", "none"):
            raise Mistake(f"confirm={confirm}: expected edge, all or none")
        self.lattice = Lattice(dimensions)
        self.verdicts: dict[Cell, list[Verdict]] = {}
        self.flaky: set[Cell] = set()  # passed and failed
        self._fits: dict[Cell, bool] = {}  # decided, and not flaky
        self._rank = objective.ranking(list(dimensions))
        self._confirm = confirm
        self._expected = Expectation(self.lattice, limit_bytes, predictor, predictor_error)
        self._pending: tuple[Cell, str] | None = None
        self._retry: Cell | None = None
        self._repeated: set[Cell] = set()
        self._undecided_in_a_row = 0
        self._attempts_in_doubt = 0
        self._evidence: Evidence | None = None

    def next_attempt(self) -> NextAttempt | None:
        """The point to run next, the same until its verdict is recorded; None when the search is over."""
        if self._pending is None:
            self._pending = self._next()
        return NextAttempt(self.lattice.point(self._pending[0]), self._pending[1]) if self._pending else None

    def record(self, verdict: Verdict, *repeats: Verdict) -> None:
        """Record the verdict of the pending attempt, and those of other attempts at the same point."""
        if self._pending is None:
            raise RuntimeError("no attempt is pending")
        (cell, reason), self._pending = self._pending, None
        self._attempts_in_doubt += self._in_doubt
        if verdict.fits is not None:
            self._undecided_in_a_row = 0
        elif verdict.retry and reason != "retry":
            self._retry = cell
        else:
            self._undecided_in_a_row += cell not in self._repeated
        for each in (verdict, *repeats):
            self._learn(cell, each)

    def recall(self, point: Mapping[str, Number], verdict: Verdict) -> None:
        """Take in a verdict of an earlier run."""
        self._learn(self.lattice.cell(point), verdict)

    def set_limit(self, limit_bytes: int) -> None:
        """Set the limit of the deciding counter, if it was unknown before the first attempt."""
        self._expected.set_limit(limit_bytes)

    def implied(self) -> Iterator[tuple[LatticePoint, LatticePoint]]:
        """The points that were not run and need not be, each with the one that implies whether it fits."""
        for cell in self.lattice:
            implied_by = None if cell in self.verdicts else self.evidence.implied_by(self.lattice.place(cell))
            if implied_by is not None:
                yield self.lattice.point(cell), self.lattice.point(self.lattice.cell_at(implied_by))

    def _next(self) -> tuple[Cell, str] | None:
        if self._retry is not None:
            cell, self._retry = self._retry, None
            return cell, "retry"
        best = self._choice()
        if best is not None:
            return best, "search"
        for cell in self._to_confirm():
            if cell not in self._repeated:
                self._repeated.add(cell)
                return cell, "confirm"
        return None

    # What a verdict implies

    def _learn(self, cell: Cell, verdict: Verdict) -> None:
        self.verdicts.setdefault(cell, []).append(verdict)
        if cell in self.flaky or verdict.fits is None:
            return
        if cell not in self._fits:
            self._expected.learn(cell, verdict)
            self._fits[cell] = verdict.fits
        elif self._fits[cell] != verdict.fits:
            del self._fits[cell]
            self.flaky.add(cell)
        else:
            return
        self._evidence = None

    @property
    def evidence(self) -> Evidence:
        """The conclusions from the verdicts so far. The values of a point are its levels (see `Lattice.place`)."""
        if self._evidence is None:
            places = {cell: self.lattice.place(cell) for cell in self._fits}
            self._evidence = Evidence(
                fits=(place for cell, place in places.items() if self._fits[cell]),
                fails=(place for cell, place in places.items() if not self._fits[cell]),
            )
        return self._evidence

    def _bounds(self) -> tuple[list[int], list[int]]:
        """The highest level of each column that is implied to fit, and the lowest that is implied to fail."""
        axis, above = len(self.lattice.others), len(self.lattice.levels)
        bounds = [self.evidence.bounds(axis, column) for column in self.lattice.columns]
        lowest = [-1 if fits is None else int(fits) for fits, _ in bounds]
        return lowest, [above if fails is None else int(fails) for _, fails in bounds]

    @property
    def undecided(self) -> list[Cell]:
        """The points that were run, but that no attempt decided."""
        return [cell for cell in self.verdicts if cell not in self._fits and cell not in self.flaky]

    @property
    def _in_doubt(self) -> bool:
        return bool(self.flaky) or not self.evidence.monotone

    # The most valuable attempt

    def _choice(self) -> Cell | None:
        if self._attempts_in_doubt >= AFTER_A_CONTRADICTION:
            return None
        lowest, highest = self._bounds()
        best = self._best(lowest, self._below_undecided(highest))
        if best is not None or self._undecided_in_a_row >= IN_A_ROW:
            return best
        return self._best(lowest, highest)

    def _below_undecided(self, highest: list[int]) -> list[int]:
        """For each column the level above which points are tried last: two smaller or equal ones are undecided.

        Something other than memory ends there, such as a kernel's limit or the model's positions. A single undecided
        point can be an accident, and one below a decided point is not a limit: the search continues beyond both.
        """
        place = self.lattice.place
        decided = [place(cell) for cell in self._fits]
        limits = [at for at in map(place, self.undecided) if not any(covers(other, at) for other in decided)]
        if len(limits) < 2:
            return highest
        highest = list(highest)
        for column, others in enumerate(self.lattice.columns):
            levels = sorted(at[-1] for at in limits if covers(others, at[:-1]))
            if len(levels) >= 2:
                highest[column] = min(highest[column], levels[1])
        return highest

    def _best(self, lowest: list[int], highest: list[int]) -> Cell | None:
        """The most valuable of the points between the given levels that were not run yet."""
        bounds = list(zip(lowest, highest, strict=True))
        opened = [column for column, (low, high) in enumerate(bounds) if high - low > 1]
        if not opened:
            return None
        mass = self._mass()
        levels = self._levels(bounds, opened, mass)
        if_fits, if_fails = self._gains(bounds, levels, mass)
        worth = self._worth(bounds, mass, sum(bounds[column][1] - bounds[column][0] - 1 for column in opened))
        best: tuple[tuple[float, float], Cell] | None = None
        for column in opened:
            low, high = bounds[column]
            for k, level in enumerate(levels):
                if low < level < high and (column, level) not in self.verdicts:
                    value = worth((column, level), if_fits[column][k], if_fails[column][k])
                    if best is None or value > best[0]:
                        best = value, (column, level)
        if best is None and len(levels) < len(self.lattice.levels):
            every = ((column, level) for column in opened for level in range(bounds[column][0] + 1, bounds[column][1]))
            return next((cell for cell in every if cell not in self.verdicts), None)
        return best[1] if best else None

    def _gains(self, bounds: Bounds, levels: Sequence[int], mass: Mass) -> tuple[list[list[float]], list[list[float]]]:
        """For each column and level: how much a pass and a failure there would decide, in all columns."""
        nothing = [0.0] * len(levels)
        if_fits, if_fails = [], []
        for column, (low, high) in enumerate(bounds):
            if high - low > 1:
                below, above = mass(column, low), mass(column, high)
                at = [min(above, max(below, mass(column, min(high, max(low, level))))) for level in levels]
                if_fits.append([m - below for m in at])
                if_fails.append([above - m for m in at])
            else:
                if_fits.append(nothing)
                if_fails.append(nothing)
        return self.lattice.summed(if_fits, upward=False), self.lattice.summed(if_fails, upward=True)

    def _worth(self, bounds: Bounds, mass: Mass, points: int) -> Callable[[Cell, float, float], tuple[float, float]]:
        """The value of running a point, from what a pass and a failure there would decide. Ties go to what may fit."""
        expected = self._expected

        def in_the_worst_case(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            return min(if_fits, if_fails), max(if_fits, if_fails)

        def on_a_long_dimension(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            low, high = bounds[cell[0]]
            below, above = mass(cell[0], low), mass(cell[0], high)
            p = min(1.0, max(0.0, (above - mass(*cell)) / (above - below))) if above > below else 0.5
            return p * if_fits + (1 - p) * if_fails, p

        def by_what_helps_either_way(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            p = min(CERTAINTY, max(1 - CERTAINTY, expected.probability(cell)))
            return round(p * math.log(if_fits) + (1 - p) * math.log(if_fails), DIGITS), p

        def by_what_remains(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            p = min(CERTAINTY, max(1 - CERTAINTY, expected.probability(cell)))
            return round(-p * math.log(points + 1 - if_fits) - (1 - p) * math.log(points + 1 - if_fails), DIGITS), p

        if expected.source is None:
            return in_the_worst_case
        if self._is_long:
            return on_a_long_dimension
        return by_what_helps_either_way if expected.error > UNSURE else by_what_remains

    @property
    def _is_long(self) -> bool:
        return len(self.lattice.levels) > SHORT

    def _mass(self) -> Mass:
        """The share of a column up to a level: points or, on a long dimension, the probability of its edge."""
        levels = self.lattice.levels
        prior = _logarithmic(levels) if isinstance(levels, Interval) else _even(len(levels))
        if self._expected.source is None:
            return lambda column, level: prior(level)
        if not self._is_long:
            return lambda column, level: level
        seen: dict[Cell, float] = {}

        def posterior(column: int, level: int) -> float:
            if not 0 <= level < len(levels):
                return prior(level)
            cell = column, level
            if cell not in seen:
                fails = 1 - self._expected.probability(cell)
                seen[cell] = (2 * CERTAINTY - 1) * fails + 2 * (1 - CERTAINTY) * prior(level)
            return seen[cell]

        return posterior

    def _levels(self, bounds: Bounds, opened: list[int], mass: Mass) -> Sequence[int]:
        """The levels to compare: all or, on a long dimension, the middles and those where the limit is expected."""
        if not self._is_long:
            return range(len(self.lattice.levels))
        promising: set[int] = set()
        for column in opened[:: -(-len(opened) // 32)]:
            low, high = bounds[column]
            below, above = mass(column, low), mass(column, high)
            for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98) if self._expected.source else (0.5,):
                goal = below + share * (above - below)
                at = low + 1 + bisect.bisect_left(range(low + 1, high), goal, key=partial(mass, column))
                promising.update(i for i in (at - 2, at - 1, at, at + 1) if low < i < high)
            promising.update((low + 1, high - 1))
        return sorted(promising)

    # The edge

    @property
    def largest(self) -> list[LatticePoint]:
        """The points with the highest rank among those that fit; equal ranks in order of batch, then context."""
        return [self.lattice.point(cell) for cell in self._largest()]

    def _largest(self) -> list[Cell]:
        ranks = {cell: self._rank(self.lattice.point(cell)) for cell in self._cells(self.evidence.largest_fitting)}
        best = max((product for product, _ in ranks.values()), default=0.0)
        ties = [cell for cell, (product, _) in ranks.items() if product == best]
        return sorted(ties, key=ranks.__getitem__, reverse=True)

    def _to_confirm(self) -> Iterable[Cell]:
        """The points that the result depends on, as far as `confirm` covers them."""
        if self._confirm == "none":
            return ()
        failing, largest = self._cells(self.evidence.smallest_failing), self._largest()
        if self._confirm == "all":
            return [*self._cells(self.evidence.largest_fitting), *failing]
        if not largest:
            return failing
        next_to_it = [self.lattice.neighbour(largest[0], name) for name in self.lattice.dimensions]
        return [largest[0], *dict.fromkeys(f for n in next_to_it if n and (f := self._failure_at(n)) is not None)]

    def _failure_at(self, cell: Cell) -> Cell | None:
        """The failure that was run and decides this point: itself, or a smaller one."""
        if self._fits.get(cell) is False:
            return cell
        implied_by = self.evidence.implied_by(self.lattice.place(cell))
        return None if implied_by is None else self.lattice.cell_at(implied_by)

    def _cells(self, places: Iterable[Sequence[float]]) -> list[Cell]:
        return sorted(map(self.lattice.cell_at, places))


def _even(count: int) -> Callable[[int], float]:
    return lambda level: (level + 1) / (count + 1)


def _logarithmic(levels: Sequence[Number]) -> Callable[[int], float]:
    """The chance that the edge of an interval lies up to a level, if every doubling is equally likely.

    Bisecting this doubles at first and halves at the end; on 1..4096 it takes 9 attempts, plain bisection 12.
    """
    shift = max(0, 1 - levels[0])
    first, last = math.log2(levels[0] + shift) - 1, math.log2(levels[-1] + shift) + 1

    def share(level: int) -> float:
        if level < 0:
            return 0.0
        return 1.0 if level >= len(levels) else (math.log2(levels[level] + shift) - first) / (last - first)

    return share
