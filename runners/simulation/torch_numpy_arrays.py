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
        found = super().__getitem__(_at_most_all(index))
        return self._with(found.item()) if isinstance(found, np.generic) else found

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What a condition chooses is at most all. Raises Unavailable for functions that have no such bound."""
        if self.assumptions is not None and self.level is Level.ASSUMED:
            name = f"numpy.{func.__name__}"
            if func in CHOOSING and len(args) == 1 and not kwargs:
                self.assumptions.bound(name)
                args = (np.ones(np.shape(args[0]), bool),)
            elif func in DIFFERENT:
                raise self.assumptions.unavailable(name, "numbers that are not calculated decide a size")
        return super().__array_function__(func, types, args, kwargs)

    def nonzero(self) -> Any:
        return np.nonzero(self)

    def __iter__(self) -> Iterator[Any]:
        return (self[each] for each in range(len(self)))

    def item(self, *args: Any) -> Any:
        return self._with(super().item(*args))

    def tolist(self) -> Any:
        return tree_map(self._with, super().tolist())

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


CHOOSING = frozenset({np.where, np.nonzero, np.flatnonzero, np.argwhere})
DIFFERENT = frozenset({np.unique, np.extract, np.compress, np.intersect1d, np.setdiff1d, np.union1d, np.trim_zeros})


def _at_most_all(index: Any) -> Any:
    """An index in which a mask of assumed numbers takes all."""
    if isinstance(index, tuple):
        return tuple(map(_at_most_all, index))
    if not isinstance(index, AssumedArray) or index.dtype != bool or index.level is not Level.ASSUMED:
        return index
    if index.assumptions is not None:
        index.assumptions.bound("numpy.ndarray.__getitem__")
    return np.ones(index.shape, bool)


def assumed(array: Any, level: Level, assumptions: Assumptions) -> Any:
    """The array, which remembers its level; a bound of its elements is no bound of what NumPy makes of them."""
    made = array.view(AssumedArray)
    made.level, made.assumptions = Level.FINITE if level is Level.FINITE else Level.ASSUMED, assumptions
    return made
