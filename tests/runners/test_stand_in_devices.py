"""Attempts on devices, from the command line to the tables, with a stand-in in the place of torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from tests import command_line

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30

TORCH = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("stand_in", {str(ROOT / "tests/runners/meters/cuda_stand_in.py")!r})
stand_in = sys.modules["stand_in"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stand_in)
devices = [stand_in.Device(uuid=f"0000000{{index}}-0000-4b7e-9d67-2f5a0c1b9e11") for index in range(2)]
torch = stand_in.Torch(*devices)
_C, cuda, version, __version__ = torch._C, torch.cuda, torch.version, torch.__version__
OutOfMemoryError = stand_in.OutOfMemoryError
class Tensor:
    def add_(self, _): return self
def ones(_): return Tensor()
def get_num_threads(): return 1
"""
WORKLOAD = """
import os, torch
def run(batch, device, phase):
    first, second = torch.devices
    with phase("load"):
        first.take(2**30)
        second.take(2**30)
    with phase("step"):
        second.take(2 * batch * 2**30)
        if batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB.")
        second.drop(2 * batch * 2**30)
    return {"device": device, "devices": torch.cuda.device_count(), "visible": os.environ["CUDA_VISIBLE_DEVICES"]}
"""


def swept(
    folder: Path, workload: str, words: str, library: str = TORCH, code: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """The points by batch, the phases, and what was printed."""
    (folder / "torch.py").write_text(library)
    (folder / "mywork.py").write_text(workload)
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    words = f"workload=custom workload.target=mywork:run start=warm name=run {words}"
    done = command_line.run(words.split(), folder, environ)
    assert done.returncode == code, done.stdout + done.stderr
    run = folder / "outputs" / "run"
    points = pd.read_parquet(run / "points.parquet").set_index("batch")
    return points, pd.read_parquet(run / "phases.parquet"), done.stdout


@pytest.fixture
def tables(tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    points, phases, _ = swept(tmp_path, WORKLOAD, "batch=1,2 devices=[cuda:0+cuda:1]")
    return points, phases


def test_an_attempt_on_two_devices_sees_both_and_each_has_its_own_row(
    tables: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    points, phases = tables
    assert list(points.status) == ["ok", "oom"]
    assert '"device":"cuda:0"' in points.metrics[1].replace(" ", "")
    assert '"devices":2' in points.metrics[1].replace(" ", "")
    assert "GPU-00000000-0000-4b7e-9d67-2f5a0c1b9e11,GPU-00000001" in points.metrics[1]

    fitting = phases[phases.point_id == points.point_id[1]].set_index(["phase", "phase_device"])
    assert fitting.peak_allocated_bytes["load"].to_dict() == {"cuda:0": GIB, "cuda:1": GIB}
    assert fitting.peak_allocated_bytes["step"].to_dict() == {"cuda:0": GIB, "cuda:1": 3 * GIB}
    assert points.peak_allocated_bytes[1] == 3 * GIB, "the highest of one device, and no sum"

    failing = phases[phases.point_id == points.point_id[2]].set_index(["phase", "phase_device"])
    assert failing.peak_allocated_bytes["step"].to_dict() == {"cuda:0": GIB, "cuda:1": 5 * GIB}
    assert pd.isna(points.needs_at_least_bytes[2]), "which of them refused is not known"


WHAT_NVML_IS_ASKED = """
import os
ASKED = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
"""
REPORTS_IT = """
import os, torch
def run(batch, device, phase):
    return {"import": torch.ASKED, "workload": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")}
"""


def test_a_template_whose_libraries_initialised_the_driver_starts_its_attempts_cold_and_says_so(tmp_path: Path) -> None:
    library = TORCH + WHAT_NVML_IS_ASKED + "torch.cuda.init()\n"
    points, _, printed = swept(tmp_path, REPORTS_IT, "batch=1 devices=[cuda:0]", library)
    assert (points.status[1], points.start[1]) == ("ok", "warm")
    because = "a library initialised the driver as it was imported: torch.cuda is initialised"
    assert points.started_cold_because[1] == because
    assert f"note 1: started cold: {because}\n" in printed
    assert json.loads(points.metrics[1]) == {"import": None, "workload": None}


def test_libraries_that_a_template_imports_count_devices_through_nvml_and_the_workload_does_not(tmp_path: Path) -> None:
    points, _, printed = swept(tmp_path, REPORTS_IT, "batch=1 devices=[cuda:0]", TORCH + WHAT_NVML_IS_ASKED)
    assert json.loads(points.metrics[1]) == {"import": "1", "workload": None}
    assert points.isna().started_cold_because[1]
    assert "cold" not in printed


def test_a_process_that_sees_another_gpu_than_planned_has_a_row_without_figures(tmp_path: Path) -> None:
    """As where the variable that hides GPUs is not the one that the driver reads."""
    another = "ffffffff-0000-4b7e-9d67-2f5a0c1b9e11"
    moved = f"import os\nif os.environ.get('CUDA_VISIBLE_DEVICES'): devices[0].uuid = {another!r}\n"
    points, _, printed = swept(tmp_path, REPORTS_IT, "batch=1 devices=[cuda:0]", TORCH + WHAT_NVML_IS_ASKED + moved, 2)
    assert points.status[1] == "unavailable"
    assert points.error_message[1] == (
        f"cuda:0: this process was given GPU-{another} where GPU-00000000-0000-4b7e-9d67-2f5a0c1b9e11 was planned"
    )
    assert points.filter(regex="^peak_.*_bytes$").isna().all(axis=None)
    assert "was planned" in printed
