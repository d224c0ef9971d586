"""How much a peak may grow before it counts: a share of it or a number of bytes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from sweeper.errors import Mistake
from sweeper.units import parse_bytes, typed_bytes


@dataclass(frozen=True, slots=True)
class Threshold:
    """A difference counts if it is larger. Exactly one of the two is given."""

    percent: Fraction | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: str, flag: str) -> Threshold:
        """Raises Mistake for what is neither a percentage nor a size with its unit: a bare 2 could be either."""
        share = re.fullmatch(r"\+?([0-9]+(?:\.[0-9]+)?)\s*%", text.strip())
        if share is not None:
            return cls(percent=Fraction(share[1]))
        size = parse_bytes(text.strip())
        if size is None or not text.strip()[-1:].isalpha():
            raise Mistake(f"{flag} {text}: must be a percentage or a size of memory, as in {flag} 2% or {flag} 50MiB")
        return cls(bytes=size)

    def is_exceeded(self, before: int, by: int) -> bool:
        """Whether a change by so many bytes, in either direction, is larger."""
        if self.percent is not None:
            return abs(by) * 100 > self.percent * before
        assert self.bytes is not None
        return abs(by) > self.bytes

    def __str__(self) -> str:
        if self.percent is not None:
            return f"{float(self.percent):g} %"
        assert self.bytes is not None
        return typed_bytes(self.bytes)
