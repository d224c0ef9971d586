"""The points of grid, axes and list, and their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runners.point import Point
from sweeper.designs.registry import DESIGNS
from sweeper.objective import TOKENS
from sweeper.plan import Dimension, Plan, PlannedPoint, RunKeys

RUN = RunKeys(
    name=None, outputs="outputs", python="python", retry=(), resume="same", stop_after_same_error=0,
    objective=TOKENS, heartbeat=0.2, parallel=False,
)  # fmt: skip


@dataclass
class Settler:
    settle: Callable[[Mapping[str, Any]], Point]


def plan(design: str, points: Any = None, settle: Any = None, **values: tuple[Any, ...]) -> Plan:
    return Plan(
        run=RUN,
        design=design,
        design_options={"points": points or []},
        dimensions=tuple(Dimension(key=key, values=each) for key, each in values.items()),
        devices=(),
        settler=Settler(settle or (lambda choice: Point(values=dict(choice)))),
        command=(),
    )


def planned(plan: Plan) -> list[PlannedPoint]:
    """All points of a design that does not depend on outcomes."""
    batches = list(DESIGNS[plan.design](plan))
    assert len(batches) == 1
    return batches[0]


def values(plan: Plan) -> list[tuple[Any, ...]]:
    return [tuple(each.point.values.values()) for each in planned(plan)]


def test_a_grid_turns_at_the_end_of_each_row() -> None:
    assert values(plan("grid", batch=(1, 2, 4), context=(64, 128))) == [
        (1, 64), (1, 128), (2, 128), (2, 64), (4, 64), (4, 128),
    ]  # fmt: skip


def test_a_grid_keeps_the_values_in_the_order_they_were_typed() -> None:
    assert values(plan("grid", batch=(16, 32, 8))) == [(16,), (32,), (8,)]


def test_a_grid_without_dimensions_is_one_point() -> None:
    assert len(planned(plan("grid"))) == 1


lengths = st.lists(st.integers(1, 4), max_size=4)


@given(lengths)
def test_each_point_of_a_grid_is_one_step_in_one_dimension_from_the_one_before(lengths: list[int]) -> None:
    walk = planned(plan("grid", **{f"d{i}": tuple(range(length)) for i, length in enumerate(lengths)}))
    assert len({each.point.id for each in walk}) == len(walk) == math.prod(lengths)
    for before, after in itertools.pairwise(walk):
        moved = [abs(after.point[key] - before.point[key]) for key in after.point.values]
        assert sorted(moved)[-1:] == [1]
        assert sum(moved) == 1
        assert after.changed_from == before.point.id
        assert len(after.changed) == 1


def test_axes_vary_each_dimension_alone_from_the_first_values() -> None:
    star = plan("axes", batch=(1, 2), context=(64, 128))
    assert values(star) == [(1, 64), (2, 64), (1, 128)]
    first, _, third = planned(star)
    assert third.changed_from == first.point.id
    assert third.changed == ("context",)


def test_a_list_keeps_its_order() -> None:
    points = [{"batch": 4, "context": 64}, {"batch": 1, "context": 64}, {"batch": 1, "context": 8}]
    walk = planned(plan("list", points, batch=(4, 1), context=(64, 8)))
    assert [each.point.values for each in walk] == points
    assert [each.changed for each in walk] == [(), ("batch",), ("context",)]


def test_the_neighbour_differs_in_the_fewest_dimensions() -> None:
    points = [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 1, "c": 3}]
    first, second, third = planned(plan("list", points, a=(1, 2), b=(1, 2), c=(1, 2, 3)))
    assert (first.changed_from, first.changed) == (None, ())
    assert (second.changed_from, second.changed) == (first.point.id, ("a", "b", "c"))
    assert (third.changed_from, third.changed) == (first.point.id, ("c",))


def test_values_that_settle_to_one_point_are_run_once() -> None:
    def settle(choice: Mapping[str, Any]) -> Point:
        return Point(values={"dtype": {"half": "float16"}.get(choice["dtype"], choice["dtype"])})

    assert values(plan("grid", settle=settle, dtype=("half", "float32", "float16"))) == [("float16",), ("float32",)]
