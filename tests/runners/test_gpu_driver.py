"""Whether a process has initialised a GPU's driver, so that its forks cannot use the GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import gpu_driver

ROOT = Path(__file__).parents[2]

# The calls of the CUDA driver that are used: every call before cuInit returns CUDA_ERROR_NOT_INITIALIZED.
DRIVER = """
static int ready = 0;
int cuInit(unsigned flags) { ready = 1; return 0; }
int cuDeviceGetCount(int *count) { if (!ready) return 3; *count = 1; return 0; }
"""
ASK = """
import ctypes, sys
from runners import gpu_driver
print(gpu_driver.initialised())
driver = ctypes.CDLL("libcuda.so.1")
print(gpu_driver.initialised())
driver.cuInit(0)
print(gpu_driver.initialised())
"""


def test_a_process_without_a_gpus_library_has_not_initialised_its_driver() -> None:
    assert gpu_driver.initialised() is None


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and /proc")
def test_the_driver_itself_says_whether_any_library_initialised_it(tmp_path: Path) -> None:
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environ = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", ASK], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", "None", "the CUDA driver is initialised"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_an_open_device_file_shows_a_driver_in_use_without_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kfd"
    device.touch()
    monkeypatch.setattr(gpu_driver, "OPEN_FILES", (str(device),))
    assert gpu_driver.initialised() is None
    with device.open():
        assert gpu_driver.initialised() == f"{device} is open"


def test_a_torch_that_initialised_cuda_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[misc]
    assert gpu_driver.initialised() == "torch.cuda is initialised"
