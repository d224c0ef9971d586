"""Which points of two runs are the same. Pure.

A point's id is a hash of its settled values, and no version is among them: the same point keeps its id when torch or a
driver changes. A later version of sweeper can know a key that an earlier one did not. Points that differ only in keys
that one of the runs lacks altogether are joined too, and the keys are named. Two runs that share no point because each
has one value of some keys, such as a setting that is on in one of them and off in the other, are joined on the rest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from runners.device import CALCULATED, device_named
from runners.point import canonical
from sweeper.plan import dotted, typed_value
from sweeper.rows import Row
from sweeper.settled_keys import differing

Key = tuple[str, str]  # device and the values of a point, as one text


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The points of two runs. `lacking`: by key that only one of the runs has, the values it has there.

    `apart`: where no point is in both, the keys that have one value in each run, and those values. `joined_without`:
    all the keys that were left out to join points, also those that follow the keys in `apart`.
    """

    pairs: Sequence[tuple[Row, Row]]
    only_in_first: Sequence[Row]
    only_in_second: Sequence[Row]
    lacking: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    apart: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    joined_without: frozenset[str] = frozenset()
    devices: Mapping[str, str] = field(default_factory=dict)  # of the first run, where the second has another name


def matched(first: Sequence[Row], second: Sequence[Row]) -> Matched:
    """Joins rows of points.parquet on the device and the point."""
    renamed = _renamed(first, second)
    there = {(row["device"], row["point_id"]): row for row in second}
    pairs: list[tuple[Row, Row]] = []
    left: list[Row] = []
    for row in first:
        other = there.pop((renamed.get(row["device"], row["device"]), row["point_id"]), None)
        if other is None:
            left.append(row)
        else:
            pairs.append((row, other))
    more, lacking = _by_shared_keys(left, list(there.values()), renamed)
    apart: dict[str, tuple[Any, Any]] = {}
    joined_without = frozenset(lacking)
    if not pairs and not more:
        more, apart, joined_without = _by_other_keys(left, list(there.values()), renamed)
    joined = {id(row) for pair in more for row in pair}
    return Matched(
        pairs=[*pairs, *more],
        only_in_first=[row for row in left if id(row) not in joined],
        only_in_second=[row for row in there.values() if id(row) not in joined],
        lacking=lacking,
        apart=apart,
        joined_without=joined_without,
        devices=renamed,
    )


def _renamed(first: Iterable[Row], second: Iterable[Row]) -> dict[str, str]:
    """Measured devices of the first run by another name in the second, where each run has one of that type only."""

    def by_type(rows: Iterable[Row]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            if row["kind"] != CALCULATED:
                found[device_named(row["device"]).type.value].add(row["device"])
        return found

    here, there = by_type(first), by_type(second)
    return {
        name: other
        for type, names in here.items()
        if len(names) == len(there.get(type, ())) == 1
        for name, other in zip(names, there[type], strict=True)
        if name != other
    }


def _by_shared_keys(
    first: Sequence[Row], second: Sequence[Row], renamed: Mapping[str, str]
) -> tuple[list[tuple[Row, Row]], dict[str, list[Any]]]:
    """Pairs of rows that are equal in every key that both runs have, where only one row of each run is."""
    values = {id(row): dict(dotted(json.loads(row["config"]))) for row in (*first, *second)}
    here = {key for row in first for key in values[id(row)]}
    there = {key for row in second for key in values[id(row)]}
    lacking = here ^ there
    if not first or not second or not lacking:
        return [], {}

    pairs = _alike_without(lacking, first, second, values, renamed)
    used: dict[str, list[Any]] = {}
    for pair in pairs:
        for row in pair:
            for key in sorted(lacking & values[id(row)].keys()):
                known = used.setdefault(key, [])
                if values[id(row)][key] not in known:
                    known.append(values[id(row)][key])
    return pairs, used


def _alike_without(
    left_out: Set[str],
    first: Sequence[Row],
    second: Sequence[Row],
    values: Mapping[int, Mapping[str, Any]],
    renamed: Mapping[str, str],
) -> list[tuple[Row, Row]]:
    """Pairs of rows that are equal in every other key, where only one row of each run is. `values`: by id(row)."""

    def alike(rows: Iterable[Row], names: Mapping[str, str]) -> dict[Key, list[Row]]:
        found: dict[Key, list[Row]] = defaultdict(list)
        for row in rows:
            shared = {key: value for key, value in values[id(row)].items() if key not in left_out}
            found[names.get(row["device"], row["device"]), canonical(shared)].append(row)
        return found

    others = alike(second, {})
    return [
        (rows[0], others[key][0])
        for key, rows in alike(first, renamed).items()
        if len(rows) == 1 and len(others.get(key, ())) == 1
    ]


def _by_other_keys(
    first: Sequence[Row], second: Sequence[Row], renamed: Mapping[str, str]
) -> tuple[list[tuple[Row, Row]], dict[str, tuple[Any, Any]], frozenset[str]]:
    """Pairs of rows that are equal in every key but those that have one value in each run, and another in the other."""
    values = {id(row): dict(dotted(json.loads(row["config"]))) for row in (*first, *second)}
    keys = dict.fromkeys(key for row in (*first, *second) for key in values[id(row)])
    apart: dict[str, tuple[Any, Any]] = {}
    for key in keys:
        one, other = (
            {_text_of(values[id(row)], key): values[id(row)].get(key) for row in run} for run in (first, second)
        )
        if len(one) == len(other) == 1 and one.keys() != other.keys():
            apart[key] = (next(iter(one.values())), next(iter(other.values())))
    pairs = _alike_without(apart.keys(), first, second, values, renamed) if apart else []
    if not pairs:
        return [], {}, frozenset()
    listed = {key for each in differing(row["config"] for pair in pairs for row in pair).values() for key in each}
    named = {key: both for key, both in apart.items() if key.removesuffix(".name") in listed}
    return pairs, named or apart, frozenset(apart)


def _text_of(values: Mapping[str, Any], key: str) -> str | None:
    return canonical(values[key]) if key in values else None


def differences(first: Sequence[Row], second: Sequence[Row]) -> list[str]:
    """What two runs that share no point differ in: the keys that have no value in common, and the devices."""
    found = []
    devices = [sorted({row["device"] for row in rows}) for rows in (first, second)]
    if not set(devices[0]) & set(devices[1]):
        found.append(f"devices {', '.join(devices[0]) or 'none'} and {', '.join(devices[1]) or 'none'}")
    sides = [_values(rows) for rows in (first, second)]
    for key in sorted(sides[0].keys() & sides[1].keys()):
        one, other = sides[0][key], sides[1][key]
        if not one & other and not key.startswith(("model.", "workload.", "inputs.")):
            found.append(f"{key} {_some(one)} and {_some(other)}")
    if not found:  # of the same options
        found = [
            f"{key} {_some(sides[0][key])} and {_some(sides[1][key])}"
            for key in sorted(sides[0].keys() & sides[1].keys())
            if not sides[0][key] & sides[1][key]
        ]
    return found


def _values(rows: Iterable[Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in dotted(json.loads(row["config"])):
            found[key.removesuffix(".name")].add(typed_value(key, value))
    return found


def _some(values: set[str]) -> str:
    ordered = sorted(values, key=lambda text: (len(text), text))
    return ", ".join(ordered[:4]) + (", ..." if len(ordered) > 4 else "")
