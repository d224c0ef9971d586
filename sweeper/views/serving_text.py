"""How many requests a device can answer at once, and the most tokens a second, below the table of `sweeper fit`."""

from __future__ import annotations

from collections.abc import Sequence

from runners.device import CALCULATED
from sweeper.estimates.generation_speed import FORMULA, PRICE_FORMULA
from sweeper.fit_cells import FitTable
from sweeper.serving import NOT_INCLUDED, CellSpeed, Serving
from sweeper.units import GIB, format_bytes
from sweeper.views.layout import table as aligned

UNKNOWN, PENDING = "-", "..."
MOST_NAMED = 3


def grid(table: FitTable) -> list[str]:
    """Two lines of heads, and a line for each device and length of the prompts."""
    requests = table.servings[0].requests
    is_priced = any(device.price_per_hour is not None for device in table.devices)
    price = ["price/M >="] if is_priced else []
    speed = ["tok/s <=", *price]
    usable = {device.name: device.usable_bytes for device in table.devices}
    rows = [
        ["", "", "", f"{requests} requests", "", *[""] * len(speed), "largest", "", *[""] * len(speed)],
        ["card", "usable", "prompt", "fit", "GiB", *speed, "number", "GiB", *speed],
    ]
    for each in table.servings:
        context = UNKNOWN if each.context is None else f"{each.context:,}"
        asked = [_answer(each), _gib(each.peak_bytes, each.fits is None and _is_pending(each))]
        asked += _speeds(table, each, each.requests, is_priced, each.fits is None and _is_pending(each))
        largest = [_largest(each), _gib(each.largest_peak_bytes, _is_pending(each))]
        largest += _speeds(table, each, each.largest, is_priced, _is_pending(each))
        card = each.device.partition(":")[2] if each.kind == CALCULATED else each.device
        rows.append([card, _gib(usable[each.device]), context, *asked, *largest])
    return aligned(rows, "<" + ">" * (len(rows[0]) - 1))


def legend(table: FitTable) -> list[str]:
    first = table.servings[0]
    lines = [
        f"GiB: the memory that is usable; the peak ({first.counter}) of the {first.requests} requests, without a limit;"
        " and that of the largest number that fits."
    ]
    lines += [line for each in table.servings if (line := _pages(each)) is not None][:1]
    if first.pass_tokens is not None:
        lines.append(
            f"A pass of the prefill reads up to {first.pass_tokens:,} tokens, of one prompt after another"
            " (workload.prefill_chunk; max_num_batched_tokens of a server)."
        )
    lines.append(f"Not included: {'; '.join(NOT_INCLUDED)}. used_by_others=2GiB leaves 2 GiB of the card to them.")
    return lines


def speed_lines(table: FitTable) -> list[str]:
    """The most tokens a second of the cells that generate, marked as arithmetic. Empty if none is known."""
    if not table.speeds:
        return []
    is_priced = any(each.speed.price_per_million_tokens is not None for each in table.speeds)
    formulas = f"{FORMULA}; {PRICE_FORMULA}" if is_priced else FORMULA
    of = ", of all requests together" if table.servings else ""
    lines = [f"Tokens a second at most{of}, by a formula and not from a calculated run: {formulas}."]
    if table.servings:
        each_request = [_of_one(table, each) for each in table.servings]
        return [*lines, *(line for line in each_request if line)] if len(table.servings) <= MOST_NAMED else lines
    for device in table.devices:
        for context in table.contexts:
            found = [each for each in table.speeds if (each.device, each.context) == (device.name, context)]
            if found:
                name = f"{device.name}, " if len(table.devices) > 1 else ""
                at = "" if context is None else f"{name}{context:,} tokens: "
                lines.append(at + ", ".join(map(_sentence, found)))
    return lines


def _of_one(table: FitTable, serving: Serving) -> str:
    """What one request has of it. Empty where it is not known."""
    batches = [serving.requests, *([] if serving.is_open else [serving.largest])]
    found = [each for batch in dict.fromkeys(batches) if (each := _speed(table, serving, batch)) is not None]
    parts = [f"{each.speed.tokens_per_second / each.speed.batch:,.1f} for each of {each.speed.batch}" for each in found]
    name = f"{serving.device}, {serving.context:,} tokens: " if len(table.servings) > 1 else ""
    return f"{name}{', '.join(parts)} requests." if parts else ""


def _sentence(each: CellSpeed) -> str:
    speed = each.speed
    text = f"{speed.tokens_per_second:,.0f} at batch {speed.batch}"
    if speed.price_per_million_tokens is not None:
        text += f" (a million for {speed.price_per_million_tokens:.2f} or more)"
    return text


def _is_pending(each: Serving) -> bool:
    return each.is_open and each.because is None


def _answer(each: Serving) -> str:
    if each.fits is None:
        return PENDING if each.because is None else UNKNOWN
    return "yes" if each.fits else "no"


def _largest(each: Serving) -> str:
    """What fitted so far is no answer."""
    if _is_pending(each):
        return PENDING
    if each.largest is None:
        return UNKNOWN
    return f">={each.largest}" if each.is_at_least else str(each.largest)


def _gib(size: int | None, is_pending: bool = False) -> str:
    if is_pending:
        return PENDING
    return UNKNOWN if size is None else f"{size / GIB:.2f}"


def _speeds(table: FitTable, each: Serving, batch: int | None, is_priced: bool, is_pending: bool) -> list[str]:
    """The most tokens a second of a number of requests, and their price if the card has one."""
    if is_pending:
        return [PENDING] * (1 + is_priced)
    found = _speed(table, each, batch)
    texts = [UNKNOWN if found is None else f"{found.speed.tokens_per_second:,.0f}"]
    price = None if found is None else found.speed.price_per_million_tokens
    return [*texts, *([UNKNOWN if price is None else f"{price:.2f}"] if is_priced else [])]


def _speed(table: FitTable, each: Serving, batch: int | None) -> CellSpeed | None:
    wanted = (each.device, each.context, batch)
    found: Sequence[CellSpeed] = table.speeds
    return next((one for one in found if (one.device, one.context, one.speed.batch) == wanted), None)


def _pages(each: Serving) -> str | None:
    if each.request_bytes is None or each.request_pages is None or each.context is None:
        return None
    return (
        f"A request of {each.context:,} tokens with an answer of {each.new_tokens:,} (workload.new_tokens) has"
        f" {each.request_pages:,} pages of 16 tokens in every layer: {format_bytes(each.request_bytes)}."
    )
