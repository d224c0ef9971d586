"""What points that fit and points that fail imply about others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.frontier.evidence import At, Columns, Evidence, could_contradict, covers, maximal, minimal

MOST = 4  # values in each dimension
ended = st.integers(1, 3).flatmap(
    lambda dimensions: st.dictionaries(
        st.tuples(*[st.integers(1, MOST)] * dimensions), st.sampled_from(["fits", "fails", "flaky"]), min_size=1
    )
)


def of(ended: dict[At, str]) -> Evidence:
    fits = [at for at, end in ended.items() if end == "fits"]
    fails = [at for at, end in ended.items() if end != "fits"]
    return Evidence(fits, fails, [at for at, end in ended.items() if end == "flaky"])


def every(ended: dict[At, str]) -> list[At]:
    return list(itertools.product(range(1, MOST + 1), repeat=len(next(iter(ended)))))


def implying(ended: dict[At, str]) -> tuple[list[At], list[At]]:
    """The points that imply others: those that are not flaky and contradict no other one."""
    fits = [at for at, end in ended.items() if end == "fits"]
    fails = [at for at, end in ended.items() if end != "fits"]
    return (
        [at for at in fits if not any(covers(at, other) for other in fails)],
        [at for at in fails if ended[at] == "fails" and not any(covers(other, at) for other in fits)],
    )


def test_a_pass_implies_what_is_smaller_and_a_failure_what_is_larger() -> None:
    evidence = Evidence([(2, 4), (4, 2)], [(4, 4)])
    assert [evidence.implied(at) for at in ((2, 3), (1, 1), (4, 2), (5, 4), (4, 3), (5, 1))] == [
        *(True, True, True, False, None, None)
    ]


def test_a_failure_below_a_pass_is_a_contradiction_and_neither_implies_anything() -> None:
    evidence = Evidence([(1,), (5,)], [(3,), (8,)])
    assert not evidence.consistent
    assert (evidence.contradicted_fits, evidence.contradicted_fails) == ([(5,)], [(3,)])
    assert (evidence.largest_fitting, evidence.smallest_failing) == ([(5,)], [(3,)])
    assert [evidence.implied((at,)) for at in (1, 2, 4, 6, 9)] == [True, None, None, None, False]


def test_the_assumption_held_only_if_an_attempt_could_have_contradicted_it() -> None:
    assert Evidence([(1,)], [(2,)]).monotone is None
    assert Evidence([(1,)], [(2,)], tested=True).monotone is True
    assert Evidence([(2,)], [(1,)]).monotone is False
    assert Evidence([(2,)], [(1,)], tested=True).monotone is False


def test_an_attempt_can_contradict_the_assumption_if_an_earlier_one_implied_its_result() -> None:
    search = [((4,), True), ((6,), False), ((5,), True)]
    assert not could_contradict(search)
    assert could_contradict([*search, ((3,), True)])
    assert could_contradict([*search, ((8,), False)])
    assert could_contradict([*search, ((3,), False)])
    assert not could_contradict([((1, 4), True), ((4, 1), True), ((2, 5), False), ((5, 2), False)])
    grid = [((b, t), b * t < 5) for b in (1, 2, 3) for t in ((1, 2, 3) if b % 2 else (3, 2, 1))]
    assert could_contradict(grid)


def test_a_flaky_failure_is_on_the_edge_and_implies_nothing() -> None:
    evidence = Evidence([(1,)], [(3,), (6,)], flaky=[(3,)])
    assert evidence.smallest_failing == [(3,)]
    assert [evidence.implied((at,)) for at in (4, 6)] == [None, False]


def test_the_earliest_point_and_what_lies_above_it_imply_a_point() -> None:
    evidence = Evidence([(2, 2), (3, 1), (2, 5), (2, 6)], [])
    assert evidence.implied_by((1, 1)) == (2, 6)
    assert evidence.implied_by((3, 1)) == (3, 1)
    assert evidence.implied_by((4, 1)) is None


def test_a_point_without_dimensions_is_evidence_too() -> None:
    assert Evidence([()], []).largest_fitting == [()]
    assert Columns([()]).smallest_above(()) == [()]


@settings(deadline=None)
@given(ended)
def test_the_edge_and_its_contradictions_match_their_definitions(ended: dict[At, str]) -> None:
    evidence = of(ended)
    fits = {at for at, end in ended.items() if end == "fits"}
    fails = ended.keys() - fits
    largest = {at for at in fits if not any(other != at and covers(other, at) for other in fits)}
    smallest = {at for at in fails if not any(other != at and covers(at, other) for other in fails)}
    assert set(evidence.largest_fitting) == set(maximal(fits)) == largest
    assert set(evidence.smallest_failing) == set(minimal(fails)) == smallest
    assert set(evidence.contradicted_fits) == {at for at in fits if any(covers(at, other) for other in fails)}
    assert set(evidence.contradicted_fails) == {at for at in fails if any(covers(other, at) for other in fits)}
    assert evidence.consistent == (not evidence.contradicted_fails)


@settings(deadline=None)
@given(ended)
def test_a_point_is_implied_by_one_that_is_not_contradicted(ended: dict[At, str]) -> None:
    evidence, (fits, fails) = of(ended), implying(ended)
    for at in every(ended):
        larger, smaller = [other for other in fits if covers(other, at)], [each for each in fails if covers(at, each)]
        assert evidence.implied(at) is (True if larger else False if smaller else None)
        assert (evidence.implied_by(at) is None) == (not larger and not smaller)
        assert evidence.implied_by(at) in (None, *maximal(larger), *minimal(smaller))


@settings(deadline=None)
@given(ended)
def test_the_bounds_of_a_column_are_the_levels_that_are_implied(ended: dict[At, str]) -> None:
    evidence, dimensions = of(ended), len(next(iter(ended)))
    for axis in range(dimensions):
        for others in itertools.product(range(1, MOST + 1), repeat=dimensions - 1):
            column = [(*others[:axis], level, *others[axis:]) for level in range(1, MOST + 1)]
            fits = [at[axis] for at in column if evidence.implied(at) is True]
            fails = [at[axis] for at in column if evidence.implied(at) is False]
            assert evidence.bounds(axis, others) == (max(fits, default=None), min(fails, default=None))


@settings(deadline=None)
@given(ended)
def test_the_smallest_points_above_another_are_found(ended: dict[At, str]) -> None:
    columns = Columns(ended)
    assert columns.smallest_above(None) == minimal(ended)
    for at in every(ended):
        assert columns.smallest_above(at) == minimal(other for other in ended if covers(other, at))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_lattice_of_512_times_512_has_bounds_everywhere(axis: int) -> None:
    heights = [512 * 512 // (8 * column) for column in range(1, 513)]  # batch x context up to an eighth of the largest
    fits = [(column, min(height, 512)) for column, height in enumerate(heights, 1)]
    fails = [(column, height + 1) for column, height in enumerate(heights, 1) if height < 512]
    evidence = Evidence(fits, fails)
    assert evidence.consistent
    for value in range(1, 513):
        low, high = evidence.bounds(axis, (value,))
        assert low == min(512, 512 * 512 // (8 * value))
        assert high == (None if low == 512 else (low or 0) + 1)
