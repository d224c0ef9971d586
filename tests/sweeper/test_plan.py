"""A plan's own arithmetic: the points of its first batch, and values as a person types them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from runners.point import Point
from sweeper.objective import TOKENS
from sweeper.plan import Plan, PlannedPoint, RunKeys, dotted, typed


class Settler:
    quality_references: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, Any]] = {}

    def settle(self, choice: Mapping[str, Any]) -> Point:
        return Point(values=dict(choice))


def plan(*planned: PlannedPoint) -> Plan:
    run = RunKeys(
        name=None, outputs="outputs", python="python", retry=(), resume="same", stop_after_same_error=0,
        objective=TOKENS, heartbeat=0.2, parallel=False,
    )  # fmt: skip
    return Plan(
        run=run, design="grid", design_options={}, dimensions=(), devices=(), settler=Settler(), command=(),
        first_batch=planned,
    )  # fmt: skip


def test_the_points_of_a_plan_are_those_of_its_first_batch_each_once() -> None:
    one, two = (Point(values={"batch": batch}) for batch in (1, 2))
    again = PlannedPoint(point=Point(values={"batch": 1}), nth=2)
    assert plan(PlannedPoint(point=one), PlannedPoint(point=two), again).points == (one, two)


def test_a_plan_settles_a_choice() -> None:
    assert plan().settle({"batch": 3})["batch"] == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [("half", "half"), (1, "1"), (0.5, "0.5"), (True, "true"), (None, "null"), (math.inf, "inf"), ([1], "[1]")],
)
def test_a_value_is_shown_as_it_is_typed(value: Any, text: str) -> None:
    assert typed(value) == text


def test_nested_values_have_dotted_keys() -> None:
    nested = {"dtype": "float32", "workload": {"method": "lora", "evaluation": {"batch": 1}}, "empty": {}}
    assert dict(dotted(nested)) == {"dtype": "float32", "workload.method": "lora", "workload.evaluation.batch": 1}
    assert dict(dotted({"workload.lr": 1})) == {"workload.lr": 1}
