"""The architectures of conf/model, measured at two values of each dimension, end as docs/architectures.md says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def loaded() -> ModuleType:
    path = ROOT / "docs" / "write_architectures.py"
    spec = importlib.util.spec_from_file_location("write_architectures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["write_architectures"] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


script: Any = loaded()
TABLE = script.PAGE.read_text().partition(script.BEGIN)[2].partition(script.END)[0].split("\n")
WRITTEN = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in TABLE if line.startswith("| `")]


def statuses(rows: list[tuple[str, ...]]) -> dict[tuple[str, str], list[str]]:
    """How the points of each workload ended, by model and dimension."""
    return {(row[0], row[1]): [re.sub(r"[\d,]+ → [\d,]+ KiB", "", cell) for cell in row[3:]] for row in rows}


def test_every_tiny_model_is_in_the_table_and_at_least_25_are() -> None:
    files = {path.stem for path in (ROOT / "conf" / "model").glob("tiny-*.yaml")} - {"tiny-llama"}
    assert {row[0].strip("`") for row in WRITTEN} == files
    assert len(files) >= 25


def test_every_point_of_the_table_fits() -> None:
    for key, ended in statuses(WRITTEN).items():
        assert [each.strip(" ,") for each in ended] in (["ok", "ok", "ok"], ["ok", "ok", ""]), key


@pytest.mark.slow
@pytest.mark.parametrize("group", script.GROUPS)
def test_an_architecture_ends_as_in_the_table_and_grows_with_its_dimensions(tmp_path: Path, group: str) -> None:
    rows = list(script.measured(tmp_path, (group,)))
    written = statuses(WRITTEN)
    for key, ended in statuses([row.cells for row in rows]).items():
        assert ended == written[key], key
    for row in rows:
        for operation, pair in row.by_operation.items():
            where = (row.model, row.key, operation)
            assert all(pair.steps), where
            assert pair.peaks[0] < pair.peaks[1], where
            if not row.key.startswith("model.config.num_") or row.key.endswith("num_frames"):
                assert pair.shapes[0] != pair.shapes[1], where
