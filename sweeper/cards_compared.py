"""Several cards of a table of `fit` next to each other: their order, and the smallest card for each setting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.fit_cells import Cell, FitDevice, FitTable

PRICE, MEMORY = "price", "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestCard:
    """The first card, in an order, on which a setting fits at a context. `undecided`: cards before it, by name."""

    by: str  # price or memory
    setting: str
    context: int | None
    device: str | None  # None: it fits on none of them
    largest_batch: int | None = None
    undecided: tuple[str, ...] = ()


def ordered(devices: Sequence[FitDevice], by: str) -> list[FitDevice]:
    """The cheapest or the smallest first; those without a price, or of unknown memory, are last."""

    def key(device: FitDevice) -> tuple[bool, float, int, str]:
        memory = device.usable_bytes or 0
        if by == MEMORY:
            return device.usable_bytes is None, memory, 0, device.name
        return device.price_per_hour is None, device.price_per_hour or 0.0, memory, device.name

    return sorted(devices, key=key)


def orders_of(table: FitTable) -> tuple[str, ...]:
    """The orders in which the cards can be read: by price if two of them have one, and by memory."""
    priced = [device for device in table.devices if device.price_per_hour is not None]
    return (PRICE, MEMORY) if len(priced) > 1 else (MEMORY,)


def smallest_cards(table: FitTable) -> tuple[SmallestCard, ...]:
    """For each setting and context, in each order."""
    return tuple(
        _smallest(table, by, setting, context)
        for by in orders_of(table)
        for context in table.contexts
        for setting in table.settings
        if any(_is_applicable(table.cell(device.name, setting, context)) for device in table.devices)
    )


def _smallest(table: FitTable, by: str, setting: str, context: int | None) -> SmallestCard:
    undecided: list[str] = []
    for device in ordered(table.devices, by):
        cell = table.cell(device.name, setting, context)
        if by == PRICE and device.price_per_hour is None:
            continue
        if cell is None or cell.fits is None:
            undecided.append(device.name)
        elif cell.fits:
            return SmallestCard(
                by=by,
                setting=setting,
                context=context,
                device=device.name,
                largest_batch=cell.largest_batch if cell.takes_batch else None,
                undecided=tuple(undecided),
            )
    return SmallestCard(by=by, setting=setting, context=context, device=None, undecided=tuple(undecided))


def _is_applicable(cell: Cell | None) -> bool:
    return cell is not None and cell.status is not None
