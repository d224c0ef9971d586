"""design=fit: for each setting and context the peak of one sequence, and the largest batch that fits.

Every round has the next points of all cells. Interpolation only chooses which batches are tried: the answer is a batch
that fitted, next to one that did not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runners.device import Device
from runners.point import Point
from sweeper.designs.dialogue import NOTHING, Answer, CalculatedPeaks, Design
from sweeper.designs.levers import not_worth_a_run, verdict
from sweeper.designs.measured_edges import measured_edges
from sweeper.designs.neighbours import Choice, Neighbours
from sweeper.effects.added_levers import AddedLevers, Verdict, add_levers
from sweeper.effects.fit_levers import Goal, goals
from sweeper.errors import Mistake
from sweeper.fit_cells import LARGEST_BATCH, SETTINGS, Wanted, without_batch
from sweeper.plan import Plan
from sweeper.serving import PAGED, SERVE

OF_SETTINGS = ("workload.method", "workload.checkpointing", "quantize")  # keys in which settings differ
LONGEST_NAME = 40
STRIDE = 4  # from batch to batch where nothing is known, or memory does not grow yet
STEPS = 32  # the least step after two guesses that were too small: a part of the guess
SMALL = 8  # batches up to which a rough guess is likely right


def fit(plan: Plan, calculated: CalculatedPeaks = NOTHING, *_: Any) -> Design:
    """Raises Mistake if there is no cell whose values are valid."""
    cells = [each for each in cells_of(plan) if each.point is not None]
    if calculated.comes_first:
        yield from measured_edges(plan, cells, calculated)
        return
    asked = plan.design_options.get("concurrency")
    searches = [Search(choice=dict(each.values), context=each.context, asked=asked) for each in cells]
    neighbours = Neighbours(plan)
    batch = plan.first_batch or [neighbours.of(search.choice) for search in searches]
    for search, planned in zip(searches, batch, strict=True):
        search.takes_batch = planned.point.get("batch") is not None
        search.used_by_others = planned.point.get("used_by_others")
    answers = yield list(batch)
    for search, answer in zip(searches, answers, strict=True):
        search.record(1, answer)
    fits = {each.point.id: answer.fits for each, answer in zip(batch, answers, strict=True) if answer is not None}
    device = next((answer.device for answer in answers if answer is not None), None)
    # A comparison of cards leaves out what to change: each card has an answer of its own.
    levers = [Adding(plan, goal, device) for goal in (goals(cells, fits) if _is_of_one_card(plan) else ())]
    elsewhere = Elsewhere(calculated.of_others)
    while True:
        for search, planned in zip(searches, batch, strict=True):
            search.elsewhere = elsewhere.peaks_of(planned.point)
        requests = [(search, size) for search in searches for size in search.next(searches)]
        changing = [(adding, choice) for adding in levers if (choice := adding.choice) is not None]
        if not requests and not changing:
            return
        choices: list[Choice] = [{**search.choice, "batch": size} for search, size in requests]
        choices += [dict(changed) for _, changed in changing]
        answers = yield [neighbours.of(choice) for choice in choices]
        for (search, size), answer in zip(requests, answers, strict=False):
            search.record(size, answer)
        for (lever, _choice), answer in zip(changing, answers[len(requests) :], strict=True):
            lever.record(answer)


class Elsewhere:
    """The peaks that cells have on the sweep's other cards, as far as they are known by now."""

    def __init__(self, of_others: Sequence[Mapping[str, tuple[Point, int]]]) -> None:
        self._of_others = of_others
        self._read = [0] * len(of_others)  # of each card: how many of its points are in the cells
        self._cells: dict[str, dict[int, int]] = defaultdict(dict)

    def peaks_of(self, point: Point) -> Mapping[int, int]:
        """By batch, in bytes, without a limit."""
        for place, peaks in enumerate(self._of_others):
            for other, peak in list(peaks.values())[self._read[place] :]:
                self._cells[without_batch(other.values)][int(other.get("batch") or 1)] = peak
            self._read[place] = len(peaks)
        return self._cells[without_batch(point.values)]


def _is_of_one_card(plan: Plan) -> bool:
    return sum(device.is_calculated for device in plan.devices) == 1


class Adding:
    """The levers of one goal: `choice` is the next one to run, None when they are added up."""

    def __init__(self, plan: Plan, goal: Goal, device: Device | None) -> None:
        self.goal = goal
        self.found: AddedLevers | None = None

        def left_out(before: Choice, choice: Choice) -> str | None:
            return not_worth_a_run(plan, {**goal.values, **before}, {**goal.values, **choice}, device)

        self._adding = add_levers(goal.levers, left_out)
        self._next: Choice | None = next(self._adding)

    @property
    def choice(self) -> Choice | None:
        return None if self._next is None else {**self.goal.values, **self._next}

    def record(self, answer: Answer | None) -> None:
        self.send(None if answer is None else verdict(answer))

    def send(self, verdict: Verdict | None) -> None:
        try:
            self._next = self._adding.send(verdict)
        except StopIteration as end:
            self._next, self.found = None, end.value


def cells_of(plan: Plan) -> list[Wanted]:
    """The cells of the table, for a device that the caller names, in the order of its rows.

    A cell whose values are not valid has the reason. Raises Mistake if there is no other one.
    """
    found: list[Wanted] = []
    known: set[str] = set()
    points = plan.design_options["points"]
    order = {each.name: place for place, each in enumerate(SETTINGS)}
    has_contexts = plan.design_options.get("has_contexts", True)
    for choice in points:
        try:
            point, because = plan.settle(choice), None
        except Mistake as mistake:
            point, because = None, str(mistake)
        if point is not None and point.id in known:
            continue
        if point is not None:
            known.add(point.id)
        context = choice.get("context") if point is None else point.get("context")
        found.append(
            Wanted(
                device="",
                setting=setting_of(choice, point),
                context=context if has_contexts else None,
                values=choice,
                point=point,
                because=because,
            )
        )
    if all(each.point is None for each in found):
        raise Mistake(next(each.because for each in found if each.because))
    return sorted(found, key=lambda each: (order.get(each.setting, 0), each.context or 0))


def setting_of(choice: Choice, point: Point | None) -> str:
    """The name of a cell's row: that of the setting whose values it has, else the program's."""
    if point is not None and point.get("workload.cache") == PAGED:
        return SERVE
    has = {key: choice.get(key) if point is None else point.get(key) for key in ("workload", *OF_SETTINGS)}
    for keys in (("workload", *OF_SETTINGS), ("workload", *OF_SETTINGS[:-1])):  # quantize can be typed for all
        for each in SETTINGS:
            if all(each.values.get(key) in (None, has[key]) for key in keys):
                return each.name
    target, argv = (None, None) if point is None else (point.get("workload.target"), point.get("workload.argv"))
    return str(target or " ".join(argv or [str(has["workload"])]))[:LONGEST_NAME]


@dataclass
class Search:
    """The search for the largest batch of one cell."""

    choice: Mapping[str, Any]
    context: int | None
    takes_batch: bool = True
    asked: int | None = None  # a batch that is tried in any case
    used_by_others: int | None = None  # bytes
    peaks: dict[int, int] = field(default_factory=dict)  # by batch, without a limit
    elsewhere: Mapping[int, int] = field(default_factory=dict)  # the same on other cards, which only guides the guesses
    fits: dict[int, bool] = field(default_factory=dict)  # by batch
    limit_bytes: int | None = None
    is_over: bool = False
    width: int = 2 * LARGEST_BATCH  # of what was open before the last round
    misses: int = 0

    def record(self, batch: int, answer: Answer | None) -> None:
        if answer is None or answer.fits is None:
            self.is_over = True  # undecided: a larger batch would be too
            return
        self.fits[batch] = answer.fits
        self.limit_bytes = answer.budget_bytes or _usable(answer, self.used_by_others)
        peak = answer.unlimited_bytes if answer.device.is_calculated else answer.peak_bytes
        if peak is None and answer.fits:  # the allocator gave back what it had cached: there is no more room
            peak = self.limit_bytes
        if peak is not None:
            self.peaks[batch] = peak

    @property
    def largest(self) -> int:
        """Below the smallest that fails: more of the batch may take less memory, and one above is not relied on."""
        failing = self.failing
        return max(
            (batch for batch, fits in self.fits.items() if fits and (failing is None or batch < failing)), default=0
        )

    @property
    def failing(self) -> int | None:
        return min((batch for batch, fits in self.fits.items() if not fits), default=None)

    def next(self, others: Sequence[Search]) -> list[int]:
        """The batches to try next; none if the edge is found."""
        low, high = self.largest, self.failing
        if low > 0 and not self.is_over and self.takes_batch and self.asked not in (None, *self.fits):
            assert self.asked is not None
            return [self.asked]
        if self.is_over or not self.takes_batch or not self.fits or low == 0 or low >= LARGEST_BATCH:
            return []
        width = (LARGEST_BATCH + 1 if high is None else high) - low
        if width <= 1:
            return []
        self.misses = self.misses + 1 if width > self.width // 2 else 0  # the last round left more than half open
        self.width = width
        return [each for each in dict.fromkeys(self._tries(others, low, high)) if low < each < low + width]

    def _tries(self, others: Sequence[Search], low: int, high: int | None) -> Sequence[int]:
        """Both sides of a guess, which are the edge if it is right; the thirds of what is open after a wrong one."""
        if high is not None and self.misses:
            third = (high / low) ** (1 / 3) if high > 4 * low else 1 + (high - low) / 3 / low
            return max(low + 1, int(low * third)), min(high - 1, math.ceil(high / third))
        top = LARGEST_BATCH if high is None else high - 1
        guess = min(max(self._guess(others, low), low), top)
        if len(self._expected) == 1 and guess >= SMALL:  # from other contexts, and rough
            return (guess,)
        step = max(2**self.misses, guess // STEPS)
        return (guess, guess + 1) if self.misses < 2 else (guess + 1, min(top, guess + step))

    def _guess(self, others: Sequence[Search], low: int) -> int:
        """The largest batch that is expected to fit: memory is nearly a straight line in it."""
        line = self._line() or self._line_of_contexts(others)
        if line is None or self.limit_bytes is None or line[0] <= 0:
            return STRIDE * low
        slope, start = line
        return min(int((self.limit_bytes - start) // slope), LARGEST_BATCH)

    @property
    def _expected(self) -> Mapping[int, int]:
        """Peaks by batch, those of other cards where this card's own are not known."""
        return {**self.elsewhere, **self.peaks}

    def _line(self) -> tuple[float, float] | None:
        """Slope and start of the line through the peaks on both sides of the limit, or the two that are nearest."""
        peaks, limit = self._expected, self.limit_bytes
        if len(peaks) < 2 or limit is None:
            return None
        below = max((batch for batch, peak in peaks.items() if peak <= limit), default=None)
        above = min((batch for batch, peak in peaks.items() if peak > limit), default=None)
        if below is None or above is None or below > above:
            below, above = sorted(sorted(peaks, key=lambda batch: abs(peaks[batch] - limit))[:2])
        slope = (peaks[above] - peaks[below]) / (above - below)
        return slope, peaks[below] - slope * below

    def _line_of_contexts(self, others: Sequence[Search]) -> tuple[float, float] | None:
        """The same from batch 1 of another context: memory follows the number of tokens, batch x context."""
        if self.context is None or 1 not in self.peaks:
            return None
        mine = {key: value for key, value in self.choice.items() if key != "context"}
        known = {
            each.context: each.peaks[1]
            for each in others
            if each.context not in (None, self.context) and 1 in each.peaks and each.choice == mine | _at(each.context)
        }
        longer = sorted(context for context in known if context is not None)
        if not longer:
            return None
        own = self.context
        nearest = next((context for context in longer if context > own), longer[-1])
        slope = (known[nearest] - self.peaks[1]) / (nearest - own) * own
        return slope, self.peaks[1] - slope


def _at(context: int | None) -> dict[str, Any]:
    return {"context": context}


def _usable(answer: Answer, used_by_others: int | None) -> int | None:
    card = answer.device.card
    if card is None or card.is_host:
        return None
    others = card.used_by_others_bytes if used_by_others is None else used_by_others
    return card.usable_bytes - (others or 0)
