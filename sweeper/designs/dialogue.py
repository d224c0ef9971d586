"""What a design and a sweep exchange."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from runners.device import Device
from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.plan import PlannedPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a design is told of an attempt. A batch's are kept until it is over: 0.2 KiB each, and 7 KiB if whole."""

    status: Status
    fits: bool | None
    device: Device
    attempt: int | None
    budget_bytes: int | None
    used_bytes: int | None  # of what the budget counts; without one, what the allocator took from the device


Design = Generator[list[PlannedPoint], list[Answer | None], None]


def answer(outcome: Outcome) -> Answer:
    limited = outcome.budget_bytes is not None
    return Answer(
        status=outcome.status,
        fits=outcome.fits,
        device=outcome.device,
        attempt=outcome.attempt,
        budget_bytes=outcome.budget_bytes,
        used_bytes=outcome.budget_used_bytes if limited else outcome.peak("reserved"),
    )


@dataclass(frozen=True, slots=True)
class CalculatedPeaks:
    """What a calculated device told of points of the same sweep, for whoever measures them after it: their peaks in
    bytes, as if nothing had limited them. `total_bytes` is what the device has that measures."""

    itself: bool = False  # the device calculates, and says the same if it is asked again: nothing is to be confirmed
    comes_first: bool = False  # and is waited for
    total_bytes: int | None = None
    peaks: Mapping[str, tuple[Point, int]] = field(default_factory=dict)  # by the point's id


NOTHING = CalculatedPeaks()
