"""Write docs/columns.md from sweeper/columns.py, where every column is declared.

python docs/write_columns.py
"""

from __future__ import annotations

from pathlib import Path

from sweeper import columns

PAGE = Path(__file__).with_name("columns.md")
ROWS = {
    "points": "One row for each point on each device, with the attempt that counts: the last one that decided whether"
    " the point fits, or else the last one",
    "attempts": "One row for each attempt",
    "phases": "One row for each phase of each attempt, on each device that it used",
    "environment": "One row for each environment that attempts ran in",
    "estimates": "One row for each term of each point's estimate. Estimates are never mixed with measurements",
    "frontier": "One row for each point at the edge between points that fit and points that do not",
}

SEVERAL = """\
## Several runs together

A run has columns for the keys that it swept, so two runs can have different ones. `sweeper.load` unites them: a key
without a column in a run is null in its rows, and `run` tells the runs apart. It also rebuilds what a sweep that broke
off left behind.

```python
import sweeper

frames = sweeper.load(["outputs/before", "outputs/after"])
frames.points.groupby(["run", "kind", "status"], dropna=False).size()
```

The same from the files alone. Each line keeps whole numbers exact.

```python
import pandas as pd

files = ["outputs/before/points.parquet", "outputs/after/points.parquet"]
points = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
```

```python
import polars as pl

points = pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")
```

```python
import duckdb

points = duckdb.sql(f"SELECT * FROM read_parquet({files}, union_by_name = true)")
```

Never average or subtract across `kind`, `device` or `peak_counter`: each of them is another measurement. A join of two
runs is by `point_id` and `device`. An id is a hash of the settled values of a point, and no version is among them."""


def page() -> str:
    parts = [
        "# Columns",
        "Generated from `sweeper/columns.py` by `python docs/write_columns.py`. Each field's metadata in the Parquet"
        " files has the same meaning and unit. Any column may be null: null means not measured, and is never written as"
        " 0. Other keys that were swept or set, and parameters of a custom workload, add columns of the same name to"
        " `points`, `attempts` and `frontier`, prefixed with `dim.` if the name is taken.",
    ]
    for table in columns.TABLES:
        declared: tuple[columns.Column, ...] = getattr(columns, table.upper())
        lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
        lines += [f"| `{c.name}` | {c.type} | {c.unit or ''} | {c.meaning.replace('|', '/')} |" for c in declared]
        parts += [f"## {table}.parquet", ROWS[table] + ".", "\n".join(lines)]
    return "\n\n".join([*parts, SEVERAL]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
