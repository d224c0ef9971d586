"""Tests that need a real device. Without one they are skipped, with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from runners.phases import Unavailable

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def a_device() -> None:
    try:
        from runners.meters import cuda

        cuda.check("cuda:0", 0, "float32")
    except (ImportError, Unavailable) as reason:
        pytest.skip(f"no device to measure: {reason}")


@dataclass(frozen=True)
class Run:
    """One sweep: the exit code of its command, its output and its tables."""

    folder: Path
    code: int
    output: str

    def table(self, name: str) -> pd.DataFrame:
        path = self.folder / f"{name}.parquet"
        assert path.exists(), self.output
        return pd.read_parquet(path)

    @property
    def points(self) -> pd.DataFrame:
        return self.table("points").set_index("batch", drop=False)

    @property
    def phases(self) -> pd.DataFrame:
        return self.table("phases").set_index("phase", drop=False)


@dataclass(frozen=True)
class Command:
    """`python -m sweeper` on a workload of device_workloads.py, in a folder of its own."""

    folder: Path

    def argv(self, target: str, *overrides: str, devices: str = "cuda:0") -> list[str]:
        return [
            *(sys.executable, "-m", "sweeper", f"devices=[{devices}]", "workload=custom"),
            *(f"workload.target=device_workloads:{target}", f"outputs={self.folder}", "name=run"),
            *(() if any(override.startswith("timeout=") for override in overrides) else ("timeout=120",)),
            *overrides,
        ]

    def environ(self, **changed: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, **changed}

    def __call__(self, target: str, *overrides: str, devices: str = "cuda:0", **environ: str) -> Run:
        done = subprocess.run(
            self.argv(target, *overrides, devices=devices),
            cwd=self.folder,
            env=self.environ(**environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Run(self.folder / "run", done.returncode, done.stdout + done.stderr)


@pytest.fixture
def sweep(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="module")
def sweep_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Command]:
    """Run a sweep once for several tests."""
    return lambda name: Command(tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def own_card() -> Callable[[Path], list[str]]:
    """Describe the card found here as `sim:this`, in a folder. Returns the words of a sweep that find it."""

    def described(folder: Path) -> list[str]:
        import torch

        properties = torch.cuda.get_device_properties(0)
        amd = torch.version.hip is not None
        capability = f"sm_{properties.major}{properties.minor}"
        card: dict[str, Any] = {
            "name": properties.name,
            "vendor": "amd" if amd else "nvidia",
            "architecture": properties.gcnArchName.partition(":")[0] if amd else capability,
            "total_bytes": properties.total_memory,
            "context_bytes": 512 * 2**20,
        }
        (folder / "own" / "card").mkdir(parents=True)
        (folder / "own" / "card" / "this.yaml").write_text(json.dumps(card))
        return ["--config-dir", str(folder / "own")]

    return described
