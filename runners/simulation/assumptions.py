"""Numbers that a program reads and that are not calculated: what it is given instead, and where it asked.

An assumed number remembers that it is one, and so does what is calculated from it in Python. Where it decides how large
something is or how often something is done, a bound is taken if one is known, and else the point is unavailable.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Any

from runners.phases import Unavailable
from runners.simulation.branches import loop_test

TORCH = f"{os.sep}torch{os.sep}"
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MOST_TESTS = 100_000  # assumed tests of one loop, after which it is taken as one that does not end
MOST_PLACES = 50  # that are named one by one
AT_MOST_ALL = "at most all"


class Level(IntEnum):
    """How far a number is known."""

    KNOWN = 0
    FINITE = 1  # follows from the assumption that numbers are finite
    BOUND = 2  # the most that it can be
    ASSUMED = 3


class Assumptions:
    """What was assumed in a traced run. `assume` is the value of a number that is not known."""

    def __init__(self, assume: float = 1.0, folder: str = ".") -> None:
        self.assume = assume
        self.handed_out = False  # whether the program has a number that remembers where it comes from
        self.on_failure: Callable[[str], None] = lambda message: None
        self.on_place: Callable[[], None] = lambda: None  # called at the first assumed number and at each new bound
        self._folder = os.path.abspath(folder)
        self._libraries = tuple(os.path.join(path, "") for path in sys.path if path.endswith("-packages"))
        self.count = 0  # how often a number was read that is assumed
        self._assumed: dict[tuple[str, int, str, str], int] = {}
        self._bounds: dict[tuple[str, int, str, str, str], int] = {}
        self._tests: dict[tuple[str, int], int] = {}

    # --- what was asked ---

    @property
    def has_bounds(self) -> bool:
        return bool(self._bounds)

    def on_end(self) -> None:
        if self._assumed or self._bounds:
            self.on_place()

    def described_bounds(self) -> str:
        file, line, _, operator, bound = next(iter(self._bounds))
        return f"{file}:{line}, {operator} was taken as {bound}"

    def facts(self) -> dict[str, Any]:
        """The fields of facts.Assumed."""
        keys = ("file", "line", "function", "operator", "bound")
        return {
            "values": self.count,
            "places": [
                {**dict(zip(keys, place, strict=False)), "times": times}
                for place, times in list(self._assumed.items())[:MOST_PLACES]
            ],
            "bounds": [
                {**dict(zip(keys, place, strict=False)), "times": times}
                for place, times in list(self._bounds.items())[:MOST_PLACES]
            ],
        }

    # --- what is answered ---

    def number(self, value: Any, level: Level, operator: str) -> Any:
        """The Python number that the program is given, which remembers its level."""
        if level is Level.KNOWN:
            return value
        if isinstance(value, bool):
            return self.truth(value, level, operator)
        self.note(operator)
        return self.remembering(value, level)

    def remembering(self, value: Any, level: Level) -> Any:
        if isinstance(value, int):
            self._hand_out()
            made: Any = AssumedInt(value)
        elif isinstance(value, float):
            made = AssumedFloat(value)
        else:
            return value
        made.level, made.assumptions = level, self
        return made

    def truth(self, value: bool, level: Level, operator: str, comparing: bool = False) -> bool:
        """The truth of an assumed value. A loop that it could end goes on. Raises Unavailable if it cannot end then."""
        frame = asking_frame(skips_torch=False)
        test = None if frame is None or level is Level.FINITE else loop_test(frame, comparing)
        if test is None:
            if not comparing:
                self.note(operator)
            return value
        if not test.ends:
            raise self.unavailable(operator, f"an assumed number decides when the loop ends ({test.statement})")
        place = self.place()[:2]
        self._tests[place] = self._tests.get(place, 0) + 1
        if self._tests[place] > MOST_TESTS:
            raise self.unavailable(operator, f"the loop did not end after {MOST_TESTS} assumed tests")
        self.bound(operator, f"as if no {test.statement}" if test.statement != "while" else "as long as it may go on")
        return test.goes_on

    def whole(self, value: int, level: Level, operator: str) -> int:
        """An exact int, as Python demands of int() and of an index: it cannot remember where it comes from."""
        if level is Level.BOUND:
            self.bound(operator)
        else:
            self.note(operator)
        return value

    def note(self, operator: str) -> None:
        """Count a number that the program reads."""
        key = (*self.place(), operator)
        self._assumed[key] = self._assumed.get(key, 0) + 1
        self.count += 1
        if self.count == 1:
            self.on_place()

    def bound(self, operator: str, bound: str = AT_MOST_ALL) -> None:
        key = (*self.place(), operator, bound)
        self._bounds[key] = self._bounds.get(key, 0) + 1
        if self._bounds[key] == 1 and len(self._bounds) <= MOST_PLACES:
            self.on_place()

    def size(self, number: Any, operator: str) -> None:
        """An assumed number decides a shape or how often a loop runs. Raises Unavailable if it has no bound."""
        if number.level is Level.ASSUMED:
            raise self.unavailable(operator, "a number that is not calculated decides a size")
        if number.level is Level.BOUND:
            self.bound(operator)

    def unavailable(self, operator: Any, why: str) -> Unavailable:
        file, line, function = self.place()
        message = f"{file}:{line} ({function}), {operator}: {why}"
        self.on_failure(message)
        return Unavailable(message)

    # --- where ---

    def place(self) -> tuple[str, int, str]:
        """File, line and function of the code that asks, as the user knows the file."""
        frame = asking_frame(skips_torch=True)
        if frame is None:
            return "the workload", 0, "result"
        return self.named(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name

    def named(self, file: str) -> str:
        if not os.path.isabs(file):
            return file
        for folder in self._libraries:
            if file.startswith(folder):
                return file[len(folder) :]
        inside = os.path.relpath(file, self._folder)
        return file if inside.startswith(os.pardir) else inside

    # --- loops ---

    def _hand_out(self) -> None:
        self.handed_out = True

    @contextmanager
    def watching_loops(self) -> Iterator[None]:
        """Notice an assumed number in `range`, which would forget that it is one."""
        before = builtins.range
        builtins.range = _Range  # type: ignore[misc]
        try:
            yield
        finally:
            builtins.range = before  # type: ignore[misc]


def asking_frame(skips_torch: bool) -> FrameType | None:
    """The innermost frame outside of this package, and outside of torch if so asked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_torchs = skips_torch and (TORCH in file or file.startswith("<"))
        if not file.startswith(OWN) and not is_torchs:
            return frame
        frame = frame.f_back
    return None


_range = range


class _RangeType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _range)


class _Range(metaclass=_RangeType):
    def __new__(cls, *limits: Any) -> Any:
        for limit in limits:
            if type(limit) is AssumedInt:
                limit.assumptions.size(limit, "range")
        return _range(*limits)


# --- numbers that remember --------------------------------------------------------------------------------------------


class _Assumed:
    level: Level
    assumptions: Assumptions

    def __reduce__(self) -> Any:  # a copy or a file has a plain number
        plain: Any = _plain(self)
        return type(plain), (plain,)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __round__(self, digits: Any = None) -> Any:
        plain = _plain(self)
        return self.assumptions.remembering(round(plain) if digits is None else round(plain, digits), self.level)

    def _whole(self, name: str) -> Any:
        return self.assumptions.remembering(getattr(_plain(self), name)(), self.level)

    def __trunc__(self) -> Any:
        return self._whole("__trunc__")

    def __floor__(self) -> Any:
        return self._whole("__floor__")

    def __ceil__(self) -> Any:
        return self._whole("__ceil__")

    def __hash__(self) -> int:
        return hash(_plain(self))


class AssumedInt(_Assumed, int):
    """A whole number."""


class AssumedFloat(_Assumed, float):
    """A floating-point number."""


def _plain(number: Any) -> Any:
    return int.__add__(number, 0) if isinstance(number, int) else float.__add__(number, 0.0)


# Of a bound and a number that is known and not negative, these give a bound again.
KEEP_BOUNDS = frozenset({"__add__", "__radd__", "__mul__", "__rmul__", "__sub__", "__floordiv__", "__truediv__"})

FALLING = frozenset({"__sub__", "__floordiv__", "__truediv__"})  # in the second number


def _arithmetic(name: str) -> Callable[..., Any]:
    def operate(self: Any, *others: Any) -> Any:
        plain = _plain(self)
        if name == "__rmul__" and isinstance(others[0], (list, tuple, str, bytes)):
            self.assumptions.size(self, "*")
        result = getattr(plain, name)(*(_plain(each) if isinstance(each, _Assumed) else each for each in others))
        if result is NotImplemented or isinstance(result, tuple):
            return result
        level = self.level
        for other in others:
            if isinstance(other, _Assumed):
                level = max(level, other.level)
        if level is Level.BOUND and not _keeps_bound(name, others):
            level = Level.ASSUMED
        return self.assumptions.remembering(result, level)

    return operate


def _keeps_bound(name: str, others: Any) -> bool:
    is_known = not any(isinstance(each, _Assumed) for each in others)
    return name in KEEP_BOUNDS and (is_known or name not in FALLING) and all(_plain(each) >= 0 for each in others)


SIGNS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=", "__eq__": "==", "__ne__": "!="}


def _comparison(name: str) -> Callable[..., Any]:
    def compare(self: Any, other: Any) -> Any:
        result = getattr(_plain(self), name)(_plain(other) if isinstance(other, _Assumed) else other)
        if result is NotImplemented:
            return result
        return self.assumptions.truth(result, self.level, SIGNS[name], comparing=True)

    return compare


BOTH = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _name in (*(f"__{each}__" for each in BOTH), *(f"__r{each}__" for each in BOTH), "__neg__", "__abs__", "__pos__"):
    setattr(AssumedInt, _name, _arithmetic(_name))
    setattr(AssumedFloat, _name, _arithmetic(_name))
for _name in SIGNS:
    setattr(AssumedInt, _name, _comparison(_name))
    setattr(AssumedFloat, _name, _comparison(_name))
