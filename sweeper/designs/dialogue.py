"""The values that a design and a sweep exchange.

A design is a generator without I/O. It yields batches of points and is sent the answers to them in the same order. For
points that are planned for later, the answers are those of earlier runs, or None. Each device has a design of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from runners.device import Device
from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.plan import PlannedPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The part of an outcome that a design needs. A batch keeps one per point: 0.2 KiB, not 7 KiB for the outcome."""

    status: Status
    fits: bool | None
    device: Device
    attempt: int | None
    budget_bytes: int | None
    # In the budget's counter; without a budget, the peak that the allocator reserved. None if the limit cut it: an
    # allocator that gave its cache back to make room reserves what there is, whatever the point needs.
    used_bytes: int | None
    peak_bytes: int | None = None  # the complete peak of the deciding counter; of a refused point only if calculated
    unlimited_bytes: int | None = None  # of a calculated device: the peak of the counter that decides, without a limit


Design = Generator[list[PlannedPoint], list[Answer | None], None]


def answer(outcome: Outcome) -> Answer:
    limited = outcome.budget_bytes is not None
    used = outcome.budget_used_bytes if limited else outcome.peak("reserved")
    return Answer(
        status=outcome.status,
        fits=outcome.fits,
        device=outcome.device,
        attempt=outcome.attempt,
        budget_bytes=outcome.budget_bytes,
        used_bytes=None if _was_cut(outcome) else used,
        peak_bytes=_complete_peak(outcome),
        unlimited_bytes=calculated_bytes(outcome) if outcome.device.is_calculated else None,
    )


def calculated_bytes(outcome: Outcome) -> int | None:
    """The peak of a calculated attempt in the counter that decides on the measured device: reserved, on a host tensor.

    The column `unlimited_peak_bytes` has allocated bytes, of which an allocator reserves 5 to 23 % more.
    """
    counter = outcome.device.budget_counter
    if outcome.status is Status.OOM:
        return outcome.unlimited.get(counter)
    return None if outcome.status is not Status.OK or _was_cut(outcome) else outcome.peak(counter)


def _was_cut(outcome: Outcome) -> bool:
    return any(phase.alloc_retries for phase in outcome.phases)


def _complete_peak(outcome: Outcome) -> int | None:
    if outcome.unlimited_peak_bytes is not None:
        return outcome.unlimited_peak_bytes
    is_complete = outcome.status is Status.OK and not outcome.peak_is_partial
    return outcome.peak(outcome.device.deciding_counter) if is_complete else None


@dataclass(frozen=True, slots=True)
class CalculatedPeaks:
    """Peaks of the same points on a calculated device, for the design of a device that measures them afterwards."""

    repeats_exactly: bool = False  # the design's own device is calculated: nothing needs to be confirmed
    comes_first: bool = False  # the design waits for the peaks
    total_bytes: int | None = None  # the memory of the device that measures
    peaks: Mapping[str, tuple[Point, int]] = field(default_factory=dict)  # in bytes, without a limit; by the point's id
    of_others: Sequence[Mapping[str, tuple[Point, int]]] = ()  # the same of the sweep's other calculated devices


NOTHING = CalculatedPeaks()
