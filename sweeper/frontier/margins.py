"""What has to be left of a limit beside the largest that fits: named terms, each with where it is from, added up in the
open. Pure. No share of anything is subtracted: a term is bytes that this run measured or calculated, or that somebody
assumes and says so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.device import CALCULATED, MEASURED, device_named
from runners.point import canonical
from sweeper.rows import Row

# By name, what rows of the same run tell. `unseen`: what a calculated device has beyond the measured peak.
OF_MEASURED = ("spread", "evaluation", "export", "longest_input", "others")
OF_CALCULATED = ("evaluation", "export", "longest_input", "unseen")
WORDS = {MEASURED: OF_MEASURED, CALCULATED: OF_CALCULATED}

LONGEST = "limit"  # the inputs that reach the model's last position
LONG = ("long", LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginTerm:
    """Bytes to leave at one point, and where they are from; None: nothing of this run told them."""

    name: str
    bytes: int | None
    source: str  # measured, calculated, assumed
    in_peak: bool = False  # what was measured at the point holds them already: shown, and not added once more
    fails: bool = False  # nothing has to be added up: with it the point is known not to fit
    upto: int | None = None  # tokens of the longest input there was, where the model could take a longer one

    @property
    def to_leave(self) -> int:
        return 0 if self.in_peak or self.bytes is None else self.bytes

    @property
    def told(self) -> bool:
        return self.bytes is not None or self.fails

    def __str__(self) -> str:
        from sweeper.units import format_bytes

        if self.bytes is None:
            return f"{self.name} {'does not fit' if self.fails else f'not {self.source}'}"
        return f"{self.name} {format_bytes(self.bytes)} {self.source}{', in the peak already' if self.in_peak else ''}"


def without(config: str, keys: Iterable[str]) -> str:
    """Everything settled but these keys, as one text."""
    values = json.loads(config)
    for key in keys:
        inner = values
        *groups, last = key.split(".")
        for group in groups:
            inner = inner.get(group) or {}
        inner.pop(last, None)
    return canonical(values)


class RunContext:
    """The rows of a run, found by what they have in common."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = list(rows)
        self._alike: dict[tuple[str, ...], dict[str, list[Row]]] = {}
        self._failing: set[tuple[str, str]] | None = None

    def like(self, row: Row, *keys: str) -> list[Row]:
        """Those that differ in nothing but these keys, on whichever device, itself among them."""
        if keys not in self._alike:
            found = self._alike[keys] = defaultdict(list)
            for each in self._rows:
                found[without(each["config"], keys)].append(each)
        return self._alike[keys].get(without(row["config"], keys), [])

    def on(self, row: Row, *keys: str) -> list[Row]:
        return [each for each in self.like(row, *keys) if each["device"] == row["device"]]

    def calculated(self, row: Row) -> Row | None:
        """The row of the first calculated device that stands for the one that this was measured on."""
        if row["kind"] == CALCULATED:
            return row
        measured = device_named(row["device"])
        return next((each for each in self.like(row) if device_named(each["device"]).stands_for(measured)), None)

    def fails(self, row: Row) -> bool:
        """Whether it failed, or is implied to by one that did."""
        if self._failing is None:
            self._failing = {(each["device"], each["point_id"]) for each in self._rows if each["fits"] is False}
        implied_by = (row.get("skipped_because") or "").rpartition("/")[2].partition(".")[0]
        return row["fits"] is False or (row["device"], implied_by) in self._failing


@dataclass(frozen=True, slots=True)
class Margin:
    """What is asked to be left, and the rows that can tell it: of one search, and of its whole run."""

    asked: Mapping[str, int | str]
    rows: Sequence[Row]
    beside: RunContext

    def at(self, row: Row, counter: str | None) -> list[MarginTerm]:
        """The terms at one point. `counter`: the column whose peak is compared with the limit there."""
        return [self._term(name, value, row, counter) for name, value in self.asked.items()]

    def _term(self, name: str, value: int | str, row: Row, counter: str | None) -> MarginTerm:
        if not isinstance(value, str):
            return MarginTerm(name=name, bytes=value, source="assumed")
        if name == "spread":
            return MarginTerm(name=name, bytes=_spread(self.rows, counter), source=MEASURED)
        # On a calculated device nothing is measured, whatever was asked for, and the term says so.
        source = CALCULATED if row["kind"] == CALCULATED else value
        if name == "others":
            held = counter == "peak_used_bytes"  # which the driver counts, whoever uses it
            return MarginTerm(name=name, bytes=row.get("used_by_others_bytes"), source=source, in_peak=held)
        base = row if source == MEASURED else self.beside.calculated(row)
        if base is None or counter is None:
            return MarginTerm(name=name, bytes=None, source=source)
        if name == "unseen":
            return MarginTerm(name=name, bytes=_unseen(row, base), source=source)
        if name == "longest_input":
            return _longest_input(base, counter, source, self.beside)
        return _after_training(name, base, counter, source, self.beside)


def _spread(rows: Iterable[Row], counter: str | None) -> int | None:
    """The most that attempts at one point lay apart; nothing where no point was measured twice."""
    apart = [json.loads(row["spreads"]).get(counter) for row in rows if row.get("spreads")]
    return max((each for each in apart if each is not None), default=None)


def _unseen(row: Row, calculated: Row) -> int | None:
    """What is calculated beyond what was measured, of the same counter."""
    expected = calculated.get("unlimited_peak_bytes")
    seen = row.get(f"peak_{device_named(calculated['device']).deciding_counter}_bytes")
    return None if expected is None or seen is None else max(0, expected - seen)


def _longest_input(row: Row, counter: str, source: str, beside: RunContext) -> MarginTerm:
    """How much more the longest input takes that told of the same point otherwise."""
    name = "longest_input"
    longer = [each for each in beside.on(row, "inputs", "context") if _inputs(each) in LONG]
    for each in sorted(longer, key=lambda each: each["context"], reverse=True):
        upto = None if _inputs(each) == LONGEST else each["context"]
        if each["context"] <= row["context"]:
            return MarginTerm(name=name, bytes=0, source=source, in_peak=True, upto=upto)
        most, mine = _peak(each, counter, source), _peak(row, counter, source)
        if most is not None and mine is not None:
            return MarginTerm(name=name, bytes=max(0, most - mine), source=source, upto=upto)
        if beside.fails(each):
            return MarginTerm(name=name, bytes=None, source=source, fails=True)
    return MarginTerm(name=name, bytes=None, source=source)


def _after_training(phase: str, row: Row, counter: str, source: str, beside: RunContext) -> MarginTerm:
    """How much more a phase takes than the training before it: at this point, else at the one that has it besides."""
    mine = _beyond(row, phase, counter, source)
    if mine is not None:
        return MarginTerm(name=phase, bytes=mine, source=source, in_peak=True)
    others = beside.on(row, f"workload.{phase}")
    more = [bytes for each in others if (bytes := _beyond(each, phase, counter, source)) is not None]
    if more:
        return MarginTerm(name=phase, bytes=max(more), source=source)
    fails = any(each["fits"] is False and each.get("failed_phase") == phase for each in others)
    return MarginTerm(name=phase, bytes=None, source=source, fails=fails)


def _peak(row: Row, counter: str, source: str) -> int | None:
    """Of what passed; what is calculated has one as if nothing were refused, of the counter that decides there."""
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
    """The terms as a table keeps them."""
    return json.dumps(
        [{"name": each.name, "bytes": each.bytes, "source": each.source, "in_peak": each.in_peak} for each in terms]
    )


def outside(row: Row, terms: Sequence[MarginTerm]) -> list[str]:
    """What the measured workload did not do and no term tells, and so the margin does not cover."""
    config = json.loads(row["config"])
    workload, inputs = config.get("workload") or {}, config.get("inputs") or {}
    told = {term.name: term for term in terms if term.bytes is not None}
    found = [key for key in ("evaluation", "export") if key in workload and _is_off(workload[key]) and key not in told]
    upto = told["longest_input"].upto if "longest_input" in told else config.get("context")
    if upto is not None and inputs.get("name") != LONGEST:
        found.append(f"inputs longer than {upto}")
    if not device_named(row["device"]).is_host:
        found.append("what others put on the device later")
    return found


def _is_off(value: Any) -> bool:
    return not value or value == "none" or (isinstance(value, Mapping) and not any(value.values()))
