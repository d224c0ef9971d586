"""design=levers: what it runs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.device import Card, Device
from runners.outcome import Status
from runners.point import Point
from sweeper.designs.dialogue import Answer
from sweeper.designs.levers import levers
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.plan import Plan
from tests import command_line
from tests.sweeper.designs.test_designs import plan

CARD = Card(name="a card", vendor="nvidia", architecture="sm_75", total_bytes=2**34)
DEVICE = Device(name="sim:t4-16gb", card=CARD)


def training(choice: Any) -> Point:
    """A point as it settles: keys of the workload are nested."""
    values: dict[str, Any] = {"batch": 1, "dtype": "float32", "workload": {"name": "train", "accumulate": 1}}
    for key, value in choice.items():
        if key == "workload.lr" and value < 0:
            raise Mistake(f"workload.lr={value}: must be a number, 0 or more")
        if key.startswith("workload."):
            values["workload"][key.removeprefix("workload.")] = value
        else:
            values[key] = value
    if values["workload"].get("method") != "lora" and "rank" in values["workload"]:
        values["workload"]["rank"] = None
    return Point(values=values)


def run(plan: Plan, fits: Any = lambda point: False) -> list[Point]:
    """The points that the design runs on a card, which refuses those that do not fit."""
    design, found = levers(plan), []
    try:
        (each,) = next(design)
        while True:
            found.append(each.point)
            passed = fits(each.point)
            answer = Answer(
                status=Status.OK if passed else Status.OOM, fits=passed, device=DEVICE, attempt=1, budget_bytes=None,
                used_bytes=None,
            )  # fmt: skip
            (each,) = design.send([answer])
    except StopIteration:
        return found


def test_a_change_that_the_run_or_the_card_cannot_take_is_not_run() -> None:
    swept: dict[str, Any] = {"workload.accumulate": (1, 2), "dtype": ("float32", "bfloat16", "float16")}
    points = run(plan("levers", settle=training, **swept))
    assert [(point["workload.accumulate"], point["dtype"]) for point in points] == [(1, "float32"), (1, "float16")]


def test_a_change_without_effect_is_not_run() -> None:
    swept: dict[str, Any] = {"workload.rank": (8, 4), "workload.method": ("full", "lora")}
    points = run(plan("levers", settle=training, **swept))
    assert [(point["workload.method"], point["workload.rank"]) for point in points] == [
        ("full", None), ("lora", 8), ("lora", 4),
    ]  # fmt: skip


def test_no_point_is_run_twice() -> None:
    swept: dict[str, Any] = {"workload.method": ("full", "lora"), "batch": (4, 2, 1)}
    points = run(plan("levers", settle=training, **swept), lambda point: point["batch"] == 1)
    assert len({point.id for point in points}) == len(points)
    assert points[-1]["workload.method"] == "full"


@pytest.mark.parametrize(
    ("swept", "message"),
    [
        ({}, "give each key that may change several values, the run's own first, as in batch=4,2,1"),
        ({"batch": Interval(1, 8)}, "design=levers lists its values, as in batch=4,2,1"),
        ({"workload.lr": (0.1, -1)}, "workload.lr=-1: must be a number, 0 or more"),
    ],
)
def test_what_cannot_be_planned_is_one_line_before_anything_runs(swept: dict[str, Any], message: str) -> None:
    with pytest.raises(Mistake) as mistake:
        next(levers(plan("levers", settle=training, **swept)))
    assert message in str(mistake.value)


@pytest.mark.slow
def test_a_real_run_adds_lora_and_checkpointing_until_it_fits_and_says_so(tmp_path: Path) -> None:
    """tiny-llama, 15 x 256 tokens: neither checkpointing nor LoRA alone fits, and the batch has no two equal parts."""
    words = ["experiment=training_levers", "model=tiny-llama", "batch=15", "context=256", "dtype=float32"]
    words += ["workload.optimizer=adamw", "start=warm", "devices=[sim:cpu]", "budget=150MiB", "name=added"]
    done = command_line.run([*words, "workload.accumulate=1,2"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "it fits with workload.checkpointing=true workload.method=lora; if any one of these goes back" in done.stdout
    assert "left out: workload.accumulate=2: batch=15 cannot be split into 2 equal parts" in done.stdout
    assert " error" not in done.stdout
    shown = command_line.run(["effects", "outputs/added"], tmp_path).stdout
    assert shown.startswith("LEVERS, ADDED UP UNTIL IT FITS: sim:cpu  tiny-llama  train  float32  batch=15 context=256")
    found = json.loads(command_line.run(["effects", "outputs/added", "--json"], tmp_path).stdout)
    (levers,) = found["added_levers"]
    assert (levers["kind"], levers["fits"]) == ("calculated", True)
    assert levers["changes"] == {"workload.checkpointing": True, "workload.method": "lora"}
    peaks = [levers["run"]["peak_bytes"], *(each["verdict"]["peak_bytes"] for each in levers["trials"] if each["kept"])]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] <= 150 * 2**20 < peaks[-2]
