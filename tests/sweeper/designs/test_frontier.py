"""design=frontier as a dialogue: what it asks for, what it makes of the answers, what it says of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.device import device_named
from runners.outcome import Outcome, Status
from runners.point import Attempt, Point
from sweeper.designs.dialogue import NOTHING, Answer, answer
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import TOKENS
from sweeper.plan import Dimension, Plan, PlannedPoint, RunKeys

RUN = RunKeys(
    name=None, outputs="outputs", python="python", retry=(), resume="same", stop_after_same_error=0,
    objective=TOKENS, heartbeat=0.2, parallel=False,
)  # fmt: skip
Ends = Callable[[Mapping[str, Any], int], Status]  # of the values of a point and the how manieth attempt


class Settler:
    def settle(self, choice: Mapping[str, Any]) -> Point:
        return Point(values=dict(choice))


def plan(run: RunKeys = RUN, **values: Sequence[Any]) -> Plan:
    return Plan(
        run=run,
        design="frontier",
        design_options={},
        dimensions=tuple(Dimension(key=key, values=each) for key, each in values.items()),
        devices=(),
        settler=Settler(),
        command=(),
    )


@dataclass
class Told:
    """What the dialogue came to."""

    attempts: list[tuple[dict[str, Any], int, Status]] = field(default_factory=list)
    planned: dict[str, PlannedPoint] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # point -> the attempt that implies it
    batches: list[int] = field(default_factory=list)

    def statuses(self, **values: Any) -> list[Status]:
        return [status for point, _, status in self.attempts if point == values]


def held(asked: Plan, ends: Ends, known: Mapping[int, Status] | None = None) -> Told:
    """The dialogue to its end. `known`: what an earlier run told, by batch."""
    told = Told()
    design = DESIGNS["frontier"](asked, NOTHING, [Point(values={"batch": batch}) for batch in known or ()])
    answers: list[Answer | None] | None = None
    while True:
        try:
            batch = next(design) if answers is None else design.send(answers)
        except StopIteration:
            return told
        answers = []
        for each in batch:
            told.planned.setdefault(each.point.id, each)
            if each.because is not None:
                told.skipped[each.point.id] = each.because
            elif each.later:
                status = (known or {}).get(each.point["batch"])
                answers.append(answered(status, 1) if status else None)
            else:
                values = dict(each.point.values)
                status = ends(values, each.nth)
                told.attempts.append((values, each.nth, status))
                answers.append(answered(status, each.nth))
        told.batches.append(sum(not each.later and each.because is None for each in batch))


def answered(status: Status, attempt: int) -> Answer:
    return answer(Outcome(status=status, device=device_named("cpu"), attempt=attempt, oom_scope="device"))


def up_to(limit: float) -> Ends:
    return lambda values, nth: Status.OK if values["batch"] * values.get("context", 1) <= limit else Status.OOM


@pytest.mark.parametrize(("limit", "fits", "fails"), [(0, None, 1), (1, 1, 2), (6, 6, 7), (7, 7, 8), (8, 8, None)])
def test_the_largest_and_the_next_were_really_measured_and_measured_again(
    limit: int, fits: int | None, fails: int | None
) -> None:
    told = held(plan(batch=range(1, 9)), up_to(limit))
    if fits is not None:
        assert told.statuses(batch=fits) == [Status.OK, Status.OK]
    if fails is not None:
        assert told.statuses(batch=fails) == [Status.OOM, Status.OOM]
    assert len(told.attempts) <= 6


frontiers = st.lists(st.integers(0, 6), min_size=1, max_size=6).map(lambda heights: sorted(heights, reverse=True))


@given(frontiers)
def test_every_point_is_measured_or_names_a_measured_one_that_implies_it(heights: list[int]) -> None:
    """Of any monotone set: for each batch the first contexts up to its height fit."""

    def ends(values: Mapping[str, Any], nth: int) -> Status:
        return Status.OK if values["context"] <= heights[values["batch"] - 1] else Status.OOM

    asked = plan(batch=range(1, len(heights) + 1), context=range(1, 7))
    told = held(asked, ends)
    assert len(told.planned) == len(heights) * 6
    measured = {
        Attempt(point=Point(values=values), device=device_named("cpu"), number=nth).name: (values, status)
        for values, nth, status in told.attempts
    }
    ran = {Point(values=values).id for values, _, _ in told.attempts}
    assert ran | told.skipped.keys() == told.planned.keys()
    assert not ran & told.skipped.keys()
    for id, because in told.skipped.items():
        values, (implying, status) = told.planned[id].point.values, measured[because]
        assert status is ends(values, 1)
        larger, smaller = (implying, values) if status is Status.OK else (values, implying)
        assert all(larger[key] >= smaller[key] for key in values)


def test_values_are_searched_in_ascending_order_however_they_were_typed() -> None:
    told = held(plan(batch=(8, 1, 4, 2)), up_to(2))
    assert told.statuses(batch=2) == [Status.OK, Status.OK]
    assert told.statuses(batch=4) == [Status.OOM, Status.OOM]


def test_an_interval_is_searched_to_its_resolution_and_never_written_out() -> None:
    told = held(plan(batch=Interval(1, 10**9, 1000)), up_to(123_456))
    assert told.statuses(batch=123_000) == [Status.OK, Status.OK]
    assert told.statuses(batch=124_000) == [Status.OOM, Status.OOM]
    assert len(told.planned) < 40
    assert not told.skipped


def test_what_has_no_direction_makes_searches_of_its_own_that_run_in_step() -> None:
    limits = {"float32": 2, "bfloat16": 4}
    told = held(
        plan(dtype=("float32", "bfloat16"), warmup=(0, 3), batch=range(1, 9)),
        lambda values, nth: Status.OK if values["batch"] <= limits[values["dtype"]] else Status.OOM,
    )
    assert told.batches[:2] == [0, 4]
    for dtype, limit in limits.items():
        for warmup in (0, 3):
            assert told.statuses(dtype=dtype, warmup=warmup, batch=limit) == [Status.OK, Status.OK]
            assert told.statuses(dtype=dtype, warmup=warmup, batch=limit + 1) == [Status.OOM, Status.OOM]


def test_a_point_that_was_killed_is_tried_once_more_and_an_error_is_not() -> None:
    def ends(values: Mapping[str, Any], nth: int) -> Status:
        if values["batch"] == 4:
            return Status.KILLED
        return Status.ERROR if values["batch"] > 4 else Status.OK

    told = held(plan(batch=range(1, 9)), ends)
    assert told.statuses(batch=3)[0] is Status.OK
    assert Counter(values["batch"] for values, _, _ in told.attempts)[4] == 2
    assert all(len(told.statuses(batch=batch)) <= 1 for batch in range(5, 9))
    assert not told.skipped.keys() & {Point(values={"batch": batch}).id for batch in range(5, 9)}


def test_repeat_points_measures_each_point_so_often_and_one_that_fails_once_does_not_fit() -> None:
    def ends(values: Mapping[str, Any], nth: int) -> Status:
        if values["batch"] == 4:
            return Status.OK if nth != 2 else Status.OOM
        return up_to(4)(values, nth)

    told = held(plan(run=replace(RUN, repeat_points=3), batch=range(1, 9)), ends)
    counts = Counter(values["batch"] for values, _, _ in told.attempts)
    assert set(counts.values()) == {3}
    assert counts[3] == 3  # what the flaky one implied is not assumed
    assert {nth for _, nth, _ in told.attempts} == {1, 2, 3}


def test_what_an_earlier_run_told_is_not_asked_again_and_closes_others() -> None:
    told = held(plan(batch=range(1, 9)), up_to(6), known={2: Status.OK, 7: Status.OOM})
    assert told.statuses(batch=7) == [Status.OOM]  # once more, to confirm it
    assert {values["batch"] for values, _, _ in told.attempts} <= {3, 4, 5, 6, 7}
    assert Point(values={"batch": 7}).id in told.skipped[Point(values={"batch": 8}).id]


def test_on_an_interval_what_an_earlier_run_told_closes_what_it_implies() -> None:
    told = held(plan(batch=Interval(1, 512)), up_to(300), known={256: Status.OK, 320: Status.OOM, 600: Status.OK})
    assert {values["batch"] for values, _, _ in told.attempts} <= set(range(257, 320))
    assert told.statuses(batch=300) == [Status.OK, Status.OK]
    assert Point(values={"batch": 600}).id not in told.planned
    whole = held(plan(batch=Interval(1, 512)), up_to(300), known={300: Status.OK, 301: Status.OOM})
    assert [(values["batch"], nth) for values, nth, _ in whole.attempts] == [(300, 2), (301, 2)]  # to confirm them


def test_what_an_earlier_run_contradicts_is_measured_and_not_inferred() -> None:
    """A smaller point failed then, and a larger one fits: neither says anything of those between them."""

    def ends(values: Mapping[str, Any], nth: int) -> Status:
        return Status.OOM if values["batch"] in (3, 5) else Status.OK

    told = held(plan(batch=range(1, 9)), ends, known={1: Status.OK, 3: Status.OOM, 8: Status.OK})
    assert told.statuses(batch=5)[0] is Status.OOM
    assert {values["batch"] for values, _, _ in told.attempts} >= {4, 5, 6, 7}


def test_of_points_that_are_as_large_the_one_that_is_reported_is_the_one_that_is_confirmed() -> None:
    """2 x 8, 4 x 4 and 8 x 2 are as many tokens: the table and the search have to mean the same one."""
    told = held(plan(context=(1, 2, 4, 8), batch=(1, 2, 4, 8)), up_to(16))
    assert told.statuses(context=2, batch=8) == [Status.OK, Status.OK]
    assert told.statuses(context=4, batch=4) == [Status.OK]
    assert told.statuses(context=8, batch=2) == [Status.OK]


def test_confirm_none_measures_nothing_twice() -> None:
    told = held(plan(run=replace(RUN, confirm="none"), batch=range(1, 9)), up_to(6))
    assert max(Counter(values["batch"] for values, _, _ in told.attempts).values()) == 1


@pytest.mark.parametrize("values", [{"warmup": (0, 1)}, {"dtype": ("float32", "bfloat16")}, {}])
def test_with_nothing_to_search_it_says_so(values: dict[str, Sequence[Any]]) -> None:
    with pytest.raises(Mistake, match="there is nothing to search"):
        held(plan(**values), up_to(1))


def test_an_interval_of_a_key_without_a_direction_is_refused() -> None:
    with pytest.raises(Mistake, match=r"warmup=interval\(0,9\): it is not known"):
        held(plan(warmup=Interval(0, 9), batch=(1, 2)), up_to(1))


def test_other_designs_do_not_write_an_interval_out() -> None:
    with pytest.raises(Mistake, match="design=frontier searches an interval"):
        next(DESIGNS["grid"](replace(plan(batch=Interval(1, 512)), design="grid")))
