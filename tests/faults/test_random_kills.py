"""Whatever is killed and whenever, nothing is left running, and the same command completes the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_kills_at_random_moments_leave_nothing_running_and_lose_nothing_that_settled() -> None:
    script = Path(__file__).with_name("random_kills.py")
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # threads do not fork
    killed = subprocess.run([sys.executable, script, "--kills", "22"], capture_output=True, text=True, env=environ)
    assert killed.returncode == 0, killed.stdout + killed.stderr
    assert "22 kills" in killed.stdout
