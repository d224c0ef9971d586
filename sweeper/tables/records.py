"""The files of the attempt that a row of points.parquet comes from, and where in the code it failed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from runners.device import Device
from runners.point import Attempt, AttemptFolder, Point
from runners.record import attempt_in, outcome_in
from runners.stored_json import Damaged
from sweeper.rows import Row
from sweeper.run_folder import POINTS

FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
OF_TORCH = re.compile(r"[/\\]torch[/\\]|torch_tensors\.py$")  # where an allocation is refused, whoever asked for it
# Frames of libraries and of sweeper itself, which a reader did not write.
NOT_THE_USERS = re.compile(r"[/\\](site-packages|dist-packages|runners|lib[/\\]python[\d.]+)[/\\]|^<")


@cache
def on_disk(device: str) -> str:
    """A device's name in the name of an attempt's folder."""
    return Attempt(point=Point(values={}), device=Device(name=device)).name.partition(".")[2].rpartition(".")[0]


def record_of(folder: Path, row: Row) -> AttemptFolder | None:
    """The folder of a row's attempt; None if there was none, or if its folder is gone."""
    if row["attempt"] is None:
        return None
    id = row["point_id"]
    found = AttemptFolder(folder / POINTS / id[:2] / f"{id}.{on_disk(row['device'])}.{row['attempt']}")
    return found if found.path.is_dir() else None


def traceback_of(record: AttemptFolder) -> str | None:
    """The traceback of a failed attempt, None if it has none or cannot be read."""
    try:
        return outcome_in(record, attempt_in(record)).traceback
    except (Damaged, OSError):
        return None


def place_of(traceback: str | None) -> str | None:
    """`file.py:12 in run`: the last frame in the user's own code, or the last one of all that is not in PyTorch."""
    frames = [frame for frame in FRAME.finditer(traceback or "") if not OF_TORCH.search(frame["file"])]
    if not frames:
        return None
    own = [frame for frame in frames if not NOT_THE_USERS.search(frame["file"])]
    frame = (own or frames)[-1]
    return f"{frame['file']}:{frame['line']} in {frame['function'].strip()}"
