"""A user's metric, called with the model after all measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

METRICS = """
import torch

def seen(module, **others):
    seen.with_gradients = torch.is_grad_enabled()
    seen.training, seen.others = module.training, others
    return torch.tensor(0.5)

def drawn():
    return torch.rand(()).item()

def too_large():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

def nan():
    return float("nan")

def words():
    return "good"

def broken():
    raise KeyError("data")
"""


@pytest.fixture(autouse=True)
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "measures.py").write_text(METRICS)
    monkeypatch.syspath_prepend(tmp_path / "module")
    yield
    sys.modules.pop("measures", None)


def by(name: str) -> dict[str, Any]:
    return {"target": f"measures:{name}"}


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_it_is_called_last_without_gradients_on_a_model_that_does_not_learn(run: Any, workload: str) -> None:
    result = run(workload, quality=by("seen"))
    assert result.names[-1] == ("quality", None)
    assert result.returned["metrics"]["quality"] == result.phase("quality")["metrics"]["quality"] == 0.5
    seen = sys.modules["measures"].seen
    assert (seen.training, seen.with_gradients) == (False, False)
    assert seen.others == {
        "dtype": "float32", "batch": 2, "context": 8, "seed": 0, "device": "cpu", "tokenizer": None, "processor": None
    }  # fmt: skip


def test_without_a_metric_there_is_no_quality_phase(run: Any) -> None:
    for quality in (None, {"target": None}):
        assert ("quality", None) not in run(quality=quality).names


def test_the_metrics_random_numbers_depend_on_the_seed(run: Any) -> None:
    first, again, other = (run(quality=by("drawn"), seed=seed).returned["metrics"]["quality"] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("name", "message"), [("too_large", "out of memory: CUDA out of memory"), ("nan", "the metric is nan")]
)
def test_a_metric_without_a_number_does_not_affect_the_point(run: Any, name: str, message: str) -> None:
    metrics = run(quality=by(name)).returned["metrics"]
    assert metrics["quality_error"].startswith(message)
    assert "quality" not in metrics


def test_a_metric_that_fails_is_an_error(run: Any) -> None:
    with pytest.raises(KeyError, match="data"):
        run(quality=by("broken"))
    with pytest.raises(TypeError, match=r"quality.target=measures:words: .*one number, not 'good'"):
        run(quality=by("words"))


def test_a_missing_metric_is_reported_before_anything_is_measured(settled: Any) -> None:
    from runners.workloads import forward

    with pytest.raises(AttributeError, match="nothing"):
        forward.prepare(settled(quality=by("nothing")), "cpu")
