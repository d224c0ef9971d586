"""Whether what must not change what a model learns did change it: a point's losses beside those of the plain one. Pure.

The plain point differs from it in nothing but how the same training is computed: no checkpointing, the batch in one
part, nothing compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runners.outcome import Outcome
from runners.point import Point, canonical

PLAIN = {"checkpointing": False, "accumulate": 1, "compile": False}
# These change nothing of the steps at all, or come after them.
BESIDE = ("set_to_none", "evaluation", "export")
CONDITIONS = ("start", "allocator", "phases", "cache", "tensors", "timeout", "budget", "quality")

# Of a loss: sums in another order, through some updates. Seen over eight steps of a decoder on cpu: 1e-7 with eight
# microbatches in float32; in float64 too, since transformers computes losses in float32. With 16 bits a single rounding
# is 4e-3 (bfloat16).
TOLERANCE = 1e-4
TOLERANCE_16_BITS = 2e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The losses of one attempt, and what they may be compared with."""

    point_id: str
    alike: str  # the same for points on one device that differ in nothing but how the same training is computed
    is_plain: bool
    losses: Sequence[Any]  # numbers; text for what is none
    drops: bool  # at random: a layer that is computed again, or in parts, draws other numbers
    tolerance: float


def trained(device: str, point: Point, outcome: Outcome) -> Trained | None:
    """None if the attempt did not train to its end, or computed nothing (a calculated one)."""
    workload = point.values.get("workload") or {}
    losses = outcome.metrics.get("losses")
    if workload.get("name") != "train" or not losses or None in losses or not PLAIN.keys() <= workload.keys():
        return None
    rest = {key: value for key, value in point.values.items() if key not in CONDITIONS}
    rest["workload"] = {key: value for key, value in workload.items() if key not in (*PLAIN, *BESIDE)}
    computes = workload.get("precision") or point["dtype"]
    return Trained(
        point_id=point.id,
        alike=hashlib.sha256(canonical([device, rest]).encode()).hexdigest()[:16],
        is_plain=all(workload[key] == value for key, value in PLAIN.items()),
        losses=losses,
        drops=bool(outcome.metrics.get("dropout")),
        tolerance=TOLERANCE if computes in ("float32", "float64") else TOLERANCE_16_BITS,
    )


def compared(one: Trained, plain: Trained | None) -> str | None:
    """`same`, or the first step whose loss is another; None for the plain point itself, and where there is none."""
    if plain is None or one.point_id == plain.point_id:
        return None
    if one.drops or plain.drops:
        return "not comparable: dropout"
    for step, (mine, its) in enumerate(zip(one.losses, plain.losses, strict=True), 1):
        if not _same(mine, its, one.tolerance):
            return f"differs: {mine} in step {step}, {its} in {plain.point_id}"
    return "same"


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):  # nan and the infinities, which are text
        return bool(one == other)
    return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))
