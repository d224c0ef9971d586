"""Which keys are advised: each changes the point, and each is accepted where it is typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.device import Device, device_named
from sweeper import cards
from sweeper.effects.levers import changed, impossible, levers_of
from sweeper.views.layout import assignments
from tests import command_line
from tests.sweeper.planning.test_planner import plan

MODEL = {"name": "tiny-llama", "library": "transformers", "model_type": "llama"}
TRAINING: Mapping[str, Any] = {
    "model": MODEL,
    "dtype": "float32",
    "quantize": "none",
    "batch": 4,
    "context": 64,
    "workload": {
        **{"name": "train", "method": "full", "checkpointing": False, "accumulate": 1},
        **{"precision": None, "optimizer": "adamw"},
    },
}
CPU = device_named("cpu")
PARTS = ("fixed costs", "activations", "logits", "cache")


def card(name: str) -> Device:
    return Device(name=f"sim:{name}", card=cards.of_sweeper()[name])


def advised(device: Device, reads_text: bool = True, **changes: Any) -> set[str]:
    """Every lever for any part, as it is typed. `workload__method` stands for `workload.method`."""
    values = changed(TRAINING, {key.replace("__", "."): value for key, value in changes.items()})
    return {assignments(each) for part in PARTS for each in levers_of(part, values, device, reads_text)}


def test_everything_is_advised_where_nothing_is_on() -> None:
    assert advised(CPU) == {
        *("workload.method=lora", "workload.optimizer=sgd", "dtype=bfloat16", "workload.method=lora quantize=nf4"),
        *("workload.checkpointing=true", "workload.accumulate=2", "workload.precision=bfloat16"),
        *("batch=2", "context=32"),
    }


def test_what_is_on_already_is_not_advised() -> None:
    on = {"workload__checkpointing": True, "workload__method": "lora", "dtype": "bfloat16", "quantize": "nf4"}
    assert advised(CPU, **on, workload__accumulate=4, batch=4, context=1) == set()


def test_a_batch_that_cannot_be_split_is_not_accumulated() -> None:
    assert not {each for each in advised(CPU, batch=1) if "accumulate" in each or "batch" in each}
    assert "workload.accumulate=3" in advised(CPU, batch=9)
    assert "batch=3" in advised(CPU, batch=9, workload__accumulate=3)


def test_a_dtype_of_16_bits_is_not_advised_again() -> None:
    for dtype in ("bfloat16", "float16"):
        assert not {each for each in advised(CPU, dtype=dtype) if "dtype" in each or "precision" in each}


def test_a_card_without_bfloat16_is_advised_another_dtype() -> None:
    assert {"dtype=float16", "workload.precision=float16"} <= advised(card("t4-16gb"))
    assert {"dtype=bfloat16", "workload.precision=bfloat16"} <= advised(card("rtx-4090"))
    assert "dtype=float16" in advised(device_named("cuda:0"))  # whether it has bfloat16 is not known
    assert "bfloat16" in str(impossible(changed(TRAINING, {"dtype": "bfloat16"}), card("v100-16gb")))


def test_stored_weights_of_4_bits_are_advised_for_a_calculated_device_too() -> None:
    assert "workload.method=lora quantize=nf4" in advised(card("rtx-4090"))


def test_layers_that_cannot_be_recomputed_or_adapted_are_not_advised_to_be() -> None:
    mlp = advised(CPU, model={"name": "mlp", "library": "torch"})
    assert "workload.checkpointing=true" not in mlp
    assert "workload.method=lora workload.targets=all-linear" in mlp
    mamba = advised(CPU, model={"name": "m", "library": "transformers", "model_type": "mamba2"})
    assert not {each for each in mamba if "lora" in each}


def test_a_context_without_effect_is_not_advised() -> None:
    assert "context=32" not in advised(CPU, reads_text=False)
    assert "context=32" not in advised(CPU, inputs={"name": "long", "of_positions": 1.0})


SETTLED = {
    "training": ("workload=train", "batch=4"),
    "with an adapter": ("workload=train", "batch=4", "workload.method=lora", "dtype=bfloat16"),
    "with microbatches": ("workload=train", "batch=9", "workload.accumulate=3", "workload.checkpointing=true"),
    "other modules": ("workload=train", "model=tiny-gpt2", "inputs=long"),
    "an image model": ("workload=train", "model=tiny-resnet", "batch=2"),
    "state space": ("workload=train", "model=tiny-mamba"),
    "no layers": ("workload=train", "model=mlp", "batch=3"),
    "forward": ("workload=forward", "dtype=float64"),
    "generation": ("workload=generate", "workload.logits=all", "batch=8"),
    "a program": ("workload=command", "workload.argv=[python,-c,pass,'{batch}']", "batch=4"),
}


@pytest.mark.parametrize("device", ["cpu", "sim:t4-16gb"])
@pytest.mark.parametrize("words", SETTLED.values(), ids=SETTLED)
def test_every_advised_change_is_accepted_at_the_end_of_the_command_and_changes_the_point(
    words: tuple[str, ...], device: str
) -> None:
    (point,) = plan(*words).points
    on = device_named(device) if device == "cpu" else card(device.removeprefix("sim:"))
    advised = [each for part in PARTS for each in levers_of(part, point.values, on, reads_text=True)]
    for changes in advised:
        typed = assignments(changes).split(" ")
        keys = {each.partition("=")[0] for each in typed}
        (changed_point,) = plan(*(word for word in words if word.partition("=")[0] not in keys), *typed).points
        assert changed_point.id != point.id
        assert {key: changed_point[key] for key in changes} == changes
        assert impossible(changed_point.values, on) is None


RUNS: list[dict[str, Any]] = [
    {"workload": "train", "model": "tiny-llama", "batch": 2},
    {"workload": "train", "model": "tiny-gpt2"},  # its modules have other names than LoRA's default
    {"workload": "train", "model": "mlp", "batch": 3},
]


def sweep(points: list[dict[str, Any]], name: str, folder: Path) -> dict[str, Any]:
    """What `effects` finds in a run of these points on a calculated card."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\npoints: {json.dumps(points)}\n")
    words = [f"experiment={name}", "context=16", "start=warm", "devices=[sim:rtx-4090]", f"name={name}"]
    done = command_line.run(["--config-dir", str(folder), *words], folder)
    assert f"{len(points)} points: {len(points)} ok" in done.stdout, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(command_line.run(["effects", f"outputs/{name}", "--json"], folder).stdout)
    return found


@pytest.mark.slow
def test_every_advised_change_is_accepted_where_it_is_typed_and_runs(tmp_path: Path) -> None:
    found = sweep(RUNS, "runs", tmp_path)
    assert len(found["families"]) == len(RUNS)
    changed_runs = []
    for run, family in zip(RUNS, found["families"], strict=True):
        parts = family["largest"]["parts"]
        changes = {assignments(each["changes"]): each["changes"] for part in parts for each in part["levers"]}
        assert changes, run
        changed_runs += [{**run, **change} for change in changes.values()]
    sweep(changed_runs, "changed", tmp_path)
