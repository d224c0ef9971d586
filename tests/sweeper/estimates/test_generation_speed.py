from __future__ import annotations

import pytest

from sweeper.estimates.generation_speed import most_tokens_per_second

STEP = {"weight_bytes": 16_000_000_000, "cache_bytes": 4_000_000_000, "bandwidth_bytes_per_s": 1_000_000_000_000}


def test_a_step_takes_as_long_as_its_bytes_take_to_read() -> None:
    """20 GB at 1 TB/s are 20 ms, in which each of 8 sequences gets a token."""
    speed = most_tokens_per_second(batch=8, **STEP)
    assert speed is not None
    assert speed.seconds_per_step == pytest.approx(0.02)
    assert speed.tokens_per_second == pytest.approx(400)
    assert speed.price_per_million_tokens is None


def test_the_price_of_a_million_tokens_is_that_of_the_time_they_take() -> None:
    """A million tokens at 400 a second take 2,500 s, or 0.694 hours."""
    speed = most_tokens_per_second(batch=8, price_per_hour=3.6, **STEP)
    assert speed is not None
    assert speed.price_per_million_tokens == pytest.approx(2.5)


@pytest.mark.parametrize("unknown", STEP)
def test_no_speed_is_given_where_a_part_of_it_is_not_known(unknown: str) -> None:
    assert most_tokens_per_second(batch=8, **{**STEP, unknown: None}) is None
