"""Small runs of the benchmarks meet their targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_small_soak_loses_nothing_and_leaves_nothing() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60, each once" in done.stdout


@pytest.mark.slow
def test_a_table_of_fit_is_timed_with_one_core_and_with_all() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "fit.py"), "--model", "tiny-llama"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert "ratio" in done.stdout, done.stdout + done.stderr
