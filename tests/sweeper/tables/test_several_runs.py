"""`sweeper.load([a, b])`: several runs in one set of frames, and the lines of docs/columns.md that do the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sweeper
from sweeper.errors import Mistake
from sweeper.tables.run_tables import Tables
from tests.sweeper.conftest import WrittenRun

Written = Callable[..., WrittenRun]
ROOT = Path(__file__).resolve().parents[3]
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "columns.md").read_text().partition("## Several runs")[2], re.DOTALL
)
EXACT = 2**53 + 1  # no double has it


def run_of(written: Written, name: str, key: str, values: list[Any]) -> WrittenRun:
    """A run that swept a key that no other run has a column for."""
    run = written({key: values}, name=name)
    for value in values:
        group, _, own = key.partition(".")
        point = run.ask(**{group: {"name": "mlp", "library": "torch", own: value}})
        run.passes(point, EXACT)
    Tables(run.folder).write()
    return run


@pytest.fixture
def two(written: Written) -> tuple[Path, Path]:
    before = run_of(written, "before", "model.width", [64, 128])
    return before.folder, run_of(written, "after", "model.depth", [2]).folder


def test_a_column_tells_several_runs_apart(two: tuple[Path, Path]) -> None:
    frames = sweeper.load(two)
    for frame in (frames.points, frames.attempts, frames.phases, frames.frontier):
        assert list(dict.fromkeys(frame["run"])) == ["before", "after"]
    assert len(frames.points) == 3


def test_a_join_with_the_environments_doubles_no_point(two: tuple[Path, Path]) -> None:
    frames = sweeper.load(two)
    assert len(frames.points.merge(frames.environment, on="environment_id")) == 3


def test_a_key_that_only_one_run_swept_is_null_in_the_other(two: tuple[Path, Path]) -> None:
    points = sweeper.load(list(two)).points
    assert points["model.width"].tolist()[:2] == [64, 128]
    assert points["model.width"].isna().tolist() == [False, False, True]
    assert points["model.depth"].isna().tolist() == [True, True, False]


def test_integers_stay_exact_in_columns_with_nulls(two: tuple[Path, Path]) -> None:
    points = sweeper.load(two).points
    assert str(points["model.width"].dtype) == str(points["peak_resident_bytes"].dtype) == "Int64"
    assert points["peak_resident_bytes"].tolist() == [EXACT] * 3


@pytest.mark.parametrize(
    ("first", "second", "united"),
    [([1, 2], [0.5], [1.0, 2.0, 0.5]), ([1, 2], ["1"], ["1", "2", '"1"']), (["a"], [True], ['"a"', "true"])],
)
def test_a_key_with_values_of_different_types_has_one_type(
    written: Written, first: list[Any], second: list[Any], united: list[Any]
) -> None:
    runs = [run_of(written, f"run{at}", "model.width", values) for at, values in enumerate((first, second))]
    assert sweeper.load([run.folder for run in runs]).points["model.width"].tolist() == united


def test_runs_of_one_name_are_told_apart_by_the_folders_above(written: Written, tmp_path: Path) -> None:
    folder = run_of(written, "bill", "model.width", [1]).folder
    other = tmp_path / "elsewhere" / "bill"
    other.parent.mkdir()
    folder.rename(other)
    again = run_of(written, "bill", "model.width", [1]).folder
    assert list(sweeper.load([other, again]).points.run) == ["elsewhere/bill", "outputs/bill"]


def test_no_run_and_one_run_twice_are_mistakes(two: tuple[Path, Path]) -> None:
    with pytest.raises(Mistake, match="at least one run"):
        sweeper.load([])
    with pytest.raises(Mistake, match="is given twice"):
        sweeper.load([two[0], str(two[0])])


def test_a_run_alone_is_what_it_was(two: tuple[Path, Path]) -> None:
    alone, listed = sweeper.load(two[0]).points, sweeper.load([two[0]]).points
    assert alone.equals(listed)
    assert list(alone.columns) == list(listed.columns)


@pytest.mark.parametrize("library", ["sweeper", "pandas", "polars", "duckdb"])
def test_the_lines_of_the_documentation_read_several_runs(
    two: tuple[Path, Path], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.chdir(two[0].parents[1])
    block = next(block for block in BLOCKS if f"import {library}" in block)
    files = next(line for block in BLOCKS for line in block.splitlines() if line.startswith("files = "))
    names: dict[str, Any] = {}
    exec(f"{files}\n{block}", names)
    points = names["points"] if library != "sweeper" else names["frames"].points
    rows = {
        "polars": lambda: points.to_dicts(),
        "duckdb": lambda: [dict(zip(points.columns, row, strict=True)) for row in points.fetchall()],
    }.get(library, lambda: points.astype(object).where(points.notna(), None).to_dict("records"))()
    assert [(row["run"], row["model.width"], row["model.depth"]) for row in rows] == [
        ("before", 64, None),
        ("before", 128, None),
        ("after", None, 2),
    ]
    assert {row["peak_resident_bytes"] for row in rows} == {EXACT}
