from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeper.effects.memory_fit import SAME_OPERATION, MemoryFit, NotFitted, Size, fit_memory, least_squares

MIB = 2**20
GRID = [Size(batch, context) for batch, context in product((1, 2, 4, 8), (64, 128, 256))]
COSTS = st.fixed_dictionaries(
    {
        "fixed": st.integers(MIB, 2**33),
        "per_sample": st.integers(0, 2**26),
        "per_token": st.integers(0, 2**20),
    }
)


def peak(size: Size, fixed: int, per_sample: int = 0, per_token: int = 0, per_token_squared: int = 0) -> int:
    tokens = size.batch * size.context
    return fixed + per_sample * size.batch + per_token * tokens + per_token_squared * tokens * size.context


def fitted(peaks: dict[Size, int], eager: bool = False) -> MemoryFit:
    found = fit_memory(peaks, eager)
    assert isinstance(found, MemoryFit), found
    return found


def same(found: float | NotFitted | None, bytes: int) -> bool:
    return isinstance(found, float) and found == pytest.approx(bytes, rel=1e-6, abs=1)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 4), st.integers(1, 8))
def test_no_other_non_negative_costs_have_smaller_errors(data: st.DataObject, terms: int, points: int) -> None:
    """The conditions of the optimum: no allowed change of one cost makes the errors smaller."""
    number = st.floats(-10, 10).map(lambda value: round(value, 3))
    columns = np.array([[abs(data.draw(number)) + 0.1 for _ in range(terms)] for _ in range(points)])
    wanted = np.array([data.draw(number) for _ in range(points)])
    found = np.array(least_squares(columns, wanted))
    slope = columns.T @ (columns @ found - wanted)
    assert (found >= 0).all()
    assert (slope >= -1e-6).all()
    assert (np.abs(slope[found > 1e-9]) < 1e-6).all()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_grid_of_costs_has_none_with_smaller_errors(data: st.DataObject) -> None:
    columns = np.array([[1.0, data.draw(st.integers(1, 9))] for _ in range(4)])
    wanted = np.array([float(data.draw(st.integers(-20, 20))) for _ in range(4)])

    tried = np.array(list(product(np.linspace(0, 20, 81), repeat=2)))
    best = ((tried @ columns.T - wanted) ** 2).sum(axis=1).min()
    found = np.array(least_squares(columns, wanted))
    assert ((columns @ found - wanted) ** 2).sum() <= best + 1e-9


@settings(deadline=None, max_examples=40)
@given(COSTS)
def test_a_fit_recovers_the_costs_that_the_peaks_were_computed_from(costs: dict[str, int]) -> None:
    found = fitted({size: peak(size, **costs) for size in GRID})
    assert found.worst < 1e-6
    assert not found.smaller
    for size in (Size(16, 8192), Size(3, 100)):
        assert same(found.at(size), peak(size, **costs))
    at = Size(4, 128)
    assert same(found.of_a_sample(at), costs["per_sample"] + costs["per_token"] * 128)
    assert found.of_a_token(at) == pytest.approx(costs["per_token"], rel=1e-4, abs=1)


@settings(deadline=None, max_examples=40)
@given(COSTS, st.integers(1, 512))
def test_with_eager_attention_a_fit_recovers_the_squared_cost_too(costs: dict[str, int], square: int) -> None:
    found = fitted({size: peak(size, **costs, per_token_squared=square) for size in GRID}, eager=True)
    assert found.worst < 1e-6
    assert same(found.at(Size(16, 4096)), peak(Size(16, 4096), **costs, per_token_squared=square))


@pytest.mark.parametrize(("eager", "squares"), [(False, 0), (True, 1)])
def test_only_eager_attention_has_a_squared_term(eager: bool, squares: int) -> None:
    found = fitted({size: peak(size, MIB, 0, 1000, 30) for size in GRID}, eager)
    assert list(found.costs).count("per_token_squared") == squares
    assert (found.worst > SAME_OPERATION) is not eager


@settings(deadline=None, max_examples=40)
@given(st.integers(1_000, 1_000_000), st.integers(MIB, 64 * MIB), st.integers(0, 4))
def test_only_points_whose_peak_another_operation_sets_are_left_out(token: int, fixed: int, few: int) -> None:
    line = {size: peak(size, fixed, 0, token) for size in GRID}
    floor = sorted(line.values())[few]
    found = fitted({size: max(floor, at) for size, at in line.items()})
    assert found.worst <= SAME_OPERATION
    assert set(found.smaller) <= {size for size, at in line.items() if at < floor}
    if found.smaller:  # else the floor is near enough to the line
        assert found._bytes(Size(16, 512)) == pytest.approx(peak(Size(16, 512), fixed, 0, token), rel=0.02)


def test_sizes_whose_peak_another_operation_sets_are_not_calculated() -> None:
    floor, token = 120 * MIB, 200_000
    found = fitted({size: max(floor, peak(size, 50 * MIB, 0, token)) for size in GRID})
    assert set(found.smaller) == {size for size in GRID if peak(size, 50 * MIB, 0, token) < floor}
    assert isinstance(found.at(Size(1, 64)), NotFitted)
    assert same(found.at(Size(8, 512)), peak(Size(8, 512), 50 * MIB, 0, token))


def test_peaks_that_fit_no_form_are_all_kept_and_the_error_is_reported() -> None:
    uneven = {size: round(peak(size, MIB, 0, 5000) * (1.1 if size.batch in (2, 8) else 1)) for size in GRID}
    found = fitted(uneven)
    assert len(found.peaks) == len(GRID)
    assert found.worst > 0.02
    assert max(map(abs, found.residuals.values())) == found.worst


def test_a_dimension_that_was_not_varied_has_no_cost() -> None:
    along_batch = fitted({Size(batch, 64): peak(Size(batch, 64), MIB, 10, 100) for batch in (1, 2, 4)})
    assert same(along_batch.of_a_sample(Size(4, 64)), 10 + 64 * 100)
    assert along_batch.of_a_token(Size(4, 64)) is None
    assert along_batch.at(Size(8, 128)) == NotFitted("measured at context=64 only")
    along_context = fitted({Size(2, context): peak(Size(2, context), MIB, 10, 100) for context in (64, 128, 256)})
    assert same(along_context.of_a_token(Size(2, 64)), 100)
    assert along_context.of_a_sample(Size(2, 64)) is None
    assert along_context.at(Size(4, 64)) == NotFitted("measured at batch=2 only")


def test_with_as_many_points_as_terms_the_error_is_not_known() -> None:
    found = fitted({size: peak(size, MIB, 10, 100) for size in (Size(1, 64), Size(2, 64), Size(1, 128))})
    assert found.is_exact_by_count
    assert same(found.at(Size(4, 256)), peak(Size(4, 256), MIB, 10, 100))


@pytest.mark.parametrize(
    ("sizes", "eager", "because"),
    [
        ([(1, 64)], False, "neither batch nor context was varied"),
        ([(1, 64), (2, 128)], False, "(fixed, per_sample, per_token) are needed, and 2 passed"),
        ([(1, 64), (2, 64), (1, 128), (2, 128)], True, "needs 3 contexts, there are 2"),
        ([(1, 64), (2, 32), (4, 16), (8, 8)], False, "do not separate"),
    ],
)
def test_a_fit_without_enough_points_is_refused(sizes: list[tuple[int, int]], eager: bool, because: str) -> None:
    found = fit_memory({Size(*size): 1000 for size in sizes}, eager)
    assert isinstance(found, NotFitted)
    assert because in found.because


def test_a_phase_with_peaks_of_zero_costs_nothing() -> None:
    found = fitted(dict.fromkeys(GRID, 0))
    assert found.at(Size(100, 100)) == 0
    assert found.worst == 0
