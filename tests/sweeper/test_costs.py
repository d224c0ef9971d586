from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sweeper.costs import PASSES, SAMPLES, TOKENS, PackageCost, Tariff, Tariffs, cheapest, package_costs

HOUR = Tariff(price_per_hour=Decimal("3.60"))  # 0.001 a second
KEY = ("a", "cuda:0")


def row(**more: Any) -> dict[str, Any]:
    return {
        **{"point_id": "a", "device": "cuda:0", "kind": "measured", "status": "ok", "duration_s": 12.0},
        **{"workload": "train", "batch": 4, "context": 250, "inputs": "synthetic", "quality": None},
        **{"quality_reference": None, "quality_verdict": None, "quality_because": None, "real_tokens": None},
        **more,
    }


def cost_of(point: dict[str, Any], tariff: Tariff = HOUR, **more: Any) -> PackageCost:
    """Of a package of 10,000 tokens with two warm repeats of 1 s each."""
    tariffs = Tariffs(currency="EUR", unit=more.get("unit", TOKENS), amount=10_000, by_device={"cuda:0": tariff})
    return package_costs([point], more.get("attempts", [point]), more.get("repeats", {KEY: (1.0, 2)}), tariffs)[0]


def test_a_package_counts_its_start_and_whole_passes() -> None:
    found = cost_of(row())
    assert (found.starting, found.producing) == (10, 10)  # 12 s less 2 warm repeats; 1,000 tokens a pass
    assert found.cost == Decimal("0.020")
    assert found.per_unit == Decimal("0.000002")
    assert cost_of(row(context=300)).producing == 9  # 8.33 passes of 1,200 tokens


def test_failed_attempts_at_the_same_point_are_paid_for() -> None:
    attempts = [row(status="oom", duration_s=5.0), row(status="oom", duration_s=7.0, point_id="b"), row()]
    found = cost_of(row(), attempts=attempts)
    assert found.failed == 5
    assert found.cost == Decimal("0.025")


def test_costs_that_are_not_compared_keep_the_order_of_the_plan() -> None:
    points = [row(point_id=name) for name in "abcd"]
    for point in points[2:]:  # these two do the same task
        point |= {"quality_reference": "c", "quality_verdict": "same", "quality": 1.0}
    repeats = {(name, "cuda:0"): (seconds, 1) for name, seconds in zip("abcd", (4.0, 1.0, 3.0, 2.0), strict=True)}
    tariffs = Tariffs(currency="EUR", unit=TOKENS, amount=10_000, by_device={"cuda:0": HOUR})
    found = package_costs(points, points, repeats, tariffs)
    assert [each.point_id for each in found] == ["d", "c", "a", "b"]
    assert [each.repeats for each in found] == [1, 1, 1, 1]


def test_the_minimum_and_the_fee_of_a_tariff_count() -> None:
    tariff = Tariff(price_per_hour=Decimal("3.60"), minimum_seconds=Decimal(600), fixed_fee=Decimal("0.50"))
    found = cost_of(row(), tariff)
    assert found.billed_more
    assert found.cost == Decimal("1.10")
    assert not cost_of(row()).billed_more


@pytest.mark.parametrize(
    ("point", "because"),
    [
        (row(kind="calculated"), "on a calculated device nothing runs, so there are no times"),
        (row(device="cpu"), "no tariff for this device"),
        (row(point_id="b"), "no time of a warm repeat"),
        (row(workload="custom"), "tokens of a pass are not known"),
    ],
)
def test_a_row_without_a_time_a_tariff_or_units_has_no_cost(point: dict[str, Any], because: str) -> None:
    found = cost_of(point)
    assert (found.cost, found.because) == (None, because)


def test_units_are_those_of_a_pass() -> None:
    assert cost_of(row(), unit=SAMPLES).producing == 2500
    assert cost_of(row(), unit=PASSES).producing == 10_000
    assert cost_of(row(real_tokens=500)).producing == 20
    generated = row(workload="generate", **{"workload.new_tokens": 25})
    assert cost_of(generated).producing == 100


def test_costs_are_compared_only_between_rows_of_one_task_whose_quality_is_not_worse() -> None:
    reference = row(quality=0.9, quality_reference="a")
    same = row(point_id="b", quality=0.9, quality_reference="a", quality_verdict="same", duration_s=7.0)
    worse = row(point_id="c", quality=0.1, quality_reference="a", quality_verdict="worse", duration_s=3.0)
    unknown = row(point_id="d", duration_s=2.0, quality_because="random weights")
    points = [reference, same, worse, unknown]
    repeats = {(each["point_id"], "cuda:0"): (1.0, 2) for each in points}
    tariffs = Tariffs(currency="EUR", unit=TOKENS, amount=10_000, by_device={"cuda:0": HOUR})
    found = {each.point_id: each for each in package_costs(points, points, repeats, tariffs)}
    assert [*cheapest(list(found.values())).values()] == [found["b"]]
    assert found["a"].task == found["b"].task
    assert (found["c"].task, found["c"].not_compared) == (None, "quality worse")
    assert (found["d"].task, found["d"].not_compared) == (None, "random weights")


def test_one_row_alone_is_the_cheapest_of_nothing() -> None:
    found = cost_of(row(quality=0.9, quality_reference="a"))
    assert found.task is not None
    assert cheapest([found]) == {}
