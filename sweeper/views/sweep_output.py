"""Which output a sweep has: redrawn on a terminal, plain lines elsewhere, only its end, or events as JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sweeper.plan import Plan
from sweeper.views.progress import QuietShow, Show
from sweeper.views.sweep_events import EventShow

QUIET, JSON = "quiet", "json"
# Values of TERM. A notebook runs `!sweeper ...` on a terminal of its own and shows its output as text; a kernel sets
# xterm-color, which hardly any real terminal has.
CANNOT_REDRAW = ("dumb", "unknown", "xterm-color")
KERNEL = "JPY_PARENT_PID"  # set for what a notebook's kernel starts


@contextlib.contextmanager
def show_for(plan: Plan, folder: Path, output: str | None = None) -> Iterator[Show]:
    """The output of a sweep into a run's folder. `output`: QUIET, JSON, or None for progress."""
    if output == QUIET:
        yield QuietShow(plan, folder)
    elif output == JSON:
        yield EventShow(plan, folder)
    elif not can_redraw():
        yield Show(plan, folder)
    else:
        from sweeper.views.live import LiveShow  # rich takes 50 ms

        with contextlib.closing(LiveShow(plan, folder)) as show:
            yield show


def can_redraw() -> bool:
    """Whether stdout is a terminal on which lines can be drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in CANNOT_REDRAW and KERNEL not in os.environ
