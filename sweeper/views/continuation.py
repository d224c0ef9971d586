"""The command that goes on with a sweep that was stopped: the same words with the name of its run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sweeper.planning.command_line import command_names

CONTINUED, INDENT = "\\", 4


def continuing(arguments: Sequence[str], folder: str) -> tuple[str, ...]:
    """The words that were typed, with `name=` and the folder of the run, and so measure only what the run lacks.

    `arguments`: the words of the plan, which are those after the command. A run without a name has its folder's name.
    """
    words = (word for word in _with_command(arguments) if not re.match(r"\+{0,2}name=", word))
    return (*words, f"name={folder}")


def _with_command(arguments: Sequence[str]) -> Sequence[str]:
    """The words of this program, if they are the given ones and perhaps a command; else the given ones.

    They are other words where a sweep is started from Python.
    """
    typed = sys.argv[1:]
    others = Counter(typed) - Counter(arguments)
    are_ours = len(typed) - len(arguments) == others.total() <= 1 and set(others) <= set(command_names())
    return typed if are_ours else arguments


def program() -> tuple[str, ...]:
    """How this program was started: `python -m sweeper`, with the interpreter as it was typed, or `sweeper`."""
    started = Path(sys.argv[0])
    if started.name == "sweeper":
        found = shutil.which(started.name)
        return ("sweeper",) if found is not None and Path(found).samefile(started) else (str(started),)
    typed = sys.orig_argv
    at = next((at for at in range(1, len(typed)) if typed[at - 1 : at + 1] == ["-m", "sweeper"]), None)
    if at is None or started.name != "__main__.py":  # it was started from Python
        return ("python", "-m", "sweeper")
    return tuple(typed[: at + 1])


def as_typed(words: Sequence[str], width: int | None = None) -> str:
    """Words as a shell reads them back, exactly. `width`: columns after which a line is continued on the next one."""
    lines = [""]
    for word in map(_quoted, words):
        if width is not None and lines[-1] and len(f"{lines[-1]} {word} {CONTINUED}") + INDENT > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return f" {CONTINUED}\n{' ' * INDENT}".join(lines)


def _quoted(word: str) -> str:
    """In single quotes, or, with control characters, in those of bash and zsh that know escapes."""
    return shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'"


def _escaped(letter: str) -> str:
    if letter in "'\\":
        return f"\\{letter}"
    return letter if letter.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
