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
CANNOT_REDRAW = ("dumb", "unknown")  # values of TERM


@contextlib.contextmanager
def show_for(plan: Plan, folder: Path, output: str | None = None) -> Iterator[Show]:
    """The output of a sweep into a run's folder. `output`: QUIET, JSON, or None for progress."""
    if output == QUIET:
        yield QuietShow(plan, folder)
    elif output == JSON:
        yield EventShow(plan, folder)
    elif not sys.stdout.isatty() or os.environ.get("TERM") in CANNOT_REDRAW:
        yield Show(plan, folder)
    else:
        from sweeper.views.live import LiveShow  # rich takes 50 ms

        with contextlib.closing(LiveShow(plan, folder)) as show:
            yield show
