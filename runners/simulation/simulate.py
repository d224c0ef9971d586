"""A calculated attempt: trace the point once without data, then replay the trace on the card's simulated allocator.

The trace has the lines of the workload's journal, each with its place among the events, and the events: allocations
and frees of storages in order. The replay hands the events to the allocator and gives the lines its counters. The
journal ends where the allocator refuses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from runners import facts
from runners.device import Card
from runners.journal import Journal
from runners.point import Attempt
from runners.simulation.allocator import Settings
from runners.simulation.card_memory import memory_of
from runners.simulation.replay import replay
from runners.simulation.trace import AllocationTrace, DescribeError, card_of, trace_workload


def measure(attempt: Attempt, workload: ModuleType, journal: Journal, describe_error: DescribeError) -> None:
    """Write the journal of a calculated attempt. Raises ValueError for a measured attempt."""
    card = card_of(attempt)
    others = attempt.point.get("used_by_others")
    if others is not None:
        card = replace(card, used_by_others_bytes=others)
    path = Path(attempt.allocation_trace or os.devnull)
    trace = AllocationTrace.read(path) if attempt.allocation_trace else None
    if trace is None:
        trace = trace_workload(attempt, workload, describe_error)
        if attempt.allocation_trace and trace.lines[-1]["kind"] == "finished":  # a failure may not happen again
            trace.write(path)
    budget = attempt.point.get("budget")
    if budget is not None:
        kind, room = facts.TENSORS, budget
        if card.total_bytes is not None:
            kind, room = facts.ALLOCATOR, min(budget, card.total_bytes - card.outside_bytes)
        journal.write(facts.Budget(kind, room))
    for line in replay(trace, attempt.device.name, memory_of(card, budget)):
        refused = line["kind"] == "failed"
        if refused and _fits_if_expandable(trace, attempt, card, budget):
            line["chain"][0]["message"] += facts.FITS_IF_EXPANDABLE
        journal.write(facts.from_json(line))
        if refused:
            unlimited = replay(trace, attempt.device.name, memory_of(card, budget=None, unlimited=True))
            journal.write(facts.Unlimited(_peaks(unlimited)))


def _fits_if_expandable(trace: AllocationTrace, attempt: Attempt, card: Card, budget: int | None) -> bool:
    """Whether the point would fit if the allocator's segments could grow. False where they can already."""
    if card.is_host or Settings.parse(card.settings).expandable_segments:
        return False
    settings = ",".join(filter(None, (card.settings.rstrip(", "), "expandable_segments:True")))
    lines = replay(trace, attempt.device.name, memory_of(replace(card, settings=settings), budget))
    return all(line["kind"] != "failed" for line in lines)


def describe(card: Card) -> dict[str, Any]:
    """The card's facts for the record of the environment."""
    return {
        "device_name": card.name,
        "device_total_bytes": card.total_bytes,
        "allocator_backend": "calculated",
        "allocator_settings": card.settings or None,
    }


def _peaks(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The highest value of each counter in bytes; empty if the workload failed."""
    peaks: list[Mapping[str, int]] = []
    for line in lines:
        if line["kind"] == "failed":
            return {}
        peaks += [counters.get("peak", {}) for counters in line.get("counters", {}).values()]
    return facts.highest(peaks)
