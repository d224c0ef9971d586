"""The frontier as matrices over two dimensions, one for each combination of the others. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from runners.device import device_named
from sweeper.effects.families import SIZE
from sweeper.errors import Mistake, did_you_mean
from sweeper.plan import typed_value
from sweeper.requested import rest_of, value_in
from sweeper.rows import Row
from sweeper.settled_keys import differing
from sweeper.units import GIB, MIB, format_bytes
from sweeper.views.layout import assignments
from sweeper.views.page.marks import Mark, mark_of

MOST_PANELS, MOST_CELLS = 48, 4000
MOST_VALUES = 60  # rows or columns of a matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`bytes`: the peak in the panel's counter. `at_least`: the true peak may be higher. `would`: with more memory."""

    mark: Mark
    point_id: str
    bytes: int | None
    at_least: bool
    would: bool
    implied: bool | None  # whether it fits, measured or implied by another attempt
    edge_right: bool  # the limit lies between this cell and the next one
    edge_below: bool

    @property
    def words(self) -> str:
        if self.bytes is None:
            return self.mark.value
        size = format_bytes(self.bytes)
        if self.would:
            return f"{self.mark.value}, would take {size}"
        return f"{self.mark.value}, at least {size}" if self.at_least else f"{self.mark.value}, peak {size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    device: str
    kind: str
    counter: str
    title: str
    limit: str | None
    rows: Sequence[str]  # the values along `down`, as typed
    columns: Sequence[str]
    cells: Mapping[tuple[int, int], Cell]  # by place; a combination that was not planned has none


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierGrid:
    """`unit`: bytes of the unit of all numbers. `hidden`: panels that are left out."""

    down: str | None
    across: str | None
    unit: int
    unit_name: str
    panels: Sequence[Panel]
    hidden: int
    cut: bool  # some values of a dimension are left out

    def number(self, cell: Cell) -> str:
        """The cell's bytes in the unit, with three digits."""
        if cell.bytes is None:
            return ""
        value = cell.bytes / self.unit
        digits = 2 if value < 10 else 1 if value < 100 else 0
        return f"{'≥ ' if cell.at_least else ''}{value:.{digits}f}"


def axes_of(
    rows: Sequence[Row], dimensions: Sequence[str], wanted: Sequence[str] = ()
) -> tuple[str | None, str | None]:
    """The dimensions downwards and across: those wanted, else batch and context, else the numbers with most values.

    Raises Mistake for a wanted key that the run did not vary.
    """
    for key in wanted:
        if key not in dimensions:
            varied = f"the run varied {', '.join(dimensions)}" if dimensions else "the run varied no key"
            raise Mistake(f"--axes {','.join(wanted)}: {key} did not vary{did_you_mean(key, dimensions)}; {varied}")
    values = {key: {json.dumps(value_in(row, key)) for row in rows} for key in dimensions}

    def rank(key: str) -> tuple[bool, bool, int]:
        numbers = all(_is_number(value_in(row, key)) for row in rows if value_in(row, key) is not None)
        return key not in SIZE, not numbers, -len(values[key])

    chosen = [*wanted, *sorted((key for key in dimensions if key not in wanted), key=rank)][:2]
    if not wanted and set(chosen) == set(SIZE):
        chosen = list(SIZE)
    if len(chosen) == 1:
        return None, chosen[0]
    return (chosen[0], chosen[1]) if chosen else (None, None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def frontier_grid(rows: Sequence[Row], dimensions: Sequence[str], wanted: Sequence[str] = ()) -> FrontierGrid:
    """`dimensions`: the keys in which the rows differ. Raises Mistake as `axes_of` does."""
    down, across = axes_of(rows, dimensions, wanted)
    axes = [key for key in (down, across) if key is not None]
    together: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        together[row["device"], row["kind"], rest_of(row, axes)].append(row)
    groups = list(together.values())
    configs = [group[0]["config"] for group in groups]
    apart = differing(configs, axes) if groups else {}
    before = accumulate(map(len, groups), initial=0)  # the rows of all groups before each
    shown = [group for group, count in zip(groups[:MOST_PANELS], before, strict=False) if count < MOST_CELLS]
    fits = {(row["point_id"], row["device"]): row["fits"] for row in rows}
    known = [(row.get("unlimited_peak_bytes") or row.get("peak_bytes") or 0) for group in shown for row in group]
    unit, name = (GIB, "GiB") if max(known, default=0) >= GIB else (MIB, "MiB")
    panels = [_panel(group, down, across, apart[group[0]["config"]], fits) for group in shown]
    longest = max((max(len(p.rows), len(p.columns)) for p in panels), default=0)
    return FrontierGrid(
        down=down,
        across=across,
        unit=unit,
        unit_name=name,
        panels=panels,
        hidden=len(groups) - len(shown),
        cut=longest >= MOST_VALUES,
    )


def _panel(
    rows: Sequence[Row],
    down: str | None,
    across: str | None,
    setting: Mapping[str, Any],
    fits: Mapping[tuple[str, str], bool | None],
) -> Panel:
    ys, xs = _values(rows, down), _values(rows, across)
    place_y, place_x = {value: at for at, value in enumerate(ys)}, {value: at for at, value in enumerate(xs)}
    found: dict[tuple[int, int], Row] = {}
    for row in rows:
        y, x = place_y.get(_key(row, down)), place_x.get(_key(row, across))
        if y is not None and x is not None:
            found[y, x] = row
    sides = {at: _side(row, fits) for at, row in found.items()}
    first = rows[0]
    return Panel(
        device=first["device"],
        kind=first["kind"],
        counter=device_named(first["device"]).deciding_counter,
        title=assignments(setting),
        limit=_limit(rows),
        rows=[_typed(down, value) for value in ys],
        columns=[_typed(across, value) for value in xs],
        cells={at: _cell(row, at, sides) for at, row in found.items()},
    )


def _values(rows: Sequence[Row], key: str | None) -> list[str]:
    """The different values of a key as JSON: numbers by size, all others in the order of the plan."""
    if key is None:
        return [""]
    different = {_key(row, key): value_in(row, key) for row in sorted(rows, key=lambda row: row.get("order") or 0)}
    ordered = sorted(different, key=lambda name: different[name] if _is_number(different[name]) else -1)
    return ordered[:MOST_VALUES]


def _key(row: Row, key: str | None) -> str:
    return "" if key is None else json.dumps(value_in(row, key))


def _typed(key: str | None, value: str) -> str:
    return "" if key is None else typed_value(key, json.loads(value))


def _side(row: Row, fits: Mapping[tuple[str, str], bool | None]) -> bool | None:
    """Whether a row fits: by its own attempt, or by the attempt that a skipped one names."""
    if row["fits"] is not None:
        return None if row.get("flaky") else bool(row["fits"])
    implied_by = (row.get("skipped_because") or "").rpartition("/")[2].partition(".")[0]
    return fits.get((implied_by, row["device"]))


def _cell(row: Row, at: tuple[int, int], sides: Mapping[tuple[int, int], bool | None]) -> Cell:
    here = sides[at]
    right, below = sides.get((at[0], at[1] + 1)), sides.get((at[0] + 1, at[1]))
    would = row["fits"] is False and row.get("unlimited_peak_bytes") is not None
    return Cell(
        mark=mark_of(row),
        point_id=row["point_id"],
        bytes=row["unlimited_peak_bytes"] if would else row.get("peak_bytes"),
        at_least=not would and bool(row.get("peak_is_partial")),
        would=would,
        implied=here,
        edge_right=here is not None and right is not None and here != right,
        edge_below=here is not None and below is not None and here != below,
    )


def _limit(rows: Sequence[Row]) -> str | None:
    """The limit of a panel, if all its rows have the same."""
    limits = {row["budget_bytes"] for row in rows if row.get("budget_kind") not in (None, "guard")}
    totals = {row["device_total_bytes"] for row in rows if row.get("device_total_bytes") is not None}
    if limits:
        return f"budget {format_bytes(next(iter(limits)))}" if len(limits) == 1 else None
    return f"device {format_bytes(next(iter(totals)))}" if len(totals) == 1 else None


def dimensions_text(rows: Sequence[Row], dimensions: Sequence[str]) -> Iterator[str]:
    """Each dimension with its values, as typed: `batch=1,2,4`."""
    for key in dimensions:
        values = [typed_value(key, json.loads(value)) for value in _values(rows, key)]
        yield f"{key}={','.join(values)}" + (",..." if len(values) == MOST_VALUES else "")
