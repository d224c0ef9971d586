"""The cells of `fit`, made from results that are written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runners.device import Card, Device
from runners.outcome import Outcome, Phase, Status
from runners.point import Point
from sweeper.fit_cells import LARGEST_BATCH, Cell, FitDevice, FitTable, Result, Wanted, cells, result_of
from sweeper.sweeping.fitting import is_close
from sweeper.views import fit_table

VALUES: dict[str, Any] = {"workload": {"name": "train"}, "context": 64, "batch": 1}
WANTED = Wanted(device="sim:mine", setting="LoRA", context=64, values={"context": 64}, point=Point(values=VALUES))


CARD: dict[str, Any] = {"name": "A card", "vendor": "nvidia", "architecture": "sm_89", "total_bytes": 2400}
DEVICE = FitDevice(
    name="sim:mine", kind="calculated", card="A card", total_bytes=2400, context_bytes=200,
    context_range_bytes=(150, 350), used_by_others_bytes=None, usable_bytes=2200,
)  # fmt: skip


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


def test_a_larger_batch_that_ends_with_an_error_is_named_and_not_tried_again() -> None:
    found = cell(result(1, True), result(4, True, 400), result(5, None, None, because="ValueError: boom"))
    assert (found.largest_batch, found.undecided_batch, found.because) == (4, 5, "batch 5: ValueError: boom")
    assert found.is_at_least
    assert not found.is_open, "the same command would recall the error"
    table = FitTable(
        model=None, parameters=None, dtype=None, devices=(DEVICE,), settings=("LoRA",), contexts=(64,), cells=(found,)
    )
    text = fit_table.as_text(table)
    assert ">=4" in text
    assert "LoRA: batch 5: ValueError: boom" in text
    assert "not finished" not in text


def test_where_nothing_can_be_calculated_the_reason_stands_alone() -> None:
    broken = [cell(result(1, None, None, because="hidden_size=-64 is no size"))]
    table = FitTable(
        model="mine",
        parameters=None,
        dtype=None,
        devices=(DEVICE,),
        settings=("LoRA",),
        contexts=(64,),
        cells=tuple(broken),
    )
    text = fit_table.as_text(table)
    assert "LoRA: hidden_size=-64 is no size" in text
    assert "Peak of batch 1" not in text
    assert "published peaks" not in text


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


def test_a_batch_that_fits_by_less_than_the_context_may_take_is_marked() -> None:
    texts = []
    for left in (149, 150):
        found = cell(result(1, True), result(7, True, left_bytes=left), result(8, False))
        assert found.largest_left_bytes == left
        marked = replace(found, is_close=is_close(found, DEVICE.spare_bytes))
        texts.append(fit_table.batch_text(marked))
        table = FitTable(
            model=None, parameters=None, dtype=None, devices=(DEVICE,), settings=("LoRA",), contexts=(64,),
            cells=(marked,),
        )  # fmt: skip
        assert len(fit_table.close_lines(table)) == marked.is_close
    assert texts == ["~x7", "x7"]


def of(point: Point, status: Status, model: dict[str, int]) -> Result:
    phase = Phase(name="step", run_index=None, device="sim:mine", completed=True, peak={"allocated": 5})
    device = Device(name="sim:mine", card=Card(**CARD))
    outcome = Outcome(
        status=status, device=device, attempt=1, phases=(phase,), model=model,
        unlimited={} if status is Status.OK else {"allocated": 9},
    )  # fmt: skip
    return result_of(point, outcome)


def test_the_parameters_of_a_model_leave_out_those_of_an_adapter() -> None:
    for method, trained in (("lora", 10), ("full", 1010)):
        point = Point(values={**VALUES, "workload": {"name": "train", "method": method}})
        counted = of(point, Status.OK, {"parameters": 1010, "trainable_parameters": trained})
        assert counted.parameters == (1000 if method == "lora" else 1010)


def test_a_refused_point_names_no_phase_next_to_the_peak_that_it_would_have() -> None:
    passed, refused = (of(Point(values=VALUES), status, {}) for status in (Status.OK, Status.OOM))
    assert (passed.peak_bytes, passed.phase) == (5, "step")
    assert (refused.peak_bytes, refused.phase) == (9, None)
