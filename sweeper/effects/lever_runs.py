"""What a run with design=levers found, from its rows: the same rule is followed again, with rows as verdicts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.device import Device, device_named
from runners.outcome import Status
from runners.point import Point, canonical
from sweeper.effects.added_levers import AddedLevers, Choice, Verdict, add_levers
from sweeper.effects.levers import SAME_POINT, changed, impossible
from sweeper.plan import Dimension, dotted
from sweeper.requested import rest_of
from sweeper.rows import Row

DESIGN = "levers"
UNFINISHED = (Status.NOT_RUN.value, Status.INTERRUPTED.value, Status.LOST.value)  # the next sweep goes on from there


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverRun:
    """The levers of one run on one device. `row` is the run's own."""

    row: Row
    found: AddedLevers


def lever_runs(rows: Iterable[Row], dimensions: Sequence[Dimension], devices: Mapping[str, Device]) -> list[LeverRun]:
    """For each device and each run of `rows` that starts with the first value of every dimension: what was found.

    `devices`: with their cards, by name.
    """
    values = {dimension.key: list(dimension.values) for dimension in dimensions}
    together: dict[tuple[str, str], list[_Tried]] = {}
    all_tried = [_Tried(row, json.loads(row["config"])) for row in rows]
    following = _following(all_tried, list(values))
    for each in all_tried:
        rest = rest_of(each.row, [*values, *following])
        together.setdefault((each.row["device"], rest), []).append(each)
    found = []
    for (name, _), tried in together.items():
        first = _at({key: choices[0] for key, choices in values.items()}, tried)
        if first is not None:
            device = devices.get(name, device_named(name))
            found.append(LeverRun(row=first.row, found=_followed(values, tried, device)))
    return found


@dataclass(frozen=True, slots=True)
class _Tried:
    row: Row
    config: Mapping[str, Any]

    def differs(self, choice: Choice) -> int | None:
        """The number of keys of a choice that the row has as null, without effect; None if it is another choice."""
        mine = {key: Point(values=self.config).get(key) for key in choice}
        if any(mine[key] is not None and canonical(mine[key]) != canonical(choice[key]) for key in choice):
            return None
        return sum(mine[key] is None and choice[key] is not None for key in choice)


def _following(all_tried: Iterable[_Tried], keys: Sequence[str]) -> set[str]:
    """The workload's keys that are null or not depending on the values of `keys`: those without effect are null."""
    is_null: dict[str, dict[str, set[bool]]] = {}  # by key, by values
    for each in all_tried:
        at = canonical([Point(values=each.config).get(key) for key in keys])
        for key, value in dotted({"workload": each.config.get("workload") or {}}):
            is_null.setdefault(key, {}).setdefault(at, set()).add(value is None)
    decided = {key: by for key, by in is_null.items() if all(len(found) == 1 for found in by.values())}
    return {key for key, by in decided.items() if len({next(iter(found)) for found in by.values()}) > 1}


def _at(choice: Choice, tried: Sequence[_Tried]) -> _Tried | None:
    near = [(differs, each) for each in tried if (differs := each.differs(choice)) is not None]
    return min(near, key=lambda one: one[0], default=(0, None))[1]


def _followed(values: Mapping[str, Sequence[Any]], tried: Sequence[_Tried], device: Device) -> AddedLevers:
    def left_out(before: Choice, choice: Choice) -> str | None:
        row, earlier = _at(choice, tried), _at(before, tried)
        if row is None:
            return None if earlier is None else impossible(_with(earlier.config, choice), device)
        return SAME_POINT if row is earlier else None

    adding = add_levers(values, left_out)
    choice = next(adding)
    while True:
        row = _at(choice, tried)
        try:
            choice = adding.send(None if row is None or row.row["status"] in UNFINISHED else verdict(row.row))
        except StopIteration as end:
            found: AddedLevers = end.value
            return found


def _with(config: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    """A point's values with those of a choice. A group's option has values of its own, which are not known here."""
    return changed(config, {key: value for key, value in choice.items() if not isinstance(config.get(key), Mapping)})


def verdict(row: Row) -> Verdict:
    """How a row ended. A refused point has a complete peak only if it is calculated."""
    deciding = device_named(row["device"]).deciding_counter
    peak = row[f"peak_{deciding}_bytes"] if row["status"] == Status.OK.value else row["unlimited_peak_bytes"]
    message = " ".join((row["error_message"] or "").split())
    because = None if row["fits"] is not None else f"{row['status']}{': ' if message else ''}{message:.120}"
    return Verdict(fits=row["fits"], peak_bytes=peak, because=because)
