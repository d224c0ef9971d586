"""How far a number is known of which a program has no data."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """How far a number is known."""

    KNOWN = 0
    FINITE = 1  # follows from the assumption that numbers are finite, or was drawn as another run would draw another
    BOUND = 2  # the most that it can be
    ASSUMED = 3
