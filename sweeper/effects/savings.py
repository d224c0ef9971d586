"""What a change of a point's keys would save: from two rows of a run, or else from arithmetic. Pure.

The two are never mixed: a figure from rows has the rows' kind, one from arithmetic is an `estimate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from runners.device import Device
from sweeper.effects.families import Family, PhaseKey, peak_of
from sweeper.effects.levers import OWN, Changes, changed, levers_of
from sweeper.effects.memory_fit import Size
from sweeper.estimates.comparison import ESTIMATED
from sweeper.estimates.estimate import estimate
from sweeper.estimates.memory_terms import MOMENTS
from sweeper.plan import dotted
from sweeper.rows import Row


class Lever(NamedTuple):
    """A change of keys, and the bytes that it would save at the peak; None with `kind` None if that is not known."""

    changes: Changes
    saves_bytes: int | None = None
    kind: str | None = None  # measured, calculated, estimate
    known_by: str | None = None


def levers_at(family: Family, size: Size, part: str, points: Iterable[Row], device: Device) -> list[Lever]:
    """What reduces a part of the peak of a family's point. A change that saves nothing by the run's rows is left out.

    `points`: the rows of the run. `device`: the family's, with its card if that is known.
    """
    row = family.passed[size]
    values = json.loads(row["config"])
    reads_text = row["tokens"] is not None or row["workload"] not in OWN
    alike = [other for other in points if (other["device"], other["kind"]) == (row["device"], row["kind"])]
    levers = [
        _from_rows(row, changes, values, alike, family.counter)
        or _from_arithmetic(changes, values, family.peak_phase(size))
        or Lever(changes)
        for changes in levers_of(part, values, device, reads_text)
    ]
    return [lever for lever in levers if lever.saves_bytes is None or lever.saves_bytes > 0]


def _from_rows(
    row: Row, changes: Changes, values: Mapping[str, Any], rows: Sequence[Row], counter: str
) -> Lever | None:
    """The difference to the row of the same point with the change."""
    column = f"peak_{counter}_bytes"
    wanted = dict(dotted(changed(values, changes)))
    for other in rows:
        peak = peak_of(other, column)
        if peak is not None and _is_same(wanted, dict(dotted(json.loads(other["config"]))), changes):
            return Lever(changes, row[column] - peak, row["kind"], f"{counter}, the same point with it in this run")
    return None


def _is_same(wanted: Mapping[str, Any], found: Mapping[str, Any], changes: Changes) -> bool:
    """Whether all values agree. A key that is null has no effect there, and may have a value where it has one."""
    return all(
        wanted.get(key) == found.get(key) or (key not in changes and None in (wanted.get(key), found.get(key)))
        for key in {*wanted, *found}
    )


def _from_arithmetic(changes: Changes, values: Mapping[str, Any], phase: PhaseKey) -> Lever | None:
    """The difference of the estimates' terms at the moment of the peak, if the same terms are left out of both."""
    moment = next((moment for moment in MOMENTS if phase.phase.endswith(moment)), None)
    before, after = estimate(values), estimate(changed(values, changes))
    if moment is None or before.not_estimated != after.not_estimated:
        return None
    saved = before.together.get(moment, 0) - after.together.get(moment, 0)
    return Lever(changes, saved, ESTIMATED, f"the terms of the estimate in {moment}") if saved > 0 else None
