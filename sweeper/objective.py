"""What the largest configuration means: the quantity that configurations are ranked by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from sweeper.designs.search import Value
from sweeper.errors import Mistake

Rank = tuple[float, tuple[Value, ...]]


def weights_of(objective: str) -> dict[str, float]:
    """The exponents of an objective: `tokens` (batch x context), a dimension, or a product like `batch^2*context`."""
    weights: dict[str, float] = {}
    for factor in objective.split("*"):
        found = re.fullmatch(r"\s*([A-Za-z_][\w.]*)\s*(?:\^\s*(\d+(?:\.\d+)?)\s*)?", factor)
        if found is None or found[1] in weights:
            raise Mistake(f"objective={objective}: expected tokens, a dimension, or a product such as batch^2*context")
        power = float(found[2]) if "." in (found[2] or "") else int(found[2] or 1)
        for name in ("batch", "context") if found[1] == "tokens" else (found[1],):
            weights[name] = weights.get(name, 0) + power
    return weights


def ranking(objective: str, names: Sequence[str]) -> Callable[[Mapping[str, Value]], Rank]:
    """By what points are compared that differ in these names: the objective, then batch, context and the others.

    What is not searched is the same for every point. If nothing of the objective is searched, all that is counts. Of
    the product it is the logarithm, since powers can be beyond a float, to nine digits: 2 x 8 is as much as 4 x 4.
    """
    weights = weights_of(objective)
    counted = {name: weights[name] for name in names if name in weights} or dict.fromkeys(names, 1)
    order = sorted(names, key=lambda name: (name != "batch", name != "context"))

    def rank(point: Mapping[str, Value]) -> Rank:
        product = sum(weight * math.log(max(point[name], 1e-9)) for name, weight in counted.items())
        return round(product, 9), tuple(point[name] for name in order)

    return rank
