"""The attempts that a command line asks for, before it is parsed: their process is started while Hydra composes.

The process that calculated attempts are forked from imports torch and the model's library, which takes longer than
everything else before the first result. A wrong guess costs a process and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import yaml  # type: ignore[import-untyped]

from runners.device import SIM, device_named
from runners.engines.local import EngineFailed, Local
from runners.point import Attempt, Point
from sweeper.cards import CONF
from sweeper.errors import Mistake
from sweeper.interpreter import interpreter
from sweeper.sweeping.conditions import calculated_lane, environ_of

OF_THE_ENVIRONMENT = ("env", "allocator", "start", "experiment")  # keys that another process may be needed for


@contextmanager
def engine_for(arguments: Sequence[str], lanes: int = 1) -> Iterator[Local | None]:
    """An engine with processes that import what the arguments will need; None if none of them names a card.

    `lanes`: how many calculated attempts will run at once.
    """
    engine = None
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if SIM in given.get("devices", "") and not any(key.partition(".")[0] in OF_THE_ENVIRONMENT for key in given):
        with suppress(Mistake, EngineFailed):  # reported when the answer is needed
            engine = Local(interpreter(given.get("python")), lanes=1)
            for lane in map(calculated_lane, range(lanes)):
                engine.expect(_attempt(given), lane)
    try:
        yield engine
    finally:
        if engine is not None:
            engine.close()


def _attempt(given: Mapping[str, str]) -> Attempt:
    """An attempt with the values that name libraries."""
    device = device_named(f"{SIM}cpu")
    defaults = {
        key: value for each in _read("config")["defaults"] if isinstance(each, dict) for key, value in each.items()
    }
    values = {}
    for group in ("model", "workload", "inputs"):
        option = given.get(group, defaults[group]).partition(",")[0]
        values[group] = _read(f"{group}/{option}") if re.fullmatch(r"[\w.-]+", option) else {}
    values["workload"] = values["workload"].get("workload") or {}
    point = Point(values=values)
    return Attempt(point=point, device=device, environ=environ_of(point, device), cwd=os.getcwd())


def _read(name: str) -> dict[str, Any]:
    """A file of the configuration; nothing if it is one of the user's, which Hydra finds."""
    try:
        found: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_bytes())
    except OSError:
        return {}
    return found
