"""Costs that explain totals, and are never negative."""

from __future__ import annotations

import itertools
import random

import pytest

from sweeper.designs.least_squares import Equations

PARTS = [[1.0, a, a * b] for a, b in itertools.product((1.0, 2.0, 5.0), (1.0, 3.0, 4.0))]


def test_costs_are_recovered() -> None:
    equations = Equations(3, PARTS, [100 + 7 * a + 2 * ab for _, a, ab in PARTS])
    assert equations.nonnegative() == pytest.approx([100, 7, 2], rel=1e-4)


def test_a_cost_that_would_be_negative_is_zero() -> None:
    assert Equations(2, [[1, a] for _, a, _ in PARTS], [100 - 7 * a for _, a, _ in PARTS]).nonnegative()[1] == 0


def test_a_first_guess_changes_nothing() -> None:
    equations = Equations(3, PARTS, [50 + 3 * ab for _, _, ab in PARTS])
    for guess in itertools.chain.from_iterable(itertools.combinations(range(3), count) for count in range(4)):
        assert equations.nonnegative(guess) == pytest.approx([50, 0, 3], rel=1e-4, abs=1e-4)


def test_other_equations_count_by_their_weight_and_at_their_scale() -> None:
    few, many = Equations(1, [[1.0]], [100.0]), Equations(1, [[1.0]], [300.0])
    few.include(many, weight=1e-6, scale=2.0)
    assert few.nonnegative() == pytest.approx([100], rel=1e-3)
    few.include(many, weight=1e6, scale=2.0)
    assert few.nonnegative() == pytest.approx([600], rel=1e-3)


def test_no_other_costs_fit_better() -> None:
    """Moving any cost up, or a positive one down, makes the squares of the relative errors larger."""
    rng = random.Random(1)
    for _ in range(50):
        size = rng.randint(1, 6)
        parts = [[rng.uniform(0, 5) for _ in range(size)] for _ in range(rng.randint(1, 12))]
        totals = [rng.uniform(1, 50) for _ in parts]
        costs = Equations(size, parts, totals).nonnegative()
        assert min(costs) >= 0

        def squares(costs: list[float], parts: list[list[float]] = parts, totals: list[float] = totals) -> float:
            found = (sum(map(float.__mul__, costs, row)) for row in parts)
            return sum((each / total - 1) ** 2 for each, total in zip(found, totals, strict=True))

        for place in range(size):
            for step in (-1e-3, 1e-3):
                moved = [cost + step * (at == place) for at, cost in enumerate(costs)]
                assert min(moved) < 0 or squares(moved) > squares(costs) - 1e-7
