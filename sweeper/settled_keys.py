"""The settled keys in which points differ, to name them apart. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runners.point import canonical
from sweeper.plan import dotted

Values = Mapping[str, Any]  # the settled values of a point, by dotted key


def differing(configs: Iterable[str], apart_from: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """For each config (a text as in points.parquet): the keys in which these points differ, with the point's values.

    The options of a group (`model`, `workload`, `inputs`) are named, and another key of a group is listed if points
    with the same name differ in it. A key that is null without effect follows another one (`workload.rank` follows
    `workload.method`) and is left out. A point lacks the keys that its workload or model lacks. `apart_from`: keys that
    are not listed.
    """
    points = {config: dict(dotted(json.loads(config))) for config in dict.fromkeys(configs)}
    every = list(points.values())
    keys = [key for key in dict.fromkeys(key for point in every for key in point) if _differs(key, every)]
    kept = [key for key in keys if all(point.get(key) is not None for point in every)]
    for key in keys:
        others = (*kept, *(other for other in keys if other != key and not _follows(other, key, every)))
        if key not in kept and not any(_follows(key, other, every) for other in others):
            kept.append(key)
    left_out = set(apart_from)
    listed = [key for key in keys if key in kept and key.removesuffix(".name") not in left_out]
    return {
        config: {key.removesuffix(".name"): point[key] for key in listed if key in point}
        for config, point in points.items()
    }


def without_followers(keys: Iterable[str], configs: Iterable[str]) -> list[str]:
    """The keys in which these points differ, without those that follow another one, as `differing` leaves them out."""
    listed = {key for each in differing(configs).values() for key in each}
    return [key for key in keys if any(each == key or each.startswith(f"{key}.") for each in listed)]


def has_key(config: str, key: str) -> bool:
    """Whether the options of a point's groups (`model`, `workload`, `inputs`) have a key below a group.

    A key that they lack is null in the tables too, like one that is null by choice.
    """
    values = dict(dotted(json.loads(config)))
    return "." not in key or any(each == key or each.startswith(f"{key}.") for each in values)


def _differs(key: str, points: Sequence[Values]) -> bool:
    group = f"{key.partition('.')[0]}.name"
    by_name: dict[str, set[str]] = {}
    for point in points:
        name = "" if key == group else canonical(point.get(group))
        by_name.setdefault(name, set()).add(canonical(point.get(key)))
    return any(len(values) > 1 for values in by_name.values())


def _follows(key: str, other: str, points: Sequence[Values]) -> bool:
    """Whether a key has one value at most besides null, and another key of its group decides whether it is null."""
    if key.partition(".")[0] != other.partition(".")[0]:
        return False
    by_other: dict[str, set[str]] = {}
    for point in points:
        by_other.setdefault(canonical(point.get(other)), set()).add(canonical(point.get(key)))
    values = set().union(*by_other.values()) - {"null"}
    return len(values) <= 1 and all(len(found) == 1 for found in by_other.values())
