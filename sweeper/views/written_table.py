"""Tables for other programs: CSV with plain numbers, and Markdown for an issue or a pull request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any


def as_csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A value that is not known is an empty cell; a mapping or a list is JSON."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return written.getvalue().removesuffix("\n")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def as_markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """`align`: `<` (left) or `>` (right) for each column."""
    marks = [":---" if side == "<" else "---:" for side in align]
    return "\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in (heads, marks, *rows))


def _escaped(cell: str) -> str:
    """Text, where a page shows the Markdown as HTML too."""
    text = cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(text.split())
