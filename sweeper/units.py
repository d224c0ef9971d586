"""Bytes, counts and durations as text, and the sizes that a user types."""

from __future__ import annotations

import re
from decimal import Decimal

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
UNITS = {
    "B": 1, "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": TIB, "KB": KB, "MB": MB, "GB": GB, "TB": TB,
}  # fmt: skip
LONGEST_NUMBER = 5  # digits of a size in a heading
SIZE = "24GiB, 24GB, 600MiB or a number of bytes"  # how to write a size, for messages
BOTH = ((GB, "GB", GIB, "GiB"), (MB, "MB", MIB, "MiB"), (KB, "KB", KIB, "KiB"))
SHOWN = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def format_bytes(count: int) -> str:
    """Bytes in the largest binary unit that they reach, to two decimals: `913.00 MiB`."""
    unit, name = next(((unit, name) for unit, name in SHOWN if abs(count) >= unit), (1, "bytes"))
    return f"{count} byte{'s' * (count != 1)}" if unit == 1 else f"{count / unit:.2f} {name}"


def typed_bytes(count: int) -> str:
    """Bytes as a person would type them, exactly: `24GiB`, `24GB`, or the number where no unit divides it."""
    units = [*SHOWN, *((unit, name) for unit, name, *_ in BOTH)]
    unit, name = max(((unit, name) for unit, name in units if count and count % unit == 0), default=(1, ""))
    return f"{count // unit}{name}"


def shown_bytes(count: int) -> str:
    """Bytes as `typed_bytes` has them, or to two decimals where that would be a long number: `23.09GiB`."""
    typed = typed_bytes(count)
    if count < KIB or len(typed.rstrip("KMGTiB")) <= LONGEST_NUMBER:
        return typed
    return format_bytes(count).replace(" ", "")


def format_exact(count: int) -> str:
    """Bytes in binary units and exactly: `913.00 MiB (957,349,888 bytes)`."""
    return f"{format_bytes(count)} ({count:,} bytes)"


def format_both(count: int) -> str:
    """Bytes exactly, in decimal and in binary units: `14,000,000,000 bytes = 14.00 GB = 13.04 GiB`.

    The unit is the largest binary one that they reach, and the decimal one of the same name.
    """
    found = next((each for each in BOTH if abs(count) >= each[2]), None)
    if found is None:
        return format_count(count, "byte")
    decimal, name, binary, binary_name = found
    return f"{count:,} bytes = {hundredths(count, decimal)} {name} = {hundredths(count, binary)} {binary_name}"


def format_decimal(count: int) -> str:
    """Bytes in the largest decimal unit that they reach, to two decimals: `10.79 GB`."""
    unit, name = next(((unit, name) for unit, name, *_ in BOTH if abs(count) >= unit), (1, "bytes"))
    return format_count(count, "byte") if unit == 1 else f"{hundredths(count, unit)} {name}"


def hundredths(count: int, unit: int) -> str:
    """`count / unit` to two decimals, half up. It uses integers, because a float would round some halves down."""
    rounded = (200 * count + unit) // (2 * unit)
    return f"{rounded // 100:,}.{rounded % 100:02d}"


def format_count(number: int, noun: str) -> str:
    """`1 point`, `2 points`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_seconds(seconds: float) -> str:
    """A duration in seconds, in minutes from 100 seconds on, or in hours from 100 minutes on."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def parse_bytes(value: object) -> int | None:
    """The bytes of a size such as `24GiB`, `1.5GB` or 4096, rounded down. None if the value is not a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    written = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)?", value) if isinstance(value, str) else None
    if written is None or (written[2] or "B").upper() not in UNITS:
        return None
    return int(Decimal(written[1]) * UNITS[(written[2] or "B").upper()])
