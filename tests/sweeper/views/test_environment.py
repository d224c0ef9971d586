"""The command `environment`, on this machine and on simulated ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from runners.probe import LIBRARIES
from sweeper import cli
from sweeper.errors import Mistake
from sweeper.views.environment import CUDA_UNPROVEN, as_text, environment

STAND_IN = """\
import types
__version__ = "2.13.0+cu128"
version = types.SimpleNamespace(cuda="12.8", hip=None)
class cuda:
    init = staticmethod(lambda: None)
    device_count = staticmethod(lambda: 1)
    mem_get_info = staticmethod(lambda index: (2**34, 2**34))
    get_device_properties = staticmethod(lambda index: types.SimpleNamespace(
        name="A GPU", uuid="00000000-1111-2222-3333-444444444444", total_memory=2**34, major=9, minor=0))
"""


def put_torch(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "torch.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.run(["environment", *arguments]) == 0
    return capsys.readouterr().out


def test_every_device_that_is_missing_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_torch(tmp_path, STAND_IN.replace('cuda="12.8"', "cuda=None"), monkeypatch)
    found = json.loads(printed(capsys, "--json"))
    reasons = {device["device"]: device["unavailable"] for device in found["devices"]}
    assert reasons["cpu"] is None
    assert "built without CUDA" in reasons["cuda:0"]
    assert reasons["sim:CARD"] is None


def test_a_gpu_is_listed_and_called_unproven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_torch(tmp_path, STAND_IN, monkeypatch)
    text = printed(capsys)
    assert "A GPU, 16.00 GiB, idle, GPU-00000000-1111-2222-3333-444444444444" in text
    assert "allocated, reserved" in text
    assert "".join(text.splitlines()).isprintable()
    assert len(text.splitlines()) <= 24
    assert CUDA_UNPROVEN in text


def test_without_torch_nothing_can_be_measured_and_the_reason_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_torch(tmp_path, "raise ImportError('broken on purpose')", monkeypatch)
    text = printed(capsys)
    assert "broken on purpose" in text
    assert "for each phase" not in text


ANSWER = {
    "executable": sys.executable,
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "torch_error": None,
    "backend": "cpu",
    "backend_version": None,
    "driver": None,
    "libraries": dict.fromkeys(LIBRARIES, "1.0") | {"peft": None, "nvidia-ml-py": None, "amdsmi": None},
    "install": {name: f"pip install {name}" for name in LIBRARIES},
    "gpus": [],
    "gpus_error": "torch was built without CUDA",
    "cpu": {
        "name": "a processor",
        "total_bytes": 2**34,
        "guard_bytes": 2**33,
        "phase_peaks": False,
        "phase_peaks_error": "the kernel refuses the reset",
    },
}


def test_the_text_is_one_screen_of_plain_lines_and_wraps_only_to_a_width() -> None:
    found = environment(ANSWER)
    lines = as_text(found).splitlines()
    assert "".join(lines).isprintable()
    assert len(lines) <= 24
    assert max(map(len, lines)) > 100
    assert max(map(len, as_text({**found, "executable": "python"}, width=60).splitlines()[4:8])) <= 60


def test_a_counter_that_cannot_be_measured_has_its_reason() -> None:
    assert "resident: no peak for each phase: the kernel refuses the reset" in as_text(environment(ANSWER))


def test_a_library_for_a_gpus_driver_is_suggested_only_where_torch_is_built_for_one() -> None:
    def suggested(backend: str) -> set[str]:
        return {each["library"] for each in environment({**ANSWER, "backend": backend})["missing"]}

    assert suggested("cpu") == {"peft"}
    assert suggested("cuda") == {"peft", "nvidia-ml-py"}
    assert suggested("hip") == {"peft", "amdsmi"}


def test_the_interpreter_of_the_workload_is_examined_instead_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    found = json.loads(printed(capsys, f"python={other}", "--json"))
    assert found["executable"] == str(other)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["python=/no/such"], "/no/such"), (["pyton=x"], "pyton=x"), (["python="], "python="), (["--jsn"], "--jsn")],
)
def test_a_mistake_is_one_line(arguments: list[str], named: str) -> None:
    with pytest.raises(Mistake) as refused:
        cli.run(["environment", *arguments])
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
