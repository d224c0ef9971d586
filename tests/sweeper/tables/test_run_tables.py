from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runners import journal
from runners.device import device_named
from runners.facts import Exit
from runners.outcome import outcome_of
from runners.point import Attempt, AttemptFolder, Point
from sweeper import columns as schema
from sweeper.cards import CONF
from sweeper.columns import TABLES
from sweeper.plan import dotted
from sweeper.plan_lines import read_plan
from sweeper.planning.schema import WORKLOAD_RULES
from sweeper.tables import other_core, run_tables
from sweeper.tables.run_tables import Tables

MIB = 2**20
TRAIN = {"name": "train", "method": "full", "checkpointing": False, "accumulate": 1, "compile": False, "lr": 0.001}
COLUMNS = {  # the columns that other code builds on
    "points": "run point_id device kind attempt attempts environment_id engine host pid model workload dtype batch "
    "context warmup repeats seed start allocator phases cache config order changed changed_from status fits oom_scope "
    "failed_phase error_type error_message signal exit_code requested_bytes needs_at_least_bytes skipped_because flaky "
    "contaminated instrumented peak_allocated_bytes peak_reserved_bytes peak_requested_bytes peak_used_bytes "
    "peak_tensor_bytes peak_resident_bytes process_baseline_bytes peak_phase peak_is_partial budget_bytes budget_kind "
    "device_total_bytes device_uuid parameters parameter_bytes trainable_parameters storage_dtype compute_dtype "
    "model_revision steps tokens metrics started_at duration_s available_memory_bytes",
    "phases": "run point_id device attempt phase run_index iterations completed elapsed_s alloc_retries num_ooms "
    "shapes metrics "
    + " ".join(
        f"{moment}_{counter}_bytes"
        for moment in ("baseline", "end", "peak")
        for counter in (
            *("allocated", "reserved", "requested", "active", "used", "tensor"),
            *("resident", "resident_anon", "resident_file", "address"),
        )
    ),
    "environment": "environment_id host python torch backend driver libraries device_name device_uuid "
    "device_total_bytes allocator_backend allocator_settings variables",
    "estimates": "point_id term bytes alive formula assumption",
    "frontier": "device along side point_id batch context largest limit limiting_phase monotone headroom_bytes "
    "untested_between",
}


def test_every_table_has_its_columns_whatever_happened(written: Any) -> None:
    run = written({"batch": [1, 2]})
    for batch in (1, 2):
        run.raises(run.ask(batch=batch))
    Tables(run.folder).write()
    for name, columns in COLUMNS.items():
        found = pq.read_schema(run.folder / f"{name}.parquet")
        assert set(columns.split()) <= set(found.names), name
        assert all(found.field(column).metadata.get(b"meaning") for column in found.names)
    assert pq.read_schema(run.folder / "attempts.parquet").names == [
        *pq.read_schema(run.folder / "points.parquet").names,
        "counts",
    ]


def test_the_schema_does_not_depend_on_what_the_rows_hold(written: Any) -> None:
    failing, passing = written({"batch": [1]}, name="failing"), written({"batch": [1]}, name="passing")
    failing.raises(failing.ask(batch=1))
    passing.passes(passing.ask(batch=1), metrics={"loss": 1.25})
    empty = written({"batch": [1]}, name="empty", devices=())
    for run in (failing, passing, empty):
        Tables(run.folder).write()
    for name in TABLES:
        first, *others = (pq.read_schema(run.folder / f"{name}.parquet") for run in (failing, passing, empty))
        assert all(first.equals(other) for other in others), name


def test_counters_are_exact_integers_in_the_file_and_in_pandas_also_with_nulls(written: Any) -> None:
    exact = 2**53 + 1
    run = written({"batch": [1, 2]})
    run.passes(run.ask(batch=1), peak=exact)
    run.ask(batch=2)
    Tables(run.folder).write()
    file = pq.read_schema(run.folder / "points.parquet")
    points = pd.read_parquet(run.folder / "points.parquet")
    for column in ("peak_resident_bytes", "process_baseline_bytes", "batch", "context", "warmup", "peak_used_bytes"):
        assert file.field(column).type == pa.int64()
        assert points[column].dtype == pd.Int64Dtype()
    assert points.peak_resident_bytes[0] == exact
    assert points.peak_resident_bytes[1] is pd.NA
    assert points.fits.dtype == pd.BooleanDtype()
    assert str(points.started_at.dtype) == "datetime64[us, UTC]"
    assert not [name for name in file.names if name.endswith("_bytes") and file.field(name).type != pa.int64()]


def test_every_planned_point_has_a_row_on_every_device(written: Any) -> None:
    run = written({"batch": [1, 2, 4]})
    run.device("cuda:0", unavailable="torch is built for cpu alone")
    one, two, four = (run.ask(batch=batch) for batch in (1, 2, 4))
    run.passes(one)
    refused = run.is_refused(two)
    run.skip(four, because=refused)
    points = written_points(run)
    assert list(points.device) == ["cpu", "cuda:0"] * 3
    assert list(points.status) == ["ok", "unavailable", "oom", "unavailable", "skipped", "unavailable"]
    absent = points[points.device == "cuda:0"]
    assert set(absent.error_message) == {"torch is built for cpu alone"}
    assert absent.filter(like="peak_").isna().all(axis=None)
    skipped = points[points.status == "skipped"].iloc[0]
    assert skipped.skipped_because == refused.name
    assert skipped.peak_resident_bytes is pd.NA
    assert skipped.attempts == 0


def test_a_point_that_was_not_reached_is_not_run(written: Any) -> None:
    run = written({"batch": [1, 2]})
    run.passes(run.ask(batch=1))
    run.ask(batch=2)
    assert list(written_points(run).status) == ["ok", "not_run"]


def test_a_point_of_one_lane_has_no_row_on_another(written: Any) -> None:
    run = written({"batch": [1, 2]}, devices=("cpu", "cuda:0"))
    run.ask(device="cpu", batch=1)
    run.ask(device="cuda:0", batch=2)
    points = written_points(run)
    assert list(zip(points.device, points.batch, strict=True)) == [("cpu", 1), ("cuda:0", 2)]


def test_the_attempt_that_counts_is_the_last_that_decided(written: Any) -> None:
    run = written({"batch": [1, 2, 4]})
    decided, undecided, both = (run.ask(batch=batch) for batch in (1, 2, 4))
    run.passes(decided, number=1)
    run.raises(decided, number=2)
    run.raises(undecided, number=1)
    run.raises(undecided, number=2, message="again")
    run.passes(both, number=1)
    run.is_refused(both, number=2)
    points = written_points(run)
    assert list(points.attempt) == [1, 2, 2]
    assert list(points.attempts) == [2, 2, 2]
    assert list(points.status) == ["ok", "error", "oom"]
    assert [None if value is pd.NA else bool(value) for value in points.flaky] == [None, None, True]
    attempts = pd.read_parquet(run.folder / "attempts.parquet")
    assert list(attempts.counts) == [True, False, False, True, False, True]
    assert list(attempts.attempt) == [1, 2] * 3


def test_two_attempts_that_agree_are_not_flaky(written: Any) -> None:
    run = written({"batch": [1]})
    point = run.ask(batch=1)
    run.passes(point, number=1)
    run.passes(point, number=2)
    assert list(written_points(run).flaky) == [False]


def test_attempts_in_different_environments_do_not_make_a_point_flaky(written: Any) -> None:
    run = written({"batch": [1]})
    point = run.ask(batch=1)
    run.passes(point, number=1)
    refused = AttemptFolder(run.folder / "points" / run.is_refused(point, number=2).name)
    refused.journal.write_text(refused.journal.read_text().replace('"torch": "2.13.0+cpu"', '"torch": "2.14.0+cpu"'))
    points = written_points(run)
    assert list(points.status) == ["oom"]
    assert points.flaky.isna().all()


def test_a_failure_keeps_its_facts_and_missing_measures_are_null(written: Any) -> None:
    run = written({"batch": [1, 2]})
    run.is_refused(run.ask(batch=1))
    run.ends(run.ask(batch=2), code=None, signal=11, maxrss_bytes=450 * MIB, supervisor_resident_bytes=20 * MIB)
    oom, crash = (row for _, row in written_points(run).iterrows())
    assert (oom.status, oom.fits, oom.failed_phase, oom.requested_bytes) == ("oom", False, "cold_forward", 2**30)
    assert oom.needs_at_least_bytes is pd.NA, "what was held at the refusal is not recorded"
    assert oom.peak_is_partial
    assert (crash.status, crash.signal, crash.peak_resident_bytes) == ("crashed", 11, 450 * MIB)
    for row in (oom, crash):
        numbers = {name: row[name] for name in row.index if name.endswith("_bytes") and row[name] is not pd.NA}
        assert 0 not in numbers.values()
        assert row.peak_allocated_bytes is pd.NA
        assert row.tokens is pd.NA


def test_ok_rows_have_a_peak_above_the_baseline(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    points = written_points(run)
    assert (points.peak_resident_bytes > points.process_baseline_bytes).all()
    assert points.budget_used_bytes[0] == 64 * MIB


def test_each_phase_and_each_between_has_a_row(written: Any) -> None:
    run = written({"batch": [1]})
    point = run.ask(batch=1)
    run.passes(point)
    run.is_refused(point, number=2)
    written_points(run)
    phases = pd.read_parquet(run.folder / "phases.parquet")
    first = phases[phases.attempt == 1]
    assert list(first.phase) == ["between", "inputs", "between", "cold_forward"]
    assert list(first.position) == [0, 1, 2, 3]
    assert first.run_index[0] is pd.NA
    last = first.iloc[-1]
    assert (last.peak_resident_bytes, last.iterations, last.elapsed_s) == (283 * MIB, 1, 0.5)
    assert json.loads(last.shapes) == {"input": [1, 64]}
    assert last.peak_allocated_bytes is pd.NA
    assert not phases[phases.attempt == 2].iloc[-1].completed


def test_an_attempt_on_several_devices_has_a_phase_row_for_each_and_no_sum(written: Any) -> None:
    run = written({"batch": [1]}, devices=("cuda:0+cuda:1",))
    counters = {
        device: {"baseline": {"allocated": 0}, "end": {"allocated": 1}, "peak": {"allocated": peak}}
        for device, peak in (("cuda:0", 70), ("cuda:1", 50))
    }
    lines = [
        {"kind": "baseline", "counters": {"resident": MIB}},
        {"kind": "ended", "phase": "run", "run_index": 0, "completed": True, "counters": counters},
        {"kind": "finished", "metrics": {}},
    ]
    run.attempt(run.ask(batch=1), lines, {"code": 0, "signal": None}, device="cuda:0+cuda:1")
    points = written_points(run)
    phases = pd.read_parquet(run.folder / "phases.parquet")
    assert list(zip(phases.phase_device, phases.peak_allocated_bytes, strict=True)) == [("cuda:0", 70), ("cuda:1", 50)]
    assert list(points.peak_allocated_bytes) == [70]


def test_an_attempt_with_an_empty_journal_has_a_row(written: Any) -> None:
    run = written({"batch": [1]})
    run.attempt(run.ask(batch=1), [], {"code": 1, "signal": None})
    points = written_points(run)
    assert list(points.status) == ["crashed"]
    assert points.environment_id.isna().all()
    assert pd.read_parquet(run.folder / "phases.parquet").empty


def test_a_swept_key_has_a_column_of_its_name_typed_by_its_values(written: Any) -> None:
    swept = {"model.width": [64, 128], "workload.checkpointing": [True, False], "workload.lr": [1, 0.5], "timeout": []}
    run = written(swept)
    model = {"name": "mlp", "library": "torch"}
    for width, checkpointing, lr, timeout in ((64, True, 1, None), (128, False, 0.5, 5)):
        workload = {"name": "train", "checkpointing": checkpointing, "lr": lr}
        run.ask(model=model | {"width": width}, workload=workload, timeout=timeout)
    points = written_points(run)
    assert points["model.width"].dtype == pd.Int64Dtype()
    assert points["workload.checkpointing"].dtype == pd.BooleanDtype()
    assert list(points["workload.lr"]) == [1.0, 0.5]
    assert points.timeout.isna().tolist() == [True, False]
    assert points.timeout[1] == 5.0
    assert json.loads(points.config[1])["workload"]["lr"] == 0.5


def test_every_key_of_a_workload_is_a_typed_column_of_every_row_though_nothing_was_swept(written: Any) -> None:
    run = written({"batch": [1]})
    train = {"name": "train", "method": "lora", "rank": 16, "checkpointing": True, "mine": {"depth": 3}}
    run.passes(run.ask(workload=train, quantize="nf4"))
    run.passes(run.ask(workload={"name": "custom", "target": "own:run", "params": {"width": 512}}))
    Tables(run.folder).write()
    for name in ("points", "attempts"):
        first, second = pq.read_table(run.folder / f"{name}.parquet").to_pylist()
        expected = {"workload.method": "lora", "workload.rank": 16, "workload.checkpointing": True, "quantize": "nf4"}
        assert {key: first[key] for key in expected} == expected
        assert [second[key] for key in expected] == [None] * 4
        assert (first["workload.mine.depth"], second["workload.params.width"]) == (3, 512)
    edge, *_ = pq.read_table(run.folder / "frontier.parquet").to_pylist()
    assert (edge["workload.method"], edge["workload.rank"], edge["quantize"]) == ("lora", 16, "nf4")


@pytest.mark.parametrize("file", sorted((CONF / "workload").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_key_of_conf_workload_has_a_declared_column_of_its_type(file: Path) -> None:
    workload = yaml.safe_load(file.read_text())["workload"]
    declared = {column.name: column.type for column in schema.DIMENSIONS}
    choices = workload.get("choices", {})
    for key, value in dotted(
        {key: workload[key] for key in workload if key not in (*WORKLOAD_RULES, "name", "params")}
    ):
        type = declared[f"workload.{key}"]
        known = [each for each in [value, *choices.get(key, [])] if each not in (None, "???")]
        if known and not any(isinstance(each, list) for each in known):
            assert schema.type_of(known) == type, key


def test_the_peak_the_limit_and_what_is_left_of_it_are_columns(written: Any) -> None:
    run = written({"batch": [1, 2, 4]}, devices=("cpu",))
    one, two, four = (run.ask(batch=batch, budget=2**30) for batch in (1, 2, 4))
    run.passes(one, peak=300 * MIB)
    run.is_refused(two)
    assert four
    Tables(run.folder).write()
    fits, refused, not_run = pq.read_table(run.folder / "points.parquet").to_pylist()
    assert (fits["peak_counter"], fits["peak_bytes"]) == ("resident", 300 * MIB)
    assert fits["limit_bytes"] == fits["budget_bytes"] == 14 * 2**30
    (edge,) = (edge for edge in pq.read_table(run.folder / "frontier.parquet").to_pylist() if edge["side"] == "fits")
    assert (fits["headroom_bytes"], fits["headroom_counter"]) == (edge["headroom_bytes"], edge["headroom_counter"])
    assert fits["headroom_bytes"] == fits["limit_bytes"] - fits[fits["headroom_counter"]]
    assert refused["peak_bytes"] == refused["peak_resident_bytes"]
    assert (refused["limit_bytes"], refused["headroom_bytes"], refused["headroom_counter"]) == (14 * 2**30, None, None)
    assert (not_run["peak_bytes"], not_run["peak_counter"], not_run["headroom_bytes"]) == (None, None, None)


def test_values_of_mixed_types_are_kept_apart_as_json(written: Any) -> None:
    run = written({"workload.params.x": [1, "1"]})
    for value in (1, "1", [1, 2]):
        run.ask(workload={"name": "custom", "params": {"x": value}})
    assert list(written_points(run)["workload.params.x"]) == ["1", '"1"', "[1, 2]"]


def test_a_swept_key_named_like_a_fixed_column_gets_a_prefix(written: Any) -> None:
    run = written({"steps": [3, 4]})
    for steps in (3, 4):
        run.ask(steps=steps)
    points = written_points(run)
    assert list(points["dim.steps"]) == [3, 4]
    assert points.steps.isna().all()


def test_user_metrics_of_any_shape_are_json_text(written: Any) -> None:
    run = written({"batch": [1, 2, 4]})
    for batch, metrics in ((1, {"a": 1}), (2, {"a": "1", "b": [None, {"c": 2}]}), (4, {})):
        run.passes(run.ask(batch=batch), metrics=metrics)
    metrics = written_points(run).metrics
    assert [json.loads(text) for text in metrics[:2]] == [{"a": 1}, {"a": "1", "b": [None, {"c": 2}]}]
    assert pd.isna(metrics[2])


def test_a_value_that_no_column_can_hold_leaves_the_other_rows_intact(
    written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written({"batch": [1, 2]})
    journal = run.folder / "points" / run.passes(run.ask(batch=1)).name / "journal.jsonl"
    run.raises(run.ask(batch=2), message="half a pair: \ud800")
    journal.write_text(journal.read_text().replace('"tokens": 64', f'"tokens": {2**70}'))
    points = written_points(run)
    assert list(points.status) == ["lost", "error"]
    assert points.error_message[0] == (
        "its record is damaged: journal.jsonl has lines that cannot be read, one of the kind finished: tokens has a "
        "value of another type"
    )
    assert points.error_message[1] == "half a pair: ?"


def test_a_row_has_its_neighbour_and_its_order(written: Any) -> None:
    run = written({"batch": [1, 2]})
    one = run.ask(batch=1)
    run.ask(batch=2, changed_from=one, changed=("batch", "context"))
    points = written_points(run)
    assert list(points.order) == [0, 1]
    assert points.changed_from[1] == one.id
    assert points.changed[1] == "batch,context"
    assert pd.isna(points.changed_from[0])


def test_an_environment_has_one_row(written: Any) -> None:
    run = written({"batch": [1, 2]})
    for batch in (1, 2):
        run.passes(run.ask(batch=batch))
    points = written_points(run)
    environment = pd.read_parquet(run.folder / "environment.parquet")
    assert len(environment) == 1
    assert set(points.environment_id) == {environment.environment_id[0]}
    assert environment.torch[0] == "2.13.0+cpu"
    assert json.loads(environment.libraries[0]) == {"transformers": "5.24.0"}
    assert json.loads(environment.record[0])["threads"] == 2


def test_estimates_have_a_table_of_their_own(written: Any) -> None:
    run = written({"batch": [1, 2]})
    for batch in (1, 2):
        run.ask(batch=batch)
    unknown = run.ask(workload={"name": "custom", "target": "mywork:run"})
    written_points(run)
    estimates = pd.read_parquet(run.folder / "estimates.parquet")
    assert list(estimates.term) == ["weights", "weights"]
    assert unknown.id not in set(estimates.point_id)


def test_tables_built_during_a_sweep_and_from_its_folder_are_the_same(written: Any) -> None:
    run = written({"batch": [1, 2, 4]})
    live = Tables(run.folder.parent / "live" / run.folder.name)
    live.folder.mkdir(parents=True)
    points = [run.ask(batch=batch) for batch in (4, 1, 2)]
    for line in read_plan(run.folder):
        live.planned(line)
    for attempt in (run.is_refused(points[0]), run.passes(points[1]), run.passes(points[2])):
        folder = AttemptFolder(run.folder / "points" / attempt.name)
        live.settled(attempt, outcome_of(attempt, journal.read(folder.journal), folder.settled()))
        live.write_if_grown()
    live.write()
    again = Tables(run.folder).arrow()
    live_tables = {name: pq.read_table(live.folder / f"{name}.parquet") for name in TABLES}
    for name in TABLES:
        keys = [(key, "ascending") for key in ("point_id", "attempt", "position") if key in again[name].column_names]
        assert (
            live_tables[name].sort_by(keys or "environment_id").equals(again[name].sort_by(keys or "environment_id"))
        ), name


@pytest.mark.skipif(not other_core.is_free(), reason="needs two cores")
def test_tables_do_not_depend_on_which_core_reads_an_attempt(
    written: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written({"batch": list(range(1, 9))})
    for batch in range(1, 9):
        for checkpointing in (False, True):
            point = run.ask(batch=batch, workload=TRAIN | {"checkpointing": checkpointing})
            losses = [4.5, batch / (4 + checkpointing)]
            run.passes(point, peak=(300 + batch) * MIB, metrics={"losses": losses})
            run.raises(point, number=2)
        run.is_refused(Point(values=point.values | {"batch": 100 + batch, "added": batch}))
    torn = run.passes(run.ask(batch=50))
    (run.folder / "points" / torn.name / "point.json").write_text('{"form')
    on_one = Tables(run.folder)
    warned = capsys.readouterr().err
    monkeypatch.setattr(run_tables, "WORTH_A_FORK", 1)
    on_two = Tables(run.folder)
    assert capsys.readouterr().err == warned
    assert on_one.arrow() == on_two.arrow()
    points = on_two.arrow()["points"].to_pylist()
    assert len(points) == 16 + 8 + 1
    assert sum(str(row["loss_check"]).startswith("differs") for row in points) == 8
    assert len(on_two.arrow()["attempts"]) == 2 * 16 + 8 + 1
    assert on_two.tried("cpu") == on_one.tried("cpu")


def test_an_attempt_that_is_added_twice_counts_once(written: Any) -> None:
    run = written({"batch": [1]})
    attempt = run.passes(run.ask(batch=1))
    folder = AttemptFolder(run.folder / "points" / attempt.name)
    known = Tables(run.folder)
    known.settled(attempt, outcome_of(attempt, journal.read(folder.journal), folder.settled()))
    assert known.arrow()["points"]["attempts"].to_pylist() == [1]
    assert len(known.arrow()["attempts"]) == 1


def test_attempts_with_long_journals_do_not_wait_in_memory_until_there_are_many(written: Any) -> None:
    run = written({"batch": [1, 2, 4]})
    known, waiting = Tables(run.folder), []
    for batch, size in ((1, 1000), (2, 1000), (4, 2**25)):
        attempt = run.passes(run.ask(batch=batch))
        folder = AttemptFolder(run.folder / "points" / attempt.name)
        outcome = outcome_of(attempt, journal.read(folder.journal), folder.settled(), record_bytes=size)
        known.settled(attempt, outcome)
        waiting.append(weakref.ref(outcome))
        del outcome
        assert sum(each() is not None for each in waiting) == {1: 1, 2: 2, 4: 0}[batch]
    assert known.arrow()["points"]["status"].to_pylist() == ["ok", "ok", "ok"]


def test_an_extended_run_keeps_its_rows_and_gives_a_new_key_its_column(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    run.extend({"model.width": [64, 128]})
    wide = run.ask(model={"name": "mlp", "library": "torch", "width": 128})
    run.passes(wide)
    assert list(written_points(run)["model.width"]) == [64, 128]


def test_a_torn_line_loses_only_that_line(written: Any) -> None:
    run = written({"batch": [1, 2]})
    attempt = run.passes(run.ask(batch=1))
    with (run.folder / "plan.jsonl").open("a") as plan:
        plan.write('{"kind": "asked", "id": "0123')
    torn = AttemptFolder(run.folder / "points" / attempt.name).journal
    torn.write_bytes(torn.read_bytes()[:-20])  # the `finished` line
    (torn.parent / "exit.json").write_text('{"code": null, "signal": 9}')
    points = written_points(run)
    assert list(points.status) == ["killed"]
    assert points.peak_resident_bytes[0] == 283 * MIB


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("exit.json", "{}", "exit.json cannot be read: no supervisor writes it so (it has no key of a supervisor)"),
        ("exit.json", "[]", "exit.json cannot be read: it is not a JSON object"),
        ("exit.json", "\0" * 7, "exit.json cannot be read: it is not valid JSON"),
        ("journal.jsonl", "", "journal.jsonl has no end, although its process ended with exit code 0"),
        ("journal.jsonl", '{"kind": "ended"}\n', "journal.jsonl has lines that cannot be read"),
    ],
)
def test_a_damaged_attempt_is_lost_with_the_reason_and_without_figures(
    written: Any, file: str, content: str, reason: str
) -> None:
    run = written({"batch": [1]})
    attempt = run.passes(run.ask(batch=1))
    (run.folder / "points" / attempt.name / file).write_text(content)
    points = written_points(run)
    assert list(points.status) == ["lost"]
    assert points.error_message[0].startswith(f"its record is damaged: {reason}")
    assert points.fits.isna().all()
    assert points.peak_resident_bytes.isna().all()


@pytest.mark.parametrize(("workload", "tokens"), [("custom", None), ("forward", 5)])
def test_metrics_of_a_custom_workload_fill_no_column_of_the_product(
    written: Any, workload: str, tokens: int | None
) -> None:
    run = written({"batch": [1]})
    point = run.ask(batch=1, workload={"name": workload})
    inputs = {"kind": "ended", "phase": "inputs", "completed": True, "metrics": {"real_tokens": 5, "quality": 1.0}}
    finished = {"kind": "finished", "metrics": {"quality": 1.0, "status": "oom", "fits": False}}
    counters = {"counters": {"cpu": {"peak": {"resident": 5}}}}
    run.attempt(point, [{"kind": "baseline", "counters": {}}, inputs | counters, finished], {"code": 0})
    row = written_points(run).iloc[0]
    assert (row["status"], bool(row["fits"])) == ("ok", True)
    assert (None if pd.isna(row["real_tokens"]) else row["real_tokens"]) == tokens
    assert pd.isna(row["quality"])


def test_an_attempt_outside_the_plan_has_a_row(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(Point(values={"model": {"name": "mlp"}, "workload": {"name": "custom"}, "batch": 7, "context": 1}))
    points = written_points(run)
    assert list(points.batch) == [7]
    assert points.order.isna().all()


def test_an_attempt_whose_request_is_torn_is_lost_in_its_planned_row(written: Any) -> None:
    run = written({"batch": [1, 2]}, devices=("cuda:0", "cpu"))
    torn = run.passes(run.ask(batch=1), number=2)
    run.passes(run.ask(batch=2))
    (run.folder / "points" / torn.name / "point.json").write_text('{"form')
    points = written_points(run).query("device == 'cpu'").reset_index()
    assert list(points.status) == ["lost", "ok"]
    assert list(points.attempt) == [2, 1]
    assert points.error_message[0].startswith("its record is damaged: point.json cannot be read: it is not valid JSON")


def test_an_attempt_outside_the_plan_whose_request_is_torn_is_skipped_with_a_warning(
    written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written({"batch": [1]})
    torn = run.passes(Point(values={"model": {"name": "mlp"}, "workload": {"name": "custom"}, "batch": 7}))
    run.passes(run.ask(batch=1))
    (run.folder / "points" / torn.name / "point.json").write_text('{"form')
    assert list(written_points(run).status) == ["ok"]
    assert capsys.readouterr().err.startswith("sweeper: ")


def test_an_attempt_without_an_exit_file_is_lost_once_it_began(written: Any) -> None:
    run = written({"batch": [1, 2]})
    run.attempt(run.ask(batch=1), [{"kind": "baseline", "counters": {}}], None)
    run.attempt(run.ask(batch=2), [], None)
    assert list(written_points(run).status) == ["lost", "not_run"]


def test_tables_are_written_again_after_growing_by_a_tenth(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tables, "REST", 0)
    run = written({"batch": list(range(1, 41))})
    for batch in range(1, 41):
        run.ask(batch=batch)
    known = Tables(run.folder)
    known.write_if_grown()
    first = (run.folder / "points.parquet").stat().st_ino
    sizes = []
    for batch in range(1, 11):
        attempt = Attempt(point=Point(values={"batch": batch}), device=device_named("cpu"), number=1)
        known.settled(attempt, outcome_of(attempt, [], Exit(code=1)))
        known.write_if_grown()
        sizes.append((run.folder / "points.parquet").stat().st_ino != first)
    assert not sizes[0]
    assert sizes[-1]


def test_writing_takes_no_more_than_a_tenth_of_the_time(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tables, "REST", 3600)
    run = written({"batch": [1, 2]})
    one, two = run.passes(run.ask(batch=1)), run.ask(batch=2)
    known = Tables(run.folder)
    known.write_if_grown()
    known.settled(Attempt(point=two, device=device_named("cpu")), outcome_of(one, [], Exit(code=1)))
    known.write_if_grown()
    assert list(pd.read_parquet(run.folder / "points.parquet").status) == ["ok", "not_run"]
    known.write()
    assert list(pd.read_parquet(run.folder / "points.parquet").status) == ["ok", "crashed"]


def test_only_complete_tables_match_the_pattern_of_tables(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    written_points(run)
    assert sorted(path.stem for path in run.folder.glob("*.parquet")) == sorted(TABLES)
    assert not list(run.folder.glob(".*.tmp"))


def test_a_failed_write_leaves_the_old_tables_intact(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    known = Tables(run.folder)
    known.write()
    blocked = run.folder / ".attempts.parquet.tmp"
    blocked.mkdir()
    with pytest.raises(OSError, match=r"attempts\.parquet"):
        known.write()
    assert list(pd.read_parquet(run.folder / "points.parquet").status) == ["ok"]
    assert list(pd.read_parquet(run.folder / "attempts.parquet").status) == ["ok"]


def test_names_that_look_like_numbers_or_partitions_stay_text(written: Any) -> None:
    run = written({"batch": [1]}, devices=("cuda:0",), name="0012")
    run.ask(model={"name": "org/a", "library": "transformers"}, dtype="bfloat16")
    points = written_points(run)
    assert list(points.loc[0, ["run", "device", "model", "dtype"]]) == ["0012", "cuda:0", "org/a", "bfloat16"]
    assert points.fits.isna().all()


def test_calculated_rows_are_marked(written: Any) -> None:
    run = written({"batch": [1]}, devices=("cpu", "sim:h100-80gb"))
    run.ask(batch=1)
    assert list(written_points(run).kind) == ["measured", "calculated"]


def test_one_line_rebuilds_the_tables(written: Any) -> None:
    run = written({"batch": [1]})
    run.passes(run.ask(batch=1))
    Tables(run.folder).write()
    before = pq.read_table(run.folder / "points.parquet")
    for table in run.folder.glob("*.parquet"):
        table.unlink()
    code = f"from sweeper.tables.run_tables import Tables; Tables({str(run.folder)!r}).write()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert pq.read_table(run.folder / "points.parquet").equals(before)


def written_points(run: Any) -> pd.DataFrame:
    Tables(run.folder).write()
    return pd.read_parquet(run.folder / "points.parquet")
