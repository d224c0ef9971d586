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
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

END_OF_INT64 = 2**63
DEEPEST = 64  # nested containers

Check = Callable[[Any], bool]


def check_fields(of: Any) -> None:
    """Raises TypeError that names the first field of a NamedTuple or a dataclass with a value of another type."""
    wrong = _first_wrong(of)
    if wrong is not None:
        raise TypeError(f"{wrong} has a value of another type")


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
        checks = [check_of(each) for each in arguments]
        return lambda value: any(accepts(value) for accepts in checks)
    if origin is Mapping:
        return _is_bytes if arguments[1] is int else _mapping_of(check_of(arguments[1]))
    if origin in (Sequence, tuple):
        return _sequence_of(check_of(arguments[0]))
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _fields_of(kind)
    if isinstance(kind, type):
        return lambda value: isinstance(value, kind)
    raise TypeError(f"no field has the type {kind}")


class _Field(NamedTuple):
    name: str
    exact: type | None  # of which every value is accepted
    accepts: Check  # for a value that is not None
    is_optional: bool


# A run has millions of facts: None and a text cost no call, and the values of a NamedTuple no look-up by name.
def _first_wrong(of: Any) -> str | None:
    kind: Any = type(of)
    fields = _fields(kind)
    values = of if isinstance(of, tuple) else [getattr(of, field.name) for field in fields]
    for (name, exact, accepts, is_optional), value in zip(fields, values, strict=True):
        if type(value) is not exact and not (is_optional if value is None else accepts(value)):
            return name
    return None


@cache
def _fields(kind: Any) -> Sequence[_Field]:
    hints = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(kind)]
    found = []
    for name in names:
        accepts = check_of(hints[name])
        is_optional, kinds = accepts(None), [each for each in _alternatives(hints[name]) if each is not type(None)]
        accepts = check_of(kinds[0]) if len(kinds) == 1 else accepts
        exact = kinds[0] if len(kinds) == 1 and kinds[0] in (str, bool) else None
        found.append(_Field(name, exact, _size_of(accepts) if name.endswith("_bytes") else accepts, is_optional))
    return found


def _alternatives(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_int(value: Any) -> bool:
    return type(value) is int and -END_OF_INT64 <= value < END_OF_INT64


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < END_OF_INT64


def _size_of(check: Check) -> Check:
    if check is _is_int:
        return _is_size
    return lambda value: check(value) and not (type(value) is int and value < 0)


def _is_float(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < END_OF_INT64


def _is_json(value: Any, deepest: int = DEEPEST) -> bool:
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is float:
        return math.isfinite(value)
    if deepest == 0 or kind not in (dict, list, tuple):
        return False
    for each in value.values() if kind is dict else value:
        if type(each) not in _SIMPLE and not _is_json(each, deepest - 1):
            return False
    return True


def _is_bytes(value: Any) -> bool:
    """Whether it is a mapping of bytes. A run has millions of them: no call for each value."""
    if type(value) is not dict:
        return False
    if not value:
        return True
    numbers = value.values()
    return set(map(type, numbers)) == _INT and min(numbers) >= 0 and max(numbers) < END_OF_INT64


_INT = {int}
_SIMPLE = {str, int, bool, type(None)}
_PLAIN: dict[Any, Check] = {
    int: _is_int,
    float: _is_float,
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    type(None): lambda value: value is None,
    Any: _is_json,
}


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
    return lambda value: isinstance(value, kind) and _first_wrong(value) is None
