"""A device that is calculated: a point is followed once without data, then decided for a card from what was followed.

Followed: the lines of the workload's journal, with the place in the events where each was written, and the events, the
births and deaths of storages in their order. Decided: the events handed to an imitation of the card's allocator; the
journal's lines get the counters it had at their places, and end where it refuses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from runners import facts
from runners.device import Card
from runners.journal import Journal
from runners.point import Attempt
from runners.simulation.replay import device_of, replay
from runners.simulation.trace import AllocationTrace, Told, card_of, trace


def measure(attempt: Attempt, workload: ModuleType, journal: Journal, told: Told) -> None:
    """Write the journal of an attempt on a card, and how it ends. `told` gives an exception as facts."""
    card = card_of(attempt)
    path = Path(attempt.followed or os.devnull)
    followed = AllocationTrace.read(path) if attempt.followed else None
    if followed is None:
        followed = trace(attempt, workload, told)
        if attempt.followed and followed.lines[-1]["kind"] == "finished":  # a failure may be gone the next time
            followed.write(path)
    budget = attempt.point.get("budget")
    if budget is not None:
        kind, room = "tensors", budget
        if card.total_bytes is not None:
            kind, room = "allocator", min(budget, card.total_bytes - card.outside_bytes)
        journal.write(facts.Budget(kind, room))
    refused = False
    for line in replay(followed, attempt.device.name, device_of(card, budget)):
        journal.write(facts.from_json(line))
        refused = refused or line["kind"] == "failed"
    if refused:
        unlimited = replay(followed, attempt.device.name, device_of(card, None, endless=True))
        journal.write(facts.Unlimited(_peaks(unlimited)))


def describe(card: Card) -> dict[str, Any]:
    """What of a card goes into the environment's record."""
    return {
        "device_name": card.name,
        "device_total_bytes": card.total_bytes,
        "allocator_backend": "calculated",
        "allocator_settings": card.settings or None,
    }


def _peaks(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The highest of each counter; nothing if the workload did not come to its end."""
    peaks: list[Mapping[str, int]] = []
    for line in lines:
        if line["kind"] == "failed":
            return {}
        peaks += [counters.get("peak", {}) for counters in line.get("counters", {}).values()]
    return facts.highest(peaks)
