"""The edges that a GPU of the card's kind measured, next to the calculated ones."""

from __future__ import annotations

from collections.abc import Iterator

from runners.device import MEASURED
from sweeper.fit_cells import Cell, FitDevice, FitTable
from sweeper.units import GIB

PENDING, NONE = "...", "-"


def of_table(table: FitTable) -> list[FitDevice]:
    return [device for device in table.devices if device.kind == MEASURED]


def grid(table: FitTable, device: FitDevice) -> list[str]:
    """Two lines for each setting: the largest batch that fitted, and its peak."""
    rows = [("context", ["" if context is None else f"{context:,}" for context in table.contexts])]
    for setting in table.settings:
        found = [table.cell(device.name, setting, context) for context in table.contexts]
        rows.append((setting, [_batch(cell) for cell in found]))
        rows.append(("", [_peak(cell) for cell in found]))
    label = max(len(name) for name, _ in rows)
    width = max(7, *(len(text) for _, texts in rows for text in texts))
    lines = [f"{name:{label}}" + "".join(f"  {text:>{width}}" for text in texts) for name, texts in rows]
    return [line.rstrip() for line in lines]


def legend(table: FitTable, device: FitDevice) -> list[str]:
    counters = "/".join(sorted({cell.counter for cell in table.cells if cell.device == device.name}))
    first = f"Measured on {device.name}: the largest batch that fitted, and below it its peak in GiB ({counters})."
    return [first, *_differences(table, device)]


def _differences(table: FitTable, device: FitDevice) -> Iterator[str]:
    """The cells whose measured edge is another than the calculated one."""
    calculated = next((each for each in table.devices if each.kind != MEASURED), None)
    if calculated is None:
        return
    compared = 0
    for setting in table.settings:
        for context in table.contexts:
            ours, theirs = (table.cell(name, setting, context) for name in (device.name, calculated.name))
            if ours is None or theirs is None or not _is_edge(ours) or not _is_edge(theirs):
                continue
            compared += 1
            if ours.largest_batch != theirs.largest_batch:
                at = "" if context is None else f" at {context:,} tokens"
                edges = f"{ours.largest_batch or 'none'} measured, {theirs.largest_batch or 'none'} calculated"
                yield f"{setting}{at}: the largest batch is {edges}."
    if compared:
        yield f"{compared} edges were measured and calculated."


def _is_edge(cell: Cell) -> bool:
    return cell.failing_batch is not None and cell.failing_batch == (cell.largest_batch or 0) + 1


def _batch(cell: Cell | None) -> str:
    if cell is None or (cell.because is not None and not cell.fits):
        return NONE
    if cell.largest_batch is None:
        return PENDING if cell.failing_batch is None else "no" if cell.failing_batch == 1 else f"<{cell.failing_batch}"
    if not cell.takes_batch:
        return "yes"
    return f"x{cell.largest_batch}" if _is_edge(cell) else f">={cell.largest_batch}"


def _peak(cell: Cell | None) -> str:
    if cell is None or cell.largest_peak_bytes is None:
        return ""
    return f"{cell.largest_peak_bytes / GIB:.2f}"
