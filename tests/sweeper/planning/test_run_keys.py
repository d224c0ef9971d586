"""How a run is configured, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import Mistake
from sweeper.plan import RunKeys
from sweeper.planning.run_keys import run_keys

CONFIG: dict[str, Any] = {
    "name": None, "outputs": "outputs", "python": None, "retry": [], "resume": "same", "stop_after_same_error": 0,
    "confirm": "edge", "edge": "all", "repeat_points": 1, "margin": {}, "objective": "tokens", "heartbeat": 0.2,
    "parallel": False, "trace": "never",
    "quality": {"target": None, "reference": {}, "tolerance": None, "better": "higher"},
}  # fmt: skip


def run(**values: Any) -> RunKeys:
    return run_keys({**CONFIG, **values})


def refused(**values: Any) -> str:
    with pytest.raises(Mistake) as mistake:
        run(**values)
    assert "\n" not in str(mistake.value)
    return str(mistake.value)


@pytest.mark.parametrize("name", ["bill", "a.b_c-1", "...", "2026"])
def test_a_name_is_letters_digits_and_three_signs(name: str) -> None:
    assert run(name=name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 201])
def test_a_name_that_is_no_folder_name_everywhere_is_refused(name: str) -> None:
    assert refused(name=name).startswith("name=")


def test_statuses_to_retry_are_known_ones() -> None:
    assert run(retry=["oom", "timeout", "oom"]).retry == ("oom", "timeout")
    assert run(retry="error").retry == ("error",)
    assert "ok" not in run(retry=["all"]).retry
    assert "did you mean timeout?" in refused(retry=["timeuot"])


@pytest.mark.parametrize(
    ("key", "value"), [("heartbeat", 0.0), ("stop_after_same_error", -1), ("outputs", ""), ("objective", "a b")]
)
def test_a_run_key_out_of_range_is_refused(key: str, value: Any) -> None:
    assert refused(**{key: value}).startswith(key)


def test_the_measured_interpreter_is_this_one_unless_another_is_named(tmp_path: Path) -> None:
    assert run().python == sys.executable
    link = tmp_path / "python-of-a-venv"
    link.symlink_to(sys.executable)
    assert run(python=str(link)).python == str(link), "a link is not followed: a venv hangs on it"


def test_an_interpreter_can_be_a_name_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mypython").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run(python="mypython").python == str(tmp_path / "mypython")


def test_an_interpreter_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert "neither a file nor a name on PATH" in refused(python=str(tmp_path / "nosuch"))
    assert "is not executable" in refused(python=str(tmp_path / "text"))
    assert "is a folder" in refused(python=str(tmp_path))


def test_how_quality_is_compared_belongs_to_the_run() -> None:
    comparison = {"reference": {"dtype": "float32"}, "tolerance": 0.1, "better": "lower"}
    assert run(quality={"target": "mine:accuracy"} | comparison).quality == comparison
