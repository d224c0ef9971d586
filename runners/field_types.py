"""Checks that values from JSON have the types that a class declares for its fields. Once, where they are read.

int             0 to 2**63 - 1, which a column of a table holds; True is none
float           a finite number
Any             any JSON value without an infinite number, nested to DEEPEST at most
Mapping, Sequence, tuple, a union, and another class of fields: what they contain is checked too
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

END_OF_INT64 = 2**63
DEEPEST = 64  # nested containers

Check = Callable[[Any], bool]


def check_fields(of: Any) -> None:
    """Raises TypeError that names the first field of a NamedTuple or a dataclass with a value of another type."""
    kind: Any = type(of)
    for name, accepts in _fields(kind):
        if not accepts(getattr(of, name)):
            raise TypeError(f"{name} has a value of another type")


def check_keys(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raises TypeError for the first key with a value of another type than given here. A key may be missing."""
    for name, kind in kinds.items():
        if name in values and not check_of(kind)(values[name]):
            raise TypeError(f"{name} has a value of another type")


@cache
def check_of(kind: Any) -> Check:
    """The check for a type. Raises TypeError for a type that no field has."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _any_of([check_of(each) for each in arguments])
    if origin is Mapping:
        return _is_bytes if arguments[1] is int else _mapping_of(check_of(arguments[1]))
    if origin in (Sequence, tuple):
        return _sequence_of(check_of(arguments[0]))
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _fields_of(kind)
    if isinstance(kind, type):
        return lambda value: isinstance(value, kind)
    raise TypeError(f"no field has the type {kind}")


@cache
def _fields(kind: Any) -> Sequence[tuple[str, Check]]:
    hints = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(kind)]
    checks = [(name, check_of(hints[name])) for name in names]
    return [(name, _size_of(check) if name.endswith("_bytes") else check) for name, check in checks]


def _is_int(value: Any) -> bool:
    return type(value) is int and -END_OF_INT64 <= value < END_OF_INT64


def _size_of(check: Check) -> Check:
    return lambda value: check(value) and not (type(value) is int and value < 0)


def _is_float(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < END_OF_INT64
    return type(value) is float and math.isfinite(value)


def _is_json(value: Any, deepest: int = DEEPEST) -> bool:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is float:
        return math.isfinite(value)
    if deepest == 0:
        return False
    if kind is dict:
        return all(_is_json(each, deepest - 1) for each in value.values())
    return kind in (list, tuple) and all(_is_json(each, deepest - 1) for each in value)


def _is_bytes(value: Any) -> bool:
    """Whether it is a mapping of bytes. A run has millions of them: no call for each value."""
    if type(value) is not dict:
        return False
    if not value:
        return True
    numbers = value.values()
    return set(map(type, numbers)) == _INT and min(numbers) >= 0 and max(numbers) < END_OF_INT64


_INT = {int}
_PLAIN: dict[Any, Check] = {
    int: _is_int,
    float: _is_float,
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    type(None): lambda value: value is None,
    Any: _is_json,
}


def _any_of(checks: Sequence[Check]) -> Check:
    if len(checks) == 2 and checks[1] is _PLAIN[type(None)]:
        first = checks[0]
        return lambda value: value is None or first(value)
    return lambda value: any(check(value) for check in checks)


def _mapping_of(check: Check) -> Check:
    if check is _is_json:
        return lambda value: type(value) is dict and _is_json(value)
    return lambda value: type(value) is dict and all(map(check, value.values()))


def _sequence_of(check: Check) -> Check:
    def is_sequence(value: Any) -> bool:
        if type(value) in (list, tuple):
            return all(map(check, value))
        return isinstance(value, Sequence) and not isinstance(value, str)  # one that makes its values on demand

    return is_sequence


def _fields_of(kind: Any) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, kind) and all(accepts(getattr(value, name)) for name, accepts in _fields(kind))

    return check
