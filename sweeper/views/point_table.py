"""`show RUN`: the points of a run as a table, or as matrices of the two dimensions that vary most.

A matrix is of one device and of one counter. A peak that is partial has `>=` before it, wherever it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from runners.device import CALCULATED
from runners.outcome import Status
from sweeper import columns
from sweeper.columns import NAMED
from sweeper.errors import Mistake, did_you_mean
from sweeper.frontier.edges import NO_MEMORY
from sweeper.plan import typed_value
from sweeper.plan_lines import read_plan
from sweeper.rerun import commands, rerun
from sweeper.rows import Row
from sweeper.settled_keys import differing, has_key
from sweeper.tables.records import place_of, record_of, traceback_of
from sweeper.units import format_bytes, format_count
from sweeper.views.frontier_text import why
from sweeper.views.layout import counts, error_text, indent, more, shortened, table, wrapped
from sweeper.views.written_table import as_csv, as_markdown

MOST_ROWS = 60  # of a table on the screen
MOST_FAILURES = 12
LEAST_WIDTH = 40
USUAL_AXES = ("batch", "context")  # rows and columns of a matrix, where both vary
NO_ATTEMPT = (Status.SKIPPED.value, Status.NOT_RUN.value)
ID_LETTERS = 8  # of a point's id on the screen; any beginning that is unique names the point
# Columns of the table that --csv, --markdown and --json have, next to the keys that vary.
DEFAULTS = (
    *("point_id", "device", "kind", *NAMED, "batch", "context"),
    *("status", "fits", "failed_phase", "error_type", "error_message", "needs_at_least_bytes", "unlimited_peak_bytes"),
    *("peak_bytes", "peak_counter", "peak_is_partial", "peak_phase", "peak_allocated_bytes", "peak_reserved_bytes"),
    *("peak_used_bytes", "peak_tensor_bytes", "peak_resident_bytes", "headroom_bytes", "attempts", "duration_s"),
)
# What names a point, its files and the reason of a failure.
ALSO_NEEDED = (
    *("attempt", "config", "settings", "flaky", "handled_refusals", "handled_refusal_bytes", "used_with_shared_bytes"),
    *("budget_bytes", "context_bytes", "used_by_others_bytes", "device_total_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class PointTable:
    """`rows`: those of points.parquet, sorted. `columns`: those to print, None for the usual ones.

    `varying`: the keys in which the points differ, dotted, with the values of each row.
    """

    run: str
    folder: Path
    rows: Sequence[Row]
    columns: Sequence[str] | None
    is_sorted: bool
    varying: Mapping[tuple[str, str], Mapping[str, Any]]
    columns_of_keys: Sequence[str]  # of those keys that have one
    commands: Mapping[str, Sequence[str]]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for each in self.varying.values() for key in each))

    def at(self, row: Row) -> Mapping[str, Any]:
        return self.varying[row["point_id"], row["device"]]

    def command(self, row: Row) -> str:
        return rerun(row, self.commands.get(row["point_id"], ()))

    def output(self, row: Row) -> Path | None:
        record = record_of(self.folder, row)
        return None if record is None or not record.output.exists() else record.output

    def place(self, row: Row) -> str | None:
        """Where in the code an attempt failed."""
        record = record_of(self.folder, row)
        return None if record is None or row["error_type"] is None else place_of(traceback_of(record))


def point_table(
    folder: Path, tables: Mapping[str, pa.Table], wanted: Sequence[str] | None = None, sort: str | None = None
) -> PointTable:
    """Raises Mistake for a column that points.parquet does not have."""
    points = tables["points"]
    for name in (*(wanted or ()), *([sort.lstrip("-")] if sort else ())):
        if name not in (*points.column_names, *DERIVED):
            flag = "--columns" if wanted is not None and name in wanted else "--sort"
            near = did_you_mean(name, points.column_names)
            raise Mistake(f"{flag} {name}: no such column{near}; docs/columns.md lists them")
    swept = [name for name in points.column_names if name not in columns.FIXED]
    apart = differing(points["config"].to_pylist())
    keys = dict.fromkeys(key for each in apart.values() for key in each)
    of_keys = [column for key in keys if (column := columns.column_of(key)) in points.column_names]
    taken = dict.fromkeys(
        (*DEFAULTS, *ALSO_NEEDED, *swept, *of_keys, *(wanted or ()), *([sort.lstrip("-")] if sort else ()))
    )
    rows = points.select([name for name in taken if name in points.column_names]).to_pylist()
    found = PointTable(
        run=folder.name,
        folder=folder,
        rows=rows,
        columns=wanted,
        is_sorted=sort is not None,
        varying={(row["point_id"], row["device"]): apart[row["config"]] for row in rows},
        columns_of_keys=of_keys,
        commands=commands(read_plan(folder)),
    )
    return found if sort is None else _sorted(found, sort)


def _sorted(found: PointTable, by: str) -> PointTable:
    """By one column, ascending, or descending after `-`; rows without a value come last."""
    name, take = by.lstrip("-"), DERIVED.get(by.lstrip("-"))
    values = {id(row): take(found, row) if take is not None else row[name] for row in found.rows}
    known = [row for row in found.rows if values[id(row)] is not None]
    numeric = all(not isinstance(values[id(row)], str) for row in known)
    known.sort(key=lambda row: values[id(row)] if numeric else str(values[id(row)]), reverse=by.startswith("-"))
    rest = [row for row in found.rows if values[id(row)] is None]
    return replace(found, rows=[*known, *rest], is_sorted=True)


# Columns of `show` that points.parquet does not have.
DERIVED: Mapping[str, Callable[[PointTable, Row], Any]] = {
    "failed_at": lambda found, row: found.place(row),
    "output": lambda found, row: None if (path := found.output(row)) is None else str(path),
    "command": lambda found, row: found.command(row),
}


def _values(found: PointTable) -> tuple[list[str], list[list[Any]]]:
    """The heads and the plain values of the table that other programs read."""
    swept = [name for name in (found.rows[0] if found.rows else {}) if name not in columns.FIXED]
    names = list(found.columns or dict.fromkeys((*DEFAULTS, *found.columns_of_keys, *swept, *DERIVED)))
    return names, [
        [DERIVED[name](found, row) if name in DERIVED else _plain(row[name]) for name in names] for row in found.rows
    ]


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def as_json(found: PointTable) -> dict[str, Any]:
    names, rows = _values(found)
    return {
        "run": found.run,
        "varying": list(found.keys),
        "points": [dict(zip(names, row, strict=True)) for row in rows],
    }


def csv_of(found: PointTable) -> str:
    return as_csv(*_values(found))


def markdown_of(found: PointTable) -> str:
    """The table that the screen has, all its rows."""
    heads, rows = _shown(found, found.rows)
    return as_markdown(heads, rows, _align(heads, rows))


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(found: PointTable, width: int | None = None) -> str:
    statuses = Counter(row["status"] for row in found.rows)
    calculated = sum(row["kind"] == CALCULATED for row in found.rows)
    kinds = f"; {calculated:,} of them calculated, not measured" if calculated else ""
    ended = f": {counts(statuses)}{kinds}" if statuses else ""
    lines = [f"{found.run}: {format_count(len(found.rows), 'point')}{ended}", ""]
    axes = None if found.columns is not None or found.is_sorted else _axes(found)
    if not found.rows:
        return "\n".join(lines).rstrip()
    if axes is None:
        lines += _table(*_shown(found, found.rows[:MOST_ROWS]), width)
        left = len(found.rows) - MOST_ROWS
        lines += [*([f"... and {left:,} more: --csv and --json list all"] if left > 0 else []), ""]
    else:
        lines += _matrices(found, *axes, width)
    if found.columns is None:
        failures = list(_failure_lines(found, width))
        lines += [*failures, ""] if failures else []
    lines += [f"sweeper show {found.folder} {_short(found.rows[0])} shows one point"]
    return "\n".join(lines)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """As many of the columns as there is room for, and the names of the others."""
    count = len(heads)
    lines = table([heads, *rows], _align(heads, rows))
    while width is not None and count > 1 and max(map(len, lines)) > width:
        count -= 1
        lines = table([heads[:count], *(row[:count] for row in rows)], _align(heads, rows)[:count])
    left = heads[count:]
    return [*lines, *(wrapped([f"no room for {', '.join(left)}: --csv has every column"], width) if left else [])]


def _short(row: Row) -> str:
    return str(row["point_id"])[:ID_LETTERS]


def _axes(found: PointTable) -> tuple[str, str] | None:
    """The keys of a matrix's rows and columns; None if fewer than two vary."""
    if len(found.keys) < 2:
        return None
    if set(USUAL_AXES) <= set(found.keys):
        return USUAL_AXES
    different = {key: len({_text(found, row, key) for row in found.rows}) for key in found.keys}
    first, second = sorted(found.keys, key=lambda key: (key not in USUAL_AXES, -different[key]))[:2]
    return first, second


def _text(found: PointTable, row: Row, key: str) -> str:
    return typed_value(key, found.at(row).get(key))


def _matrices(found: PointTable, down: str, across: str, width: int | None) -> Iterator[str]:
    """One matrix for each device and each combination of the other keys."""
    others = [key for key in found.keys if key not in (down, across)]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in found.rows:
        groups.setdefault((row["device"], *(_text(found, row, key) for key in others)), []).append(row)
    marks: set[str] = set()
    for (device, *values), rows in groups.items():
        shown = zip(others, values, strict=True)
        title = "  ".join([device, *(f"{key}={value}" for key, value in shown if has_key(rows[0]["config"], key))])
        calculated = "  (calculated, not measured)" if rows[0]["kind"] == CALCULATED else ""
        for counter in _counters(rows)[: 1 if len(groups) > FEW else 2]:
            yield f"{title}  peak {counter}{calculated}"
            yield from _matrix(found, rows, down, across, counter, width, marks)
            yield ""
    legend = [LEGEND[mark] for mark in LEGEND if mark in marks]
    yield from ([*legend, ""] if legend else [])


FEW = 4  # matrices up to which each has a second one, of another counter
SECOND = {"resident": "tensor", "allocated": "reserved"}  # by the counter that decides: the one to read with it


def _counters(rows: Sequence[Row]) -> list[str]:
    """The counter that decides what fits, and the one that is read with it: of resident memory most is libraries."""
    first = next((str(row["peak_counter"]) for row in rows if row["peak_counter"]), None)
    if first is None:
        return ["bytes"]
    second = SECOND.get(first)
    has_second = second is not None and any(row[f"peak_{second}_bytes"] is not None for row in rows)
    return [first, second] if second is not None and has_second else [first]


LEGEND = {
    ">=": ">=     at least: the peak is partial, since a phase did not complete or was not read whole",
    "(": "(SIZE) what the point would take with unlimited memory",
    "~": "~      passed and failed: does not count as fitting",
    "-": "-      not among the points of the run",
}


def _matrix(
    found: PointTable,
    rows: Sequence[Row],
    down: str,
    across: str,
    counter: str,
    width: int | None,
    marks: set[str],
) -> Iterator[str]:
    """Rows and columns in the order of their values. A matrix that is too wide is continued below."""
    cells = {(_text(found, row, down), _text(found, row, across)): _cell(row, counter) for row in rows}
    marks.update(mark for mark in LEGEND for cell in cells.values() if mark in cell)
    if len(cells) < len({down for down, _ in cells}) * len({across for _, across in cells}):
        marks.add("-")
    tops, sides = (_in_order(found.at(row).get(key) for row in rows) for key in (across, down))
    heads = [typed_value(across, value) for value in tops]
    names = [f"{down}={typed_value(down, value)}" for value in sides]
    first = max(map(len, names))
    wide = [max(len(f"{across}={head}"), *(len(cells.get((typed_value(down, s), head), "-")) for s in sides))
            for head in heads]  # fmt: skip
    start = 0
    while start < len(heads):
        stop, used = start + 1, first + 4 + wide[start]
        while stop < len(heads) and (width is None or used + 2 + wide[stop] <= max(width, LEAST_WIDTH)):
            used, stop = used + 2 + wide[stop], stop + 1
        block = [["", *(f"{across}={head}" for head in heads[start:stop])]]
        block += [
            [name, *(cells.get((typed_value(down, side), head), "-") for head in heads[start:stop])]
            for name, side in zip(names, sides, strict=True)
        ]
        yield from indent(table(block, "<" + ">" * (stop - start)))
        start = stop


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Each value once: numbers by size, everything else as it comes; null first."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    numbers = [value for value in different if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == sum(value is not None for value in different):
        return sorted(different, key=lambda value: (value is not None, value or 0))
    return different


def _cell(row: Row, counter: str) -> str:
    """The peak of a point that fits; of another one its status, and the bytes that are known to be needed."""
    if row["status"] == Status.OK.value:
        peak = _peak(row, counter)
        if row["fits"] is None:
            return f"undecided {peak}".rstrip()
        return f"~{peak}" if row.get("flaky") else peak or "ok"
    if row["status"] in NO_MEMORY and row["unlimited_peak_bytes"] is not None and counter == row["peak_counter"]:
        return f"{row['status']} ({format_bytes(row['unlimited_peak_bytes'])})"
    return str(row["status"]).replace("_", " ")


def _peak(row: Row, counter: str | None = None) -> str:
    """The peak of a counter, by default the one that decides. Partial where it may be higher."""
    name = "peak_bytes" if counter in (None, row["peak_counter"]) else f"peak_{counter}_bytes"
    if row.get(name) is None:
        return ""
    return f"{'>=' if row['peak_is_partial'] else ''}{format_bytes(row[name])}"


def _shown(found: PointTable, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heads and the cells of a table for a person."""
    if found.columns is not None:
        names = list(found.columns)
        return names, [
            [_as_cell(name, DERIVED[name](found, row) if name in DERIVED else row[name], row) for name in names]
            for row in rows
        ]
    keys = [key for key in found.keys if key not in ("device",)]
    devices = ["device"] if len({row["device"] for row in found.rows}) > 1 or not keys else []
    failed = ["failed in"] if any(row["failed_phase"] for row in found.rows) else []
    heads = ["point", *devices, *keys, "status", "peak", "counter", "in phase", *failed, "headroom", "seconds"]
    return heads, [
        [
            _short(row),
            *(f"{row['device']}{' (calculated)' if row['kind'] == CALCULATED else ''}" for _ in devices),
            *(_text(found, row, key) for key in keys),
            row["status"],
            _peak(row) or "-",
            row["peak_counter"] or "-",
            row["peak_phase"] or "-",
            *(row["failed_phase"] or "-" for _ in failed),
            "-" if row["headroom_bytes"] is None else format_bytes(row["headroom_bytes"]),
            "-" if row["duration_s"] is None else f"{row['duration_s']:.2f}",
        ]
        for row in rows
    ]


def _as_cell(name: str, value: Any, row: Row) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes") and isinstance(value, int):
        partial = ">=" if name.startswith("peak_") and row["peak_is_partial"] else ""
        return f"{partial}{format_bytes(value)}"
    if isinstance(value, float):
        return f"{value:g}"
    return typed_value(name, _plain(value))


def _align(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Right for columns of numbers, but for the ids in the first one."""

    def is_number(cell: str) -> bool:
        return cell == "-" or cell.lstrip(">=~-")[:1].isdigit()

    return "".join(
        ">" if place > 0 and rows and all(is_number(row[place]) for row in rows) else "<" for place in range(len(heads))
    )


def _failure_lines(found: PointTable, width: int | None) -> Iterator[str]:
    """Every failure that is not the device's memory running out, once for each message, and the memory's by phase."""
    failures = [row for row in found.rows if row["status"] not in (Status.OK.value, *NO_ATTEMPT)]
    refused = Counter((row["device"], row["failed_phase"]) for row in failures if row["status"] in NO_MEMORY)
    others = [row for row in failures if row["status"] not in NO_MEMORY]
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in others:
        message = error_text(row["error_type"], row["error_message"])
        alike.setdefault((row["device"], row["status"], row["failed_phase"], message), []).append(row)
    if failures:
        yield "FAILURES"
    for (device, phase), count in refused.items():
        yield f"  {device}  out of memory in {phase or 'no phase'}: {format_count(count, 'point')}"
    for rows in list(alike.values())[:MOST_FAILURES]:
        yield from indent(_one_failure(found, rows, width))
    yield from more(len(alike), MOST_FAILURES, "kinds of failures")
    skipped = Counter(row["status"] for row in found.rows if row["status"] in NO_ATTEMPT)
    if skipped:
        yield f"{counts(skipped)}: without an attempt (column skipped_because)"


def _one_failure(found: PointTable, rows: Sequence[Row], width: int | None) -> Iterator[str]:
    row = rows[0]
    first = " ".join(f"{key}={_text(found, row, key)}" for key in found.keys)
    many = "" if len(rows) == 1 else f" and {format_count(len(rows) - 1, 'other')}"
    line = f"{row['device']}  {first}{many} ({_short(row)}): {why(row)}"
    yield shortened(line, width - 2) if width else line
    place, output = found.place(row), found.output(row)
    if place is not None:
        yield f"    at {place}"
    if output is not None:
        yield f"    output: {output}"
    yield f"    again:  {found.command(row)}"


def named_by(points: Iterable[str], prefix: str) -> str:
    """The id of the point that a beginning names. Raises Mistake if none or several have it."""
    ids = sorted({id for id in points if id.startswith(prefix.lower())})
    if not ids:
        raise Mistake(f"{prefix}: no point of this run has an id that begins so; sweeper show RUN lists them")
    if len(ids) > 1:
        raise Mistake(f"{prefix}: {len(ids)} points have ids that begin so: {', '.join(ids[:5])}")
    return ids[0]
