"""The benchmark of published peaks: extrapolated generations, and units of rows."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow  # half a minute for a benchmark


@pytest.fixture(scope="module")
def published() -> Iterator[ModuleType]:
    path = ROOT / "benchmarks" / "published.py"
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("published", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    for name in ("published", "older_versions"):
        sys.modules.pop(name, None)


def row(published: ModuleType, **given: str) -> Any:
    columns = dict.fromkeys(("id", "notes", "versions", "source_url", "lora_rank", "lora_targets"), "")
    return published.Row(columns | {"checkpointing": "no", "counter": "max_reserved", "gpu": "A100"} | given)


@pytest.mark.parametrize("grown", [True, False], ids=["as tuples", "layer by layer"])
def test_an_extended_trace_has_the_peak_of_a_whole_trace(published: ModuleType, grown: bool) -> None:
    generation = row(
        published, workload="generate", weight_dtype="fp16", batch="3", context="40", new_tokens="30", attention="eager"
    )
    model = yaml.safe_load((ROOT / "conf" / "model" / "tiny-llama.yaml").read_text())
    rules = ("eager_softmax_in_one_kernel", *(("whole_prompt_in_float32", "cache_as_tuples") if grown else ()))

    def calculated(traced: int) -> Any:
        values = published.values_of(generation, model, "generate", new_tokens=traced)
        case = published.Case(values=values, card="a100-80gb", rules=rules, phases=("cold_",), steps=29)
        return published.calculate(case)

    short, whole = calculated(8), calculated(30)
    assert short.failed is whole.failed is None
    assert short.peak == whole.peak


def test_a_rows_notes_override_the_unit_of_its_name(published: ModuleType) -> None:
    figure = {"value_bytes_or_as_printed": "2.5", "unit_as_printed": "GB"}
    assert row(published, **figure).bytes == 2.5e9
    assert row(published, **figure, notes="unit_bytes=1073741824; of the script").bytes == 2.5 * 2**30
