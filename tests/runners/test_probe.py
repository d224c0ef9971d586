"""The probe's report: real interpreters, real folders, and a stand-in for torch where a GPU would be needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners import launch_command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the probe."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(python: str, *, devices: bool = False, target: str | None = None) -> dict[str, Any]:
    command = launch_command.command(python, "probe", json.dumps({"devices": devices, "target": target}))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def about(target: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(sys.executable, target=target)["target"]
    return found


# The part of torch that the probe calls, written from PyTorch's documentation of torch.cuda.
STAND_IN = """\
import types
__version__ = "2.13.0+cu128"
version = types.SimpleNamespace(cuda="12.8", hip=None)
def properties(index):
    return types.SimpleNamespace(
        name=f"GPU number {index}", uuid=f"0000000{index}-1111-2222-3333-444444444444",
        total_memory=(index + 1) * 2**34, major=9, minor=0)
class cuda:
    device_count = staticmethod(lambda: 2)
    get_device_properties = staticmethod(properties)
    mem_get_info = staticmethod(lambda index: (2**34 - 2**20, 2**34) if index == 0 else (2**33, 2**35))
    init = staticmethod(lambda: None)
"""


@pytest.fixture
def torch_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Comes before the installed torch, in whichever interpreter is probed."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "torch.py").write_text(STAND_IN)
    return folder / "torch.py"


def test_the_answer_is_one_json_line() -> None:
    request = json.dumps({"devices": False, "target": None})
    command = launch_command.command(sys.executable, "probe", request)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["python"] == ".".join(map(str, sys.version_info[:3]))


def test_torch_is_imported_only_if_devices_are_requested(torch_stand_in: Path) -> None:
    torch_stand_in.write_text("raise SystemExit('imported')")
    assert ask(sys.executable, devices=False)["torch_error"] is None
    assert "SystemExit: imported" in ask(sys.executable, devices=True)["torch_error"]


def test_a_torch_that_cannot_be_imported_is_reported_with_its_root_cause(torch_stand_in: Path) -> None:
    torch_stand_in.write_text(
        "try:\n    raise OSError('libcudart.so.12: cannot open shared object file')\n"
        "except OSError as error:\n    raise ImportError('no backend') from error\n"
    )
    answer = ask(sys.executable, devices=True)
    assert answer["torch"] is None
    assert "libcudart.so.12" in answer["torch_error"]
    assert "\n" not in answer["torch_error"]
    assert answer["gpus"] == []
    assert answer["cpu"]["cores"] >= 1


def test_gpus_are_listed_with_the_number_that_a_process_is_given(torch_stand_in: Path) -> None:
    answer = ask(sys.executable, devices=True)
    assert (answer["backend"], answer["backend_version"], answer["gpus_error"]) == ("cuda", "12.8", None)
    assert answer["gpus"] == [
        {
            "index": 0,
            "name": "GPU number 0",
            "uuid": "GPU-00000000-1111-2222-3333-444444444444",
            "total_bytes": 2**34,
            "idle": True,
            "capability": "9.0",
            "error": None,
        },
        {
            "index": 1,
            "name": "GPU number 1",
            "uuid": "GPU-00000001-1111-2222-3333-444444444444",
            "total_bytes": 2**35,
            "idle": False,
            "capability": "9.0",
            "error": None,
        },
    ]


def test_a_gpu_that_cannot_be_opened_has_its_reason_and_costs_no_other(torch_stand_in: Path) -> None:
    torch_stand_in.write_text(
        STAND_IN.replace(
            "def properties(index):",
            "def properties(index):\n    if index == 0: raise RuntimeError('Unable to determine the device handle')",
        )
    )
    broken, other = ask(sys.executable, devices=True)["gpus"]
    assert (broken["index"], broken["uuid"], broken["total_bytes"]) == (0, None, None)
    assert "Unable to determine the device handle" in broken["error"]
    assert (other["index"], other["name"], other["error"]) == (1, "GPU number 1", None)


def test_gpus_are_counted_as_cuda_counts_them_and_not_as_nvml_does(torch_stand_in: Path) -> None:
    """In MIG mode NVML counts every card, and CUDA gives a process one slice."""
    torch_stand_in.write_text(
        STAND_IN.replace("lambda: 2", "lambda: 1 if cuda.ready else 8").replace(
            "init = staticmethod(lambda: None)",
            "ready = False\n    init = classmethod(lambda c: setattr(c, 'ready', 1))",
        )
    )
    assert [gpu["name"] for gpu in ask(sys.executable, devices=True)["gpus"]] == ["GPU number 0"]


NVML_STAND_IN = """\
import types
class NVMLError(Exception): pass
USED = {"GPU-00000001-1111-2222-3333-444444444444": 2**33, "GPU-00000000-1111-2222-3333-444444444444": 2**20}
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return b"580.126"
def nvmlDeviceGetHandleByUUID(uuid): return USED[uuid]
def nvmlDeviceGetMemoryInfo(handle): return types.SimpleNamespace(used=handle)
"""
# What newer libraries add. Version 2 of the memory's structure counts the driver's own part for itself.
NVML_OF_A_LARGE_CARD = (
    NVML_STAND_IN
    + """\
nvmlMemory_v2 = 2
DRAWING, COMPUTING = {drawing}, {computing}
def nvmlDeviceGetMemoryInfo(handle, version=1):
    reserved = 3 * 2**29
    others = sum(each.usedGpuMemory for each in {{each.pid: each for each in DRAWING + COMPUTING}}.values())
    return types.SimpleNamespace(used=others + (reserved if version == 1 else 0))
def nvmlDeviceGetComputeRunningProcesses(handle): return COMPUTING
def nvmlDeviceGetGraphicsRunningProcesses(handle): return DRAWING
"""
)
NOBODY = "[]"
DISPLAY = "[types.SimpleNamespace(pid=7, usedGpuMemory=5 * 2**28)]"


@pytest.mark.parametrize(
    ("drawing", "computing", "idle"),
    [(NOBODY, NOBODY, True), (DISPLAY, NOBODY, True), (NOBODY, DISPLAY, False), (DISPLAY, DISPLAY, False)],
    ids=["only the driver's reserve", "a display", "a program that computes", "one that does both"],
)
def test_neither_the_drivers_reserve_nor_a_display_makes_a_gpu_busy(
    torch_stand_in: Path, drawing: str, computing: str, idle: bool
) -> None:
    library = NVML_OF_A_LARGE_CARD.replace("{drawing}", drawing).replace("{computing}", computing)
    (torch_stand_in.parent / "pynvml.py").write_text(library.replace("{{", "{").replace("}}", "}"))
    assert [gpu["idle"] for gpu in ask(sys.executable, devices=True)["gpus"]] == [idle, idle]


def test_whether_a_gpu_is_idle_is_matched_by_uuid_and_opens_no_context(torch_stand_in: Path) -> None:
    """NVML numbers the devices in its own way, and does not follow CUDA_VISIBLE_DEVICES."""
    (torch_stand_in.parent / "pynvml.py").write_text(NVML_STAND_IN)
    torch_stand_in.write_text(STAND_IN.replace("mem_get_info", "not_to_be_asked"))
    answer = ask(sys.executable, devices=True)
    assert answer["driver"] == "580.126"
    assert [gpu["idle"] for gpu in answer["gpus"]] == [True, False]


def test_a_failing_driver_library_affects_only_its_own_part_of_the_report(torch_stand_in: Path) -> None:
    (torch_stand_in.parent / "pynvml.py").write_text("def nvmlInit(): raise RuntimeError('driver not loaded')\n")
    answer = ask(sys.executable, devices=True)
    assert answer["driver"] is None
    assert [gpu["idle"] for gpu in answer["gpus"]] == [True, False]


def test_no_gpu_is_explained(torch_stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = STAND_IN.replace("lambda: 2", "lambda: 0")
    torch_stand_in.write_text(none + "    def init(): raise RuntimeError('Found no NVIDIA driver on your system.')\n")
    assert "Found no NVIDIA driver" in ask(sys.executable, devices=True)["gpus_error"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES=''" in ask(sys.executable, devices=True)["gpus_error"]


def test_a_torch_built_for_the_cpu_is_reported_as_such(torch_stand_in: Path) -> None:
    torch_stand_in.write_text(STAND_IN.replace('cuda="12.8"', "cuda=None"))
    answer = ask(sys.executable, devices=True)
    assert (answer["backend"], answer["gpus"]) == ("cpu", [])
    assert "built without CUDA" in answer["gpus_error"]


def test_an_amd_gpu_has_the_serial_number_that_its_driver_takes(torch_stand_in: Path) -> None:
    letters = "-".join(b.hex() for b in (b"1a2b", b"3c", b"4d", b"5e", b"6f7089"))
    stand_in = STAND_IN.replace('cuda="12.8", hip=None', 'cuda=None, hip="6.4"')
    torch_stand_in.write_text(stand_in.replace('f"0000000{index}-1111-2222-3333-444444444444"', f'"{letters}"'))
    answer = ask(sys.executable, devices=True)
    assert answer["backend"] == "hip"
    assert answer["gpus"][0]["uuid"] == "GPU-1a2b3c4d5e6f7089"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_cpu_has_memory_cores_and_phase_peaks() -> None:
    cpu = ask(sys.executable)["cpu"]
    assert 0 < cpu["guard_bytes"] < cpu["available_bytes"] <= cpu["total_bytes"]
    assert cpu["cores"] == len(os.sched_getaffinity(0))
    assert cpu["phase_peaks"] is (cpu["phase_peaks_error"] is None)


def test_a_function_is_found_in_the_current_folder_with_its_parameters(here: Path) -> None:
    (here / "mywork.py").write_text("def run(*, batch, context=8, phase, width=1): ...\ndef all_of(**_): ...\n")
    assert about("mywork:run") == {
        "parameters": ["batch", "context", "phase", "width"],
        "required": ["batch", "phase"],
        "takes_any": False,
        "takes_phase": True,
    }
    assert about("mywork:all_of") == {"parameters": [], "required": [], "takes_any": True, "takes_phase": False}


def test_a_function_is_found_on_pythonpath_and_in_a_class(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mywork.py").write_text("class Work:\n    @staticmethod\n    def run(batch): ...\n")
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    assert about("mywork:Work.run")["parameters"] == ["batch"]


def test_a_standard_module_that_the_folder_shadows_does_not_affect_the_probe(here: Path) -> None:
    (here / "random.py").write_text("raise RuntimeError('mine')")
    (here / "mywork.py").write_text("def run(batch): ...\n")
    assert about("mywork:run")["parameters"] == ["batch"]


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("nomodule:run", "nomodule"),
        ("lacks:run", "not_there"),
        ("trains:run", 'pip install "sweeper[examples]" installs lightning'),
        ("wraps:run", "not_there"),
        ("quits:run", "SystemExit: config"),
        ("torn:run", "torn.py, line 1"),
        ("mywork:nope", "nope"),
        ("mywork:number", "int"),
        ("mywork:later", "async"),
        ("mywork:some", "generator"),
        ("mywork:by_place", "by position only"),
        ("mywork", "module:function"),
        ("mywork:", "module:function"),
    ],
)
def test_a_function_that_cannot_be_used_is_one_line_with_the_root_cause(here: Path, target: str, named: str) -> None:
    (here / "lacks.py").write_text("import not_there\n")
    (here / "wraps.py").write_text(
        "try:\n    import not_there\nexcept ImportError as error:\n    raise RuntimeError('no luck') from error\n"
    )
    (here / "trains.py").write_text("raise ModuleNotFoundError(\"No module named 'lightning'\", name='lightning')\n")
    (here / "quits.py").write_text("raise SystemExit('config')\n")
    (here / "torn.py").write_text("def run(:\n")
    (here / "mywork.py").write_text(
        "number = 1\nasync def later(): ...\ndef some():\n    yield 1\ndef by_place(batch, /): ...\n"
    )
    error = about(target)["error"]
    assert named in error
    assert "\n" not in error


def test_what_a_module_prints_or_leaves_running_does_not_disturb_the_answer(here: Path) -> None:
    (here / "mywork.py").write_text(
        "import os, threading\nprint('hello')\nos.write(1, b'noise')\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "def run(batch): ...\n"
    )
    assert about("mywork:run")["parameters"] == ["batch"]
