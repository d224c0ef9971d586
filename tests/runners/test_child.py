"""The memory of the measured process before its workload, and that it does not depend on how the process starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners import journal
from runners.device import device_named
from runners.outcome import Status, outcome_of
from runners.point import Attempt, AttemptFolder, Point
from tests.measuring import MIB, Lab

ROOT = Path(__file__).parents[2]
BARE = "import torch; print(next(line for line in open('/proc/self/status') if line.startswith('VmRSS')).split()[1])"


def test_a_cold_child_holds_at_most_seven_mib_more_than_a_bare_import_of_torch(lab: Lab) -> None:
    bare = int(subprocess.run([sys.executable, "-c", BARE], capture_output=True, check=True).stdout) * 1024
    measured = lab.measure("faulty:good", start="cold")
    assert measured.outcome.status is Status.OK
    assert measured.outcome.process_baseline["resident"] <= bare + 7 * MIB


def test_a_warm_child_measures_the_same_tensors_and_is_a_process_of_its_own(lab: Lab) -> None:
    cold, warm, warmer = (lab.measure("faulty:good", start=start) for start in ("cold", "warm", "warm"))
    assert {each.outcome.peak("tensor") for each in (cold, warm, warmer)} == {64 * MIB}
    assert len({each.outcome.pid for each in (cold, warm, warmer)}) == 3


def by_hand(*words: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runners.child", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_attempt_can_be_run_again_by_hand_in_a_copy_of_its_folder(lab: Lab, tmp_path: Path) -> None:
    measured = lab.measure("faulty:good", start="cold")
    copy = AttemptFolder(tmp_path / "copy")
    shutil.copytree(measured.folder.path, copy.path)
    copy.journal.unlink()
    again = by_hand(copy.path, "faulty:good")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    outcome = outcome_of(copy.attempt(), journal.read(copy.journal), copy.settled())
    assert (outcome.status, outcome.metrics) == (Status.OK, measured.outcome.metrics)
    assert outcome.peak("tensor") == measured.outcome.peak("tensor")
    assert outcome.environment == measured.outcome.environment


def test_a_folder_with_a_journal_or_without_a_request_is_refused_in_one_line(lab: Lab, tmp_path: Path) -> None:
    measured = lab.measure("faulty:good")
    before = measured.folder.journal.read_bytes()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "point.json").write_text("{")
    for folder, reason in (
        (measured.folder.path, "journal.jsonl: the attempt was made already"),
        (tmp_path, "point.json is missing"),
        (tmp_path / "damaged", "point.json cannot be read: it is not valid JSON"),
    ):
        refused = by_hand(folder)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert reason in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert by_hand().stderr == "usage: python -m runners.child FOLDER [WHAT]\n"
    assert measured.folder.journal.read_bytes() == before


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"workload": {"name": "custom", "target": "theirs:run"}}, "theirs:run"),
        ({"workload": {"name": "command", "argv": ["sh", "-c", "touch was-run"]}}, "sh -c 'touch was-run'"),
        ({"workload": {"name": "train"}, "quality": {"target": "theirs:score"}}, "theirs:score"),
        ({"workload": {"name": "forward"}, "model": {"name": "mlp"}}, "forward"),
    ],
    ids=["custom", "command", "quality", "forward"],
)
def test_what_a_folder_would_run_by_hand_is_shown_and_runs_only_once_it_is_typed(
    tmp_path: Path, values: dict[str, Any], what: str
) -> None:
    for module in ("theirs", "torch"):  # the folder also decides which modules are found
        (tmp_path / f"{module}.py").write_text("open('was-run', 'w')\n")
    folder = AttemptFolder(tmp_path / "attempt")
    environ = {"LD_PRELOAD": "\x1b]0;theirs\x07"}
    point = Point(values=values)
    folder.create(Attempt(point=point, device=device_named("cpu"), cwd=str(tmp_path), environ=environ))
    for words in ([], ["another:run"]):
        shown = by_hand(folder.path, *words)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert f"runs {what!r} in {str(tmp_path)!r} with {environ}" in shown.stderr
        assert shown.stderr.count("\n") == 1
        assert shown.stderr.removesuffix("\n").isprintable()
    assert not (tmp_path / "was-run").exists()
    assert not folder.journal.exists()


def test_an_attempt_measured_as_a_whole_is_one_phase_with_the_same_tensor_peak(lab: Lab) -> None:
    each, whole = (lab.measure("faulty:good", phases=phases) for phases in ("each", "whole"))
    assert [phase.name for phase in whole.outcome.phases if phase.name != "between"] == ["whole"]
    assert each.outcome.peak("tensor") == whole.outcome.peak("tensor")


def test_without_tracking_tensors_their_counter_is_absent_and_the_outcome_is_not_instrumented(lab: Lab) -> None:
    with_it, without = (lab.measure("faulty:good", tensors=tensors).outcome for tensors in (True, False))
    assert (with_it.instrumented, without.instrumented) == (True, False)
    assert without.peak("tensor") is None
