"""What a workload says of itself, as JSON can carry it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

LONGEST_TEXT = 2000  # characters of a value that is only kept as text
DEEPEST = 8  # containers within containers; a list that contains itself ends here


def as_metrics(returned: Any) -> dict[str, Any]:
    """The metrics in what a workload returned: a mapping as it is, nothing for None, anything else as `result`."""
    if returned is None:
        return {}
    if isinstance(returned, Mapping):
        return {_text(key): as_json(value) for key, value in returned.items()}
    return {"result": as_json(returned)}


def as_json(value: Any, depth: int = 0) -> Any:
    """The value if JSON has it, a number for what holds one number (a tensor of one element), text for the rest.

    NaN and the infinities become text: JSON has no word for them, and a loss of NaN is worth knowing.
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
    """The number in a tensor or an array of no dimensions, without knowing their libraries."""
    if getattr(value, "ndim", None) != 0:
        return None
    try:
        number = value.item()
    except Exception:  # a meta tensor, a device that is lost: it stays text
        return None
    return number if isinstance(number, numbers.Real) else None


def _text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:  # a __repr__ of the user's own must not turn a measured point into a failed one
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    # A lone surrogate cannot be written to Parquet.
    return str(text)[:LONGEST_TEXT].encode(errors="replace").decode()
