"""Whole numbers between two ends, generated on demand."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, overload


class Interval(Sequence[int]):
    """The whole numbers low and high, and the multiples of the resolution between them.

    Raises ValueError if low > high or resolution < 1.
    """

    def __init__(self, low: int, high: int, resolution: int = 1) -> None:
        if resolution < 1 or low > high:
            raise ValueError(f"an interval needs low <= high and a resolution >= 1, got {low}, {high}, {resolution}")
        self.low, self.high, self.resolution = low, high, resolution
        self._skipped = low // resolution  # multiples up to low
        between = (high - 1) // resolution - self._skipped if high > low else 0
        self._length = 1 + max(0, between) + (high > low)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._length))]
        at = range(self._length)[index]
        if at == 0:
            return self.low
        return self.high if at == self._length - 1 else (self._skipped + at) * self.resolution

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        at = bisect.bisect_left(self, value)
        if at < self._length and self[at] == value:
            return at
        raise ValueError(f"{value!r} is not in {self!r}")

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except (TypeError, ValueError):
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Interval) and (self.low, self.high, self.resolution) == (
            other.low,
            other.high,
            other.resolution,
        )

    def __hash__(self) -> int:
        return hash((self.low, self.high, self.resolution))

    def __str__(self) -> str:
        """As a person types it, without the resolution."""
        return f"interval({self.low},{self.high})"

    def __repr__(self) -> str:
        return f"Interval({self.low}, {self.high}, {self.resolution})"
