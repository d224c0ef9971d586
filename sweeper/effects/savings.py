"""What a change of a point's keys would save: from two rows of a run, or else from arithmetic. Pure.

The two are never mixed: a figure from rows has the rows' kind, one from arithmetic is an `estimate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from runners.device import Device
from sweeper.effects.families import Family, peak_of
from sweeper.effects.levers import OWN, Changes, changed, levers_of
from sweeper.effects.memory_fit import Size
from sweeper.estimates.comparison import ESTIMATED
from sweeper.estimates.estimate import Estimate, estimate
from sweeper.estimates.memory_terms import MOMENTS
from sweeper.plan import dotted, typed_value
from sweeper.rows import Row

# An estimated saving is given if it is certain within this share of it (tests/sweeper/effects/test_savings.py).
TOLERANCE = 0.05
NEAREST = 4  # points with a change for which the same point without it is searched
# The keys of changes that make tensors smaller or remove them, and add none.
SMALLER = frozenset(("batch", "context", "dtype", "workload.optimizer", "workload.logits"))


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
    peak = family.peak_phase(size)
    peaks = {phase.phase: of[size] for phase, of in family.peaks.items() if phase.device == peak.device and size in of}
    alike = [other for other in points if (other["device"], other["kind"]) == (row["device"], row["kind"])]
    levers = [
        _from_rows(row, changes, values, alike, family.counter)
        or _from_arithmetic(changes, values, peaks)
        or _from_neighbours(changes, values, alike, family.counter)
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


def _from_neighbours(changes: Changes, values: Mapping[str, Any], rows: Sequence[Row], counter: str) -> Lever | None:
    """The difference between two rows that differ in the change alone, at the nearest other point of the same model."""
    column = f"peak_{counter}_bytes"
    mine = dict(dotted(values))
    before = {key: mine.get(key) for key in changes}
    known = [
        (peak, dict(dotted(json.loads(row["config"])))) for row in rows if (peak := peak_of(row, column)) is not None
    ]
    found = []
    for peak, config in known:
        if all(config.get(key) == value for key, value in changes.items()):
            keys = sorted({*config, *mine} - {*changes})
            apart = {key: config.get(key) for key in keys if config.get(key) != mine.get(key)}
            if not any(key.startswith("model.") for key in apart):
                found.append((len(apart), -peak, apart, config))
    for _, less, apart, config in sorted(found, key=lambda each: each[:2])[:NEAREST]:
        for peak, other in known:
            if peak + less > 0 and _is_same(config | before, other, changes):
                at = " ".join(f"{key}={typed_value(key, value)}" for key, value in apart.items())
                return Lever(changes, peak + less, rows[0]["kind"], f"{counter}, at {at} in this run")
    return None


def _is_same(wanted: Mapping[str, Any], found: Mapping[str, Any], changes: Changes) -> bool:
    """Whether all values agree. A key that is null has no effect there, and may have a value where it has one."""
    return all(
        wanted.get(key) == found.get(key) or (key not in changes and None in (wanted.get(key), found.get(key)))
        for key in {*wanted, *found}
    )


def _from_arithmetic(changes: Changes, values: Mapping[str, Any], peaks: Mapping[str, int]) -> Lever | None:
    """The difference of the estimates, where it is certain within TOLERANCE. `peaks`: those of the point's phases.

    The bytes of a peak that no term has may stay or vanish with the change. Both limits have to agree. Where a term is
    missing, or the change allocates what no term has, as recomputed layers or summed gradients, nothing is known.
    """
    before, after = estimate(values), estimate(changed(values, changes))
    if not SMALLER.issuperset(changes) or before.not_estimated or after.not_estimated:
        return None
    known, left = before.together, after.together
    highest: dict[str | None, int] = {}
    for phase, bytes in peaks.items():
        moment = _moment_of(phase)
        highest[moment] = max(bytes, highest.get(moment, 0))
    peak = max(highest.values())
    if not highest.keys() >= known.keys() or any(known[moment] > highest[moment] * (1 + TOLERANCE) for moment in known):
        return None  # a moment without a phase, or terms that were not alive together
    at = max(highest, key=lambda moment: highest[moment])
    if any(max(terms, key=lambda moment: terms[moment]) != at for terms in (known, left)):
        return None  # the peak is not at the moment of the most terms, or moves to another one
    others = highest.get(None, 0) - _weights(before) + _weights(after)  # phases that the estimate has no moment for
    stays = max(others, *(left[moment] + highest[moment] - known[moment] for moment in known))
    least, most = peak - stays, peak - max(left.values())
    if not 0 < most <= least * (1 + TOLERANCE):
        return None
    return Lever(changes, least, ESTIMATED, "the terms of the estimate and the peaks of the phases")


def _moment_of(phase: str) -> str | None:
    """The moment of the estimate in a phase. Gradients are alive as `zero_grad` begins, as after the step."""
    if phase.endswith("zero_grad"):
        return "step"
    return next((moment for moment in MOMENTS if phase.endswith(moment)), None)


def _weights(found: Estimate) -> int:
    return sum(term.bytes for term in found.terms if term.term == "weights")
