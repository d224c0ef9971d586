"""What a row decided, as one of five marks. Each has a shape of its own, since a colour is lost in print. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from runners.outcome import Status
from sweeper.rows import Row


class Mark(str, Enum):
    FITS = "fits"
    FAILS = "fails"
    PARTIAL = "partial"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


MEANINGS: Mapping[Mark, str] = {
    Mark.FITS: "it finished within the limit",
    Mark.FAILS: "memory was refused",
    Mark.PARTIAL: "ended before it decided; its peak so far is a lower bound",
    Mark.UNKNOWN: "not decided, and no peak is known",
    Mark.SKIPPED: "not run, because another attempt implies the result",
}


def mark_of(row: Row) -> Mark:
    if row["fits"] is False:
        return Mark.FAILS
    if row["status"] == Status.SKIPPED.value:
        return Mark.SKIPPED
    if row["fits"] is True and not row.get("flaky"):
        return Mark.FITS
    return Mark.PARTIAL if row.get("peak_is_partial") and row.get("peak_bytes") is not None else Mark.UNKNOWN


def counts_of(rows: Iterable[Row]) -> dict[Mark, int]:
    """The number of rows with each mark, in the order of the marks."""
    found = Counter(map(mark_of, rows))
    return {mark: found[mark] for mark in Mark if found[mark]}
