"""Every example runs by the command line in its docstring and shows what its docstring claims."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROOT = EXAMPLES.parent


def line_of(example: str) -> str:
    """The command line in the example's docstring."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / example).read_text()))
    assert docstring is not None
    (line,) = re.findall(r"^python -m sweeper .*$", docstring, re.MULTILINE)
    return str(line)


def run(example: str, outputs: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The points in their order, and their phases. start=warm imports torch once for all of them."""
    typed = shlex.split(line_of(example))[1:]
    argv = [sys.executable, *typed, "devices=cpu", "start=warm", "name=example", f"outputs={outputs}"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(argv, cwd=EXAMPLES, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    points = pd.read_parquet(outputs / "example" / "points.parquet").sort_values("order")
    phases = pd.read_parquet(outputs / "example" / "phases.parquet")
    assert list(points.status) == ["ok"] * len(points), points.error_message.to_list()
    return points, phases[phases.phase != "between"].set_index("point_id")


def peaks(points: pd.DataFrame, phases: pd.DataFrame, phase: str, counter: str = "tensor") -> list[int]:
    """Bytes at the highest peak of the phase, one per point."""
    of_phase = phases[phases.phase == phase][f"peak_{counter}_bytes"]
    return [int(of_phase.loc[[point]].max()) for point in points.point_id]


@pytest.mark.slow
def test_a_training_loop_has_its_phases_and_a_larger_batch_has_more_activations(tmp_path: Path) -> None:
    points, phases = run("training_loop.py", tmp_path)
    names = list(dict.fromkeys(phases.phase))
    assert names == ["model_load", "inputs", "forward", "backward", "update"]
    small, large = peaks(points, phases, "backward")
    assert large > small


@pytest.mark.slow
def test_a_trainers_steps_are_phases(tmp_path: Path) -> None:
    points, phases = run("hf_trainer.py", tmp_path)
    first = phases.loc[points.point_id.iloc[0]]
    assert list(zip(first.phase, first.run_index.fillna(-1), strict=True)) == [
        ("model_load", -1), ("step", 0), ("step", 1),
    ]  # fmt: skip
    small, large = peaks(points, phases, "step")
    assert large > small


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason='pip install "sweeper[examples]" brings it')
def test_a_lightning_modules_steps_are_phases(tmp_path: Path) -> None:
    points, phases = run("lightning_module.py", tmp_path)
    first = phases.loc[points.point_id.iloc[0]]
    assert list(first[first.phase == "step"].run_index) == [0, 1]
    small, large = peaks(points, phases, "step")
    assert large > small


@pytest.mark.slow
def test_the_side_of_an_image_is_a_dimension_like_any_other(tmp_path: Path) -> None:
    points, phases = run("image_side.py", tmp_path)
    assert list(points["workload.params.side"]) == [32, 64]
    assert points.context.isna().all()
    small, large = peaks(points, phases, "forward")
    assert large > 2 * small


@pytest.mark.slow
def test_the_nodes_of_a_graph_are_a_dimension_like_any_other(tmp_path: Path) -> None:
    points, phases = run("graph_nodes.py", tmp_path)
    assert list(points["workload.params.nodes"]) == [1000, 4000]
    assert points[["batch", "context"]].isna().all(axis=None)
    small, large = peaks(points, phases, "forward")
    assert large > 2 * small


@pytest.mark.slow
def test_a_program_is_measured_unchanged(tmp_path: Path) -> None:
    """The braces are still placeholders after the shell has removed the quotes."""
    points, phases = run("program.py", tmp_path)
    assert list(phases.phase) == ["run", "run"]
    small, large = points.peak_resident_bytes
    assert large - small > 32 * 2**20


def test_the_page_of_workloads_shows_the_command_that_is_tested() -> None:
    assert line_of("program.py") in (ROOT / "docs" / "workloads.md").read_text().splitlines()


def test_every_example_is_tested_and_listed() -> None:
    listed = re.findall(r"^\| `(\w+\.py)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    tested = re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text())
    tested += re.findall(r'EXAMPLES / "(\w+\.py)"', (ROOT / "tests/sweeper/test_own_script.py").read_text())
    assert sorted(listed) == sorted(tested) == sorted(file.name for file in EXAMPLES.glob("*.py"))
