"""What `--fail-above` takes, and where it begins."""

from __future__ import annotations

import pytest

from sweeper.comparing.thresholds import Threshold
from sweeper.errors import Mistake


@pytest.mark.parametrize(
    ("text", "before", "by", "exceeded"),
    [
        ("2%", 1000, 20, False),
        ("2%", 1000, 21, True),
        ("2%", 1000, -21, True),
        ("0.1 %", 10**15, 10**12, False),
        ("0.1 %", 10**15, 10**12 + 1, True),
        ("0%", 1000, 0, False),
        ("0%", 1000, 1, True),
        ("50MiB", 1, 50 * 2**20, False),
        ("50MiB", 1, 50 * 2**20 + 1, True),
        ("1024B", 1, 1025, True),
    ],
)
def test_a_change_counts_if_it_is_larger(text: str, before: int, by: int, exceeded: bool) -> None:
    assert Threshold.parse(text, "--fail-above").is_exceeded(before, by) is exceeded


@pytest.mark.parametrize("text", ["", "2", "1024", "2 percent", "-2%", "%", "2%%", "50Mi", "nan", "1e3%"])
def test_what_is_neither_a_percentage_nor_a_size_is_a_mistake(text: str) -> None:
    with pytest.raises(Mistake, match=r"--fail-above .*2% or --fail-above 50MiB"):
        Threshold.parse(text, "--fail-above")


@pytest.mark.parametrize("text", ["2 %", "0.5 %", "50MiB"])
def test_a_threshold_is_shown_as_it_is_typed(text: str) -> None:
    assert str(Threshold.parse(text, "--fail-above")) == text
