"""Cases of cases.md: what the row of a point says that did not end well, and that the sweep goes on after it."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.cases.conftest import ENDS, MIB, Ran, Sweep, is_gone, told, workload


def test_what_was_not_measured_is_null_and_never_0(every_end: Ran) -> None:
    """Case 9 (tool-eval-bench#152, tt-inference-server#3331, ray#64315, nanochat#839)."""
    rows = every_end.points
    assert len(rows) == len(ENDS)
    for column in rows.columns[rows.columns.str.endswith("_bytes")]:
        zeros = rows[rows[column] == 0]
        assert set(zeros["status"]) <= ({"ok"} if column == "peak_tensor_bytes" else set()), column
    assert rows["peak_allocated_bytes"].isna().all()  # a counter of a GPU's allocator
    passed = rows[rows["status"] == "ok"]
    assert passed["peak_resident_bytes"].min() > passed["process_baseline_bytes"].max()


def test_an_exit_code_of_0_is_no_success(every_end: Ran) -> None:
    """Cases 9 and 67: only a workload that returns has passed."""
    assert told(every_end, "exit0")["status"] == "error"
    assert told(every_end, "hard_exit0")["status"] == "crashed"
    for target in ("exit0", "hard_exit0"):
        assert told(every_end, target)["exit_code"] == 0
        assert told(every_end, target)["fits"] is pd.NA


def test_a_bug_after_an_allocation_is_an_error_with_a_partial_peak(every_end: Ran) -> None:
    """Case 9: the words CUDA and assert are no refusal of memory."""
    row = told(every_end, "partial_then_raise")
    assert (row["status"], row["error_type"], row["peak_is_partial"]) == ("error", "RuntimeError", True)
    assert row["peak_resident_bytes"] >= row["process_baseline_bytes"] + 512 * MIB


@pytest.mark.parametrize(
    ("target", "signal", "exit_code"),
    [("segv", 11, None), ("abort", 6, None), ("hard_exit0", None, 0), ("hard_exit137", None, 137)],
)
def test_a_process_that_just_ends_crashed_by_a_signal_or_a_code_and_not_for_memory(
    every_end: Ran, target: str, signal: int | None, exit_code: int | None
) -> None:
    """Case 67 (celery#2011, resque#1783, pytorch#53894): 137 is what a shell makes of SIGKILL, and there was none."""
    row = told(every_end, target)
    assert row["status"] == "crashed"
    assert (row["signal"], row["exit_code"]) == (signal or pd.NA, pd.NA if exit_code is None else exit_code)
    assert row["oom_scope"] is None or pd.isna(row["oom_scope"])
    assert row["peak_is_partial"]


def test_a_segfault_keeps_the_peak_that_came_before_it(every_end: Ran) -> None:
    """Case 67: 450 MiB of 475, whatever the imports took."""
    row = told(every_end, "segv")
    assert row["peak_resident_bytes"] >= row["process_baseline_bytes"] + 231 * MIB


def test_sys_exit_with_words_keeps_the_words(every_end: Ran) -> None:
    """Case 67."""
    row = told(every_end, "exit_str")
    assert (row["status"], row["error_type"], row["error_message"]) == ("error", "SystemExit", "bad config")


def test_a_refusal_by_the_host_keeps_what_was_asked_and_what_was_held(every_end: Ran) -> None:
    """Case 28 (pytorch#20618, fastcoref#23): 512 MiB are there, and 4 PB are asked for."""
    row = told(every_end, "partial_then_oom")
    assert (row["status"], row["oom_scope"], row["fits"], row["peak_is_partial"]) == ("oom", "host", False, True)
    assert row["requested_bytes"] == 4_000_000_000_000_000
    assert "4000000000000000" in row["error_message"]
    assert 506 * MIB <= row["peak_resident_bytes"] - row["process_baseline_bytes"] <= 526 * MIB


def test_an_exception_that_cannot_be_pickled_is_a_row_like_any_other(sweep: Sweep) -> None:
    """Case 42 (cpython#120810, cpython#79492, strictdoc#3201, iree#11655)."""
    ran = sweep(*workload("unpicklable,grows"), "batch=1,2")
    rows = ran.points
    assert list(rows["status"]) == ["error", "error", "ok", "ok"]
    assert rows["error_type"][:2].str.endswith("Awkward").all()
    assert list(rows["error_message"][:2]) == ["awkward", "awkward"]


def test_a_flood_of_output_neither_blocks_nor_is_kept_whole(every_end: Ran) -> None:
    """Case 43 (rules_multirun#71, supernova#126, scarab-infra#296): 4 MB to each stream."""
    row = told(every_end, "flood")
    assert row["status"] == "ok"
    assert row["duration_s"] < 20
    assert row["peak_resident_bytes"] < 300 * MIB
    (log,) = every_end.folder.glob(f"points/**/*{row['point_id']}*/output.log")
    kept = log.read_bytes()
    assert len(kept) < 2 * MIB
    assert b"bytes left out" in kept


def test_a_device_that_is_missing_has_rows_without_figures_and_disturbs_nobody(missing: Ran) -> None:
    """Case 29 (pytorch#24463, nanochat#839)."""
    rows = missing.points
    by_device = {device: list(found["status"]) for device, found in rows.groupby("device")}
    assert by_device == {"cpu": ["ok", "ok"], "cuda:0": ["unavailable", "unavailable"]}
    absent = rows[rows["device"] == "cuda:0"]
    figures = [column for column in rows if column.endswith("_bytes")]
    assert absent[figures].isna().all(axis=None)
    assert absent["error_message"].notna().all()
    assert missing.code == 3  # the points of cuda:0 did not tell


@pytest.mark.slow
def test_a_timeout_ends_what_listens_to_nobody(sweep: Sweep) -> None:
    """Case 68 (webknossos-libs#552, oktoberfest#372): signals ignored, and an interpreter that never runs again."""
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
