"""Margins: each term comes from rows of the same run or is assumed, and is shown with its source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sweeper.frontier.edges import frontier
from sweeper.tables.run_tables import Tables
from sweeper.views.frontier_text import frontier_text
from tests.sweeper.conftest import BASELINE, WrittenRun, phase, started
from tests.sweeper.frontier.test_edges import row

MIB = 2**20
TOTAL = 1000 * MIB


def point(peak: int | None, batch: int = 1, device: str = "cpu", **more: Any) -> dict[str, Any]:
    """A row whose limit is 1000 MiB; without a peak, in MiB, it did not fit."""
    inputs, evaluation = more.pop("inputs", "synthetic"), more.pop("evaluation", None)
    context = more.pop("context", 64)
    counter = "peak_resident_bytes" if device == "cpu" else "peak_reserved_bytes"
    config = {
        "model": {"name": "mlp"},
        "workload": {"name": "train", "evaluation": {"batch": evaluation}, "export": None},
        "inputs": {"name": inputs},
        "batch": batch,
        "context": context,
    }
    known = {"device_total_bytes": TOTAL, counter: None if peak is None else peak * MIB} | more
    found = row("oom" if peak is None else "ok", device, batch=batch, context=context, workload="train", **known)
    return found | {"config": json.dumps(config)}


def with_margin(rows: list[dict[str, Any]], **margin: int | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of the largest point with a margin, and its terms by name."""
    (edge,) = (edge for edge in frontier(rows, margin=margin) if edge["side"] == "with_margin")
    return edge, {term["name"]: term for term in json.loads(edge["margin_terms"])}


def beyond(**mib: int) -> str:
    return json.dumps({name: {"resident": each * MIB, "allocated": each * MIB} for name, each in mib.items()})


def test_an_evaluation_that_the_peak_includes_is_shown_and_not_added() -> None:
    rows = [point(500 * batch, batch, evaluation=8, beyond_training=beyond(evaluation=40)) for batch in (1, 2)]
    edge, terms = with_margin(rows, evaluation="measured")
    assert (edge["batch"], edge["margin_bytes"]) == (2, 0)
    assert terms["evaluation"] == {"name": "evaluation", "bytes": 40 * MIB, "source": "measured", "in_peak": True}
    text = "evaluation 40.00 MiB measured, already in the peak"
    assert text in frontier_text(rows, margin={"evaluation": "measured"})


@pytest.mark.parametrize(("more", "batch"), [(100, 2), (101, 1)])
def test_what_an_evaluation_takes_beyond_training_is_left_free_at_the_same_point_without_one(
    more: int, batch: int
) -> None:
    without = [point(450 * batch, batch) for batch in (1, 2)]
    with_it = [point(450 * each + more, each, evaluation=8, beyond_training=beyond(evaluation=more)) for each in (1, 2)]
    edges = [e for e in frontier([*without, *with_it], margin={"evaluation": "measured"}) if e["side"] == "with_margin"]
    assert (edges[0]["batch"], edges[0]["margin_bytes"]) == (batch, more * MIB)


def test_the_longest_input_is_compared_with_the_usual_one_at_the_same_point() -> None:
    usual = [point(200 * batch, batch, inputs="usual", context=128) for batch in (1, 2, 4)]
    limit = [point(300 * batch, batch, inputs="limit", context=1024) for batch in (1, 2)]
    long = [point(250 * batch, batch, inputs="long", context=512) for batch in (1, 2, 4)]
    text = frontier_text([*usual, *long], margin={"longest_input": "measured"})
    assert "with 200.00 MiB left:  batch=4 context=128  (longest_input 200.00 MiB measured)" in text
    assert "inputs longer than 512" in text
    failing = point(None, 4, inputs="limit", context=1024)
    rows = [*usual, *long, *limit, failing]
    edges = [edge for edge in frontier(rows, margin={"longest_input": "measured"}) if edge["side"] == "with_margin"]
    assert [(edge["context"], edge["batch"], edge["margin_bytes"]) for edge in edges] == [
        (128, 2, 200 * MIB),  # at 4 the longest input is known not to fit, although 512 tokens would
        (512, 2, 100 * MIB),
        (1024, 2, 0),
    ]


def test_a_term_that_is_unknown_at_a_larger_point_is_named_with_that_point() -> None:
    rows = [
        *(point(200 * batch, batch, inputs="usual", context=128) for batch in (1, 2, 4)),
        point(210, 1, inputs="limit", context=1024),
    ]
    text = frontier_text(rows, margin={"longest_input": "measured"})
    assert "with 10.00 MiB left:  batch=1 context=128  (longest_input 10.00 MiB measured)" in text
    assert "unknown for:       batch=4 context=128 (longest_input); batch=2 context=128 (longest_input)" in text


@pytest.mark.parametrize("name", ["spread", "evaluation", "export", "longest_input", "others"])
def test_an_unknown_term_makes_the_largest_with_a_margin_unknown(name: str) -> None:
    rows = [point(100, inputs="text"), point(200, 2, inputs="text")]
    edge, terms = with_margin(rows, **{name: "measured", "next_release": 10 * MIB})
    assert (edge["point_id"], edge["limit"], edge["margin_bytes"]) == (None, "unknown", 10 * MIB)
    assert terms[name]["bytes"] is None
    text = f"with a margin:       unknown  ({name} not measured, next_release 10.00 MiB assumed)"
    assert text in frontier_text(rows, margin={name: "measured", "next_release": 10 * MIB})


def test_what_others_use_on_the_card_is_left_free_unless_the_drivers_counter_decides() -> None:
    alone = point(600, device="cuda:0", used_by_others_bytes=300 * MIB)
    edge, terms = with_margin([alone], others="measured")
    assert (edge["batch"], edge["margin_bytes"], terms["others"]["source"]) == (1, 300 * MIB, "measured")
    counted = alone | {"peak_used_bytes": 950 * MIB}
    edge, terms = with_margin([counted], others="measured")
    assert (edge["batch"], edge["margin_bytes"], terms["others"]["in_peak"]) == (1, 0, True)


def test_what_is_calculated_beyond_the_measured_peak_is_a_calculated_term() -> None:
    measured = [point(450 * batch, batch, peak_tensor_bytes=400 * batch * MIB) for batch in (1, 2)]
    calculated = [
        point(440 * batch, batch, "sim:cpu", unlimited_peak_bytes=440 * batch * MIB, device_total_bytes=None)
        for batch in (1, 2)
    ]
    edge, terms = with_margin([*measured, *calculated], unseen="calculated")
    assert (edge["device"], edge["batch"], edge["margin_bytes"]) == ("cpu", 2, 80 * MIB)
    assert terms["unseen"]["source"] == "calculated"
    requested = {"unseen": "calculated"}
    assert "unseen 80.00 MiB calculated" in frontier_text(measured, margin=requested, context=[*measured, *calculated])
    assert "unseen not calculated" in frontier_text(measured, margin=requested)


def test_a_longest_input_that_no_card_could_hold_can_be_calculated() -> None:
    usual = point(450, inputs="usual", context=128)
    calculated = [
        point(400, 1, "sim:cpu", inputs="usual", context=128, unlimited_peak_bytes=400 * MIB),
        point(None, 1, "sim:cpu", inputs="limit", context=1024, unlimited_peak_bytes=900 * MIB),
    ]
    edges = frontier([usual, *calculated], margin={"longest_input": "calculated", "more": 50 * MIB})
    found = {edge["device"]: edge for edge in edges if edge["side"] == "with_margin"}
    assert (found["cpu"]["batch"], found["cpu"]["margin_bytes"]) == (1, 550 * MIB)


def test_on_a_calculated_device_no_term_is_called_measured() -> None:
    rows = [point(500, device="sim:l4-24gb", evaluation=8, beyond_training=beyond(evaluation=40))]
    rows[0]["peak_used_bytes"] = 500 * MIB
    _, terms = with_margin(rows, evaluation="measured")
    assert terms["evaluation"]["source"] == "calculated"


def test_the_tables_have_what_a_phase_took_beyond_the_training_before_it(written: Any) -> None:
    run: WrittenRun = written({"batch": [1, 2, 4]})
    for batch, (step, evaluation, completed) in {1: (9, 12, True), 2: (9, 5, True), 4: (9, 12, False)}.items():
        lines = [*started(), *phase("cold_step", BASELINE + step * MIB)]
        lines += phase("evaluation", BASELINE + evaluation * MIB, completed)
        ended = {"kind": "finished"} if completed else {"kind": "failed", "chain": [{"type": "MemoryError"}]}
        run.attempt(run.ask(batch=batch), [*lines, ended], {"code": 0, "signal": None})
    found = Tables(run.folder).arrow()["points"].column("beyond_training").to_pylist()
    beyond = [json.loads(each)["evaluation"] if each else None for each in found]
    assert [each and each["resident"] for each in beyond] == [3 * MIB, 0, None]


def test_the_tables_have_what_was_used_on_a_device_before_an_attempt(written: Any) -> None:
    run: WrittenRun = written({"batch": [1]}, devices=("cuda:0", "cpu"))
    point, used = run.ask(), [{"uuid": "GPU-0", "used_bytes_before": 5 * MIB, "used_bytes_end": 6 * MIB}]
    run.attempt(point, started(), {"code": 1, "signal": None, "devices": used}, device="cuda:0")
    run.attempt(point, started(), {"code": 1, "signal": None})
    found = Tables(run.folder).arrow()["points"].select(["device", "used_by_others_bytes"]).to_pylist()
    assert {each["device"]: each["used_by_others_bytes"] for each in found} == {"cuda:0": 5 * MIB, "cpu": None}
