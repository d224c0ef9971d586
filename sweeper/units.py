"""Bytes and counts as a person reads them, and sizes as a person types them."""

from __future__ import annotations

GIB = 2**30
GB = 10**9


def amounts(count: int) -> str:
    """Bytes as a person compares them: exact, in GB (10^9) and in GiB (2^30)."""
    return f"{count:,} bytes = {hundredths(count, GB)} GB = {hundredths(count, GIB)} GiB"


def hundredths(count: int, unit: int) -> str:
    """`count / unit` to two decimals, half up. Whole numbers all the way: a float would round some halves down."""
    rounded = (200 * count + unit) // (2 * unit)
    return f"{rounded // 100:,}.{rounded % 100:02d}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def readable(count: int) -> str:
    """Bytes for a person, in binary units that are called so."""
    size = abs(count)
    unit, name = next(((unit, name) for unit, name in UNITS if size >= unit), (1, "bytes"))
    return f"{count} bytes" if unit == 1 else f"{count / unit:.2f} {name}"


UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
