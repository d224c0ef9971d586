"""The environment variables and locks that a measured process is started with."""

from __future__ import annotations

import pytest

from runners.device import Card, Device
from runners.point import Point
from sweeper.planning.schema import REFUSED_VARIABLES
from sweeper.sweeping.conditions import environ_of, locks_of

CARD = Card(name="H100", vendor="nvidia", architecture="sm_90", total_bytes=2**36)
CPU, SIM = Device(name="cpu"), Device(name="sim:h100", card=CARD)
PAIR = Device(name="cuda:0+cuda:1", uuids=("GPU-1", "GPU-2"))


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("device", "visible"), [(CPU, ""), (SIM, ""), (PAIR, "GPU-1,GPU-2")])
def test_a_process_sees_only_the_gpus_of_its_device(device: Device, visible: str) -> None:
    assert environ_of(Point(values={}), device)["CUDA_VISIBLE_DEVICES"] == visible


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
