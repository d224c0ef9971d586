"""Python numbers that remember that they are assumed.

What Python calculates from one is one again. A function written in C reads a number without its type, for a slice of a
list, for NumPy or for `int(x)`. So a whole number is no `int` to C, only to `isinstance`: C then asks it for its value,
and what becomes of that is judged there (assumptions.py). To PyTorch it is a torch.SymInt, which is accepted wherever a
whole number is. A floating-point number cannot become a size unless it is made whole first.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from runners.simulation.levels import Level

if TYPE_CHECKING:
    from runners.simulation.assumptions import Assumptions

OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
NUMPY = f"{os.sep}numpy{os.sep}"
SEQUENCES = (list, tuple, str, bytes, bytearray)


class _Assumed:
    """What whole and other numbers have in common."""

    level: Level
    assumptions: Assumptions

    def __reduce__(self) -> Any:  # a copy of another process, or a file, has a plain number
        plain: Any = plain_of(self)
        return type(plain), (plain,)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __hash__(self) -> int:
        self.assumptions.hashed(self.level)
        return hash(plain_of(self))

    def __round__(self, digits: Any = None) -> Any:
        plain = plain_of(self)
        return self._with(round(plain) if digits is None else round(plain, digits))

    def __trunc__(self) -> Any:
        return self._with(math.trunc(plain_of(self)))

    def __floor__(self) -> Any:
        return self._with(math.floor(plain_of(self)))

    def __ceil__(self) -> Any:
        return self._with(math.ceil(plain_of(self)))

    def __int__(self) -> int:
        return self.assumptions.whole(int(plain_of(self)), self.level, "int")

    def __float__(self) -> float:
        value = float(plain_of(self))
        if sys._getframe(1).f_code.co_filename.startswith(OWN):
            return value
        return self.assumptions.real(value, self.level, "float")

    def __bool__(self) -> bool:
        return self.assumptions.truth(bool(plain_of(self)), self.level, "bool", of_number=True)

    def __format__(self, form: str) -> str:
        return format(plain_of(self), form)

    def __str__(self) -> str:
        return str(plain_of(self))

    def __repr__(self) -> str:
        return repr(plain_of(self))

    def as_integer_ratio(self) -> Any:
        return plain_of(self).as_integer_ratio()  # for exact fractions, of which no size is made

    def is_integer(self) -> bool:
        return float(plain_of(self)).is_integer()

    def conjugate(self) -> Any:
        return self

    item = tolist = conjugate  # as a number of an array has them
    real = property(conjugate)
    imag = property(lambda self: 0)

    def _with(self, value: Any) -> Any:
        return self.assumptions.remembering(value, self.level)


class AssumedFloat(_Assumed, float):
    """A floating-point number."""

    __slots__ = ("assumptions", "level")


class AssumedInt(_Assumed, torch.SymInt):
    """A whole number."""

    __slots__ = ("assumptions", "level", "plain")
    __array_priority__ = 1000.0  # NumPy's numbers leave the arithmetic to this class

    def __new__(cls, plain: Any) -> Any:
        """A plain number for one that is not whole: `statistics` makes a mean by the class of the numbers."""
        return super().__new__(cls) if type(plain) is int else float(plain)

    def __init__(self, plain: int) -> None:
        self.plain = plain

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    @property
    def node(self) -> Any:
        """Asked by PyTorch where no program's device has taken the number out before."""
        return _Node(self)

    def __index__(self) -> int:
        if sys._getframe(1).f_code.co_filename.startswith(OWN):  # it is stored as what the program reports
            return self.plain
        return self.assumptions.whole(self.plain, self.level, "index")

    def __int__(self) -> int:
        if NUMPY in sys._getframe(1).f_code.co_filename:  # an array's element, of which NumPy computes
            self.assumptions.note("numpy.array")
            return self.plain
        return super().__int__()

    def __complex__(self) -> complex:
        return complex(self.plain)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        self.assumptions.note("numpy.array")
        return np.array(self.plain, dtype)

    def generate_state(self, words: int, dtype: Any = None) -> Any:
        """As numpy.random.SeedSequence does. A seed of another class than `int` must have this for NumPy."""
        import numpy as np

        self.assumptions.note("numpy.random")
        return np.random.SeedSequence(self.plain).generate_state(words, np.uint32 if dtype is None else dtype)

    def bit_length(self) -> Any:
        return self._with(self.plain.bit_length())

    def bit_count(self) -> Any:
        return self._with(self.plain.bit_count())

    def to_bytes(self, *args: Any, **options: Any) -> bytes:
        return self.plain.to_bytes(*args, **options)

    numerator = property(_Assumed.conjugate)
    denominator = property(lambda self: 1)


numbers.Integral.register(AssumedInt)


class _Node:
    """What PyTorch asks of a torch.SymInt."""

    def __init__(self, number: AssumedInt) -> None:
        self._number = number

    def is_int(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return False

    def guard_int(self, file: Any = None, line: Any = None) -> int:
        return self._number.assumptions.given_to_torch(self._number)

    int_ = expect_size = guard_int

    def maybe_as_int(self) -> int:
        return self.guard_int()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def plain_of(number: Any) -> Any:
    """The number that does not remember."""
    kind = type(number)
    if kind is AssumedInt:
        return number.plain
    return float.__add__(number, 0.0) if kind is AssumedFloat else number


def is_assumed(value: Any) -> bool:
    kind = type(value)
    return kind is AssumedInt or kind is AssumedFloat


def level_of_array(value: Any) -> Level:
    """That of an array of NumPy's (assumed_arrays.py)."""
    return value.level if type(value).__name__ == "AssumedArray" else Level.KNOWN


# --- arithmetic -------------------------------------------------------------------------------------------------------

# These give a bound again for a bound and a number that is known and not negative.
KEEP_BOUNDS = frozenset({"add", "mul", "sub", "floordiv", "truediv", "lshift", "rshift"})
FALLING = frozenset({"sub", "floordiv", "truediv", "rshift"})  # in the second number


def _keeps_bound(name: str, first: Any, second: Any) -> bool:
    if name not in KEEP_BOUNDS or plain_of(first) < 0 or plain_of(second) < 0:
        return False
    return name not in FALLING or not is_assumed(second)


def _binary(name: str, function: Callable[[Any, Any], Any], is_reflected: bool) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        if name == "mul" and isinstance(other, SEQUENCES):
            self.assumptions.size(self, "*")
            return other * plain_of(self)
        if not is_assumed(other) and not isinstance(other, (int, float, complex)) and not _is_of_numpy(other):
            return NotImplemented
        first, second = (other, self) if is_reflected else (self, other)
        result = function(plain_of(first), plain_of(second))
        level = max(each.level for each in (first, second) if is_assumed(each))
        if level is Level.BOUND and not _keeps_bound(name, first, second):
            level = Level.ASSUMED
        if isinstance(result, tuple):
            return tuple(self.assumptions.remembering(each, level) for each in result)
        return self.assumptions.remembering(result, level)

    return operate


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def operate(self: Any) -> Any:
        level = self.level if function is operator.pos or self.level is not Level.BOUND else Level.ASSUMED
        return self.assumptions.remembering(function(plain_of(self)), level)

    return operate


def _power(self: Any, other: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return POWER(self, other)
    return self._with(pow(plain_of(self), plain_of(other), plain_of(modulus)))


def _comparison(sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if not is_assumed(other) and not isinstance(other, (int, float, complex)) and not _is_of_numpy(other):
            return NotImplemented
        result = function(plain_of(self), plain_of(other))
        if type(result) is not bool and not type(result).__name__.startswith("bool"):
            return result  # of an array
        level = max(self.level, other.level) if is_assumed(other) else self.level
        return self.assumptions.truth(bool(result), level, sign, comparing=True)

    return compare


def _is_of_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy"


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
OF_WHOLE = ("and", "or", "xor", "lshift", "rshift")
FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in (*BINARY, "xor", "lshift", "rshift")},
    "and": operator.and_,
    "or": operator.or_,
    "divmod": divmod,
}
SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
POWER = _binary("pow", operator.pow, is_reflected=False)

for _kind, _names in ((AssumedInt, (*BINARY, "divmod", *OF_WHOLE)), (AssumedFloat, (*BINARY, "divmod"))):
    for _name in _names:
        setattr(_kind, f"__{_name}__", _binary(_name, FUNCTIONS[_name], is_reflected=False))
        setattr(_kind, f"__r{_name}__", _binary(_name, FUNCTIONS[_name], is_reflected=True))
    setattr(_kind, "__pow__", _power)  # noqa: B010 (as those of the loop)
    for _name, _sign in SIGNS.items():
        setattr(_kind, f"__{_name}__", _comparison(_sign, getattr(operator, _name)))
    for _name in ("neg", "abs", "pos") + (("invert",) if _kind is AssumedInt else ()):
        setattr(_kind, f"__{_name}__", _unary(getattr(operator, _name)))


# --- the standard library ---------------------------------------------------------------------------------------------

# Functions of `math` whose result is no size by itself.
UNTRACED = frozenset({"isfinite", "isnan", "isinf", "isclose"})


class _Generators(type(torch._C.Generator)):  # type: ignore[misc]
    """Generators that PyTorch has made itself are of the class too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, torch._C.Generator)


class SeededGenerator(torch._C.Generator, metaclass=_Generators):
    """torch.Generator, whose seed may be an assumed number."""

    __module__ = "torch"

    def manual_seed(self, seed: Any) -> Any:
        return super().manual_seed(_seed(seed))


def _seed(number: Any) -> Any:
    if not is_assumed(number):
        return number
    number.assumptions.note("manual_seed")
    return plain_of(number)


def be_seeds_of_numpy() -> None:
    """Have NumPy's generators take assumed numbers as seeds, where the program has NumPy."""
    if "numpy" in sys.modules:
        from numpy.random.bit_generator import ISeedSequence

        ISeedSequence.register(AssumedInt)


@contextmanager
def followed_in_library() -> Iterator[None]:
    """Until the end, `math` remembers what it calculates from an assumed number, and `json` writes whole ones. One may
    be a seed of generators."""
    import json.encoder

    functions = {
        name: each for name, each in vars(math).items() if callable(each) and name[0] != "_" and name not in UNTRACED
    }
    encode = json.encoder.JSONEncoder.default

    def encoded(encoder: Any, value: Any) -> Any:
        return value.plain if type(value) is AssumedInt else encode(encoder, value)

    generator = torch.Generator
    if generator is torch._C.Generator:  # on a card there are two kinds of generators, which know this one
        torch.Generator = SeededGenerator  # type: ignore[misc]
    for name, function in functions.items():
        setattr(math, name, _remembering(function))
    setattr(json.encoder.JSONEncoder, "default", encoded)  # noqa: B010 (its parameter has another name)
    try:
        yield
    finally:
        torch.Generator = generator  # type: ignore[misc]
        json.encoder.JSONEncoder.default = encode  # type: ignore[method-assign]
        for name, function in functions.items():
            setattr(math, name, function)


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    def calculated(*args: Any, **options: Any) -> Any:
        found = [each for each in args if is_assumed(each)]
        if not found:
            return function(*args, **options)
        level = max(each.level for each in found)
        result = function(*map(plain_of, args), **options)
        if level is Level.BOUND:
            level = Level.BOUND if function.__name__ in ROUNDING else Level.ASSUMED
        return found[0].assumptions.remembering(result, level)

    return calculated


ROUNDING = frozenset({"ceil", "floor", "trunc", "fabs", "sqrt"})
