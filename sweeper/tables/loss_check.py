"""Compare a point's losses with those of the plain point, to find options that wrongly change it. Pure.

The plain point computes the same training without checkpointing, with the batch in one part, and without compilation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runners.outcome import Outcome
from runners.point import Point, canonical

PLAIN = {"checkpointing": False, "accumulate": 1, "compile": False}
# Options of the workload that do not affect the steps or come after them.
WITHOUT_EFFECT = ("set_to_none", "evaluation", "export")
CONDITIONS = ("start", "allocator", "phases", "cache", "tensors", "timeout", "budget", "quality")

# Relative tolerances of a loss after some updates, for sums in another order. Seen over eight steps of a decoder on
# cpu: 1e-7 with eight microbatches in float32, and in float64 too, since transformers computes losses in float32. In
# 16 bits a single rounding is 4e-3 (bfloat16).
TOLERANCE = 1e-4
TOLERANCE_16_BITS = 2e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The losses of one attempt, with what they may be compared with."""

    point_id: str
    alike: str  # equal for points on one device that compute the same training in different ways
    is_plain: bool
    losses: Sequence[Any]  # numbers; nan and the infinities as text
    has_dropout: bool  # a layer that is recomputed, or computed in parts, draws other random numbers
    tolerance: float


def trained(device: str, point: Point, outcome: Outcome) -> Trained | None:
    """The losses of an attempt; None if it did not finish training or computed nothing (a calculated attempt)."""
    workload = point.values.get("workload") or {}
    losses = outcome.metrics.get("losses")
    if outcome.handled_refusals:  # it may have trained with a smaller batch
        return None
    if workload.get("name") != "train" or not losses or None in losses or not PLAIN.keys() <= workload.keys():
        return None
    rest = {key: value for key, value in point.values.items() if key not in CONDITIONS}
    rest["workload"] = {key: value for key, value in workload.items() if key not in (*PLAIN, *WITHOUT_EFFECT)}
    computes = workload.get("precision") or point["dtype"]
    return Trained(
        point_id=point.id,
        alike=hashlib.sha256(canonical([device, rest]).encode()).hexdigest()[:16],
        is_plain=all(workload[key] == value for key, value in PLAIN.items()),
        losses=losses,
        has_dropout=bool(outcome.metrics.get("dropout")),
        tolerance=TOLERANCE if computes in ("float32", "float64") else TOLERANCE_16_BITS,
    )


def compared(one: Trained, plain: Trained | None) -> str | None:
    """`same`, or the first step with a different loss. None for the plain point itself, and without a plain point."""
    if plain is None or one.point_id == plain.point_id:
        return None
    if one.has_dropout or plain.has_dropout:
        return "not comparable: dropout"
    for step, (mine, its) in enumerate(zip(one.losses, plain.losses, strict=True), 1):
        if not _same(mine, its, one.tolerance):
            return f"differs: {mine} in step {step}, {its} in {plain.point_id}"
    return "same"


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):  # nan and the infinities
        return bool(one == other)
    return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))
