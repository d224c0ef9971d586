"""How many requests a device can answer at once, and the most tokens a second, below the table of `sweeper fit`."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.estimates.generation_speed import FORMULA, PRICE_FORMULA
from sweeper.fit_cells import FitTable
from sweeper.serving import NOT_INCLUDED, CellSpeed, Serving
from sweeper.units import GIB, format_bytes
from sweeper.views.layout import table as aligned

UNKNOWN, PENDING = "-", "..."


def grid(table: FitTable) -> list[str]:
    """A line for each device and length of the prompts."""
    requests = table.servings[0].requests
    is_priced = any(device.price_per_hour is not None for device in table.devices)
    head = ["device", "prompt", f"{requests} requests", "GiB", "largest", "GiB", "tokens/s <="]
    rows = [[*head, *(["price/M >="] if is_priced else [])]]
    for each in table.servings:
        speed = _speed(table, each, each.largest)
        rows.append(
            [
                each.device,
                UNKNOWN if each.context is None else f"{each.context:,}",
                _answer(each),
                _gib(each.peak_bytes),
                _largest(each),
                _gib(each.largest_peak_bytes),
                UNKNOWN if speed is None else f"{speed.speed.tokens_per_second:,.0f}",
                *([_price(speed)] if is_priced else []),
            ]
        )
    return aligned(rows, "<" + ">" * (len(rows[0]) - 1))


def legend(table: FitTable) -> list[str]:
    first = table.servings[0]
    lines = [
        f"GiB: the peak ({first.counter}) of the {first.requests} requests, without a limit, and of the largest number"
        " that fits."
    ]
    lines += [line for each in table.servings if (line := _pages(each)) is not None][:1]
    if first.pass_tokens is not None:
        lines.append(
            f"A pass of the prefill reads up to {first.pass_tokens:,} tokens, of one prompt after another"
            " (workload.prefill_chunk; max_num_batched_tokens of a server)."
        )
    lines.append(f"Not included: {'; '.join(NOT_INCLUDED)}. used_by_others=2GiB takes some of it off the card.")
    return lines


def speed_lines(table: FitTable) -> list[str]:
    """The most tokens a second of the cells that generate, marked as arithmetic. Empty if none is known."""
    if not table.speeds:
        return []
    is_priced = any(each.speed.price_per_million_tokens is not None for each in table.speeds)
    formulas = f"{FORMULA}; {PRICE_FORMULA}" if is_priced else FORMULA
    lines = [f"Tokens a second at most, arithmetic and not calculated: {formulas}."]
    if table.servings:
        return lines
    for device in table.devices:
        for context in table.contexts:
            found = [each for each in table.speeds if (each.device, each.context) == (device.name, context)]
            if found:
                name = f"{device.name}, " if len(table.devices) > 1 else ""
                at = "" if context is None else f"{name}{context:,} tokens: "
                lines.append(at + ", ".join(map(_sentence, found)))
    return lines


def _sentence(each: CellSpeed) -> str:
    speed = each.speed
    text = f"{speed.tokens_per_second:,.0f} at batch {speed.batch}"
    if speed.price_per_million_tokens is not None:
        text += f" (a million for {speed.price_per_million_tokens:.2f} or more)"
    return text


def _answer(each: Serving) -> str:
    if each.fits is None:
        return PENDING if each.because is None else UNKNOWN
    return "yes" if each.fits else "no"


def _largest(each: Serving) -> str:
    if each.largest is None:
        return PENDING if each.because is None else UNKNOWN
    return f">={each.largest}" if each.is_at_least else str(each.largest)


def _gib(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / GIB:.2f}"


def _price(speed: CellSpeed | None) -> str:
    price = None if speed is None else speed.speed.price_per_million_tokens
    return UNKNOWN if price is None else f"{price:.2f}"


def _speed(table: FitTable, each: Serving, batch: int | None) -> CellSpeed | None:
    wanted = (each.device, each.context, batch)
    found: Sequence[CellSpeed] = table.speeds
    return next((one for one in found if (one.device, one.context, one.speed.batch) == wanted), None)


def _pages(each: Serving) -> str | None:
    if each.request_bytes is None or each.request_pages is None or each.context is None:
        return None
    return (
        f"A request of {each.context:,} tokens and {each.new_tokens} new ones has {each.request_pages:,} pages of 16"
        f" tokens in every layer: {format_bytes(each.request_bytes)}."
    )
