"""Converts what a workload returns or notes to JSON of a limited size. What is left out is named in its place."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from runners import untrusted

LONGEST_TEXT = 2000  # characters of a value stored as text
LARGEST_NUMBER_BITS = 1024  # of a whole number that is stored as one
LARGEST_BYTES = 2**18  # of the JSON of one report: the result, or the metrics or the shapes of a phase
DEEPEST = 8  # nested containers; also ends a list that contains itself
LEFT_OUT = "[...]"  # the key that says how many values of a mapping are left out


class Room:
    """The bytes of JSON that are left to several reports together."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, text: str) -> str:
        """The text, whose bytes are taken off."""
        self.left -= len(text.encode()) + 4  # with quotes and a separator
        return text


def as_metrics(returned: Any, room: Room | None = None) -> dict[str, Any]:
    """Metrics from a returned value: a mapping's items, nothing for None, otherwise the key `result`. Never raises.

    They take at most LARGEST_BYTES, and at most what `room` has left, which shrinks by what they take.
    """
    if returned is None:
        return {}
    own = Room(LARGEST_BYTES if room is None else min(LARGEST_BYTES, room.left))
    before = own.left
    try:
        is_mapping = issubclass(type(returned), Mapping)
        return _mapping(returned, 0, own) if is_mapping else {"result": as_json(returned, 0, own)}
    except BaseException as error:
        return {"result": _unreadable(returned, error)}
    finally:
        if room is not None:
            room.left -= before - own.left


def as_json(value: Any, depth: int = 0, room: Room | None = None) -> Any:
    """Convert a value to JSON: tensors and arrays without dimensions become numbers, unsupported types become text.

    NaN and infinities become text, since JSON cannot represent them. So does a value whose own code raises.
    """
    room = Room(LARGEST_BYTES) if room is None else room
    try:
        return _as_json(value, depth, room)
    except BaseException as error:
        return room.take(_unreadable(value, error))


def _as_json(value: Any, depth: int, room: Room) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        room.left -= 8
        return value
    if issubclass(kind, str):
        return room.take(_text(value))
    if issubclass(kind, numbers.Integral):
        number = int.__add__(operator.index(value), 0)  # of exactly this type
        room.left -= number.bit_length() // 3 + 4
        bits = number.bit_length()
        return number if bits <= LARGEST_NUMBER_BITS else f"<a whole number of {bits} bits>"
    if issubclass(kind, numbers.Real):
        real = float.__add__(value if issubclass(kind, float) else float(value), 0.0)
        room.left -= 24
        return real if math.isfinite(real) else str(real)
    if depth < DEEPEST and issubclass(kind, Mapping):
        return _mapping(value, depth, room)
    if depth < DEEPEST and issubclass(kind, (list, tuple)):
        return _list(value, depth, room)
    only = _only_number(value)
    return room.take(_text(value)) if only is None else _as_json(only, depth, room)


def _mapping(value: Mapping[Any, Any], depth: int, room: Room) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, (key, inner) in enumerate(value.items()):
        if room.left <= 0:
            found[LEFT_OUT] = _left_out(value, number)
            break
        name = _text(key)
        if name in found:  # 1 and "1" are two keys
            name = f"{name} (key {number + 1})"
        found[room.take(name)] = as_json(inner, depth + 1, room)
    return found


def _list(value: Iterable[Any], depth: int, room: Room) -> list[Any]:
    found: list[Any] = []
    for number, inner in enumerate(value):
        if room.left <= 0:
            found.append(_left_out(value, number))
            break
        found.append(as_json(inner, depth + 1, room))
    return found


def _left_out(value: Any, kept: int) -> str:
    try:
        return f"[... {len(value) - kept} of {len(value)} values left out ...]"
    except BaseException:  # the workload's own __len__
        return "[... more values left out ...]"


def _only_number(value: Any) -> numbers.Real | None:
    """The number in a tensor or array without dimensions, of any library."""
    if getattr(value, "ndim", None) != 0:
        return None
    try:
        number = value.item()
    except Exception:  # a meta tensor, or a lost device: becomes text
        return None
    return number if issubclass(type(number), numbers.Real) else None


def _text(value: Any) -> str:
    kind = type(value)
    if kind in (bytes, bytearray) and len(value) > LONGEST_TEXT:  # the text of all of it can take four times as much
        return f"{value[: LONGEST_TEXT // 4]!r} [... {len(value) - LONGEST_TEXT // 4} bytes left out ...]"
    make = str.__str__ if issubclass(kind, str) else repr
    return untrusted.text(value, LONGEST_TEXT, make)


def _unreadable(value: Any, error: BaseException) -> str:
    return f"<{untrusted.type_name(type(value))}, whose code raised {untrusted.raised(error)}>"
