"""Converts what a workload returns to JSON."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

LONGEST_TEXT = 2000  # characters of a value stored as text
DEEPEST = 8  # nested containers; also ends a list that contains itself


def as_metrics(returned: Any) -> dict[str, Any]:
    """Metrics from a returned value: a mapping's items, nothing for None, otherwise the key `result`."""
    if returned is None:
        return {}
    if isinstance(returned, Mapping):
        return {_text(key): as_json(value) for key, value in returned.items()}
    return {"result": as_json(returned)}


def as_json(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON: tensors and arrays without dimensions become numbers, unsupported types become text.

    NaN and infinities become text, since JSON cannot represent them.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth < DEEPEST and isinstance(value, Mapping):
        return {_text(key): as_json(inner, depth + 1) for key, inner in value.items()}
    if depth < DEEPEST and isinstance(value, list | tuple):
        return [as_json(inner, depth + 1) for inner in value]
    only = _only_number(value)
    return _text(value) if only is None else as_json(only)


def _only_number(value: Any) -> numbers.Real | None:
    """The number in a tensor or array without dimensions, of any library."""
    if getattr(value, "ndim", None) != 0:
        return None
    try:
        number = value.item()
    except Exception:  # a meta tensor, or a lost device: becomes text
        return None
    return number if isinstance(number, numbers.Real) else None


def _text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # a failing __repr__ must not fail a measured point
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    # A lone surrogate cannot be written to Parquet.
    return str(text)[:LONGEST_TEXT].encode(errors="replace").decode()
