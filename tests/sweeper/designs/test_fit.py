"""The search for the largest batch of each cell of `fit`, on memory that is a function of the batch. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runners.device import Card, Device
from runners.outcome import Status
from runners.point import Point
from sweeper.designs.dialogue import Answer
from sweeper.designs.fit import Elsewhere, Search
from sweeper.fit_cells import LARGEST_BATCH

GIB = 2**30
CARD = Card(name="a card", vendor="nvidia", architecture="sm_89", total_bytes=24 * GIB, context_bytes=GIB)
DEVICE = Device(name="sim:mine", total_bytes=24 * GIB, card=CARD)
ROOM = 23  # GiB


def answer(gib: float) -> Answer:
    fits, peak = gib <= ROOM, int(gib * GIB)
    return Answer(
        status=Status.OK if fits else Status.OOM, fits=fits, device=DEVICE, attempt=1, budget_bytes=None,
        used_bytes=None, peak_bytes=peak, unlimited_bytes=peak,
    )  # fmt: skip


def searched(memory: Callable[[int], float], others: tuple[Search, ...] = ()) -> tuple[Search, int]:
    """The search at its end, and the number of batches that it tried."""
    search = Search(choice={"context": 1024}, context=1024)
    search.record(1, answer(memory(1)))
    while sizes := search.next([search, *others]):
        assert all(size not in search.fits for size in sizes), "no batch is tried twice"
        for size in sizes:
            search.record(size, answer(memory(size)))
    return search, len(search.fits)


@pytest.mark.parametrize(
    ("name", "memory", "largest", "most_tried"),
    [
        ("a line", lambda batch: 10 + 0.31 * batch, 41, 6),
        ("a steep line", lambda batch: 10 + 7 * batch, 1, 4),
        ("flat, then a line: the optimizer's states have the peak first", lambda b: max(15, 2 + 0.7 * b), 30, 10),
        ("a step: another kernel", lambda batch: 1 + 0.05 * batch + (30 if batch >= 128 else 0), 127, 20),
        ("rounding of blocks", lambda batch: 1 + 0.1 * batch + 0.15 * (batch * 7919 % 13) / 13, None, 20),
        ("nothing at all", lambda batch: 1.0, LARGEST_BATCH, 12),
    ],
)
def test_the_largest_batch_fits_and_the_next_one_was_tried_and_fails(
    name: str, memory: Callable[[int], float], largest: int | None, most_tried: int
) -> None:
    search, tried = searched(memory)
    assert tried <= most_tried, name
    if largest is not None:
        assert search.largest == largest, name
    assert memory(search.largest) <= ROOM
    if search.largest < LARGEST_BATCH:
        assert search.fits[search.largest + 1] is False, name


def test_another_context_gives_the_first_guess() -> None:
    other = Search(choice={"context": 2048}, context=2048)
    other.record(1, answer(10.4))
    search, tried = searched(lambda batch: 10 + 0.2 * batch, (other,))
    assert (search.largest, tried) == (65, 4)


def test_a_cell_whose_batch_1_fails_or_is_undecided_is_not_searched() -> None:
    for gib, status in ((30.0, None), (1.0, Status.ERROR)):
        search = Search(choice={}, context=1024)
        known = answer(gib)
        search.record(1, known if status is None else None)
        assert search.next([search]) == []


def test_peaks_of_other_cards_give_the_guess_and_decide_nothing() -> None:
    def memory(batch: int) -> float:
        return max(15, 2 + 0.7 * batch)

    search = Search(choice={"context": 1024}, context=1024)
    search.elsewhere = {batch: int(memory(batch) * GIB) for batch in (1, 20, 40)}
    search.record(1, answer(memory(1)))
    tried = []
    while sizes := search.next([search]):
        tried.append(sizes)
        for size in sizes:
            search.record(size, answer(memory(size)))
    assert tried == [[30, 31]]
    assert (search.largest, search.failing) == (30, 31)


def test_a_cell_has_the_peaks_of_its_batches_on_other_cards_as_they_become_known() -> None:
    def point(batch: int, context: int) -> Point:
        return Point(values={"workload": {"name": "train"}, "batch": batch, "context": context})

    first: dict[str, tuple[Point, int]] = {"a": (point(1, 8), 100)}
    second: dict[str, tuple[Point, int]] = {"b": (point(4, 8), 400), "c": (point(4, 16), 800)}
    elsewhere = Elsewhere([first, second])
    assert elsewhere.peaks_of(point(1, 8)) == {1: 100, 4: 400}
    first["d"] = point(2, 16), 500
    assert elsewhere.peaks_of(point(1, 16)) == {2: 500, 4: 800}
    assert elsewhere.peaks_of(point(1, 32)) == {}
