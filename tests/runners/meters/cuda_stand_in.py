"""Stands in for `torch` where there is no device: as much of torch.cuda as runners calls, and behaves as a card does.

Written from docs.pytorch.org (torch.cuda, and "CUDA semantics"), from the Python files of torch 2.13 and from
c10/cuda/CUDACachingAllocator.cpp:

- the functions of torch.cuda and torch.accelerator are Python and call those of torch._C, at the time of the call;
- every call of torch.cuda, and each reading and reset that reaches the allocator, is recorded with its device;
- memory comes in segments of 2 MiB, 20 MiB or a multiple of 2 MiB, by the simulated caching allocator;
- a refusal is counted, then shown to the observers, then raised with the allocator's message. Before all that NVML is
  asked for the process's memory, and where it is missing an assertion fails instead (MIG, Jetson);
- a tensor frees its memory when it dies, as when an exception unwinds the frame that holds it;
- kernels run later: what one fails with is raised by the next call that waits for, or asks, the device. A device-side
  assert stays: every call to the device after it raises. The allocator's own books can still be read;
- a reset sets each peak to what is current; freed memory stays reserved; the workload can reset too;
- before torch.cuda is initialised the statistics are empty, and NVML may count other devices than CUDA has (MIG);
- set_per_process_memory_fraction creates the context and makes its device the current one (no guard restores it);
- under backend:cudaMallocAsync "some stats are not meaningful, and are always reported as zero"; a pluggable allocator
  has none, and without caching they stay 0;
- what a CUDA graph allocates while it is captured stays in a private pool.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from runners.simulation.allocator import CachingAllocator, Refused

CONTEXT_BYTES = 500 * 2**20
COUNTERS = ("allocated", "reserved", "requested", "active")
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class OutOfMemoryError(RuntimeError):
    """torch.OutOfMemoryError."""


@dataclass
class Device:
    """One device and its caching allocator."""

    total: int = 80 * 2**30
    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str | None = "8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11"
    capability: tuple[int, int] = (9, 0)
    integrated: bool = False
    others: int = 0  # used by other processes
    nvml_fails: bool = False  # inside a refusal
    opens: Exception | None = None  # why no context can be created
    limit: int | None = None
    num_alloc_retries: int = 0  # in addition to the allocator's
    num_ooms: int = 0
    queued: Exception | None = None  # what a kernel that was launched will turn out to have failed with
    sticky: bool = False
    torch: Torch | None = None
    index: int = 0
    handles: dict[int, list[int]] = field(default_factory=dict)  # blocks taken, by size
    in_graph_pools: int = 0

    def __post_init__(self) -> None:
        self.allocator = self._new_allocator()

    def _new_allocator(self) -> CachingAllocator:
        outside = CONTEXT_BYTES + self.others
        return CachingAllocator(self.total - outside, total=self.total, limit=self.limit, outside=outside)

    def limit_to(self, fraction: float) -> None:
        self.limit = int(fraction * self.total)
        self.allocator = self._new_allocator()

    def allocate(self, size: int) -> int:
        """Returns a handle. Raises as torch does."""
        assert self.torch is None or not self.torch.uncached
        try:
            return self.allocator.allocate(size)
        except Refused as refused:
            if self.nvml_fails:  # called before the refusal is counted and shown
                self.allocator.num_ooms -= 1
                failed = 'INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1016'
                raise RuntimeError(f"NVML_SUCCESS == r {failed}, please report a bug to PyTorch. ") from None
            if self.torch is not None:
                for observe in self.torch.observers:
                    observe(self.index, refused.requested, self.limit or self.total, refused.free)
            raise OutOfMemoryError(str(refused).replace("GPU 0", f"GPU {self.index}")) from None

    def take(self, size: int) -> None:
        """Memory of `size` bytes, until it is dropped."""
        if self.torch is not None and self.torch.uncached:
            return  # cudaMalloc and cudaFree each time: nobody counts it
        self.handles.setdefault(size, []).append(self.allocate(size))

    def drop(self, size: int) -> None:
        """Free memory of that size; its block stays in the cache."""
        self.allocator.free(self.handles[size].pop())

    def tensor(self, size: int) -> Tensor:
        return Tensor(self, size)

    def capture(self, size: int) -> None:
        """Capture a graph that allocates and frees `size` bytes: they stay in its private pool."""
        assert self.torch is not None
        self.torch.cuda.CUDAGraph().capture_begin()
        self.take(size)  # stays reserved; `allocated` counts what lives outside of the graph
        self.allocator.allocated -= size
        self.in_graph_pools += size

    def fail_later(self, error: Exception, sticky: bool = True) -> None:
        self.queued, self.sticky = error, sticky

    def answer(self) -> None:
        """A call that reaches the device: raises what was waiting."""
        if self.opens is not None:
            raise self.opens
        if self.queued is not None:
            error = self.queued
            if not self.sticky:
                self.queued = None
            raise error


class Tensor:
    """Holds memory until nothing refers to it."""

    def __init__(self, device: Device, size: int) -> None:
        self._device, self._handle = device, device.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._device.allocator.free(self._handle)


class Torch:
    """Replaces the module `torch`. `counted_by_nvml`: devices that are counted before CUDA is initialised."""

    __version__ = "2.13.0"

    def __init__(
        self,
        *devices: Device,
        backend: str = "native",
        built_for: str | None = "13.0",
        counted_by_nvml: int | None = None,
    ) -> None:
        self.devices = devices
        for index, device in enumerate(devices):
            device.torch, device.index = self, index
        self.calls: list[tuple[str, int]] = []
        self.raises: dict[str, Exception] = {}  # by the name of the call
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.initialized = False
        self.enabled = True
        self.current = 0
        self.counted_by_nvml = len(devices) if counted_by_nvml is None else counted_by_nvml
        self.version = SimpleNamespace(cuda=built_for, hip=None)
        self.backend = backend
        self._C = C(self)
        self.cuda = Cuda(self)
        self.accelerator = Accelerator(self)

    @property
    def uncached(self) -> bool:
        return UNCACHED in os.environ or not self.enabled

    def empty(self, size: int, device: int | None = None) -> Tensor:
        return self.devices[self.current if device is None else device].tensor(size)

    def names(self) -> list[str]:
        """The calls that were recorded, by name; starts a new recording."""
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names

    def called(self, name: str, device: int) -> Device:
        self.calls.append((name, device))
        if name in self.raises:
            raise self.raises[name]
        return self.devices[device]


class C:
    """torch._C."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self._accelerator_getDeviceStats = self._cuda_memoryStats
        self._accelerator_resetPeakStats = self._cuda_resetPeakMemoryStats
        self._accelerator_resetAccumulatedStats = self._cuda_resetAccumulatedMemoryStats

    def _cuda_memoryStats(self, index: int) -> dict[str, Any]:
        this = self._torch.called("memory_stats", index)
        backend, allocator = self._torch.backend, this.allocator
        if backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        native = backend == "native"
        stats: dict[str, Any] = {
            "num_alloc_retries": allocator.alloc_retries + this.num_alloc_retries if native else 0,
            "num_ooms": allocator.num_ooms + this.num_ooms if native else 0,
        }
        for counter in COUNTERS:
            kept = native or counter in ("allocated", "reserved")
            current, peak = (getattr(allocator, name) for name in (counter, f"peak_{counter}"))
            stats[f"{counter}_bytes"] = {"all": {"current": current if kept else 0, "peak": peak if kept else 0}}
        return stats

    def _cuda_resetPeakMemoryStats(self, index: int) -> None:
        self._torch.called("reset_peak_memory_stats", index).allocator.reset_peaks()

    def _cuda_resetAccumulatedMemoryStats(self, index: int) -> None:
        this = self._torch.called("reset_accumulated_memory_stats", index)
        this.num_alloc_retries = this.num_ooms = this.allocator.alloc_retries = this.allocator.num_ooms = 0

    def _cuda_attach_out_of_memory_observer(self, observe: Callable[[int, int, int, int], None]) -> None:
        if self._torch.backend != "native":
            raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")
        self._torch.observers.append(observe)

    def _cuda_cudaCachingAllocator_enable(self, value: bool) -> None:
        self._torch.enabled = value

    def _accelerator_getAllocatorSettings(self) -> str:
        names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        return next((os.environ[name] for name in names if name in os.environ), "")


class Memory:
    """torch.cuda.memory: the allocator's history is a pickle of the calls it was given."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self.recording: dict[str, Any] | None = None

    def get_allocator_backend(self) -> str:
        return self._torch.backend

    def _record_memory_history(self, enabled: str | None = "all", **options: Any) -> None:
        self._torch.calls.append(("_record_memory_history", 0))
        if self._torch.backend != "native":
            raise RuntimeError("cudaMallocAsync does not yet support recordHistory")
        self.recording = {"enabled": enabled, **options}

    def _dump_snapshot(self, filename: str = "dump_snapshot.pickle") -> None:
        self._torch.calls.append(("_dump_snapshot", 0))
        if "_dump_snapshot" in self._torch.raises:
            raise self._torch.raises["_dump_snapshot"]
        with open(filename, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [[] for _ in self._torch.devices]}, file)


class CUDAGraph:
    def capture_begin(self) -> None:
        pass


class Cuda:
    """torch.cuda."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self.memory = Memory(torch)
        self.CUDAGraph = type("CUDAGraph", (CUDAGraph,), {})  # of this torch alone: its method is replaced
        self.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})

    def is_initialized(self) -> bool:
        return self._torch.initialized

    def init(self) -> None:
        if "init" in self._torch.raises:
            raise self._torch.raises["init"]
        if not self._torch.devices:
            raise RuntimeError("No CUDA GPUs are available")
        self._torch.initialized = True

    def device_count(self) -> int:
        return len(self._torch.devices) if self._torch.initialized else self._torch.counted_by_nvml

    def current_device(self) -> int:
        self.init()
        return self._torch.current

    def set_device(self, device: int) -> None:
        self._torch.current = device

    def get_device_capability(self, device: int) -> tuple[int, int]:
        return self._torch.devices[device].capability

    def get_device_properties(self, device: int) -> SimpleNamespace:
        self.init()
        this = self._torch.devices[device]
        if f"get_device_properties {device}" in self._torch.raises:
            raise self._torch.raises[f"get_device_properties {device}"]
        major, minor = this.capability
        uuid = {} if this.uuid is None else {"uuid": this.uuid}
        facts = {"total_memory": this.total, "is_integrated": int(this.integrated)}
        return SimpleNamespace(name=this.name, major=major, minor=minor, **facts, **uuid)

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        this = self._torch.called("set_per_process_memory_fraction", device)
        self._torch.current = device
        this.answer()
        this.limit_to(fraction)

    def synchronize(self, device: int) -> None:
        this = self._torch.called("synchronize", device)
        self.init()
        this.answer()

    def memory_stats(self, device: int | None = None) -> dict[str, Any]:
        if not self._torch.initialized:
            return {}
        stats = self._torch._C._cuda_memoryStats(self._torch.current if device is None else device)
        return dict(_flat(stats))

    def memory_allocated(self, device: int | None = None) -> int:
        return int(self.memory_stats(device).get("allocated_bytes.all.current", 0))

    def max_memory_allocated(self, device: int | None = None) -> int:
        return int(self.memory_stats(device).get("allocated_bytes.all.peak", 0))

    def max_memory_reserved(self, device: int | None = None) -> int:
        return int(self.memory_stats(device).get("reserved_bytes.all.peak", 0))

    def reset_peak_memory_stats(self, device: int | None = None) -> None:
        self._torch._C._cuda_resetPeakMemoryStats(self._torch.current if device is None else device)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def reset_accumulated_memory_stats(self, device: int | None = None) -> None:
        self._torch._C._cuda_resetAccumulatedMemoryStats(self._torch.current if device is None else device)

    def memory_snapshot(self) -> list[dict[str, Any]]:
        return [
            {"device": device.index, "segment_pool_id": pool, "total_size": size}
            for device in self._torch.devices
            for pool, size in (((0, 0), 2**21), ((0, 1), device.in_graph_pools))
        ]

    def mem_get_info(self, device: int) -> tuple[int, int]:
        this = self._torch.called("mem_get_info", device)
        this.answer()
        return this.total - CONTEXT_BYTES - this.others - this.allocator.reserved, this.total


class Accelerator:
    """torch.accelerator."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch

    def reset_peak_memory_stats(self, device: int = 0) -> None:
        self._torch._C._accelerator_resetPeakStats(device)

    def reset_accumulated_memory_stats(self, device: int = 0) -> None:
        self._torch._C._accelerator_resetAccumulatedStats(device)

    def max_memory_allocated(self, device: int = 0) -> int:
        return int(self._torch._C._accelerator_getDeviceStats(device)["allocated_bytes"]["all"]["peak"])


def _flat(stats: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in stats.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
