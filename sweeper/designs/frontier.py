"""Which points are asked for, and in which order.

A design is a dialogue without I/O: a generator that yields batches of points and is sent the answers to them in the
same order; of points whose turn comes later those that an earlier run has told, else None. Every device gets a dialogue
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from runners.outcome import Status
from runners.point import Attempt, Point, canonical
from sweeper.designs.dialogue import NOTHING, Answer, CalculatedPeaks, Design
from sweeper.designs.expectation import Verdict, interpolated
from sweeper.designs.grid import boustrophedon
from sweeper.designs.lattice import LatticePoint
from sweeper.designs.neighbours import Choice, Neighbours
from sweeper.designs.search import LatticeSearch
from sweeper.errors import Mistake
from sweeper.frontier.evidence import GROWING
from sweeper.interval import Interval
from sweeper.plan import Dimension, Plan, PlannedPoint


def frontier(plan: Plan, calculated: CalculatedPeaks = NOTHING, earlier: Sequence[Point] = ()) -> Design:
    """Only what decides where the edge is, for each combination of the keys that are not searched.

    The searches run in step, so that there is always something to measure. What an attempt implies is not measured, and
    says which attempt that was. What was calculated of the same points is where it begins to look. `earlier`: points
    that the run has attempts at, of which an interval knows those that lie on it.
    """
    searched = [dimension for dimension in plan.dimensions if grows(dimension)]
    others = [dimension for dimension in plan.dimensions if dimension not in searched]
    _refuse_to_search(plan, searched, others)
    neighbours = Neighbours(plan)
    hunts = [PointSearch(plan, choice, searched, calculated) for choice in boustrophedon(others)]  # a mistake ends here
    if _have_interval(searched):
        later = [PlannedPoint(point=each, later=True) for each in earlier if any(hunt.place(each) for hunt in hunts)]
    else:
        later = _written_out(plan, others, searched)
    known: dict[str, tuple[Point, Answer]] = {}
    if later or calculated.comes_first:
        answers_before = yield later
        before = zip(later, answers_before, strict=True)
        known = {each.point.id: (each.point, told) for each, told in before if told is not None}
        hunts = [PointSearch(plan, choice, searched, calculated) for choice in boustrophedon(others)]
    for hunt in hunts:
        hunt.recall(known)
    batch: list[PlannedPoint] = []
    while hunting := [(hunt, asks) for hunt in hunts if (asks := hunt.asks())]:
        batch += [neighbours.of(choice, nth) for _, asks in hunting for choice, nth in asks]
        answers = iter((yield batch))
        for hunt, asks in hunting:
            hunt.hear([told for _ in asks if (told := next(answers)) is not None])
        batch = []
    if not _have_interval(searched):
        yield batch + [implied for hunt in hunts for implied in hunt.implied()]


def searched(plan: Plan) -> list[Point]:
    """A point of each search that has an interval: of what it asked for is known in which dimensions, and no more."""
    along = [each for each in plan.dimensions if grows(each)]
    others = [each for each in plan.dimensions if not grows(each)]
    if plan.design != "frontier" or not _have_interval(along) or _have_interval(others):
        return []
    first = {each.key: each.values[0] for each in along}
    return [plan.settle({**choice, **first}) for choice in boustrophedon(others)]


# --- only what decides ------------------------------------------------------------------------------------------------

# What may have come from outside: the point is tried once more. An error or a deadline would come again.
ONCE_MORE = (Status.KILLED, Status.CRASHED, Status.LOST)


class PointSearch:
    """The search in one combination of what is not searched, in terms of points and answers."""

    def __init__(self, plan: Plan, choice: Choice, searched: Sequence[Dimension], calculated: CalculatedPeaks) -> None:
        self._plan, self._choice = plan, choice
        run = plan.run
        # Points that are measured several times anyway are confirmed by that.
        confirm = "none" if run.repeat_points > 1 or calculated.itself else run.confirm
        dimensions = {each.key: _ascending(each.values) for each in searched}
        try:
            self._search = LatticeSearch(
                dimensions, objective=run.objective, confirm=confirm, **self._expected(dimensions, calculated)
            )
        except ValueError as error:
            raise Mistake(f"design=frontier: {error}") from None
        self._asked: dict[str, int] = {}  # how often, by point of the lattice
        self._attempts: dict[str, str] = {}  # the last attempt that told, by point of the lattice
        self._at: LatticePoint = {}

    def _expected(self, dimensions: Mapping[str, Sequence[Any]], calculated: CalculatedPeaks) -> dict[str, Any]:
        """The predictor that what was calculated of these points makes, and what it is held against."""
        known = []
        for point, peak in calculated.peaks.values():
            at = self._place(point, dimensions)
            if at is not None:
                known.append((at, float(peak)))
        if not known:
            return {}
        first = self._plan.settle({**self._choice, **known[0][0]})
        return {
            "predictor": interpolated(dimensions, known),
            "limit_bytes": first.get("budget") or calculated.total_bytes,
        }

    def asks(self) -> list[tuple[Choice, int]]:
        """What is to be measured next, and the how manieth attempt at it; nothing where the search is over."""
        ask = self._search.next_attempt()
        if ask is None:
            return []
        self._at = ask.point
        before = self._asked.get(canonical(ask.point), 0)
        count = before + (1 if before else self._plan.run.repeat_points)
        self._asked[canonical(ask.point)] = count
        return [({**self._choice, **ask.point}, nth) for nth in range(before + 1, count + 1)]

    def place(self, point: Point) -> LatticePoint | None:
        """Where a point lies, if it is one of those that are searched here."""
        return self._place(point, self._search.lattice.dimensions)

    def _place(self, point: Point, dimensions: Mapping[str, Sequence[Any]]) -> LatticePoint | None:
        at = {key: point.get(key) for key in dimensions}
        there = all(at[key] in values for key, values in dimensions.items())
        return at if there and self._plan.settle({**self._choice, **at}).id == point.id else None

    def recall(self, known: Mapping[str, tuple[Point, Answer]]) -> None:
        """What earlier runs told, by point: it closes others like what is measured now.

        Not where each point is to be measured several times: one attempt of an earlier run does not stand for them.
        """
        if self._plan.run.repeat_points > 1 or not known:
            return
        for at, told in self._placed(known):
            if told.fits is not None:
                self._note(at, told)
                self._asked[canonical(at)] = 1
                self._search.recall(at, _verdict(told))

    def _placed(self, known: Mapping[str, tuple[Point, Answer]]) -> Iterator[tuple[LatticePoint, Answer]]:
        """Those that lie on the lattice: looked up for each of its points, or each looked for on an interval."""
        dimensions = self._search.lattice.dimensions
        if any(isinstance(values, Interval) for values in dimensions.values()):
            places = ((self.place(point), told) for point, told in known.values())
            yield from ((at, told) for at, told in places if at is not None)
            return
        for values in product(*dimensions.values()):
            at = dict(zip(dimensions, values, strict=True))
            found = known.get(self._plan.settle({**self._choice, **at}).id)
            if found is not None:
                yield at, found[1]

    def hear(self, answers: Sequence[Answer]) -> None:
        """The answers to what was asked for last."""
        for told in answers:
            self._note(self._at, told)
        self._search.record(*map(_verdict, answers))

    def _note(self, at: LatticePoint, told: Answer) -> None:
        limit = self._limit(told)
        if limit is not None:
            self._search.set_limit(limit)
        if told.fits is not None and told.attempt is not None:
            point = self._plan.settle({**self._choice, **at})
            self._attempts[canonical(at)] = Attempt(point=point, device=told.device, number=told.attempt).name

    def implied(self) -> Iterator[PlannedPoint]:
        """The points that were not measured because an attempt told how they would end."""
        for at, implied_by in self._search.implied():
            point = self._plan.settle({**self._choice, **at})
            yield PlannedPoint(point=point, because=self._attempts[canonical(implied_by)])

    def _limit(self, told: Answer) -> int | None:
        """What the counter that decides may reach on this device."""
        if told.budget_bytes is not None:
            return told.budget_bytes
        return next((device.total_bytes for device in self._plan.devices if device.name == told.device.name), None)


def _verdict(told: Answer) -> Verdict:
    return Verdict(told.fits, told.used_bytes, retry=told.status in ONCE_MORE)


def grows(dimension: Dimension) -> bool:
    """Whether it can be searched along: numbers, of which more is known never to take less memory."""
    if dimension.key.rpartition(".")[2] not in GROWING:
        return False
    values = dimension.values
    return isinstance(values, Interval) or all(isinstance(each, int | float) and each is not True for each in values)


def _have_interval(dimensions: Iterable[Dimension]) -> bool:
    return any(isinstance(each.values, Interval) for each in dimensions)


def _ascending(values: Sequence[Any]) -> Sequence[Any]:
    return values if isinstance(values, Interval) else sorted(values)


def _refuse_to_search(plan: Plan, searched: Sequence[Dimension], others: Sequence[Dimension]) -> None:
    for dimension in others:
        if isinstance(dimension.values, Interval):
            low, high = dimension.values.low, dimension.values.high
            raise Mistake(
                f"{dimension.key}=interval({low},{high}): nobody knows whether more of it takes more memory;"
                f" list its values, as in {dimension.key}={low},{high}"
            )
    if not searched:
        raise Mistake(
            "design=frontier: there is nothing to search; give batch or context several values, as in"
            " 'batch=interval(1,512)' or batch=1,2,4,8"
        )
    for ends in product(*([each.values[0], each.values[-1]] for each in plan.dimensions)):  # a mistake ends here
        plan.settle({each.key: end for each, end in zip(plan.dimensions, ends, strict=True)})


def _written_out(plan: Plan, others: Sequence[Dimension], searched: Sequence[Dimension]) -> list[PlannedPoint]:
    """Every point, where each has values that can be listed: what was not measured has its row too."""
    points = {point.id: point for choice in boustrophedon([*others, *searched]) for point in [plan.settle(choice)]}
    return [PlannedPoint(point=point, later=True) for point in points.values()]
