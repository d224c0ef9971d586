"""The keys in which the points of a run differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper import columns
from sweeper.effects import families
from sweeper.rows import Row
from sweeper.settled_keys import without_followers


def dimensions_of(rows: Sequence[Row]) -> list[str]:
    """Those that a sweep varied, then those that differ between the sweeps into the folder."""
    varied = families.dimensions_of(rows)
    usual = [column.name for column in columns.DIMENSIONS if column.name not in varied]
    differ = [key for key in usual if len({row[key] for row in rows}) > 1]
    if not differ:
        return varied
    configs = {tuple(row[key] for key in differ): row["config"] for row in rows}  # one of each combination
    kept = without_followers([*varied, *differ], configs.values())
    return [*varied, *(key for key in differ if key in kept)]
