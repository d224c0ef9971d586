"""One attempt on two devices, from the command line to the tables, with a stand-in in the place of torch."""

from __future__ import annotations

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


@pytest.fixture
def tables(tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "mywork.py").write_text(WORKLOAD)
    words = "workload=custom workload.target=mywork:run batch=1,2 devices=[cuda:0+cuda:1] start=warm name=both"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = command_line.run(words.split(), tmp_path, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "outputs" / "both"
    points = pd.read_parquet(folder / "points.parquet").set_index("batch")
    return points, pd.read_parquet(folder / "phases.parquet")


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
