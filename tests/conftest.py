from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measuring import Lab

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lane whose attempts find the faulty workloads."""
    lab = Lab(tmp_path_factory.mktemp("attempts"), HERE / "faults")
    yield lab
    lab.engine.close()
