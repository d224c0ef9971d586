"""Tells a refused allocation from every other failure, by type first and by a maintained list of messages after it.

Not every failure at a big size is memory: a grid limit, an index beyond int32, a device assert are bugs or kernel
limits, and a text that merely mentions memory proves nothing. So a message counts only together with the type that
raises it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MIB = 2**20
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

# (what the type or a base of it is called, what its message contains, whose memory was refused)
KNOWN: tuple[tuple[str, str, str], ...] = (
    # torch's own class, raised by the caching allocators of CUDA, ROCm and XPU (and by MPS in newer versions)
    ("OutOfMemoryError", r"", "device"),
    ("MemoryError", r"", "host"),
    # c10/core/impl/alloc_cpu.cpp
    ("RuntimeError", r"DefaultCPUAllocator: (can't|not enough memory|can not) ?allocate|DefaultCPUAllocator: not enough memory", "host"),
    # before torch.cuda.OutOfMemoryError existed (torch < 1.13), and errors of the driver that the allocator does not see
    ("RuntimeError", r"(CUDA|HIP) (error: )?out of memory", "device"),
    ("RuntimeError", r"MPS backend out of memory", "device"),
    # handles and workspaces that cuBLAS, hipBLAS, cuDNN and MIOpen could not allocate
    ("RuntimeError", r"(CU|HIP)BLAS_STATUS_ALLOC_FAILED", "device"),
    ("RuntimeError", r"(CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)", "device"),
    ("RuntimeError", r"miopenStatusAllocFailed", "device"),
    ("RuntimeError", r"unable to mmap \d+ bytes .*Cannot allocate memory", "host"),
    ("OSError", r"\[Errno 12\]", "host"),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An allocation that was refused: whose memory (`device` or `host`), and how many bytes were asked, if it said."""

    scope: str
    requested_bytes: int | None


def refusal_in(chain: Sequence[Mapping[str, Any]]) -> Refusal | None:
    """The refused allocation behind an exception, looked for along its causes, the outermost first."""
    for cause in chain:
        names = {str(name).rpartition(".")[2] for name in (cause["type"], *cause.get("bases", ()))}
        message = str(cause.get("message") or "")
        for name, text, scope in KNOWN:
            if name in names and re.search(text, message):
                return Refusal(scope, requested_in(message))
    return None


def requested_in(message: str) -> int | None:
    """Bytes asked for, as the message has them.

    The CPU allocator prints the exact number. The CUDA allocator rounds to two decimals of a unit, and asks the driver
    for multiples of 2 MiB from 2 MiB up (c10/cuda/CUDACachingAllocator.cpp, kRoundLarge): the smallest such multiple
    that prints like this is a true lower bound, and exact below 1 GiB.
    """
    exact = re.search(r"you tried to allocate (\d+) bytes", message)
    if exact:
        return int(exact[1])
    printed = re.search(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)", message)
    if not printed:
        return None
    number, unit = printed[1], UNITS[printed[2]]
    decimals = len(number.partition(".")[2])
    lowest = (Decimal(number) - Decimal(5).scaleb(-decimals - 1)) * unit if decimals else Decimal(number) * unit
    step = 2 * MIB if unit >= MIB else 1
    multiple = -(-int(lowest.to_integral_value(rounding="ROUND_CEILING")) // step) * step
    return multiple if f"{Decimal(multiple) / unit:.{decimals}f}" == number else int(lowest)
