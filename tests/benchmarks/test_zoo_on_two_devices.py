"""How the zoo is compared on a real card (tests/gpu/test_zoo.py), here with the processor in place of the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.zoo import PROGRAMS, TEN, difference, points, reasons


def test_each_of_the_ten_programs_is_one_of_the_zoo() -> None:
    for target in TEN:
        module, entry = target.split(":")
        assert f"def {entry}(" in (PROGRAMS / f"{module.replace('.', '/')}.py").read_text()
    assert len(TEN) == 10


def test_a_program_takes_on_the_processor_what_is_calculated_for_it(tmp_path: Path) -> None:
    target = "graphs.sparse_gcn:main"
    rows = points([target], ["cpu", "sim:cpu"], tmp_path)
    measured, calculated = rows["cpu", target], rows["sim:cpu", target]
    assert (measured["status"], calculated["status"]) == ("ok", "ok")
    assert difference(measured, calculated, "peak_tensor_bytes") <= 0.005
    assert not reasons(calculated)


@pytest.mark.parametrize(("metrics", "apart"), [(None, 0.1), ('{"peak_may_be_higher_by_bytes": 150}', 0.0)])
def test_a_peak_within_the_margin_of_its_row_is_not_apart(metrics: Any, apart: float) -> None:
    assert difference({"peak": 1000}, {"peak": 900, "metrics": metrics}, "peak") == pytest.approx(apart)
    assert difference({"peak": 1000}, {"peak": 1100, "metrics": metrics}, "peak") == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("status", "error", "notes", "says"),
    [
        ("ok", None, None, ""),
        ("ok", None, "[a note]", "[a note]"),
        ("unavailable", "x.py:1", None, "unavailable: x.py:1"),
    ],
)
def test_a_row_says_why_its_peak_may_differ(status: str, error: Any, notes: Any, says: str) -> None:
    row = {"status": status, "error_message": error, "notes": notes, "assumed_bounds": float("nan")}
    assert reasons(row) == says
