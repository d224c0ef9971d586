"""What the measured process holds before its workload, and that it is the same whoever starts it."""

from __future__ import annotations

import subprocess
import sys

from runners import launch_command
from runners.outcome import Status
from tests.measuring import MIB, Lab

BARE = "import torch; print(next(line for line in open('/proc/self/status') if line.startswith('VmRSS')).split()[1])"


def test_a_cold_child_holds_at_most_five_mib_more_than_a_bare_import_of_torch(lab: Lab) -> None:
    bare = int(subprocess.run([sys.executable, "-c", BARE], capture_output=True, check=True).stdout) * 1024
    measured = lab.measure("faulty:good", start="cold")
    assert measured.outcome.status is Status.OK
    assert measured.outcome.process_baseline["resident"] <= bare + 5 * MIB


def test_a_warm_child_measures_the_same_tensors_and_is_a_process_of_its_own(lab: Lab) -> None:
    cold, warm, warmer = (lab.measure("faulty:good", start=start) for start in ("cold", "warm", "warm"))
    assert {each.outcome.peak("tensor") for each in (cold, warm, warmer)} == {64 * MIB}
    assert len({each.outcome.pid for each in (cold, warm, warmer)}) == 3


def test_any_attempt_can_be_run_again_by_hand(lab: Lab) -> None:
    measured = lab.measure("faulty:good")
    measured.folder.journal.unlink()
    subprocess.run(launch_command.command(sys.executable, "child", str(measured.folder.path)), cwd=lab.cwd, check=True)
    assert '"finished"' in measured.folder.journal.read_text()


def test_an_attempt_as_a_whole_is_one_phase_with_the_same_peak_of_tensors(lab: Lab) -> None:
    each, whole = (lab.measure("faulty:good", phases=phases) for phases in ("each", "whole"))
    assert [phase.name for phase in whole.outcome.phases if phase.name != "between"] == ["whole"]
    assert each.outcome.peak("tensor") == whole.outcome.peak("tensor")


def test_without_following_tensors_their_counter_is_absent_and_the_row_says_so(lab: Lab) -> None:
    with_it, without = (lab.measure("faulty:good", tensors=tensors).outcome for tensors in (True, False))
    assert (with_it.instrumented, without.instrumented) == (True, False)
    assert without.peak("tensor") is None
