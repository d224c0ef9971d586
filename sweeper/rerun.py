"""The command line that runs one point again. Pure.

It names every key of the point that is off its default, by its settled value, so that it gives the same point wherever
the same options are installed. It names no run: the point is measured again, in a new folder.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runners.point import Point
from sweeper.columns import NAMED
from sweeper.plan import SIZES
from sweeper.plan_lines import PlanLine, PlannedLine, RunLine
from sweeper.requested import settings_of
from sweeper.rows import Row
from sweeper.units import typed_bytes

ALWAYS = (*NAMED, "batch", "context")
# Words of a sweep's command on which its points depend and that are no keys of a point.
KEPT = re.compile(r"(python|hydra\.searchpath)=")
FOLDER_FLAGS = ("-cd", "--config-dir")
# What Hydra's grammar reads as one word, and as text. `word:` would begin a mapping only within braces.
PLAIN = re.compile(r"[A-Za-z_/.][\w/.:@%?|*+-]*")
NO_TEXT = re.compile(r"(null|true|false|nan|inf|[-+]?[\d._]+(e[-+]?\d+)?)", re.IGNORECASE)


def commands(lines: Iterable[PlanLine]) -> dict[str, tuple[str, ...]]:
    """By the id of each planned point: the arguments of the sweep that planned it first."""
    found: dict[str, tuple[str, ...]] = {}
    typed: tuple[str, ...] = ()
    for line in lines:
        if isinstance(line, RunLine):
            typed = line.command
        elif isinstance(line, PlannedLine):
            found.setdefault(line.id, typed)
    return found


def rerun(row: Row, typed: Sequence[str] = ()) -> str:
    """The command that runs a row of points.parquet again. `typed`: the arguments of the sweep that planned it."""
    point = Point(values=json.loads(row["config"]))
    keys = dict.fromkeys((*ALWAYS, *settings_of(row)))
    values = {key: point.get(key) for key in keys}
    words = [f"{key}={_typed(key, value)}" for key, value in values.items() if value is not None or key not in ALWAYS]
    return shlex.join(["sweeper", *_kept(typed), f"devices=[{row['device']}]", *words])


def _typed(key: str, value: Any) -> str:
    return typed_bytes(value) if key in SIZES and isinstance(value, int) else written(value)


def _kept(typed: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(typed):
        is_folder = typed[at - 1] in FOLDER_FLAGS if at else False
        if is_folder or word in FOLDER_FLAGS or word.startswith("--config-dir=") or KEPT.match(word):
            yield word


def written(value: Any) -> str:
    """A settled value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{written(key)}:{written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(written, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
    if PLAIN.fullmatch(value) and not NO_TEXT.fullmatch(value):
        return value
    # A quote inside ends the text unless a backslash precedes it, and so would a backslash at the end.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    escaped = re.sub(r"(\\+)\Z", r"\1\1", escaped)
    return f"'{escaped}'"
