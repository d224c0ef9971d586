"""A library that is missing or broken: the row names it and the cause, and nothing is measured instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.outcome import Outcome, Status
from tests.measuring import SETTLED, Lab

MODEL = {"name": "tiny", "library": "transformers", "model_type": "llama", "config": {}}


def measure(lab: Lab, folder: Path, workload: str) -> Outcome:
    target = {"name": "custom", "target": "faulty:good", "params": {}} if workload == "custom" else {"name": workload}
    values = {**SETTLED, "model": MODEL, "workload": target, "warmup": 0, "repeats": 1, "start": "cold"}
    return lab.settle(lab.start_values(values, environ={"PYTHONPATH": str(folder)})).outcome


def library(folder: Path, name: str, code: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("raise ImportError('libtorch_cpu.so: cannot open shared object file')", "libtorch_cpu.so: cannot open"),
        ("import not_there_at_all", "not_there_at_all"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_torch_that_does_not_import_is_unavailable_with_the_root_cause(
    lab: Lab, tmp_path: Path, code: str, cause: str
) -> None:
    library(tmp_path, "torch", code)
    outcome = measure(lab, tmp_path, "custom")
    assert (outcome.status, outcome.fits) == (Status.UNAVAILABLE, None)
    assert cause in (outcome.error_message or "")
    assert outcome.phases == ()
    assert outcome.peak("resident") is None
    assert lab.measure("faulty:good").outcome.status is Status.OK


def test_a_broken_optional_library_is_reported_with_its_root_cause_and_what_to_install(
    lab: Lab, tmp_path: Path
) -> None:
    code = "try:\n    import not_there\nexcept ImportError as error:\n    raise RuntimeError('broken') from error"
    library(tmp_path, "transformers", code)
    outcome = measure(lab, tmp_path, "forward")
    assert outcome.status is Status.UNAVAILABLE
    assert "No module named 'not_there'" in (outcome.error_message or "")
    assert "sweeper[models]" in (outcome.error_message or "")


def test_a_process_that_hangs_right_after_its_imports_ends_at_the_deadline(lab: Lab, tmp_path: Path) -> None:
    library(tmp_path, "torch", "import time\ntime.sleep(3600)")
    target = {"name": "custom", "target": "faulty:good", "params": {}}
    values = {**SETTLED, "model": None, "workload": target, "start": "cold", "timeout": 1.5}
    outcome = lab.settle(lab.start_values(values, environ={"PYTHONPATH": str(tmp_path)})).outcome
    assert (outcome.status, outcome.fits, outcome.failed_phase) == (Status.TIMEOUT, None, "start")
    assert outcome.peak("resident") is None  # nothing was measured before the baseline
