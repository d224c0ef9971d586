"""The edges that a GPU measures after they were calculated, by the batches that fit. Starts nothing."""

from __future__ import annotations

from typing import Any

import pytest

from runners.device import Device
from runners.outcome import Status
from sweeper.designs.dialogue import Answer
from sweeper.designs.measured_edges import MOST_STEPS, Edge

GPU = Device(name="cuda:0", total_bytes=24 * 2**30)


def answer(fits: bool | None) -> Answer:
    status = {True: Status.OK, False: Status.OOM, None: Status.CRASHED}[fits]
    return Answer(
        status=status, fits=fits, device=GPU, attempt=1, budget_bytes=None, used_bytes=None, peak_bytes=None
    )  # fmt: skip


def measured(start: int, largest: int, **more: Any) -> Edge:
    """The edge at its end, on a card that takes batches up to `largest`."""
    edge = Edge(choice={}, start=start, **({"takes_batch": True} | more))
    while (batch := edge.next()) is not None:
        assert batch not in edge.fits, "no batch is measured twice"
        edge.record(batch, answer(batch <= largest))
    return edge


def test_an_edge_that_was_calculated_rightly_takes_two_measurements() -> None:
    assert measured(start=7, largest=7).fits == {7: True, 8: False}


@pytest.mark.parametrize("largest", [3, 4, 5, 6, 8, 9, 10, 11])
def test_another_edge_is_found_next_to_the_calculated_one(largest: int) -> None:
    fits = measured(start=7, largest=largest).fits
    assert fits[largest] is True
    assert fits[largest + 1] is False


def test_a_card_on_which_nothing_fits_is_tried_at_batch_1_alone() -> None:
    assert measured(start=1, largest=0).fits == {1: False}


def test_an_edge_far_from_the_calculated_one_stays_open() -> None:
    fits = measured(start=100, largest=40).fits
    assert not any(fits.values())
    assert len(fits) == MOST_STEPS + 1


def test_a_workload_without_a_batch_is_measured_once() -> None:
    assert measured(start=1, largest=5, takes_batch=False).fits == {1: True}


def test_a_measurement_that_ended_otherwise_ends_the_search() -> None:
    edge = Edge(choice={}, start=7, takes_batch=True)
    edge.record(7, answer(None))
    assert edge.next() is None
