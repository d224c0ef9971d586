"""Finds what fits: the next point worth an attempt, what each verdict implies, and the certificate at the end. Pure.

Points form a lattice: ordered values along named dimensions. A point that fits closes everything smaller or equal, a
point that fails closes everything bigger or equal; nothing else is assumed. What was closed without being run names the
attempt that implies it, and both sides of every edge were really run.

The attempt asked for is the one expected to close most. The expectation comes from a predictor of bytes, or from a fit
on the peaks of what has passed; without either the worst case decides.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sweeper.designs.expectation import PREDICTOR_ERROR, SHORT, Expectation, Predictor, Verdict
from sweeper.designs.lattice import Cell, Lattice, LatticePoint
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import TOKENS, Number, Objective

Room = Sequence[tuple[int, int]]  # of each column, the highest level that fits and the lowest that does not
Mass = Callable[[int, int], float]  # of a column, up to a level

# Keys by the last part of their name: more of one never takes less memory. Of others (warmup, a loop's length, a
# parameter of somebody's own workload) nobody knows, and to take them for a direction would hide what they do.
GROWING = frozenset(
    (
        *("batch", "context", "new_tokens", "prompt_tokens", "sequences", "concurrency"),
        *("width", "layers", "num_hidden_layers", "n_layer", "hidden_size", "n_embd"),
        *("intermediate_size", "n_inner", "vocab_size", "num_key_value_heads", "rank"),
    )
)

UNSURE = 0.05  # from here on a point must help either way: 16 x 16 with 30 % took 34.2 attempts otherwise, not 25.6
CERTAINTY = 0.98  # no expectation is trusted further
IN_A_ROW = 3  # points that did not tell, one after another, above others that did not: no accident, and no use going on
AFTER_A_CONTRADICTION = 64  # attempts for what a withdrawn inference had closed; then the rest is left unknown


# What is searched


class Ask(NamedTuple):
    """The next attempt: at which point, and whether to search, because it did not tell, or to confirm."""

    point: LatticePoint
    reason: str  # search, again, confirm


# What is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A point at the border that was really run, and every verdict it got."""

    point: LatticePoint
    verdicts: tuple[Verdict, ...]
    confirmed: bool  # a second attempt told the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A smaller point that fails although a bigger one fits."""

    fails: LatticePoint
    fits: LatticePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What was not run between a point that fits and the next that does not, along one dimension."""

    point: LatticePoint
    along: str
    above: Number  # fits
    below: Number | None  # does not fit; None: nothing further told
    unknown: int  # points of the lattice between them; otherwise only values that were not asked for lie there


class PointState(NamedTuple):
    """One point of the lattice at the end: `fits`, `fails`, `flaky` or `unknown`, and, if not run, what implies it."""

    point: LatticePoint
    state: str
    attempts: int
    implied_by: LatticePoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The frontier, what it rests on, and what it leaves open. Whole after every verdict, so also when interrupted.

    `told` and iteration look at the search itself: use them before it goes on.
    """

    largest: LatticePoint | None  # by the objective; None: nothing fits
    ties: tuple[LatticePoint, ...]  # others that the objective rates the same
    fits: tuple[Edge, ...]  # maximal: no bigger point is known to fit
    fails: tuple[Edge, ...]  # minimal
    untested_between: tuple[Gap, ...]
    monotone: bool
    contradictions: tuple[Contradiction, ...]
    flaky: tuple[Edge, ...]
    silent: tuple[LatticePoint, ...]  # run, and did not tell
    unknown: int  # points about which nothing is known, the silent ones included
    closed: int  # points that were not run and need not be
    complete: bool  # nothing is left to ask
    attempts: int  # confirmations not counted
    confirmations: int
    _search: LatticeSearch = field(repr=False, compare=False)

    def told(self, point: Mapping[str, Number]) -> PointState:
        """What is known of one point."""
        return self._search.told(self._search.lattice.cell(point))

    def __iter__(self) -> Iterator[PointState]:
        """Every point of the lattice. An interval can be long: nothing is kept."""
        return (self._search.told(cell) for cell in self._search.lattice)


# The search


def search(
    dimensions: Mapping[str, Sequence[Number]],
    *,
    limit_bytes: int | None = None,
    predictor: Predictor | None = None,
    predictor_error: float = PREDICTOR_ERROR,
    objective: Objective = TOKENS,
    confirm: str = "edge",
    known: Iterable[tuple[Mapping[str, Number], Verdict]] = (),
) -> Generator[Ask, Verdict, SearchResult]:
    """Yields the next attempt, is sent its verdict, returns the frontier. The arguments are those of `Search`."""
    state = LatticeSearch(
        dimensions,
        limit_bytes=limit_bytes,
        predictor=predictor,
        predictor_error=predictor_error,
        objective=objective,
        confirm=confirm,
        known=known,
    )
    while (ask := state.ask()) is not None:
        state.tell((yield ask))
    return state.found()


class LatticeSearch:
    """One frontier being looked for: `ask` what to run next, `tell` how it ended, `found` what is known so far.

    `limit_bytes` and the peaks in the verdicts are of the counter that decides. `confirm`: `edge` asks the reported
    largest and the failures beside it once more, `all` every point of the certificate, `none` nothing. `known` are
    verdicts of an earlier run; they count as run, not as attempts.
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
        known: Iterable[tuple[Mapping[str, Number], Verdict]] = (),
    ) -> None:
        if confirm not in ("edge", "all", "none"):
            raise Mistake(f"confirm={confirm}: expected edge, all or none")
        self.lattice = Lattice(dimensions)
        self._ranking = objective.ranking(list(dimensions))
        self._confirm = confirm
        self._expected = Expectation(self.lattice, limit_bytes, predictor, predictor_error)
        self._verdicts: dict[Cell, list[Verdict]] = {}
        self._fits: dict[Cell, bool] = {}  # told, always the same
        self._flaky: set[Cell] = set()
        self._silent: set[Cell] = set()
        self._pairs: list[tuple[Cell, Cell]] = []  # fails, although a bigger one fits
        self._withdrawn: set[Cell] = set()  # imply nothing: they are in such a pair
        self._lowest, self._highest = self._unbounded()
        self._pending: tuple[Cell, str] | None = None
        self._once_more: tuple[Cell, str] | None = None
        self._reconfirmed: set[Cell] = set()
        self._in_a_row = 0
        self._in_doubt = 0
        self._attempts = self._confirmations = 0
        for point, verdict in known:
            self._take(self.lattice.cell(point), verdict)

    def ask(self) -> Ask | None:
        """The next attempt; the same until its verdict was told. None: the search is over."""
        if self._pending is None:
            self._pending = self._next()
        return Ask(self.lattice.point(self._pending[0]), self._pending[1]) if self._pending else None

    def know(self, point: Mapping[str, Number], verdict: Verdict) -> None:
        """A verdict of an earlier run, like those in `known`."""
        self._take(self.lattice.cell(point), verdict)

    def limit(self, limit_bytes: int) -> None:
        """What the deciding counter may reach, where it is only known once something has run."""
        self._expected.limit(limit_bytes)

    def tell(self, verdict: Verdict, *repeats: Verdict) -> None:
        """The verdict of the attempt that was asked for, and those of others at the same point."""
        if self._pending is None:
            raise RuntimeError("no attempt was asked for")
        (cell, reason), self._pending = self._pending, None
        confirming = reason == "confirm" or cell in self._reconfirmed
        self._confirmations += confirming
        self._attempts += not confirming
        if self._doubted:
            self._in_doubt += 1
        if verdict.fits is not None:
            self._in_a_row = 0
        elif verdict.again and reason != "again":
            self._once_more = cell, "again"
        else:
            self._in_a_row += not confirming
        for each in (verdict, *repeats):
            self._take(cell, each)

    def _next(self) -> tuple[Cell, str] | None:
        if self._once_more is not None:
            once_more, self._once_more = self._once_more, None
            return once_more
        cell = self._choice()
        if cell is not None:
            return cell, "search"
        for cell in self._claimed():
            if cell not in self._reconfirmed:
                self._reconfirmed.add(cell)
                return cell, "confirm"
        return None

    # What a verdict implies

    @property
    def _doubted(self) -> bool:
        return bool(self._pairs or self._flaky)

    def _unbounded(self) -> tuple[list[int], list[int]]:
        return [-1] * self.lattice.width, [len(self.lattice.levels)] * self.lattice.width

    def _take(self, cell: Cell, verdict: Verdict) -> None:
        self._verdicts.setdefault(cell, []).append(verdict)
        if cell in self._flaky:
            return
        if verdict.fits is None:
            if cell not in self._fits:
                self._silent.add(cell)
        elif cell not in self._fits:
            self._silent.discard(cell)
            self._expected.learn(cell, verdict)
            self._fits[cell] = verdict.fits
            # A point that is open, with nothing withdrawn, cannot contradict: it would have been closed.
            if (self._pairs or not self._is_open(cell)) and any(self._contradict(cell, o) for o in self._fits):
                self._infer_anew()
            else:
                self._close(cell)
        elif self._fits[cell] != verdict.fits:
            del self._fits[cell]
            self._flaky.add(cell)
            self._infer_anew()

    def _is_open(self, cell: Cell) -> bool:
        return self._lowest[cell[0]] < cell[1] < self._highest[cell[0]]

    def _contradict(self, one: Cell, other: Cell) -> bool:
        if self._fits[one] == self._fits[other]:
            return False
        fails, fits = (other, one) if self._fits[one] else (one, other)
        return self.lattice.covers(fits, fails)

    def _close(self, cell: Cell) -> None:
        column, level = cell
        if self._fits[cell]:
            for each in self.lattice.columns_from(column, upward=False):
                self._lowest[each] = max(self._lowest[each], level)
        else:
            for each in self.lattice.columns_from(column, upward=True):
                self._highest[each] = min(self._highest[each], level)

    def _infer_anew(self) -> None:
        """Withdraw what contradicted verdicts had closed: both of a pair stand for themselves alone."""
        failing = [cell for cell, fits in self._fits.items() if not fits]
        fitting = [cell for cell, fits in self._fits.items() if fits]
        self._pairs = [(low, high) for low in failing for high in fitting if self.lattice.covers(high, low)]
        self._withdrawn = {cell for pair in self._pairs for cell in pair}
        self._lowest, self._highest = self._unbounded()
        for cell in self._fits:
            if cell not in self._withdrawn:
                self._close(cell)

    # Which attempt is worth most

    def _choice(self) -> Cell | None:
        if self._in_doubt >= AFTER_A_CONTRADICTION:
            return None
        trusted = self._best(self._trusted())
        if trusted is not None or self._in_a_row >= IN_A_ROW:
            return trusted
        return self._best(self._highest)

    def _trusted(self) -> list[int]:
        """For each column the level from which on two smaller points did not tell and nothing above them did.

        Something other than memory ends there: a kernel's limit, the model's positions. What is above comes last. One
        silent point alone may be an accident: the search goes round it.
        """
        lattice = self.lattice
        dumb = [s for s in self._silent if not any(lattice.covers(told, s) for told in self._fits)]
        if len(dumb) < 2:
            return self._highest
        highest = list(self._highest)
        for column in range(lattice.width):
            levels = sorted(level for at, level in dumb if lattice.covers((column, 0), (at, 0)))
            if len(levels) >= 2:
                highest[column] = min(highest[column], levels[1])
        return highest

    def _best(self, highest: list[int]) -> Cell | None:
        """The point below the given levels that is open, was not run, and from which most is expected."""
        room = list(zip(self._lowest, highest, strict=True))
        opened = [column for column, (low, high) in enumerate(room) if high - low > 1]
        if not opened:
            return None
        mass = self._mass()
        levels = self._levels(room, opened, mass)
        if_fits, if_fails = self._gains(room, levels, mass)
        worth = self._worth(room, mass, sum(room[column][1] - room[column][0] - 1 for column in opened))
        best: tuple[tuple[float, float], Cell] | None = None
        for column in opened:
            low, high = room[column]
            for k, level in enumerate(levels):
                if low < level < high and (column, level) not in self._verdicts:
                    value = worth((column, level), if_fits[column][k], if_fails[column][k])
                    if best is None or value > best[0]:
                        best = value, (column, level)
        if best is None and len(levels) < len(self.lattice.levels):
            every = ((column, level) for column in opened for level in range(room[column][0] + 1, room[column][1]))
            return next((cell for cell in every if cell not in self._verdicts), None)
        return best[1] if best else None

    def _gains(self, room: Room, levels: Sequence[int], mass: Mass) -> tuple[list[list[float]], list[list[float]]]:
        """For each column and level what a pass and what a failure there would close, in all columns."""
        nothing = [0.0] * len(levels)
        if_fits, if_fails = [], []
        for column, (low, high) in enumerate(room):
            if high - low > 1:
                below, above = mass(column, low), mass(column, high)
                at = [min(above, max(below, mass(column, min(high, max(low, level))))) for level in levels]
                if_fits.append([m - below for m in at])
                if_fails.append([above - m for m in at])
            else:
                if_fits.append(nothing)
                if_fails.append(nothing)
        return self.lattice.summed(if_fits, upward=False), self.lattice.summed(if_fails, upward=True)

    def _worth(self, room: Room, mass: Mass, points: int) -> Callable[[Cell, float, float], tuple[float, float]]:
        """How good it is to run a point, from what a pass and a failure there would close. Ties go to what may fit."""
        expected = self._expected

        def in_the_worst_case(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            return min(if_fits, if_fails), max(if_fits, if_fails)

        def on_a_long_dimension(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            low, high = room[cell[0]]
            below, above = mass(cell[0], low), mass(cell[0], high)
            p = min(1.0, max(0.0, (above - mass(*cell)) / (above - below))) if above > below else 0.5
            return p * if_fits + (1 - p) * if_fails, p

        def by_what_helps_either_way(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            p = min(CERTAINTY, max(1 - CERTAINTY, expected.probability(cell)))
            return p * math.log(if_fits) + (1 - p) * math.log(if_fails), p

        def by_what_remains(cell: Cell, if_fits: float, if_fails: float) -> tuple[float, float]:
            p = min(CERTAINTY, max(1 - CERTAINTY, expected.probability(cell)))
            return -p * math.log(points + 1 - if_fits) - (1 - p) * math.log(points + 1 - if_fails), p

        if expected.source is None:
            return in_the_worst_case
        if self._is_long:
            return on_a_long_dimension
        return by_what_helps_either_way if expected.error > UNSURE else by_what_remains

    @property
    def _is_long(self) -> bool:
        return len(self.lattice.levels) > SHORT

    def _mass(self) -> Mass:
        """How much of a column lies up to a level: points; on a long dimension, the chance that its edge is there."""
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

    def _levels(self, room: Room, opened: list[int], mass: Mass) -> Sequence[int]:
        """The levels worth weighing: all; on a long dimension the middles, and where the limit is expected."""
        if not self._is_long:
            return range(len(self.lattice.levels))
        promising: set[int] = set()
        for column in opened[:: -(-len(opened) // 32)]:
            low, high = room[column]
            below, above = mass(column, low), mass(column, high)
            for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98) if self._expected.source else (0.5,):
                goal = below + share * (above - below)
                at = low + 1 + bisect.bisect_left(range(low + 1, high), goal, key=partial(mass, column))
                promising.update(i for i in (at - 2, at - 1, at, at + 1) if low < i < high)
            promising.update((low + 1, high - 1))
        return sorted(promising)

    # The certificate

    def _edge(self, fits: bool) -> list[Cell]:
        """The maximal points that fit, or the minimal ones that fail: run, and always told the same."""
        cells = [cell for cell, told in self._fits.items() if told is fits]
        beyond = self.lattice.covers if fits else lambda one, other: self.lattice.covers(other, one)
        return sorted(c for c in cells if not any(other != c and beyond(other, c) for other in cells))

    def _largest(self) -> list[Cell]:
        """The best by the objective, and those that tie with it."""
        ranked = {cell: self._ranking(self.lattice.point(cell)) for cell in self._edge(fits=True)}
        best = max((product for product, _ in ranked.values()), default=0.0)
        ties = [cell for cell, (product, _) in ranked.items() if product == best]
        return sorted(ties, key=ranked.__getitem__, reverse=True)

    def _claimed(self) -> Iterable[Cell]:
        """The points on which the answer rests, as `confirm` asks for."""
        if self._confirm == "none":
            return ()
        failing, largest = self._edge(fits=False), self._largest()
        if self._confirm == "all":
            return [*self._edge(fits=True), *failing]
        if not largest:
            return failing
        beside = [self.lattice.neighbour(largest[0], name) for name in self.lattice.dimensions]
        return [largest[0], *dict.fromkeys(f for n in beside if n and (f := self._failure_behind(n)) is not None)]

    def _failure_behind(self, cell: Cell) -> Cell | None:
        """The failure that was run and says that this one fails: itself, or a smaller one."""
        if self._fits.get(cell) is False:
            return cell
        return self._implied_by(cell, fits=False)

    def _implied_by(self, cell: Cell, fits: bool) -> Cell | None:
        """The point that was run and implies that this one fits (or fails); of several, one at the edge."""
        best: Cell | None = None
        for told, told_fits in self._fits.items():
            if told_fits is not fits or told in self._withdrawn or told == cell:
                continue
            nearest = cell if best is None else best
            if self.lattice.covers(told, nearest) if fits else self.lattice.covers(nearest, told):
                best = told
        return best

    def told(self, cell: Cell) -> PointState:
        """What is known of one point."""
        point, attempts = self.lattice.point(cell), len(self._verdicts.get(cell, ()))
        if cell in self._flaky:
            return PointState(point, "flaky", attempts, None)
        if cell in self._fits:
            return PointState(point, "fits" if self._fits[cell] else "fails", attempts, None)
        column, level = cell
        if self._lowest[column] < level < self._highest[column]:
            return PointState(point, "unknown", attempts, None)
        fits = level <= self._lowest[column]
        behind = self._implied_by(cell, fits)
        assert behind is not None
        return PointState(point, "fits" if fits else "fails", attempts, self.lattice.point(behind))

    def found(self) -> SearchResult:
        """The frontier as far as it is known."""
        largest = self._largest()
        unknown, closed = self._counts()
        point = self.lattice.point
        return SearchResult(
            largest=point(largest[0]) if largest else None,
            ties=tuple(point(cell) for cell in largest[1:]),
            fits=tuple(self._evidence(cell) for cell in self._edge(fits=True)),
            fails=tuple(self._evidence(cell) for cell in self._edge(fits=False)),
            untested_between=tuple(self._gaps()),
            monotone=not self._pairs,
            contradictions=tuple(Contradiction(fails=point(low), fits=point(high)) for low, high in self._pairs),
            flaky=tuple(self._evidence(cell) for cell in sorted(self._flaky)),
            silent=tuple(point(cell) for cell in sorted(self._silent)),
            unknown=unknown,
            closed=closed,
            complete=self.ask() is None,
            attempts=self._attempts,
            confirmations=self._confirmations,
            _search=self,
        )

    def _evidence(self, cell: Cell) -> Edge:
        verdicts = tuple(self._verdicts[cell])
        same = sum(verdict.fits is not None for verdict in verdicts) > 1
        return Edge(point=self.lattice.point(cell), verdicts=verdicts, confirmed=same and cell not in self._flaky)

    def _counts(self) -> tuple[int, int]:
        opened = sum(high - low - 1 for low, high in zip(self._lowest, self._highest, strict=True))
        told = [*self._fits, *self._flaky]
        unknown = opened - sum(map(self._is_open, told))
        asked_and_closed = sum(not self._is_open(cell) for cell in self._silent)
        return unknown, len(self.lattice) - unknown - len(told) - asked_and_closed

    def _gaps(self) -> Iterator[Gap]:
        for cell in self._edge(fits=True):
            for name in self.lattice.dimensions:
                failure, unknown = self._beyond(cell, name)
                point = self.lattice.point(cell)
                above, below = point[name], None if failure is None else self.lattice.point(failure)[name]
                whole = isinstance(above, int) and isinstance(below, int)
                if unknown or (below is not None and not (whole and below - above == 1)):
                    yield Gap(point=point, along=name, above=above, below=below, unknown=unknown)

    def _beyond(self, cell: Cell, name: str) -> tuple[Cell | None, int]:
        """The next point along one dimension that does not fit, and how many of unknown state lie before it."""
        unknown, steps = 0, 1
        while (at := self.lattice.neighbour(cell, name, steps)) is not None:
            if at in self._flaky or self._fits.get(at) is False or at[1] >= self._highest[at[0]]:
                return at, unknown
            unknown += at not in self._fits and at[1] > self._lowest[at[0]]
            steps += 1
        return None, unknown


def _even(count: int) -> Callable[[int], float]:
    return lambda level: (level + 1) / (count + 1)


def _logarithmic(levels: Sequence[Number]) -> Callable[[int], float]:
    """Where the edge of an interval lies if every doubling is as likely: 0 before the first level, 1 after the last.

    Bisecting this is doubling at first and halving at the end; on 1..4096 it takes 9 attempts, plain bisection 12.
    """
    shift = max(0, 1 - levels[0])
    first, last = math.log2(levels[0] + shift) - 1, math.log2(levels[-1] + shift) + 1

    def share(level: int) -> float:
        if level < 0:
            return 0.0
        return 1.0 if level >= len(levels) else (math.log2(levels[level] + shift) - first) / (last - first)

    return share
