"""The exception for mistakes of the user, and the names that a misspelt one probably stands for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

ALIKE = 0.65  # the least similarity of a suggestion, by difflib's ratio
MOST_NAMED = 5  # names in a message; a list of 48 hides the one that is needed
SEPARATORS = r"[-_. :]"
# How each kind of likeness is found, the best first: (the typed name, a known one), both in small letters.
LIKENESSES: Sequence[Callable[[str, str], bool]] = (
    lambda typed, known: _squeezed(typed) == _squeezed(known),  # rtx4090, RTX-4090
    lambda typed, known: re.match(re.escape(typed) + SEPARATORS, known) is not None,  # a100: a100-40gb, not a10
    lambda typed, known: len(typed) > 2 and _squeezed(known).startswith(_squeezed(typed)),  # llama3
    lambda typed, known: len(known) > 2 and re.match(re.escape(known) + SEPARATORS, typed) is not None,  # batch_size
    lambda typed, known: len(typed) > 1 and typed in re.split(r"[-_ :]", known),  # 4090, 7b
    lambda typed, known: _series(typed) is not None and _series(typed) == _series(known),  # h100-sxm
)


class Mistake(Exception):
    """A mistake in a command line or a file of the user's.

    The message names the key, its value and what would be right. It is printed as one line; the exit code is 2.
    """


class NotTogether(Mistake):
    """Two values that are each valid, and of which no point can have both."""


class NothingMeasured(Mistake):
    """Torch or every device of a sweep is missing. Its points have rows, with the reason."""


class SweepStopped(Exception):
    """A sweep that Python code started ended early: by a signal, a full disk or a bug of sweeper's."""


def nearest(word: object, known: Iterable[str]) -> list[str]:
    """The known names that a word probably stands for, at most 5: those that it begins, else the most similar one."""
    typed, names = str(word).lower(), list(known)
    if not typed:
        return []
    for alike in LIKENESSES:
        if found := [name for name in names if alike(typed, name.lower())]:
            return found[:MOST_NAMED]
    close = difflib.get_close_matches(str(word), names, 1, ALIKE)
    # A misspelt word begins alike, or is much like the known one: partition is not attention.
    return [name for name in close if name[:1].lower() == typed[0] or difflib.get_close_matches(typed, [name], 1, 0.75)]


def did_you_mean(word: object, known: Iterable[str], prefix: str = "") -> str:
    """` (did you mean batch?)` with the nearest known names, or an empty string. `prefix` is put before each."""
    near = [f"{prefix}{name}" for name in nearest(word, known)]
    return f" (did you mean {either(near)}?)" if near else ""


def either(names: Sequence[str]) -> str:
    """`a, b or c`"""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def some_of(names: Sequence[str], group: str = "") -> str:
    """The names, or the first few of many, with where to find the others: in the help of their group."""
    if len(names) <= MOST_NAMED + 3:
        return ", ".join(names)
    rest = f"and {len(names) - MOST_NAMED} more"
    return f"{', '.join(names[:MOST_NAMED])} {rest}{f'; sweeper --help {group} lists them' if group else ''}"


def _squeezed(name: str) -> str:
    return re.sub(SEPARATORS, "", name)


def _series(name: str) -> str | None:
    """The first part of a name if it has a digit: `h100` of `h100-sxm`, and none of `rtx-5080`."""
    first, *others = re.split(r"[-_ :]", name)
    return first if others and re.search("[0-9]", first) else None
