"""The time that a sweep still takes, from written events and a written clock."""

from __future__ import annotations

from dataclasses import replace

from runners.device import Card, Device
from sweeper.plan import Plan, PlannedPoint
from sweeper.views.time_left import Left, TimeLeft
from tests.sweeper.views.test_progress import plan
from tests.sweeper.views.test_progress import point as a_point


def a_plan(*devices: str, design: str = "grid", parallel: bool = False) -> Plan:
    """`sim:NAME/ARCHITECTURE` is a calculated device."""
    made = plan()
    return replace(made, design=design, run=replace(made.run, parallel=parallel), devices=tuple(map(device, devices)))


def device(name: str) -> Device:
    name, _, architecture = name.partition("/")
    card = Card(name=name, vendor="nvidia", architecture=architecture, total_bytes=2**34) if architecture else None
    return Device(name=name, card=card)


def measure(time_left: TimeLeft, device: str, points: str, seconds: float, start: float = 0.0) -> float:
    """Points one after another, each of which takes so many seconds. Returns the time at the end."""
    for point in points:
        time_left.began(device, point, start)
        start += seconds
        time_left.settled(device, point, start, recalled=False)
    return start


def planned(time_left: TimeLeft, device: str, points: str) -> None:
    for point in points:
        time_left.planned(device, point)


def test_without_a_settled_attempt_nothing_is_known() -> None:
    time_left = TimeLeft(a_plan("cuda:0"))
    planned(time_left, "cuda:0", "abc")
    time_left.began("cuda:0", "a", 0)
    assert time_left.left(10) is None
    time_left.settled("cuda:0", "a", 10, recalled=True)
    assert time_left.left(10) is None


def test_the_pace_is_that_of_settled_attempts_and_the_time_of_the_present_one_counts() -> None:
    time_left = TimeLeft(a_plan("cuda:0"))
    planned(time_left, "cuda:0", "abcd")
    now = measure(time_left, "cuda:0", "a", 30)
    assert time_left.left(now) == Left(90, False)
    time_left.began("cuda:0", "b", now)
    assert time_left.left(now + 12) == Left(78, False)
    assert time_left.left(now + 1000) is None  # longer than all that was expected: nothing is known


def test_the_start_of_a_template_is_left_out_of_the_pace() -> None:
    time_left = TimeLeft(a_plan("cuda:0"))
    planned(time_left, "cuda:0", "abcde")
    now = measure(time_left, "cuda:0", "a", 20)
    assert time_left.left(measure(time_left, "cuda:0", "bc", 2, now)) == Left(4, False)


def test_the_first_of_attempts_that_are_forked_has_no_pace() -> None:
    warm = PlannedPoint(point=a_point(start="warm"))
    time_left = TimeLeft(replace(a_plan("cuda:0"), first_batch=(warm,)))
    planned(time_left, "cuda:0", "abc")
    now = measure(time_left, "cuda:0", "a", 20)
    assert time_left.left(now) is None
    assert time_left.left(measure(time_left, "cuda:0", "b", 2, now)) == Left(2, False)


def test_devices_run_at_the_same_time_and_the_cpu_after_them() -> None:
    time_left = TimeLeft(a_plan("cpu", "cuda:0", "cuda:1"))
    for name in ("cpu", "cuda:0", "cuda:1"):
        planned(time_left, name, "abcd")
    measure(time_left, "cuda:0", "ab", 10)
    measure(time_left, "cuda:1", "ab", 15)
    assert time_left.left(30) == Left(30, True)  # the cpu has no pace yet
    measure(time_left, "cpu", "ab", 5)
    assert time_left.left(30) == Left(40, False)


def test_with_parallel_the_cpu_does_not_wait() -> None:
    time_left = TimeLeft(a_plan("cpu", "cuda:0", parallel=True))
    for name in ("cpu", "cuda:0"):
        planned(time_left, name, "abcd")
        measure(time_left, name, "ab", 10)
    assert time_left.left(20) == Left(20, False)


def test_a_measured_device_waits_for_its_calculated_twin() -> None:
    time_left = TimeLeft(a_plan("sim:a/sm_89", "cuda:0"))
    for name in ("sim:a", "cuda:0"):
        planned(time_left, name, "abcd")
    measure(time_left, "sim:a", "ab", 1)
    measure(time_left, "cuda:0", "ab", 10)
    assert time_left.left(20) == Left(22, False)


def test_a_search_can_take_longer() -> None:
    time_left = TimeLeft(a_plan("cuda:0", design="frontier"))
    planned(time_left, "cuda:0", "abc")
    assert time_left.left(measure(time_left, "cuda:0", "ab", 10)) == Left(10, True)


def test_traces_and_replays_have_a_pace_each() -> None:
    time_left = TimeLeft(a_plan("sim:a/sm_89", "sim:b/sm_89", "sim:c/sm_90"))
    for name in ("sim:a", "sim:b", "sim:c"):
        planned(time_left, name, "abcd")
    now = measure(time_left, "sim:a", "a", 10)  # imports torch
    assert time_left.left(now) is None
    now = measure(time_left, "sim:a", "bc", 2, now)
    assert time_left.left(now) == Left(5 * 2, True)  # how long a replay takes is not known yet
    now = measure(time_left, "sim:b", "a", 0.25, now)
    assert time_left.left(now) == Left(5 * 2 + 3 * 0.25, False)


def test_calculated_points_run_on_as_many_cores_as_they_did() -> None:
    time_left = TimeLeft(a_plan("sim:a/sm_89"))
    planned(time_left, "sim:a", "abcdefgh")
    for first, second, now in (("a", "b", 0.0), ("c", "d", 2.0)):
        for point in (first, second):
            time_left.began("sim:a", point, now)
        for point in (first, second):
            time_left.settled("sim:a", point, now + 2, recalled=False)
    assert time_left.left(4) == Left(4, False)


def test_points_of_a_device_that_was_given_up_take_no_time() -> None:
    time_left = TimeLeft(a_plan("cuda:0"))
    planned(time_left, "cuda:0", "abcd")
    now = measure(time_left, "cuda:0", "ab", 10)
    assert time_left.gave_up("cuda:0") == 2
    assert time_left.left(now) is None
