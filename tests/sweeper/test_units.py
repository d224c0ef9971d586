"""The text of bytes, counts and durations, and the sizes that a user may type."""

from __future__ import annotations

import pytest

from sweeper.plan import typed_value
from sweeper.units import (
    format_both,
    format_bytes,
    format_count,
    format_decimal,
    format_exact,
    format_seconds,
    parse_bytes,
    shown_bytes,
    typed_bytes,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (957_349_888, "913.00 MiB"),
        (2**30, "1.00 GiB"),
        (-3 * 2**20, "-3.00 MiB"),
        (2**50, "1048576.00 GiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_binary_unit_that_they_reach(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_bytes_are_also_shown_exactly_and_in_decimal_units() -> None:
    assert format_exact(957_349_888) == "913.00 MiB (957,349,888 bytes)"
    assert format_both(14 * 10**9) == "14,000,000,000 bytes = 14.00 GB = 13.04 GiB"
    assert format_both(27_362_304) == "27,362,304 bytes = 27.36 MB = 26.09 MiB"
    assert format_both(2048) == "2,048 bytes = 2.05 KB = 2.00 KiB"
    assert format_both(1023) == "1,023 bytes"
    assert [format_decimal(size) for size in (10_790_000_000, 4_200_000, 3_000, 999)] == [
        "10.79 GB", "4.20 MB", "3.00 KB", "999 bytes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "count"),
    [("24GiB", 24 * 2**30), ("24 gb", 24 * 10**9), ("1.5KiB", 1536), ("4096", 4096), ("0.3B", 0), (7, 7)],
)
def test_a_size_is_read_with_its_unit(typed: object, count: int) -> None:
    assert parse_bytes(typed) == count


@pytest.mark.parametrize("typed", ["", "GiB", "-1GiB", "1e9", "1 GiB of it", "1PiB", True, None, 1.5, [1]])
def test_a_value_that_is_no_size_is_none(typed: object) -> None:
    assert parse_bytes(typed) is None


def test_counts_and_durations_have_units() -> None:
    assert [format_count(number, "point") for number in (0, 1, 1200)] == ["0 points", "1 point", "1,200 points"]
    assert [format_seconds(seconds) for seconds in (0.4, 99.4, 125, 9000)] == ["0 s", "99 s", "2 min", "2.5 h"]


@pytest.mark.parametrize("typed", ["24GiB", "64MiB", "3KiB", "1537", "24GB", "500MB"])
def test_bytes_are_shown_as_the_size_that_was_typed(typed: str) -> None:
    assert typed_bytes(parse_bytes(typed)) == typed


def test_a_heading_rounds_a_size_that_is_a_long_number_exactly() -> None:
    rtx_4090 = 24_209_216 * 2**10
    assert (typed_bytes(rtx_4090), shown_bytes(rtx_4090)) == ("24209216KiB", "23.09GiB")
    assert [shown_bytes(count) for count in (24 * 10**9, 24 * 2**30, 0, 1537)] == ["24GB", "24GiB", "0", "1537"]


def test_a_heading_has_whole_seconds_without_decimals() -> None:
    assert [typed_value("timeout", value) for value in (5.0, 0.5, None)] == ["5", "0.5", "null"]
