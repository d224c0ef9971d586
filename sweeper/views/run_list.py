"""`list`: the runs of a folder, newest first, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.device import CALCULATED
from sweeper.tables.overview import DAMAGED, RUNNING, UNKNOWN, Dimensioned, RunOverview, local_time
from sweeper.units import format_count
from sweeper.views.layout import counts, shortened, table

USUAL = ("batch", "context", "quantize")
HEADS = ("run", "started", "ended", "measured", "points")
ELSEWHERE = ("name", "outputs", "devices", "model", "workload", "dtype", "python", "parallel", "heartbeat")
LEAST = 24  # columns that the last two have on a narrow terminal
MOST_SWEPT = 6  # dimensions in a cell
MOST_NAMED = 3  # models, workloads or devices in a cell


def as_json(runs: Sequence[RunOverview]) -> list[dict[str, Any]]:
    return [
        {
            "run": run.name,
            "path": str(run.path),
            "command": ["sweeper", *run.command],
            "started_at": run.started_at,
            "ended_at": run.ended_at,
            "ended": run.ended,
            "why": run.why,
            "models": list(run.models),
            "workloads": list(run.workloads),
            "dtypes": list(run.dtypes),
            "devices": list(run.devices),
            "dimensions": {each.key: {"count": each.count, "values": list(each.values)} for each in run.dimensions},
            "points": run.points,
            "tables": run.tables,
            "tables_are_behind": run.behind,
        }
        for run in runs
    ]


def as_text(runs: Sequence[RunOverview], outputs: str, width: int | None = None) -> str:
    """One line for each run. `width`: cells are shortened to so many columns; None: they are not."""
    if not runs:
        return f"no run in {Path(outputs)}; sweeper batch=1,2,4 makes one"
    rows = [_row(run) for run in runs]
    lines = table([HEADS, *rows], "<<<<<")
    if width is not None and max(map(len, lines)) > width:
        lines = _narrow(rows, width)
    noun = format_count(len(runs), "run")
    notes = [f"{run.name}: {run.why}" for run in runs if run.ended in (DAMAGED, UNKNOWN) and run.why is not None]
    old = next((run for run in runs if run.ended != RUNNING and (run.tables is not None or run.behind)), None)
    if old is not None:
        notes.append(f"sweeper show {old.path} rebuilds its tables from the journals, in memory")
    return "\n".join([*lines, "", *notes, f"{noun} in {Path(outputs)}; sweeper show {runs[0].path} shows the newest"])


def _narrow(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Two lines for each run: what it measured stands below its name."""
    others = max(len("  ".join((started, ended, points))) for _, started, ended, _, points in rows)
    room = max(LEAST, width - others - 2)
    firsts = table([(shortened(row[0], room), row[1], row[2], row[4]) for row in rows], "<<<<")
    pairs = zip(firsts, rows, strict=True)
    return [line for first, row in pairs for line in (shortened(first, width), f"  {shortened(row[3], width - 2)}")]


def _row(run: RunOverview) -> tuple[str, str, str, str, str]:
    what = [_some(run.models), _some(run.workloads), _some(run.dtypes)]
    on = f"on {_some(run.devices)}" if run.devices else ""
    measured = " ".join(filter(None, [*what, on, *_swept(run), *_typed(run)]))
    points = f"tables {run.tables}" if run.points is None else _points(run.points) or "none"
    if run.ended == RUNNING:
        points = "-" if run.points is None else f"{points} so far"
    elif run.behind:
        points += ", tables behind"
    return run.name, local_time(run.started_at) or "-", run.ended, measured, points


def _swept(run: RunOverview) -> list[str]:
    """The dimensions; the usual ones alone where there are many, as in a run that compares workloads."""
    named = run.dimensions
    if len(named) > MOST_SWEPT:
        named = [each for each in named if each.key in USUAL]
    left = len(run.dimensions) - len(named)
    return [*map(_dimension, named), *([f"and {format_count(left, 'other key')}"] if left else [])]


def _typed(run: RunOverview) -> list[str]:
    """The other keys of the first sweep's command that have one value, as they were typed."""
    shown = {*ELSEWHERE, *(each.key for each in run.dimensions)}
    return [word for word in run.command if "=" in word and word.partition("=")[0] not in shown and word[0] != "-"]


def _points(points: Mapping[str, Mapping[str, int]]) -> str:
    """`5 ok, 1 oom`; with the kind where the points are calculated."""
    return "; ".join(
        counts(statuses) + (f" {kind}" if kind == CALCULATED or len(points) > 1 else "")
        for kind, statuses in points.items()
    )


def _some(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMED
    return ",".join(names[:MOST_NAMED]) + (f" and {left} more" if left > 0 else "")


def _dimension(dimension: Dimensioned) -> str:
    left = dimension.count - len(dimension.values)
    if not dimension.values:
        return f"{dimension.key} ({dimension.count:,})"
    return f"{dimension.key}={','.join(dimension.values)}" + (f",... ({dimension.count:,})" if left > 0 else "")
