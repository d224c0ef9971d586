"""The command that runs the point of a row again. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.columns import NAMED
from sweeper.plan import typed
from sweeper.requested import settings_of
from sweeper.rows import Row

SIZE = ("batch", "context")
FOLDERS = ("-cd", "--config-dir")
KEPT = ("python", "hydra.searchpath")  # overrides of the sweep that decide what runs, and are in no point
PLAIN = re.compile(r"[A-Za-z0-9_./@%+-]+(:[A-Za-z0-9_./@%+-]+)*")  # what Hydra's grammar takes without quotes
READ_AS_OTHER = re.compile(r"(?i)true|false|null|nan|[+-]?inf|[+-]?[0-9_.]+(e[+-]?[0-9]+)?")


def command_again(row: Row, typed_before: Sequence[str] = ()) -> str:
    """`sweeper 'devices=[cpu]' model=mlp batch=4 ...`: one line for a shell, which plans this one point.

    `typed_before`: the arguments of the run's sweep, for the folder of options that they name.
    """
    settings = dict(settings_of(row))
    fixed: dict[str, Any] = {key: settings.pop(key, row[key]) for key in (*NAMED, *SIZE) if row.get(key) is not None}
    words = [f"devices=[{row['device']}]", *(_override(key, value) for key, value in (fixed | settings).items())]
    return shlex.join(["sweeper", *_of_sweep(typed_before), *words])


def _of_sweep(words: Sequence[str]) -> list[str]:
    """The words of a sweep that decide where its options and its interpreter are."""
    found: list[str] = []
    for place, word in enumerate(words):
        if word in FOLDERS:
            found += words[place : place + 2]
        elif word.startswith(tuple(f"{flag}=" for flag in FOLDERS)) or word.partition("=")[0] in KEPT:
            found.append(word)
    return found


def _override(key: str, value: Any) -> str:
    return f"{key}={_written(value)}"


def _written(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and not READ_AS_OTHER.fullmatch(value) else _quoted(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_written(str(key))}:{_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_written, value)) + "]"
    return typed(value)


def _quoted(text: str) -> str:
    """In Hydra's grammar, where a backslash counts as one only before a quote or another one that does."""
    return "'" + re.sub(r"(\\*)('|$)", lambda run: run[1] * 2 + run[2].replace("'", "\\'"), text) + "'"
