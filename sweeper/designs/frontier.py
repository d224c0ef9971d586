"""design=frontier: runs only the points that decide where the edge is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from runners.outcome import Status
from runners.point import Attempt, Point, canonical
from sweeper.confirm import Confirm
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

# Statuses with possible causes outside the point, which is tried once more. An error or a timeout would repeat.
RETRIED = (Status.KILLED, Status.CRASHED, Status.LOST)

GROWING_ALONG = ("batch", "context")  # keys that may follow a searched one

Known = Mapping[str, tuple[Point, Answer]]  # answers of earlier runs, by the point's id


MOST_LISTED = 1 << 14  # points; settling 1000 x 1000 took 21 s and 568 MiB before the first attempt
TOLD = (5, 8, 12, 20, 40)  # attempts after which the number of further ones is expected
MANY = 64  # attempts, of which a remark is made


def frontier(
    plan: Plan,
    calculated: CalculatedPeaks = NOTHING,
    earlier: Sequence[Point] = (),
    remark: Callable[[str], None] = lambda text: None,
) -> Design:
    """One search for each combination of the keys that are not searched. Raises Mistake if a key cannot be searched.

    Every batch has one point of each search. A point whose outcome is implied is not run, and names the attempt that
    implies it. `calculated`: peaks of the same points, at which the searches start. `earlier`: points that the run has
    attempted before; a search whose values are not listed recalls those on its lattice. `remark` is called with
    messages for the user.
    """
    searched = [dimension for dimension in plan.dimensions if grows(dimension)]
    others = [dimension for dimension in plan.dimensions if dimension not in searched]
    _check(plan, searched, others)

    def searches() -> list[PointSearch]:
        return [PointSearch(plan, choice, searched, calculated) for choice in boustrophedon(others)]

    found = searches()
    listed = _is_listed(plan)
    if not listed:
        on_lattice = (point for point in earlier if any(search.place(point) for search in found))
        later = [PlannedPoint(point=point, later=True) for point in on_lattice]
    else:
        later = _all_points(plan, others, searched)
    if later or calculated.comes_first:
        answers_before = yield later
        known = {
            each.point.id: (each.point, answer)
            for each, answer in zip(later, answers_before, strict=True)
            if answer is not None
        }
        found = searches()  # peaks may have been calculated since
        for search in found:
            search.recall(known)
    neighbours, rounds, remarked = Neighbours(plan), 0, False
    while requests := [(search, attempts) for search in found if (attempts := search.next_attempts())]:
        answers = iter((yield [neighbours.of(choice, nth) for _, attempts in requests for choice, nth in attempts]))
        for search, attempts in requests:
            search.record([answer for _ in attempts if (answer := next(answers)) is not None])
        rounds += 1
        if not remarked and rounds in TOLD and (least := sum(search.at_least() for search in found)) >= MANY:
            remarked = True
            cure = "; edge=largest needs fewer" if plan.run.edge == "all" else ""
            remark(f"at least {least} more attempts are expected, on both sides of the edge{cure}")
    if listed:
        yield [implied for search in found for implied in search.implied()]


def searched(plan: Plan) -> list[Point]:
    """One point of each search whose values are not listed, so that its dimensions are recorded instead."""
    along = [each for each in plan.dimensions if grows(each)]
    others = [each for each in plan.dimensions if not grows(each)]
    if plan.design != "frontier" or _is_listed(plan) or _have_interval(others):
        return []
    first = {each.key: each.values[0] for each in along}
    return [plan.settle({**choice, **first}) for choice in boustrophedon(others)]


class PointSearch:
    """The search for one combination of the keys that are not searched, in terms of points and answers."""

    def __init__(self, plan: Plan, choice: Choice, searched: Sequence[Dimension], calculated: CalculatedPeaks) -> None:
        self._plan, self._choice = plan, choice
        run = plan.run
        # Several attempts at each point are a confirmation already.
        confirm = Confirm.parse(run.confirm)
        if run.repeat_points > 1 or calculated.repeats_exactly:
            confirm = replace(confirm, again="none")
        dimensions = {each.key: _ascending(each.values) for each in searched}
        try:
            self._search = LatticeSearch(
                dimensions,
                objective=run.objective,
                confirm=confirm,
                whole_edge=run.edge == "all",
                **self._expected(dimensions, calculated),
            )
        except ValueError as error:
            raise Mistake(f"design=frontier: {error}") from None
        self._counts: dict[str, int] = {}  # attempts planned so far, by point of the lattice
        self._attempts: dict[str, str] = {}  # the last attempt that decided, by point of the lattice
        self._pending: LatticePoint = {}

    def next_attempts(self) -> list[tuple[Choice, int]]:
        """The next point with the number of each attempt at it; nothing if the search is over."""
        attempt = self._search.next_attempt()
        if attempt is None:
            return []
        self._pending = attempt.point
        before = self._counts.get(canonical(attempt.point), 0)
        count = before + (1 if before else self._plan.run.repeat_points)
        self._counts[canonical(attempt.point)] = count
        return [({**self._choice, **attempt.point}, nth) for nth in range(before + 1, count + 1)]

    def at_least(self) -> int:
        """How many more attempts are expected at least."""
        return self._search.at_least()

    def record(self, answers: Sequence[Answer]) -> None:
        """Record the answers to the attempts planned last."""
        for answer in answers:
            self._note(self._pending, answer)
        self._search.record(*map(_verdict, answers))

    def recall(self, known: Known) -> None:
        """Take in answers of earlier runs, which imply others as new ones do.

        With several attempts at each point nothing is recalled, since one earlier attempt does not stand for them.
        """
        if self._plan.run.repeat_points > 1 or not known:
            return
        for at, answer in self._placed(known):
            if answer.fits is not None:
                self._note(at, answer)
                self._counts[canonical(at)] = 1
                self._search.recall(at, _verdict(answer))

    def implied(self) -> Iterator[PlannedPoint]:
        """The points that were not run because an attempt implies how they would end."""
        for at, implied_by in self._search.implied():
            point = self._plan.settle({**self._choice, **at})
            yield PlannedPoint(point=point, because=self._attempts[canonical(implied_by)])

    def place(self, point: Point) -> LatticePoint | None:
        """The place of a point on the lattice, or None if it is not one of its points."""
        return self._place(point, self._search.lattice.dimensions)

    def _expected(self, dimensions: Mapping[str, Sequence[Any]], calculated: CalculatedPeaks) -> dict[str, Any]:
        """A predictor made of calculated peaks, and the limit in bytes; nothing if no peak is known."""
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

    def _place(self, point: Point, dimensions: Mapping[str, Sequence[Any]]) -> LatticePoint | None:
        at = {key: point.get(key) for key in dimensions}
        on_lattice = all(at[key] in values for key, values in dimensions.items())
        return at if on_lattice and self._plan.settle({**self._choice, **at}).id == point.id else None

    def _placed(self, known: Known) -> Iterator[tuple[LatticePoint, Answer]]:
        """The answers on the lattice. Where points are not listed there are fewer answers, which are looked up."""
        dimensions = self._search.lattice.dimensions
        if not _is_listed(self._plan):
            places = ((self.place(point), answer) for point, answer in known.values())
            yield from ((at, answer) for at, answer in places if at is not None)
            return
        for values in product(*dimensions.values()):
            at = dict(zip(dimensions, values, strict=True))
            found = known.get(self._plan.settle({**self._choice, **at}).id)
            if found is not None:
                yield at, found[1]

    def _note(self, at: LatticePoint, answer: Answer) -> None:
        limit = self._limit(answer)
        if limit is not None:
            self._search.set_limit(limit)
        if answer.fits is not None and answer.attempt is not None:
            point = self._plan.settle({**self._choice, **at})
            self._attempts[canonical(at)] = Attempt(point=point, device=answer.device, number=answer.attempt).name

    def _limit(self, answer: Answer) -> int | None:
        """The limit of the deciding counter on this device, in bytes."""
        if answer.budget_bytes is not None:
            return answer.budget_bytes
        return next((device.total_bytes for device in self._plan.devices if device.name == answer.device.name), None)


def _verdict(answer: Answer) -> Verdict:
    return Verdict(answer.fits, answer.used_bytes, retry=answer.status in RETRIED)


def grows(dimension: Dimension) -> bool:
    """Whether a dimension can be searched: it has numbers, and more of its key never takes less memory."""
    if dimension.key.rpartition(".")[2] not in GROWING:
        return False
    values = dimension.values
    return isinstance(values, Interval) or all(isinstance(each, int | float) and each is not True for each in values)


def _is_listed(plan: Plan) -> bool:
    """Whether every point has a row: those of an interval or of a large lattice have none, unless they are measured.

    With edge=largest most points are neither measured nor implied.
    """
    return (
        plan.run.edge == "all"
        and not _have_interval(plan.dimensions)
        and math.prod(len(each.values) for each in plan.dimensions) <= MOST_LISTED
    )


def _have_interval(dimensions: Iterable[Dimension]) -> bool:
    return any(isinstance(each.values, Interval) for each in dimensions)


def _ascending(values: Sequence[Any]) -> Sequence[Any]:
    return values if isinstance(values, Interval) else sorted(values)


def _check(plan: Plan, searched: Sequence[Dimension], others: Sequence[Dimension]) -> None:
    """Raises Mistake if there is nothing to search, an interval of unknown direction, or an invalid corner."""
    for dimension in others:
        if isinstance(dimension.values, Interval):
            low, high = dimension.values.low, dimension.values.high
            raise Mistake(
                f"{dimension.key}={dimension.values}: it is not known whether more of it takes more memory;"
                f" list its values, as in {dimension.key}={low},{high}"
            )
    if not searched:
        raise Mistake(
            "design=frontier: there is nothing to search; give batch or context several values, as in"
            " 'batch=interval(1,512)' or batch=1,2,4,8"
        )
    first = {each.key: each.values[0] for each in plan.dimensions}
    for dimension in searched:
        ends = _ascending(dimension.values)
        small, large = (plan.settle({**first, dimension.key: ends[at]}) for at in (0, -1))
        for key in GROWING_ALONG:
            before, after = small.get(key), large.get(key)
            if before is not None and after is not None and before > after:
                raise Mistake(
                    f"design=frontier: {key} shrinks from {before} to {after} while {dimension.key} grows, so more of"
                    f" {dimension.key} need not take more memory; list its values with design=grid"
                )
    for corner in product(*map(_checked_values, plan.dimensions)):
        plan.settle({each.key: value for each, value in zip(plan.dimensions, corner, strict=True)})


def _checked_values(dimension: Dimension) -> Sequence[Any]:
    """The ends of a dimension, and the first values of an interval: they show whether a divisor divides all of it."""
    values = dimension.values
    first = values[:3] if isinstance(values, Interval) else values[:1]
    return [*first, *values[-1:]][: len(values)]


def _all_points(plan: Plan, others: Sequence[Dimension], searched: Sequence[Dimension]) -> list[PlannedPoint]:
    """Every point of listed values, so that points that are not run have a row too."""
    points = {point.id: point for choice in boustrophedon([*others, *searched]) for point in [plan.settle(choice)]}
    return [PlannedPoint(point=point, later=True) for point in points.values()]
