"""The cells of `fit`, made from results that are written by hand."""

from __future__ import annotations

from typing import Any

from runners.point import Point
from sweeper.fit import LARGEST_BATCH, Cell, Result, Wanted, cells

VALUES: dict[str, Any] = {"workload": {"name": "train"}, "context": 64, "batch": 1}
WANTED = Wanted(device="sim:mine", setting="LoRA", context=64, values={"context": 64}, point=Point(values=VALUES))


def result(batch: int, fits: bool | None, peak: int | None = 100, **others: Any) -> Result:
    status = {True: "ok", False: "oom", None: "error"}[fits]
    values = {**VALUES, "batch": batch}
    base = {"device": "sim:mine", "values": values, "point_id": f"p{batch}", "status": status}
    return Result(**base, fits=fits, peak_bytes=peak, **others)


def cell(*results: Result) -> Cell:
    (found,) = cells([WANTED], results)
    return found


def test_the_largest_batch_is_below_the_smallest_that_fails() -> None:
    found = cell(result(1, True), result(7, True, 700), result(8, False, 900, needs_at_least_bytes=850))
    assert (found.largest_batch, found.largest_peak_bytes, found.failing_batch) == (7, 700, 8)
    assert (found.failing_peak_bytes, found.needs_at_least_bytes) == (900, 850)
    assert found.is_edge
    assert not found.is_at_least
    assert found.point_ids == ("p1", "p7", "p8")
    above = cell(result(1, True), result(7, True), result(8, False), result(9, True))
    assert (above.largest_batch, above.failing_batch) == (7, 8)


def test_a_batch_that_was_not_bounded_is_at_least_that_large() -> None:
    found = cell(result(1, True), result(LARGEST_BATCH, True))
    assert found.is_at_least
    assert not found.is_open
    assert cell(result(1, True), result(4, True), result(9, False)).is_at_least
    assert cell(result(1, True)).is_open


def test_a_cell_without_results_is_open_and_knows_nothing() -> None:
    found = cell()
    assert found.is_open
    assert (found.fits, found.peak_bytes, found.largest_batch, found.status) == (None, None, None, None)


def test_an_undecided_cell_has_the_reason_and_no_figures() -> None:
    found = cell(result(1, None, None, because="generates no tokens"))
    assert (found.fits, found.peak_bytes, found.because) == (None, None, "generates no tokens")
    assert not found.is_open


def test_results_of_other_values_or_devices_belong_to_other_cells() -> None:
    other = Result(
        device="sim:mine", values={**VALUES, "context": 128}, point_id="x", status="ok", fits=True, peak_bytes=1
    )
    elsewhere = Result(device="sim:h100", values=VALUES, point_id="y", status="ok", fits=True, peak_bytes=1)
    assert cell(other, elsewhere).is_open
