"""Messages on stderr, and streams whose reader is gone."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def print_message(message: str) -> None:
    """One line on stderr. If nobody can read it, the exit code alone tells how the command ended."""
    try:
        print("sweeper:", " ".join(message.split()), file=sys.stderr, flush=True)
    except OSError:  # its reader closed the pipe, or the terminal was closed
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what is in a stream's buffer, and whatever is written to it later, to /dev/null.

    Python ends with exit code 120 if it cannot write what is left in the buffer.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
