"""design=frontier: the points it runs, how it uses their answers, and what it reports about all other points."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.device import device_named
from runners.outcome import Outcome, Phase, Status
from runners.point import Attempt, Point
from sweeper.designs.dialogue import NOTHING, Answer, answer, calculated_bytes
from sweeper.designs.frontier import searched
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import TOKENS, Objective
from sweeper.plan import Dimension, Plan, PlannedPoint, RunKeys

RUN = RunKeys(
    name=None, outputs="outputs", python="python", retry=(), resume="same", stop_after_same_error=0,
    objective=TOKENS, heartbeat=0.2, parallel=False,
)  # fmt: skip
Ends = Callable[[Mapping[str, Any], int], Status]  # how an attempt ends, by the values of its point and its number


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
class Dialogue:
    """What a design has run, planned and skipped."""

    attempts: list[tuple[dict[str, Any], int, Status]] = field(default_factory=list)
    planned: dict[str, PlannedPoint] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # point -> the attempt that implies it
    batches: list[int] = field(default_factory=list)

    def statuses(self, **values: Any) -> list[Status]:
        return [status for point, _, status in self.attempts if point == values]


def held(
    plan: Plan, ends: Ends, known: Mapping[int, Status] | None = None, remarks: list[str] | None = None, **peaks: Any
) -> Dialogue:
    """Answer a design until it ends. `known`: how attempts of an earlier run ended, by batch."""
    found = Dialogue()
    design = DESIGNS["frontier"](
        plan,
        NOTHING,
        [Point(values={"batch": batch}) for batch in known or ()],
        remarks.append if remarks is not None else print,
    )
    answers: list[Answer | None] | None = None
    while True:
        try:
            batch = next(design) if answers is None else design.send(answers)
        except StopIteration:
            return found
        answers = []
        for each in batch:
            found.planned.setdefault(each.point.id, each)
            if each.because is not None:
                found.skipped[each.point.id] = each.because
            elif each.later:
                status = (known or {}).get(each.point["batch"])
                answers.append(answered(status, 1) if status else None)
            else:
                values = dict(each.point.values)
                status = ends(values, each.nth)
                found.attempts.append((values, each.nth, status))
                used = peaks["peak"](values) if peaks and status is Status.OK else None
                answers.append(replace(answered(status, each.nth), used_bytes=used, budget_bytes=peaks.get("budget")))
        found.batches.append(sum(not each.later and each.because is None for each in batch))


def answered(status: Status, attempt: int) -> Answer:
    return answer(Outcome(status=status, device=device_named("cpu"), attempt=attempt, oom_scope="device"))


def up_to(limit: float) -> Ends:
    return lambda values, nth: Status.OK if values["batch"] * values.get("context", 1) <= limit else Status.OOM


@pytest.mark.parametrize(("limit", "fits", "fails"), [(0, None, 1), (1, 1, 2), (6, 6, 7), (7, 7, 8), (8, 8, None)])
def test_the_largest_and_the_next_are_measured_and_confirmed(limit: int, fits: int | None, fails: int | None) -> None:
    found = held(plan(batch=range(1, 9)), up_to(limit))
    if fits is not None:
        assert found.statuses(batch=fits) == [Status.OK, Status.OK]
    if fails is not None:
        assert found.statuses(batch=fails) == [Status.OOM, Status.OOM]
    assert len(found.attempts) <= 6


frontiers = st.lists(st.integers(0, 6), min_size=1, max_size=6).map(lambda heights: sorted(heights, reverse=True))


@given(frontiers)
def test_every_point_is_measured_or_names_a_measured_one_that_implies_it(heights: list[int]) -> None:
    """For any monotone set: at each batch the contexts up to its height fit."""

    def ends(values: Mapping[str, Any], nth: int) -> Status:
        return Status.OK if values["context"] <= heights[values["batch"] - 1] else Status.OOM

    found = held(plan(batch=range(1, len(heights) + 1), context=range(1, 7)), ends)
    assert len(found.planned) == len(heights) * 6
    measured = {
        Attempt(point=Point(values=values), device=device_named("cpu"), number=nth).name: (values, status)
        for values, nth, status in found.attempts
    }
    ran = {Point(values=values).id for values, _, _ in found.attempts}
    assert ran | found.skipped.keys() == found.planned.keys()
    assert not ran & found.skipped.keys()
    for id, because in found.skipped.items():
        values, (implying, status) = found.planned[id].point.values, measured[because]
        assert status is ends(values, 1)
        larger, smaller = (implying, values) if status is Status.OK else (values, implying)
        assert all(larger[key] >= smaller[key] for key in values)


def test_values_are_searched_in_ascending_order_however_they_were_typed() -> None:
    found = held(plan(batch=(8, 1, 4, 2)), up_to(2))
    assert found.statuses(batch=2) == [Status.OK, Status.OK]
    assert found.statuses(batch=4) == [Status.OOM, Status.OOM]


def test_an_interval_is_searched_to_its_resolution_and_never_listed() -> None:
    found = held(plan(batch=Interval(1, 10**9, 1000)), up_to(123_456))
    assert found.statuses(batch=123_000) == [Status.OK, Status.OK]
    assert found.statuses(batch=124_000) == [Status.OOM, Status.OOM]
    assert len(found.planned) < 40
    assert not found.skipped


def test_each_value_of_a_key_without_direction_has_its_own_search_and_the_searches_alternate() -> None:
    limits = {"float32": 2, "bfloat16": 4}
    found = held(
        plan(dtype=("float32", "bfloat16"), warmup=(0, 3), batch=range(1, 9)),
        lambda values, nth: Status.OK if values["batch"] <= limits[values["dtype"]] else Status.OOM,
    )
    assert found.batches[:2] == [0, 4]
    for dtype, limit in limits.items():
        for warmup in (0, 3):
            assert found.statuses(dtype=dtype, warmup=warmup, batch=limit) == [Status.OK, Status.OK]
            assert found.statuses(dtype=dtype, warmup=warmup, batch=limit + 1) == [Status.OOM, Status.OOM]


def test_a_point_that_was_killed_is_tried_once_more_and_an_error_is_not() -> None:
    def ends(values: Mapping[str, Any], nth: int) -> Status:
        if values["batch"] == 4:
            return Status.KILLED
        return Status.ERROR if values["batch"] > 4 else Status.OK

    found = held(plan(batch=range(1, 9)), ends)
    assert found.statuses(batch=3)[0] is Status.OK
    assert Counter(values["batch"] for values, _, _ in found.attempts)[4] == 2
    assert all(len(found.statuses(batch=batch)) <= 1 for batch in range(5, 9))
    assert not found.skipped.keys() & {Point(values={"batch": batch}).id for batch in range(5, 9)}


def test_repeat_points_measures_each_point_several_times_and_one_that_fails_once_does_not_fit() -> None:
    def ends(values: Mapping[str, Any], nth: int) -> Status:
        if values["batch"] == 4:
            return Status.OK if nth != 2 else Status.OOM
        return up_to(4)(values, nth)

    found = held(plan(run=replace(RUN, repeat_points=3), batch=range(1, 9)), ends)
    counts = Counter(values["batch"] for values, _, _ in found.attempts)
    assert set(counts.values()) == {3}
    assert counts[3] == 3  # the flaky point implies nothing
    assert {nth for _, nth, _ in found.attempts} == {1, 2, 3}


def test_what_an_earlier_run_decided_is_not_run_again_and_implies_others() -> None:
    found = held(plan(batch=range(1, 9)), up_to(6), known={2: Status.OK, 7: Status.OOM})
    assert found.statuses(batch=7) == [Status.OOM]  # a confirmation
    assert {values["batch"] for values, _, _ in found.attempts} <= {3, 4, 5, 6, 7}
    assert Point(values={"batch": 7}).id in found.skipped[Point(values={"batch": 8}).id]


def test_on_an_interval_what_an_earlier_run_decided_implies_others() -> None:
    found = held(plan(batch=Interval(1, 512)), up_to(300), known={256: Status.OK, 320: Status.OOM, 600: Status.OK})
    assert {values["batch"] for values, _, _ in found.attempts} <= set(range(257, 320))
    assert found.statuses(batch=300) == [Status.OK, Status.OK]
    assert Point(values={"batch": 600}).id not in found.planned
    whole = held(plan(batch=Interval(1, 512)), up_to(300), known={300: Status.OK, 301: Status.OOM})
    assert [(values["batch"], nth) for values, nth, _ in whole.attempts] == [(300, 2), (301, 2)]  # confirmations


def test_what_an_earlier_run_contradicts_is_measured_and_not_implied() -> None:
    """A smaller point failed, and a larger one fits: neither implies anything about the points between them."""

    def ends(values: Mapping[str, Any], nth: int) -> Status:
        return Status.OOM if values["batch"] in (3, 5) else Status.OK

    found = held(plan(batch=range(1, 9)), ends, known={1: Status.OK, 3: Status.OOM, 8: Status.OK})
    assert found.statuses(batch=5)[0] is Status.OOM
    assert {values["batch"] for values, _, _ in found.attempts} >= {4, 5, 6, 7}


def test_among_equally_large_points_the_reported_one_is_confirmed() -> None:
    """2 x 8, 4 x 4 and 8 x 2 are equally many tokens: the table and the search must choose the same one."""
    found = held(plan(context=(1, 2, 4, 8), batch=(1, 2, 4, 8)), up_to(16))
    assert found.statuses(context=2, batch=8) == [Status.OK, Status.OK]
    assert found.statuses(context=4, batch=4) == [Status.OK]
    assert found.statuses(context=8, batch=2) == [Status.OK]


def test_confirm_none_measures_nothing_twice() -> None:
    found = held(plan(run=replace(RUN, confirm="none"), batch=range(1, 9)), up_to(6))
    assert max(Counter(values["batch"] for values, _, _ in found.attempts).values()) == 1


@pytest.mark.parametrize("values", [{"warmup": (0, 1)}, {"dtype": ("float32", "bfloat16")}, {}])
def test_without_a_key_to_search_the_design_is_refused(values: dict[str, Sequence[Any]]) -> None:
    with pytest.raises(Mistake, match="there is nothing to search"):
        held(plan(**values), up_to(1))


def test_an_interval_of_a_key_without_a_direction_is_refused() -> None:
    with pytest.raises(Mistake, match=r"warmup=interval\(0,9\): it is not known"):
        held(plan(warmup=Interval(0, 9), batch=(1, 2)), up_to(1))


def test_other_designs_do_not_list_an_interval() -> None:
    with pytest.raises(Mistake, match="design=frontier searches an interval"):
        next(DESIGNS["grid"](replace(plan(batch=Interval(1, 512)), design="grid")))


def peak(values: Mapping[str, Any]) -> int:
    return 3_000_000 + 20_000 * values["batch"] + 400 * values["batch"] * values["context"]


def within(budget: int) -> Ends:
    return lambda values, nth: Status.OK if peak(values) <= budget else Status.OOM


def test_the_largest_alone_takes_a_few_dozen_attempts_on_two_long_intervals() -> None:
    """The whole edge has more than 500 points on its two sides."""
    along, budget = Interval(1, 512), 24_000_000
    largest = plan(run=replace(RUN, edge="largest"), batch=along, context=along)
    found = held(largest, within(budget), peak=peak, budget=budget)
    assert len(found.attempts) <= 40
    best = max(values["batch"] * values["context"] for values, _, status in found.attempts if status is Status.OK)
    fitting = (b * t for b in range(1, 513) for t in range(1, 513) if peak({"batch": b, "context": t}) <= budget)
    assert best >= max(fitting) / 1.1


@pytest.mark.parametrize("objective", ["tokens", "batch", "context", "batch*context^2"])
def test_the_largest_alone_is_at_the_edge_and_within_a_tenth_of_the_best(objective: str) -> None:
    ranked = Objective.parse(objective)
    values = {"batch": [1, 2, 3, 4, 6, 8, 12, 16], "context": [16, 32, 64, 128, 256, 512]}
    run = replace(RUN, edge="largest", objective=ranked)
    for budget in (3_100_000, 4_000_000, 5_000_000, 9_000_000):
        found = held(plan(run=run, **values), within(budget), peak=peak, budget=budget)
        rank = ranked.ranking(list(values))
        passed = [point for point, _, status in found.attempts if status is Status.OK]
        every = [{"batch": b, "context": t} for b in values["batch"] for t in values["context"]]
        fitting = [point for point in every if peak(point) <= budget]
        assert bool(passed) == bool(fitting)
        if passed:
            assert max(map(rank, passed))[0] >= max(map(rank, fitting))[0] - math.log(1.1) - 1e-9
        assert not found.skipped


def test_a_long_search_of_the_whole_edge_is_announced_early() -> None:
    remarks: list[str] = []
    along = Interval(1, 100)
    found = held(plan(batch=along, context=along), within(7_000_000), remarks=remarks, peak=peak, budget=7_000_000)
    (text,) = remarks
    expected = int(text.split()[2])
    assert text.endswith("more attempts are expected, on both sides of the edge; edge=largest needs fewer")
    assert 64 <= expected <= len(found.attempts)
    assert expected >= len(found.attempts) / 2


def test_a_large_lattice_is_not_listed() -> None:
    """Settling a million points took 21 s and 568 MiB."""
    large = plan(batch=range(1, 1001), context=range(1, 1001))
    design = DESIGNS["frontier"](large)
    assert len(next(design)) == 1
    assert len(searched(large)) == 1
    small = plan(batch=range(1, 101), context=range(1, 101))
    assert len(next(DESIGNS["frontier"](small))) == 10_000
    assert searched(small) == []


def test_a_peak_that_the_limit_cut_is_not_an_answer() -> None:
    """An allocator that freed its cache to make room reserves up to its limit, whatever the point needs."""

    def used(retries: int) -> int | None:
        phase = Phase(
            name="step",
            run_index=0,
            device="cuda:0",
            completed=True,
            peak={"reserved": 7},
            alloc_retries=retries,
        )
        return answer(Outcome(status=Status.OK, device=device_named("cuda:0"), phases=(phase,))).used_bytes

    assert used(0) == 7
    assert used(1) is None


@pytest.mark.parametrize(("device", "expected"), [("sim:h100-80gb", 9), ("sim:cpu", 5)])
def test_a_calculated_start_is_in_the_counter_that_decides_on_the_measured_device(device: str, expected: int) -> None:
    peaks = {"allocated": 7, "reserved": 9, "tensor": 5}
    phase = Phase(name="step", run_index=0, device=device, completed=True, peak=peaks)
    passed = Outcome(status=Status.OK, device=device_named(device), phases=(phase,))
    refused = Outcome(status=Status.OOM, device=device_named(device), oom_scope="device", unlimited=peaks)
    assert calculated_bytes(passed) == calculated_bytes(refused) == expected
    assert calculated_bytes(replace(passed, phases=(replace(phase, alloc_retries=2),))) is None
    assert calculated_bytes(Outcome(status=Status.ERROR, device=device_named(device), phases=(phase,))) is None
