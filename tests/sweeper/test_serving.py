"""How many requests a device answers at once, and the most tokens a second, from the rows of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sweeper.fit_cells import LARGEST_BATCH, Cell, FitDevice, FitTable, Result
from sweeper.serving import SERVE, Serving, new_tokens, servings, speeds
from sweeper.views import fit_table, serving_text

GIB = 2**30
WEIGHTS, REQUEST = 15 * GIB, GIB  # bytes
DEVICE = FitDevice(
    name="sim:mine", kind="calculated", card="mine", total_bytes=24 * GIB, context_bytes=0, context_range_bytes=None,
    used_by_others_bytes=None, usable_bytes=24 * GIB, bandwidth_bytes_per_s=2**40, price_per_hour=None,
)  # fmt: skip
CELL = Cell(
    device="sim:mine", kind="calculated", setting=SERVE, values={}, context=100, counter="allocated", fits=True,
    peak_bytes=17 * GIB, largest_batch=7, largest_peak_bytes=23 * GIB, failing_batch=8, status="ok",
    point_ids=("1", "7", "8", "32"),
)  # fmt: skip


def result(batch: int, fits: bool) -> Result:
    workload = {"name": "generate", "cache": "paged", "new_tokens": 29, "prefill_chunk": 8192}
    read = {"cache_bytes": batch * REQUEST, "prompt_cache_bytes": batch * REQUEST, "step_weight_bytes": WEIGHTS}
    return Result(
        device="sim:mine", values={"batch": batch, "context": 100, "workload": workload}, point_id=str(batch),
        status="ok" if fits else "oom", fits=fits, peak_bytes=WEIGHTS + batch * REQUEST, metrics=read if fits else {},
    )  # fmt: skip


RESULTS = [result(1, True), result(7, True), result(8, False), result(32, False)]


def serving(cell: Cell = CELL, results: list[Result] = RESULTS, requests: int = 32) -> Serving:
    (found,) = servings([cell], results, requests)
    return found


def test_the_requests_asked_for_and_the_largest_number_stand_next_to_each_other() -> None:
    found = serving()
    assert (found.requests, found.fits, found.peak_bytes) == (32, False, WEIGHTS + 32 * REQUEST)
    assert (found.largest, found.largest_peak_bytes, found.is_at_least) == (7, 23 * GIB, False)
    assert serving(requests=7).fits is True


def test_a_request_has_whole_pages_for_its_prompt_and_the_new_tokens_that_are_read() -> None:
    """100 tokens and 28 of 29 new ones are 8 pages of 16."""
    assert serving().request_pages == 8
    assert serving().request_bytes == REQUEST


def test_where_one_request_does_not_fit_no_number_does() -> None:
    cell = replace(CELL, fits=False, largest_batch=None, failing_batch=1, point_ids=("1",))
    found = serving(cell, [result(1, False)])
    assert (found.fits, found.largest, found.request_bytes) == (False, 0, None)


def test_nothing_is_known_before_a_point_has_ended() -> None:
    cell = replace(CELL, fits=None, largest_batch=None, failing_batch=None, status=None, point_ids=())
    found = serving(cell, [])
    assert (found.fits, found.largest, found.peak_bytes) == (None, None, None)


def test_an_answer_is_short_where_every_step_is_followed() -> None:
    windowed = {"sliding_window": 4096}
    assert new_tokens({"sliding_window": None}, None) == new_tokens({}, "sdpa") == 512
    assert new_tokens({**windowed, "use_sliding_window": False}, None) == 512
    assert new_tokens(windowed, None) == new_tokens({"text_config": windowed}, "sdpa") == new_tokens({}, "eager") == 8


def test_no_serving_is_shown_that_was_not_asked_for() -> None:
    assert servings([CELL], RESULTS, None) == ()


def test_the_most_tokens_a_second_are_those_of_the_weights_and_the_cache() -> None:
    found = {each.speed.batch: each.speed for each in speeds([CELL], RESULTS, [DEVICE], 32)}
    assert list(found) == [1, 7]
    assert found[7].tokens_per_second == pytest.approx(7 * 2**40 / (22 * GIB))
    assert found[7].price_per_million_tokens is None
    (priced,) = speeds([CELL], RESULTS[1:2], [replace(DEVICE, price_per_hour=3.6)], None)
    assert priced.speed.price_per_million_tokens == pytest.approx(1000 / found[7].tokens_per_second)


def test_a_card_without_a_bandwidth_has_no_speed() -> None:
    assert speeds([CELL], RESULTS, [replace(DEVICE, bandwidth_bytes_per_s=None)], None) == ()


def table_of(results: list[Result] = RESULTS, cell: Cell = CELL, requests: int = 32, **changes: Any) -> FitTable:
    return FitTable(
        model="mine", parameters=None, dtype="bfloat16", devices=(DEVICE,), settings=(SERVE,), contexts=(100,),
        cells=(cell,), servings=(serving(cell, results, requests),),
        speeds=speeds([cell], results, [changes.get("device", DEVICE)], requests),
    )  # fmt: skip


def test_the_text_marks_a_formula_and_names_what_is_not_included() -> None:
    table = table_of()
    groups, head, line = serving_text.grid(table)
    assert groups.split() == ["32", "requests", "largest"]
    assert line.split() == ["mine", "24.00", "100", "no", "47.00", "-", "7", "23.00", "326"]
    assert max(map(len, (groups, head, line))) <= 80
    text = " ".join([*serving_text.legend(table), *serving_text.speed_lines(table)])
    for part in ("Not included:", "the time to read the prompts", "CUDA graphs", "8 pages of 16 tokens"):
        assert part in text
    assert "an answer of 29 (workload.new_tokens)" in text
    assert "by a formula and not from a calculated run" in text
    unknown = table_of(device=replace(DEVICE, bandwidth_bytes_per_s=None))
    assert serving_text.grid(unknown)[2].split()[-1] == "-"
    assert serving_text.speed_lines(unknown) == []


def test_tokens_a_second_are_of_the_requests_asked_for_and_of_the_largest_number() -> None:
    """5 x 1024 GiB/s / (15 + 5) GiB, and 7 x 1024 / (15 + 7)."""
    results = [result(1, True), result(5, True), *RESULTS[1:3]]
    table = table_of(results, replace(CELL, point_ids=("1", "5", "7", "8")), requests=5)
    assert serving_text.grid(table)[2].split()[3:] == ["yes", "20.00", "256", "7", "23.00", "326"]
    assert "51.2 for each of 5, 46.5 for each of 7 requests." in serving_text.speed_lines(table)


def test_the_largest_number_is_no_answer_before_the_search_is_over() -> None:
    """What fitted so far is `largest` in the rows."""
    cell = replace(CELL, largest_batch=1, failing_batch=None, point_ids=("1",))
    table = table_of([result(1, True)], cell)
    assert table.servings[0].is_open
    assert serving_text.grid(table)[2].split() == ["mine", "24.00", "100", *["..."] * 6]
    ended = table_of(cell=replace(CELL, largest_batch=LARGEST_BATCH, failing_batch=None))
    assert serving_text.grid(ended)[2].split()[6] == f">={LARGEST_BATCH}"


def test_a_server_of_several_cards_names_the_usable_memory_and_the_price_of_each() -> None:
    small = replace(DEVICE, name="sim:small", usable_bytes=16 * GIB, price_per_hour=3.6)
    none = {"largest_batch": None, "largest_peak_bytes": None, "failing_batch": 1}
    cell = replace(CELL, device="sim:small", fits=False, point_ids=("1",), **none)
    refused = replace(result(1, False), device="sim:small")
    table = replace(table_of(), devices=(DEVICE, small), cells=(CELL, cell))
    table = replace(table, servings=(*table.servings, serving(cell, [refused])))
    lines = [line.split() for line in serving_text.grid(table)[2:]]
    assert [(line[0], line[1]) for line in lines] == [("mine", "24.00"), ("small", "16.00")]
    assert lines[1][3:] == ["no", "-", "-", "-", "0", "-", "-", "-"]


def test_fragmentation_names_the_card_and_the_number_of_requests() -> None:
    text = " ".join(fit_table.as_text(table_of(cell=replace(CELL, fits_if_expandable=True))).split())
    assert "Only fragmentation prevents 8 requests at 100 tokens on sim:mine." in text
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in text


def test_the_accuracy_of_a_table_is_that_of_figures_like_its_own() -> None:
    server = " ".join(fit_table.as_text(table_of()).split())
    assert "No figure of a server was compared with a real one." in server
    assert "of training" not in server
    training = replace(table_of(), servings=(), speeds=(), cells=(replace(CELL, values={"quantize": "nf4"}),))
    text = " ".join(fit_table.as_text(training).split())
    assert "4.7 % in training" in text
    assert "No published peak of QLoRA was compared" in text
    assert "QLoRA" not in fit_table.as_text(replace(training, cells=(CELL,)))
