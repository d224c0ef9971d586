"""The search says what fits, rests every claim on a point that was run, and ends whatever the verdicts are."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.designs.expectation import Equations, Verdict
from sweeper.designs.search import (
    AFTER_A_CONTRADICTION,
    Contradiction,
    Gap,
    LatticeSearch,
    Number,
    SearchResult,
    search,
)
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import Objective

Truth = Callable[[Mapping[str, Number]], bool | Verdict | None]
GIB = 2**30


def run(
    dimensions: Mapping[str, Sequence[Number]], truth: Truth, **options: object
) -> tuple[SearchResult, list[tuple[dict[str, Number], str]]]:
    """The answer, and every attempt in order with its reason."""
    steps, asked = search(dimensions, **options), []  # type: ignore[arg-type]
    try:
        ask = next(steps)
        while True:
            asked.append((ask.point, ask.reason))
            told = truth(ask.point)
            ask = steps.send(told if isinstance(told, Verdict) else Verdict(told))
    except StopIteration as end:
        found: SearchResult = end.value
        return found, asked


def in_turn(**verdicts: list[bool | Verdict | None]) -> Truth:
    """`b3=[True, False]`: batch=3 passes, then fails; the last verdict stays."""
    return lambda point: (
        verdicts[f"b{point['batch']}"].pop(0)
        if len(verdicts[f"b{point['batch']}"]) > 1
        else (verdicts[f"b{point['batch']}"][0])
    )


# Hand cases


@pytest.mark.parametrize("batches", [list(range(1, 9)), Interval(1, 8)])
@pytest.mark.parametrize(("limit", "answer"), [(1, 1), (6, 6), (7, 7), (8, 8), (9, 8)])
def test_the_edge_is_never_off_by_one_and_both_of_its_sides_were_run(batches, limit, answer):
    found, asked = run({"batch": batches}, lambda p: p["batch"] <= limit)
    assert found.largest == {"batch": answer}
    assert ({"batch": answer}, "search") in asked
    assert ({"batch": answer}, "confirm") in asked
    if limit < 8:
        assert [edge.point for edge in found.fails] == [{"batch": answer + 1}]
        assert found.fails[0].confirmed
    else:
        assert found.fails == ()
    assert found.untested_between == ()
    assert found.unknown == 0


def test_if_nothing_fits_there_is_no_largest_and_the_smallest_was_run_twice():
    found, asked = run({"batch": [1, 2, 4], "context": [128, 256]}, lambda p: False)
    assert found.largest is None
    assert found.fits == ()
    assert [edge.point for edge in found.fails] == [{"batch": 1, "context": 128}]
    assert asked[-1] == ({"batch": 1, "context": 128}, "confirm")
    assert found.closed == 6 - found.attempts


def test_if_everything_fits_the_end_of_what_was_asked_is_the_answer_and_no_limit_is_claimed():
    found, _ = run({"batch": [1, 2, 4], "context": [128, 256]}, lambda p: True)
    assert found.largest == {"batch": 4, "context": 256}
    assert found.fails == ()
    assert found.untested_between == ()


def test_one_point_is_a_lattice():
    found, asked = run({"batch": [4]}, lambda p: True)
    assert found.largest == {"batch": 4}
    assert [reason for _, reason in asked] == ["search", "confirm"]


def test_values_that_were_not_asked_for_are_said_to_be_untested():
    found, _ = run({"batch": [1, 2, 4, 8]}, lambda p: p["batch"] <= 5)
    assert found.untested_between == (Gap(point={"batch": 4}, along="batch", above=4, below=8, unknown=0),)


def test_an_interval_is_known_to_its_resolution():
    found, _ = run({"context": Interval(256, 131072, 256)}, lambda p: p["context"] <= 5000)
    assert found.largest == {"context": 4864}
    assert found.untested_between == (Gap(point={"context": 4864}, along="context", above=4864, below=5120, unknown=0),)


# Points that did not tell


def test_a_failure_that_is_not_memory_limits_nothing_and_leaves_unknown_what_is_above_it():
    found, asked = run({"batch": list(range(1, 9))}, lambda p: True if p["batch"] <= 5 else None)
    assert found.largest == {"batch": 5}
    assert found.fails == ()
    assert found.unknown == 3
    assert found.untested_between == (Gap(point={"batch": 5}, along="batch", above=5, below=None, unknown=3),)
    assert len(asked) == len({point["batch"] for point, _ in asked}) + 1  # only the confirmation twice


def test_a_limit_that_is_not_memory_does_not_cost_the_whole_interval():
    found, asked = run({"batch": Interval(1, 4096)}, lambda p: True if p["batch"] <= 1000 else None)
    assert found.largest == {"batch": 1000}
    assert {"batch": 1001} in found.silent
    assert found.unknown == 3096
    assert len(asked) <= 30


def test_memory_that_ends_below_where_points_fall_silent_is_found_all_the_same():
    found, _ = run({"batch": Interval(1, 4096)}, lambda p: None if p["batch"] > 1000 else p["batch"] <= 300)
    assert found.largest == {"batch": 300}
    assert [edge.point for edge in found.fails] == [{"batch": 301}]
    assert found.unknown == 0


def test_a_single_silent_point_is_gone_round():
    found, _ = run({"batch": list(range(1, 9))}, lambda p: None if p["batch"] == 4 else p["batch"] <= 3)
    assert found.largest == {"batch": 3}
    assert [edge.point for edge in found.fails] == [{"batch": 5}]
    assert found.silent == ({"batch": 4},)
    assert found.untested_between == (Gap(point={"batch": 3}, along="batch", above=3, below=5, unknown=1),)


def test_a_silent_point_that_a_bigger_one_covers_is_implied_by_it():
    found, _ = run({"batch": list(range(1, 9))}, lambda p: None if p["batch"] == 4 else p["batch"] <= 6)
    told = found.told({"batch": 4})
    assert (told.state, told.attempts, told.implied_by) == ("fits", 1, {"batch": 6})
    assert found.unknown == 0


def test_a_point_is_asked_once_more_only_if_its_class_allows_it():
    once = Verdict(None)
    twice = Verdict(None, again=True)
    _, asked = run({"batch": [1]}, in_turn(b1=[once]))
    assert [reason for _, reason in asked] == ["search"]
    found, asked = run({"batch": [1]}, in_turn(b1=[twice]))
    assert [reason for _, reason in asked] == ["search", "again"]
    assert (found.silent, found.unknown, found.attempts) == (({"batch": 1},), 1, 2)
    found, asked = run({"batch": [1]}, in_turn(b1=[twice, True]))
    assert [reason for _, reason in asked] == ["search", "again", "confirm"]
    assert found.largest == {"batch": 1}


def test_a_confirmation_that_does_not_tell_leaves_the_claim_standing_but_unconfirmed():
    found, asked = run({"batch": [1]}, in_turn(b1=[True, Verdict(None, again=True), None]))
    assert [reason for _, reason in asked] == ["search", "confirm", "again"]
    assert found.largest == {"batch": 1}
    assert not found.fits[0].confirmed
    assert (found.attempts, found.confirmations) == (1, 2)


# Verdicts that contradict


def test_a_point_that_passes_sometimes_does_not_count_and_the_next_smaller_is_found_and_confirmed():
    verdicts = {f"b{n}": [n <= 6] for n in range(1, 9)} | {"b6": [True, False]}
    found, asked = run({"batch": list(range(1, 9))}, in_turn(**verdicts))
    assert found.largest == {"batch": 5}
    assert [edge.point for edge in found.flaky] == [{"batch": 6}]
    assert found.told({"batch": 6}).state == "flaky"
    assert ({"batch": 5}, "confirm") in asked
    assert found.monotone
    assert found.untested_between == ()


def test_a_failure_that_passes_when_asked_again_reopens_what_it_had_closed():
    verdicts = {f"b{n}": [n <= 7] for n in range(1, 9)} | {"b6": [False, True]}
    found, _ = run({"batch": list(range(1, 9))}, in_turn(**verdicts))
    assert [edge.point for edge in found.flaky] == [{"batch": 6}]
    assert found.largest == {"batch": 7}
    assert [edge.point for edge in found.fails] == [{"batch": 8}]


def test_a_smaller_failure_below_a_bigger_pass_is_shown_and_what_both_had_closed_is_measured():
    odd = {1: True, 2: True, 3: False, 4: True, 5: True, 6: False, 7: False, 8: False}
    known = [({"batch": 3}, Verdict(False)), ({"batch": 5}, Verdict(True))]
    found, asked = run({"batch": list(range(1, 9))}, lambda p: odd[int(p["batch"])], known=known)
    assert not found.monotone
    assert Contradiction(fails={"batch": 3}, fits={"batch": 5}) in found.contradictions
    assert found.largest == {"batch": 5}
    assert found.unknown == 0
    run_or_implied = {point["batch"] for point, _ in asked} | {3, 5}
    assert {told.point["batch"] for told in found if told.implied_by is None} == run_or_implied
    for told in found:
        assert told.state == ("fits" if odd[int(told.point["batch"])] else "fails")


def test_a_set_without_order_costs_a_bounded_number_of_attempts_and_the_rest_is_unknown():
    known = [({"batch": 1000}, Verdict(False)), ({"batch": 3000}, Verdict(True))]
    found, asked = run({"batch": Interval(1, 4096)}, lambda p: hash((p["batch"], 7)) % 3 > 0, known=known)
    assert not found.monotone
    assert len(asked) <= AFTER_A_CONTRADICTION + 30
    assert found.unknown > 0


def test_what_an_earlier_run_told_is_not_asked_again():
    known = [({"batch": n}, Verdict(n <= 5)) for n in (2, 5, 6)]
    found, asked = run({"batch": list(range(1, 9))}, lambda p: p["batch"] <= 5, known=known, confirm="none")
    assert asked == []
    assert (found.largest, found.attempts) == ({"batch": 5}, 0)


# The certificate


def test_confirm_says_how_much_is_asked_once_more():
    dimensions = {"batch": list(range(1, 9)), "context": list(range(1, 9))}
    counts = {}
    for confirm in ("none", "edge", "all"):
        found, asked = run(dimensions, lambda p: p["batch"] * p["context"] <= 20, confirm=confirm)
        counts[confirm] = found.confirmations
        assert sum(reason == "confirm" for _, reason in asked) == found.confirmations
        assert sum(edge.confirmed for edge in (*found.fits, *found.fails)) == found.confirmations
    assert counts["none"] == 0
    assert counts["edge"] == 3  # the largest and a failure along each dimension
    assert counts["all"] == len(found.fits) + len(found.fails)
    with pytest.raises(Mistake, match="confirm=some: expected edge, all or none"):
        LatticeSearch(dimensions, confirm="some")


def test_the_largest_follows_the_objective_and_ties_are_shown():
    dimensions = {"batch": [1, 2, 4, 8], "context": [128, 256, 512, 1024]}

    def largest(objective: str) -> tuple[object, object]:
        found, _ = run(dimensions, lambda p: p["batch"] * p["context"] <= 1024, objective=Objective.parse(objective))
        return found.largest, {tuple(tie.values()) for tie in found.ties}

    assert largest("batch") == ({"batch": 8, "context": 128}, set())
    assert largest("context") == ({"batch": 1, "context": 1024}, set())
    assert largest("batch*context^2") == ({"batch": 1, "context": 1024}, set())
    best, ties = largest("tokens")
    assert {tuple(best.values()), *ties} == {(1, 1024), (2, 512), (4, 256), (8, 128)}  # type: ignore[attr-defined]


def test_an_interrupted_search_says_what_it_knows_and_that_it_is_not_complete():
    state = LatticeSearch({"batch": list(range(1, 9))})
    for _ in range(2):
        ask = state.ask()
        assert ask is not None
        assert state.ask() == ask
        state.tell(Verdict(ask.point["batch"] <= 5))
    found = state.found()
    assert not found.complete
    assert found.unknown > 0
    assert found.unknown + found.closed + 2 == 8
    with pytest.raises(RuntimeError, match="no attempt was asked for"):
        LatticeSearch({"batch": [1]}).tell(Verdict(True))


def test_searches_run_in_step():
    edges = {"float32": 3, "bfloat16": 6}
    states = {dtype: LatticeSearch({"batch": list(range(1, 9))}) for dtype in edges}
    while asks := {dtype: ask for dtype, state in states.items() if (ask := state.ask())}:
        for dtype, ask in asks.items():
            states[dtype].tell(Verdict(ask.point["batch"] <= edges[dtype]))
    assert {dtype: state.found().largest for dtype, state in states.items()} == {
        dtype: {"batch": edge} for dtype, edge in edges.items()
    }


# What is expected


def memory(p: Mapping[str, Number]) -> float:
    return 3 * GIB + 0.1 * GIB * p["batch"] + 0.0004 * GIB * p["batch"] * p["context"]


GRID = {"batch": list(range(1, 17)), "context": [256 * n for n in range(1, 17)]}
LIMIT = 11 * GIB


def with_peaks(p: Mapping[str, Number]) -> Verdict:
    return Verdict(memory(p) <= LIMIT, int(memory(p)) if memory(p) <= LIMIT else None)


def test_an_exact_predictor_leaves_little_more_than_the_certificate_to_run():
    found, _ = run(GRID, with_peaks, limit_bytes=LIMIT, predictor=memory)
    assert found.attempts <= len(found.fits) + len(found.fails) + 1


def test_peaks_alone_teach_the_search_and_save_attempts():
    blind, _ = run(GRID, with_peaks)
    fitted, _ = run(GRID, with_peaks, limit_bytes=LIMIT)
    assert fitted.attempts < blind.attempts
    assert [edge.point for edge in fitted.fits] == [edge.point for edge in blind.fits]


def test_a_predictor_that_is_off_by_a_factor_is_corrected_by_what_is_seen():
    found, _ = run(GRID, with_peaks, limit_bytes=LIMIT, predictor=lambda p: memory(p) / 2)
    blind, _ = run(GRID, with_peaks)
    assert found.attempts < blind.attempts
    assert found.fits == tuple(found.fits)
    assert {tuple(e.point.values()) for e in found.fits} == {tuple(e.point.values()) for e in blind.fits}


def test_a_predictor_that_knows_nothing_costs_little():
    blind, _ = run(GRID, with_peaks)
    found, _ = run(GRID, with_peaks, limit_bytes=LIMIT, predictor=lambda p: 7 * GIB)
    assert found.attempts <= blind.attempts + 8


def test_a_predictor_is_asked_once_a_point():
    asked: list[tuple[Number, ...]] = []

    def predictor(p: Mapping[str, Number]) -> float:
        asked.append(tuple(p.values()))
        return memory(p)

    run(GRID, with_peaks, limit_bytes=LIMIT, predictor=predictor)
    assert len(asked) == len(set(asked)) <= 256


def test_costs_are_recovered_and_never_negative():
    exact, opposed = Equations(3), Equations(2)
    for a, b in itertools.product((1, 2, 5), (1, 3, 4)):
        exact.add([1, a, a * b], 100 + 7 * a + 2 * a * b)
        opposed.add([1, a], 100 - 7 * a)
    assert exact.nonnegative() == pytest.approx([100, 7, 2], rel=1e-4)
    assert opposed.nonnegative()[1] == 0


# Long intervals


def test_an_interval_has_both_its_ends_and_the_multiples_of_its_resolution():
    assert list(Interval(256, 1024, 256)) == [256, 512, 768, 1024]
    assert list(Interval(1, 1000, 256)) == [1, 256, 512, 768, 1000]
    assert list(Interval(5, 5)) == [5]
    assert list(Interval(3, 4, 10)) == [3, 4]
    assert Interval(1, 10**12)[-1] == 10**12
    assert Interval(1, 10**12).index(123456789) == 123456788
    assert 257 not in Interval(256, 1024, 256)
    for wrong in ((2, 1, 1), (1, 2, 0)):
        with pytest.raises(ValueError, match="an interval needs"):
            Interval(*wrong)


@pytest.mark.parametrize("edge", [0, 1, 2, 1000, 123_456_789, 10**9])
def test_a_long_interval_is_never_written_out(edge):
    found, asked = run({"batch": Interval(1, 10**9)}, lambda p: p["batch"] <= edge)
    assert found.largest == ({"batch": edge} if edge else None)
    assert len(asked) <= 38
    assert found.closed + found.attempts == 10**9


def test_the_largest_batch_at_several_contexts_is_one_search():
    dimensions = {"batch": Interval(1, 512), "context": [512, 1024, 2048, 4096]}
    found, _ = run(dimensions, with_peaks, limit_bytes=LIMIT, predictor=lambda p: 1.03 * memory(p))
    for context in dimensions["context"]:
        fitting = [t.point["batch"] for t in found if t.state == "fits" and t.point["context"] == context]
        assert max(fitting) == max(n for n in range(1, 513) if memory({"batch": n, "context": context}) <= LIMIT)
    assert found.attempts <= 16
    blind, _ = run(dimensions, with_peaks)
    assert blind.attempts <= 36


def test_a_lattice_too_fine_to_search_is_refused_with_the_cure():
    fine = Interval(1, 512)
    with pytest.raises(ValueError, match="give a coarser resolution"):
        LatticeSearch({"batch": fine, "context": fine, "new_tokens": fine})
    with pytest.raises(ValueError, match="needs ascending values"):
        LatticeSearch({"batch": [2, 1]})


# Every set


@st.composite
def lattices(draw: st.DrawFn) -> dict[str, list[int]]:
    names = ("batch", "context", "new_tokens")[: draw(st.integers(1, 3))]
    return {
        name: sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=6 if len(names) < 3 else 4)))
        for name in names
    }


@st.composite
def monotone(draw: st.DrawFn) -> tuple[dict[str, list[int]], set[tuple[int, ...]]]:
    """A lattice, and which of its points fit: everything that is covered by some corners."""
    lattice = draw(lattices())
    points = list(itertools.product(*lattice.values()))
    corners = draw(st.lists(st.sampled_from(points), max_size=5))
    return lattice, {p for p in points if any(covers(corner, p) for corner in corners)}


def covers(big: tuple[Number, ...], small: tuple[Number, ...]) -> bool:
    return all(b >= s for b, s in zip(big, small, strict=True))


def key(point: Mapping[str, Number]) -> tuple[Number, ...]:
    return tuple(point.values())


def expectations(fits: set[tuple[int, ...]], wild: float) -> dict[str, object]:
    """A predictor that is right in some places, and nonsense in others."""
    return {"limit_bytes": 1000, "predictor": lambda p: 900 + 200 * (key(p) not in fits) * math.sin(wild * sum(key(p)))}


@settings(max_examples=150, deadline=None)
@given(monotone(), st.sampled_from([None, 0.0, 1.0, 2.5]), st.sampled_from(["edge", "all", "none"]))
def test_for_any_monotone_set_the_certificate_is_right_and_leaves_nothing_between(drawn, wild, confirm):
    lattice, fits = drawn
    points = set(itertools.product(*lattice.values()))
    options = {} if wild is None else expectations(fits, wild)
    found, asked = run(lattice, lambda p: Verdict(key(p) in fits, 500), confirm=confirm, **options)

    assert {key(edge.point) for edge in found.fits} == {
        p for p in fits if not any(q != p and covers(q, p) for q in fits)
    }
    failing = points - fits
    assert {key(edge.point) for edge in found.fails} == {
        p for p in failing if not any(q != p and covers(p, q) for q in failing)
    }
    assert all((edge.point, "search") in asked for edge in (*found.fits, *found.fails))
    assert (found.unknown, found.silent, found.monotone, found.flaky, found.complete) == (0, (), True, (), True)
    assert found.attempts + found.closed == len(points)
    assert len(asked) == found.attempts + found.confirmations
    for told in found:
        assert told.state == ("fits" if key(told.point) in fits else "fails")
        if told.implied_by is not None:
            assert (told.implied_by, "search") in asked
            pair = key(told.implied_by), key(told.point)
            assert covers(*pair) if told.state == "fits" else covers(*reversed(pair))
    for gap in found.untested_between:  # only between neighbours of the lattice: no value that was asked for lies in it
        values = lattice[gap.along]
        assert gap.unknown == 0
        assert gap.below == values[values.index(int(gap.above)) + 1] > gap.above + 1
        assert key({**gap.point, gap.along: gap.below}) in failing
    best = max((math.prod(p[:2]) for p in fits), default=None)
    assert best == (None if found.largest is None else math.prod(key(found.largest)[:2]))


@settings(max_examples=150, deadline=None)
@given(lattices(), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.2]), st.booleans())
def test_whatever_is_told_the_search_ends_and_reports_what_contradicts(lattice, rng, silent, repeatable):
    once: dict[tuple[Number, ...], Verdict] = {}

    def verdict(point: Mapping[str, Number]) -> Verdict:
        told = Verdict(None, again=rng.random() < 0.5) if rng.random() < silent else Verdict(rng.random() < 0.6)
        return once.setdefault(key(point), told) if repeatable else told

    points = list(itertools.product(*lattice.values()))
    known = [(dict(zip(lattice, p, strict=True)), verdict(dict(zip(lattice, p, strict=True)))) for p in points[::3]]
    found, asked = run(lattice, verdict, known=known, confirm="all")

    assert found.complete
    assert max((asked.count(each) for each in asked), default=0) <= 1 + (silent > 0)
    assert len(asked) <= 4 * len(points)
    told = [t for t in found if t.implied_by is None and t.state in ("fits", "fails")]
    fits = [key(t.point) for t in told if t.state == "fits"]
    fails = [key(t.point) for t in told if t.state == "fails"]
    pairs = {(low, high) for low in fails for high in fits if covers(high, low)}
    assert {(key(c.fails), key(c.fits)) for c in found.contradictions} == pairs
    assert found.monotone == (not pairs)
    if repeatable:
        assert found.flaky == ()
    counted = {state: sum(t.state == state for t in found) for state in ("fits", "fails", "flaky", "unknown")}
    assert counted["unknown"] == found.unknown
    assert counted["flaky"] == len(found.flaky)
    assert sum(counted.values()) == len(points)
    assert found.closed == sum(t.attempts == 0 and t.state != "unknown" for t in found)
    in_pairs = {point for pair in pairs for point in pair}
    for t in found:  # nothing rests on a verdict that was contradicted
        if t.implied_by is not None:
            assert key(t.implied_by) in (fits if t.state == "fits" else fails)
            assert key(t.implied_by) not in in_pairs
    assert found.largest is None or key(found.largest) in fits


@settings(max_examples=100, deadline=None)
@given(monotone(), st.data())
def test_a_point_that_never_tells_costs_the_answer_nothing_but_itself(drawn, data):
    lattice, fits = drawn
    points = list(itertools.product(*lattice.values()))
    dumb = data.draw(st.sampled_from(points))
    found, asked = run(lattice, lambda p: None if key(p) == dumb else key(p) in fits, confirm="none")
    assert [key(point) for point, _ in asked].count(dumb) <= 1
    for told in found:
        right = "fits" if key(told.point) in fits else "fails"
        assert told.state == right or (told.state == "unknown" and key(told.point) == dumb)


# The claims of the benchmark, on few frontiers


def test_the_benchmark_finds_no_wrong_answer():
    script = Path(__file__).parents[3] / "benchmarks" / "search.py"
    ended = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 wrong answers" in ended.stdout
