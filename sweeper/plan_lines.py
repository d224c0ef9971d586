"""The lines of a run's plan.jsonl, one type for each kind. Format 2: a sweep that ends writes so in its last line.

Each sweep into the folder appends one `run` line, then its searches and devices, then its points batch by batch. Each
line ends with its checksum (runners/stored_json.py), except in runs of earlier versions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from runners import stored_json
from runners.device import device_named
from runners.field_types import check_fields, check_keys, check_of
from runners.point import Point
from runners.stored_json import Damaged
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import Objective
from sweeper.plan import Dimension

PLAN = "plan.jsonl"
FORMAT = 2  # of the runs that this version writes, and the newest that it reads


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A sweep into the folder began."""

    kind: ClassVar[str] = "run"

    version: str | None  # of sweeper
    command: tuple[str, ...]  # the arguments as they were typed
    design: str | None
    dimensions: tuple[Dimension, ...]
    keys: Mapping[str, Any]  # the run keys, as in sweeper.plan.RunKeys; the objective as text
    started_at: str | None  # ISO 8601, UTC
    format: int = FORMAT

    @property
    def objective(self) -> Objective | None:
        """Raises Mistake if it cannot be parsed."""
        return Objective.parse(self.keys["objective"]) if self.keys.get("objective") else None

    @property
    def quality(self) -> Mapping[str, Any] | None:
        """The settings by which quality is compared; None if it is not."""
        return self.keys.get("quality")

    @property
    def margin(self) -> Mapping[str, int | str]:
        return self.keys.get("margin") or {}

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "format": self.format,
            "sweeper": self.version,
            "command": list(self.command),
            "design": self.design,
            "dimensions": [_dimension_to_json(each) for each in self.dimensions],
            "keys": dict(self.keys),
            "started_at": self.started_at,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> RunLine:
        check_keys(line.get("keys") or {}, OF_THE_KEYS)
        return cls(
            version=line.get("sweeper"),
            command=tuple(line.get("command") or ()),
            design=line.get("design"),
            dimensions=_dimensions(line),
            keys=line.get("keys") or {},
            started_at=line.get("started_at"),
            format=line.get("format", 1),
        )


# The run keys that a reader uses, and their types.
OF_THE_KEYS = {
    "objective": str | None,
    "quality": Mapping[str, Any] | None,
    "margin": Mapping[str, int | str] | None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedLine:
    """A search that has an interval: its values are never listed, and not every one of them is measured."""

    kind: ClassVar[str] = "searched"

    values: Mapping[str, Any]  # of one point of the search
    settings: Mapping[str, Any] = field(default_factory=dict)  # of that point, as in PlannedLine
    dimensions: tuple[Dimension, ...]  # those that are searched

    def to_json(self) -> dict[str, Any]:
        dimensions = [_dimension_to_json(each) for each in self.dimensions]
        return {"kind": self.kind, "values": self.values, "settings": self.settings, "dimensions": dimensions}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> SearchedLine:
        return cls(values=line["values"], settings=line.get("settings") or {}, dimensions=_dimensions(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    """A device of the sweep, as it was when the sweep began."""

    kind: ClassVar[str] = "device"

    name: str
    device_kind: str | None  # cpu, cuda, sim
    uuid: str | None  # of several devices joined by +
    total_bytes: int | None
    unavailable: str | None  # why it cannot be used

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "device_kind": self.device_kind,
            "uuid": self.uuid,
            "total_bytes": self.total_bytes,
            "unavailable": self.unavailable,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> DeviceLine:
        optional = ("device_kind", "uuid", "total_bytes", "unavailable")
        return cls(name=line["name"], **{key: line.get(key) for key in optional})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLine:
    """A point was planned on a device: once, however many sweeps into the folder plan it."""

    kind: ClassVar[str] = "asked"

    id: str  # of the point
    order: int | None = None  # its place in the plan of its sweep, from 0
    device: str | None = None  # None: every device of the run
    changed_from: str | None = None  # the id of its nearest neighbour among the points planned before it
    changed: tuple[str, ...] = ()  # the dimensions in which the two differ
    values: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)  # its values that differ from defaults or follow others
    quality_reference: str | None = None  # the id of the point its quality is compared with

    @property
    def point(self) -> Point:
        return Point(values=self.values)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "id": self.id,
            "order": self.order,
            "device": self.device,
            "changed_from": self.changed_from,
            "changed": list(self.changed),
            "values": self.values,
            "settings": self.settings,
            "quality_reference": self.quality_reference,
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> PlannedLine:
        return cls(
            id=line["id"],
            order=line.get("order"),
            device=line.get("device"),
            changed_from=line.get("changed_from"),
            changed=tuple(line.get("changed") or ()),
            values=line["values"],
            settings=line.get("settings") or {},
            quality_reference=line.get("quality_reference"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourLine:
    """The nearest neighbour of a point that was planned earlier without one."""

    kind: ClassVar[str] = "neighbour"

    id: str
    device: str
    changed_from: str | None
    changed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "id": self.id,
            "device": self.device,
            "changed_from": self.changed_from,
            "changed": list(self.changed),
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> NeighbourLine:
        changed = tuple(line.get("changed") or ())
        return cls(id=line["id"], device=line["device"], changed_from=line.get("changed_from"), changed=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A planned point that need not be measured."""

    kind: ClassVar[str] = "skipped"

    id: str
    device: str | None  # None: every device of the run
    because: str  # the name of the attempt that implies how it would end

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "id": self.id, "device": self.device, "because": self.because}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> SkippedLine:
        return cls(id=line["id"], device=line.get("device"), because=line["because"])


class End(str, enum.Enum):
    """How a sweep ended. One that was killed wrote nothing of it."""

    FINISHED = "finished"  # every point had its turn
    INTERRUPTED = "interrupted"  # by a signal
    BROKE_OFF = "broke off"  # by an error, such as a full disk

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLine:
    """A sweep into the folder ended."""

    kind: ClassVar[str] = "ended"

    how: str  # one of End
    ended_at: str | None  # ISO 8601, UTC
    why: str | None = None  # the error, or the name of the signal

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "how": self.how, "ended_at": self.ended_at, "why": self.why}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> EndedLine:
        return cls(how=line["how"], ended_at=line.get("ended_at"), why=line.get("why"))


PlanLine = RunLine | SearchedLine | DeviceLine | PlannedLine | NeighbourLine | SkippedLine | EndedLine

PARSERS: Mapping[str, Callable[[Mapping[str, Any]], PlanLine]] = {
    line.kind: line.from_json
    for line in (RunLine, SearchedLine, DeviceLine, PlannedLine, NeighbourLine, SkippedLine, EndedLine)
}


def read_plan(folder: Path) -> Iterator[PlanLine]:
    """The lines of a run's plan, oldest first. A damaged line and one of an unknown kind are left out."""
    try:
        lines = _lines(folder)
    except (FileNotFoundError, Damaged):
        return
    for _, text in lines:
        try:
            line = parsed(text)
        except Damaged:
            continue
        if line is not None:
            yield line


def check_format(run: str | Path, folder: Path) -> None:
    """Raises Mistake if a newer version wrote to a run: its lines may mean something else. `run`: as it was typed."""
    try:
        lines = _lines(folder)
    except (FileNotFoundError, Damaged):
        return
    newer = max(filter(None, (newer_format(text) for _, text in lines)), default=None)
    if newer is not None:
        raise Mistake(f"{run}: {written_by_newer(newer)}")


def newer_format(text: bytes) -> int | None:
    """The format of a line that begins a sweep, if a newer version wrote it; None for every other line."""
    if b'"format"' not in text:  # most lines are points
        return None
    try:
        content = stored_json.unsealed(text)
    except Damaged:
        return None
    found = content.get("format")
    return found if content.get("kind") == RunLine.kind and type(found) is int and found > FORMAT else None


def written_by_newer(format: int) -> str:
    newest = f"this version reads and extends formats up to {FORMAT}"
    return f"a newer version of sweeper wrote this run (format {format} of its plan; {newest}); update sweeper"


def damage_in(folder: Path) -> str | None:
    """What `read_plan` leaves out of a run's plan because it is damaged, as a sentence. None if nothing is.

    The last line of a sweep that runs, or that was killed, can be incomplete: that is no damage.
    """
    try:
        damaged = [(number, why) for number, text in _lines(folder) if (why := _why_damaged(text)) is not None]
    except FileNotFoundError:
        return f"{PLAN} is missing"
    except Damaged as whole:
        return f"{PLAN} {whole}"
    if not damaged:
        return None
    number, why = damaged[0]
    if len(damaged) == 1:
        return f"line {number} of {PLAN} is left out: it {why}"
    return f"{len(damaged)} lines of {PLAN} are left out; the first is line {number}: it {why}"


def parsed(text: bytes) -> PlanLine | None:
    """The line in a text; None for a kind of a later version. Raises Damaged."""
    content = stored_json.unsealed(text)
    kind = content.get("kind")
    if not isinstance(kind, str):
        raise Damaged("has no kind")
    if kind not in PARSERS:
        return None
    try:
        line = PARSERS[kind](content)
        check_fields(line)
        _check(line)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, Mistake) as error:
        raise Damaged(f"is of the kind {kind}, and no sweep writes it so ({stored_json.why(error)})") from None
    return line


def _check(line: PlanLine) -> None:
    """Raises ValueError, TypeError, OverflowError or Mistake for values of the right types that no sweep writes."""
    if isinstance(line, PlannedLine) and line.point.id != line.id:
        raise ValueError("its id is not that of its values")
    if isinstance(line, RunLine):
        _ = line.objective
    if isinstance(line, EndedLine):
        End(line.how)
    if isinstance(line, SearchedLine):
        for dimension in line.dimensions:
            if len(dimension.values) and not isinstance(dimension.values, Interval):
                sorted(dimension.values)
    name = line.name if isinstance(line, DeviceLine) else getattr(line, "device", None)
    if name is not None:
        device_named(name)


def _why_damaged(text: bytes) -> str | None:
    try:
        if not stored_json.is_sealed(text):
            parsed(text)
    except Damaged as damaged:
        return str(damaged)
    return None


def _lines(folder: Path) -> list[tuple[int, bytes]]:
    """The texts of the lines with their numbers from 1, without empty ones and without an incomplete last one.

    Raises FileNotFoundError or Damaged.
    """
    *lines, last = stored_json.content_of(folder / PLAN).split(b"\n")
    if last and _why_damaged(last) is None:
        lines.append(last)
    return [(number, text) for number, text in enumerate(lines, 1) if text.strip()]


def _dimensions(line: Mapping[str, Any]) -> tuple[Dimension, ...]:
    return tuple(map(_dimension_from_json, line.get("dimensions") or ()))


def _dimension_to_json(dimension: Dimension) -> dict[str, Any]:
    values = dimension.values
    if isinstance(values, Interval):
        return {"key": dimension.key, "interval": [values.low, values.high], "resolution": values.resolution}
    return {"key": dimension.key, "values": list(values)}


def _dimension_from_json(dimension: Mapping[str, Any]) -> Dimension:
    if "interval" in dimension:
        ends = (*dimension["interval"], dimension["resolution"])
        if not check_of(tuple[int, ...])(ends):
            raise TypeError("its interval is not of whole numbers")
        return Dimension(key=dimension["key"], values=Interval(*ends))
    return Dimension(key=dimension["key"], values=tuple(dimension.get("values") or ()))
