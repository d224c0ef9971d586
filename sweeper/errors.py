"""The one exception that is the user's to mend: its message is the whole of what is printed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Mistake(Exception):
    """Names the key, the value given, and what would be right. Printed as one line; the command ends with exit 2."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """` (did you mean batch?)`, or nothing."""
    near = difflib.get_close_matches(str(word), list(known), 1, 0.65)
    return f" (did you mean {near[0]}?)" if near else ""
