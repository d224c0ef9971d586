"""When each attempt ran on which device, and how it ended. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sweeper.rows import Row
from sweeper.views.page.marks import Mark, mark_of

MOST_BARS = 400  # attempts that have a bar of their own
BINS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`start` and `end` in seconds after the first attempt began."""

    device: str
    mark: Mark
    status: str
    start: float
    end: float
    point_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    device: str
    mark: Mark
    start: float
    end: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """`spans` of single attempts, or where there are too many `bins`: how many began in each stretch of time."""

    began: datetime | None
    seconds: float
    attempts: int
    without_time: int
    busy_seconds: float
    spans: Sequence[Span]
    bins: Sequence[Bin]


def timeline(attempts: Sequence[Row]) -> Timeline:
    timed = [row for row in attempts if row["started_at"] is not None and row["duration_s"] is not None]
    began = min((row["started_at"] for row in timed), default=None)
    spans = [
        Span(
            device=row["device"],
            mark=mark_of(row),
            status=row["status"],
            start=start,
            end=start + row["duration_s"],
            point_id=row["point_id"],
        )
        for row in timed
        for start in [(row["started_at"] - began).total_seconds()]
    ]
    seconds = max((span.end for span in spans), default=0.0)
    return Timeline(
        began=began,
        seconds=seconds,
        attempts=len(attempts),
        without_time=len(attempts) - len(timed),
        busy_seconds=sum(span.end - span.start for span in spans),
        spans=spans if len(spans) <= MOST_BARS else (),
        bins=() if len(spans) <= MOST_BARS else _bins(spans, seconds),
    )


def _bins(spans: Sequence[Span], seconds: float) -> list[Bin]:
    width = seconds / BINS or 1.0
    found = Counter((span.device, span.mark, min(int(span.start / width), BINS - 1)) for span in spans)
    return [
        Bin(device=device, mark=mark, start=place * width, end=(place + 1) * width, count=count)
        for (device, mark, place), count in sorted(found.items(), key=lambda each: (each[0][0], each[0][2]))
    ]
