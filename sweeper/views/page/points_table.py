"""The points of a run as a table: its columns, and a row of values for each point. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.plan import typed_value
from sweeper.requested import value_in
from sweeper.rerun import rerun
from sweeper.rows import Row
from sweeper.views.frontier_text import why
from sweeper.views.page.marks import Mark, mark_of

# The kinds of values, which decide how a column is sorted and shown.
TEXT, NUMBER, BYTES, SECONDS, MARK = "text", "number", "bytes", "seconds", "mark"
USUAL = ("batch", "context")


@dataclass(frozen=True, slots=True)
class TableColumn:
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """`values` in the order of the columns. `at_least`: its peaks are partial, so the true ones may be higher."""

    values: Sequence[Any]
    at_least: bool
    command: str


@dataclass(frozen=True, slots=True)
class PointsTable:
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]


def points_table(rows: Sequence[Row], dimensions: Sequence[str], typed: Mapping[str, Sequence[str]]) -> PointsTable:
    """`dimensions`: the keys that vary. `typed`: by point id, the arguments of the sweep that planned it."""
    keys = [*dimensions, *(key for key in USUAL if key not in dimensions)]
    devices = len({row["device"] for row in rows}) > 1
    peaks = [
        (f"peak {name}", f"peak_{name}_bytes")
        for name in ("allocated", "reserved", "used", "tensor", "resident")
        if any(row.get(f"peak_{name}_bytes") is not None for row in rows)
    ]
    columns = [
        TableColumn("result", MARK),
        TableColumn("status", TEXT),
        *([TableColumn("device", TEXT)] if devices else []),
        *(TableColumn(key, _kind(value_in(row, key) for row in rows)) for key in keys),
        *(TableColumn(label, BYTES) for label, _ in peaks),
        TableColumn("left", BYTES),
        TableColumn("peak in", TEXT),
        TableColumn("seconds", SECONDS),
        TableColumn("why", TEXT),
    ]
    found = [
        TableRow(
            values=[
                mark_of(row).value,
                row["status"],
                *([row["device"]] if devices else []),
                *(_plain(key, value_in(row, key)) for key in keys),
                *(row.get(column) for _, column in peaks),
                row.get("headroom_bytes") if row["fits"] else None,
                row.get("peak_phase"),
                row.get("duration_s"),
                _why(row),
            ],
            at_least=bool(row.get("peak_is_partial")),
            command=rerun(row, typed.get(row["point_id"], ())),
        )
        for row in rows
    ]
    return PointsTable(columns, found)


def point_texts(rows: Iterable[Row], dimensions: Sequence[str]) -> dict[str, str]:
    """By point id, the values of the keys that vary, as typed: `batch=4 context=128`."""
    keys = dimensions or USUAL
    return {row["point_id"]: " ".join(f"{key}={typed_value(key, value_in(row, key))}" for key in keys) for row in rows}


def _kind(values: Iterable[Any]) -> str:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values if each is not None)
    return NUMBER if numbers else TEXT


def _plain(key: str, value: Any) -> Any:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    return typed_value(key, value)


def _why(row: Row) -> str | None:
    mark = mark_of(row)
    if mark is Mark.FITS:
        return None
    if mark is Mark.SKIPPED:
        return "implied by another attempt"
    return why(row) if row["status"] != "not_run" else "not run"
