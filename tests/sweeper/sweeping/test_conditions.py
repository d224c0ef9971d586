"""The environment variables and locks that a measured process is started with."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from runners.device import Card, Device
from runners.point import Point
from sweeper.errors import Mistake
from sweeper.planning.schema import REFUSED_VARIABLES
from sweeper.sweeping import conditions
from sweeper.sweeping.conditions import check_libraries, check_locks, environ_of, locks_of
from sweeper.sweeping.recall import Fingerprint

CARD = Card(name="H100", vendor="nvidia", architecture="sm_90", total_bytes=2**36)
CPU, SIM = Device(name="cpu"), Device(name="sim:h100", card=CARD)
PAIR = Device(name="cuda:0+cuda:1", uuids=("GPU-1", "GPU-2"))


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    visible = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    for name in (*visible, "OMP_WAIT_POLICY", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("device", "visible"), [(CPU, ""), (SIM, ""), (PAIR, "GPU-1,GPU-2")])
def test_a_process_sees_only_the_gpus_of_its_device(device: Device, visible: str) -> None:
    assert environ_of(Point(values={}), device)["CUDA_VISIBLE_DEVICES"] == visible


def visible(device: Device) -> dict[str, str | None]:
    environ = environ_of(Point(values={}), device)
    return {name: value for name, value in environ.items() if name.endswith("_VISIBLE_DEVICES")}


def test_without_uuids_a_process_sees_its_gpus_by_index_within_the_list_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Device(name="cuda:0+cuda:2", backend="cuda")
    assert visible(pair) == {"CUDA_VISIBLE_DEVICES": "0,2"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 6,7")
    assert visible(pair) == {"CUDA_VISIBLE_DEVICES": "5,7"}


def test_on_rocm_a_process_sees_its_gpus_by_the_variable_that_hip_reads_first(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Device(name="cuda:1", uuids=("GPU-9dde9f5371cebd1a",), backend="hip")
    assert visible(second) == {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": None}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert visible(second) == {"HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": None}
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,3")
    assert visible(second) == {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": None}


def test_where_there_are_amd_gpus_they_are_hidden_from_the_cpu_by_their_own_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(conditions, "AMD_DRIVER", tmp_path)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    assert visible(CPU) == visible(SIM) == {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}


def test_the_repeatable_allocator_and_a_warm_start_set_variables_of_their_own() -> None:
    assert environ_of(Point(values={}), CPU).keys() == {"CUDA_VISIBLE_DEVICES", "OMP_WAIT_POLICY"}
    repeatable = environ_of(Point(values={"allocator": "repeatable"}), CPU)
    assert {"MALLOC_MMAP_THRESHOLD_", "MKL_ENABLE_INSTRUCTIONS"} <= repeatable.keys()
    assert environ_of(Point(values={"start": "warm"}), CPU)["OPENBLAS_NUM_THREADS"] == "1"


def test_no_variable_that_is_set_here_can_be_set_by_a_key() -> None:
    point = Point(values={"allocator": "repeatable", "start": "warm"})
    assert environ_of(point, CPU).keys() | environ_of(point, PAIR).keys() <= REFUSED_VARIABLES.keys()


def test_the_variables_of_a_point_are_set_and_removed() -> None:
    environ = environ_of(Point(values={"env": {"MALLOC_ARENA_MAX": "1", "HOME": None}}), CPU)
    assert (environ["MALLOC_ARENA_MAX"], environ["HOME"]) == ("1", None)
    assert "CUDA_VISIBLE_DEVICES" in environ


def test_a_variable_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "OMP_WAIT_POLICY" not in environ_of(Point(values={}), CPU)


def test_a_device_has_a_lock_for_each_of_its_parts_and_a_calculated_one_has_none() -> None:
    assert locks_of(SIM) == ()
    assert [path.rpartition("/")[2] for path in locks_of(PAIR)] == ["GPU-1.lock", "GPU-2.lock"]
    assert [path.rpartition("/")[2] for path in locks_of(Device(name="cuda:0+cuda:1"))] == [
        "cuda-0.lock",
        "cuda-1.lock",
    ]


def test_locks_elsewhere_than_usual_are_reported_and_one_that_leads_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    reported: list[str] = []
    check_locks([SIM], reported.append)
    assert list(tmp_path.iterdir()) == []
    check_locks([CPU, SIM, PAIR], reported.append)
    usual = tmp_path / f"sweeper-{os.geteuid()}"
    assert {path.name for path in usual.iterdir()} == {"cpu.lock", "GPU-1.lock", "GPU-2.lock"}
    assert reported == []
    (usual / "cpu.lock").unlink()
    (usual / "cpu.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(Mistake, match=f"TMPDIR={tmp_path}: {usual}/cpu.lock cannot be locked: it is a symbolic link"):
        check_locks([CPU], reported.append)
    assert not (tmp_path / "victim").exists()
    usual.rename(tmp_path / "moved")
    usual.touch()
    check_locks([CPU], reported.append)
    (line,) = reported
    assert line.startswith(f"{usual} is a file; the locks of devices are in {usual}-")


def _points(*models: str) -> list[Point]:
    built_with = {"mlp": "torch"}
    return [
        Point(values={"model": {"name": name, "library": built_with.get(name, "transformers")}, "workload": {}})
        for name in models
    ]


INSTALL = 'pip install "sweeper[models]"'
WITHOUT = Fingerprint(identity={}, code={}, missing=["transformers"], install=INSTALL)


def test_a_library_that_every_point_needs_is_a_mistake_with_its_installation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Mistake) as refused:
        check_libraries(_points("tiny-llama", "tiny-llama"), WITHOUT, print)
    cure = f"transformers is not installed; to install: {INSTALL}; model=mlp needs torch alone"
    assert str(refused.value) == f"model=tiny-llama: {cure}"
    assert capsys.readouterr().out == ""


def test_a_library_that_some_points_need_is_reported_once_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_libraries(_points("tiny-llama", "mlp", "mlp"), WITHOUT, print)
    why = "model=tiny-llama: transformers is not installed, so 1 of 3 points cannot be measured"
    assert capsys.readouterr().out == f"{why}; to install: {INSTALL}\n"
    check_libraries(_points("mlp"), WITHOUT, print)
    assert capsys.readouterr().out == ""


def test_a_machine_without_a_folder_for_temporary_files_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(Mistake, match=r"TMPDIR=.*: No usable temporary directory found in \['/nowhere'\]"):
        check_locks([CPU], print)
