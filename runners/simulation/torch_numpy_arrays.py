"""NumPy's arrays of assumed numbers: what a program computes from them on the host remembers that it is assumed.

NumPy keeps the class of an array in arithmetic, comparisons, slices and sums. It drops the class where a function makes
an array of a list of others (`np.concatenate`) or asks for a plain one (`np.asarray`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils._pytree import tree_map

from runners.simulation.levels import Level

if TYPE_CHECKING:
    from runners.simulation.assumptions import Assumptions


class AssumedArray(np.ndarray):
    """Made by `assumed`."""

    level: Level
    assumptions: Assumptions | None

    def __array_finalize__(self, made_from: Any) -> None:
        self.level = getattr(made_from, "level", Level.ASSUMED)
        self.assumptions = getattr(made_from, "assumptions", None)

    def _with(self, value: Any) -> Any:
        return value if self.assumptions is None else self.assumptions.remembering(value, self.level)

    def _plain(self) -> Any:
        return self.view(np.ndarray)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, AssumedArray) and index.dtype == bool:
            index = index._true_everywhere("numpy.index")
        found = super().__getitem__(index)
        return self._with(found.item()) if isinstance(found, np.generic) else found

    def __iter__(self) -> Iterator[Any]:
        return (self[each] for each in range(len(self)))

    def item(self, *args: Any) -> Any:
        return self._with(super().item(*args))

    def tolist(self) -> Any:
        return tree_map(self._with, super().tolist())

    def nonzero(self) -> Any:
        """The positions of at most all elements."""
        return self._true_everywhere("numpy.nonzero").nonzero()

    def _true_everywhere(self, operator: str) -> Any:
        """In place of a mask that is not calculated, of which at most all elements are true."""
        if self.assumptions is None or self.level <= Level.FINITE:
            return self._plain()
        self.assumptions.bound(operator)
        return np.ones(self.shape, dtype=bool)

    def argmax(self, *args: Any, **options: Any) -> Any:
        return self._position(super().argmax(*args, **options))

    def argmin(self, *args: Any, **options: Any) -> Any:
        return self._position(super().argmin(*args, **options))

    def _position(self, found: Any) -> Any:
        return self._with(found.item()) if isinstance(found, np.generic) else found

    def __bool__(self) -> bool:
        value = bool(self._plain())
        return value if self.assumptions is None else self.assumptions.truth(value, self.level, "numpy.bool")

    def __int__(self) -> int:
        return self._whole("int")

    def __index__(self) -> int:
        return self._whole("index")

    def _whole(self, operator: str) -> int:
        value = int(self._plain())
        return value if self.assumptions is None else self.assumptions.whole(value, self.level, operator)

    def __reduce__(self) -> Any:
        return self._plain().__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)


def assumed(array: Any, level: Level, assumptions: Assumptions) -> Any:
    """The array, which remembers its level; a bound of its elements is no bound of what NumPy makes of them."""
    made = array.view(AssumedArray)
    made.level, made.assumptions = Level.FINITE if level is Level.FINITE else Level.ASSUMED, assumptions
    return made
