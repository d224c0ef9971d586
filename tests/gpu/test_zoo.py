"""Ten programs of the zoo, measured on this card and calculated for it. Run by `make test-gpu`, or alone:

python -m pytest -m gpu tests/gpu/test_zoo.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.zoo import TEN, difference, missing, points

pytestmark = pytest.mark.gpu

TOLERANCES = {"peak_allocated_bytes": 0.02, "peak_reserved_bytes": 0.05}


@pytest.fixture(scope="module")
def rows(own_card: Callable[[Path], list[str]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("zoo")
    targets = [target for target in TEN if not missing(target)]
    return points(targets, ["cuda:0", "sim:this"], folder, *own_card(folder))


@pytest.mark.parametrize("target", TEN)
def test_a_program_takes_what_was_calculated_within_the_range_of_its_row(target: str, request: Any) -> None:
    if absent := missing(target):
        pytest.skip(f"{target} needs {', '.join(absent)}")
    rows = request.getfixturevalue("rows")
    measured, calculated = rows["cuda:0", target], rows["sim:this", target]
    assert measured["status"] == "ok", measured["error_message"]
    assert calculated["status"] == "ok", calculated["error_message"]
    for column, tolerance in TOLERANCES.items():
        apart = difference(measured, calculated, column)
        assert apart <= tolerance, (
            f"{column}: {measured[column]} measured, {calculated[column]} calculated ({apart:.1%} apart)"
        )
