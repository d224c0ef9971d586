"""Recognises a refused allocation by the type of the exception and a maintained list of messages.

Not every failure at a large size is about memory: a grid limit, an index beyond int32 and a device assert are bugs or
limits of kernels, and a text that mentions memory proves nothing. So a message counts only with the type that raises
it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runners import untrusted
from runners.facts import Cause

MIB = 2**20
LARGE_SEGMENT = 20 * MIB
BLOCK = 512  # bytes: the unit of the caching allocator's blocks
POWERS = {"bytes": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}  # of 1024, whether printed as GiB or as GB

OUT_OF_MEMORY = r"(CUDA|HIP) error: out of memory"
# A full device, as its allocator finds it: a library's handle needs some 10 to 200 MiB for workspaces and kernels.
FULL_BELOW_BYTES = 256 * MIB

# (name of the type or of a base, in full or its last part; what the message contains; whose memory was refused)
KNOWN: tuple[tuple[str, str, str], ...] = (
    # Ray's memory monitor ended a worker, since the memory of its node was nearly used up
    ("ray.exceptions.OutOfMemoryError", r"", "host"),
    # torch's own class, raised by the caching allocators of CUDA, ROCm and XPU
    ("OutOfMemoryError", r"", "device"),
    ("MemoryError", r"cudaErrorMemoryAllocation", "device"),  # RAPIDS's memory manager, a std::bad_alloc in C++
    ("MemoryError", r"", "host"),  # NumPy's _ArrayMemoryError too
    # The caching allocator asks NVML who uses the device while it words a refusal, and fails where NVML is restricted
    # (MIG in containers) or missing (Jetson): pytorch/pytorch#112377, #185240. Nothing else in that file asks NVML.
    ("RuntimeError", r"NVML_SUCCESS == [^\n]*INTERNAL ASSERT FAILED at [^\n]*CUDACachingAllocator\.cpp", "device"),
    # pinned memory: the device's driver refuses, and the memory is the host's
    ("RuntimeError", r"(?s)in pin memory thread.*" + OUT_OF_MEMORY, "host"),
    ("RuntimeError", r"(?s)(cuda(HostAlloc|MallocHost|HostRegister)|hipHost(Malloc|Register)).*out of memory", "host"),
    # c10/core/impl/alloc_cpu.cpp: "can't allocate memory" on POSIX, "not enough memory" on Windows
    ("RuntimeError", r"DefaultCPUAllocator: (can't allocate|not enough) memory", "host"),
    ("RuntimeError", r"std::bad_alloc", "host"),  # `new` in C++: torch turns every std::exception into RuntimeError
    ("RuntimeError", r"unable to mmap \d+ bytes .*Cannot allocate memory", "host"),
    ("OSError", r"\[Errno 12\]", "host"),
    # before torch.cuda.OutOfMemoryError existed (torch < 1.13)
    ("RuntimeError", r"(CUDA|HIP) out of memory\. Tried to allocate", "device"),
    # from the driver, past the allocator: messages of the runtime, the driver API, NCCL and Triton
    ("RuntimeError", OUT_OF_MEMORY + r"|(CUDA|HIP) driver error: out of memory", "device"),
    ("RuntimeError", r"Cuda failure (\d+ )?'out of memory'", "device"),
    ("RuntimeError", r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY", "device"),  # CuPy, JAX
    ("RuntimeError", r"Triton Error \[(CUDA|HIP)\]: out of memory", "device"),
    ("RuntimeError", r"MPS backend out of memory", "device"),
    # handles and workspaces that a library could not allocate
    ("RuntimeError", r"(CUBLAS|HIPBLAS|CUDNN|CUSOLVER|HIPSOLVER|CUSPARSE|HIPSPARSE)_STATUS_ALLOC_FAILED", "device"),
    ("RuntimeError", r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "device"),
    ("RuntimeError", r"(CU|HIP)FFT_ALLOC_FAILED|miopenStatusAllocFailed", "device"),
)
# Messages of libraries that could not make their handle. Too little memory is the usual reason, but not the only one:
# they are refusals where the device is full.
KNOWN_IF_FULL: tuple[tuple[str, str, str], ...] = (
    (
        "RuntimeError",
        r"(CUBLAS|HIPBLAS|CUSOLVER|HIPSOLVER|CUSPARSE|HIPSPARSE)_STATUS_NOT_INITIALIZED,? when calling `\w+Create",
        "device",
    ),
    ("RuntimeError", r"CUDNN_STATUS_NOT_INITIALIZED", "device"),
)
# The line of Python that requested pinned memory. torch words its refusal like those of the device.
PINS = re.compile(r"pin_memory|pinned")

# A batch-size finder's last word: accelerate's find_executable_batch_size, and the Trainers that are built on it. Its
# message names no memory, so it counts only after refusals.
COUNTED = "_counted_as_refused"  # an attribute of exceptions
NOTHING_LEFT = "No executable batch size found"

EXACT = re.compile(r"you tried to allocate (\d+) bytes|unable to mmap (\d+) bytes")
# torch's allocators; cudaMallocAsync ("Requested               : 640.00 MiB"); NumPy ("Unable to allocate 466. TiB")
PRINTED = re.compile(r"(?:Tried to allocate|Requested *:|Unable to allocate) (\d+(?:\.\d+)?)\.? (bytes|([KMGTPE])i?B)")
# What the allocator had handed out: torch's, its older wording, cudaMallocAsync's
HELD = re.compile(
    r"(?:Of the allocated memory|total capacity;|Currently allocated *:) (\d+(?:\.\d+)?) (bytes|([KMGTPE])i?B)"
)
CACHING = re.compile(r"(CUDA|HIP|XPU) out of memory\. Tried to allocate")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused allocation: whose memory (`device` or `host`), and the bytes that the message has, to its decimals.

    `needs_bytes` is the least that the device's allocator would have handed out, with the memory that it had handed
    out at the refusal.
    """

    scope: str
    requested_bytes: int | None = None
    needs_bytes: int | None = None


def refusal_in(
    chain: Sequence[Cause],
    traceback: str | None = None,
    free_bytes: int | None = None,
    large_segment: int = LARGE_SEGMENT,
) -> Refusal | None:
    """The refused allocation behind an exception: the first among its causes, the outermost first.

    `traceback` is the exception's with those of its causes. `free_bytes` was free on the device when it failed; None
    if that is not known. `large_segment` is that of the allocator's settings, in bytes.
    """
    is_full = free_bytes is not None and free_bytes < FULL_BELOW_BYTES
    for cause in chain:
        types = (cause.type, *cause.bases)
        names = {*types, *(name.rpartition(".")[2] for name in types)}
        message = cause.message or ""
        for name, text, scope in (*KNOWN, *KNOWN_IF_FULL) if is_full else KNOWN:
            if name in names and re.search(text, message):
                past_the_allocator = scope == "device" and "OutOfMemoryError" not in names
                is_pinned = past_the_allocator and _pins(cause, traceback or "")
                return Refusal("host" if is_pinned else scope, requested_in(message), _needs_in(message, large_segment))
    return None


def _pins(cause: Cause, traceback: str) -> bool:
    """Whether the innermost line of Python under which a cause was raised requested pinned memory."""
    first_line, _, _ = f"{cause.type}: {cause.message or ''}".partition("\n")
    before, found, _ = traceback.rpartition(f"\n{first_line}")
    _, _, innermost = before.rpartition('\n  File "')
    _, _, source = innermost.partition("\n")
    return bool(found) and PINS.search(source) is not None


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
        self._taken = 0
        self._largest: int | None = None

    def see(self, error: BaseException) -> Refusal | None:
        """Count an exception if it is a refused allocation, and return what was refused.

        An exception counts once, although its operator and the thread that it ends both report it. Keeps no reference
        to it: it holds the tensors of its frames.
        """
        try:
            kind, *bases = map(untrusted.type_name, untrusted.bases_of(type(error)))
            refusal = refusal_in([Cause(kind, bases, str(error))])
        except MemoryError:  # there is no room to read the message
            refusal = Refusal("host", None)
        except BaseException:  # its own code raises: no allocator's exception does
            refusal = None
        if refusal is not None and _is_new(error):
            self.count += 1
            self._largest = max(self._largest or 0, refusal.requested_bytes or 0) or None
        return refusal

    def take(self) -> tuple[int, int | None]:
        """How many were refused since the last call, and the largest of them in bytes, if a message had its size."""
        count, largest = self.count - self._taken, self._largest
        self._taken, self._largest = self.count, None
        return count, largest


def _is_new(error: BaseException) -> bool:
    """Whether no one has counted an exception before. Marks it as counted."""
    try:
        marks = object.__getattribute__(error, "__dict__")
        is_new = COUNTED not in marks
        marks[COUNTED] = True
    except BaseException:  # without memory for the mark
        return True
    return is_new


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
    return None if printed is None else _least(printed, in_segments=CACHING.search(message) is not None)


def least_block_bytes(segment: int, large_segment: int = LARGE_SEGMENT) -> int:
    """The least that the caching allocator hands out of a segment that it requests from the driver, in bytes.

    It requests 2 MiB for up to 1 MiB, a large segment for less than 10 MiB, else the block's size rounded up to 2 MiB
    (get_allocation_size in c10/cuda/CUDACachingAllocator.cpp). Blocks are multiples of 512 bytes.
    """
    if segment <= 2 * MIB:
        return BLOCK
    return MIB + BLOCK if segment == large_segment else segment - 2 * MIB + BLOCK


def large_segment_bytes(settings: str | None) -> int:
    """The size of a large segment by the caching allocator's settings, which can change it since torch 2.13."""
    found = re.search(r"large_segment_size_mb\s*:\s*(\d+)", settings or "")
    return LARGE_SEGMENT if found is None else int(found[1]) * MIB


def _needs_in(message: str, large_segment: int) -> int | None:
    held, requested = HELD.search(message), requested_in(message)
    if held is None or requested is None:
        return None
    block = least_block_bytes(requested, large_segment) if CACHING.search(message) else requested
    return _least(held, in_segments=False) + block


def _least(printed: re.Match[str], in_segments: bool) -> int:
    """The least number of bytes that prints as a number (group 1) with a unit (2) and its power (3)."""
    number, power = printed[1], POWERS[printed[3] or "bytes"]
    if not power:
        return int(number)
    from decimal import ROUND_CEILING, Decimal  # 0.3 MiB that the baseline of a measured process does not have

    unit: int = 1024**power
    decimals = len(number.partition(".")[2])
    half = Decimal(5).scaleb(-decimals - 1)
    least = int(((Decimal(number) - half) * unit).to_integral_value(ROUND_CEILING))
    least = max(least, unit + in_segments)  # torch prints just 1 GiB as 1024.00 MiB, NumPy as 1.00 GiB
    step = 2 * MIB if in_segments and unit >= MIB else 1
    first = -(-least // step) * step
    likely = (first, first + step)  # the first can lie half way between two prints and round to the other
    return next((size for size in likely if f"{Decimal(size) / unit:.{decimals}f}" == number), least)
