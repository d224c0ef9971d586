"""What a program sees of the memory while it runs: refused exactly where the allocator refuses."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from runners.device import CPU_CARD, Card
from runners.simulation.card_memory import memory_of
from runners.simulation.events import EMPTY_CACHE, FRACTION, REFUSED, STREAM, WHOLE, WORKSPACE
from runners.simulation.live_memory import LiveMemory
from tests.programs import H100, MIB

CARD = replace(H100, total_bytes=192 * MIB, context_bytes=0)


def refused_at(card: Card, budget: int | None, seed: int, eager: bool) -> list[int]:
    """The numbers of the events that are refused while a made-up program runs. `eager` plays each event at once."""
    chance, events, live = random.Random(seed), array("q"), list[int]()
    memory = LiveMemory(events, lambda unlimited: memory_of(card, budget, unlimited, counts=True), refuses=True)
    made, found = 0, []
    for _ in range(300):
        what = chance.random()
        if what < 0.35 and live:
            events.append(-live.pop(chance.randrange(len(live))) - 1)
        elif what < 0.36:
            events.append(EMPTY_CACHE)
        elif what < 0.38:
            events.append(STREAM + chance.randrange(2))
        elif what < 0.39:
            events.append(FRACTION + int(chance.uniform(0.5, 1.0) * WHOLE))
            memory.limit_changed()
        else:
            events.append(WORKSPACE if what > 0.99 else int(2 ** chance.uniform(8, 25)))
            if eager:
                memory.limit_changed()
            if memory.check() is not None:
                found.append(len(events) - 1)
            else:
                live.append(made)
                made += 1
    return found


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "expandable_segments:True",
        "roundup_power2_divisions:2",
        "garbage_collection_threshold:0.6",
        "max_split_size_mb:24",
    ],
)
def test_an_event_is_refused_whether_or_not_the_events_before_it_were_played_at_once(settings: str) -> None:
    card = replace(CARD, settings=settings)
    lazy = [refused_at(card, None, seed, eager=False) for seed in range(20)]
    assert lazy == [refused_at(card, None, seed, eager=True) for seed in range(20)]
    assert sum(map(bool, lazy)) > 10


def test_a_budget_of_the_host_refuses_likewise() -> None:
    lazy = [refused_at(CPU_CARD, 96 * MIB, seed, eager=False) for seed in range(20)]
    assert lazy == [refused_at(CPU_CARD, 96 * MIB, seed, eager=True) for seed in range(20)]
    assert sum(map(bool, lazy)) > 10


def test_a_storage_that_the_collector_frees_meanwhile_is_not_taken_for_the_allocation() -> None:
    events = array("q", [100 * MIB])
    memory = LiveMemory(events, lambda unlimited: memory_of(CARD, None, unlimited, counts=True), refuses=True)
    assert memory.check() is None
    events.extend([100 * MIB, -1])
    assert memory.check() is not None
    assert events[1] == REFUSED + 100 * MIB
    events.append(100 * MIB)
    assert memory.check() is None
    assert memory.read().boundary().now["requested"] == 100 * MIB


def test_without_any_limit_no_event_is_played_until_the_program_asks() -> None:
    events = array("q", [MIB])
    played = []

    def make(unlimited: bool) -> object:
        played.append(unlimited)
        return memory_of(CPU_CARD, None, unlimited)

    memory = LiveMemory(events, make, refuses=True)  # type: ignore[arg-type]
    for _ in range(3):
        assert memory.check() is None
        events.append(MIB)
    assert played == [False]
    assert memory.read().boundary().now == {"tensor": 4 * MIB}


def test_a_program_that_reads_the_size_of_a_card_holds_for_that_card_only() -> None:
    events = array("q", [MIB])
    memory = LiveMemory(events, lambda unlimited: memory_of(CARD, None, unlimited, counts=True))
    memory.read()
    assert not memory.is_of_one_card
    events.append(256 * MIB)
    memory.read()
    assert memory.is_of_one_card, "it is refused there, and a larger card would answer otherwise"
