"""`list`: the runs of a folder, newest first, as text and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.device import CALCULATED
from sweeper.tables.overview import DAMAGED, RUNNING, UNKNOWN, Dimensioned, RunOverview, local_time
from sweeper.units import format_count
from sweeper.views.layout import counts, table, wrapped

USUAL = ("batch", "context", "quantize")
HEADS = ("run", "started", "ended", "measured", "points")
ELSEWHERE = ("name", "outputs", "devices", "model", "workload", "dtype", "python", "parallel", "heartbeat")
WHAT = ""  # stands for the keys that are listed without their names
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
    """One line for each run. `width`: if one is longer, all are wrapped to so many columns, but never a name.

    The keys that the runs do not have in common come first.
    """
    if not runs:
        return f"no run in {Path(outputs)}; sweeper batch=1,2,4 makes one"
    apart = _apart(runs)
    rows = [_row(run, apart) for run in runs]
    lines = table([HEADS, *rows], "<<<<<")
    if width is not None and max(map(len, lines)) > width:
        lines = list(_narrow([HEADS, *rows], width))
    noun = format_count(len(runs), "run")
    notes = [f"{run.name}: {run.why}" for run in runs if run.ended in (DAMAGED, UNKNOWN) and run.why is not None]
    old = next((run for run in runs if run.ended != RUNNING and (run.tables is not None or run.behind)), None)
    if old is not None:
        notes.append(f"sweeper show {old.path} rebuilds its tables from the journals, in memory")
    return "\n".join([*lines, "", *notes, f"{noun} in {Path(outputs)}; sweeper show {runs[0].path} shows the newest"])


def _narrow(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """What a run measured stands below its name, and so does the rest where the name leaves no room for it."""
    others = table([(started, ended, points) for _, started, ended, _, points in rows], "<<<")
    room = width - max(map(len, others)) - 2
    column = max((len(row[0]) for row in rows if len(row[0]) <= room), default=0)
    for (name, *_, measured, _), other in zip(rows, others, strict=True):
        if len(name) <= column:
            yield f"{name:<{column}}  {other}"
        else:
            yield name
            yield from wrapped([f"{'':<{column}}  {other}"], width)
        yield from wrapped([f"  {measured}"], width)


def _row(run: RunOverview, apart: Collection[str]) -> tuple[str, str, str, str, str]:
    words = _words(run)
    swept = [each.key for each in run.dimensions]
    shown = swept
    if len(swept) > MOST_SWEPT:  # as in a run that compares workloads
        shown = [key for key in swept if key in USUAL or key in apart]
    left = [key for key in swept if key not in shown]
    measured = [words[key] for key in sorted(words, key=lambda key: key not in apart) if key not in left]
    if left:
        measured.append(f"and {format_count(len(left), 'other key')}")
    points = f"tables {run.tables}" if run.points is None else _points(run.points) or "none"
    if run.ended == RUNNING:
        points = "-" if run.points is None else f"{points} so far"
    elif run.behind:
        points += ", tables behind"
    return run.name, local_time(run.started_at) or "-", run.ended, " ".join(filter(None, measured)), points


def _words(run: RunOverview) -> dict[str, str]:
    """What a run measured, by key: its model, workload, dtype and devices in one (`what`), then its other keys.

    The keys that vary come first, then those of the first sweep's command that have one value, as they were typed.
    """
    on = f"on {_some(run.devices)}" if run.devices else ""
    what = [_some(run.models), _some(run.workloads), _some(run.dtypes), on]
    words = {WHAT: " ".join(filter(None, what))} | {each.key: _dimension(each) for each in run.dimensions}
    for word in run.command:
        key = word.partition("=")[0]
        if "=" in word and word[0] != "-" and key not in ELSEWHERE:
            words.setdefault(key, word)
    return words


def _apart(runs: Sequence[RunOverview]) -> set[str]:
    """The keys in which the listed runs differ."""
    found = [_words(run) for run in runs]
    keys = {key for words in found for key in words}
    return {key for key in keys if len({words.get(key) for words in found}) > 1}


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
