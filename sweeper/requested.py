"""What was requested of a point: its settled values, with the expression itself where a value follows other keys. Pure.

`workload.params.ckpt=/ckpt/fold_${batch}.pt` settles to another path for each batch, and is one request. Points are
grouped and compared by what was requested: by their settled values such a sweep would be as many groups as batches.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from runners.point import canonical
from sweeper.columns import NAMED, column_of
from sweeper.plan import follows, typed_value
from sweeper.rows import Row

ADAPTER = ("workload.rank", "workload.targets")
LONGEST = 80  # letters of a value in a heading; the tables have all of it

Settings = Mapping[str, Any]  # by dotted key, the values that differ from their defaults or follow other keys


def settings_of(row: Row) -> Settings:
    """The settings of a row of points.parquet."""
    found: Settings = json.loads(row.get("settings") or "{}")
    return found


def follows_in(row: Row, key: str) -> bool:
    """Whether the value of a key follows other keys in this row."""
    return "${" in (row.get("settings") or "") and follows(settings_of(row).get(key))


def value_in(row: Row, key: str) -> Any:
    """The value of a key that has a column, or the expression that it follows."""
    return settings_of(row)[key] if follows_in(row, key) else row.get(column_of(key))


def settings_text(row: Row, but: Collection[str]) -> list[str]:
    """The settings of a row as `key=value`, without the keys that every heading names and those in `but`.

    The rank and the targets of an adapter are among them where they are defaults too: they decide its size.
    """
    settings = dict(settings_of(row))
    workload = json.loads(row.get("config") or "{}").get("workload")
    if isinstance(workload, dict) and workload.get("method") == "lora":
        settings |= {key: workload.get(key.partition(".")[2]) for key in ADAPTER if key not in settings}
    return [
        f"{key}={text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}"
        for key, value in settings.items()
        if key not in NAMED and key not in but
        for text in [typed_value(key, value)]
    ]


def rest_of(row: Row, keys: Iterable[str]) -> str:
    """Everything that was requested of a row's point except these keys, as one text."""
    return _rest(json.loads(row["config"]), settings_of(row) if "${" in (row.get("settings") or "") else {}, keys)


def rest(values: Mapping[str, Any], settings: Settings, keys: Iterable[str]) -> str:
    """Everything that was requested of a point except these keys, as one text. `values`: all that is settled."""
    return _rest(json.loads(canonical(values)), settings, keys)


def _rest(requested: dict[str, Any], settings: Settings, keys: Iterable[str]) -> str:
    for key, value in settings.items():
        if follows(value):
            _group(requested, key)[key.rpartition(".")[2]] = value
    for key in keys:
        _group(requested, key).pop(key.rpartition(".")[2], None)
    return canonical(requested)


def _group(values: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping in which a dotted key has its value; an empty one if there is none."""
    *groups, _ = key.split(".")
    for group in groups:
        inner = values.get(group)
        values = inner if isinstance(inner, dict) else {}
    return values
