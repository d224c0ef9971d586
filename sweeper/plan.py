"""A plan: everything that a command line requests, settled and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runners.device import Device
from runners.point import Point, canonical
from sweeper.objective import Objective
from sweeper.units import shown_bytes

SECONDS = ("timeout",)
SIZES = ("budget", "used_by_others")  # keys whose settled values are bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A swept key as it is typed (`batch`, `model`, `model.width`), and its values in the order given.

    The values of an interval are a sweeper.interval.Interval, which generates them on demand.
    """

    key: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point of a design's batch, and how it differs from its nearest neighbour among the points before it."""

    point: Point
    changed_from: str | None = None  # the neighbour's id: it differs in the fewest dimensions
    changed: tuple[str, ...] = ()  # the dimensions in which it differs
    nth: int = 1  # which attempt at the point this is; 2 measures it again
    later: bool = False  # listed in the plan, but not yet known to need a measurement
    because: str | None = None  # skipped: the attempt that implies how it would end


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """Settings of the run. No point's id depends on these."""

    name: str | None
    outputs: str
    python: str
    retry: tuple[str, ...]
    resume: str
    stop_after_same_error: int  # 0: never
    objective: Objective
    heartbeat: float  # seconds
    parallel: bool
    trace: str = "never"
    quality: Mapping[str, Any] | None = None  # how it is compared: sweeper/quality.py
    confirm: str = "edge"  # what a frontier measures after its search: sweeper/confirm.py
    edge: str = "all"  # what a frontier searches: the whole edge, or only the largest point
    repeat_points: int = 1  # attempts at every point
    margin: Mapping[str, int | str] = field(default_factory=dict)  # by name: bytes, or `measured` or `calculated`


class Settler(Protocol):
    """Turns a choice (one value per dimension) into a point. Everything else of the configuration is fixed."""

    def settle(self, choice: Mapping[str, Any]) -> Point:
        """The same point for the same choice. Raises Mistake if a value is not valid."""

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """By the id of each settled point: its values that differ from their defaults, by dotted key.

        A value that follows other keys is the expression as it was written, such as `/ckpt/fold_${batch}.pt`.
        """

    @property
    def quality_references(self) -> Mapping[str, str]:
        """By the id of each settled point whose quality is compared: the id of the point it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a command line requests."""

    run: RunKeys
    design: str
    design_options: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]
    devices: tuple[Device, ...]
    settler: Settler
    command: tuple[str, ...]  # the arguments as they were typed
    first_batch: tuple[PlannedPoint, ...] = ()  # of the design before any outcome; all its points unless it searches

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of the first batch, each once."""
        return tuple({each.point.id: each.point for each in self.first_batch}.values())

    def settle(self, choice: Mapping[str, Any]) -> Point:
        """The point of one value per dimension. Raises Mistake if a value is not valid."""
        return self.settler.settle(choice)


def typed(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else canonical(value)


def typed_value(key: str, value: Any) -> str:
    """The value of a key for a heading, nearly as a person would type it: a long size of memory is rounded."""
    if key in SIZES and isinstance(value, int):
        return shown_bytes(value)
    if key in SECONDS and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return typed(value)


# A resolver that reads something other than keys: ${oc.env:USER}, ${now:%H}.
_OUTSIDE = re.compile(r"\$\{\s*(?!oc\.(?:select|create|decode|deprecated|dict\.))[\w.]+\s*:")


def follows(value: Any) -> bool:
    """Whether a value, as it was written, follows other keys: it contains an interpolation such as `${batch}`."""
    if isinstance(value, Mapping):
        return any(map(follows, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(follows, value))
    return isinstance(value, str) and "${" in value and _OUTSIDE.search(value) is None


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings with their keys as a person would type them (`workload.lr`)."""
    for key, value in values.items():
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
