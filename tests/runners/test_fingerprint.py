"""The code and the files that decide whether an earlier attempt at a point can be reused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from runners.fingerprint import LARGEST_CODE, code_names, code_of
from runners.point import Point


def names(**values: Any) -> list[str]:
    return code_names(Point(values={"workload": {"name": "forward"}, **values}))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "judge.py").write_text("def score(): return 1\n")
    (tmp_path / "corpus.txt").write_text("one\n")


@pytest.mark.parametrize("edited", ["judge.py", "corpus.txt"])
def test_an_edited_metric_or_input_file_is_other_code(tmp_path: Path, edited: str) -> None:
    measured = names(quality={"target": "judge:score"}, inputs={"name": "text", "file": "corpus.txt"})
    before = code_of(measured)
    assert code_of(measured) == before
    (tmp_path / edited).write_text("something else\n")
    assert code_of(measured) != before


def test_every_file_of_a_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"a")
    measured = names(inputs={"name": "images", "file": "photos"})
    before = code_of(measured)
    (tmp_path / "photos" / "b.png").write_bytes(b"b")
    assert code_of(measured) != before


def test_a_large_file_is_known_by_its_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"x" * (LARGEST_CODE + 1))
    measured = names(inputs={"name": "text", "file": "corpus.txt"})
    before = code_of(measured)
    os.utime(file, ns=(1, 1))
    assert code_of(measured) != before


def test_a_folder_named_like_a_workload_is_not_taken_for_it(tmp_path: Path) -> None:
    before = code_of(names())
    (tmp_path / "forward").mkdir()
    (tmp_path / "forward" / "x").write_text("x")
    assert code_of(names()) == before
