"""Compares the result of a user's metric at a point with that at a reference point. Pure.

The reference and the tolerance are fixed before the sweep and recorded in its run line in plan.jsonl. A verdict is
never guessed: where quality cannot be assessed, the verdict gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from runners.outcome import Status
from sweeper.errors import Mistake
from sweeper.plan import dotted

SAME, WORSE, BETTER, NOT_ASSESSABLE = "same", "worse", "better", "not assessable"
# Arguments that the user's metric receives by name, if it accepts them.
CALLED_WITH = ("module", "tokenizer", "processor", "device", "dtype", "batch", "context", "seed")
RUN_KEYS = ("quality.reference", "quality.tolerance", "quality.better")  # the rest of `quality` belongs to a point
BETTER_IS = ("higher", "lower")
RANDOM, CHECKPOINT = "random", "checkpoint"


class Verdict(NamedTuple):
    """The verdict on one row. `worse_by` is in the metric's unit, and negative for a row better than its reference."""

    verdict: str
    worse_by: float | None = None
    because: str | None = None


class Assessed(NamedTuple):
    """The basis of a verdict: an attempt, or a point without one."""

    status: str | None
    quality: float | None
    weights: str | None = None
    target: str | None = None
    reference: str | None = None  # a point's id


def fixed(quality: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of a quality comparison, with dotted keys for the reference; None without one. Raises Mistake."""
    reference = dict(dotted(quality["reference"] or {}))
    tolerance, better = quality["tolerance"], quality["better"]
    if better not in BETTER_IS:
        raise Mistake(f"quality.better={better}: must be {' or '.join(BETTER_IS)}")
    if not reference:
        if tolerance is not None:
            raise Mistake("quality.tolerance: there is no reference; name one, as in quality.reference.dtype=float32")
        return None
    example = "quality.tolerance=0.01"
    if tolerance is None:
        raise Mistake(f"quality.tolerance has no value: set how much worse still counts as the same, as in {example}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise Mistake(f"quality.tolerance={tolerance}: must be a number, 0 or more, as in {example}")
    return {"reference": reference, "tolerance": float(tolerance), "better": better}


def check_call(target: str, required: Collection[str]) -> None:
    """Raises Mistake if the user's metric requires an argument that it does not receive."""
    for name in required:
        if name not in CALLED_WITH:
            raise Mistake(f"quality.target={target}: needs {name}, and receives {', '.join(CALLED_WITH)}")


def weights_of(values: Mapping[str, Any]) -> str | None:
    """Whether a point's weights are random or from a checkpoint; None without a model of ours."""
    model = values.get("model")
    if not isinstance(model, Mapping):
        return None
    return CHECKPOINT if "path" in model else RANDOM


def verdict(row: Assessed, reference: Assessed | None, how: Mapping[str, Any] | None) -> Verdict:
    """The verdict on a row, given its reference. `how`: from `fixed`; None if the run compares nothing."""
    if row.target is None:
        return _not_assessable("no quality.target")
    if row.status != Status.OK.value:
        return _not_assessable(f"it ended as {row.status}")
    if row.weights != CHECKPOINT:
        return _not_assessable("random weights")
    if row.quality is None:
        return _not_assessable("no number")
    if how is None or row.reference is None:
        return _not_assessable("no reference was fixed before it was measured")
    if reference is None:
        return _not_assessable("its reference is not in the run")
    if reference.quality is None:
        return _not_assessable(f"its reference has no number (it ended as {reference.status})")
    worse_by = row.quality - reference.quality
    if how["better"] == "higher":
        worse_by = -worse_by
    if abs(worse_by) <= how["tolerance"]:
        return Verdict(SAME, worse_by)
    return Verdict(WORSE if worse_by > 0 else BETTER, worse_by)


def _not_assessable(because: str) -> Verdict:
    return Verdict(NOT_ASSESSABLE, because=because)
