"""How far a calculated peak may be off where a library decides the bytes of a buffer and does not publish them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from runners.simulation.events import REFUSED, WORKSPACE

ROUNDED_TO = 512  # bytes, by PyTorch's allocator for CUDA

Bounds = Sequence[tuple[int, int, int]]  # of an event of MetaTracer: its number, and the least and the most bytes


def with_uncertainty(metrics: Mapping[str, Any] | None, events: array[int], bounds: Bounds) -> dict[str, Any]:
    """The metrics of a traced workload, with the bytes that its peak of allocated memory may be lower or higher by."""
    if not bounds:
        return {**(metrics or {})}
    peak = _peak(events, {})
    low, high = (_peak(events, {each[0]: each[side] for each in bounds}) for side in (1, 2))
    return {**(metrics or {}), "peak_may_be_lower_by_bytes": peak - low, "peak_may_be_higher_by_bytes": high - peak}


def _peak(events: array[int], instead: Mapping[int, int]) -> int:
    """The most bytes that are allocated at once, with other sizes for some events."""
    sizes: list[int] = []
    live = peak = 0
    for number, event in enumerate(events):
        if event < 0:
            live -= sizes[-event - 1]
            continue
        if event >= REFUSED and event != WORKSPACE:  # no allocation
            continue
        size = 0 if event == WORKSPACE else instead.get(number, event)
        sizes.append(-(-size // ROUNDED_TO) * ROUNDED_TO)
        live += sizes[-1]
        peak = max(peak, live)
    return peak
