"""The commands of the documents run, their links lead to files, and their tables are complete."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sweeper.views.environment import CUDA_UNPROVEN
from tests import command_line

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "outputs" / "README.md", ROOT / "benchmarks" / "README.md"]
)
README = (ROOT / "README.md").read_text()
WORKLOADS = (ROOT / "docs" / "workloads.md").read_text()
EFFECTS = (ROOT / "docs" / "effects.md").read_text()


PYTHON = re.compile(r"<!-- tested as Python -->\n```python\n(.*?)```", re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: str, mark: str) -> list[str]:
    """The shell blocks of a page that follow a comment with this mark."""
    return re.findall(rf"<!-- {mark} -->\n```sh\n(.*?)```", page, re.DOTALL)


SHOWN = re.findall(
    r"<!-- tested slowly, and shows these lines -->\n```sh\n(.*?)```\n.*?```\n(.*?)```", README, re.DOTALL
)  # a command, and some of the lines that it prints


def run(command: str, folder: Path) -> str:
    """The output of one line of a block, which runs as it stands there, under this interpreter."""
    program, flag, module, *words = shlex.split(command, comments=True)
    assert (program, flag, module) == ("python", "-m", "sweeper")
    done = command_line.run(words, folder, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", blocks(README, "tested"))
def test_the_readmes_commands_run(block: str, tmp_path: Path) -> None:
    for command in block.splitlines():
        run(command, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(README, "tested slowly"))
def test_a_sweep_of_the_readme_ends_with_a_frontier(block: str, tmp_path: Path) -> None:
    for command in block.splitlines():
        assert "largest that fits" in run(command, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_of_the_readme_prints_the_lines_below_it(command: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = run(command.strip(), tmp_path).splitlines()
    assert [line for line in shown.splitlines() if line not in lines] == []
    assert not list(ROOT.glob("*.pt")), "the script's checkpoint is not written"


@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON.search(page.read_text())], ids=named)
def test_the_python_of_a_page_runs_and_makes_a_run(page: Path, tmp_path: Path) -> None:
    (code,) = PYTHON.findall(page.read_text())
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (points,) = tmp_path.glob("outputs/*/points.parquet")
    assert list(pd.read_parquet(points)["status"]) == ["ok", "ok"]


@pytest.mark.slow
def test_one_sweep_over_what_people_try_in_training_leaves_the_loss_unchanged(tmp_path: Path) -> None:
    (block,) = blocks(WORKLOADS, "tested slowly")
    assert "4 points: 4 ok" in run(f"{block} name=tried", tmp_path)
    checks = pd.read_parquet(tmp_path / "outputs/tried/points.parquet")["loss_check"]
    assert (checks.isna().sum(), (checks == "same").sum()) == (1, 3)


@pytest.mark.slow
def test_each_kind_of_cache_holds_the_bytes_of_the_table(tmp_path: Path) -> None:
    (block,) = blocks(WORKLOADS, "tested against the table")
    run(f"{block} name=caches", tmp_path)
    measured = pd.read_parquet(tmp_path / "outputs/caches/phases.parquet").set_index(["point_id", "phase"])
    points = pd.read_parquet(tmp_path / "outputs/caches/points.parquet").set_index("workload.cache")["point_id"]
    rows = re.findall(r"^\| `(dynamic|static|sliding)` ((?:\| [\d,]+ ){5})\|$", WORKLOADS, re.MULTILINE)
    assert len(rows) == 3
    for cache, cells in rows:
        *held, peak = (int(cell.replace(",", "")) for cell in cells.strip("| ").split("|"))
        phases = [measured.loc[(points[cache], f"cold_{name}")] for name in ("prefill", "decode")]
        metrics = [json.loads(phase["metrics"]) for phase in phases]
        assert held == [each[key] for each in metrics for key in ("cache_bytes", "cache_bytes_by_formula")]
        assert phases[1]["peak_tensor_bytes"] == pytest.approx(peak, rel=0.01)


@pytest.mark.slow
def test_the_workload_in_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    (workload,) = re.findall(r"```python\n(# mywork.py.*?)```", WORKLOADS, re.DOTALL)
    (tmp_path / "mywork.py").write_text(workload)
    (block,) = blocks(WORKLOADS, "tested with mywork.py")
    assert "4 points: 4 ok" in run(block, tmp_path)


def test_the_commands_of_the_page_on_effects_run_and_make_a_picture(tmp_path: Path) -> None:
    (block,) = blocks(EFFECTS, "tested")
    *_, last = [run(command, tmp_path) for command in block.splitlines()]
    assert "AT batch=8 context=64 (calculated, outside the measured range)" in last
    assert (tmp_path / "effects.png").stat().st_size > 0


def test_every_sweep_of_the_readme_can_be_planned(tmp_path: Path) -> None:
    """Also those that would measure for too long or need a GPU, but not those that read a file of the user's."""
    commands = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    planned = [line for line in commands if line.startswith("python -m sweeper ") and "mywork" not in line]
    sweeps = [line for line in planned if "=" in line.split()[3]]
    assert len(sweeps) >= 5
    for command in sweeps:
        assert run(command.replace("sweeper ", "sweeper estimate ", 1), tmp_path).startswith("plan: ")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_link_within_the_project_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


def test_the_readme_and_the_command_environment_agree_on_cuda() -> None:
    assert CUDA_UNPROVEN in " ".join(README.split())


def test_the_page_of_columns_is_what_the_schema_declares() -> None:
    spec = importlib.util.spec_from_file_location("write_columns", ROOT / "docs" / "write_columns.py")
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.PAGE.read_text() == writer.page(), "run python docs/write_columns.py"


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named_in_pages = {
        name for page in PAGES for name in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", page.read_text(), re.M)
    }
    assert {first or second for first, second in named_in_pages} <= targets
