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

from sweeper.confirm import Confirm
from sweeper.designs.expectation import PREDICTOR_ERROR, Expectation, Predictor, Verdict
from sweeper.designs.lattice import Cell, Lattice, LatticePoint
from sweeper.frontier.evidence import Evidence, covers
from sweeper.objective import TOKENS, Number, Objective

IN_A_ROW = 3  # undecided attempts in a row above other undecided points: not an accident, and the search stops there
AFTER_A_CONTRADICTION = 64  # attempts at points that a withdrawn inference had decided; the others stay unknown


WORTH = 1.1  # without the whole edge, points worth less than this above the largest so far are not searched
CHANCE = 0.1  # nor points that fit less probably than this
CONFIRM_EDGE = Confirm()


class NextAttempt(NamedTuple):
    point: LatticePoint
    reason: str  # search; retry, because the last attempt was undecided; confirm, the same point again; audit


class LatticeSearch:
    """One search: `next_attempt` names the point to run, `record` takes its verdict, `evidence` has the conclusions.

    `limit_bytes` and the peaks in the verdicts belong to the counter that decides whether a point fits. `confirm`: what
    is measured once the edge is found. Without `whole_edge` the search ends when no open point is expected to be
    worth 10 % more than the largest. Raises ValueError for dimensions that cannot be searched (see `Lattice`).
    """

    def __init__(
        self,
        dimensions: Mapping[str, Sequence[Number]],
        *,
        limit_bytes: int | None = None,
        predictor: Predictor | None = None,
        predictor_error: float = PREDICTOR_ERROR,
        objective: Objective = TOKENS,
        confirm: Confirm = CONFIRM_EDGE,
        whole_edge: bool = True,
    ) -> None:
        self.lattice = Lattice(dimensions)
        self.verdicts: dict[Cell, list[Verdict]] = {}
        self.flaky: set[Cell] = set()  # passed and failed
        self._fits: dict[Cell, bool] = {}  # decided, and not flaky
        self._rank = objective.ranking(list(dimensions))
        self._confirm, self._whole_edge = confirm, whole_edge
        self._expected = Expectation(self.lattice, limit_bytes, predictor, predictor_error)
        self._pending: tuple[Cell, str] | None = None
        self._retry: Cell | None = None
        self._repeated: set[Cell] = set()
        self._audited: set[Cell] = set()
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
            self._undecided_in_a_row *= reason in ("confirm", "audit")  # these say nothing about larger points
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
        implied = next(self._to_audit(), None) if len(self._audited) < self._confirm.audits else None
        if implied is None:
            return None
        self._audited.add(implied)
        return implied, "audit"

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
        highest = [above if fails is None else int(fails) for _, fails in bounds]
        return (lowest, highest) if self._whole_edge else self._larger(lowest, highest)

    def _larger(self, lowest: list[int], highest: list[int]) -> tuple[list[int], list[int]]:
        """The bounds of the open points that may be worth more than the largest point so far.

        These are the points that cover it, and those worth `WORTH` more that have a chance to fit.
        """
        largest = self._largest()[:1]
        columns = range(self.lattice.width)
        if self._expected.source is not None:
            chances = partial(self._has_no_chance, largest[0] if largest else None)
            highest = [self._first(chances, column, lowest[column], highest[column]) for column in columns]
        if largest:
            worth = self._rank(self.lattice.point(largest[0]))[0] + math.log(WORTH)
            is_worth = partial(self._is_worth, largest[0], worth)
            lowest = [self._first(is_worth, column, lowest[column], highest[column]) - 1 for column in columns]
        return lowest, highest

    def _most_worth(self, lowest: list[int], highest: list[int]) -> Cell | None:
        """The point with the highest rank among those between the given levels that probably fit."""

        def fails(column: int, level: int) -> bool:
            return self._expected.probability((column, level)) < 0.5

        tops = ((c, self._first(fails, c, lowest[c], highest[c]) - 1) for c in range(self.lattice.width))
        new = [cell for cell in tops if cell[1] > lowest[cell[0]] and cell not in self.verdicts]
        return max(new, key=lambda cell: self._rank(self.lattice.point(cell)), default=None)

    def _has_no_chance(self, largest: Cell | None, column: int, level: int) -> bool:
        is_next = largest is not None and self._covers((column, level), largest)
        return not is_next and self._expected.probability((column, level)) < CHANCE

    def _is_worth(self, largest: Cell, worth: float, column: int, level: int) -> bool:
        at = column, level
        return self._covers(at, largest) or self._rank(self.lattice.point(at))[0] > worth

    def _covers(self, larger: Cell, smaller: Cell) -> bool:
        return covers(self.lattice.place(larger), self.lattice.place(smaller))

    @staticmethod
    def _first(condition: Callable[[int, int], bool], column: int, low: int, high: int) -> int:
        """The first level between two others at which a condition holds, which then holds for all higher ones."""
        return bisect.bisect_left(range(low + 1, high), True, key=partial(condition, column)) + low + 1

    @property
    def source(self) -> str | None:
        """What the expectation comes from at present."""
        return self._expected.source

    @property
    def undecided(self) -> list[Cell]:
        """The points that were run, but that no attempt decided."""
        return [cell for cell in self.verdicts if cell not in self._fits and cell not in self.flaky]

    @property
    def _in_doubt(self) -> bool:
        return bool(self.flaky) or not self.evidence.consistent

    # The most valuable attempt

    def _choice(self) -> Cell | None:
        """The most valuable of the open points, those above undecided ones last."""
        if self._attempts_in_doubt >= AFTER_A_CONTRADICTION:
            return None
        if self._undecided_in_a_row >= IN_A_ROW and not self._fits:
            smallest = (0, 0)  # if nothing decides here either, larger points would not
            return None if smallest in self.verdicts else smallest
        lowest, highest = self._bounds()
        best = self._best(lowest, self._below_undecided(highest, 1), climb=not self._whole_edge)
        if best is not None or self._undecided_in_a_row >= IN_A_ROW:
            return best
        return self._best(lowest, self._below_undecided(highest, 2)) or self._best(lowest, highest)

    def _below_undecided(self, highest: list[int], many: int) -> list[int]:
        """For each column the level from which `many` smaller or equal points are undecided.

        Something other than memory ends there, such as a kernel's limit or the model's positions. A single undecided
        point can be an accident, and one below a decided point is not a limit: the search continues beyond both.
        """
        place = self.lattice.place
        decided = [place(cell) for cell in self._fits]
        limits = [at for at in map(place, self.undecided) if not any(covers(other, at) for other in decided)]
        if len(limits) < many:
            return highest
        highest = list(highest)
        for column, others in enumerate(self.lattice.columns):
            levels = sorted(at[-1] for at in limits if covers(others, at[:-1]))
            if len(levels) >= many:
                highest[column] = min(highest[column], levels[many - 1])
        return highest

    def _best(self, lowest: list[int], highest: list[int], climb: bool = False) -> Cell | None:
        """The most valuable of the points between the given levels that were not run yet.

        Where most attempts decide nothing, the limit has nothing to do with the expected peaks.
        """
        from sweeper.designs.choice import most_valuable  # numpy takes 0.1 s, and most commands search nothing

        undecided = self._undecided_in_a_row > 1 or len(self.undecided) > len(self._fits)
        expected = None if undecided else self._expected
        if climb and expected is not None and expected.source is not None:
            top = self._most_worth(lowest, highest)
            if top is not None:
                return top
        return most_valuable(self.lattice, expected, lowest, highest, self.verdicts)

    def at_least(self) -> int:
        """How many more attempts the search needs at least, if the expectation is right.

        Both sides of the edge have to be run. Without an expectation the sides are those of the simplest edge that the
        results allow: a lower bound.
        """
        from sweeper.designs.choice import remaining

        lowest, highest = self._bounds()
        return remaining(self.lattice, self._expected, lowest, highest, self.verdicts)

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
        """The points that the result depends on, as far as `confirm.again` covers them."""
        if self._confirm.again == "none":
            return ()
        failing, largest = self._cells(self.evidence.smallest_failing), self._largest()
        if self._confirm.again == "all":
            return [*self._cells(self.evidence.largest_fitting), *failing]
        if not largest:
            return failing
        next_to_it = [self.lattice.neighbour(largest[0], name) for name in self.lattice.dimensions]
        return [largest[0], *dict.fromkeys(f for n in next_to_it if n and (f := self._failure_at(n)) is not None)]

    def _to_audit(self) -> Iterator[Cell]:
        """Implied points, nearest to the edge first: one step from a point of the edge, then two, and so on.

        Only these can contradict the assumption of a search, since a search runs nothing that is implied.
        """
        largest = self._largest()
        fitting = [*largest, *(cell for cell in self._cells(self.evidence.largest_fitting) if cell not in largest)]
        sides = (-1, fitting), (1, self._cells(self.evidence.smallest_failing))
        for steps in range(1, self._confirm.audits + len(self.verdicts) + 1):
            for towards, edge in sides:
                for cell in edge:
                    for name in self.lattice.dimensions:
                        at = self.lattice.neighbour(cell, name, towards * steps)
                        if at is not None and at not in self.verdicts and self._is_implied(at):
                            yield at

    def _is_implied(self, cell: Cell) -> bool:
        return self.evidence.implied(self.lattice.place(cell)) is not None

    def _failure_at(self, cell: Cell) -> Cell | None:
        """The failure that was run and decides this point: itself, or a smaller one."""
        if self._fits.get(cell) is False:
            return cell
        implied_by = self.evidence.implied_by(self.lattice.place(cell))
        return None if implied_by is None else self.lattice.cell_at(implied_by)

    def _cells(self, places: Iterable[Sequence[float]]) -> list[Cell]:
        return sorted(map(self.lattice.cell_at, places))
