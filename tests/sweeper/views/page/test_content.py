"""What the page shows, before it is HTML."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from decimal import Decimal as D
from typing import Any

import pytest

from runners.device import Card
from sweeper.costs import TOKENS as TOKENS_OF_A_PASS
from sweeper.costs import Tariff, Tariffs
from sweeper.errors import Mistake
from sweeper.objective import TOKENS
from sweeper.tables import loading
from sweeper.views.decision_sheet import decision_sheet
from sweeper.views.page import report, timeline
from sweeper.views.page.answer import answer_of
from sweeper.views.page.card_room import card_rooms
from sweeper.views.page.content import PageContent, page_content
from sweeper.views.page.failures import failures_of
from sweeper.views.page.html import page_html
from sweeper.views.page.marks import Mark, mark_of
from sweeper.views.page.phase_bars import phase_bars
from sweeper.views.page.report import content_of
from tests.sweeper.conftest import BASELINE, MIB
from tests.sweeper.views.page.conftest import BATCHES, CONTEXTS, DTYPES, MOST_TOKENS, SCRIPT, Page

GIB = 2**30


@pytest.fixture(scope="module")
def tables(page: Page) -> dict[str, Any]:
    return loading.read(page.folder)


@pytest.fixture(scope="module")
def content(page: Page, tables: dict[str, Any]) -> PageContent:
    return content_of(page.folder, tables)


def row(**more: Any) -> dict[str, Any]:
    found = {"status": "ok", "fits": True, "flaky": None, "peak_is_partial": False, "peak_bytes": 1}
    return found | more


@pytest.mark.parametrize(
    ("found", "mark"),
    [
        (row(), Mark.FITS),
        (row(fits=False, status="oom", peak_is_partial=True), Mark.FAILS),
        (row(fits=None, status="error", peak_is_partial=True), Mark.PARTIAL),
        (row(fits=None, status="timeout", peak_bytes=None), Mark.UNKNOWN),
        (row(fits=None, status="not_run", peak_bytes=None, peak_is_partial=None), Mark.UNKNOWN),
        (row(fits=None, status="skipped", peak_bytes=None), Mark.SKIPPED),
        (row(flaky=True), Mark.UNKNOWN),
        (row(fits=None), Mark.UNKNOWN),  # it continued after a refused allocation
    ],
)
def test_a_mark_says_what_a_row_decided(found: dict[str, Any], mark: Mark) -> None:
    assert mark_of(found) is mark


def test_every_planned_point_has_a_square_and_the_limit_lies_where_fitting_ends(content: PageContent) -> None:
    grid = content.grid
    assert (grid.down, grid.across) == ("batch", "context")
    assert [(panel.device, panel.title) for panel in grid.panels] == [("cpu", f"dtype={dtype}") for dtype in DTYPES]
    for panel in grid.panels:
        assert len(panel.cells) == len(BATCHES) * len(CONTEXTS)
        for (y, x), cell in panel.cells.items():
            tokens, decided = BATCHES[y] * CONTEXTS[x], cell.implied is not None
            assert not decided or cell.implied is (tokens <= MOST_TOKENS)
            right = panel.cells.get((y, x + 1))
            if right is not None and decided and right.implied is not None:
                assert cell.edge_right is (cell.implied and not right.implied)


def test_a_partial_peak_is_a_lower_bound_wherever_it_is_shown(content: PageContent) -> None:
    cells = [cell for panel in content.grid.panels for cell in panel.cells.values()]
    partial = [cell for cell in cells if cell.mark in (Mark.FAILS, Mark.PARTIAL)]
    assert len(partial) == 18
    assert all(content.grid.number(cell).startswith("≥ ") for cell in partial)
    assert all("at least" in cell.words for cell in partial)
    assert not any(content.grid.number(cell).startswith("≥") for cell in cells if cell.mark is Mark.FITS)


def test_two_other_dimensions_can_be_chosen_and_one_that_did_not_vary_is_refused(
    page: Page, tables: dict[str, Any]
) -> None:
    grid = content_of(page.folder, tables, axes=("dtype", "batch")).grid
    assert (grid.down, grid.across) == ("dtype", "batch")
    assert [panel.title for panel in grid.panels] == [f"context={context}" for context in CONTEXTS]
    with pytest.raises(Mistake, match=r"--axes btach: btach did not vary \(did you mean batch\?\)"):
        content_of(page.folder, tables, axes=("btach",))


def test_the_answer_is_a_sentence_and_says_that_the_sweep_broke_off(content: PageContent) -> None:
    answer = content.answer
    assert answer.headline == (
        "2 of 2 settings fit on cpu; the largest point, batch=32 context=128,"
        " fits with dtype=float32 and dtype=bfloat16."
    )
    assert "The sweep broke off: 1 of 72 points have no result." in answer.remarks
    assert content.counts == {Mark.FITS: 48, Mark.FAILS: 14, Mark.PARTIAL: 4, Mark.UNKNOWN: 1, Mark.SKIPPED: 5}


def test_where_nothing_was_decided_the_answer_says_so(tables: dict[str, Any]) -> None:
    rows = [each for each in tables["points"].to_pylist() if each["status"] == "error"]
    assert (
        answer_of(rows, TOKENS).headline
        == f"No attempt decided what fits: 2 error (IndexError: no kernel for {SCRIPT})."
    )
    assert answer_of([], TOKENS).headline == "This run has no points."


def test_where_nothing_fits_the_answer_says_what_the_smallest_was(tables: dict[str, Any]) -> None:
    rows = [each for each in tables["points"].to_pylist() if each["status"] == "oom" and each["dtype"] == "float32"]
    answer = answer_of(rows, TOKENS)
    assert answer.headline == "Nothing that was tried fits on cpu."
    assert answer.detail.startswith("The smallest that was tried, batch=")


def test_a_workload_without_a_size_fits_or_does_not(tables: dict[str, Any]) -> None:
    (fits, *_), (fails, *_) = (
        [each for each in tables["points"].to_pylist() if each["status"] == status] for status in ("ok", "oom")
    )
    unsized = [{**each, "batch": None, "context": None} for each in (fits, fails)]
    answer = answer_of(unsized[:1], TOKENS)
    assert (answer.headline, answer.detail) == ("The workload fits on cpu: it peaks at 227.50 MiB resident.", "")
    answer = answer_of(unsized[1:], TOKENS)
    assert answer.headline == "Nothing that was tried fits on cpu."
    assert answer.detail == "It was tried: out of memory in cold_forward."


def test_several_settings_of_one_device_are_counted_in_the_answer(tables: dict[str, Any]) -> None:
    rows = [each for each in tables["points"].to_pylist() if each["dtype"] == "float32"]
    refused = [each for each in rows if each["status"] == "oom"]
    several = [
        {**each, "config": json.dumps(json.loads(each["config"]) | {"quantize": scheme})}
        for scheme, some in {"none": rows, "int8": rows, "nf4": refused}.items()
        for each in some
    ]
    answer = answer_of(several, TOKENS)
    assert answer.headline == (
        "2 of 3 settings fit on cpu; the largest point, batch=32 context=128,"
        " fits with quantize=none and quantize=int8."
    )
    assert [finding.setting for finding in answer.findings] == ["quantize=none", "quantize=int8", "quantize=nf4"]


def test_of_two_settings_the_one_in_which_more_fits_comes_first(tables: dict[str, Any]) -> None:
    rows = [each for each in tables["points"].to_pylist() if each["dtype"] == "float32"]
    small = [each for each in rows if each["batch"] * each["context"] <= 256]
    two = [
        {**each, "config": json.dumps(json.loads(each["config"]) | {"checkpointing": on})}
        for on, some in {False: small, True: rows}.items()
        for each in some
    ]
    assert answer_of(two, TOKENS).headline == (
        "batch=32 context=128 is the largest that fits on cpu with checkpointing=true: it peaks at 259.00 MiB resident."
    )
    assert answer_of(two, TOKENS).detail == "With checkpointing=false, batch=4 context=64 is the largest."
    refused = [each for each in two if each["status"] == "oom"]
    two = [each for each in two if json.loads(each["config"])["checkpointing"] is False] + refused
    assert answer_of(two, TOKENS).detail == "Nothing that was tried fits with checkpointing=true."


def test_the_figure_that_is_compared_with_the_limit_is_the_one_in_the_sentence(tables: dict[str, Any]) -> None:
    (fits, *_) = (each for each in tables["points"].to_pylist() if each["status"] == "ok")
    limited = {"budget_bytes": 600 * MIB, "budget_kind": "data_limit", "budget_used_bytes": 267 * MIB}
    answer = answer_of([fits | limited | {"peak_resident_bytes": 623 * MIB}], TOKENS)
    assert answer.headline.endswith(
        ": it uses 267.00 MiB of the 600.00 MiB budget (of data, not counting the imports), 623.00 MiB resident."
    )
    finding = answer.findings[0]
    assert (finding.used_bytes, finding.left_bytes, finding.limit_bytes) == (267 * MIB, 333 * MIB, 600 * MIB)
    unread = answer_of([fits | limited | {"budget_used_bytes": None}], TOKENS)
    assert unread.findings[0].used_bytes is None
    card = fits | {"device": "sim:rtx-4090", "kind": "calculated", "device_total_bytes": 24 * GIB}
    card |= {"peak_allocated_bytes": 5 * GIB, "peak_used_bytes": 7 * GIB, "budget_bytes": None, "budget_kind": None}
    assert answer_of([card], TOKENS).headline.endswith(
        ": it uses 7.00 GiB of the 24.00 GiB of sim:rtx-4090, 5.00 GiB allocated."
    )


def test_many_devices_are_counted_in_the_answer_smallest_memory_first(tables: dict[str, Any]) -> None:
    rows = [each for each in tables["points"].to_pylist() if each["dtype"] == "float32"]
    small = [each for each in rows if each["batch"] * each["context"] <= 256]
    of = {"sim:a": (40, rows), "sim:b": (10, small), "sim:c": (20, rows), "sim:d": (80, rows)}
    many = [
        {**each, "device": device, "kind": "calculated", "device_total_bytes": gib * GIB}
        for device, (gib, some) in of.items()
        for each in some
    ]
    answer = answer_of(many, TOKENS)
    assert [finding.device for finding in answer.findings] == ["sim:b", "sim:c", "sim:a", "sim:d"]
    assert answer.headline == (
        "Calculated, not measured: batch=32 context=128 fits on 3 of 4 devices;"
        " sim:c is the smallest of them, 20.00 GiB."
    )


def test_failures_of_one_message_are_together_with_all_of_it(content: PageContent) -> None:
    kinds = {kind.status: kind for kind in content.failures.kinds}
    assert {status: kind.total for status, kind in kinds.items()} == {"oom": 14, "error": 2, "timeout": 2}
    assert kinds["error"].message == f"IndexError: no kernel for {SCRIPT}"
    assert kinds["error"].phase == "cold_forward"
    assert kinds["error"].failures[0].peak == BASELINE + MIB


def test_a_fit_that_does_not_describe_its_peaks_is_not_to_be_relied_on(content: PageContent) -> None:
    assert [found.off_by for found in content.fitted.shown] == [None, None]
    fitted = content.fitted.shown[0]
    bad = replace(fitted, costs=[replace(fitted.costs[0], worst=0.275)])
    assert bad.off_by == 0.275


# --- a card -----------------------------------------------------------------------------------------------------------


def on_a_card(**more: Any) -> dict[str, Any]:
    return (
        row(
            **{"point_id": "a", "device": "sim:rtx-4090", "kind": "calculated", "peak_phase": "forward"},
            **{"context_bytes": GIB, "device_total_bytes": 24 * GIB, "budget_bytes": None, "budget_kind": None},
            **{"process_baseline_bytes": None, "peak_allocated_bytes": 6 * GIB, "peak_reserved_bytes": 8 * GIB},
        )
        | more
    )


def phase(name: str, allocated: int, reserved: int, run_index: int = 0, completed: bool = True) -> dict[str, Any]:
    peaks = {"peak_allocated_bytes": allocated * GIB, "peak_reserved_bytes": reserved * GIB}
    return {"phase": name, "phase_device": "sim:rtx-4090", "run_index": run_index, "completed": completed} | peaks


def test_allocated_memory_is_drawn_inside_reserved_memory_and_only_the_context_is_added() -> None:
    phases = [phase("load", 2, 3), phase("forward", 5, 6), phase("forward", 6, 8, 1), phase("between", 9, 9)]
    bars = phase_bars("a", on_a_card(), phases)
    assert bars is not None
    assert (bars.outer, bars.inner, bars.below, bars.limit) == ("reserved", "allocated", GIB, 24 * GIB)
    assert [(bar.phase, dict(bar.peaks)) for bar in bars.bars] == [
        ("load", {"allocated": 2 * GIB, "reserved": 3 * GIB}),
        ("forward", {"allocated": 6 * GIB, "reserved": 8 * GIB}),  # the highest repeat, never the sum
    ]
    charts = pytest.importorskip("sweeper.views.page.charts")
    drawn = charts.phase_chart(bars).to_dict()
    ends = [each["to"] for layer in drawn["layer"][:2] for each in drawn["datasets"][layer["data"]["name"]]]
    assert max(ends) == 9  # 1 GiB of context and 8 GiB reserved; allocated ends within them, at 7


def test_the_bars_of_a_measured_card_begin_at_what_was_reserved_and_have_a_limit_only_with_a_budget() -> None:
    measured = on_a_card(device="cuda:0", kind="measured", context_bytes=None, status="ok")
    phases = [{**phase("forward", 6, 8), "phase_device": "cuda:0"}]
    bars = phase_bars("a", measured, phases)
    assert bars is not None
    assert (bars.below, bars.limit) == (0, None)  # the driver's total counts other memory too
    capped = phase_bars("a", measured | {"budget_bytes": 10 * GIB, "budget_kind": "allocator"}, phases)
    assert capped is not None
    assert capped.limit == 10 * GIB


def test_a_card_is_judged_by_arithmetic_unless_the_run_tried_it() -> None:
    def card(name: str, gib: int) -> Card:
        return Card(name=name, vendor="nvidia", architecture="sm_90", total_bytes=(gib + 1) * GIB, context_bytes=GIB)

    cards = {f"card-{gib}": card(f"Card {gib}", gib) for gib in (5, 6, 7, 8, 80)}
    failed = {**on_a_card(), "device": "sim:card-80", "fits": False, "unlimited_peak_bytes": 90 * GIB}
    found = card_rooms("a", on_a_card(), cards, [failed])
    assert found is not None
    assert [(room.card, room.mark, room.known_by) for room in found.rooms] == [
        ("card-5", Mark.FAILS, "arithmetic"),  # less room than is allocated
        ("card-6", Mark.UNKNOWN, "arithmetic"),  # room for what is allocated, not for what is reserved
        ("card-7", Mark.UNKNOWN, "arithmetic"),
        ("card-8", Mark.FITS, "arithmetic"),
        ("card-80", Mark.FAILS, "calculated"),
    ]
    assert card_rooms("a", on_a_card(peak_is_partial=True), cards) is None


def test_tensors_on_a_cpu_rule_a_card_out_and_promise_none() -> None:
    tensors = {**on_a_card(), "device": "cpu", "kind": "measured", "peak_tensor_bytes": 6 * GIB}
    small = Card(name="s", vendor="nvidia", architecture="sm_90", total_bytes=5 * GIB)
    large = Card(name="l", vendor="nvidia", architecture="sm_90", total_bytes=500 * GIB)
    found = card_rooms("a", tensors, {"s": small, "l": large})
    assert found is not None
    assert [room.mark for room in found.rooms] == [Mark.FAILS, Mark.UNKNOWN]


def test_a_timeline_of_many_attempts_counts_them_in_stretches_of_time(page: Page, tables: dict[str, Any]) -> None:
    attempts = tables["attempts"].to_pylist()
    assert len(timeline.timeline(attempts).spans) == 66
    many = timeline.timeline(list(itertools.islice(itertools.cycle(attempts), 6600)))
    assert many.spans == ()
    assert sum(each.count for each in many.bins) == 6600
    assert {each.device for each in many.bins} == {"cpu"}


def test_the_page_says_the_same_as_the_tables(page: Page) -> None:
    assert page.html.count("<h1 ") == 1
    assert "48</b> fits" in page.html
    assert SCRIPT not in page.html
    assert "&lt;script&gt;" in page.html
    assert page.file.name == report.PAGE


# --- sentences --------------------------------------------------------------------------------------------------------


def test_a_calculated_card_is_listed_without_the_host_that_traced_it() -> None:
    record = {"host": "vm", "system": "Linux", "device_name": "A Card", "torch": "2.13.0+cpu", "backend": "cpu"}
    assert report.environment_of({**record, "allocator_backend": "malloc"})[0] == "measured"
    kind, line = report.environment_of({**record, "allocator_backend": "calculated"})
    assert kind == "calculated"
    assert line == "A Card: no such device was used, its figures were calculated; torch 2.13.0+cpu"


def test_the_cause_at_the_end_of_a_long_message_is_in_the_summary(tables: dict[str, Any]) -> None:
    refused = next(each for each in tables["attempts"].to_pylist() if each["status"] == "oom")
    message = f"Tried to allocate 22.00 MiB. {'The device has memory that is free. ' * 5}600.00 MiB allowed."
    failed = refused | {"error_type": "torch.OutOfMemoryError", "error_message": message}
    (kind,) = failures_of([failed], {refused["point_id"]: "batch=1"}).kinds
    assert kind.summary == f"OutOfMemoryError: {message}"
    assert not kind.says_more
    (kind,) = failures_of([failed | {"error_message": f"{message}\nand a trace"}], {refused["point_id"]: ""}).kinds
    assert kind.says_more
    assert kind.message.endswith("and a trace")


def test_cards_that_all_fit_are_one_sentence_with_the_smallest() -> None:
    cards = {
        f"card-{gib}": Card(name=f"Card {gib}", vendor="nvidia", architecture="sm_90", total_bytes=gib * GIB)
        for gib in (80, 9, 24)
    }
    found = card_rooms("a", on_a_card(), cards)
    assert found is not None
    assert found.are_alike
    assert found.sentence == (
        "The point reserves 8.00 GiB. It fits on all 3 cards; the smallest of them is card-9,"
        " which has room for 9.00 GiB."
    )
    cards["small"] = Card(name="Small", vendor="nvidia", architecture="sm_90", total_bytes=GIB)
    found = card_rooms("a", on_a_card(), cards)
    assert found is not None
    assert not found.are_alike
    assert "It fits on 3 of 4 cards; the smallest of them is card-9" in found.sentence


def test_an_assumption_begins_with_the_term_that_it_belongs_to(page: Page, tables: dict[str, Any]) -> None:
    sheet = decision_sheet(page.folder, tables)
    terms = [{"term": "optimizer_state", "assumption": "a state has its parameter's shape"}]
    sheet["calculated"]["estimates"] = terms
    sheet["assumed"] = ["a state has its parameter's shape", "nothing else was tried"]
    html = page_html(content_of(page.folder, tables), sheet, [])
    assert "<li><b>optimizer state</b>: a state has its parameter&#39;s shape</li>" in html
    assert "<li>Nothing else was tried</li>" in html


def test_a_pace_shows_the_spread_of_its_repeats_and_one_repeat_has_none(page: Page, tables: dict[str, Any]) -> None:
    rows = {name: tables[name].to_pylist() for name in ("points", "attempts", "phases")}
    (first, second, *_) = (each for each in rows["points"] if each["status"] == "ok")
    rows["phases"] = [
        {**rows["phases"][0], **{name: of[name] for name in ("point_id", "attempt")}}
        | {"phase": "warm_forward", "run_index": index, "elapsed_s": seconds, "completed": True}
        for of, times in ((first, (1.0, 1.5)), (second, (2.0,)))
        for index, seconds in enumerate(times)
    ]
    tariffs = Tariffs(
        currency="EUR", unit=TOKENS_OF_A_PASS, amount=1000, by_device={"cpu": Tariff(price_per_hour=D(1))}
    )
    costs = page_content(run="a", environment=[], plan=[], cards={}, tariffs=tariffs, **rows).costs
    assert costs is not None
    assert [costs.pace(each) for each in costs.priced] == ["2 repeats of 1 to 1.5 s", "one repeat"]
    assert costs.has_single_repeats


def test_the_limit_of_a_card_with_a_budget_is_named_with_the_context_that_it_does_not_count() -> None:
    limited = on_a_card(budget_bytes=8 * GIB, budget_kind="allocator")
    bars = phase_bars("a", limited, [phase("forward", 6, 8)])
    assert bars is not None
    assert (bars.limit, bars.limit_label) == (9 * GIB, "budget 8.00 GiB + context")
    assert bars.legend[-1] == "the budget does not count 1.00 GiB of context and libraries"
    assert bars.shown == ["reserved", "allocated"]
    charts = pytest.importorskip("sweeper.views.page.charts")
    drawn = json.dumps(charts.phase_chart(bars, narrow=True).to_dict())
    assert '"reserved / allocated, GiB"' in drawn
    assert '"8.00 / 6.00"' in drawn


def test_each_choice_names_its_setting(page: Page) -> None:
    for dtype in DTYPES:
        assert f"The choice with dtype={dtype}: the largest that fits, measured" in page.html
