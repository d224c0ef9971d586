"""The table of `sweeper fit` as text, Markdown, CSV and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runners.device import MEASURED
from runners.outcome import Status
from sweeper.cards_compared import smallest_cards
from sweeper.fit_cells import Cell, FitDevice, FitTable
from sweeper.units import GIB, format_bytes
from sweeper.views import cards_table, measured_edges, serving_text, written_table
from sweeper.views.layout import assignments, shortened

WIDTH = 80
CSV_COLUMNS = (
    "device", "kind", "setting", "context", "fits", "counter", "peak_bytes", "largest_batch", "largest_peak_bytes",
    "is_at_least", "undecided_batch", "failing_batch", "failing_peak_bytes", "needs_at_least_bytes", "status",
    "because",
)  # fmt: skip
CLOSE = "~"
PENDING, NOT_APPLICABLE, DOES_NOT_FIT, UNDECIDED = "...", "-", "no", "?"
LONGEST_REASON = 300
DESKTOP = "a desktop takes some 0.5 to 1.5 GiB of the card"
ACCURACY = (
    "How accurate: compared with published peaks of allocated memory on GPUs, half of the calculated ones are off by"
    " 0.01 % or less, and the worst by 4.7 % in training and by 0.4 % in running. The context of a card can take more"
    " or less than is assumed. Every comparison: docs/accuracy.md"
)
NO_QUANTIZED = ". No published peak of QLoRA was compared"
NO_SERVER = (
    "No figure of a server was compared with a real one. Published peaks of transformers' own generation were, and"
    " allocated was off by 0.4 % at most: docs/accuracy.md"
)
MOST_NAMED = 3


def as_text(table: FitTable, width: int = WIDTH) -> str:
    """For a terminal or a pipe, within `width` columns."""
    if all(cell.because is not None and cell.status != Status.OK for cell in table.cells):  # such as a broken model
        return "\n\n".join([filled(heading(table), width), filled(_reasons(table), width), "\n".join(_footer(table))])
    blocks = [filled(heading(table), width), "\n".join(grid(table)), filled(_legend(table), width)]
    for device in measured_edges.of_table(table):
        legend = filled(measured_edges.legend(table, device), width)
        blocks += ["\n".join(measured_edges.grid(table, device)), legend]
    blocks += [filled(lines, width) for lines in _below(table) if lines]
    return "\n\n".join([*blocks, "\n".join(_footer(table))])


def as_markdown(table: FitTable) -> str:
    """To paste into an issue."""
    if table.servings:
        blocks = ["\n".join(["```", *serving_text.grid(table), "```"])]
    elif _cards(table) > 1:
        blocks = ["\n".join(cards_table.markdown(table))]
    else:
        blocks = [_markdown_of(table, device) for device in table.devices]
    lists = [_listed(part) for part in _below(table) if part]
    measure = [] if table.measure is None else [f"```\n{table.measure}\n```"]
    return "\n\n".join(["  \n".join(heading(table)), *blocks, " ".join(_legend(table)), *lists, *measure])


def _markdown_of(table: FitTable, device: FitDevice) -> str:
    """The cells of one device. A measured one is named above them."""
    rows = []
    for setting in table.settings:
        found = [table.cell(device.name, setting, context) for context in table.contexts]
        rows.append([setting, *("" if cell is None else f"{peak_text(cell)} {batch_text(cell)}" for cell in found)])
    heads = ["context", *(_column(context).strip() for context in table.contexts)]
    title = f"Measured on {device.name}:\n\n" if device.kind == MEASURED else ""
    return title + written_table.as_markdown(heads, rows, "<" + ">" * len(table.contexts))


def _cards(table: FitTable) -> int:
    """The number of calculated devices, which come before a measured one."""
    return len(table.devices) - len(measured_edges.of_table(table))


def _below(table: FitTable) -> Sequence[Sequence[str]]:
    """The paragraphs below the table and its legend."""
    compares_cards = _cards(table) > 1 and not table.servings
    summary = cards_table.summary(table) if compares_cards else []
    return summary, _reasons(table), serving_text.speed_lines(table), _lever_lines(table), _notes(table)


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line.strip()}" for line in lines)


def as_csv(table: FitTable) -> str:
    """One line for each cell. Sizes are bytes; what is not known is empty."""
    rows = [[getattr(cell, name) for name in CSV_COLUMNS] for cell in table.cells]
    return written_table.as_csv(CSV_COLUMNS, rows)


def as_json(table: FitTable) -> dict[str, Any]:
    """Whole bytes, null for what is not known."""
    cells = [{**asdict(cell), "is_at_least": cell.is_at_least, "is_edge": cell.is_edge} for cell in table.cells]
    smallest = [asdict(each) for each in smallest_cards(table)] if _cards(table) > 1 else []
    return {**asdict(table), "cells": cells, "smallest_cards": smallest}


def grid(table: FitTable) -> list[str]:
    """The lines of the table: two for each setting, the peaks and below them the batches."""
    if table.servings:
        return serving_text.grid(table)
    if _cards(table) > 1:
        return cards_table.grid(table)
    rows: list[tuple[str, Sequence[str]]] = [
        ("context" if table.contexts != (None,) else "", [*map(_column, table.contexts)])
    ]
    for device in table.devices[: _cards(table)]:
        for setting in table.settings:
            found = [table.cell(device.name, setting, context) for context in table.contexts]
            rows.append((setting, ["" if cell is None else peak_text(cell) for cell in found]))
            rows.append(("", ["" if cell is None else batch_text(cell) for cell in found]))
    label = max(len(name) for name, _ in rows)
    width = max(7, *(len(text) for _, texts in rows for text in texts))
    lines = [f"{name:{label}}" + "".join(f"  {text:>{width}}" for text in texts) for name, texts in rows]
    return [line.rstrip() for line in lines if line.strip()]


def peak_text(cell: Cell) -> str:
    """The peak of batch 1 in GiB."""
    if cell.peak_bytes is not None:
        return f"{cell.peak_bytes / GIB:.2f}"
    if cell.status is None:
        return PENDING if cell.because is None else NOT_APPLICABLE
    if cell.fits is None:
        return NOT_APPLICABLE
    return UNDECIDED


def batch_text(cell: Cell) -> str:
    """The largest batch that fits: `x4`, `>=1024`, or `no`. Empty if the cell is undecided."""
    if cell.fits is False:
        return DOES_NOT_FIT
    if cell.fits is None:
        return PENDING if cell.status is None and cell.because is None else ""
    if not cell.takes_batch:
        return f"{CLOSE if cell.is_close else ''}yes"
    return f"{CLOSE if cell.is_close else ''}{'>=' if cell.is_at_least else 'x'}{cell.largest_batch}"


def _column(context: int | None) -> str:
    return "" if context is None else f"{context:,}"


def heading(table: FitTable) -> list[str]:
    model = table.model or ", ".join(table.settings)
    if table.parameters is not None:
        model += f", {table.parameters:,} parameters"
    dtype = "" if table.dtype is None else f", {table.dtype}"
    several = _cards(table) > 1
    names = f"{len(table.devices)} cards" if several else table.devices[0].name
    kinds = " and ".join(sorted({device.kind for device in table.devices}))
    said = "Calculated, not measured." if kinds == "calculated" else f"{kinds.capitalize()}."
    return [f"{model}{dtype}, on {names}", said, *([] if several else map(_device_line, table.devices))]


def _device_line(device: FitDevice) -> str:
    if device.usable_bytes is None or device.total_bytes is None:
        return f"{device.name}: its memory is not known"
    others = device.used_by_others_bytes or 0
    taken = f"{format_bytes(device.context_bytes or 0)} for the context and libraries"
    if device.context_range_bytes is not None:
        taken += f" (published: {' to '.join(map(format_bytes, device.context_range_bytes))})"
    taken += f" - {format_bytes(others)} for other programs" if others else ""
    usable, total = format_bytes(device.usable_bytes), format_bytes(device.total_bytes)
    return f"{device.card}: {usable} usable = {total} - {taken}"


def _legend(table: FitTable) -> list[str]:
    if table.servings:
        return serving_text.legend(table)
    if _cards(table) > 1:
        return [*cards_table.legend(table), *close_lines(table)]
    counters = " and ".join(sorted({cell.counter for cell in table.cells}))
    batches = any(cell.takes_batch for cell in table.cells)
    text = f"Peak of batch 1 in GiB ({counters})"
    text += "; below it the largest batch that fits, or no." if batches else "; below it whether it fits."
    lines = [text]
    if any(cell.is_at_least for cell in table.cells):
        lines.append(">=: no larger batch was decided.")
    return [*lines, *close_lines(table)]


def close_lines(table: FitTable) -> list[str]:
    """The legend of a batch that may not fit on a card whose context is larger than assumed."""
    names = {cell.device for cell in table.cells if cell.is_close}
    if not names:
        return []
    most = max((device.context_range_bytes or (0, 0))[1] for device in table.devices if device.name in names)
    return [f"{CLOSE}: fits by less than the context may take; up to {format_bytes(most)} were published for it."]


def _notes(table: FitTable) -> list[str]:
    notes = list(table.notes)
    for device in table.devices:
        if device.has_display and not device.used_by_others_bytes:
            notes.append(f"Other programs: none are assumed. {DESKTOP[0].upper()}{DESKTOP[1:]}: used_by_others=1GiB")
            break
    notes += _fragmentation(table)
    notes.append(_accuracy(table))
    return notes


def _fragmentation(table: FitTable) -> list[str]:
    """The batches that expandable segments would let fit, by name if they are few."""
    found = [cell for cell in table.cells if cell.fits_if_expandable]
    if not found:
        return []
    setting = "PYTORCH_ALLOC_CONF=expandable_segments:True"
    if len(found) > MOST_NAMED:
        return [
            f"In {len(found)} of {len(table.cells)} cells only fragmentation keeps the next larger batch from fitting."
            f" With {setting}, set before the command, it fits."
        ]
    names = []
    for cell in found:
        number = f"{cell.failing_batch} requests" if table.servings else f"{cell.setting} of batch {cell.failing_batch}"
        at = "" if cell.context is None else f" at {cell.context:,} tokens"
        names.append(f"{number}{at} on {cell.device}")
    return [f"Only fragmentation prevents {'; '.join(names)}. To try without it, set {setting} before the command."]


def _accuracy(table: FitTable) -> str:
    """How near comparable figures came to measured ones: of what the table shows."""
    if table.servings:
        return NO_SERVER
    quantized = any(cell.values.get("quantize") not in (None, "none") for cell in table.cells)
    return f"{ACCURACY}{NO_QUANTIZED if quantized else ''}"


def _footer(table: FitTable) -> list[str]:
    """Not filled: a line that is copied must not be broken."""
    lines = [] if table.run is None else [f"run folder: {table.run}"]
    if table.run is not None and any(cell.is_open for cell in table.cells):
        lines.append(f"not finished: the same command with name={Path(table.run).name} goes on from here")
    return [*lines, *([] if table.measure is None else [f"one row on a real card: {table.measure}"])]


def _reasons(table: FitTable) -> list[str]:
    """Why settings have no figures, or no larger batch was tried, each reason once."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in table.cells:
        if cell.because is not None:
            found.setdefault((cell.setting, cell.because), []).append(cell)
    lines = []
    for (setting, because), cells in found.items():
        every = [cell for cell in table.cells if cell.setting == setting]
        contexts, devices = ({getattr(cell, name): None for cell in cells} for name in ("context", "device"))
        where = [] if len(cells) == len(every) or None in contexts else [f"at {', '.join(map(_column, contexts))}"]
        where += [f"on {', '.join(devices)}"] if len(devices) < len({cell.device for cell in every}) else []
        lines.append(f"{' '.join([setting, *where])}: {shortened(because, LONGEST_REASON)}")
    return lines


def _lever_lines(table: FitTable) -> list[str]:
    """What to change first where batch 1 does not fit."""
    lines = []
    for each in table.levers:
        at = "" if each.context is None else f", context {each.context:,}"
        takes = "" if each.peak_bytes is None else f" ({each.peak_bytes / GIB:.2f} GiB)"
        peak = "" if each.changed_peak_bytes is None else f": {each.changed_peak_bytes / GIB:.2f} GiB"
        words = assignments(each.changes)
        if each.fits:
            lines.append(f"  {each.setting}{at}{takes} fits with {words}{peak}")
        elif each.fits is False:
            tried = f" even with {words}{peak}" if words else "; no change that was tried reduces its peak"
            lines.append(f"  {each.setting}{at}{takes} does not fit{tried}")
    return ["What to change first, at batch 1:", *lines] if lines else []


def filled(lines: Sequence[str], width: int) -> str:
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for line in lines
    )
