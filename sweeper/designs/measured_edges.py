"""The part of design=fit that a GPU of the card's kind measures: both sides of each calculated edge.

It begins at the largest batch that was calculated to fit, and takes the next larger or smaller one until one fits next
to one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.designs.dialogue import Answer, CalculatedPeaks, Design
from sweeper.designs.neighbours import Neighbours
from sweeper.fit_cells import LARGEST_BATCH, Wanted, without_batch
from sweeper.plan import Plan

MOST_STEPS = 6  # from the calculated edge; one that is farther off stays open


@dataclass
class Edge:
    """The edge of one cell. `start`: the largest batch that was calculated to fit, 1 if none does."""

    choice: Mapping[str, Any]
    start: int
    takes_batch: bool
    fits: dict[int, bool] = field(default_factory=dict)  # by batch
    is_over: bool = False

    def next(self) -> int | None:
        """The batch to measure next; None at the end."""
        if self.is_over or len(self.fits) > MOST_STEPS:
            return None
        if not self.fits:
            return self.start
        largest = max((batch for batch, fits in self.fits.items() if fits), default=None)
        failing = min((batch for batch, fits in self.fits.items() if not fits), default=None)
        if not self.takes_batch or largest == LARGEST_BATCH or (largest is None and failing == 1):
            return None
        if largest is None:
            return None if failing is None else failing - 1
        return None if failing == largest + 1 else largest + 1

    def record(self, batch: int, answer: Answer | None) -> None:
        if answer is None or answer.fits is None:
            self.is_over = True
        else:
            self.fits[batch] = answer.fits


def measured_edges(plan: Plan, cells: Sequence[Wanted], calculated: CalculatedPeaks) -> Design:
    """`calculated.peaks` is filled when the first answers are sent: the device waits for the calculated one."""
    yield []
    neighbours = Neighbours(plan)
    edges = [edge for cell in cells if (edge := edge_of(plan, cell, calculated)) is not None]
    while requests := [(edge, batch) for edge in edges if (batch := edge.next()) is not None]:
        answers = yield [
            neighbours.of({**edge.choice, "batch": batch} if edge.takes_batch else edge.choice)
            for edge, batch in requests
        ]
        for (edge, batch), answer in zip(requests, answers, strict=True):
            edge.record(batch, answer)


def edge_of(plan: Plan, cell: Wanted, calculated: CalculatedPeaks) -> Edge | None:
    """None for a cell of which nothing was calculated."""
    card = next((device.card for device in plan.devices if device.is_calculated), None)
    if cell.point is None or card is None:
        return None
    alike = without_batch(cell.point.values)
    peaks = {
        int(point.get("batch") or 1): peak
        for point, peak in calculated.peaks.values()
        if without_batch(point.values) == alike
    }
    if not peaks:
        return None
    start = max((batch for batch, peak in peaks.items() if peak <= card.usable_bytes), default=1)
    return Edge(choice=dict(cell.values), start=start, takes_batch=cell.point.get("batch") is not None)
