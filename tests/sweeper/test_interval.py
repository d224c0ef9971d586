"""Whole numbers between two ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.interval import Interval


def test_an_interval_has_both_its_ends_and_the_multiples_of_its_resolution() -> None:
    assert list(Interval(256, 1024, 256)) == [256, 512, 768, 1024]
    assert list(Interval(1, 1000, 256)) == [1, 256, 512, 768, 1000]
    assert list(Interval(5, 5)) == [5]
    assert list(Interval(3, 4, 10)) == [3, 4]
    assert 257 not in Interval(256, 1024, 256)


def test_a_long_interval_is_never_listed() -> None:
    assert Interval(1, 10**12)[-1] == 10**12
    assert Interval(1, 10**12).index(123456789) == 123456788


@pytest.mark.parametrize("wrong", [(2, 1, 1), (1, 2, 0)])
def test_a_wrong_interval_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="an interval needs"):
        Interval(*wrong)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_an_interval_is_the_sequence_of_its_values(low: int, more: int, resolution: int) -> None:
    interval, high = Interval(low, low + more, resolution), low + more
    values = sorted({low, high, *(each for each in range(low, high) if each % resolution == 0)})
    assert list(interval) == values
    assert [interval.index(each) for each in values] == list(range(len(values)))
    assert [each for each in range(-1, high + 2) if each in interval] == values
    assert interval[1:3] == values[1:3]


def test_intervals_with_the_same_values_are_equal() -> None:
    assert Interval(1, 8) == Interval(1, 8, 1)
    assert len({Interval(1, 8), Interval(1, 8, 1), Interval(1, 8, 2)}) == 2
    assert Interval(1, 8) != [*range(1, 9)]


def test_an_interval_prints_as_it_is_typed() -> None:
    assert str(Interval(1, 512)) == "interval(1,512)"


@pytest.mark.parametrize("value", ["3", None, 2.5, (1,)])
def test_an_interval_contains_only_its_values(value: object) -> None:
    assert value not in Interval(1, 8)
