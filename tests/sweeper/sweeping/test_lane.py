"""The queue in front of a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from runners.device import device_named
from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.plan import PlannedPoint
from sweeper.sweeping.lane import Lane

CPU = device_named("cpu")


def lane() -> Lane:
    def design() -> Iterator[Any]:
        yield []

    return Lane(CPU, design())  # type: ignore[arg-type]


def outcome(status: Status, error: str | None = None, phase: str = "forward") -> Outcome:
    return Outcome(status=status, device=CPU, error_type=error, failed_phase=phase)


KEY_ERROR, INDEX_ERROR = outcome(Status.ERROR, "KeyError"), outcome(Status.ERROR, "IndexError")


def test_the_next_point_is_the_first_that_was_not_taken() -> None:
    queue = lane()
    assert queue.next is None
    queue.take([PlannedPoint(point=Point(values={"batch": batch})) for batch in (1, 2)])
    assert queue.next is queue.batch[0]
    queue.taken += 1
    assert queue.next is queue.batch[1]
    queue.taken += 1
    assert queue.next is None


@pytest.mark.parametrize(
    ("outcomes", "gives_up"),
    [
        ([KEY_ERROR, KEY_ERROR], True),
        ([KEY_ERROR], False),
        ([KEY_ERROR, INDEX_ERROR, INDEX_ERROR], False),
        ([KEY_ERROR, outcome(Status.ERROR, "KeyError", phase="build"), KEY_ERROR], False),
        ([outcome(Status.OK), KEY_ERROR, KEY_ERROR], False),
        ([KEY_ERROR, outcome(Status.OOM), outcome(Status.TIMEOUT), KEY_ERROR], True),
        ([outcome(Status.UNAVAILABLE)] * 3, False),
    ],
)
def test_a_lane_gives_up_if_its_first_outcomes_are_the_same_error(outcomes: list[Outcome], gives_up: bool) -> None:
    queue = lane()
    assert [queue.gives_up(each, limit=2) for each in outcomes][-1] is gives_up


def test_without_a_limit_a_lane_never_gives_up() -> None:
    queue = lane()
    assert not any(queue.gives_up(KEY_ERROR, limit=0) for _ in range(5))
