"""docs/what-can-go-wrong.md: no status is missing, and each fault is made by the test that its row names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from runners.fingerprint import VARIABLES
from runners.outcome import Status

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "what-can-go-wrong.md").read_text()
README = (ROOT / "README.md").read_text()
# What makes the fault, in the code of the test: a workload of faulty.py, hostile.py or wl.py, a script, a signal, or
# the bytes of a file. Two cannot be brought about here and are made of facts: the kernel's log, and a torn line.
MAKERS = {
    "test_the_default_command_of_a_plain_installation_names_what_to_install_and_starts_nothing": "plain_python",
    "test_a_run_of_another_user_that_may_not_be_written_is_refused_in_one_line_with_its_owner": "other_user.act(",
    "test_a_run_whose_plan_was_deleted_is_continued_with_its_attempts": ".unlink()",
    "test_something_else_in_place_of_a_part_of_a_run_is_refused_in_one_line": "PLANTED[kind](",
    "test_a_user_whose_folder_another_one_has_taken_gets_one_that_all_sweeps_of_the_user_share": "other_user.act(",
    "test_a_forked_child_that_comes_back_leaves_as_a_program_would_and_writes_nothing": "faulty:forks",
    "test_a_phase_called_between_is_an_error": "faulty:calls_its_phase_between",
    "test_an_attempt_whose_facts_cannot_be_written_is_lost_and_not_finished_without_them": "faulty:fills_its_disk",
    "test_an_error_keeps_its_type_message_and_traceback_whatever_its_own_code_does": "hostile:raises",
    "test_a_workload_that_replaces_what_we_call_keeps_its_own_error_and_its_result": "hostile:patches",
    "test_a_workload_that_reports_what_cannot_be_read_still_passes": "hostile:returns",
    "test_a_workload_that_spoils_its_own_folder_ends_as_one_row": "SPOILED",
    "test_a_workload_that_writes_to_the_pipes_of_its_supervisor_is_lost_and_the_next_is_measured": (
        "hostile:writes_to_the_supervisor"
    ),
    "test_a_run_that_a_workload_removes_or_replaces_ends_the_sweep_in_one_line_and_is_not_made_again": (
        "hostile:spoils_the_run"
    ),
    "test_a_limit_of_open_files_that_is_too_low_is_refused_with_its_value": "ulimit -n 20",
    "test_shared_memory_above_a_budget_that_cannot_limit_it_decides_nothing": "faulty:shares",
    "test_an_attempt_for_which_the_system_has_no_process_is_unavailable_with_the_limit": "refusals=1000",
    "test_an_attempt_that_no_supervisor_begins_is_lost_after_some_and_void": "exit 3",
    "test_a_point_with_a_damaged_file_is_measured_again_and_the_frontier_stays": "damage(",
    "test_a_plan_that_lost_its_end_anywhere_costs_no_outcome": "cuts(",
    "test_facts_reach_the_journal_whatever_a_workload_does_to_its_process": "closes_everything",
    "test_a_workload_that_reads_stdin_finds_it_empty": "faulty:reads_stdin",
    "test_a_workload_that_removes_its_own_folder_loses_nothing": "faulty:removes_folder",
    "test_a_flood_of_output_neither_blocks_nor_fills_the_disk": "faulty:floods",
    "test_grandchildren_that_outlive_the_workload_are_ended_and_counted": "faulty:leaves_grandchildren",
    "test_memory_of_child_processes_is_reported_separately": "faulty:works_in_a_child",
    "test_a_refusal_that_the_workload_handles_is_no_failure_and_no_proof_that_the_point_fits": (
        "faulty:catches_its_refusal"
    ),
    "test_a_workload_that_looks_for_its_batch_size_decides_only_what_it_ran_or_that_nothing_fits": (
        "faulty:halves_its_batch"
    ),
    "test_a_sweep_that_is_stopped_while_it_plans_leaves_no_process": "send_signal(number)",
    "test_what_a_module_starts_as_it_is_imported_delays_no_answer_and_ends_with_it": "daemons:run",
    "test_a_module_whose_import_does_not_end_is_named_after_a_while": "hangs:run",
    "test_an_attempt_whose_supervisor_is_sent_sigterm_is_lost_and_so_not_repeated": "signal.SIGTERM",
    "test_a_refused_allocation_is_out_of_memory_with_what_was_asked": "faulty:asks_for_too_much",
    "test_a_budget_refuses_cleanly_and_tightly": "faulty:touches_in_steps",
    "test_without_a_budget_a_point_that_is_too_large_for_the_machine_is_refused_and_not_killed": "faulty:reserves",
    "test_a_status_follows_from_the_facts_and_only_memory_decides_whether_it_fits": "oom_kill_proof=",
    "test_a_sigkill_without_proof_of_its_cause_is_killed_and_not_out_of_memory": "'number': 9",
    "test_a_segfault_is_a_crash_that_says_where": "faulty:segfaults",
    "test_a_signal_is_a_crash_and_keeps_the_peak_to_the_page": "faulty:signals_itself",
    "test_a_process_that_exits_by_itself_is_crashed_whatever_its_code": "faulty:leaves",
    "test_a_thread_that_cannot_start_under_a_budget_is_a_crash_with_its_last_line": "faulty:starts_threads",
    "test_a_hang_ends_at_the_deadline_whatever_it_ignores": "hangs_in_c",
    "test_fifty_children_end_with_their_parent_at_the_deadline": "faulty:has_fifty_children",
    "test_whatever_a_workload_raises_is_an_error_with_its_own_message": "raises_base_exception",
    "test_a_phase_in_a_phase_is_an_error": "faulty:nests",
    "test_a_device_that_is_missing_has_rows_without_figures_and_disturbs_no_other": "missing",
    "test_a_signal_ends_what_runs_and_keeps_what_is_finished": "send_signal(number)",
    "test_after_a_kill_nothing_is_left_running": "os.kill(pids[victim], signal.SIGKILL)",
    "test_a_supervisor_that_is_killed_leaves_nothing_running_and_its_attempt_is_lost": "os.kill(pids[victim]",
    "test_whatever_a_process_does_it_ends_at_its_deadline_with_all_that_it_started": "is traced by its child",
    "test_an_attempt_settles_although_a_debugger_of_somebody_else_keeps_its_process": "faulty.TRACER",
    "test_a_terminal_that_is_closed_stops_a_sweep_with_its_tables_unless_it_ignores_hangups": "os.close(terminal)",
    "test_an_attempt_that_settled_while_this_process_was_stopped_is_not_overdue": "due = 0.0",
    "test_a_sweep_ends_no_process_that_it_did_not_start": "setsid sleep 3600",
    "test_a_skipped_point_names_the_attempt_that_implies_its_answer": "searched",
    "test_a_second_signal_ends_the_sweep_at_once": "send_signal(signal.SIGINT)",
    "test_a_second_sweep_into_the_same_folder_is_refused_with_the_pid_that_holds_it": "first.wait_until_it_hangs()",
    "test_two_sweeps_without_a_name_get_two_folders": "for _ in range(2)",
    "test_a_folder_that_is_removed_during_a_sweep_ends_it_in_one_line": "rmtree(run.run)",
    "test_a_full_disk_ends_the_sweep_in_one_line_and_keeps_what_is_finished": "size=256k",
    "test_a_folder_that_cannot_be_written_is_refused_before_anything_starts": "outputs=file/below",
    "test_a_device_is_left_alone_after_the_same_error_as_often_as_stop_after_same_error_says": "faulty:raises",
    "test_a_limit_under_which_sweeper_cannot_run_is_one_line_for_every_command": "before=limit(kind, kib * 1024)",
    "test_a_sweep_under_a_limit_of_memory_has_its_tables": "limit(resource.RLIMIT_DATA",
    "test_tables_for_which_there_is_no_memory_are_made_later": "side_effect=error",
    "test_without_a_reset_of_the_high_water_mark_the_resident_peaks_are_null_and_a_line_says_so": "remount,bind,ro",
    "test_a_current_folder_that_was_removed_is_one_line": "before=folder.rmdir",
    "test_a_sweep_whose_output_and_messages_cannot_be_written_has_its_tables": "stderr=full",
    "test_a_letter_that_the_output_cannot_show_is_escaped": "PYTHONIOENCODING=encoding",
    "test_a_torn_line_loses_only_that_line": ".read_bytes()[:-20]",
    "test_a_kill_between_two_renames_leaves_no_tables_of_two_moments": "KILLED_AT_A_RENAME",
    "test_missing_or_torn_tables_are_rebuilt_from_the_journals": ".read_bytes()[:-100]",
    "test_a_damaged_attempt_is_one_lost_row_that_names_the_file": "change(folder_of(run, damaged) / name)",
    "test_a_folder_of_another_point_or_run_under_this_name_is_noticed": "copytree(source, kept)",
    "test_a_damaged_line_of_the_plan_loses_that_line_only_and_one_line_reports_it": "lines[at].replace",
    "test_a_damaged_or_foreign_table_is_made_again_in_memory": "change(run / f'{name}.parquet')",
}


def code_of_tests() -> dict[str, tuple[Path, str]]:
    """By its name, each test that `make test` runs: its file, and its code with the constants that it names."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        body = ast.parse(path.read_text()).body
        constants = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if re.search(r"mark\.(slow|gpu|skip|xfail)", decorators):
                    continue
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                used = [each for each in constants if names & {n.id for n in ast.walk(each) if isinstance(n, ast.Name)}]
                found[node.name] = path, "\n".join(map(ast.unparse, [node, *used]))
    return found


TESTS = code_of_tests()


def rows(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    lines = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


FAULTS = [*rows("An attempt"), *rows("A sweep")]


def test_every_status_is_in_the_table_of_faults_in_the_order_they_are_declared() -> None:
    statuses = dict.fromkeys(row[1].strip("`") for row in rows("An attempt"))
    assert list(statuses) == [status.value for status in Status]


@pytest.mark.parametrize("row", FAULTS, ids=[row[0] for row in FAULTS])
def test_every_fault_is_made_by_the_test_that_its_row_names(row: list[str]) -> None:
    test = row[-1].strip("`")
    assert test in TESTS, "make test runs no such test"
    assert MAKERS[test] in TESTS[test][1]


def test_every_workload_that_makes_a_fault_is_one_of_faulty_py() -> None:
    faulty = {
        node.name for node in ast.parse((ROOT / "tests/faults/faulty.py").read_text()).body if hasattr(node, "name")
    }
    assert {maker.removeprefix("faulty:") for maker in MAKERS.values() if maker.startswith("faulty:")} <= faulty


def test_the_faults_of_an_attempt_are_tested_on_real_processes() -> None:
    """Except those that no process here can be made to have, or that are no fault of the attempt."""
    elsewhere = {row[0] for row in rows("An attempt") if TESTS[row[-1].strip("`")][0].parent.name != "faults"}
    assert elsewhere == {
        "the kernel kills it because memory ran out",
        "a requested device is missing",
        "another attempt implies its result",
    }


def test_the_exit_codes_are_those_of_the_readme() -> None:
    codes = re.findall(r"^\| ([\d, ]+) \|", README.partition("## Exit codes")[2], re.MULTILINE)
    assert [code for code, _ in rows("Exit codes")][: len(codes)] == codes


def test_the_environment_variables_that_are_written_down_are_all_named() -> None:
    (listed,) = re.findall(r"<!-- variables -->(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == list(VARIABLES)


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/what-can-go-wrong.md)" in README
