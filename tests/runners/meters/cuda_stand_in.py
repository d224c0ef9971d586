"""Stands in for `torch` where there is no device: as much of torch.cuda as a meter calls, by its documentation.

Written from docs.pytorch.org (torch.cuda, and "CUDA semantics": asynchronous execution, memory management):

- every call is recorded, with the device it was for, in the order in which it came;
- kernels run later: what one fails with is raised by the next call that waits for, or asks, the device. A device-side
  assert stays: every call to the device after it raises. The allocator's own books can still be read;
- reset_peak_memory_stats sets each peak to what is current; freed memory stays reserved;
- before torch.cuda is initialised the statistics are empty, and memory_allocated and its like answer 0;
- under backend:cudaMallocAsync "some stats are not meaningful, and are always reported as zero".
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

CONTEXT_BYTES = 500 * 2**20
COUNTERS = ("allocated", "reserved", "requested", "active")


@dataclass
class Device:
    """One device: what is held, by counter, and the highest since the last reset."""

    total: int = 80 * 2**30
    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str | None = "8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11"
    capability: tuple[int, int] = (9, 0)
    others: int = 0  # used by other processes
    fraction: float = 1.0
    current: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    num_alloc_retries: int = 0
    num_ooms: int = 0
    queued: Exception | None = None  # what a kernel that was launched will turn out to have failed with
    sticky: bool = False

    def take(self, requested: int, rounded: int | None = None) -> None:
        """A tensor of `requested` bytes, in a block of `rounded`."""
        block = requested if rounded is None else rounded
        for counter, size in (("requested", requested), ("allocated", block), ("active", block)):
            self.current[counter] += size
        self.current["reserved"] = max(self.current["reserved"], self.current["allocated"])
        self.peak = {counter: max(self.peak[counter], self.current[counter]) for counter in COUNTERS}

    def drop(self, requested: int, rounded: int | None = None) -> None:
        """The tensor is gone; its block is free in the cache, and stays reserved."""
        block = requested if rounded is None else rounded
        for counter, size in (("requested", requested), ("allocated", block), ("active", block)):
            self.current[counter] -= size

    def fail_later(self, error: Exception, sticky: bool = True) -> None:
        self.queued, self.sticky = error, sticky

    def answer(self) -> None:
        """A call that reaches the device: raises what was waiting."""
        if self.queued is not None:
            error = self.queued
            if not self.sticky:
                self.queued = None
            raise error


class Torch:
    """Replaces the module `torch`; only `.cuda` is used."""

    __version__ = "2.13.0"

    def __init__(self, *devices: Device, backend: str = "native", built_for: str | None = "13.0") -> None:
        self.devices = devices
        self.calls: list[tuple[str, int]] = []
        self.raises: dict[str, Exception] = {}  # by the name of the call
        self.initialized = False
        self.version = SimpleNamespace(cuda=built_for, hip=None)
        self.cuda = Cuda(self)
        self.backend = backend

    def names(self) -> list[str]:
        """The calls that were recorded, by name; starts a new recording."""
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names


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


class Cuda:
    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self.memory = Memory(torch)
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
        return len(self._torch.devices)

    def get_device_capability(self, device: int) -> tuple[int, int]:
        return self._torch.devices[device].capability

    def get_device_properties(self, device: int) -> SimpleNamespace:
        this = self._torch.devices[device]
        major, minor = this.capability
        uuid = {} if this.uuid is None else {"uuid": this.uuid}
        return SimpleNamespace(name=this.name, total_memory=this.total, major=major, minor=minor, **uuid)

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        self._called("set_per_process_memory_fraction", device).fraction = fraction

    def synchronize(self, device: int) -> None:
        this = self._called("synchronize", device)
        self.init()
        this.answer()

    def memory_allocated(self, device: int) -> int:
        return self._counter("memory_allocated", device, "allocated", lambda this: this.current)

    def memory_reserved(self, device: int) -> int:
        return self._counter("memory_reserved", device, "reserved", lambda this: this.current)

    def max_memory_allocated(self, device: int) -> int:
        return self._counter("max_memory_allocated", device, "allocated", lambda this: this.peak)

    def max_memory_reserved(self, device: int) -> int:
        return self._counter("max_memory_reserved", device, "reserved", lambda this: this.peak)

    def reset_peak_memory_stats(self, device: int) -> None:
        this = self._called("reset_peak_memory_stats", device)
        this.peak = dict(this.current)

    def mem_get_info(self, device: int) -> tuple[int, int]:
        this = self._called("mem_get_info", device)
        this.answer()
        return this.total - CONTEXT_BYTES - this.others - this.current["reserved"], this.total

    def memory_stats(self, device: int) -> dict[str, Any]:
        this = self._called("memory_stats", device)
        if not self._torch.initialized:
            return {}
        native = self._torch.backend == "native"
        stats: dict[str, Any] = {
            "num_alloc_retries": this.num_alloc_retries if native else 0,
            "num_ooms": this.num_ooms if native else 0,
        }
        for counter in COUNTERS:
            kept = native or counter in ("allocated", "reserved")
            stats[f"{counter}_bytes.all.current"] = this.current[counter] if kept else 0
            stats[f"{counter}_bytes.all.peak"] = this.peak[counter] if kept else 0
        return stats

    def _counter(self, call: str, device: int, counter: str, books: Callable[[Device], dict[str, int]]) -> int:
        this = self._called(call, device)
        return books(this)[counter] if self._torch.initialized else 0

    def _called(self, name: str, device: int) -> Device:
        self._torch.calls.append((name, device))
        if name in self._torch.raises:
            raise self._torch.raises[name]
        return self._torch.devices[device]
