"""The table of `sweeper fit` for several cards: a line for each card, and the smallest card for each setting."""

from __future__ import annotations

from sweeper.cards_compared import MEMORY, SmallestCard, ordered, orders_of, smallest_cards
from sweeper.fit_cells import Cell, FitDevice, FitTable
from sweeper.units import GIB
from sweeper.views.layout import table as aligned
from sweeper.views.written_table import as_markdown

# Heads of at most 7 letters, so that a line has 80.
HEADS = {
    "run (forward)": "run",
    "run (generate)": "gen",
    "QLoRA + checkpointing": "QLoRA+c",
    "LoRA + checkpointing": "LoRA+c",
    "LoRA": "LoRA",
    "full training + checkpointing": "full+c",
    "full training": "full",
}
MEANINGS = "run: a forward pass; gen: generation; +c: with checkpointing; full: full training."
MOST_NAMED = 3
DOES_NOT_FIT, NOT_APPLICABLE, PENDING = "no", "-", "..."


def grid(table: FitTable) -> list[str]:
    """A block of lines for each context."""
    lines: list[str] = []
    for context in table.contexts:
        if lines:
            lines.append("")
        if context is not None:
            lines.append(f"largest batch at {context:,} tokens, cards by {orders_of(table)[0]}")
        lines += _block(table, context)
    return lines


def _block(table: FitTable, context: int | None) -> list[str]:
    by = orders_of(table)[0]
    head = ["card", "GiB", *(["$/hour"] if by != MEMORY else []), *(HEADS.get(each, each) for each in table.settings)]
    rows = [head]
    for device in ordered(table.devices, by):
        memory = "" if device.usable_bytes is None else f"{device.usable_bytes / GIB:.1f}"
        price = [] if by == MEMORY else ["-" if device.price_per_hour is None else f"{device.price_per_hour:g}"]
        cells = [cell_text(table.cell(device.name, setting, context)) for setting in table.settings]
        rows.append([card_of(device), memory, *price, *cells])
    return aligned(rows, "<" + ">" * (len(rows[0]) - 1))


def markdown(table: FitTable) -> list[str]:
    """The same blocks as tables of Markdown."""
    lines: list[str] = []
    by = orders_of(table)[0]
    for context in table.contexts:
        head = ["card", "GiB usable", *(["$/hour"] if by != MEMORY else []), *table.settings]
        title = "" if context is None else f"Largest batch at {context:,} tokens:"
        lines += ["", title, ""] if title else []
        rows = []
        for device in ordered(table.devices, by):
            memory = "" if device.usable_bytes is None else f"{device.usable_bytes / GIB:.1f}"
            price = [] if by == MEMORY else ["-" if device.price_per_hour is None else f"{device.price_per_hour:g}"]
            cells = [cell_text(table.cell(device.name, setting, context)) for setting in table.settings]
            rows.append([card_of(device), memory, *price, *cells])
        lines.append(as_markdown(head, rows, "<" + ">" * (len(head) - 1)))
    return lines


def cell_text(cell: Cell | None) -> str:
    """The largest batch that fits: `4`, `>=1024`, `yes` of a workload without a batch, or `no`."""
    if cell is None or cell.fits is None:
        return PENDING if cell is not None and cell.status is None and cell.because is None else NOT_APPLICABLE
    if not cell.fits:
        return DOES_NOT_FIT
    if not cell.takes_batch:
        return "yes"
    return f"{'~' if cell.is_close else ''}{'>=' if cell.is_at_least else ''}{cell.largest_batch}"


def card_of(device: FitDevice) -> str:
    return device.name.partition(":")[2] or device.name


def legend(table: FitTable) -> list[str]:
    lines = ["The largest batch that fits; no: one sequence does not fit; -: not calculated (the reasons are below)."]
    if any(setting in HEADS for setting in table.settings):
        lines.append(MEANINGS)
    lines.append("GiB: usable, after the context and libraries and what other programs take.")
    return lines


def summary(table: FitTable) -> list[str]:
    """A sentence for each setting: the smallest card that takes it."""
    return [_sentence(table, each) for each in smallest_cards(table)]


def _sentence(table: FitTable, smallest: SmallestCard) -> str:
    at = "" if smallest.context is None else f" at {smallest.context:,} tokens"
    what = "smallest" if smallest.by == MEMORY else "cheapest"
    names = [name.partition(":")[2] for name in smallest.undecided]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    unknown = ", ".join(names[:MOST_NAMED]) + more
    if smallest.device is None:
        but = f"; {unknown} undecided" if unknown else ""
        return f"No card here takes {smallest.setting}{at}{but}."
    device = next(each for each in table.devices if each.name == smallest.device)
    memory = "" if device.usable_bytes is None else f" ({device.usable_bytes / GIB:.1f} GiB usable)"
    batch = "" if smallest.largest_batch is None else f", up to batch {smallest.largest_batch}"
    but = f"; smaller and undecided: {unknown}" if unknown else ""
    return f"The {what} card that takes {smallest.setting}{at} is {card_of(device)}{memory}{batch}{but}."
