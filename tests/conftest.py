from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measuring import Lab

HERE = Path(__file__).parent
# Threads that spin while they wait take a processor from the other worker: tests/runners/models/test_architectures.py
# took 43 s of processor time on a busy machine, and 9 s with this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.pop("COLUMNS", None)  # a width that whatever runs the tests has set: output to a pipe is not wrapped
# The lock of a device lies in the folder for temporary files and is shared by all sweeps of a user. Workers with one
# folder would wait for each other.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    folder = Path(tempfile.gettempdir(), f"sweeper-tests-{os.getuid()}-{worker}")
    folder.mkdir(exist_ok=True)
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lane whose attempts find the faulty workloads."""
    lab = Lab(tmp_path_factory.mktemp("attempts"), HERE / "faults")
    yield lab
    lab.engine.close()
