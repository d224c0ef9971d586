"""What sweeper prints: every line goes through here, so that no file and no program can control the terminal.

Text from a run's files, a workload's messages, names of models and of hosts can hold control characters, which move the
cursor, change colours or titles, or reorder letters. They are shown as `\\x1b`.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from typing import TextIO

JOINERS = "\u200c\u200d"  # of letters in several scripts, and of emoji


def printable(text: str) -> str:
    """The text with its control characters escaped, except line breaks."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(map(_shown, text))


def show(text: str) -> None:
    """Print text to stdout. Raises OSError."""
    print(printable(text), flush=True)


def width() -> int | None:
    """The columns of the terminal that stdout is, or those of COLUMNS. None in a pipe: its reader may search lines."""
    return shutil.get_terminal_size((0, 0)).columns or None


def warn(line: str) -> None:
    """Print one line to stderr. If nobody can read it, the exit code alone tells how the command ended."""
    try:
        print("sweeper:", printable(" ".join(line.split())), file=sys.stderr, flush=True)
    except OSError:  # its reader closed the pipe, or the terminal was closed
        discard(sys.stderr)


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
