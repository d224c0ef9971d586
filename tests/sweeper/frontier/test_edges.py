from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.facts import FITS_IF_EXPANDABLE
from runners.outcome import Status
from sweeper import cli
from sweeper.errors import Mistake
from sweeper.frontier.edges import NEEDS, frontier
from sweeper.objective import Objective
from sweeper.tables.run_tables import Tables
from sweeper.units import format_bytes
from sweeper.views.frontier_text import frontier_text

MIB, GIB = 2**20, 2**30


def row(status: str = "ok", device: str = "cpu", **values: Any) -> dict[str, Any]:
    """A row of points.parquet, with what a frontier needs of it."""
    settled = {"model": "mlp", "workload": "forward", "dtype": "float32", "batch": 1, "context": 64, "warmup": 1}
    more = {key: values.pop(key) for key in list(values) if key in NEEDS and key not in settled}
    settled |= values
    nested = {**settled, "model": {"name": "mlp"}, "workload": {"name": "forward"}}
    fits = True if status == "ok" else False if status in ("oom", "oom_killed") else None
    usual: dict[str, Any] = dict.fromkeys(NEEDS) | {
        "run": "bill",
        "device": device,
        "kind": "calculated" if device.startswith("sim:") else "measured",
        "config": json.dumps(nested),
        "point_id": json.dumps(nested, sort_keys=True),
        "status": status,
        "fits": fits,
    }
    return usual | settled | more


def line(statuses: Mapping[int, str], **values: Any) -> list[dict[str, Any]]:
    return [row(status, batch=batch, **values) for batch, status in statuses.items()]


def upto(limit: int, batches: Iterable[int], **values: Any) -> list[dict[str, Any]]:
    return line({batch: "ok" if batch <= limit else "oom" for batch in batches}, **values)


def largest(edges: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (edge for edge in edges if edge["largest"])
    return found


@pytest.mark.parametrize(("limit", "answer"), [(1, 1), (6, 6), (7, 7), (8, 8), (9, 8)])
def test_the_largest_that_fits_is_never_off_by_one(limit: int, answer: int) -> None:
    edges = frontier(upto(limit, range(1, 9)))
    assert largest(edges)["batch"] == answer
    failing = [edge["batch"] for edge in edges if edge["side"] == "fails"]
    assert failing == ([answer + 1] if answer < 8 else [])
    assert largest(edges)["limit"] == ("memory" if answer < 8 else "not_reached")


def test_a_point_that_passed_only_after_refusals_is_on_neither_side_and_says_why_nothing_larger_fits() -> None:
    caught = row(batch=4, handled_refusals=3, handled_refusal_bytes=64 * MIB) | {"fits": None}
    rows = [*line({1: "ok", 2: "ok"}), caught]
    (edge,) = frontier(rows)
    assert (edge["batch"], edge["limit"], edge["untested_between"]) == (2, "memory", 1)
    assert "the next, batch=4: undecided: the workload continued after 3 refused" in frontier_text(rows)
    (text,) = frontier_text([caught]).splitlines()
    assert text.startswith("cpu  no attempt decided what fits: 1 ok (undecided: the workload continued after 3 refused")


def test_a_point_that_passed_with_more_shared_memory_than_its_budget_is_on_neither_side_and_says_why() -> None:
    limits = {"budget_bytes": 64 * MIB, "budget_kind": "data_limit"}
    shared = row(batch=4, used_with_shared_bytes=256 * MIB, **limits) | {"fits": None}
    rows = [row(batch=2, **limits), shared]
    (edge,) = frontier(rows)
    assert (edge["batch"], edge["limit"]) == (2, "memory")
    because = "undecided: it used 256.00 MiB, shared memory included, and a budget (64.00 MiB) does not limit shared"
    assert f"the next, batch=4: {because}" in frontier_text(rows)
    assert frontier_text([shared]).startswith(f"cpu  no attempt decided what fits: 1 ok ({because}")


def test_a_limit_that_differs_by_attempt_is_that_of_the_point_shown() -> None:
    """What `ulimit -d` leaves depends on what the process held at its start."""
    limits = {1: 733 * MIB, 2: 734 * MIB, 3: 735 * MIB}
    statuses = {1: "ok", 2: "ok", 3: "oom"}
    text = frontier_text(
        row(status, batch=batch, budget_bytes=limits[batch], budget_kind="inherited_data_limit", budget_used_bytes=MIB)
        for batch, status in statuses.items()
    )
    assert "limit 734.00 MiB of data, by ulimit -d" in text
    assert "1.00 MiB of 734.00 MiB used" in text


def follower(batch: int, status: str, **more: Any) -> dict[str, Any]:
    """A point with a key that follows its batch, as the tables have it."""
    return row(status, batch=batch, ckpt=f"fold_{batch}", settings=json.dumps({"ckpt": "fold_${batch}"}), **more)


def test_points_with_a_key_that_follows_the_searched_one_are_one_group() -> None:
    rows = [follower(batch, "ok" if batch <= 4 else "oom") for batch in (1, 2, 4, 8)]
    fits, fails = frontier(rows)
    assert (fits["side"], fits["batch"], fits["limit"]) == ("fits", 4, "memory")
    assert (fails["side"], fails["batch"]) == ("fails", 8)
    assert frontier_text(rows).count("largest that fits") == 1
    assert "ckpt=fold_${batch}" in frontier_text(rows)


def test_a_budget_that_follows_the_searched_key_is_shown_as_it_was_typed() -> None:
    rows = [
        row("ok", batch=batch, settings=json.dumps({"budget": "${batch}GiB"}), budget_kind="data_limit")
        | {"budget_bytes": batch * 2**30}
        for batch in (1, 2)
    ]
    assert "  budget=${batch}GiB of data, not counting the imports" in frontier_text(rows).splitlines()[0]


def test_what_others_use_of_a_card_is_no_fragmentation() -> None:
    refused = row("oom", device="sim:rtx-4090", kind="calculated", unlimited_peak_bytes=20 * 2**30)
    refused |= {"device_total_bytes": 24 * 2**30, "context_bytes": 2**29}
    assert "fragmentation" in frontier_text([refused])
    assert "expandable" not in frontier_text([refused])
    avoided = refused | {"error_message": f"out of memory{FITS_IF_EXPANDABLE}"}
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the shell"
    assert f"leaves no room for its segments; with {setting} it fits (calculated)" in frontier_text([avoided])
    assert "fragmentation" not in frontier_text([refused | {"used_by_others_bytes": 6 * 2**30}])


def test_what_the_context_takes_of_a_card_is_no_fragmentation_in_the_rows_of_a_run() -> None:
    refused = row("oom", device="sim:rtx-4090", kind="calculated", unlimited_peak_bytes=20 * 2**30)
    refused |= {"device_total_bytes": 24 * 2**30, "context_bytes": 5 * 2**30}
    of_run = {name: refused.get(name) for name in NEEDS}  # the columns that a run's frontier is made from
    assert "fragmentation" not in frontier_text([of_run])


def test_a_growing_key_that_follows_another_is_not_searched_along() -> None:
    rows = [
        row("ok" if batch <= 4 else "oom", batch=batch, context=batch, settings=json.dumps({"context": "${batch}"}))
        for batch in (1, 2, 4, 8)
    ]
    fits, _ = frontier(rows)
    assert (fits["along"], fits["batch"], fits["context"]) == ("batch", 4, 4)


def test_a_value_from_outside_separates_what_was_measured_under_it() -> None:
    settings = json.dumps({"ckpt": "/one/${oc.env:USER}"})
    rows = [row("ok", batch=batch, ckpt=f"/one/{user}", settings=settings) for batch, user in ((1, "a"), (2, "b"))]
    assert [edge["batch"] for edge in frontier(rows) if edge["largest"]] == [1, 2]


def test_the_heading_of_a_group_has_every_setting_that_is_not_a_default() -> None:
    settings = {"model.width": 64, "workload.method": "lora", "quantize": "nf4", "dtype": "bfloat16", "batch": 1}
    text = frontier_text([row(dtype="bfloat16", settings=json.dumps(settings))])
    title = text.splitlines()[0]
    assert title.split("  ")[-3:] == ["model.width=64", "workload.method=lora", "quantize=nf4"]
    assert "batch" not in title


def test_where_nothing_fits_the_largest_is_null_and_not_a_number() -> None:
    edges = frontier(upto(0, (1, 2, 4)))
    none = largest(edges)
    assert (none["batch"], none["point_id"], none["limit"], none["headroom_bytes"]) == (None, None, "memory", None)
    assert [edge["batch"] for edge in edges if edge["side"] == "fails"] == [1]
    assert "none fits" in frontier_text(upto(0, (1, 2, 4)))


def test_without_a_decided_point_there_is_no_edge_and_the_text_has_the_reason() -> None:
    rows = line({1: "unavailable", 2: "unavailable"}, device="cuda:0", error_message="no CUDA device")
    assert frontier(rows) == []
    text = frontier_text(rows)
    assert "cuda:0  no attempt decided what fits: 2 unavailable (no CUDA device)" in text
    assert "none fits" not in text


def test_undecided_points_of_a_device_that_decided_others_are_named_by_what_differs() -> None:
    rows = [*line({1: "ok", 2: "oom"}), *line({1: "not_run", 2: "not_run"}, dtype="bfloat16")]
    assert "cpu  bfloat16:  no attempt decided what fits: 2 not_run" in frontier_text(rows)


@pytest.mark.parametrize("status", sorted({status.value for status in Status} - {"ok", "oom", "oom_killed"}))
def test_only_a_decided_point_moves_the_frontier(status: str) -> None:
    edges = frontier(line({1: "ok", 2: status, 4: "ok", 8: status}))
    assert largest(edges)["batch"] == 4
    assert [edge["side"] for edge in edges] == ["fits"]
    tried = status in ("error", "timeout", "crashed", "killed")
    assert largest(edges)["limit"] == ("other" if tried else "unknown")


def test_a_refusal_beyond_a_failure_of_another_kind_is_not_the_limit() -> None:
    edges = frontier(line({1: "ok", 2: "error", 4: "oom"}, failed_phase="warm_forward"))
    assert largest(edges)["limit"] == "other"
    assert largest(edges)["untested_between"] == 1
    assert [edge["untested_between"] for edge in edges] == [1, 1]


def test_host_memory_of_a_gpu_attempt_is_a_limit_of_its_own_and_no_failure_of_the_device() -> None:
    rows = line({1: "ok", 2: "oom"}, device="cuda:0")
    rows[1] |= {"fits": None, "oom_scope": "host", "failed_phase": "model_load"}
    edges = frontier(rows)
    assert [(edge["side"], edge["limit"], edge["limiting_phase"]) for edge in edges] == [
        ("fits", "host_memory", "model_load")
    ]
    assert "out of host memory in model_load" in frontier_text(rows)


def test_the_limiting_phase_is_where_the_next_larger_one_failed() -> None:
    rows = line({1: "ok", 2: "oom", 4: "oom"})
    rows[1]["failed_phase"], rows[2]["failed_phase"] = "backward", "model_load"
    assert [edge["limiting_phase"] for edge in frontier(rows)] == ["backward", "backward"]


def test_in_two_dimensions_the_edge_is_every_maximal_passing_and_minimal_failing_point() -> None:
    rows = [
        row("ok" if batch * context <= 256 else "oom", batch=batch, context=context)
        for batch in (1, 2, 4, 8)
        for context in (64, 128, 256)
    ]
    edges = frontier(rows)
    assert {edge["along"] for edge in edges} == {"batch,context"}
    at = {side: [(e["batch"], e["context"]) for e in edges if e["side"] == side] for side in ("fits", "fails")}
    assert at == {"fits": [(1, 256), (2, 128), (4, 64)], "fails": [(2, 256), (4, 128), (8, 64)]}
    assert (largest(edges)["batch"], largest(edges)["context"]) == (4, 64)
    assert all(edge["monotone"] and edge["limit"] == "memory" for edge in edges)


@pytest.mark.parametrize(
    ("objective", "answer"),
    [("tokens", (1, 512)), ("batch", (4, 64)), ("context", (1, 512)), ("batch^2*context", (4, 64))],
)
def test_the_objective_decides_which_point_is_the_largest(objective: str, answer: tuple[int, int]) -> None:
    fitting = [(1, 512), (2, 128), (4, 64)]
    edges = frontier([row(batch=batch, context=context) for batch, context in fitting], Objective.parse(objective))
    assert (largest(edges)["batch"], largest(edges)["context"]) == answer


def test_an_objective_may_name_a_key_that_ends_in_tokens() -> None:
    rows = [row(batch=batch, **{"workload.new_tokens": new}) for batch, new in ((1, 64), (4, 8))]
    for each, new in zip(rows, (64, 8), strict=True):
        each["config"] = json.dumps({"workload": {"new_tokens": new}, "batch": each["batch"]})
    assert largest(frontier(rows, Objective.parse("workload.new_tokens")))["batch"] == 1
    assert frontier(rows)[0]["along"] == "batch,workload.new_tokens"


def test_monotone_is_unknown_and_assumed_unless_a_point_was_run_whose_result_was_implied() -> None:
    def searched(*more: tuple[int, str]) -> list[dict[str, Any]]:
        order = [(4, "ok"), (8, "oom"), (6, "ok"), *more]
        rows = [
            row(status, batch=batch) | {"started_at": f"2026-01-01T00:00:{at:02}"}
            for at, (batch, status) in enumerate(order)
        ]
        return [*reversed(rows), row("skipped", batch=2)]

    for rows, monotone in (
        (searched(), None),
        (searched((7, "oom")), None),
        (searched((5, "ok")), True),
        (searched((9, "oom")), True),
        (searched((5, "oom")), False),
    ):
        assert {edge["monotone"] for edge in frontier(rows)} == {monotone}
        assert ("assumed:             memory never decreases along batch" in frontier_text(rows)) == (monotone is None)


def test_where_every_point_was_measured_nothing_is_assumed() -> None:
    assert "assumed" not in frontier_text(line({1: "ok", 2: "oom"}))


def test_a_failure_below_a_pass_is_shown_as_not_monotone() -> None:
    rows = line({1: "ok", 2: "oom", 4: "ok", 8: "oom"})
    edges = frontier(rows)
    assert not any(edge["monotone"] for edge in edges)
    assert largest(edges)["batch"] == 4
    assert "not monotone:        batch=2 fails" in frontier_text(rows)


def test_each_value_of_a_key_without_direction_is_a_group_of_its_own() -> None:
    rows = [*upto(4, (1, 2, 4, 8)), *upto(2, (1, 2, 4, 8), warmup=3), *upto(8, (1, 2, 4, 8), dtype="bfloat16")]
    found = {(edge["warmup"], edge["dtype"]): edge["batch"] for edge in frontier(rows) if edge["largest"]}
    assert found == {(1, "float32"): 4, (3, "float32"): 2, (1, "bfloat16"): 8}
    text = frontier_text(rows)
    assert "warmup=3" in text


def test_a_parameter_of_a_custom_workload_has_no_direction() -> None:
    rows = []
    for limit in (2, 4):
        for each in upto(limit, (1, 2, 4, 8)):
            config = json.loads(each["config"])
            config["workload"]["params"] = {"limit": limit}
            rows.append(each | {"workload.params.limit": limit, "config": json.dumps(config)})
    found = {edge["workload.params.limit"]: edge["batch"] for edge in frontier(rows) if edge["largest"]}
    assert found == {2: 2, 4: 4}


def test_points_that_differ_in_a_key_without_a_column_are_another_group() -> None:
    rows = upto(4, (1, 2, 4, 8))
    other = [each | {"config": json.dumps(json.loads(each["config"]) | {"timeout": 5})} for each in upto(2, (1, 2, 4))]
    assert [edge["batch"] for edge in frontier([*rows, *other]) if edge["largest"]] == [4, 2]


def test_devices_and_calculated_rows_are_never_mixed() -> None:
    rows = [*upto(4, (1, 2, 4, 8)), *upto(2, (1, 2, 4, 8), device="sim:rtx-4090")]
    found = {(edge["device"], edge["kind"]): edge["batch"] for edge in frontier(rows) if edge["largest"]}
    assert found == {("cpu", "measured"): 4, ("sim:rtx-4090", "calculated"): 2}
    assert "(calculated, not measured)" in frontier_text(rows)


def test_a_flaky_point_does_not_count_as_fitting() -> None:
    rows = line({1: "ok", 2: "ok", 4: "oom"})
    rows[1]["flaky"] = True
    assert largest(frontier(rows))["batch"] == 1
    assert "flaky" in frontier_text(rows)


def test_headroom_is_what_is_left_of_the_limit_in_the_deciding_counter() -> None:
    on_budget = row(
        budget_bytes=GIB, budget_used_bytes=GIB - 5, peak_resident_bytes=3 * GIB, device_total_bytes=16 * GIB
    )
    on_device = row(
        device="cuda:0", device_total_bytes=24 * GIB, peak_used_bytes=20 * GIB, peak_reserved_bytes=21 * GIB
    )
    unknown = row(device="cuda:0", peak_used_bytes=20 * GIB)
    found = [largest(frontier([each])) for each in (on_budget, on_device, unknown)]
    assert [(edge["headroom_bytes"], edge["headroom_counter"]) for edge in found] == [
        (5, "budget_used_bytes"),
        (3 * GIB, "peak_reserved_bytes"),
        (None, None),
    ]


def test_with_a_budget_on_a_card_the_headroom_is_of_the_limit_that_leaves_less() -> None:
    card = {"device": "cuda:0", "device_total_bytes": 24 * GIB, "peak_used_bytes": 23 * GIB}
    used = largest(frontier([row(**card, budget_bytes=12 * GIB, budget_used_bytes=4 * GIB)]))
    assert (used["headroom_bytes"], used["headroom_counter"]) == (GIB, "peak_used_bytes")
    budget = largest(frontier([row(**card, budget_bytes=5 * GIB, budget_used_bytes=5 * GIB - 7)]))
    assert (budget["headroom_bytes"], budget["headroom_counter"]) == (7, "budget_used_bytes")


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (
            row(budget_bytes=GIB, budget_used_bytes=600 * MIB, budget_kind="data_limit", peak_resident_bytes=3 * GIB),
            "peak 3.00 GiB resident; 600.00 MiB of 1.00 GiB used, 424.00 MiB left;",
        ),
        (
            row(device="cuda:0", device_total_bytes=8 * GIB, peak_allocated_bytes=4 * GIB, peak_reserved_bytes=6 * GIB),
            "peak 4.00 GiB allocated; 6.00 GiB reserved, 2.00 GiB left;",
        ),
        (
            row(device="sim:cpu", budget_bytes=GIB, budget_used_bytes=600 * MIB, peak_tensor_bytes=600 * MIB),
            "peak 600.00 MiB tensor, 424.00 MiB left;",
        ),
        (row(device_total_bytes=8 * GIB, peak_resident_bytes=6 * GIB), "peak 6.00 GiB resident, 2.00 GiB left;"),
        (row(budget_bytes=GIB, budget_kind="data_limit", peak_resident_bytes=GIB), "peak 1.00 GiB resident;"),
    ],
)
def test_what_is_left_is_shown_with_the_peak_of_the_same_counter(point: dict[str, Any], text: str) -> None:
    assert text in frontier_text([point])


def test_a_limit_that_the_user_did_not_set_as_a_budget_is_shown_as_a_limit() -> None:
    assert "limit 13.00 GiB of addresses, by ulimit -v" in frontier_text(
        [row(budget_bytes=13 * GIB, budget_kind="address_limit")]
    )
    assert "GiB" not in frontier_text([row(budget_bytes=13 * GIB, budget_kind="guard")])


def test_the_memory_of_other_processes_is_beside_the_peak_where_it_is_a_relevant_share() -> None:
    helped = {"other_processes": 2, "peak_resident_bytes": 160 * MIB}
    shown = frontier_text([row(**helped, other_processes_resident_bytes=512 * MIB)])
    assert "peak 160.00 MiB resident, and 512.00 MiB in 2 other processes" in shown
    assert "other process" not in frontier_text([row(**helped, other_processes_resident_bytes=4 * MIB)])


def test_on_cpu_the_peak_of_tensors_stands_before_the_resident_one_which_includes_python() -> None:
    shown = frontier_text([row(peak_tensor_bytes=154 * MIB, peak_resident_bytes=462 * MIB)])
    assert "peak 154.00 MiB tensors, 462.00 MiB resident" in shown


def test_where_everything_fits_a_line_has_what_to_type_to_find_an_edge() -> None:
    search = "to find an edge: design=frontier 'batch=interval(4,1024)', or budget=SIZE, which stands for a"
    assert search in frontier_text(upto(4, (1, 2, 4)))
    for found in (upto(2, (1, 2, 4)), line({1: "ok", 2: "error"})):
        assert "to find an edge" not in frontier_text(found)


def test_the_budget_is_shown_although_the_first_point_was_not_measured() -> None:
    rows = [row("skipped"), row(batch=2, budget_bytes=GIB, budget_kind="data_limit")]
    assert "budget 1.00 GiB of data, not counting the imports" in frontier_text(rows)


def test_undecided_points_between_are_counted_unless_others_imply_them() -> None:
    edges = frontier(line({1: "ok", 2: "not_run", 3: "timeout", 4: "oom", 8: "not_run", 16: "oom"}))
    assert [(edge["batch"], edge["untested_between"]) for edge in edges] == [(1, 2), (4, 2)]


def test_a_skipped_neighbour_has_the_limit_of_the_point_that_implies_it() -> None:
    rows = [
        row("ok", batch=4, context=64),
        row("oom", batch=8, context=32, point_id="0123456789abcdef", failed_phase="backward"),
        row("skipped", batch=8, context=64, skipped_because="01/0123456789abcdef.cpu.1"),
    ]
    edge = largest(frontier(rows))
    assert (edge["limit"], edge["limiting_phase"], edge["untested_between"]) == ("memory", "backward", 0)


def test_one_point_alone_is_searched_along_batch_and_context() -> None:
    (edge,) = frontier([row(batch=3, context=7)])
    assert (edge["along"], edge["batch"], edge["context"], edge["limit"]) == ("batch,context", 3, 7, "not_reached")


def test_a_program_without_batch_and_context_has_a_frontier_too() -> None:
    point = row() | {"batch": None, "context": None, "config": "{}"}
    (edge,) = frontier([point])
    assert (edge["side"], edge["along"]) == ("fits", "")
    assert "largest that fits" in frontier_text([point])
    point |= {"device_total_bytes": 16 * GIB, "peak_resident_bytes": GIB}
    assert "none is known to fit" not in frontier_text([point], margin={"next_release": GIB})


grids = st.integers(1, 3).flatmap(
    lambda directions: st.dictionaries(
        st.tuples(*[st.integers(1, 4)] * directions), st.sampled_from(["ok", "oom", "error"]), min_size=2
    )
)


@given(grids)
def test_the_edge_matches_its_definition(found: dict[tuple[int, ...], str]) -> None:
    keys = ("batch", "context", "workload.new_tokens")[: len(next(iter(found)))]
    rows = []
    for at, status in found.items():
        values = dict(zip(keys, at, strict=True))
        config = {
            "workload": {"new_tokens": values.get("workload.new_tokens")},
            **{k: v for k, v in values.items() if "." not in k},
        }
        rows.append(row(status, **values) | {"config": json.dumps(config)})
    fitting = {at for at, status in found.items() if status == "ok"}
    failing = {at for at, status in found.items() if status == "oom"}

    def below(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    edges = frontier(rows, along=keys)
    at = {side: [tuple(e[key] for key in keys) for e in edges if e["side"] == side] for side in ("fits", "fails")}
    maximal = {one for one in fitting if not any(below(one, other) for other in fitting)}
    minimal = {one for one in failing if not any(below(other, one) for other in failing)}
    assert set(at["fails"]) == minimal
    if fitting:
        assert set(at["fits"]) == maximal
    elif failing:
        assert at["fits"] == [(None,) * len(keys)]
    assert len(edges) == len(set(at["fits"])) + len(set(at["fails"]))
    crossed = any(below(fails, fits) for fits in fitting for fails in failing)
    assert all(edge["monotone"] is not crossed for edge in edges)
    for edge, one in zip(edges, [*at["fits"], *at["fails"]], strict=True):
        if edge["side"] == "fits" and edge["point_id"] is not None:
            undecided = set(found) - fitting - failing
            implying = {low for low in failing if not any(below(low, each) for each in fitting)}
            between = {each for each in undecided if below(one, each) and not any(below(low, each) for low in implying)}
            implying = {high for high in fitting if not any(below(each, high) for each in failing)}
            between = {each for each in between if not any(below(each, high) for high in implying)}
            assert edge["untested_between"] == len(between)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1303 * 10**6, "1.21 GiB"),
        (2**30, "1.00 GiB"),
        (512 * MIB, "512.00 MiB"),
        (-46 * MIB, "-46.00 MiB"),
        (12, "12 bytes"),
    ],
)
def test_bytes_have_the_unit_that_is_named(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_many_searches_do_not_flood_the_screen() -> None:
    rows = [each for warmup in range(40) for each in upto(2, (1, 2, 4), warmup=warmup)]
    lines = frontier_text(rows).splitlines()
    assert len(lines) < 70
    assert "20 more" in lines[-1]


def test_the_command_prints_the_decision_sheet(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = swept(written)
    assert cli.run(["frontier", str(run.folder)]) == 0
    text = capsys.readouterr().out
    sections = [
        "ANSWER",
        "WHAT WAS RUN",
        "CALCULATED",
        "OBSERVED",
        "ASSUMED",
        "ENVIRONMENT",
        "RUN AGAIN",
        "RAW RESULTS",
    ]
    places = [text.index(section) for section in sections]
    assert places == sorted(places)
    answer, calculated, observed = (text[places[at] : places[at + 1]] for at in (0, 2, 3))
    assert "largest that fits:   batch=2  peak 128.00 MiB tensors, 347.00 MiB resident" in answer
    assert "smallest that fails: batch=4  out of memory in cold_forward" in answer
    assert "cuda:0  no attempt decided what fits: 3 unavailable (torch is a CPU build)" in answer
    assert "phases passed: inputs; failed: cold_forward" in observed
    assert "347.00 MiB  (363,855,872 bytes)" in observed
    assert "weights" in calculated
    assert "weights" not in observed
    assert str(run.folder / "points") in text


def test_the_command_gives_the_same_as_json(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = swept(written)
    cli.run(["frontier", str(run.folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [edge["batch"] for edge in found["observed"]["frontier"]] == [2, 4]
    assert found["observed"]["points"] == {"cpu": {"ok": 2, "oom": 1}, "cuda:0": {"unavailable": 3}}
    assert {load["is"]: load["at"]["batch"] for load in found["observed"]["loads"]} == {
        "the choice, largest that fits": 2,
        "next larger, largest tried": 4,
    }
    assert found["observed"]["loads"][0]["counters"]["peak_resident_bytes"] == 347 * MIB
    assert [term["term"] for term in found["calculated"]["estimates"]] == ["weights"]
    assert found["environment"][0]["torch"] == "2.13.0+cpu"
    assert Path(found["raw_results"]).is_dir()


def test_the_command_reads_a_run_that_was_killed_before_it_wrote_tables(
    written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = swept(written, write=False)
    cli.run(["frontier", str(run.folder)])
    assert "batch=2" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["absent"], ["--jsn", "absent"]])
def test_a_wrong_command_is_a_mistake(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Mistake):
        cli.run(["frontier", *arguments])


def test_a_run_named_without_its_folder_is_suggested_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputs" / "bill").mkdir(parents=True)
    (tmp_path / "outputs" / "bill" / "plan.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Mistake, match="did you mean outputs/bill"):
        cli.run(["frontier", "bill"])


def test_the_frontier_is_a_table_of_the_run(written: Any) -> None:
    run = swept(written)
    edges = pd.read_parquet(run.folder / "frontier.parquet")
    assert list(edges.side) == ["fits", "fails"]
    assert edges.batch.dtype == pd.Int64Dtype()
    assert edges.headroom_bytes[0] == 14 * GIB - 128 * MIB
    assert edges.largest[1] is pd.NA


def swept(written: Any, write: bool = True) -> Any:
    run = written({"batch": [1, 2, 4]})
    run.device("cuda:0", unavailable="torch is a CPU build")
    one, two, four = (run.ask(batch=batch) for batch in (1, 2, 4))
    run.passes(one)
    run.passes(two, peak=(219 + 128) * MIB)
    run.is_refused(four)
    if write:
        Tables(run.folder).write()
    return run


@pytest.mark.parametrize(
    ("phase", "more", "helps"),
    [
        ("model_load", {}, False),
        ("warm_step", {}, False),
        ("export", {}, False),
        ("cold_backward", {}, True),
        ("model_load", {"workload": "custom"}, True),
        ("evaluation", {"evaluation": {"batch": 8, "context": None}}, False),
        ("evaluation", {"evaluation": {"batch": None, "context": 512}}, True),
    ],
)
def test_the_text_reports_where_a_smaller_batch_would_not_help(phase: str, more: dict[str, Any], helps: bool) -> None:
    config = json.dumps({"model": {"name": "mlp"}, "workload": {"name": "train", **more}, "batch": 4, "context": 64})
    failed = row("oom", batch=4, **{"workload": "train"} | {"workload": more.get("workload", "train")})
    text = frontier_text([row(batch=1), failed | {"failed_phase": phase, "config": config}])
    lines = [line for line in text.splitlines() if f"out of memory in {phase}" in line]
    assert len(lines) == 1
    assert ("a smaller batch would not help" not in lines[0]) is helps
    alone = frontier_text([failed | {"failed_phase": phase, "config": config, "batch": 1}])
    assert "smaller batch" not in alone  # there is none


def test_cards_with_the_same_reason_are_in_one_line() -> None:
    why = {"error_type": "runners.phases.Unavailable", "error_message": "bfloat16 needs another card"}
    rows = [row("unavailable", device=f"sim:{card}", kind="calculated", **why) for card in ("p100", "t4", "v100")]
    other = row("unavailable", device="cpu", error_message="no torch")
    text = frontier_text([*rows, other])
    assert text.splitlines() == [
        "sim:p100, sim:t4, sim:v100  no attempt decided what fits: 1 unavailable on each (bfloat16 needs another card)",
        "cpu  no attempt decided what fits: 1 unavailable (no torch)",
    ]


def test_many_cards_have_one_line_each_by_size_and_measured_groups_stay_as_they_are() -> None:
    sizes = {"sim:large": 80, "sim:small": 8, "sim:middle": 24, "sim:none": 4}
    rows = [
        each
        for card, size in sizes.items()
        for each in upto(size // 8, (1, 2, 4), device=card, device_total_bytes=size * GIB)
    ]
    text = frontier_text([*rows, *upto(2, (1, 2, 4))]).splitlines()
    assert text[0] == "mlp  forward  float32  (calculated, not measured)"
    assert [line.split()[0] for line in text[1:5]] == ["sim:none", "sim:small", "sim:middle", "sim:large"]
    assert "none fits; the smallest, batch=1: out of memory" in text[1]
    assert "80.00 GiB  batch=4; nothing larger was tried" in text[4]
    assert text[5].startswith("cpu  mlp  forward  float32")
