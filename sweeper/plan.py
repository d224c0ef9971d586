"""A plan: everything that a command line asks for, settled and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runners.device import Device
from runners.point import Point, canonical
from sweeper.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A key with several values, as it is typed (`batch`, `model`, `model.width`), in the order asked for.

    Of an interval the values are whole numbers that are never written out (sweeper.designs.search.Interval).
    """

    key: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point, the one asked for before it that differs from it in the fewest dimensions, and in which it differs."""

    point: Point
    changed_from: str | None = None
    changed: tuple[str, ...] = ()
    nth: int = 1  # 2: once more, whatever the first attempt told
    later: bool = False  # it is in the plan, and nobody knows yet whether it has to be measured
    because: str | None = None  # it need not be measured: the attempt that implies how it would end


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """How the run is made: no dimension, and in no point's id."""

    name: str | None
    outputs: str
    python: str
    retry: tuple[str, ...]
    resume: str
    stop_after_same_error: int  # 0: never
    objective: Objective
    heartbeat: float
    parallel: bool
    trace: str = "never"
    quality: Mapping[str, Any] | None = None  # how it is compared: sweeper/quality.py
    confirm: str = "edge"  # what a frontier asks once more: edge, all, none
    repeat_points: int = 1  # attempts at every point
    margin: Mapping[str, int | str] = field(default_factory=dict)  # by name: bytes, or measured or calculated


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a command line asked for. `settle` gives the point of one value per dimension; the rest is fixed."""

    run: RunKeys
    design: str
    design_options: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]
    devices: tuple[Device, ...]
    points: tuple[Point, ...]  # each once, in the order of the design
    settle: Callable[[Mapping[str, Any]], Point]
    command: tuple[str, ...]  # the arguments, as they were typed
    reference_of: Callable[[Point], str | None] = lambda point: None  # the point its quality is held against, by id


def typed(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else canonical(value)


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings with their keys as a person would type them (`workload.lr`)."""
    for key, value in values.items():
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
