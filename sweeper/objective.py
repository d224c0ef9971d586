"""The quantity that ranks configurations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.errors import Mistake

Number = int | float
Rank = tuple[float, tuple[Number, ...]]

FACTOR = re.compile(r"\s*(?P<key>[A-Za-z_][\w.]*)\s*(?:\^\s*(?P<power>\d+(?:\.\d+)?)\s*)?")
ALIASES = {"tokens": ("batch", "context")}


@dataclass(frozen=True, slots=True)
class Objective:
    """A product of keys with exponents: `tokens` (batch x context), one key, or `batch^2*context`."""

    text: str
    factors: tuple[tuple[str, Number], ...]  # each key as typed, and its exponent

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Parse an objective. Raises Mistake if it is not a product of keys, or if it names a key twice."""
        factors: dict[str, Number] = {}
        for factor in text.split("*"):
            found = FACTOR.fullmatch(factor)
            if found is None or found["key"] in factors:
                raise Mistake(f"objective={text}: must be tokens, a key, or a product such as batch^2*context")
            power = found["power"] or "1"
            factors[found["key"]] = float(power) if "." in power else int(power)
        return cls(text, tuple(factors.items()))

    def __str__(self) -> str:
        return self.text

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in the text, without aliases such as `tokens`."""
        return tuple(key for key, _ in self.factors if key not in ALIASES)

    @property
    def exponents(self) -> dict[str, Number]:
        """The exponent of each key, aliases resolved."""
        found: dict[str, Number] = {}
        for key, power in self.factors:
            for name in ALIASES.get(key, (key,)):
                found[name] = found.get(name, 0) + power
        return found

    def ranking(self, names: Sequence[str]) -> Callable[[Mapping[str, Number]], Rank]:
        """A function that ranks points by the product and, if equal, by the keys in the order of the text.

        With `tokens` the larger batch comes first among equal products, with `context*batch` the longer context. Keys
        that the text does not have follow: batch, context, then the others.
        `names`: the keys in which the points differ. Other keys of the objective are the same for every point and do
        not count; if no key is left, the product of all names counts. Products are compared by their logarithms, since
        powers can exceed the range of a float, rounded to nine digits so that 2 x 8 ranks as 4 x 4 does.
        """
        exponents = self.exponents
        counted = {name: exponents[name] for name in names if name in exponents} or dict.fromkeys(names, 1)
        typed = list(exponents)
        order = sorted(
            names, key=lambda n: (typed.index(n) if n in typed else len(typed), n != "batch", n != "context")
        )

        def rank(point: Mapping[str, Number]) -> Rank:
            product = sum(power * math.log(max(point[name], 1e-9)) for name, power in counted.items())
            return round(product, 9), tuple(point[name] for name in order)

        return rank


TOKENS = Objective.parse("tokens")
