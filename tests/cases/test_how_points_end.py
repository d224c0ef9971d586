"""Cases of cases.md: the row of a point that failed, and the points after it."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.cases.conftest import ENDS, MIB, Ran, Sweep, is_gone, row_of, workload

# A workload may hold no tensor, and need no more data than the process had before it.
MAY_BE_ZERO = ("peak_tensor_bytes", "budget_used_bytes", "used_with_shared_bytes")


def test_what_was_not_measured_is_null_and_never_0(every_end: Ran) -> None:
    """Case 9 (tool-eval-bench#152, tt-inference-server#3331, ray#64315, nanochat#839)."""
    rows = every_end.points
    assert len(rows) == len(ENDS)
    for column in rows.columns[rows.columns.str.endswith("_bytes")]:
        zeros = rows[rows[column] == 0]
        assert set(zeros["status"]) <= ({"ok"} if column in MAY_BE_ZERO else set()), column
    assert rows["peak_allocated_bytes"].isna().all()  # a counter of a GPU's allocator
    passed = rows[rows["status"] == "ok"]
    assert passed["peak_resident_bytes"].min() > passed["process_baseline_bytes"].max()


def test_an_exit_code_of_0_does_not_make_a_point_ok(every_end: Ran) -> None:
    """Cases 9 and 67: only a workload that returns is ok."""
    assert row_of(every_end, "exit0")["status"] == "error"
    assert row_of(every_end, "hard_exit0")["status"] == "crashed"
    for target in ("exit0", "hard_exit0"):
        assert row_of(every_end, target)["exit_code"] == 0
        assert row_of(every_end, target)["fits"] is pd.NA


def test_a_bug_after_an_allocation_is_an_error_with_a_partial_peak(every_end: Ran) -> None:
    """Case 9: "CUDA" and "assert" in a message do not make it a refusal of memory."""
    row = row_of(every_end, "partial_then_raise")
    assert (row["status"], row["error_type"], row["peak_is_partial"]) == ("error", "RuntimeError", True)
    assert row["peak_resident_bytes"] >= row["process_baseline_bytes"] + 512 * MIB


@pytest.mark.parametrize(
    ("target", "signal", "exit_code"),
    [("segv", 11, None), ("abort", 6, None), ("hard_exit0", None, 0), ("hard_exit137", None, 137)],
)
def test_a_process_that_ends_without_returning_is_crashed_and_not_out_of_memory(
    every_end: Ran, target: str, signal: int | None, exit_code: int | None
) -> None:
    """Case 67 (celery#2011, resque#1783, pytorch#53894): an exit code of 137 is not a SIGKILL."""
    row = row_of(every_end, target)
    assert row["status"] == "crashed"
    assert (row["signal"], row["exit_code"]) == (signal or pd.NA, pd.NA if exit_code is None else exit_code)
    assert row["oom_scope"] is None or pd.isna(row["oom_scope"])
    assert row["peak_is_partial"]


def test_a_segfault_keeps_the_peak_that_came_before_it(every_end: Ran) -> None:
    """Case 67: at least 450 MiB of the 475 MiB held, counted from the process baseline."""
    row = row_of(every_end, "segv")
    assert row["peak_resident_bytes"] >= row["process_baseline_bytes"] + 231 * MIB


def test_sys_exit_with_a_message_keeps_the_message(every_end: Ran) -> None:
    """Case 67."""
    row = row_of(every_end, "exit_str")
    assert (row["status"], row["error_type"], row["error_message"]) == ("error", "SystemExit", "bad config")


def test_a_refused_host_allocation_keeps_the_bytes_requested_and_the_bytes_held(every_end: Ran) -> None:
    """Case 28 (pytorch#20618, fastcoref#23): the workload holds 512 MiB and requests 4 PB."""
    row = row_of(every_end, "partial_then_oom")
    assert (row["status"], row["oom_scope"], row["fits"], row["peak_is_partial"]) == ("oom", "host", False, True)
    assert row["requested_bytes"] == 4_000_000_000_000_000
    assert "4000000000000000" in row["error_message"]
    assert 506 * MIB <= row["peak_resident_bytes"] - row["process_baseline_bytes"] <= 526 * MIB


def test_an_exception_that_cannot_be_pickled_is_a_row_like_any_other(every_end: Ran) -> None:
    """Case 42 (cpython#120810, cpython#79492, strictdoc#3201, iree#11655)."""
    row = row_of(every_end, "unpicklable")
    assert (row["status"], row["error_message"]) == ("error", "awkward")
    assert row["error_type"].endswith("Awkward")
    after = every_end.points[every_end.points["order"] > row["order"]]
    assert list(after["status"]) == ["ok", "ok", "ok"]


def test_a_flood_of_output_does_not_block_and_is_kept_in_part(every_end: Ran) -> None:
    """Case 43 (rules_multirun#71, supernova#126, scarab-infra#296): 4 MB to each stream."""
    row = row_of(every_end, "flood")
    assert row["status"] == "ok"
    assert row["duration_s"] < 20
    assert row["peak_resident_bytes"] < 300 * MIB
    (log,) = every_end.folder.glob(f"points/**/*{row['point_id']}*/output.log")
    kept = log.read_bytes()
    assert len(kept) < 2 * MIB
    assert b"bytes left out" in kept


def test_a_device_that_is_missing_has_rows_without_figures_and_disturbs_no_other(missing: Ran) -> None:
    """Case 29 (pytorch#24463, nanochat#839)."""
    rows = missing.points
    by_device = {device: list(found["status"]) for device, found in rows.groupby("device")}
    assert by_device == {"cpu": ["ok", "ok"], "cuda:0": ["unavailable", "unavailable"]}
    absent = rows[rows["device"] == "cuda:0"]
    figures = [column for column in rows if column.endswith("_bytes")]
    assert absent[figures].isna().all(axis=None)
    assert absent["error_message"].notna().all()
    assert missing.code == 3  # nothing decided whether the points of cuda:0 fit


@pytest.mark.slow
def test_a_timeout_ends_a_workload_that_ignores_every_signal(sweep: Sweep) -> None:
    """Case 68 (webknossos-libs#552, oktoberfest#372): ignored signals, and C code that never returns to Python."""
    rows = sweep(*workload("hang_ignores_term,hang_in_c"), "timeout=3").points
    assert list(rows["status"]) == ["timeout", "timeout"]
    assert (rows["duration_s"] < 15).all()
    assert all(is_gone(pid) for pid in rows["pid"])


@pytest.mark.slow
def test_every_point_has_a_process_of_its_own(sweep: Sweep) -> None:
    """Case 50 (pytorch-image-models#955, pytorch_memonger#18, benchmark#95, superbenchmark#93, wandb#1567)."""
    rows = sweep(*workload("state_leak"), "batch=1,2,4", "start=cold,warm").points
    assert list(rows["status"]) == ["ok"] * 6
    assert rows["pid"].nunique() == 6
