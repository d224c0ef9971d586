"""Recognises a refused allocation by the type of the exception and a maintained list of messages.

Not every failure at a large size is about memory: a grid limit, an index beyond int32 and a device assert are bugs or
limits of kernels, and a text that mentions memory proves nothing. So a message counts only with the type that raises
it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runners.facts import Cause

MIB = 2**20
POWERS = {"bytes": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}  # of 1024, whether printed as GiB or as GB

# (name of the type or of a base, what the message contains, whose memory was refused)
KNOWN: tuple[tuple[str, str, str], ...] = (
    # torch's own class, raised by the caching allocators of CUDA, ROCm and XPU
    ("OutOfMemoryError", r"", "device"),
    ("MemoryError", r"", "host"),  # NumPy's _ArrayMemoryError too
    # c10/core/impl/alloc_cpu.cpp: "can't allocate memory" on POSIX, "not enough memory" on Windows
    ("RuntimeError", r"DefaultCPUAllocator: (can't allocate|not enough) memory", "host"),
    ("RuntimeError", r"std::bad_alloc", "host"),  # `new` in C++: torch turns every std::exception into RuntimeError
    ("RuntimeError", r"unable to mmap \d+ bytes .*Cannot allocate memory", "host"),
    ("OSError", r"\[Errno 12\]", "host"),
    # before torch.cuda.OutOfMemoryError existed (torch < 1.13)
    ("RuntimeError", r"(CUDA|HIP) out of memory\. Tried to allocate", "device"),
    # from the driver, past the allocator: messages of the runtime, the driver API, NCCL and Triton
    ("RuntimeError", r"(CUDA|HIP)( driver)? error: out of memory", "device"),
    ("RuntimeError", r"Cuda failure (\d+ )?'out of memory'", "device"),
    ("RuntimeError", r"Triton Error \[(CUDA|HIP)\]: out of memory", "device"),
    ("RuntimeError", r"MPS backend out of memory", "device"),
    # handles and workspaces that a library could not allocate
    ("RuntimeError", r"(CUBLAS|HIPBLAS|CUDNN|CUSOLVER|HIPSOLVER|CUSPARSE|HIPSPARSE)_STATUS_ALLOC_FAILED", "device"),
    ("RuntimeError", r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "device"),
    ("RuntimeError", r"(CU|HIP)FFT_ALLOC_FAILED|miopenStatusAllocFailed", "device"),
)

# A batch-size finder's last word: accelerate's find_executable_batch_size, and the Trainers that are built on it. Its
# message names no memory, so it counts only after refusals.
NOTHING_LEFT = "No executable batch size found"

EXACT = re.compile(r"you tried to allocate (\d+) bytes|unable to mmap (\d+) bytes")
# torch's allocators; cudaMallocAsync ("Requested               : 640.00 MiB"); NumPy ("Unable to allocate 466. TiB")
PRINTED = re.compile(r"(?:Tried to allocate|Requested *:|Unable to allocate) (\d+(?:\.\d+)?)\.? (bytes|([KMGTPE])i?B)")
CACHING = re.compile(r"(CUDA|HIP|XPU) out of memory\. Tried to allocate")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused allocation: whose memory (`device` or `host`), and the bytes requested if the message has them."""

    scope: str
    requested_bytes: int | None


def refusal_in(chain: Sequence[Cause]) -> Refusal | None:
    """The refused allocation behind an exception: the first among its causes, the outermost first."""
    for cause in chain:
        names = {name.rpartition(".")[2] for name in (cause.type, *cause.bases)}
        message = cause.message or ""
        for name, text, scope in KNOWN:
            if name in names and re.search(text, message):
                return Refusal(scope, requested_in(message))
    return None


def gave_up(chain: Sequence[Cause]) -> bool:
    """Whether a batch-size finder ended because nothing that it tried had enough memory."""
    return any(NOTHING_LEFT in (cause.message or "") for cause in chain)


class RefusalCount:
    """Counts refused allocations as they reach the workload as exceptions, whether or not it catches them.

    Allocations that a library is refused and replaces by smaller ones in C++ are not among them. cuDNN does this to
    workspaces (aten/src/ATen/native/cudnn/Conv_v8.cpp): the pass is still the one that was requested.
    """

    def __init__(self) -> None:
        self.count = 0
        self._largest: int | None = None

    def see(self, error: BaseException) -> None:
        """Count an exception if it is a refused allocation. Keeps no reference to it: it holds its frames' tensors."""
        try:
            kind, *bases = (base.__name__ for base in type(error).__mro__)
            refusal = refusal_in([Cause(kind, bases, str(error))])
        except MemoryError:  # there is no room to read the message
            refusal = Refusal("host", None)
        if refusal is not None:
            self.count += 1
            self._largest = max(self._largest or 0, refusal.requested_bytes or 0) or None

    def take_largest(self) -> int | None:
        """The largest size refused since the last call, in bytes, if a message had one."""
        largest, self._largest = self._largest, None
        return largest


def requested_in(message: str) -> int | None:
    """The bytes requested according to a message. If it rounds them, the least number that prints the same.

    The CPU allocator prints the exact number, others two decimals of a unit. The caching allocators request multiples
    of 2 MiB from the driver and print those (c10/cuda/CUDACachingAllocator.cpp: kSmallBuffer, kLargeBuffer,
    kRoundLarge): the number is then exact up to 1 GiB, and 20 MiB stands for any tensor of 1 to 10 MiB.
    """
    exact = EXACT.search(message)
    if exact:
        return int(exact[1] or exact[2])
    printed = PRINTED.search(message)
    if not printed:
        return None
    number, power = printed[1], POWERS[printed[3] or "bytes"]
    if not power:
        return int(number)
    from decimal import ROUND_CEILING, Decimal  # 0.3 MiB that the baseline of a measured process does not have

    unit: int = 1024**power
    decimals = len(number.partition(".")[2])
    caching = CACHING.search(message) is not None
    half = Decimal(5).scaleb(-decimals - 1)
    least = int(((Decimal(number) - half) * unit).to_integral_value(ROUND_CEILING))
    least = max(least, unit + caching)  # torch prints just 1 GiB as 1024.00 MiB, NumPy as 1.00 GiB
    step = 2 * MIB if caching and unit >= MIB else 1
    first = -(-least // step) * step
    likely = (first, first + step)  # the first can lie half way between two prints and round to the other
    return next((size for size in likely if f"{Decimal(size) / unit:.{decimals}f}" == number), least)
