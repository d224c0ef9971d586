from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch

STEP = ["forward", "loss", "backward", "step", "zero_grad"]
WEIGHTS = 4 * (2 * 32 * 32 + 2 * 32)  # bytes of the mlp of width 32


@pytest.mark.parametrize(("warmup", "repeats"), [(0, 1), (2, 3)])
def test_every_part_of_a_step_is_a_phase(run: Any, warmup: int, repeats: int) -> None:
    result = run("train", warmup=warmup, repeats=repeats)
    assert result.names == [
        ("model_load", None),
        ("optimizer", None),
        ("inputs", None),
        *[(f"cold_{part}", None) for part in STEP],
        *([("warmup", None)] if warmup else []),
        *[(f"warm_{part}", index) for index in range(repeats) for part in STEP],
    ]
    if warmup:
        assert result.phase("warmup")["iterations"] == warmup


def test_steps_and_tokens_count_the_completed_steps(run: Any) -> None:
    returned = run("train", warmup=2, repeats=3).returned
    assert (returned["steps"], returned["tokens"]) == (6, 6 * 2 * 8)
    assert len(returned["metrics"]["losses"]) == 6


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_model_learns(run: Any, decoder: dict[str, Any], optimizer: str) -> None:
    for model in ({}, {"model": decoder}):
        losses = run("train", warmup=4, workload={"optimizer": optimizer}, **model).returned["metrics"]["losses"]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]


def test_each_loss_is_a_metric_of_its_phase(run: Any, decoder: dict[str, Any]) -> None:
    result = run("train", model=decoder, repeats=2)
    steps = (("cold_loss", None), ("warm_loss", 0), ("warm_loss", 1))
    losses = [result.phase(name, index)["metrics"]["loss"] for name, index in steps]
    assert losses == result.returned["metrics"]["losses"]
    assert losses[0] == pytest.approx(math.log(96), rel=0.05)  # the loss of an untrained model


def test_a_loss_that_is_not_finite_is_text(run: Any) -> None:
    losses = run("train", warmup=8, workload={"optimizer": "sgd", "lr": 1e30}).returned["metrics"]["losses"]
    assert losses[-1] in ("nan", "inf")


def test_gradients_stay_between_steps_only_if_configured(run: Any) -> None:
    freed, held = (
        run("train", workload={"set_to_none": set_to_none}).tensor("warm_zero_grad", "end", 0)
        for set_to_none in (True, False)
    )
    assert held - freed == WEIGHTS


def test_adams_state_appears_in_the_first_step(run: Any) -> None:
    result = run("train")
    assert result.tensor("optimizer", "end") == WEIGHTS
    grown = result.tensor("cold_step", "end") - result.tensor("cold_backward", "end")
    counters = 4 * 64  # the step count of each of four parameters, in a storage of its own
    assert grown == 2 * WEIGHTS + counters
    plain = run("train", workload={"optimizer": "sgd"})
    assert plain.tensor("cold_step", "end") == plain.tensor("cold_backward", "end")


def test_the_output_is_gone_before_the_backward_pass(run: Any, decoder: dict[str, Any]) -> None:
    result = run("train", model=decoder, batch=4, context=64)
    logits = 4 * 4 * 64 * 96
    # The loss leaves its log-softmax, as large as the logits that left with the output, and little more.
    grown = result.tensor("cold_loss", "end") - result.tensor("cold_forward", "end")
    assert 0 <= grown < logits / 10


LORA = {"method": "lora", "rank": 2, "alpha": 4, "targets": ["q_proj"], "dropout": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [
        {},
        {**LORA, "checkpointing": True, "export": "save_pretrained"},
        {"precision": "float16", "accumulate": 2, "max_grad_norm": 1.0, "export": "state_dict"},
        {"optimizer": "adafactor", "checkpointing": True, "evaluation": {"batch": 1, "context": None}},
        {"export": "save_pretrained"},
    ],
)
def test_training_imports_nothing_in_a_measured_phase(
    settled: Any, decoder: dict[str, Any], workload: dict[str, Any]
) -> None:
    code = """
import importlib, json, sys
from contextlib import nullcontext
from runners.phases import Notes
from runners.workloads import train

class Unmeasured:
    def __call__(self, name, run_index=None):
        return nullcontext(Notes())
    def model(self, **facts):
        pass

values = json.loads(sys.argv[1])
for name in train.imports(values):
    importlib.import_module(name)
train.prepare(values, "cpu")
before = set(sys.modules)
train.run(values, "cpu", Unmeasured())
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    point = json.dumps(settled("train", model=decoder, workload=workload))
    done = subprocess.run([sys.executable, "-c", code, point], capture_output=True, text=True, timeout=120, check=True)
    assert len(json.loads(done.stdout)) <= 3, done.stdout


def test_weights_start_alike_and_targets_differ_from_inputs(settled: Any) -> None:
    from runners.models import torch_models

    point = settled("train")
    one, two = (torch_models.build(point, "cpu") for _ in range(2))
    inputs = one.inputs()
    assert all(torch.equal(a, b) for a, b in zip(one.module.parameters(), two.module.parameters(), strict=True))
    assert torch.equal(inputs["x"], two.inputs()["x"])
    assert not torch.equal(inputs["x"], one.targets(inputs))


def test_an_unknown_optimizer_is_named(run: Any) -> None:
    with pytest.raises(ValueError, match=r"workload.optimizer=adamx: it can be adamw, .* or adamw-8bit"):
        run("train", workload={"optimizer": "adamx"})
