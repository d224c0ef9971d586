"""Losses of variants that must not change the training, compared with the plain point's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sweeper
from runners.device import device_named
from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.tables.loss_check import Trained, compared, trained
from tests.sweeper.conftest import VALUES

WORKLOAD = {
    "name": "train", "method": "full", "checkpointing": False, "accumulate": 1, "compile": False, "precision": None,
    "optimizer": "adamw", "lr": 0.001, "set_to_none": True, "evaluation": {"batch": None}, "export": None,
}  # fmt: skip


def of(losses: list[Any], device: str = "cpu", workload: dict[str, Any] | None = None, **values: Any) -> Trained:
    point = Point(values=VALUES | {"workload": WORKLOAD | (workload or {})} | values)
    found = trained(device, point, Outcome(status=Status.OK, device=device_named(device), metrics={"losses": losses}))
    assert found is not None
    return found


def test_a_variant_with_equal_losses_is_the_same() -> None:
    plain = of([4.5, 4.25])
    for workload in ({"checkpointing": True}, {"accumulate": 4}, {"compile": True}, {"set_to_none": False}):
        variant = of([4.5, 4.2500001], workload=workload)
        assert variant.alike == plain.alike
        assert compared(variant, plain) == "same"


def test_a_different_loss_is_reported_with_its_step_and_both_values() -> None:
    plain = of([4.5, 4.25])
    assert compared(of([4.5, 4.2], workload={"checkpointing": True}), plain) == (
        f"differs: 4.2 in step 2, 4.25 in {plain.point_id}"
    )
    assert str(compared(of(["nan", 4.25], workload={"accumulate": 2}), plain)).startswith("differs: nan in step 1")
    assert compared(of(["nan"], workload={"accumulate": 2}), of(["nan"])) == "same"


def test_a_training_that_was_refused_memory_and_continued_has_no_losses_to_compare() -> None:
    point = Point(values=VALUES | {"workload": WORKLOAD})
    outcome = Outcome(status=Status.OK, device=device_named("cpu"), metrics={"losses": [4.5]}, handled_refusals=1)
    assert trained("cpu", point, outcome) is None


def test_the_plain_point_is_compared_with_nothing() -> None:
    plain = of([4.5])
    assert plain.is_plain
    assert not of([4.5], workload={"accumulate": 2}).is_plain
    assert compared(plain, plain) is None
    assert compared(plain, None) is None


def test_points_whose_losses_may_differ_are_not_compared() -> None:
    changes: list[dict[str, Any]] = [{}, {"dtype": "bfloat16"}, {"batch": 2}, {"seed": 1}, {"device": "cuda:0"}]
    changes.append({"workload": {"optimizer": "sgd"}})
    assert len({of([4.5], **change).alike for change in changes}) == len(changes)


@pytest.mark.parametrize(
    ("values", "same"), [({}, False), ({"dtype": "bfloat16"}, True), ({"workload": {"precision": "bfloat16"}}, True)]
)
def test_16_bits_have_a_larger_tolerance(values: dict[str, Any], same: bool) -> None:
    workload = values.pop("workload", {})
    plain = of([4.5], workload=workload, **values)
    variant = of([4.51], workload={**workload, "accumulate": 2}, **values)
    assert (compared(variant, plain) == "same") is same


def test_a_row_reports_whether_its_losses_are_those_of_the_plain_point(written: Callable[..., Any]) -> None:
    run = written({"workload.checkpointing": [True, False], "workload.accumulate": [1, 2]})
    losses = {(True, 1): [4.5], (False, 1): [4.5], (False, 2): [4.6]}
    for (checkpointing, accumulate), each in losses.items():
        workload = WORKLOAD | {"checkpointing": checkpointing, "accumulate": accumulate}
        run.passes(run.ask(workload=workload), metrics={"losses": each})
    run.passes(run.ask())
    rows = sweeper.load(run.folder).points.sort_values("order")
    checks = [None if each != each else each for each in rows["loss_check"]]
    assert checks[0] == "same"
    assert checks[1] is None
    assert checks[2].startswith("differs: 4.6 in step 1, 4.5 in ")
    assert checks[3] is None
