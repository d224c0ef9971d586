"""Device memory as PyTorch's allocator and the driver count it, on CUDA and on ROCm, which has the same interface.

Definitions (the documentation of torch.cuda, and its notes on memory management):

    allocated   memory_allocated: the blocks that tensors occupy; peak max_memory_allocated
    reserved    memory_reserved: what the allocator holds of the device, allocated included; peak max_memory_reserved
    requested   the bytes that tensors requested, before they were rounded up to blocks
    active      allocated, and what was freed but is still in use by a stream
    used        total - free of the whole device according to the driver: reserved, contexts, libraries, other
                processes. Read at boundaries only: the driver keeps no peak of it

A reset sets a peak to what is held at that moment, so live weights are in the peak of every later phase.
"""

from __future__ import annotations

import math
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from runners.meters.nvml import driver_version, others_on
from runners.phases import Meter, Reading, Unavailable
from runners.refusals import RefusalCount

__all__ = [
    "AllocatorHistory",
    "CudaMeter",
    "allocator_backend",
    "check",
    "describe",
    "device_uuid",
    "driver_version",
    "limit",
    "others_on",
]

NATIVE = "native"  # PyTorch's own caching allocator, the only one that keeps every counter
STATISTICS = ("allocated", "reserved", "requested", "active")  # of memory_stats, all pools together
OF_THE_HOST = ("resident", "resident_anon", "resident_file")  # not address: a CUDA build reserves tens of GiB of it
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")  # the last two are old names
# "Expect each entry to be several KB" (torch.cuda.memory._record_memory_history), and the file's size is limited
HISTORY_ENTRIES = 20_000
BFLOAT16_SINCE = (8, 0)  # compute capability, as torch.cuda.is_bf16_supported has it


class CudaMeter:
    """Reads one or several devices, given by their index in this process. Each has its own reading, by name.

    An attempt sees only its own devices, so the user's cuda:1 can be index 0 here.
    """

    def __init__(self, devices: Sequence[int], names: Sequence[str], host: Meter) -> None:
        self._devices = dict(zip(names, devices, strict=True))
        self._host = host
        self._native = allocator_backend() == NATIVE
        self._not_reset: set[int] = set()  # devices whose peaks are older than the boundary before
        self._refusals = RefusalCount()
        count_raised(torch.cuda.OutOfMemoryError, self._refusals)

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        """As in Meter. Raises the error of a kernel that failed since the last boundary: it is the workload's."""
        if not failed:
            self._synchronize()
        readings = {name: self._read(index, peaks_first=failed) for name, index in self._devices.items()}
        if failed:
            with suppress(Exception):  # after a device-side assert every call to the device raises
                self._synchronize()
        for index in self._devices.values():
            self._start_new_peaks(index)
        first = next(iter(readings.values()))  # an exception does not name the device as the user does
        first.refusals, first.refused_bytes = self._refusals.count, self._refusals.take_largest()
        return _with_host(readings, self._host.boundary(failed))

    def glance(self) -> Mapping[str, Reading]:
        """Read the allocator's own statistics only: a call to the driver from this thread can break the workload.

        While another thread captures a CUDA graph, cuMemPoolGetAttribute invalidates the capture (cuda-python#2834),
        and memory_stats calls it under cudaMallocAsync.
        """
        readings = {}
        for name, index in self._devices.items():
            stats = _stats(index) if self._native else {}
            readings[name] = Reading(peak=self._of_this_stretch(index, _bytes(stats, "peak")))
        return _with_host(readings, self._host.glance())

    def _synchronize(self) -> None:
        for index in self._devices.values():
            torch.cuda.synchronize(index)

    def _read(self, index: int, peaks_first: bool) -> Reading:
        reading = Reading()
        for read in (self._peaks, self._now) if peaks_first else (self._now, self._peaks):
            read(index, reading)
        return reading

    def _now(self, index: int, reading: Reading) -> None:
        reading.now = _read_each(
            allocated=lambda: torch.cuda.memory_allocated(index),
            reserved=lambda: torch.cuda.memory_reserved(index),
            used=lambda: _used(index),
        )
        if self._native:
            reading.now = _bytes(_stats(index), "current") | reading.now

    def _peaks(self, index: int, reading: Reading) -> None:
        peak = _read_each(
            allocated=lambda: torch.cuda.max_memory_allocated(index),
            reserved=lambda: torch.cuda.max_memory_reserved(index),
        )
        if self._native:  # cudaMallocAsync reports what it does not count "as zero" (memory_stats): left out
            stats = _stats(index)
            peak = _bytes(stats, "peak") | peak
            reading.alloc_retries, reading.num_ooms = stats.get("num_alloc_retries"), stats.get("num_ooms")
        reading.peak = self._of_this_stretch(index, peak)

    def _of_this_stretch(self, index: int, peak: dict[str, int]) -> dict[str, int]:
        return {} if index in self._not_reset else peak

    def _start_new_peaks(self, index: int) -> None:
        try:
            torch.cuda.reset_peak_memory_stats(index)
        except Exception:
            self._not_reset.add(index)
        else:
            self._not_reset.discard(index)


def count_raised(kind: type[BaseException], refusals: RefusalCount) -> None:
    """Count the exceptions of a class as they are made, which is when they reach Python.

    `num_ooms` of the allocator also counts what C++ code catches: cuDNN tries a convolution again with a smaller
    workspace. torch's class is made at run time (PyErr_NewException), so its __init__ can be replaced, and the
    interpreter calls it for an exception from C++ too, at the latest when Python code handles it.
    """
    before = kind.__init__

    def counted(self: BaseException, *args: Any) -> None:
        before(self, *args)
        refusals.see(self)

    kind.__init__ = counted  # type: ignore[method-assign]


class AllocatorHistory:
    """The caching allocator's own history of allocations and frees, recorded from now on.

    CUDA has to be initialised. Raises where the allocator has no history, such as cudaMallocAsync.
    """

    scope = (
        f"The last {HISTORY_ENTRIES} allocations and frees of PyTorch's allocator since the workload's libraries were "
        "imported, on every device of the attempt, with the Python lines that made them, and the allocator's blocks as "
        "they were after the exception had left the workload: open it at https://pytorch.org/memory_viz. Not in it: "
        "what was allocated past that allocator (contexts, libraries, NCCL, other processes), and C++ frames."
    )

    def __init__(self) -> None:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=HISTORY_ENTRIES)

    def write(self, path: Path, causes: Iterable[BaseException]) -> None:
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]


def _with_host(readings: dict[str, Reading], host: Mapping[str, Reading]) -> dict[str, Reading]:
    """Add the host's memory to the reading of the first device only, so that it is not taken for a sum."""
    first = next(iter(readings.values()))
    for reading in host.values():
        first.now |= {counter: value for counter, value in reading.now.items() if counter in OF_THE_HOST}
        first.peak |= {counter: value for counter, value in reading.peak.items() if counter in OF_THE_HOST}
    return readings


def _read_each(**counters: Callable[[], int]) -> dict[str, int]:
    """The counters that could be read. None before the device is initialised, when torch returns 0 for all of them."""
    values: dict[str, int] = {}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for counter, read in counters.items():
            with suppress(Exception):
                values[counter] = read()
    return values


def _used(index: int) -> int:
    free, total = torch.cuda.mem_get_info(index)
    return total - free


def _stats(index: int) -> Mapping[str, Any]:
    """Every counter of the allocator; none before the device is initialised or if they cannot be read."""
    try:
        return torch.cuda.memory_stats(index)
    except Exception:
        return {}


def _bytes(stats: Mapping[str, Any], moment: str) -> dict[str, int]:
    keys = {counter: f"{counter}_bytes.all.{moment}" for counter in STATISTICS}
    return {counter: stats[key] for counter, key in keys.items() if key in stats}


def allocator_backend() -> str:
    """`native` or `cudaMallocAsync`, as PYTORCH_ALLOC_CONF chooses."""
    return str(torch.cuda.memory.get_allocator_backend())


def check(device_name: str, index: int, dtype: str) -> None:
    """Raise Unavailable, with the reason, if the device is missing or does not declare the dtype.

    `index` is the device's in this process. This initialises CUDA and creates no context on a device.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise Unavailable(f"{device_name}: torch {torch.__version__} is built without CUDA and without ROCm")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # no driver, no device, or a driver that is too old
        reason, _, _ = str(error).strip().partition("\n")
        raise Unavailable(f"{device_name}: {reason}") from error
    count = torch.cuda.device_count()
    if index >= count:
        there = "no device" if not count else "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise Unavailable(f"{device_name}: there is no such device, torch sees {there}")
    if dtype == "bfloat16" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(index)
        if capability < BFLOAT16_SINCE:
            has, needs = (f"{major}.{minor}" for major, minor in (capability, BFLOAT16_SINCE))
            raise Unavailable(f"{device_name}: bfloat16 needs compute capability {needs}, this device has {has}")


def describe(index: int) -> dict[str, str | int | None]:
    """The fields of a device and its software in the environment's record."""
    properties = torch.cuda.get_device_properties(index)
    return {
        "device_name": properties.name,
        "device_uuid": device_uuid(index),
        "device_total_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "allocator_backend": allocator_backend(),
        "allocator_settings": next((os.environ[name] for name in SETTINGS if name in os.environ), None),
        "driver": driver_version(),
        "backend": "cuda" if torch.version.hip is None else "hip",
        "backend_version": torch.version.cuda if torch.version.hip is None else torch.version.hip,
    }


def device_uuid(index: int) -> str | None:
    """A device's UUID in the form that CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES) takes; None if torch has none."""
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    if text.startswith(("GPU-", "MIG-")):
        return text
    if torch.version.hip is not None:  # HIP's sixteen bytes are text: the digits of the device's serial number
        digits = bytes.fromhex(text.replace("-", "")).decode("latin-1")
        text = digits if set(digits) <= set(string.hexdigits) else text
    return ("MIG-" if " MIG " in properties.name else "GPU-") + text


def limit(index: int, budget_bytes: int) -> int:
    """Limit what the allocator may reserve on a device, before its first allocation. Returns the bytes allowed.

    The context and libraries are outside the limit: it is an allocator budget, not a smaller card. Raises Unavailable
    if the device has fewer bytes.
    """
    total = torch.cuda.get_device_properties(index).total_memory
    if budget_bytes > total:
        raise Unavailable(f"a budget of {budget_bytes} bytes is more than the device has, which is {total}")
    fraction = budget_bytes / total  # the allocator multiplies by it and rounds down
    if int(fraction * total) < budget_bytes:
        fraction = math.nextafter(fraction, 1.0)
    torch.cuda.set_per_process_memory_fraction(fraction, index)
    return int(fraction * total)
