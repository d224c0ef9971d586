"""Runs sweeps by their command line, with the workloads of wl.py on the path."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sweeper
from tests import command_line

HERE = Path(__file__).parent
MIB = 2**20
# Defaults that a test overrides by naming the key. parallel: no test waits for the cpu lock of another worker's test.
USUAL = {"devices": "[cpu]", "timeout": "60", "start": "warm", "parallel": "true", "name": "case"}


@dataclass(frozen=True)
class Ran:
    """A command that has ended, and the folder of its run if it made one."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def points(self) -> pd.DataFrame:
        return self.table("points").sort_values("order", ignore_index=True)

    def table(self, name: str) -> pd.DataFrame:
        table: pd.DataFrame = getattr(sweeper.load(self.folder), name)
        return table

    def point(self, **values: Any) -> pd.Series[Any]:
        """The one row that has these values."""
        rows = self.points
        for column, value in values.items():
            rows = rows[rows[column] == value]
        assert len(rows) == 1
        return rows.iloc[0]


Sweep = Callable[..., Ran]


def workload(target: str, **params: Any) -> list[str]:
    """The overrides for a workload of wl.py, or for several with commas between."""
    targets = ",".join(f"wl:{name}" for name in target.split(","))
    return [
        "workload=custom",
        f"workload.target={targets}",
        *(f"workload.params.{key}={value}" for key, value in params.items()),
    ]


def with_defaults(words: list[str]) -> list[str]:
    typed = {word.partition("=")[0] for word in words}
    return [*words, *(f"{key}={value}" for key, value in USUAL.items() if key not in typed)]


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "sweeper", *with_defaults(words)]


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}", **variables}


def run(cwd: Path, words: list[str], **variables: str) -> Ran:
    done = command_line.run(with_defaults(words), cwd, environment(**variables))
    name = next((word.partition("=")[2] for word in words if word.startswith("name=")), USUAL["name"])
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr, folder=cwd / "outputs" / name)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """`sweep("batch=1,2", *workload("grows"))` in the test's own folder. Keywords are environment variables."""

    def typed(*words: str, **variables: str) -> Ran:
        return run(tmp_path, list(words), **variables)

    return typed


ENDS = (
    *("grows", "segv", "abort", "exit0", "hard_exit0", "hard_exit137", "exit_str", "partial_then_raise"),
    *("partial_then_oom", "always_oom", "unpicklable", "flood", "untouched", "state_leak"),
)


@pytest.fixture(scope="session")
def every_end(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One sweep over workloads that end at once, each in its own way."""
    return run(tmp_path_factory.mktemp("every_end"), workload(",".join(ENDS)))


@pytest.fixture(scope="session")
def missing(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two points on the cpu and on a GPU that is missing. CUDA_VISIBLE_DEVICES hides one that the machine has."""
    words = ["devices=[cpu,cuda:0]", "model=mlp", "dtype=float32,bfloat16"]
    return run(tmp_path_factory.mktemp("missing"), words, CUDA_VISIBLE_DEVICES="")


def row_of(ran: Ran, target: str) -> pd.Series[Any]:
    return ran.point(**{"workload.target": f"wl:{target}"})


def is_gone(pid: int) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False
