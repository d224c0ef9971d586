"""The points that a search may choose from: ordered values along named dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, product
from operator import add

from sweeper.interval import Interval
from sweeper.objective import Number

LatticePoint = dict[str, Number]


Cell = tuple[int, int]  # a point inside: the number of its column, and its level along the lattice's longest dimension


MOST_COLUMNS = 1 << 14


class Lattice:
    """The product of the dimensions, seen as columns along its longest: two bounds a column say all that is closed."""

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
        self.strides = list(accumulate([1, *self.sizes[:-1]], lambda a, b: a * b)) if self.sizes else []
        self.places = [tuple(reversed(place)) for place in product(*(range(size) for size in reversed(self.sizes)))]
        self._points: dict[Cell, LatticePoint] = {}

    def __len__(self) -> int:
        return self.width * len(self.levels)

    def __iter__(self) -> Iterator[Cell]:
        return ((column, level) for column in range(self.width) for level in range(len(self.levels)))

    def point(self, cell: Cell) -> LatticePoint:
        at = dict(zip(self.others, self.places[cell[0]], strict=True))
        at[self.along] = cell[1]
        return {name: values[at[name]] for name, values in self.dimensions.items()}

    def cell(self, point: Mapping[str, Number]) -> Cell:
        """Raises ValueError for a point that is not on the lattice."""
        column = sum(
            stride * self.dimensions[name].index(point[name])
            for name, stride in zip(self.others, self.strides, strict=True)
        )
        return column, self.levels.index(point[self.along])

    def columns_from(self, column: int, upward: bool) -> list[int]:
        """The columns whose other values are all as big or bigger (or as small or smaller), itself included."""
        ranges = [
            range(at * stride, size * stride, stride) if upward else range(0, (at + 1) * stride, stride)
            for at, size, stride in zip(self.places[column], self.sizes, self.strides, strict=True)
        ]
        return [sum(parts) for parts in product(*ranges)]

    def covers(self, big: Cell, small: Cell) -> bool:
        return big[1] >= small[1] and all(
            b >= s for b, s in zip(self.places[big[0]], self.places[small[0]], strict=True)
        )

    def neighbour(self, cell: Cell, name: str, steps: int = 1) -> Cell | None:
        """The point some steps on along one dimension, if the lattice has it."""
        if name == self.along:
            level = cell[1] + steps
            return (cell[0], level) if 0 <= level < len(self.levels) else None
        which = self.others.index(name)
        if not 0 <= self.places[cell[0]][which] + steps < self.sizes[which]:
            return None
        return cell[0] + steps * self.strides[which], cell[1]

    def summed(self, rows: list[list[float]], upward: bool) -> list[list[float]]:
        """For each column the sum of the rows of all that are as small or smaller (upward: as big or bigger)."""
        rows = list(rows)
        for size, stride in zip(self.sizes, self.strides, strict=True):
            for column in range(self.width - 1, -1, -1) if upward else range(self.width):
                at = column // stride % size
                if upward and at + 1 < size:
                    rows[column] = list(map(add, rows[column], rows[column + stride]))
                elif not upward and at:
                    rows[column] = list(map(add, rows[column], rows[column - stride]))
        return rows
