"""The cost of a package of useful units on each measured row, by the user's own tariffs. Pure.

A package is one job: it starts, loads, warms up, and then produces its units at the pace of the warm repeats. The time
of failed attempts at the same point is part of it, since a person pays for it. Money is decimal, and rounded nowhere.

Two costs are compared only where both rows do the same task: the same workload on inputs of the same kind, with a
quality that is the reference's own or not worse (sweeper/quality.py). Without a verdict nothing is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from runners.device import CALCULATED
from runners.outcome import Status
from sweeper.quality import BETTER, SAME
from sweeper.rows import Row

TOKENS, SAMPLES, PASSES = "tokens", "samples", "passes"
UNITS = (TOKENS, SAMPLES, PASSES)
HOUR = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What a device costs: a price an hour, the shortest time that is billed, and fees of every package."""

    price_per_hour: Decimal
    minimum_seconds: Decimal = Decimal(0)
    fixed_fee: Decimal = Decimal(0)

    def cost(self, seconds: Decimal) -> Decimal:
        return self.fixed_fee + self.price_per_hour * max(seconds, self.minimum_seconds) / HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariffs:
    """`amount` useful units of `unit` make a package. `by_device`: names as on the command line."""

    currency: str
    unit: str
    amount: int
    by_device: Mapping[str, Tariff] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageCost:
    """One row's package. The times are seconds; `because` says why there is no cost.

    `task`: rows of one task can be compared; None where the quality has no verdict.
    """

    point_id: str
    device: str
    because: str | None = None
    starting: Decimal = Decimal(0)  # start, loading, first pass, warm-up
    failed: Decimal = Decimal(0)  # earlier attempts at the point that did not pass
    producing: Decimal = Decimal(0)
    repeats: int = 0  # warm ones, of which the pace is the mean
    cost: Decimal | None = None
    per_unit: Decimal | None = None
    billed_more: bool = False  # the minimum is longer than the package
    task: str | None = None
    not_compared: str | None = None

    @property
    def seconds(self) -> Decimal:
        return self.starting + self.failed + self.producing


def package_costs(
    points: Iterable[Row],
    attempts: Iterable[Row],
    repeats: Mapping[tuple[str, str], tuple[float, int]],
    tariffs: Tariffs,
) -> list[PackageCost]:
    """A cost for each point that passed: those of one task together, cheapest first, then those that are compared with
    none, in the order of `points`, since their costs have no order; then those without a cost.

    `attempts`: all of the run. `repeats`: by point and device, the seconds of one warm repeat and their number.
    """
    failed: dict[tuple[str, str], Decimal] = {}
    for row in attempts:
        if row["status"] != Status.OK.value and row["duration_s"] is not None:
            key = (row["point_id"], row["device"])
            failed[key] = failed.get(key, Decimal(0)) + Decimal(str(row["duration_s"]))
    passed = [row for row in points if row["status"] == Status.OK.value]
    found = [_cost(row, failed.get((row["point_id"], row["device"]), Decimal(0)), repeats, tariffs) for row in passed]
    tasks = list(dict.fromkeys(each.task for each in found if each.task is not None))
    place = {task: at for at, task in enumerate(tasks)}

    def order(each: PackageCost) -> tuple[bool, int, Decimal]:
        if each.cost is None or each.task is None:
            return each.cost is None, len(tasks), Decimal(0)
        return False, place[each.task], each.cost

    return sorted(found, key=order)


def _cost(
    row: Row, failed: Decimal, repeats: Mapping[tuple[str, str], tuple[float, int]], tariffs: Tariffs
) -> PackageCost:
    key = (row["point_id"], row["device"])
    tariff, repeat, units = tariffs.by_device.get(row["device"]), repeats.get(key), units_of_a_pass(row, tariffs.unit)
    because = None
    if row["kind"] == CALCULATED:
        because = "on a calculated device nothing runs, so there are no times"
    elif tariff is None:
        because = "no tariff for this device"
    elif repeat is None or row["duration_s"] is None:
        because = "no time of a warm repeat"
    elif not units:
        because = f"{tariffs.unit} of a pass are not known"
    if because is not None or tariff is None or repeat is None or not units:
        return PackageCost(point_id=key[0], device=key[1], because=because)
    seconds, count = Decimal(str(repeat[0])), repeat[1]
    producing = seconds * -(-tariffs.amount // units)  # whole passes
    starting = max(Decimal(0), Decimal(str(row["duration_s"])) - seconds * count)
    cost = tariff.cost(starting + failed + producing)
    task, not_compared = task_of(row)
    return PackageCost(
        point_id=key[0],
        device=key[1],
        starting=starting,
        failed=failed,
        producing=producing,
        repeats=count,
        cost=cost,
        per_unit=cost / tariffs.amount,
        billed_more=tariff.minimum_seconds > starting + failed + producing,
        task=task,
        not_compared=not_compared,
    )


def units_of_a_pass(row: Row, unit: str) -> int | None:
    """The useful units of one pass of a row's workload; None if they are not known.

    Tokens: of training and forward passes batch x context, of text the real ones of a pass; of generation the new ones.
    """
    if unit == PASSES:
        return 1
    batch: int | None = row["batch"]
    if batch is None or unit == SAMPLES:
        return batch
    if row["workload"] == "generate":
        new: int | None = row.get("workload.new_tokens")
        return None if new is None else batch * new * (row.get("workload.prompt_lengths") or 1)
    if row["workload"] not in ("train", "forward"):
        return None  # what a custom workload's tokens are is the user's
    if row.get("real_tokens") is not None:
        real: int = row["real_tokens"]
        return real
    return None if row["context"] is None else batch * row["context"]


def task_of(row: Row) -> tuple[str | None, str | None]:
    """What a row has in common with those it may be compared with, or why it may be compared with none."""
    reference = row.get("quality_reference")
    if reference is None:
        return None, row.get("quality_because") or "no reference of quality was fixed"
    if row["point_id"] != reference and row.get("quality_verdict") not in (SAME, BETTER):
        because = row.get("quality_because")
        verdict = row.get("quality_verdict") or "not assessed"
        return None, f"quality {verdict}" + (f": {because}" if because else "")
    if row.get("quality") is None:
        return None, row.get("quality_because") or "no number of quality"
    return json.dumps([reference, row["workload"], row.get("inputs")]), None


def cheapest(costs: Sequence[PackageCost]) -> dict[str, PackageCost]:
    """By task, the cheapest of at least two rows."""
    tasks: dict[str, list[PackageCost]] = {}
    for each in costs:
        if each.task is not None and each.cost is not None:
            tasks.setdefault(each.task, []).append(each)
    return {task: min(of, key=lambda each: each.cost or 0) for task, of in tasks.items() if len(of) > 1}
