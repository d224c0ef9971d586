"""Every way an attempt can end: what its row says, and that nothing of it is left, whatever it did."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from runners.outcome import Status
from tests.measuring import MIB, Lab, Measured


@pytest.fixture(autouse=True)
def _nothing_is_left(lab: Lab) -> Any:
    """After every fault: the next point is right, and no process, descriptor or stray file has stayed."""
    before = lab.measure("faulty:good")
    assert before.outcome.status is Status.OK
    descriptors = lab.descriptors()
    yield
    after = lab.measure("faulty:good")
    assert after.outcome.status is Status.OK
    assert after.outcome.metrics == {"bytes": 64 * MIB}
    baseline = after.outcome.process_baseline["resident"]
    assert 64 * MIB <= after.outcome.peak("resident") - baseline < 72 * MIB
    assert lab.left_over() == []
    assert lab.descriptors() == descriptors
    known = {"point.json", "journal.jsonl", "exit.json", "output.log"}
    for folder in lab.root.glob("*/*"):
        assert {file.name for file in folder.iterdir()} <= known


def assert_told(
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
    ("raises_shyly", {}, "faulty.Shy", "<Shy that cannot be printed>"),
    ("raises_undecodable", {}, "ValueError", "half a pair ?, a null \0, ÿþ"),
    ("raises_hugely", {}, "ValueError", "x" * 10_000),
    ("exits", {"code": 0}, "SystemExit", "0"),
    ("exits", {"code": "bad config"}, "SystemExit", "bad config"),
    ("raises_base_exception", {}, "BaseException", "the root of all"),
    ("interrupts_itself", {}, "KeyboardInterrupt", ""),
]


@pytest.mark.parametrize(("target", "params", "error_type", "message"), RAISED)
def test_whatever_a_workload_raises_is_an_error_with_its_own_words(
    lab: Lab, target: str, params: Mapping[str, Any], error_type: str, message: str
) -> None:
    measured = lab.measure(f"faulty:{target}", params)
    assert_told(measured, Status.ERROR, None, "work", 128)
    assert measured.outcome.error_type == error_type
    assert measured.outcome.error_message == message
    assert measured.outcome.traceback
    assert measured.outcome.peak("tensor") == 128 * MIB


@pytest.mark.parametrize("code", [0, 1, 3, 137])
def test_a_process_that_ends_without_a_word_crashed_whatever_its_code(lab: Lab, code: int) -> None:
    measured = lab.measure("faulty:leaves", {"code": code})
    assert_told(measured, Status.CRASHED, None, "work", 128)
    assert (measured.outcome.exit_code, measured.outcome.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_a_signal_is_a_crash_and_keeps_the_peak_to_the_page(lab: Lab, number: int) -> None:
    measured = lab.measure("faulty:signals_itself", {"number": int(number)})
    assert_told(measured, Status.CRASHED, None, "work", 512)
    assert measured.outcome.signal == number


def test_a_segfault_is_a_crash_that_says_where(lab: Lab) -> None:
    measured = lab.measure("faulty:segfaults")
    assert_told(measured, Status.CRASHED, None, "work", 512)
    assert measured.outcome.signal == signal.SIGSEGV
    assert "Segmentation fault" in (measured.outcome.error_message or "")
    assert "threading.py" not in (measured.outcome.error_message or "")  # the heartbeat's thread is not where it was
    assert b"in segfaults" in measured.folder.output.read_bytes()


def test_a_sigkill_that_nobody_proves_is_killed_and_not_out_of_memory(lab: Lab) -> None:
    measured = lab.measure("faulty:signals_itself", {"number": 9})
    assert_told(measured, Status.KILLED, None, "work", 512)


@pytest.mark.parametrize("target", ["hangs_ignoring_sigterm", "hangs_in_c"])
def test_a_hang_ends_at_the_deadline_whatever_it_ignores(lab: Lab, target: str) -> None:
    measured = lab.measure(f"faulty:{target}", timeout=2)
    assert_told(measured, Status.TIMEOUT, None, "work", 128)
    assert measured.outcome.duration_s is not None
    assert 2 <= measured.outcome.duration_s < 5


def test_fifty_children_end_with_their_parent_at_the_deadline(lab: Lab) -> None:
    measured = lab.measure("faulty:has_fifty_children", timeout=3)
    assert_told(measured, Status.TIMEOUT, None, "work", 64)
    assert measured.exit["leftover_processes"] == 50
    assert measured.exit["other_processes"] == 50


def test_grandchildren_that_outlive_the_workload_are_ended_and_counted(lab: Lab) -> None:
    measured = lab.measure("faulty:leaves_grandchildren")
    assert_told(measured, Status.OK, True, None, 64)
    assert measured.exit["leftover_processes"] == 2
    assert measured.outcome.duration_s is not None
    assert measured.outcome.duration_s < 10  # it was not waited for the pipe that they hold


def test_memory_in_a_child_process_of_the_workload_is_said(lab: Lab) -> None:
    measured = lab.measure("faulty:works_in_a_child", {"mib": 256})
    assert_told(measured, Status.OK, True, None, 0)
    assert measured.outcome.other_processes == 1
    assert measured.outcome.other_processes_resident_bytes is not None
    assert measured.outcome.other_processes_resident_bytes >= 256 * MIB


def test_a_flood_of_output_neither_blocks_nor_fills_the_disk(lab: Lab) -> None:
    measured = lab.measure("faulty:floods")
    assert_told(measured, Status.OK, True, None, 64)
    assert measured.exit["output_truncated"] is True
    assert measured.folder.output.stat().st_size < 2 * MIB
    assert b"bytes left out" in measured.folder.output.read_bytes()


@pytest.mark.parametrize("target", ["closes_descriptors", "closes_everything", "changes_folder"])
def test_facts_reach_the_journal_whatever_a_workload_does_to_its_process(lab: Lab, target: str) -> None:
    measured = lab.measure(f"faulty:{target}")
    assert_told(measured, Status.OK, True, None, 64)
    assert measured.outcome.metrics == {"bytes": 64 * MIB}


def test_a_workload_that_reads_stdin_reads_its_end(lab: Lab) -> None:
    measured = lab.measure("faulty:reads_stdin")
    assert_told(measured, Status.OK, True, None, 64)
    assert measured.outcome.metrics["read"] == ""


def test_a_workload_that_removes_its_own_folder_loses_nothing(lab: Lab) -> None:
    # The folder's name hangs on the point's values, so it is removed by where all attempts are.
    measured = lab.measure("faulty:removes_folder", {"folder": str(lab.root)})
    assert_told(measured, Status.OK, True, None, 64)
    assert [phase.name for phase in measured.outcome.phases if phase.name != "between"] == ["before", "after"]
    assert measured.folder.request.exists()


def test_a_refused_allocation_is_out_of_memory_with_what_was_asked(lab: Lab) -> None:
    measured = lab.measure("faulty:asks_for_too_much")
    assert_told(measured, Status.OOM, False, "work", 512)
    outcome = measured.outcome
    assert (outcome.oom_scope, outcome.requested_bytes) == ("host", 4 * 10**15)
    assert outcome.needs_at_least_bytes is not None
    assert outcome.needs_at_least_bytes > 4 * 10**15 + 512 * MIB


def test_a_refusal_that_the_workload_handles_is_no_failure(lab: Lab) -> None:
    measured = lab.measure("faulty:catches_its_refusal")
    assert measured.outcome.status is Status.OK
    assert [(phase.name, phase.completed) for phase in measured.outcome.phases if phase.name != "between"] == [
        ("too much", False),
        ("less", True),
    ]


def test_a_budget_refuses_cleanly_and_tightly(lab: Lab) -> None:
    measured = lab.measure("faulty:touches_in_steps", budget=400 * MIB)
    assert_told(measured, Status.OOM, False, "work", 368)
    outcome = measured.outcome
    assert (outcome.budget_kind, outcome.budget_bytes) == ("data_limit", 400 * MIB)
    assert outcome.requested_bytes == 16 * MIB
    resident = outcome.peak("resident")
    assert resident is not None
    # Pages of files (kernels run for the first time) are resident and no data: the budget does not limit them.
    assert resident - outcome.process_baseline["resident"] < (400 + 16) * MIB


def test_a_thread_that_cannot_start_under_a_budget_is_a_crash_with_its_last_words(lab: Lab) -> None:
    measured = lab.measure("faulty:starts_threads", budget=100 * MIB)
    assert measured.outcome.status is Status.CRASHED
    assert measured.outcome.fits is None
    assert "Thread creation failed" in (measured.outcome.error_message or "")


def test_a_phase_in_a_phase_is_an_error(lab: Lab) -> None:
    measured = lab.measure("faulty:nests")
    assert_told(measured, Status.ERROR, None, "outer", None)
    assert "inside phase" in (measured.outcome.error_message or "")


def test_what_happens_between_two_phases_counts_in_the_peak(lab: Lab) -> None:
    measured = lab.measure("faulty:works_between_phases", {"mib": 256})
    assert_told(measured, Status.OK, True, None, 256)
    assert measured.outcome.peak_phase == "between"


def test_a_phase_in_another_process_than_the_measured_one_is_refused(lab: Lab) -> None:
    assert lab.measure("faulty:uses_phase_in_a_fork").outcome.metrics == {"code": 7}
