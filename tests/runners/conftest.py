"""Runs a workload in this process as the measured process does: real phases, a real journal, tracked tensors."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runners.journal import Journal
from runners.meters.cpu import CpuMeter
from runners.phases import Phases

MLP = {"name": "mlp", "library": "torch", "width": 32}
DECODER = {
    "name": "minute",
    "library": "transformers",
    "model_type": "llama",
    "config": {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
TRAIN = {
    "method": "full",
    **dict.fromkeys(("rank", "alpha", "targets", "dropout")),
    "checkpointing": False,
    "precision": None,
    "accumulate": 1,
    "compile": False,
    "optimizer": "adamw",
    "lr": 0.01,
    "max_grad_norm": None,
    "set_to_none": True,
    "evaluation": {"batch": None, "context": None},
    "export": None,
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a workload and its journal."""

    returned: dict[str, Any]
    model: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def phases(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["phase"] != "between"]

    @property
    def names(self) -> list[tuple[str, int | None]]:
        return [(line["phase"], line["run_index"]) for line in self.phases]

    def phase(self, name: str, run_index: int | None = None) -> dict[str, Any]:
        return next(line for line in self.phases if (line["phase"], line["run_index"]) == (name, run_index))

    def tensor(self, name: str, which: str, run_index: int | None = None) -> int:
        counters: dict[str, dict[str, int]] = self.phase(name, run_index)["counters"]["cpu"]
        return counters[which]["tensor"]


def values(name: str = "forward", **changes: Any) -> dict[str, Any]:
    """A point's values, as the plan settles them."""
    keys = {"train": TRAIN}.get(name, {})
    defaults = {
        "model": MLP,
        "workload": {"name": name, **keys, **changes.pop("workload", {})},
        "dtype": "float32",
        "batch": 2,
        "context": 8,
        "warmup": 0,
        "repeats": 1,
        "seed": 0,
        "cache": "keep",
    }
    return defaults | changes


@pytest.fixture
def decoder() -> dict[str, Any]:
    """A decoder of two layers: small enough for a hundred tests."""
    return copy.deepcopy(DECODER)


@pytest.fixture
def settled() -> Callable[..., dict[str, Any]]:
    return values


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    from runners.meters.torch_tensors import TensorTracker  # needs torch, which the other tests here do without

    def measured(name: str = "forward", **changes: Any) -> Run:
        point: Mapping[str, Any] = values(name, **changes)
        module = importlib.import_module(f"runners.workloads.{name}")
        for library in module.imports(point):
            importlib.import_module(library)
        module.prepare(point, "cpu")
        journal = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        tracker = TensorTracker()
        phases = Phases(CpuMeter(tensors=tracker), Journal(journal))
        phases.open()
        with tracker:
            returned = module.run(point, "cpu", phases)
        phases.close(completed=True)
        facts = [json.loads(line) for line in journal.read_text().splitlines()]
        return Run(
            returned=returned,
            model=next((fact["facts"] for fact in facts if fact["kind"] == "model"), {}),
            lines=[fact for fact in facts if fact["kind"] == "ended"],
        )

    return measured
