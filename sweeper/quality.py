"""Quality beside memory: a metric of the user's against that of a reference point. Pure.

What is compared with what, and how much worse still counts as the same, is fixed before the sweep and stands in the
first line of plan.jsonl. A verdict is never guessed: what cannot be assessed says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from runners.outcome import Status
from sweeper.errors import Mistake
from sweeper.plan import dotted

SAME, WORSE, BETTER, NOT_ASSESSABLE = "same", "worse", "better", "not assessable"
# What a metric of the user's is given by name, as far as it accepts it.
CALLED_WITH = ("module", "tokenizer", "processor", "device", "dtype", "batch", "context", "seed")
RUN_KEYS = ("quality.reference", "quality.tolerance", "quality.better")  # the rest of `quality` is of a point
BETTER_IS = ("higher", "lower")
RANDOM, CHECKPOINT = "random", "checkpoint"


class Verdict(NamedTuple):
    """Of one row. `worse_by` is in the metric's own unit, and negative where the row is better than its reference."""

    verdict: str
    worse_by: float | None = None
    because: str | None = None


class Assessed(NamedTuple):
    """What a verdict is made of: one attempt, or a point without one."""

    status: str | None
    quality: float | None
    weights: str | None = None
    target: str | None = None
    reference: str | None = None  # a point's id


def fixed(quality: Mapping[str, Any]) -> dict[str, Any] | None:
    """How quality is compared in a run, with the keys of the reference as they are typed; None: not at all.

    Raises Mistake.
    """
    reference = dict(dotted(quality["reference"] or {}))
    tolerance, better = quality["tolerance"], quality["better"]
    if better not in BETTER_IS:
        raise Mistake(f"quality.better={better}: must be {' or '.join(BETTER_IS)}")
    if not reference:
        if tolerance is not None:
            raise Mistake("quality.tolerance: of what? Name the reference too, as in quality.reference.dtype=float32")
        return None
    example = "quality.tolerance=0.01"
    if tolerance is None:
        raise Mistake(f"quality.tolerance has no value: how much worse is still the same? Fix it now, as in {example}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise Mistake(f"quality.tolerance={tolerance}: must be a number, 0 or more, as in {example}")
    return {"reference": reference, "tolerance": float(tolerance), "better": better}


def check_call(target: str, required: Collection[str]) -> None:
    """Raises Mistake if the user's metric needs what it is not given."""
    for name in required:
        if name not in CALLED_WITH:
            raise Mistake(f"quality.target={target}: needs {name}, and is given {', '.join(CALLED_WITH)}")


def weights_of(values: Mapping[str, Any]) -> str | None:
    """Where a point's weights are from; None without a model of ours."""
    model = values.get("model")
    if not isinstance(model, Mapping):
        return None
    return CHECKPOINT if "path" in model else RANDOM


def verdict(row: Assessed, reference: Assessed | None, how: Mapping[str, Any] | None) -> Verdict:
    """What a row's quality is, beside that of its reference."""
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
