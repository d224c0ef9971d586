"""Every way an attempt can end: its status, its peaks, and that no process or file of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.outcome import Status
from tests.faults import faulty
from tests.measuring import MIB, Lab, Measured


@pytest.fixture(autouse=True)
def _nothing_is_left(lab: Lab) -> Any:
    """After every fault the next point is measured correctly, and no process, descriptor or stray file is left."""
    before = lab.measure("faulty:good")
    assert before.outcome.status is Status.OK
    descriptors, supervisor = lab.descriptors(), lab.supervisor
    yield
    after = lab.measure("faulty:good")
    assert after.outcome.status is Status.OK
    assert after.outcome.metrics == {"bytes": 64 * MIB}
    baseline = after.outcome.process_baseline["resident"]
    assert 64 * MIB <= after.outcome.peak("resident") - baseline < 72 * MIB
    assert lab.left_over() == []
    assert lab.supervisor != supervisor or lab.descriptors() == descriptors
    known = {"point.json", "journal.jsonl", "exit.json", "output.log"}
    for folder in lab.root.glob("*/*"):
        assert {file.name for file in folder.iterdir()} <= known


def assert_ended(
    measured: Measured,
    status: Status,
    fits: bool | None,
    failed_phase: str | None,
    touched_mib: int | None,
) -> None:
    outcome = measured.outcome
    assert (outcome.status, outcome.fits, outcome.failed_phase) == (status, fits, failed_phase)
    if touched_mib is None:
        return
    resident = outcome.peak("resident")
    assert resident is not None
    assert resident >= outcome.process_baseline["resident"] + touched_mib * MIB
    assert resident < outcome.process_baseline["resident"] + (touched_mib + 60) * MIB
    assert outcome.peak_is_partial is (status is not Status.OK)
    for counter in ("allocated", "reserved", "requested", "active", "used"):
        assert outcome.peak(counter) is None  # no such counter on cpu: null, never 0


RAISED: list[tuple[str, Mapping[str, Any], str, str]] = [
    ("raises", {}, "ValueError", "a bug after 33554432 numbers"),
    ("raises_shyly", {}, "faulty.Shy", "<faulty.Shy, whose str() raised RuntimeError: not even this>"),
    ("raises_undecodable", {}, "ValueError", "half a pair ?, a null \0, ÿþ"),
    ("raises_hugely", {}, "ValueError", "x" * 10_000 + " [... 49990000 characters left out ...]"),
    ("exits", {"code": 0}, "SystemExit", "0"),
    ("exits", {"code": "bad config"}, "SystemExit", "bad config"),
    ("raises_base_exception", {}, "BaseException", "the root of all"),
    ("interrupts_itself", {}, "KeyboardInterrupt", ""),
]


@pytest.mark.parametrize(("target", "params", "error_type", "message"), RAISED)
def test_whatever_a_workload_raises_is_an_error_with_its_own_message(
    lab: Lab, target: str, params: Mapping[str, Any], error_type: str, message: str
) -> None:
    measured = lab.measure(f"faulty:{target}", params)
    assert_ended(measured, Status.ERROR, None, "work", 128)
    assert measured.outcome.error_type == error_type
    assert measured.outcome.error_message == message
    assert measured.outcome.traceback
    assert measured.outcome.peak("tensor") == 128 * MIB


@pytest.mark.parametrize("code", [0, 1, 3, 137])
def test_a_process_that_exits_by_itself_is_crashed_whatever_its_code(lab: Lab, code: int) -> None:
    measured = lab.measure("faulty:leaves", {"code": code})
    assert_ended(measured, Status.CRASHED, None, "work", 128)
    assert (measured.outcome.exit_code, measured.outcome.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_a_signal_is_a_crash_and_keeps_the_peak_to_the_page(lab: Lab, number: int) -> None:
    measured = lab.measure("faulty:signals_itself", {"number": int(number)})
    assert_ended(measured, Status.CRASHED, None, "work", 512)
    assert measured.outcome.signal == number


def test_a_segfault_is_a_crash_that_says_where(lab: Lab) -> None:
    measured = lab.measure("faulty:segfaults")
    assert_ended(measured, Status.CRASHED, None, "work", 512)
    assert measured.outcome.signal == signal.SIGSEGV
    assert "Segmentation fault" in (measured.outcome.error_message or "")
    assert "threading.py" not in (measured.outcome.error_message or "")  # the main thread's line, not the heartbeat's
    assert b"in segfaults" in measured.folder.output.read_bytes()


def test_a_sigkill_without_proof_of_its_cause_is_killed_and_not_out_of_memory(lab: Lab) -> None:
    measured = lab.measure("faulty:signals_itself", {"number": 9})
    assert_ended(measured, Status.KILLED, None, "work", 512)


@pytest.mark.parametrize("target", ["hangs_ignoring_sigterm", "hangs_in_c"])
def test_a_hang_ends_at_the_deadline_whatever_it_ignores(lab: Lab, target: str) -> None:
    measured = lab.measure(f"faulty:{target}", timeout=2)
    assert_ended(measured, Status.TIMEOUT, None, "work", 128)
    assert measured.outcome.duration_s is not None
    assert 2 <= measured.outcome.duration_s < 5


def test_fifty_children_end_with_their_parent_at_the_deadline(lab: Lab) -> None:
    measured = lab.measure("faulty:has_fifty_children", timeout=3)
    assert_ended(measured, Status.TIMEOUT, None, "work", 64)
    assert measured.exit["leftover_processes"] == 50
    assert measured.exit["other_processes"] == 50


def test_grandchildren_that_outlive_the_workload_are_ended_and_counted(lab: Lab) -> None:
    measured = lab.measure("faulty:leaves_grandchildren")
    assert_ended(measured, Status.OK, True, None, 64)
    assert measured.exit["leftover_processes"] == 2
    assert measured.outcome.duration_s is not None
    assert measured.outcome.duration_s < 10  # the supervisor does not wait for the pipe that they hold open


def test_memory_of_child_processes_is_reported_separately(lab: Lab) -> None:
    measured = lab.measure("faulty:works_in_a_child", {"mib": 256})
    assert_ended(measured, Status.OK, True, None, 0)
    assert measured.outcome.other_processes == 1
    assert measured.outcome.other_processes_resident_bytes is not None
    assert measured.outcome.other_processes_resident_bytes >= 256 * MIB


def test_a_flood_of_output_neither_blocks_nor_fills_the_disk(lab: Lab) -> None:
    measured = lab.measure("faulty:floods")
    assert_ended(measured, Status.OK, True, None, 64)
    assert measured.exit["output_truncated"] is True
    assert measured.folder.output.stat().st_size < 2 * MIB
    assert b"bytes left out" in measured.folder.output.read_bytes()


@pytest.mark.parametrize("target", ["closes_descriptors", "closes_everything", "changes_folder"])
def test_facts_reach_the_journal_whatever_a_workload_does_to_its_process(lab: Lab, target: str) -> None:
    measured = lab.measure(f"faulty:{target}")
    assert_ended(measured, Status.OK, True, None, 64)
    assert measured.outcome.metrics == {"bytes": 64 * MIB}


def test_a_workload_that_closes_its_output_does_not_keep_its_supervisor_busy(lab: Lab) -> None:
    outcome = lab.measure("faulty:closes_its_output").outcome
    assert outcome.status is Status.OK
    assert outcome.metrics["supervisor"] < 0.1  # of 0.3 s


def test_an_attempt_whose_facts_cannot_be_written_is_lost_and_not_finished_without_them(lab: Lab) -> None:
    outcome = lab.measure("faulty:fills_its_disk").outcome
    assert (outcome.status, outcome.void, outcome.metrics) == (Status.LOST, True, {})
    assert "journal.jsonl cannot be written: File too large" in (outcome.error_message or "")


def test_a_workload_that_reads_stdin_finds_it_empty(lab: Lab) -> None:
    measured = lab.measure("faulty:reads_stdin")
    assert_ended(measured, Status.OK, True, None, 64)
    assert measured.outcome.metrics["read"] == ""


def test_a_workload_that_removes_its_own_folder_loses_nothing(lab: Lab) -> None:
    measured = lab.measure("faulty:removes_folder")
    assert_ended(measured, Status.OK, True, None, 64)
    assert [phase.name for phase in measured.outcome.phases if phase.name != "between"] == ["before", "after"]
    assert measured.folder.request.exists()


def test_a_refused_allocation_is_out_of_memory_with_what_was_asked(lab: Lab) -> None:
    measured = lab.measure("faulty:asks_for_too_much")
    assert_ended(measured, Status.OOM, False, "work", 512)
    outcome = measured.outcome
    assert (outcome.oom_scope, outcome.requested_bytes) == ("host", 4 * 10**15)
    assert outcome.needs_at_least_bytes == 4 * 10**15 + 512 * MIB


def test_what_a_refused_point_needs_at_least_is_not_more_than_it_needs_with_a_larger_budget(lab: Lab) -> None:
    """What it freed to malloc is still resident: 2 to 3 times as much was shown as it needs."""
    refused = lab.measure("faulty:frees_and_allocates", {"mib": 64}, budget=48 * MIB).outcome
    passed = lab.measure("faulty:frees_and_allocates", {"mib": 64}, budget=192 * MIB).outcome
    assert (refused.status, passed.status) == (Status.OOM, Status.OK)
    needs, peak = refused.needs_at_least_bytes, passed.peak("tensor")
    assert needs is not None
    assert peak is not None
    assert 40 * MIB < needs <= peak == 64 * MIB


def test_what_a_point_needs_at_least_is_unknown_where_tensors_are_not_tracked(lab: Lab) -> None:
    outcome = lab.measure("faulty:asks_for_too_much", tensors=False).outcome
    assert (outcome.requested_bytes, outcome.needs_at_least_bytes) == (4 * 10**15, None)


@pytest.mark.parametrize("tensors", [True, False])
def test_a_refusal_that_ends_a_thread_is_no_proof_that_the_point_fits(lab: Lab, tensors: bool) -> None:
    outcome = lab.measure("faulty:runs_a_thread", {"how": "dies"}, tensors=tensors).outcome
    assert (outcome.status, outcome.fits) == (Status.OK, None)
    assert (outcome.handled_refusals, outcome.handled_refusal_bytes) == (1, 4 * 10**15)


@pytest.mark.parametrize(
    ("how", "fits", "refusals"), [("works", True, 0), ("works before a refusal", None, 1), ("catches", None, 1)]
)
def test_the_refused_tensors_of_threads_are_known(lab: Lab, how: str, fits: bool | None, refusals: int) -> None:
    outcome = lab.measure("faulty:runs_a_thread", {"how": how}).outcome
    assert (outcome.status, outcome.fits, outcome.handled_refusals) == (Status.OK, fits, refusals)


def test_tensors_that_threads_made_count_in_their_phase_and_after_it(lab: Lab) -> None:
    measured = lab.measure("faulty:holds_tensors_of_threads")
    ended = {line["phase"]: line["counters"]["cpu"]["peak"] for line in measured.journal if line["kind"] == "ended"}
    assert [ended[name]["tensor"] for name in ("loading", "work")] == [8 * MIB, 9 * MIB]


def test_a_refusal_that_the_workload_handles_is_no_failure_and_no_proof_that_the_point_fits(lab: Lab) -> None:
    measured = lab.measure("faulty:catches_its_refusal")
    assert (measured.outcome.status, measured.outcome.fits) == (Status.OK, None)
    assert (measured.outcome.handled_refusals, measured.outcome.handled_refusal_bytes) == (1, 4 * 10**15)
    assert [(phase.name, phase.completed) for phase in measured.outcome.phases if phase.name != "between"] == [
        ("too much", False),
        ("less", True),
    ]


@pytest.mark.parametrize(
    ("batch", "least", "status", "fits", "refusals"),
    [(64, 0, Status.OK, True, 0), (1024, 0, Status.OK, None, 3), (1024, 1024, Status.OOM, False, 11)],
)
def test_a_workload_that_looks_for_its_batch_size_decides_only_what_it_ran_or_that_nothing_fits(
    lab: Lab, batch: int, least: int, status: Status, fits: bool | None, refusals: int
) -> None:
    """1024 MiB, and its halves down to 128, the first that the budget of 200 MiB leaves room for."""
    outcome = lab.measure("faulty:halves_its_batch", {"least": least}, batch=batch, budget=200 * MIB).outcome
    assert (outcome.status, outcome.fits, outcome.handled_refusals) == (status, fits, refusals)
    assert outcome.handled_refusal_bytes == (batch * MIB if refusals else None)


def test_refusals_are_unknown_where_tensors_are_not_tracked(lab: Lab) -> None:
    outcome = lab.measure("faulty:catches_its_refusal", tensors=False).outcome
    assert (outcome.fits, outcome.handled_refusals) == (True, None)


def test_a_budget_refuses_cleanly_and_tightly(lab: Lab) -> None:
    measured = lab.measure("faulty:touches_in_steps", budget=400 * MIB)
    assert_ended(measured, Status.OOM, False, "work", 368)
    outcome = measured.outcome
    assert (outcome.budget_kind, outcome.budget_bytes) == ("data_limit", 400 * MIB)
    assert outcome.requested_bytes == 16 * MIB
    resident = outcome.peak("resident")
    assert resident is not None
    # File pages (of kernels that run for the first time) are resident but not data: the budget does not limit them.
    assert resident - outcome.process_baseline["resident"] < (400 + 16) * MIB


def test_a_thread_that_cannot_start_under_a_budget_is_a_crash_with_its_last_line(lab: Lab) -> None:
    measured = lab.measure("faulty:starts_threads", budget=100 * MIB)
    assert measured.outcome.status is Status.CRASHED
    assert measured.outcome.fits is None
    assert "Thread creation failed" in (measured.outcome.error_message or "")


@pytest.mark.parametrize("how", ["descriptors", "limit", "root"])
def test_the_peak_is_read_although_the_workload_leaves_no_way_to_open_a_file(lab: Lab, how: str) -> None:
    if how == "root" and os.geteuid() != 0:
        pytest.skip("changing the root folder needs root")
    found = lab.measure("faulty:takes_away", {"how": how}).outcome
    assert (found.status, found.fits, found.peak_phase) == (Status.OK, True, "large")
    assert found.peak_is_partial is False
    risen = (found.peak("resident") or 0) - found.process_baseline["resident"]
    assert 299 * MIB <= risen < 330 * MIB


def test_a_peak_whose_counters_cannot_be_read_is_a_lower_bound(lab: Lab) -> None:
    found = lab.measure("faulty:takes_away", {"how": "counters"}).outcome
    assert (found.status, found.fits, found.peak_is_partial) == (Status.OK, True, True)
    assert found.peak_phase in ("large", None), "the phase is known if it was read from outside"
    assert (found.peak("resident") or 0) >= found.process_baseline["resident"] + 299 * MIB


@pytest.mark.parametrize("how", ["inside", "at the end"])
def test_a_workload_that_resets_the_mark_itself_is_held_to_the_readings_before(lab: Lab, how: str) -> None:
    found = lab.measure("faulty:resets_the_mark", {"how": how}).outcome
    assert (found.status, found.peak_is_partial, found.peak_phase) == (Status.OK, True, "large")
    risen = (found.peak("resident") or 0) - found.process_baseline["resident"]
    assert 199 * MIB <= risen < 230 * MIB


@pytest.mark.parametrize(
    ("then", "status", "error"),
    [("returns", Status.OK, None), ("raises", Status.ERROR, "KeyError"), ("allocates", Status.OOM, "MemoryError")],
)
def test_a_workload_that_lowers_its_own_hard_limit_keeps_its_own_end(
    lab: Lab, then: str, status: Status, error: str | None
) -> None:
    found = lab.measure("faulty:lowers_its_limit", {"then": then}).outcome
    assert (found.status, found.error_type) == (status, error)
    assert found.fits is {Status.OK: True, Status.OOM: False}.get(status), "its own limit stands for a smaller device"
    assert (found.budget_kind == "workload_limit") is (status is not Status.OK)
    assert [phase.name for phase in found.phases if phase.completed and phase.name != "between"] == ["work"]


def test_a_phase_in_a_phase_is_an_error(lab: Lab) -> None:
    measured = lab.measure("faulty:nests")
    assert_ended(measured, Status.ERROR, None, "outer", None)
    assert "inside phase" in (measured.outcome.error_message or "")


def test_memory_taken_between_two_phases_is_in_the_peak(lab: Lab) -> None:
    measured = lab.measure("faulty:works_between_phases", {"mib": 256})
    assert_ended(measured, Status.OK, True, None, 256)
    assert measured.outcome.peak_phase == "between"


FORKS = [
    ("returns", 0),
    ("raises", 1),
    ("exits", 0),
    ("exits with 3", 3),
    ("exits with a text", 1),
    ("interrupts", -signal.SIGINT),
]


@pytest.mark.parametrize(("how", "code"), FORKS)
def test_a_forked_child_that_comes_back_leaves_as_a_program_would_and_writes_nothing(
    lab: Lab, how: str, code: int
) -> None:
    measured = lab.measure("faulty:forks", {"how": how})
    assert_ended(measured, Status.OK, True, None, 128)
    assert measured.outcome.metrics == {"code": code}
    assert [line["kind"] for line in measured.journal if line["kind"] in ("ended", "failed", "finished")] == [
        *["ended"] * 3,
        "finished",
    ]


@pytest.mark.parametrize(
    "settled", [{"start": "cold"}, {"phases": "whole"}, {"trace": True}], ids=["cold", "whole", "traced"]
)
def test_a_forked_child_writes_nothing_however_the_attempt_is_measured(lab: Lab, settled: Mapping[str, Any]) -> None:
    measured = lab.measure("faulty:forks", {"how": "raises", "where": "outside"}, **settled)
    outcome = measured.outcome
    assert (outcome.status, outcome.metrics, outcome.peak_is_partial) == (Status.OK, {"code": 1}, False)
    assert b"ValueError: of the child" in measured.folder.output.read_bytes()
    assert not measured.folder.trace.exists()


def test_a_child_that_an_import_forks_writes_nothing(lab: Lab) -> None:
    measured = lab.measure("forks_on_import:run")
    assert (measured.outcome.status, measured.outcome.metrics) == (Status.OK, {"forked": True})
    assert [line["kind"] for line in measured.journal].count("environment") == 1


def test_a_forked_child_cannot_report_the_model(lab: Lab) -> None:
    outcome = lab.measure("faulty:reports_a_model_in_a_fork").outcome
    assert (outcome.status, outcome.metrics, outcome.model) == (Status.OK, {"code": 1}, {"parameters": 1})


def test_a_copy_that_goes_on_after_the_measured_process_left_finishes_nothing(lab: Lab) -> None:
    assert lab.measure("faulty:is_an_orphan").outcome.status is Status.CRASHED


def test_the_mark_at_death_is_not_that_of_a_child_which_was_larger(lab: Lab) -> None:
    measured = lab.measure("faulty:dies_after_a_larger_child")
    assert_ended(measured, Status.CRASHED, None, "work", 64)
    assert measured.exit["maxrss_bytes"] is None


def test_facts_that_a_workload_reports_about_its_model_replace_no_fact_of_the_attempt(lab: Lab) -> None:
    outcome = lab.measure("faulty:reports_facts_as_a_model").outcome
    assert (outcome.status, outcome.error_message) == (Status.ERROR, "a bug")
    assert outcome.model == {"kind": "finished", "t": -1.0, "phase": "work", "event": 0, "parameters": 5}


def test_a_phase_called_between_is_an_error(lab: Lab) -> None:
    outcome = lab.measure("faulty:calls_its_phase_between").outcome
    assert outcome.status is Status.ERROR
    assert "this is the name of what happens between two phases" in (outcome.error_message or "")


def test_a_phase_in_a_forked_process_is_refused(lab: Lab) -> None:
    assert lab.measure("faulty:uses_phase_in_a_fork").outcome.metrics == {"code": 7}


@pytest.mark.parametrize("how", ["is traced by its child", "is stopped", "waits for a vfork", "hops", "multiplies"])
def test_whatever_a_process_does_it_ends_at_its_deadline_with_all_that_it_started(lab: Lab, how: str) -> None:
    measured = lab.measure("faulty:withstands", {"how": how}, timeout=1.0)
    assert_ended(measured, Status.TIMEOUT, None, "work", 64)
    assert 1.0 <= measured.exit["duration_s"] < 1.0 + 10.0
    assert measured.exit["signal"] == signal.SIGKILL
    assert lab.left_over() == []


def test_an_attempt_settles_although_a_debugger_of_somebody_else_keeps_its_process(lab: Lab, tmp_path: Path) -> None:
    attempt = lab.start("faulty:withstands", {"how": "allows tracers", "folder": str(tmp_path)}, timeout=1.0)
    lab.wait_for("began")
    while not (tmp_path / "pid").exists():
        lab.engine.wait(0.01)
    pid = (tmp_path / "pid").read_text()
    with subprocess.Popen([sys.executable, "-S", "-c", faulty.TRACER, pid], stdout=subprocess.PIPE) as debugger:
        assert debugger.stdout is not None
        assert debugger.stdout.read(1) == b"."
        measured = lab.settle(attempt)
        assert debugger.poll() is None, "it is not ours to end"
        debugger.kill()
    assert measured.outcome.status is Status.TIMEOUT
    assert measured.exit["duration_s"] < 1.0 + 10.0
    assert (measured.exit["code"], measured.exit["signal"], measured.exit["maxrss_bytes"]) == (None, None, None)
    assert f"process {pid} did not end within 3 seconds after it was killed" in (measured.outcome.error_message or "")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stops its supervisor", "stops its supervisor and the watcher"])
def test_a_process_that_stops_its_supervisor_ends_at_its_deadline_all_the_same(lab: Lab, how: str) -> None:
    attempt = lab.start("faulty:withstands", {"how": how}, timeout=1.0)
    lab.wait_for("began")
    began = time.monotonic()
    outcome = lab.settle(attempt).outcome
    assert time.monotonic() - began < 1.0 + 10.0
    assert outcome.status is Status.TIMEOUT
    assert outcome.error_message == "not done after timeout=1 seconds; its supervisor did not end it"


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup whose processes, once frozen, are in an uninterruptible sleep: no signal ends them."""
    folder = Path("/sys/fs/cgroup/freezer", f"sweeper-tests-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("needs root and the freezer of cgroups version 1")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    while (folder / "cgroup.procs").read_text():
        time.sleep(0.01)
    folder.rmdir()


@pytest.mark.slow
def test_an_attempt_settles_although_its_process_sleeps_uninterruptibly(
    lab: Lab, tmp_path: Path, freezer: Path
) -> None:
    attempt = lab.start("faulty:withstands", {"how": "allows tracers", "folder": str(tmp_path)}, timeout=1.0)
    lab.wait_for("began")
    while not (tmp_path / "pid").exists():
        lab.engine.wait(0.01)
    (freezer / "cgroup.procs").write_text((tmp_path / "pid").read_text())
    (freezer / "freezer.state").write_text("FROZEN")
    measured = lab.settle(attempt)
    assert measured.outcome.status is Status.TIMEOUT
    assert measured.exit["duration_s"] < 1.0 + 10.0
    assert "did not end within 3 seconds after it was killed" in (measured.outcome.error_message or "")
    assert lab.left_over() == [int((tmp_path / "pid").read_text())]
