"""Signs for what fits, and the frontier so far as a small grid of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Key = tuple[Any, Any]


class Sign(NamedTuple):
    """A sign tells what its colour tells, for those who do not see colours."""

    letter: str
    plain: str  # where the output's encoding lacks the letter
    style: str

    def __str__(self) -> str:
        return self.letter if _has(self.letter) else self.plain


FITS = Sign("✓", "+", "green")
FAILS = Sign("✗", "x", "red")
UNDECIDED = Sign("?", "?", "yellow")
OPEN = Sign("·", ".", "dim")  # planned, and not known yet
SIGNS: Mapping[bool | None, Sign] = {True: FITS, False: FAILS, None: UNDECIDED}


def _has(letter: str) -> bool:
    """Whether stdout can have a letter. Some encodings lack the signs."""
    try:
        letter.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Grid(NamedTuple):
    """Marks over two dimensions. `signs`: by the values across and down."""

    across: str
    down: str
    columns: Sequence[Any]
    rows: Sequence[Any]
    signs: Mapping[Key, Sign]


def grid_lines(grid: Grid) -> list[list[tuple[str, str]]]:
    """Lines of pieces with their styles: a heading with the values across, and a line for each value down.

    The heading names both keys: `context | batch  1  2`.
    """
    names = [str(value) for value in grid.rows]
    corner = f"{grid.down} | {grid.across}"
    left = max(map(len, (corner, *names)))
    label = left - len(corner) + len(grid.down)  # the values down stand below their key
    widths = [max(len(str(value)), 1) for value in grid.columns]
    values = "  ".join(f"{value:>{width}}" for value, width in zip(map(str, grid.columns), widths, strict=True))
    lines = [[(f"{corner:>{left}}  {values}", "dim")]]
    for value, name in zip(grid.rows, names, strict=True):
        line = [(f"{f'{name:>{label}}':{left}}", "dim")]
        for at, width in zip(grid.columns, widths, strict=True):
            sign = grid.signs.get((at, value), OPEN)
            line.append((f"{sign!s:>{width + 2}}", sign.style))
        lines.append(line)
    return lines
