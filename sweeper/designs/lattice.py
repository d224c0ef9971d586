"""The points that a search can choose from: ascending values along named dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, product
from operator import add, mul

from sweeper.interval import Interval
from sweeper.objective import Number

LatticePoint = dict[str, Number]
Cell = tuple[int, int]  # a point: the number of its column, and its level in the column
Place = tuple[int, ...]  # a point: its level along each dimension, the longest last

MOST_COLUMNS = 1 << 14


class Lattice:
    """The product of the dimensions, divided into columns along the longest of them.

    Raises ValueError if a dimension's values do not ascend, or if there are more than `MOST_COLUMNS` columns.
    """

    def __init__(self, dimensions: Mapping[str, Sequence[Number]]) -> None:
        for name, values in dimensions.items():
            if not values or (not isinstance(values, Interval) and any(b <= a for a, b in pairwise(values))):
                raise ValueError(f"{name}: a searched dimension needs ascending values, got {values!r}")
        if not dimensions:
            raise ValueError("a search needs a dimension")
        self.dimensions = dict(dimensions)
        self.along = max(dimensions, key=lambda name: len(dimensions[name]))
        self.levels = dimensions[self.along]
        self.others = [name for name in dimensions if name != self.along]
        self.sizes = [len(dimensions[name]) for name in self.others]
        self.width = math.prod(self.sizes)
        if self.width > MOST_COLUMNS:
            raise ValueError(f"{self.width * len(self.levels)} points are too many: give a coarser resolution")
        self._strides = list(accumulate([1, *self.sizes[:-1]], mul)) if self.sizes else []
        self.columns = [tuple(reversed(place)) for place in product(*(range(size) for size in reversed(self.sizes)))]

    def __len__(self) -> int:
        return self.width * len(self.levels)

    def __iter__(self) -> Iterator[Cell]:
        return ((column, level) for column in range(self.width) for level in range(len(self.levels)))

    def point(self, cell: Cell) -> LatticePoint:
        at = dict(zip(self.others, self.columns[cell[0]], strict=True))
        at[self.along] = cell[1]
        return {name: values[at[name]] for name, values in self.dimensions.items()}

    def cell(self, point: Mapping[str, Number]) -> Cell:
        """Raises ValueError if the point is not on the lattice."""
        others = [self.dimensions[name].index(point[name]) for name in self.others]
        return self.cell_at((*others, self.levels.index(point[self.along])))

    def place(self, cell: Cell) -> Place:
        return (*self.columns[cell[0]], cell[1])

    def cell_at(self, place: Sequence[float]) -> Cell:
        return int(sum(map(mul, place, self._strides))), int(place[-1])

    def neighbour(self, cell: Cell, name: str, steps: int = 1) -> Cell | None:
        """The point some steps away along one dimension, or None beyond the end."""
        if name == self.along:
            level = cell[1] + steps
            return (cell[0], level) if 0 <= level < len(self.levels) else None
        which = self.others.index(name)
        if not 0 <= self.columns[cell[0]][which] + steps < self.sizes[which]:
            return None
        return cell[0] + steps * self._strides[which], cell[1]

    def summed(self, rows: list[list[float]], upward: bool) -> list[list[float]]:
        """For each column the sum of the rows of all smaller or equal columns (upward: larger or equal)."""
        rows = list(rows)
        for size, stride in zip(self.sizes, self._strides, strict=True):
            for column in range(self.width - 1, -1, -1) if upward else range(self.width):
                at = column // stride % size
                if upward and at + 1 < size:
                    rows[column] = list(map(add, rows[column], rows[column + stride]))
                elif not upward and at:
                    rows[column] = list(map(add, rows[column], rows[column - stride]))
        return rows
