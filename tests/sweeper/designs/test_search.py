"""The search finds the edge, derives every claim from a point that was run, and ends for any verdicts."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.confirm import Confirm
from sweeper.designs.expectation import Verdict
from sweeper.designs.lattice import LatticePoint
from sweeper.designs.search import AFTER_A_CONTRADICTION, LatticeSearch
from sweeper.interval import Interval
from sweeper.objective import Number, Objective

Truth = Callable[[Mapping[str, Number]], bool | Verdict | None]
GIB = 2**30


@dataclass
class Found:
    """A search, and its attempts in order, each with its reason."""

    search: LatticeSearch
    attempts: list[tuple[LatticePoint, str]] = field(default_factory=list)

    def points(self, places: Sequence[Sequence[float]]) -> list[LatticePoint]:
        lattice = self.search.lattice
        return [lattice.point(lattice.cell_at(place)) for place in places]

    @property
    def largest(self) -> LatticePoint | None:
        return next(iter(self.search.largest), None)

    @property
    def fits(self) -> list[LatticePoint]:
        return self.points(self.search.evidence.largest_fitting)

    @property
    def fails(self) -> list[LatticePoint]:
        return self.points(self.search.evidence.smallest_failing)

    @property
    def flaky(self) -> list[LatticePoint]:
        return [self.search.lattice.point(cell) for cell in self.search.flaky]

    @property
    def undecided(self) -> list[LatticePoint]:
        return [self.search.lattice.point(cell) for cell in self.search.undecided]

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason in self.attempts]

    def verdicts(self, point: Mapping[str, Number]) -> list[bool]:
        """The verdicts that decided a point."""
        verdicts = self.search.verdicts.get(self.search.lattice.cell(point), [])
        return [verdict.fits for verdict in verdicts if verdict.fits is not None]

    def confirmed(self, point: Mapping[str, Number]) -> bool:
        return len(self.verdicts(point)) > 1 and len(set(self.verdicts(point))) == 1

    def state(self, point: Mapping[str, Number]) -> str:
        verdicts = set(self.verdicts(point))
        if len(verdicts) == 2:
            return "flaky"
        fits = verdicts.pop() if verdicts else self.implied(point)
        return "unknown" if fits is None else "fits" if fits else "fails"

    def states(self) -> Iterator[tuple[LatticePoint, str]]:
        for cell in self.search.lattice:
            point = self.search.lattice.point(cell)
            yield point, self.state(point)

    def implied(self, point: Mapping[str, Number]) -> bool | None:
        return self.search.evidence.implied(self.search.lattice.place(self.search.lattice.cell(point)))

    @property
    def unknown(self) -> int:
        """The number of points of unknown state, without listing the points of an interval."""
        lattice, total = self.search.lattice, 0
        for column in lattice.columns:
            fits, fails = self.search.evidence.bounds(len(column), column)
            total += int((len(lattice.levels) if fails is None else fails) - (-1 if fits is None else fits) - 1)
        ran = [lattice.point(cell) for cell in self.search.verdicts]
        return total - sum(self.state(point) != "unknown" and self.implied(point) is None for point in ran)


def run(
    dimensions: Mapping[str, Sequence[Number]],
    truth: Truth,
    known: Sequence[tuple[Mapping[str, Number], Verdict]] = (),
    **options: object,
) -> Found:
    if "confirm" in options:
        options["confirm"] = Confirm.parse(str(options["confirm"]))
    found = Found(LatticeSearch(dimensions, **options))  # type: ignore[arg-type]
    for point, verdict in known:
        found.search.recall(point, verdict)
    while (attempt := found.search.next_attempt()) is not None:
        found.attempts.append((attempt.point, attempt.reason))
        fits = truth(attempt.point)
        found.search.record(fits if isinstance(fits, Verdict) else Verdict(fits))
    return found


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
    found = run({"batch": batches}, lambda p: p["batch"] <= limit)
    assert found.largest == {"batch": answer}
    assert ({"batch": answer}, "search") in found.attempts
    assert ({"batch": answer}, "confirm") in found.attempts
    if limit < 8:
        assert found.fails == [{"batch": answer + 1}]
        assert found.confirmed({"batch": answer + 1})
    else:
        assert found.fails == []
    assert found.unknown == 0


def test_if_nothing_fits_there_is_no_largest_and_the_smallest_was_run_twice():
    found = run({"batch": [1, 2, 4], "context": [128, 256]}, lambda p: False)
    assert found.largest is None
    assert found.fits == []
    assert found.fails == [{"batch": 1, "context": 128}]
    assert found.attempts[-1] == ({"batch": 1, "context": 128}, "confirm")
    assert len(list(found.search.implied())) == 6 - found.reasons.count("search")


def test_if_everything_fits_the_last_point_is_the_answer_and_no_limit_is_claimed():
    found = run({"batch": [1, 2, 4], "context": [128, 256]}, lambda p: True)
    assert found.largest == {"batch": 4, "context": 256}
    assert found.fails == []
    assert found.unknown == 0


def test_one_point_is_a_lattice():
    found = run({"batch": [4]}, lambda p: True)
    assert found.largest == {"batch": 4}
    assert found.reasons == ["search", "confirm"]


def test_only_listed_values_are_run():
    found = run({"batch": [1, 2, 4, 8]}, lambda p: p["batch"] <= 5)
    assert (found.fits, found.fails, found.unknown) == ([{"batch": 4}], [{"batch": 8}], 0)


def test_an_interval_is_searched_to_its_resolution():
    found = run({"context": Interval(256, 131072, 256)}, lambda p: p["context"] <= 5000)
    assert (found.fits, found.fails, found.unknown) == ([{"context": 4864}], [{"context": 5120}], 0)


# Undecided points


def test_a_failure_that_is_not_memory_limits_nothing_and_leaves_larger_points_unknown():
    found = run({"batch": list(range(1, 9))}, lambda p: True if p["batch"] <= 5 else None)
    assert found.largest == {"batch": 5}
    assert found.fails == []
    assert found.unknown == 3
    assert [point["batch"] for point, state in found.states() if state == "unknown"] == [6, 7, 8]
    assert len(found.attempts) == len({point["batch"] for point, _ in found.attempts}) + 1  # one confirmation


def test_a_limit_that_is_not_memory_does_not_cost_the_whole_interval():
    found = run({"batch": Interval(1, 4096)}, lambda p: True if p["batch"] <= 1000 else None)
    assert found.largest == {"batch": 1000}
    assert {"batch": 1001} in found.undecided
    assert found.unknown == 3096
    assert len(found.attempts) <= 30


def test_a_limit_of_memory_below_undecided_points_is_found():
    found = run({"batch": Interval(1, 4096)}, lambda p: None if p["batch"] > 1000 else p["batch"] <= 300)
    assert found.largest == {"batch": 300}
    assert found.fails == [{"batch": 301}]
    assert found.unknown == 0


def test_the_search_continues_beyond_a_single_undecided_point():
    found = run({"batch": list(range(1, 9))}, lambda p: None if p["batch"] == 4 else p["batch"] <= 3)
    assert found.largest == {"batch": 3}
    assert found.fails == [{"batch": 5}]
    assert found.undecided == [{"batch": 4}]
    assert found.unknown == 1


def test_an_undecided_point_below_a_larger_one_that_fits_is_implied():
    found = run({"batch": list(range(1, 9))}, lambda p: None if p["batch"] == 4 else p["batch"] <= 6)
    assert (found.state({"batch": 4}), found.verdicts({"batch": 4})) == ("fits", [])
    assert [point for point, _ in found.attempts].count({"batch": 4}) == 1
    evidence, lattice = found.search.evidence, found.search.lattice
    assert found.points([evidence.implied_by(lattice.place(lattice.cell({"batch": 4}))) or ()]) == [{"batch": 6}]
    assert found.unknown == 0


def test_an_undecided_point_is_tried_once_more_only_if_that_can_help():
    once = Verdict(None)
    twice = Verdict(None, retry=True)
    assert run({"batch": [1]}, in_turn(b1=[once])).reasons == ["search"]
    found = run({"batch": [1]}, in_turn(b1=[twice]))
    assert found.reasons == ["search", "retry"]
    assert (found.undecided, found.unknown) == ([{"batch": 1}], 1)
    found = run({"batch": [1]}, in_turn(b1=[twice, True]))
    assert found.reasons == ["search", "retry", "confirm"]
    assert found.largest == {"batch": 1}


def test_an_undecided_confirmation_leaves_the_point_on_the_edge_and_unconfirmed():
    found = run({"batch": [1]}, in_turn(b1=[True, Verdict(None, retry=True), None]))
    assert found.reasons == ["search", "confirm", "retry"]
    assert found.largest == {"batch": 1}
    assert not found.confirmed({"batch": 1})


# Verdicts that contradict


def test_a_flaky_point_does_not_count_and_the_next_smaller_is_found_and_confirmed():
    verdicts = {f"b{n}": [n <= 6] for n in range(1, 9)} | {"b6": [True, False]}
    found = run({"batch": list(range(1, 9))}, in_turn(**verdicts))
    assert found.largest == {"batch": 5}
    assert found.flaky == [{"batch": 6}]
    assert found.state({"batch": 6}) == "flaky"
    assert ({"batch": 5}, "confirm") in found.attempts
    assert found.search.evidence.consistent
    assert found.unknown == 0


def test_a_failure_that_passes_when_repeated_reopens_what_it_had_decided():
    verdicts = {f"b{n}": [n <= 7] for n in range(1, 9)} | {"b6": [False, True]}
    found = run({"batch": list(range(1, 9))}, in_turn(**verdicts))
    assert found.flaky == [{"batch": 6}]
    assert found.largest == {"batch": 7}
    assert found.fails == [{"batch": 8}]


def test_a_failure_below_a_pass_is_reported_and_what_both_had_decided_is_measured():
    odd = {1: True, 2: True, 3: False, 4: True, 5: True, 6: False, 7: False, 8: False}
    known = [({"batch": 3}, Verdict(False)), ({"batch": 5}, Verdict(True))]
    found = run({"batch": list(range(1, 9))}, lambda p: odd[int(p["batch"])], known)
    evidence = found.search.evidence
    assert not evidence.consistent
    assert {"batch": 3} in found.points(evidence.contradicted_fails)
    assert {"batch": 5} in found.points(evidence.contradicted_fits)
    assert found.largest == {"batch": 5}
    assert found.unknown == 0
    ran = {point["batch"] for point, _ in found.attempts} | {3, 5}
    assert {point["batch"] for point, _ in found.search.implied()} == set(range(1, 9)) - ran
    for point, state in found.states():
        assert state == ("fits" if odd[int(point["batch"])] else "fails")


def test_a_set_without_order_costs_a_bounded_number_of_attempts_and_the_rest_is_unknown():
    known = [({"batch": 1000}, Verdict(False)), ({"batch": 3000}, Verdict(True))]
    found = run({"batch": Interval(1, 4096)}, lambda p: hash((p["batch"], 7)) % 3 > 0, known)
    assert not found.search.evidence.consistent
    assert len(found.attempts) <= AFTER_A_CONTRADICTION + 30
    assert found.unknown > 0


def test_what_an_earlier_run_decided_is_not_run_again():
    known = [({"batch": n}, Verdict(n <= 5)) for n in (2, 5, 6)]
    found = run({"batch": list(range(1, 9))}, lambda p: p["batch"] <= 5, known, confirm="none")
    assert found.attempts == []
    assert found.largest == {"batch": 5}


def at_most(most: int, found: Found) -> None:
    """The search took at most so many attempts, and nothing decided what fits."""
    assert len(found.attempts) <= most
    assert (found.fits, found.fails) == ([], [])


@pytest.mark.parametrize("retry", [False, True])
def test_where_no_attempt_decides_anything_a_few_are_made_and_the_smallest_point_is_one_of_them(retry):
    """An error, a timeout and an unavailable device are all undecided; a point that was killed is tried once more."""
    for expected in ({}, {"limit_bytes": LIMIT, "predictor": memory}):
        found = run(GRID, lambda p: Verdict(None, retry=retry), **expected)
        at_most(4 * (1 + retry), found)
        assert {"batch": 1, "context": 256} in found.undecided


def test_beyond_a_limit_that_is_not_memory_an_expectation_does_not_run_every_point():
    """Contexts above 1024 end in an error, whatever the batch; most of the predicted edge lies there."""
    found = run(GRID, lambda p: with_peaks(p) if p["context"] <= 1024 else None, limit_bytes=LIMIT, predictor=memory)
    blind = run(GRID, lambda p: with_peaks(p) if p["context"] <= 1024 else None)
    assert found.fits == blind.fits == [{"batch": 15, "context": 1024}, {"batch": 16, "context": 768}]
    assert len(found.attempts) <= len(blind.attempts) + 2 <= 30


# The edge


def test_confirm_selects_the_points_that_are_repeated():
    dimensions = {"batch": list(range(1, 9)), "context": list(range(1, 9))}
    counts = {}
    for confirm in ("none", "edge", "all"):
        found = run(dimensions, lambda p: p["batch"] * p["context"] <= 20, confirm=confirm)
        counts[confirm] = found.reasons.count("confirm")
        assert sum(map(found.confirmed, [*found.fits, *found.fails])) == counts[confirm]
    assert counts["none"] == 0
    assert counts["edge"] == 3  # the largest and a failure along each dimension
    assert counts["all"] == len(found.fits) + len(found.fails)


def odd_batches_fail_from_five_on(p: Mapping[str, Number]) -> bool:
    return p["batch"] <= 12 and not (p["batch"] > 4 and p["batch"] % 2)


def test_a_search_alone_never_contradicts_its_assumption_and_an_audit_does():
    """A batch that does not divide evenly takes another kernel: 12 fits, 11 does not."""
    dimensions = {"batch": list(range(1, 17))}
    alone = run(dimensions, odd_batches_fail_from_five_on)
    assert alone.search.evidence.consistent
    assert alone.state({"batch": 11}) == "fits"  # which is wrong
    audited = run(dimensions, odd_batches_fail_from_five_on, confirm="audit:2")
    assert not audited.search.evidence.consistent
    assert not any(state == "fits" for point, state in audited.states() if point["batch"] in (9, 11))


def test_an_audit_finds_a_kernel_that_takes_less_from_some_length_on():
    dimensions = {"batch": [1, 2, 4], "context": [128 * n for n in range(1, 17)]}

    def fits(p: Mapping[str, Number]) -> bool:
        return p["batch"] * p["context"] * (0.5 if p["context"] > 1024 else 1) <= 1000

    assert run(dimensions, fits).search.evidence.consistent
    assert not run(dimensions, fits, confirm="audit:4").search.evidence.consistent


def test_an_audit_runs_implied_points_next_to_the_edge_and_no_more_than_requested():
    dimensions = {"batch": list(range(1, 9)), "context": list(range(1, 9))}
    for confirm, again in (("audit:6", 3), ("none+audit:6", 0), ("all+audit:6", None)):
        found = run(dimensions, lambda p: p["batch"] * p["context"] <= 20, confirm=confirm)
        audited = [point for point, reason in found.attempts if reason == "audit"]
        assert len(audited) == 6
        assert again is None or found.reasons.count("confirm") == again
        assert found.search.evidence.consistent
        edge = [*found.fits, *found.fails]
        for point in audited:  # one step from the edge
            assert any(sum(abs(point[key] - other[key]) for key in point) == 1 for other in edge)
    everything = run({"batch": [1, 2, 3]}, lambda p: p["batch"] <= 2, confirm="audit:100")
    assert {point["batch"] for point, _ in everything.attempts} == {1, 2, 3}


def test_an_audit_of_a_long_interval_lists_nothing():
    found = run({"batch": Interval(1, 10**9)}, lambda p: p["batch"] <= 10**6, confirm="none+audit:4")
    audited = [point["batch"] for point, reason in found.attempts if reason == "audit"]
    assert len(audited) == 4
    assert all(abs(batch - 10**6) < 10 for batch in audited)


def test_the_largest_follows_the_objective_and_ties_come_after_it():
    dimensions = {"batch": [1, 2, 4, 8], "context": [128, 256, 512, 1024]}

    def largest(objective: str) -> list[tuple[Number, ...]]:
        found = run(dimensions, lambda p: p["batch"] * p["context"] <= 1024, objective=Objective.parse(objective))
        return [tuple(point.values()) for point in found.search.largest]

    assert largest("batch") == [(8, 128)]
    assert largest("context") == [(1, 1024)]
    assert largest("batch*context^2") == [(1, 1024)]
    assert largest("tokens") == [(8, 128), (4, 256), (2, 512), (1, 1024)]


def test_an_interrupted_search_knows_what_it_has_found_so_far():
    search = LatticeSearch({"batch": list(range(1, 9))})
    for _ in range(2):
        attempt = search.next_attempt()
        assert attempt is not None
        assert search.next_attempt() == attempt
        search.record(Verdict(attempt.point["batch"] <= 5))
    found = Found(search)
    assert search.next_attempt() is not None
    assert found.unknown > 0
    assert found.unknown + len(list(search.implied())) + 2 == 8
    with pytest.raises(RuntimeError, match="no attempt is pending"):
        LatticeSearch({"batch": [1]}).record(Verdict(True))


def test_several_searches_can_alternate():
    edges = {"float32": 3, "bfloat16": 6}
    searches = {dtype: LatticeSearch({"batch": list(range(1, 9))}) for dtype in edges}
    while attempts := {dtype: each for dtype, search in searches.items() if (each := search.next_attempt())}:
        for dtype, attempt in attempts.items():
            searches[dtype].record(Verdict(attempt.point["batch"] <= edges[dtype]))
    assert {dtype: search.largest for dtype, search in searches.items()} == {
        dtype: [{"batch": edge}] for dtype, edge in edges.items()
    }


# What is expected


def memory(p: Mapping[str, Number]) -> float:
    return 3 * GIB + 0.1 * GIB * p["batch"] + 0.0004 * GIB * p["batch"] * p["context"]


GRID = {"batch": list(range(1, 17)), "context": [256 * n for n in range(1, 17)]}
LIMIT = 11 * GIB


def with_peaks(p: Mapping[str, Number]) -> Verdict:
    return Verdict(memory(p) <= LIMIT, int(memory(p)) if memory(p) <= LIMIT else None)


def searched(found: Found) -> int:
    """The number of attempts that were not confirmations."""
    return found.reasons.count("search")


def test_an_exact_predictor_leaves_little_more_than_the_edge_to_run():
    found = run(GRID, with_peaks, limit_bytes=LIMIT, predictor=memory)
    assert searched(found) <= len(found.fits) + len(found.fails) + 1


def test_a_fit_to_measured_peaks_saves_attempts():
    blind = run(GRID, with_peaks)
    fitted = run(GRID, with_peaks, limit_bytes=LIMIT)
    assert searched(fitted) < searched(blind)
    assert fitted.fits == blind.fits


def test_a_predictor_that_is_off_by_a_factor_is_corrected_by_measured_peaks():
    found = run(GRID, with_peaks, limit_bytes=LIMIT, predictor=lambda p: memory(p) / 2)
    blind = run(GRID, with_peaks)
    assert searched(found) < searched(blind)
    assert found.fits == blind.fits


def test_a_predictor_that_knows_nothing_costs_little():
    blind = run(GRID, with_peaks)
    found = run(GRID, with_peaks, limit_bytes=LIMIT, predictor=lambda p: 7 * GIB)
    assert searched(found) <= searched(blind) + 8


def test_a_predictor_is_called_once_for_each_point():
    calls: list[tuple[Number, ...]] = []

    def predictor(p: Mapping[str, Number]) -> float:
        calls.append(tuple(p.values()))
        return memory(p)

    run(GRID, with_peaks, limit_bytes=LIMIT, predictor=predictor)
    assert len(calls) == len(set(calls)) <= 256


def constant(p: Mapping[str, Number]) -> float:
    """Large weights: all that varies is 3 % of the peak."""
    return 30 * GIB + 0.06 * GIB * (p["batch"] / 16) * (1 + p["context"] / 4096) * 8


def test_a_predictor_whose_error_hides_all_differences_costs_little_more_than_none():
    """Peaks differ by 3 %, which is the claimed error. The search once walked in from a corner: 161 of 256 points."""
    rng = random.Random(7)
    off = {
        key(dict(zip(GRID, at, strict=True))): math.exp(0.03 * rng.gauss(0, 1))
        for at in itertools.product(*GRID.values())
    }
    for limit in (30.2 * GIB, 30.4 * GIB, 30.7 * GIB):
        truth = verdicts_of(constant, limit)
        blind = run(GRID, truth)
        for predictor in (constant, lambda p: constant(p) * off[key(p)], lambda p: 30 * GIB):
            found = run(GRID, truth, limit_bytes=int(limit), predictor=predictor)
            assert found.fits == blind.fits
            assert searched(found) <= 1.25 * searched(blind) + 2


def verdicts_of(peak: Callable[[Mapping[str, Number]], float], limit: float) -> Truth:
    return lambda p: Verdict(peak(p) <= limit, int(peak(p)) if peak(p) <= limit else None)


def test_peaks_that_saturate_below_the_limit_cost_little_more_than_no_peaks():
    """A cache fills what is free, so that near the edge every peak is the limit itself."""

    def saturated(p: Mapping[str, Number]) -> Verdict:
        fits = memory(p) <= LIMIT
        return Verdict(fits, min(LIMIT, int(1.4 * memory(p))) if fits else None)

    blind = run(GRID, saturated)
    for options in ({}, {"predictor": memory}):
        found = run(GRID, saturated, limit_bytes=LIMIT, **options)
        assert found.fits == blind.fits
        assert searched(found) <= 1.25 * searched(blind)


def test_the_same_peak_at_every_point_costs_little_more_than_no_peaks():
    blind = run(GRID, with_peaks)
    found = run(GRID, lambda p: Verdict(memory(p) <= LIMIT, 67_092_480), limit_bytes=LIMIT)
    assert searched(found) <= 1.25 * searched(blind)


@pytest.mark.parametrize("batches", [list(range(1, 65)), Interval(1, 64), Interval(1, 512)])
@pytest.mark.parametrize(
    ("peak", "most"),
    [(lambda p: 4.0 * p["batch"], 5), (lambda p: 30 + 2.0 * p["batch"], 7), (lambda p: 1.0 * p["batch"], 6)],
    ids=["twice as much", "a constant more", "half as much"],
)
def test_a_calculated_start_corrects_itself_after_the_first_measured_peak(batches, peak, most):
    """The start is 31, where 15, 16 or 62 fits; it took up to 17 attempts."""
    truth = verdicts_of(peak, 62.5)
    found = run({"batch": batches}, truth, limit_bytes=62, predictor=lambda p: 2.0 * p["batch"], confirm="none")
    assert found.largest == {"batch": max(b for b in range(1, 65) if peak({"batch": b}) <= 62.5)}
    assert len(found.attempts) <= most


def test_the_fit_uses_every_dimension():
    """The fifth dimension of a search decides most of the memory here."""
    dimensions = {name: [1, 2, 3, 4] for name in ("batch", "context", "new_tokens", "rank", "width")}

    def peak(p: Mapping[str, Number]) -> float:
        return 1000.0 + 10 * p["batch"] * p["context"] + 400 * p["batch"] * p["width"]

    truth = verdicts_of(peak, 4000)
    found = run(dimensions, truth, limit_bytes=4000)
    assert found.search.source == "fit"
    assert searched(found) <= 30 < searched(run(dimensions, truth))


# Long intervals


@pytest.mark.parametrize("edge", [0, 1, 2, 1000, 123_456_789, 10**9])
def test_a_long_interval_is_never_listed(edge):
    found = run({"batch": Interval(1, 10**9)}, lambda p: p["batch"] <= edge)
    assert found.largest == ({"batch": edge} if edge else None)
    assert len(found.attempts) <= 38
    assert found.unknown == 0


def test_the_largest_batch_at_several_contexts_is_one_search():
    dimensions = {"batch": Interval(1, 512), "context": [512, 1024, 2048, 4096]}
    found = run(dimensions, with_peaks, limit_bytes=LIMIT, predictor=lambda p: 1.03 * memory(p))
    for context in dimensions["context"]:
        fitting = [p["batch"] for p, state in found.states() if state == "fits" and p["context"] == context]
        assert max(fitting) == max(n for n in range(1, 513) if memory({"batch": n, "context": context}) <= LIMIT)
    assert searched(found) <= 16
    assert searched(run(dimensions, with_peaks)) <= 36


def test_a_lattice_too_fine_to_search_is_refused_with_the_cure():
    fine = Interval(1, 512)
    with pytest.raises(ValueError, match="give a coarser resolution"):
        LatticeSearch({"batch": fine, "context": fine, "new_tokens": fine})
    with pytest.raises(ValueError, match="needs ascending values"):
        LatticeSearch({"batch": [2, 1]})


# Any set


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
def test_for_any_monotone_set_the_edge_is_right_and_nothing_stays_unknown(drawn, wild, confirm):
    lattice, fits = drawn
    points = set(itertools.product(*lattice.values()))
    options = {} if wild is None else expectations(fits, wild)
    found = run(lattice, lambda p: Verdict(key(p) in fits, 500), confirm=confirm, **options)

    assert set(map(key, found.fits)) == {p for p in fits if not any(q != p and covers(q, p) for q in fits)}
    failing = points - fits
    assert set(map(key, found.fails)) == {p for p in failing if not any(q != p and covers(p, q) for q in failing)}
    assert all((point, "search") in found.attempts for point in (*found.fits, *found.fails))
    assert (found.unknown, found.undecided, found.flaky) == (0, [], [])
    assert found.search.evidence.consistent
    implied = list(found.search.implied())
    assert searched(found) + len(implied) == len(points)
    assert set(found.reasons) <= {"search", "confirm"}
    assert all(state == ("fits" if key(point) in fits else "fails") for point, state in found.states())
    for point, implied_by in implied:
        assert (implied_by, "search") in found.attempts
        pair = key(implied_by), key(point)
        assert covers(*pair) if key(point) in fits else covers(*reversed(pair))
    best = max((math.prod(p[:2]) for p in fits), default=None)
    assert best == (None if found.largest is None else math.prod(key(found.largest)[:2]))


@settings(max_examples=150, deadline=None)
@given(lattices(), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.2]), st.booleans())
def test_whatever_the_verdicts_the_search_ends_and_reports_contradictions(lattice, rng, undecided, repeatable):
    once: dict[tuple[Number, ...], Verdict] = {}

    def verdict(point: Mapping[str, Number]) -> Verdict:
        drawn = Verdict(None, retry=rng.random() < 0.5) if rng.random() < undecided else Verdict(rng.random() < 0.6)
        return once.setdefault(key(point), drawn) if repeatable else drawn

    points = list(itertools.product(*lattice.values()))
    known = [(dict(zip(lattice, p, strict=True)), verdict(dict(zip(lattice, p, strict=True)))) for p in points[::3]]
    found = run(lattice, verdict, known, confirm="all")

    attempts = found.attempts
    assert found.search.next_attempt() is None
    assert max((attempts.count(each) for each in attempts), default=0) <= 1 + (undecided > 0)
    assert len(attempts) <= 4 * len(points)
    states = {key(point): state for point, state in found.states()}
    fits = [at for at, state in states.items() if state == "fits" and True in found.verdicts(named(lattice, at))]
    fails = [at for at, state in states.items() if state == "fails" and False in found.verdicts(named(lattice, at))]
    pairs = {(low, high) for low in fails for high in fits if covers(high, low)}
    evidence = found.search.evidence
    assert set(map(key, found.points(evidence.contradicted_fails))) == {low for low, _ in pairs}
    assert set(map(key, found.points(evidence.contradicted_fits))) == {high for _, high in pairs}
    assert evidence.consistent == (not pairs)
    if repeatable:
        assert found.flaky == []
    assert list(states.values()).count("unknown") == found.unknown
    assert list(states.values()).count("flaky") == len(found.flaky)
    assert len(states) == len(points)
    implied = {key(point): key(implied_by) for point, implied_by in found.search.implied()}
    ran = {found.search.lattice.cell(named(lattice, at)): at for at in points}
    never_run = [at for cell, at in ran.items() if cell not in found.search.verdicts]
    assert set(implied) == {at for at in never_run if states[at] != "unknown"}
    for at, implied_by in implied.items():  # no implication comes from a contradicted verdict
        assert implied_by in (fits if states[at] == "fits" else fails)
        assert not any(implied_by in pair for pair in pairs)
    assert found.largest is None or key(found.largest) in fits


def named(names: Mapping[str, object], at: tuple[Number, ...]) -> LatticePoint:
    return dict(zip(names, at, strict=True))


@settings(max_examples=100, deadline=None)
@given(monotone(), st.data())
def test_a_point_that_is_never_decided_leaves_only_itself_unknown(drawn, data):
    lattice, fits = drawn
    points = list(itertools.product(*lattice.values()))
    undecided = data.draw(st.sampled_from(points))
    found = run(lattice, lambda p: None if key(p) == undecided else key(p) in fits, confirm="none")
    assert [key(point) for point, _ in found.attempts].count(undecided) <= 1
    for point, state in found.states():
        right = "fits" if key(point) in fits else "fails"
        assert state == right or (state == "unknown" and key(point) == undecided)


# The benchmark, on few frontiers


@pytest.mark.slow
def test_the_benchmark_finds_no_wrong_answer():
    script = Path(__file__).parents[3] / "benchmarks" / "search.py"
    ended = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 wrong answers" in ended.stdout
