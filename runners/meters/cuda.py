"""Device memory as PyTorch's allocator and the driver count it, on CUDA and on ROCm, which has the same interface.

Definitions (the documentation of torch.cuda, and its notes on memory management):

    allocated   memory_allocated: the blocks that tensors occupy; peak max_memory_allocated
    reserved    memory_reserved: what the allocator holds of the device, allocated included; peak max_memory_reserved
    requested   the bytes that tensors requested, before they were rounded up to blocks
    active      allocated, and what was freed but is still in use by a stream
    graph_pools what the private pools of captured CUDA graphs have reserved, a part of reserved. A replay uses it all,
                and allocated does not count what the graph freed while it was captured. Read at boundaries only
    used        total - free of the whole device according to the driver: reserved, contexts, libraries, other
                processes. Read at boundaries only: the driver keeps no peak of it

A reset sets a peak to what is held at that moment, so live weights are in the peak of every later phase.
"""

from __future__ import annotations

import math
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from runners.meters.cuda_statistics import NATIVE, UNCACHED, Statistics, allocator_backend, allocator_settings
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

OF_THE_HOST = ("resident", "resident_anon", "resident_file")  # not address: a CUDA build reserves tens of GiB of it
# "Expect each entry to be several KB" (torch.cuda.memory._record_memory_history), and the file's size is limited
HISTORY_ENTRIES = 20_000
BFLOAT16_SINCE = (8, 0)  # compute capability, as torch.cuda.is_bf16_supported has it


class CudaMeter:
    """Reads one or several devices, given by their index in this process. Each has its own reading, by name.

    An attempt sees only its own devices, so the user's cuda:1 can be index 0 here. Made once a process: it replaces
    functions of torch (see cuda_statistics).
    """

    def __init__(self, devices: Sequence[int], names: Sequence[str], host: Meter) -> None:
        self._devices = dict(zip(names, devices, strict=True))
        self._host = host
        self._allocator = Statistics()
        self._not_reset: set[int] = set()  # devices whose peaks are older than the boundary before
        self._opened = False
        self._refusals = RefusalCount()
        count_raised(torch.cuda.OutOfMemoryError, self._refusals)

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        """As in Meter. Raises the error of a kernel that failed since the last boundary: it is the workload's.

        The first boundary creates the contexts, before the workload begins, and raises Unavailable where it cannot.
        """
        if not failed:
            self._synchronize()
        readings = {name: self._read(index) for name, index in self._devices.items()}
        if failed:
            with suppress(Exception):  # after a device-side assert every call to the device raises
                self._synchronize()
        for index in self._devices.values():
            self._start_new_peaks(index)
        first = next(iter(readings.values()))  # an exception does not name the device as the user does
        first.refusals, first.refused_bytes = self._refusals.take()
        return _with_host(readings, self._host.boundary(failed))

    def glance(self) -> Mapping[str, Reading]:
        """Read the allocator's own statistics only: a call to the driver from this thread can break the workload.

        While another thread captures a CUDA graph, cuMemPoolGetAttribute invalidates the capture (cuda-python#2834),
        and memory_stats calls it under cudaMallocAsync.
        """
        readings = {}
        for name, index in self._devices.items():
            peak = self._allocator.read(index).peak if self._allocator.backend == NATIVE else {}
            readings[name] = Reading(peak=self._of_this_stretch(index, peak))
        return _with_host(readings, self._host.glance())

    def _synchronize(self) -> None:
        for name, index in self._devices.items():
            try:
                torch.cuda.synchronize(index)
            except Exception as error:
                if self._opened:
                    raise
                raise Unavailable(f"{name}: no context can be created on it: {_first_line(error)}") from error
        self._opened = True

    def _read(self, index: int) -> Reading:
        """The allocator's counters first: they are read without the device, which may no longer answer."""
        found = self._allocator.read(index)
        reading = Reading(
            now=dict(found.now),
            peak=self._of_this_stretch(index, found.peak),
            alloc_retries=found.counts.get("num_alloc_retries"),
            num_ooms=found.counts.get("num_ooms"),
            refused=self._allocator.take_refused(index),
        )
        if self._allocator.captures_graphs:
            with suppress(Exception):
                reading.now["graph_pools"] = self._allocator.graph_pools_bytes(index)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with suppress(Exception):
                free, total = torch.cuda.mem_get_info(index)
                reading.now["used"] = total - free
        return reading

    def _of_this_stretch(self, index: int, peak: Mapping[str, int]) -> dict[str, int]:
        return {} if index in self._not_reset else dict(peak)

    def _start_new_peaks(self, index: int) -> None:
        try:
            self._allocator.start_new_peaks(index)
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


def check(device_name: str, index: int, dtype: str, uuid: str | None = None) -> None:
    """Raise Unavailable, with the reason, if the device is missing, is another one or does not declare the dtype.

    `index` is the device's in this process, and `uuid` the one that the sweep was planned for, if it is known. This
    initialises CUDA and creates no context on a device.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise Unavailable(f"{device_name}: torch {torch.__version__} is built without CUDA and without ROCm")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # no driver, no device, or a driver that is too old
        raise Unavailable(f"{device_name}: {_first_line(error)}") from error
    count = torch.cuda.device_count()
    if index >= count:
        there = "no device" if not count else "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise Unavailable(f"{device_name}: there is no such device, torch sees {there}")
    found = device_uuid(index)
    if uuid is not None and found != uuid:
        raise Unavailable(f"{device_name}: this process was given {found} where {uuid} was planned")
    if dtype == "bfloat16" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(index)
        if capability < BFLOAT16_SINCE:
            has, needs = (f"{major}.{minor}" for major, minor in (capability, BFLOAT16_SINCE))
            raise Unavailable(f"{device_name}: bfloat16 needs compute capability {needs}, this device has {has}")


def describe(index: int) -> dict[str, str | int | bool | None]:
    """The fields of a device and its software in the environment's record."""
    properties = torch.cuda.get_device_properties(index)
    return {
        "device_name": properties.name,
        "device_uuid": device_uuid(index),
        "device_total_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "allocator_backend": allocator_backend(),
        "allocator_settings": allocator_settings(),
        "device_integrated": bool(getattr(properties, "is_integrated", False)),
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


def limit(name: str, index: int, budget_bytes: int) -> int:
    """Limit what the allocator may reserve on a device, before its first allocation. Returns the bytes allowed.

    The context and libraries are outside the limit: it is an allocator budget, not a smaller card. Raises Unavailable
    if the device has fewer bytes, cannot be opened, or has an allocator that does not limit what it reserves.
    """
    backend = allocator_backend()
    if backend != NATIVE or UNCACHED in os.environ:
        why = f"{UNCACHED} is set" if backend == NATIVE else f"the allocator is {backend}, not PyTorch's own"
        raise Unavailable(f"{name}: a budget limits what PyTorch's caching allocator reserves, and {why}")
    total = torch.cuda.get_device_properties(index).total_memory
    if budget_bytes > total:
        raise Unavailable(f"{name}: a budget of {budget_bytes} bytes is more than the device has, which is {total}")
    fraction = budget_bytes / total  # the allocator multiplies by it and rounds down
    if int(fraction * total) < budget_bytes:
        fraction = math.nextafter(fraction, 1.0)
    current = torch.cuda.current_device()
    try:
        torch.cuda.set_per_process_memory_fraction(fraction, index)  # creates the context
    except Exception as error:
        raise Unavailable(f"{name}: no context can be created on it: {_first_line(error)}") from error
    finally:
        with suppress(Exception):  # setMemoryFraction makes its device the current one, and plain `cuda` means that
            torch.cuda.set_device(current)
    return int(fraction * total)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
