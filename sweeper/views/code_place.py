"""Where in the user's own code an exception was raised, from its traceback."""

from __future__ import annotations

import re
from pathlib import Path

FRAME = re.compile(r'^\s*File "([^"\n]+)", line ([0-9]+)', re.MULTILINE)
# Installed libraries, Python's own modules, code without a file, and what runs the workload.
NOT_OF_THE_USER = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<")
RUNNERS = Path(__file__).resolve().parents[2] / "runners"


def place_in(traceback: str | None) -> str | None:
    """`train.py:12`: the last frame in a file of the user's, relative to the current folder if it is inside.

    None if every frame is in a library or in sweeper.
    """
    frames = [(Path(file), line) for file, line in FRAME.findall(traceback or "") if not NOT_OF_THE_USER.search(file)]
    own = [(file, line) for file, line in frames if not file.is_relative_to(RUNNERS)]
    if not own:
        return None
    file, line = own[-1]
    return f"{shown(file)}:{line}"


def shown(path: Path) -> str:
    """A path as it would be typed in the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
