"""Checks of a single value: each returns it, or raises Mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from sweeper.errors import Mistake, either
from sweeper.plan import typed
from sweeper.planning.schema import CHOICES, MAXIMUM, MINIMUM
from sweeper.planning.suggestions import NOT_A_SHARE, budgets, instead_of
from sweeper.units import SIZE, format_count, parse_bytes


def at_least(key: str, value: int) -> int:
    if not MINIMUM[key] <= value <= MAXIMUM:
        limit = ", and at most 2^63-1" if value > MAXIMUM else ""
        raise Mistake(f"{key}={value}: must be {MINIMUM[key]} or more{limit}")
    return value


def one_of(key: str, value: str) -> str:
    if value not in CHOICES[key]:
        raise Mistake(f"{key}={value}: must be {' or '.join(CHOICES[key])}{instead_of(key, value, CHOICES[key])}")
    return value


def positive_seconds(key: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        no_limit = f"; {key}=null is no limit" if key == "timeout" else ""
        raise Mistake(f"{key}={value:g}: must be a number of seconds above 0{no_limit}")
    return value


def size_in_bytes(key: str, value: Any, minimum: int, cards: Sequence[str] = ()) -> int:
    """The bytes of a size. `cards`: the names of those that the value may stand for."""
    size = parse_bytes(value)
    if size is not None and size >= minimum:
        return size
    near = [f"{key}={each}" for each in budgets(typed(value), cards)]
    write = f"write {either(near)}" if near else f"write {SIZE}"
    if size is not None:
        raise Mistake(f"{key}={value}: that is {format_count(size, 'byte')}; {write}")
    share = NOT_A_SHARE if re.match(r"0?\.[0-9]|.*%$", typed(value)) else ""
    raise Mistake(f"{key}={typed(value)}: must be a size{f'; {write}' if near else f', as in {SIZE}{share}'}")
