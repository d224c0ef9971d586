"""What sweeper prints: every line goes through here, so that no file and no program can control the terminal.

Text from a run's files, a workload's messages, names of models and of hosts can hold control characters, which move the
cursor, change colours or titles, or reorder letters. They are shown as `\\x1b`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TextIO

# Texts that have several lines, of which views show the first or all, and words that are quoted as a shell reads them.
AS_THEY_ARE = ("error_message", "traceback", "frontier_text", "command", "commands")
LONGEST_WORD, OF_A_LONGER = 1000, 60  # letters of a word in a message; a path has some hundred
JOINERS = "\u200c\u200d"  # of letters in several scripts, and of emoji


def printable(text: str) -> str:
    """The text with its control characters escaped, except line breaks."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(map(_shown, text))


def in_one_line(text: str) -> str:
    """The text with its line breaks escaped too: a name from a user's code would begin a line of its own."""
    return text if text.isprintable() else printable(text).replace("\n", "\\n")


def in_lines(found: Any) -> Any:
    """What a view makes lines from, each text in it in one line; the same object if all are. See AS_THEY_ARE."""
    if isinstance(found, str):
        return found if type(found) is not str or found.isprintable() else in_one_line(found)
    if isinstance(found, Path):
        return found if str(found).isprintable() else Path(in_one_line(str(found)))
    if type(found) is dict:
        items = {in_lines(key): value if key in AS_THEY_ARE else in_lines(value) for key, value in found.items()}
        same = all(a is b and found[a] is items[b] for a, b in zip(found, items, strict=False))
        return found if same and len(items) == len(found) else items
    if isinstance(found, (list, tuple)):
        parts = [in_lines(each) for each in found]
        if all(a is b for a, b in zip(found, parts, strict=True)):
            return found
        return type(found)._make(parts) if hasattr(found, "_make") else type(found)(parts)
    if is_dataclass(found) and not isinstance(found, type):
        values = {
            each.name: getattr(found, each.name)
            for each in fields(found)
            if each.init and each.name not in AS_THEY_ARE and hasattr(found, each.name)
        }
        changed = {name: new for name, value in values.items() if (new := in_lines(value)) is not value}
        return replace(found, **changed) if changed else found
    return found


def wrapped(line: str, width: int) -> list[str]:
    """A line in parts that are broken between words, or after a slash in a path that is longer than a line."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts = [""]
    for word in re.findall(r" *[^ ]+", line):
        is_long = columns(indent + word.lstrip()) > width
        for piece in re.findall(r"[^/]*/+|[^/]+", word) if is_long else [word]:
            if columns(parts[-1] + piece) > width and parts[-1].strip():
                parts.append(indent + piece.lstrip())
            else:
                parts[-1] += piece
    return parts


def columns(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(letter) in "WF" else unicodedata.combining(letter) == 0 for letter in text
    )


def show(text: str) -> None:
    """Print text to stdout. Raises OSError."""
    print(printable(text), flush=True)


def width() -> int | None:
    """The columns of the terminal that stdout is, or those of COLUMNS. None in a pipe: its reader may search lines."""
    return shutil.get_terminal_size((0, 0)).columns or None


def warn(line: str) -> None:
    """Print one line to stderr. If nobody can read it, the exit code alone tells how the command ended."""
    text = f"sweeper: {printable(' '.join(line.split()))}"
    text = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: f"{word[0][:OF_A_LONGER]}...", text)
    try:
        if sys.stderr.isatty():
            text = "\n".join(wrapped(text, shutil.get_terminal_size().columns))
        print(text, file=sys.stderr, flush=True)
    except OSError:  # its reader closed the pipe, or the terminal was closed
        discard(sys.stderr)


def print_command(label: str, typed: Callable[[int | None], str]) -> None:
    """Print a command to stderr as a shell reads it back. `typed`: the command within a width, if one is given."""
    start = f"sweeper: {label}: "
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    command = typed(None)
    if width is not None and len(start) + len(command) > width:
        start, command = f"{start.rstrip()}\n  ", typed(width - 2)
    try:
        print(f"{start}{command}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def repeat(line: str, stream: TextIO) -> None:
    """Print a line of a command that runs for this process, to the stream that stands for the command's."""
    print(printable(line), file=stream, flush=True)


def discard(stream: TextIO) -> None:
    """Send what is in a stream's buffer, and what is written to it later, to /dev/null.

    Python ends with exit code 120 if it cannot write what is left in a buffer.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Print what another library prints meanwhile as `show` does, once it is done."""
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            yield
    finally:
        if written.tell():
            show(written.getvalue().removesuffix("\n"))


def _shown(letter: str) -> str:
    if letter.isprintable() or letter == "\n" or letter in JOINERS or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode()
