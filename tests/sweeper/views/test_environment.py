"""What the command `environment` says of this machine and of others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sweeper.errors import Mistake
from sweeper.views import environment

STAND_IN = """\
import types
__version__ = "2.13.0+cu128"
version = types.SimpleNamespace(cuda="12.8", hip=None)
class cuda:
    device_count = staticmethod(lambda: 1)
    mem_get_info = staticmethod(lambda index: (2**34, 2**34))
    get_device_properties = staticmethod(lambda index: types.SimpleNamespace(
        name="A GPU", uuid="00000000-1111-2222-3333-444444444444", total_memory=2**34, major=9, minor=0))
"""


def put_torch(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "torch.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert environment.main(arguments) == 0
    return capsys.readouterr().out


def test_every_device_that_is_not_there_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_torch(tmp_path, STAND_IN.replace('cuda="12.8"', "cuda=None"), monkeypatch)
    found = json.loads(said(capsys, "--json"))
    told = {device["device"]: device["unavailable"] for device in found["devices"]}
    assert told["cpu"] is None
    assert "built without CUDA" in told["cuda:0"]
    assert told["sim:CARD"] is None


def test_a_gpu_is_listed_and_called_unproven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_torch(tmp_path, STAND_IN, monkeypatch)
    printed = said(capsys)
    assert "A GPU, 16.00 GiB, idle, GPU-00000000-1111-2222-3333-444444444444" in printed
    assert "allocated, reserved" in printed
    assert environment.CUDA_UNPROVEN in printed


def test_without_torch_nothing_is_offered_and_the_reason_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_torch(tmp_path, "raise ImportError('broken on purpose')", monkeypatch)
    printed = said(capsys)
    assert "broken on purpose" in printed
    assert "for each phase" not in printed


def test_where_nobody_looks_it_is_plain_text_of_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(capsys)
    assert "".join(printed.splitlines()).isprintable()
    assert len(printed.splitlines()) <= 24


def test_an_interpreter_of_the_workloads_own_is_asked_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, f"python={sys.executable}", "--json"))
    assert found["executable"] == sys.executable


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["python=/no/such"], "/no/such"), (["pyton=x"], "pyton=x"), (["python="], "python="), (["--jsn"], "--jsn")],
)
def test_a_mistake_is_one_line(arguments: list[str], named: str) -> None:
    with pytest.raises(Mistake) as refused:
        environment.main(arguments)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
