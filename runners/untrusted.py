"""Text of values that a workload hands over. Their own code may raise anything, return anything and never end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LONGEST_NAME = 300  # characters kept of a type's name
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
ARGUMENTS: Callable[[BaseException], tuple[Any, ...]] = BaseException.__dict__["args"].__get__


def text(value: Any, longest: int, make: Callable[[Any], str] = str) -> str:
    """The text that `make` (str or repr) gives of a value, cut to `longest` characters. Never raises.

    Where the value's own code raises, the text names the type of the value and what was raised. Half of a surrogate
    pair, which no table can hold, becomes a question mark.
    """
    try:
        return cut(value if type(value) is str else make(value), longest)
    except BaseException as error:
        return f"<{type_name(type(value))}, whose {make.__name__}() raised {raised(error)}>"


def cut(text: str, longest: int, keep_end: bool = False) -> str:
    """The start, or the end, of a text that is longer than `longest` characters, with a note of how many are left out.

    `text` may be of a subclass of str: none of its own methods is called.
    """
    length = str.__len__(text)
    kept = slice(max(0, length - longest), length) if keep_end else slice(0, longest)
    found = str.encode(str.__getitem__(text, kept), "utf-8", "replace").decode()
    if length <= longest:
        return found
    note = f"[... {length - longest} characters left out ...]"
    return f"{note}\n{found}" if keep_end else f"{found} {note}"


def type_name(kind: type) -> str:
    """The qualified name of a type, which a metaclass cannot hide. Of a built-in type only its own name."""
    name = cut(type.__dict__["__qualname__"].__get__(kind), LONGEST_NAME)
    try:
        module = type.__dict__["__module__"].__get__(kind)
    except AttributeError:  # it was deleted
        module = None
    if type(module) is not str:
        return name
    return name if module == "builtins" else f"{cut(module, LONGEST_NAME)}.{name}"


def bases_of(kind: type) -> tuple[type, ...]:
    """The type and its base classes, nearest first, without `object`."""
    order: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return order[:-1]


def is_built_in(kind: type) -> bool:
    """Whether a type is one of the interpreter's own, rather than made by Python code or an extension."""
    return not type.__dict__["__flags__"].__get__(kind) & HEAP_TYPE


def raised(error: BaseException) -> str:
    """The type of an exception that the code of a value raised, with its message if that takes no code of its own."""
    name, arguments = type_name(type(error)), ARGUMENTS(error)
    if is_built_in(type(error)) and len(arguments) == 1 and type(arguments[0]) is str:
        return f"{name}: {cut(arguments[0], LONGEST_NAME)}"
    return name
