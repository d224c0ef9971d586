"""Writes docs/columns.md from the schema, which is the only place where a column is declared.

python docs/write_columns.py
"""

from __future__ import annotations

from pathlib import Path

from sweeper import columns as schema

PAGE = Path(__file__).with_name("columns.md")
ROWS = {
    "points": "one row for each point on each device: the attempt that counts",
    "attempts": "one row for each attempt, all of them",
    "phases": "one row for each phase of each attempt on each device it used",
    "environment": "one row for each surroundings that attempts ran in",
    "estimates": "one row for each term of each point: calculated, never mixed with what was measured",
    "frontier": "one row for each point at the edge between what fits and what does not",
}


def page() -> str:
    parts = [
        "# Columns",
        "Written by `python docs/write_columns.py` from `sweeper/columns.py`; the same meanings stand in each field's"
        " metadata. Every column may be null: null is what was not measured, and never 0. A swept key that is not among"
        " the usual ones adds a column of its own name to `points` and `attempts`, with the prefix `dim.` if the name"
        " is taken.",
    ]
    for table in schema.TABLES:
        columns: tuple[schema.Column, ...] = getattr(schema, table.upper())
        lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
        lines += [f"| `{c.name}` | {c.type} | {c.unit or ''} | {c.meaning.replace('|', '/')} |" for c in columns]
        parts += [f"## {table}.parquet", ROWS[table][0].upper() + ROWS[table][1:] + ".", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
