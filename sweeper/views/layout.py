"""Lines, columns and `key=value` words: what several views print in the same way."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runners.outcome import UNAVAILABLE
from sweeper.estimates.memory_terms import MemoryTerm
from sweeper.plan import typed_value
from sweeper.screen import in_one_line
from sweeper.units import format_both, format_bytes

LONGEST_MESSAGE = 160  # characters of an exception on the screen; the tables have all of it
# huggingface_hub's words before the cause, which would leave no room for the figures in it
WRAPPED = re.compile(r"Class validation error for validator '\w+': (\w+): (?=\S)")
LONGEST_OF_OURS = 320  # of a message that sweeper wrote: it names the cure


def error_text(error_type: str | None, message: str | None) -> str:
    """An exception in one line: its class without the module, and the first line of its message.

    The class is left out where sweeper itself raised it.
    """
    lines = [" ".join(line.split()) for line in (message or "").strip().splitlines()]
    announces = bool(lines) and lines[0].endswith(":")  # the useful part follows it, as the arguments of an operator
    first = " ".join(lines[: 2 if announces else 1])
    if error_type is None or error_type == UNAVAILABLE:
        return shortened(first, LONGEST_OF_OURS)
    name = in_one_line(error_type).rpartition(".")[2]
    if cause := WRAPPED.match(first):
        name, first = cause[1], first[cause.end() :]
    return shortened(f"{name}: {first}" if first else name, LONGEST_OF_OURS if announces else LONGEST_MESSAGE)


def shortened(text: str, longest: int) -> str:
    """At most `longest` characters, cut between two words: `the first words ...`. One long word is cut itself."""
    if len(text) <= longest:
        return text
    words = text[: longest - 3].rpartition(" ")[0].rstrip(" ,;:(")
    return f"{words} ..." if words else text[: longest - 3] + "..."


def indent(lines: Iterable[str], spaces: int = 2) -> list[str]:
    """Indents each line that is not empty."""
    return [" " * spaces + line if line else line for line in lines]


def wrapped(lines: Iterable[str], width: int | None) -> Iterator[str]:
    """Each line within `width` columns; what follows the first stands four columns further right."""
    for line in lines:
        if width is None or len(line) <= width:
            yield line
            continue
        blanks = " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(
            line.strip(),
            max(width, len(blanks) + 20),
            initial_indent=blanks,
            subsequent_indent=blanks + "    ",
            break_on_hyphens=False,
        )


def wrapped_text(text: str, width: int | None) -> str:
    return "\n".join(wrapped(text.splitlines(), width))


def table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Rows as lines with aligned columns. `align`: `<` (left) or `>` (right) for each column.

    Rows without any text, such as an empty head, are left out.
    """
    shown = [row for row in rows if any(row)]
    widths = [max((len(row[place]) for row in shown), default=0) for place in range(len(align))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in shown
    ]


def signed_percent(hundredths: int, difference: int) -> str:
    """`-0.00 %` for a small decrease: the sign is that of the difference, which rounding can lose."""
    return f"{'-' if difference < 0 else '+'}{abs(hundredths) // 100}.{abs(hundredths) % 100:02d} %"


def assignments(values: Mapping[str, Any], keys: Iterable[str] | None = None) -> str:
    """`batch=1 context=64`, as it would be typed on a command line. `keys`: which, by default all."""
    return " ".join(f"{key}={typed_value(key, values.get(key))}" for key in (values if keys is None else keys))


def counts(found: Mapping[str, int]) -> str:
    """`4 ok, 2 oom`."""
    return ", ".join(f"{count} {name}" for name, count in found.items())


def handled(refusals: int, largest_bytes: int | None) -> str:
    """Why a pass with refused allocations decides nothing, in words."""
    what = "a refused allocation" if refusals == 1 else f"{refusals} refused allocations"
    size = (
        "" if largest_bytes is None else f"{' ' if refusals == 1 else ', the largest '}of {format_bytes(largest_bytes)}"
    )
    return f"undecided: the workload continued after {what}{size}"


def over_budget(used_bytes: int, budget_bytes: int) -> str:
    """Why a pass that held more than its budget decides nothing, in words."""
    used, budget = format_bytes(used_bytes), format_bytes(budget_bytes)
    return f"undecided: it used {used}, shared memory included, and a budget ({budget}) does not limit shared memory"


def other_processes(count: int, resident_bytes: int) -> str:
    """What processes that the workload started held. The sum counts pages that they share in each."""
    return f"{format_bytes(resident_bytes)} in {count} other process{'' if count == 1 else 'es'}"


def more(total: int, shown: int, noun: str = "") -> list[str]:
    """A line that counts what is left out on the screen, if anything is."""
    left = total - shown
    return [f"... and {left:,} more{' ' + noun if noun else ''}: --json lists all"] if left > 0 else []


def named(name: str, text: str, width: int | None) -> str:
    """A name and its text, wrapped to `width` columns below the text's first word. None: one line."""
    first = f"{name:<10} "
    return textwrap.fill(
        text, width or 10**6, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )


def term_lines(terms: Iterable[MemoryTerm], width: int = 10) -> Iterator[str]:
    """The bytes of each term, its formula, its assumption and its source, below one another."""
    for term in terms:
        yield f"{term.term:<{width}} {format_both(term.bytes)}"
        yield f"{'':<{width}} = {term.formula}"
        yield f"{'':<{width}} assumed: {term.assumption}"
        yield f"{'':<{width}} source: {term.source}"
