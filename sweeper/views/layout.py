"""Lines, columns and `key=value` words: what several views print in the same way."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sweeper.estimates.memory_terms import MemoryTerm
from sweeper.plan import typed_value
from sweeper.units import format_both, format_bytes


def indent(lines: Iterable[str], spaces: int = 2) -> list[str]:
    """Indents each line that is not empty."""
    return [" " * spaces + line if line else line for line in lines]


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
