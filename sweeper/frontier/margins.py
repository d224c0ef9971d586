"""Margins: named terms, in bytes, that a point has to leave free below its limit. Pure.

Each term keeps its source: measured by this run, calculated by this run, or assumed by the user. No percentages.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.device import CALCULATED, MEASURED, device_named
from sweeper.requested import rest_of
from sweeper.rows import Row
from sweeper.units import format_bytes

# The terms that rows of the same run can give, by name. `unseen`: a calculated peak less the measured one.
OF_MEASURED = ("spread", "evaluation", "export", "longest_input", "others")
OF_CALCULATED = ("evaluation", "export", "longest_input", "unseen")
WORDS = {MEASURED: OF_MEASURED, CALCULATED: OF_CALCULATED}

LONGEST = "limit"  # inputs that reach the model's last position
LONG = ("long", LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginTerm:
    """Bytes to leave free at one point, and their source; None if nothing in the run gives them."""

    name: str
    bytes: int | None
    source: str  # measured, calculated, assumed
    in_peak: bool = False  # the measured peak includes them: shown, but not added again
    fails: bool = False  # the point is known not to fit with this term
    upto: int | None = None  # tokens of the longest measured input, if the model takes longer ones

    @property
    def to_leave(self) -> int:
        return 0 if self.in_peak or self.bytes is None else self.bytes

    @property
    def known(self) -> bool:
        return self.bytes is not None or self.fails

    def __str__(self) -> str:
        if self.bytes is None:
            return f"{self.name} {'does not fit' if self.fails else f'not {self.source}'}"
        return f"{self.name} {format_bytes(self.bytes)} {self.source}{', already in the peak' if self.in_peak else ''}"


class RunContext:
    """The rows of a run, to look up those that differ from a row in some keys only."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = list(rows)
        self._alike: dict[tuple[str, ...], dict[str, list[Row]]] = {}
        self._failing: set[tuple[str, str]] | None = None

    def like(self, row: Row, *keys: str) -> list[Row]:
        """The rows on any device that differ in these keys only, the row itself included."""
        if keys not in self._alike:
            found = self._alike[keys] = defaultdict(list)
            for each in self._rows:
                found[rest_of(each, keys)].append(each)
        return self._alike[keys].get(rest_of(row, keys), [])

    def on_same_device(self, row: Row, *keys: str) -> list[Row]:
        return [each for each in self.like(row, *keys) if each["device"] == row["device"]]

    def calculated(self, row: Row) -> Row | None:
        """The row of the first calculated device that stands for the row's device."""
        if row["kind"] == CALCULATED:
            return row
        measured = device_named(row["device"])
        return next((each for each in self.like(row) if device_named(each["device"]).stands_for(measured)), None)

    def fails(self, row: Row) -> bool:
        """Whether a point failed, or a failure implies that it would."""
        if self._failing is None:
            self._failing = {(each["device"], each["point_id"]) for each in self._rows if each["fits"] is False}
        implied_by = (row.get("skipped_because") or "").rpartition("/")[2].partition(".")[0]
        return row["fits"] is False or (row["device"], implied_by) in self._failing


@dataclass(frozen=True, slots=True)
class Margin:
    """The requested terms, the rows of one group, and the rows of the whole run."""

    requested: Mapping[str, int | str]
    rows: Sequence[Row]
    context: RunContext

    def at(self, row: Row, counter: str | None) -> list[MarginTerm]:
        """The terms at one point. `counter`: the column whose peak is compared with the limit there."""
        return [self._term(name, value, row, counter) for name, value in self.requested.items()]

    def _term(self, name: str, value: int | str, row: Row, counter: str | None) -> MarginTerm:
        if not isinstance(value, str):
            return MarginTerm(name=name, bytes=value, source="assumed")
        if name == "spread":
            return MarginTerm(name=name, bytes=_spread(self.rows, counter), source=MEASURED)
        # A calculated device has no measured terms, even if they were requested.
        source = CALCULATED if row["kind"] == CALCULATED else value
        if name == "others":
            held = counter == "peak_used_bytes"  # the driver counts the memory of all processes
            return MarginTerm(name=name, bytes=row.get("used_by_others_bytes"), source=source, in_peak=held)
        base = row if source == MEASURED else self.context.calculated(row)
        if base is None or counter is None:
            return MarginTerm(name=name, bytes=None, source=source)
        if name == "unseen":
            return MarginTerm(name=name, bytes=_unseen(row, base), source=source)
        if name == "longest_input":
            return _longest_input(base, counter, source, self.context)
        return _after_training(name, base, counter, source, self.context)


def _spread(rows: Iterable[Row], counter: str | None) -> int | None:
    """The largest spread of attempts at one point, in bytes; None if no point was measured twice."""
    spreads = [json.loads(row["spreads"]).get(counter) for row in rows if row.get("spreads")]
    return max((each for each in spreads if each is not None), default=None)


def _unseen(row: Row, calculated: Row) -> int | None:
    """Bytes of the calculated peak beyond the measured one, in the same counter."""
    expected = calculated.get("unlimited_peak_bytes")
    seen = row.get(f"peak_{device_named(calculated['device']).deciding_counter}_bytes")
    return None if expected is None or seen is None else max(0, expected - seen)


def _longest_input(row: Row, counter: str, source: str, context: RunContext) -> MarginTerm:
    """The additional bytes of the same point with the longest input that was measured."""
    name = "longest_input"
    longer = [each for each in context.on_same_device(row, "inputs", "context") if _inputs(each) in LONG]
    for each in sorted(longer, key=lambda each: each["context"], reverse=True):
        upto = None if _inputs(each) == LONGEST else each["context"]
        if each["context"] <= row["context"]:
            return MarginTerm(name=name, bytes=0, source=source, in_peak=True, upto=upto)
        most, mine = _peak(each, counter, source), _peak(row, counter, source)
        if most is not None and mine is not None:
            return MarginTerm(name=name, bytes=max(0, most - mine), source=source, upto=upto)
        if context.fails(each):
            return MarginTerm(name=name, bytes=None, source=source, fails=True)
    return MarginTerm(name=name, bytes=None, source=source)


def _after_training(phase: str, row: Row, counter: str, source: str, context: RunContext) -> MarginTerm:
    """The bytes of a phase beyond the training before it: at this point, or at the same point with the phase."""
    mine = _beyond(row, phase, counter, source)
    if mine is not None:
        return MarginTerm(name=phase, bytes=mine, source=source, in_peak=True)
    others = context.on_same_device(row, f"workload.{phase}")
    more = [bytes for each in others if (bytes := _beyond(each, phase, counter, source)) is not None]
    if more:
        return MarginTerm(name=phase, bytes=max(more), source=source)
    fails = any(each["fits"] is False and each.get("failed_phase") == phase for each in others)
    return MarginTerm(name=phase, bytes=None, source=source, fails=fails)


def _peak(row: Row, counter: str, source: str) -> int | None:
    """The peak of a point that passed. A calculated peak ignores the limit and is in the deciding counter."""
    if source == CALCULATED:
        return row.get("unlimited_peak_bytes")
    return row.get(counter) if row["fits"] is True and not row.get("flaky") else None


def _beyond(row: Row, phase: str, counter: str, source: str) -> int | None:
    if not row.get("beyond_training"):
        return None
    device = device_named(row["device"])
    if source == CALCULATED:
        name = device.deciding_counter
    elif counter == "budget_used_bytes":
        name = device.budget_counter
    else:
        name = counter.removeprefix("peak_").removesuffix("_bytes")
    found: int | None = json.loads(row["beyond_training"]).get(phase, {}).get(name)
    return found


def _inputs(row: Row) -> str | None:
    name: str | None = (json.loads(row["config"]).get("inputs") or {}).get("name")
    return name


def as_json(terms: Sequence[MarginTerm]) -> str:
    """The terms, as frontier.parquet has them."""
    return json.dumps(
        [{"name": each.name, "bytes": each.bytes, "source": each.source, "in_peak": each.in_peak} for each in terms]
    )


def outside(row: Row, terms: Sequence[MarginTerm]) -> list[str]:
    """Uses of memory that the margin does not cover: not part of the workload, and without a term."""
    config = json.loads(row["config"])
    workload, inputs = config.get("workload") or {}, config.get("inputs") or {}
    known = {term.name: term for term in terms if term.bytes is not None}
    found = [key for key in ("evaluation", "export") if key in workload and _is_off(workload[key]) and key not in known]
    upto = known["longest_input"].upto if "longest_input" in known else config.get("context")
    if upto is not None and inputs.get("name") != LONGEST:
        found.append(f"inputs longer than {upto}")
    if not device_named(row["device"]).is_host:
        found.append("memory that other processes allocate later")
    return found


def _is_off(value: Any) -> bool:
    return not value or value == "none" or (isinstance(value, Mapping) and not any(value.values()))
