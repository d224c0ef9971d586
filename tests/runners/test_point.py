"""A point has one id however it was typed, and an attempt is one folder of known files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.device import Device
from runners.facts import Exit
from runners.point import Attempt, AttemptFolder, Point, canonical, write_aside
from runners.stored_json import Damaged

VALUES: dict[str, Any] = {
    "model": {"name": "tiny-llama", "library": "transformers", "config": {"num_hidden_layers": 8}},
    "workload": {"name": "forward"},
    "dtype": "float32",
    "batch": 2,
    "context": 2048,
    "start": "warm",
    "timeout": None,
    "tensors": True,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def backwards(value: Any) -> Any:
    """The same, with every mapping written from its last key to its first."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_an_id_does_not_depend_on_the_order_of_keys(values: dict[str, Any]) -> None:
    assert Point(values=values).id == Point(values=backwards(values)).id


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_an_id_is_the_same_after_the_point_was_written_and_read(values: dict[str, Any]) -> None:
    assert Point(values=json.loads(json.dumps(values))).id == Point(values=values).id


@pytest.mark.parametrize(
    "changed",
    [
        {"batch": 3},
        {"batch": None},
        {"dtype": "bfloat16"},
        {"timeout": 60},
        {"model": VALUES["model"] | {"config": {"num_hidden_layers": 9}}},
        {"extra": None},
    ],
)
def test_every_value_is_in_the_id(changed: dict[str, Any]) -> None:
    assert Point(values=VALUES | changed).id != Point(values=VALUES).id


def test_an_id_is_the_same_in_every_process() -> None:
    program = f"from runners.point import Point; print(Point(values={VALUES!r}).id)"
    ids = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert ids == {Point(values=VALUES).id}


def test_an_id_is_sixteen_hexadecimal_digits() -> None:
    assert len(Point(values=VALUES).id) == 16
    int(Point(values=VALUES).id, 16)


def test_a_value_that_json_does_not_have_is_refused() -> None:
    for value in (float("nan"), float("inf"), object()):
        with pytest.raises((TypeError, ValueError)):
            canonical({"batch": value})


def test_a_value_is_found_by_its_key_as_it_is_typed() -> None:
    point = Point(values=VALUES)
    assert point["batch"] == 2
    assert point["model.config.num_hidden_layers"] == 8
    assert point["model"] == "tiny-llama", "a group's own name gives its option's name"
    assert point["timeout"] is None
    assert point.get("model.width") is None
    assert point.get("model.width", 7) == 7


@pytest.mark.parametrize("key", ["", "btach", "model.width", "batch.size", "model.name.first"])
def test_a_key_that_the_point_does_not_have_raises(key: str) -> None:
    with pytest.raises(KeyError):
        Point(values=VALUES)[key]


def attempt(**changed: Any) -> Attempt:
    known: dict[str, Any] = {"point": Point(values=VALUES), "device": Device(name="cuda:0+cuda:1"), "number": 2}
    return Attempt(**known | changed)


def test_an_attempt_is_the_same_after_it_was_written_and_read() -> None:
    requested = attempt(
        device=Device(name="cuda:0", uuids=("GPU-8c1d4e3c",)),
        environ={"CUDA_VISIBLE_DEVICES": "GPU-8c1d4e3c", "MALLOC_CONF": None},
        cwd="/somewhere",
        heartbeat=0.05,
        locks=("/tmp/lock",),
        engine="slurm",
    )
    assert Attempt.from_json(json.loads(json.dumps(requested.to_json()))) == requested


def test_an_attempt_takes_its_timeout_and_start_from_its_point() -> None:
    assert attempt().warm
    assert attempt().timeout is None
    assert attempt(point=Point(values={"start": "cold", "timeout": 1.5})).timeout == 1.5
    assert not attempt(point=Point(values={"start": "cold"})).warm


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:0+cuda:1", "sim:h100-80gb", "../../etc", "a b\n", "Cuda:é"])
def test_a_path_contains_only_safe_characters(device: str) -> None:
    name = attempt(device=Device(name=device)).name
    point = Point(values=VALUES)
    assert name.startswith(f"{point.id[:2]}/{point.id}.")
    assert name.endswith(".2")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.+-/")
    assert name.count("/") == 1


def test_attempts_of_one_point_differ_by_device_and_number() -> None:
    names = {
        attempt(device=Device(name=device), number=number).name
        for device in ("cpu", "cuda:0", "cuda:1")
        for number in (1, 2)
    }
    assert len(names) == 6


def test_an_attempt_is_read_back_from_its_folder(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / attempt().name)
    folder.create(attempt())
    assert folder.attempt() == attempt(environ={})
    assert [path.name for path in folder.path.iterdir()] == ["point.json"]


def test_an_attempt_is_made_once(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempt")
    folder.create(attempt())
    with pytest.raises(FileExistsError):
        folder.create(attempt(number=3))
    assert folder.attempt().number == 2


def test_an_attempt_has_settled_once_its_exit_is_written(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempt")
    assert folder.settled() is None
    folder.create(attempt())
    assert folder.settled() is None
    folder.settle(Exit(code=0))
    settled = folder.settled()
    assert settled is not None
    assert settled._replace(checksums=None) == Exit(code=0)
    folder.exit.write_text('{"code": ')
    with pytest.raises(Damaged, match=r"exit\.json cannot be read: it is not valid JSON \(Expecting value at"):
        folder.settled()


def test_an_attempt_has_begun_once_it_left_a_fact_or_its_end(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempt")
    folder.create(attempt())
    folder.journal.touch()
    assert not folder.began()
    folder.journal.write_text("{")
    assert folder.began()
    folder.journal.unlink()
    folder.settle(Exit(lost=True))
    assert folder.began()


def test_everything_an_attempt_left_is_on_the_disk_before_its_exit_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def replace(old: str, new: str, **folders: int) -> None:
        done.append(f"{old} is {new}")
        rename(old, new, **folders)

    folder = AttemptFolder(tmp_path / "group" / "attempt")
    folder.create(attempt())
    folder.journal.write_text("{}")
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    folder.settle(Exit(code=0))
    aside = f"exit.json.{os.getpid()}.tmp"
    assert done == ["point.json", "journal.jsonl", aside, f"{aside} is exit.json", "attempt", "group"]


def test_a_file_that_is_written_aside_is_complete_or_absent(tmp_path: Path) -> None:
    place = tmp_path / "exit.json"
    write_aside(place, {"code": 0})
    with pytest.raises(ValueError, match="Out of range"):
        write_aside(place, {"code": float("nan")})
    assert json.loads(place.read_text()) == {"code": 0, "crc32": zlib.crc32(b'{"code": 0}')}
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


def test_a_folder_that_cannot_be_written_to_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "exit.json"
    place.mkdir()
    with pytest.raises(OSError, match=r"exit\.json"):
        write_aside(place, {"code": 0})
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]
