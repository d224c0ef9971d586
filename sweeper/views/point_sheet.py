"""`show RUN POINT_ID`: everything about one point: on each device how it ended, its counters and its phases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runners.device import CALCULATED, device_named
from runners.journal import BETWEEN
from sweeper import columns
from sweeper.frontier.edges import NO_MEMORY
from sweeper.plan import dotted
from sweeper.plan_lines import read_plan
from sweeper.requested import settings_of
from sweeper.rerun import commands, rerun
from sweeper.rows import Row
from sweeper.screen import in_one_line
from sweeper.tables.records import place_of, record_of, traceback_of
from sweeper.units import format_bytes, format_exact
from sweeper.views.decision_text import environment_line
from sweeper.views.frontier_text import why
from sweeper.views.layout import assignments, indent, shortened, table

LONG = ("config", "settings", "metrics", "notes", "spreads", "assumed_places", "assumed_bounds", "beyond_training")
# Columns that stand in the sheet under another heading, or that every column of counters has.
ELSEWHERE = (*LONG, "run", "point_id", "device", "kind", "environment_id", "error_type", "error_message", "status")
# The counters of a phase that are shown, by type of device; --json has all of them.
OF_PHASES = {"cpu": ("resident", "tensor"), "cuda": ("allocated", "reserved", "used"), "sim": ("allocated", "reserved")}
UNITS = {column.name: column.unit for column in columns.POINTS}


def point_sheet(folder: Path, tables: Mapping[str, pa.Table], id: str) -> dict[str, Any]:
    """The rows of one point in every table, whole bytes and nulls as they are."""
    of_point = {name: _rows(tables[name], id) for name in ("points", "attempts", "phases", "estimates")}
    typed = commands(read_plan(folder)).get(id, ())
    ids = {row["environment_id"] for row in of_point["points"]}
    first = of_point["points"][0]
    return {
        "run": folder.name,
        "point_id": id,
        "settings": settings_of(first),
        "config": json.loads(first["config"]),
        "devices": [_on_device(folder, row, of_point, typed) for row in of_point["points"]],
        "estimate": [_plain(row, ("run", "point_id")) for row in of_point["estimates"]],
        "environment": [
            _plain(row, ("run",)) for row in tables["environment"].to_pylist() if row["environment_id"] in ids
        ],
    }


def _rows(table: pa.Table, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.filter(pc.equal(table["point_id"], id)).to_pylist()
    return found


def _plain(row: Row, without: Sequence[str] = ()) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
        if name not in without
    }


def _on_device(folder: Path, row: Row, of_point: Mapping[str, Sequence[Row]], typed: Sequence[str]) -> dict[str, Any]:
    record = record_of(folder, row)
    traceback = None if record is None or row["error_type"] is None else traceback_of(record)
    mine = {
        name: [each for each in of_point[name] if each["device"] == row["device"]] for name in ("phases", "attempts")
    }
    return {
        "row": _plain(row, ("run",)),
        "why": None if row["fits"] else why(row),
        "command": rerun(row, typed),
        "folder": None if record is None else str(record.path),
        "output": str(record.output) if record is not None and record.output.exists() else None,
        "failed_at": place_of(traceback),
        "traceback": traceback,
        "phases": [_plain(each, ("run", "point_id")) for each in mine["phases"] if each["attempt"] == row["attempt"]],
        "attempts": [_plain(each, ("run", "config", "settings")) for each in mine["attempts"]],
    }


def as_text(sheet: Mapping[str, Any], width: int | None = None) -> str:
    first = sheet["devices"][0]["row"]
    values = dict(dotted(sheet["config"]))
    off = {key: value for key, value in sheet["settings"].items() if key not in columns.NAMED}
    named = {key: first[key] for key in (*columns.NAMED, "batch", "context") if first[key] is not None}
    lines = [f"point {sheet['point_id']} of {sheet['run']}: {assignments(named | off)}", ""]
    for each in sheet["devices"]:
        lines += [*_device_lines(each, width), ""]
    if sheet["estimate"]:
        rows = [[term["term"], format_exact(term["bytes"]), f"= {term['formula']}"] for term in sheet["estimate"]
                if term["bytes"] is not None]  # fmt: skip
        lines += ["ESTIMATE (arithmetic, not measured)", *_cut(indent(table(rows, "<<<")), width), ""]
    lines += ["ENVIRONMENT", *_cut(indent(map(environment_line, sheet["environment"])), width), ""]
    others = [f"{key.removesuffix('.name')}={json.dumps(value)}" for key, value in values.items() if value is not None]
    lines += ["ALL VALUES", *indent(_filled(others, width or 10**6))]
    return "\n".join(lines)


def _cut(lines: Sequence[str], width: int | None) -> list[str]:
    return [line if width is None else shortened(line, width) for line in lines]


def _filled(words: Sequence[str], width: int) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + 2 + len(word) > width - 2:
            yield line
            line = ""
        line = f"{line}  {word}" if line else word
    if line:
        yield line


def _device_lines(each: Mapping[str, Any], width: int | None) -> Iterator[str]:
    row = each["row"]
    calculated = " (calculated, not measured)" if row["kind"] == CALCULATED else ""
    yield f"{row['device'].upper()}{calculated}: {each['why'] or row['status']}"
    if each["failed_at"]:
        yield f"  at {each['failed_at']}"
    if each["output"]:
        yield f"  output: {each['output']}"
    yield f"  again:  {each['command']}"
    for counter in _counters(row, each["phases"]):
        yield ""
        yield from _cut(indent(_phase_lines(counter, each["phases"])), width)
    yield ""
    facts = [
        [name, _value(name, value, row)]
        for name, value in row.items()
        if value is not None and name not in ELSEWHERE and not columns.is_key(name)
    ]
    facts += [[name, in_one_line(str(row[name]))] for name in LONG[2:] if row.get(name)]
    yield from _cut(indent(table(facts, "<<")), width)
    if len(each["attempts"]) > 1:
        yield ""
        yield from indent(_attempt_lines(each["attempts"]))
    if each["traceback"] and row["status"] not in NO_MEMORY:
        yield ""
        # Marked, so that no line of a message passes for one of the sheet.
        yield from (f"  | {line}" for line in each["traceback"].rstrip().splitlines())


def _value(name: str, value: Any, row: Row) -> str:
    unit = UNITS.get(name)
    if unit == "bytes":
        partial = name.startswith("peak_") and row["peak_is_partial"]
        return f"{format_exact(value)}{' partial: the true peak may be higher' if partial else ''}"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return f"{text} {unit}" if unit in ("seconds", "tokens", "steps", "parameters") else text


def _counters(row: Row, phases: Sequence[Row]) -> list[str]:
    """The counters of the device that some phase has."""
    device = device_named(row["device"])
    counters = ("tensor",) if device.is_calculated and device.is_host else OF_PHASES[device.type.value]
    return [each for each in counters if any(phase[f"peak_{each}_bytes"] is not None for phase in phases)]


def _phase_lines(counter: str, phases: Sequence[Row]) -> list[str]:
    """A line for each phase: one counter when it began, its peak and when it ended."""
    several = len({phase["phase_device"] for phase in phases}) > 1
    rows = [[f"{counter} by phase", *(["device"] if several else []), "at its start", "peak", "at its end", "seconds"]]
    for phase in phases:
        if phase["phase"] == BETWEEN:
            continue
        name = phase["phase"] if phase["run_index"] is None else f"{phase['phase']} {phase['run_index']}"
        cells = [name if phase["completed"] else f"{name} (did not complete)"]
        cells += [phase["phase_device"] or "-"] if several else []
        for moment in ("baseline", "peak", "end"):
            count = phase[f"{moment}_{counter}_bytes"]
            least = ">=" if moment == "peak" and not phase["completed"] else ""
            cells.append("-" if count is None else f"{least}{format_bytes(count)}")
        cells.append("-" if phase["elapsed_s"] is None else f"{phase['elapsed_s']:.3f}")
        rows.append(cells)
    return table(rows, "<" + ("<" if several else "") + ">>>>")


def _attempt_lines(attempts: Sequence[Row]) -> list[str]:
    rows = [["attempt", "status", "peak", "started", ""]]
    for each in attempts:
        peak = "-" if each["peak_bytes"] is None else format_bytes(each["peak_bytes"])
        least = ">=" if each["peak_is_partial"] and each["peak_bytes"] is not None else ""
        counts = "counts" if each["counts"] else ""
        rows.append([str(each["attempt"]), each["status"], f"{least}{peak}", str(each["started_at"] or "-"), counts])
    return table(rows, "<<><<")
