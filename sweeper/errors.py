"""The exception for mistakes of the user, and suggestions for misspelt words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Mistake(Exception):
    """A mistake in a command line or a file of the user's.

    The message names the key, its value and what would be right. It is printed as one line; the exit code is 2.
    """


class NotTogether(Mistake):
    """Two values that are each valid, and of which no point can have both."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """` (did you mean batch?)` with the nearest known word, or an empty string."""
    near = difflib.get_close_matches(str(word), list(known), 1, 0.65)
    return f" (did you mean {near[0]}?)" if near else ""
