"""The statistics of the allocator under the Python functions of the torch that is installed, on functions of torch._C
that stand in for a build with CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from runners.meters.cuda_statistics import Statistics  # noqa: E402 (imports torch)

MIB = 2**20


class Books:
    """One device's counters, as torch._C has them."""

    def __init__(self) -> None:
        self.now, self.peak, self.ooms = 0, 0, 0

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)

    def stats(self, index: int) -> dict[str, Any]:
        amounts = {"current": self.now, "peak": self.peak}
        counters = {
            f"{name}_bytes": {"all": dict(amounts)} for name in ("allocated", "reserved", "requested", "active")
        }
        return {**counters, "num_alloc_retries": 0, "num_ooms": self.ooms}

    def reset_peaks(self, index: int) -> None:
        self.peak = self.now

    def reset_counts(self, index: int) -> None:
        self.ooms = 0


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    books = Books()
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_memoryStats": books.stats,
        "_cuda_resetPeakMemoryStats": books.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": books.reset_counts,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_attach_out_of_memory_observer": lambda observer: None,
    }
    if hasattr(torch._C, "_accelerator_getDeviceStats"):  # since torch 2.9
        functions |= {
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceStats": books.stats,
            "_accelerator_resetPeakStats": books.reset_peaks,
            "_accelerator_resetAccumulatedStats": books.reset_counts,
        }
    for name, function in functions.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    if hasattr(torch.cuda.CUDAGraph, "capture_begin"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", torch.cuda.CUDAGraph.capture_begin)
    return books


# Taken before anything is replaced, as by `from torch.cuda import reset_peak_memory_stats` in a user's module.
RESETS = {
    "cuda.reset_peak_memory_stats": torch.cuda.reset_peak_memory_stats,
    "cuda.memory.reset_peak_memory_stats": torch.cuda.memory.reset_peak_memory_stats,
    "cuda.reset_max_memory_allocated": torch.cuda.reset_max_memory_allocated,
    "cuda.reset_max_memory_cached": torch.cuda.reset_max_memory_cached,
}
RESETS_OF_COUNTS = {"cuda.reset_accumulated_memory_stats": torch.cuda.reset_accumulated_memory_stats}
if hasattr(getattr(torch, "accelerator", None), "reset_peak_memory_stats"):
    RESETS["accelerator.reset_peak_memory_stats"] = torch.accelerator.reset_peak_memory_stats
    RESETS_OF_COUNTS["accelerator.reset_accumulated_memory_stats"] = torch.accelerator.reset_accumulated_memory_stats


@pytest.mark.parametrize("name", RESETS)
def test_every_reset_of_peaks_in_torch_leaves_the_meters_figure(books: Books, name: str) -> None:
    statistics = Statistics()
    books.take(8192 * MIB)
    books.take(-8192 * MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        RESETS[name](0)
    books.take(MIB)
    assert torch.cuda.max_memory_allocated(0) == MIB, "the workload's own peak"
    assert statistics.read(0).peak["allocated"] == 8192 * MIB


@pytest.mark.parametrize("name", RESETS_OF_COUNTS)
def test_every_reset_of_counts_in_torch_leaves_the_meters_count(books: Books, name: str) -> None:
    statistics = Statistics()
    books.ooms = 3
    RESETS_OF_COUNTS[name](0)
    assert torch.cuda.memory_stats(0)["num_ooms"] == 0
    books.ooms = 1
    assert statistics.read(0).counts["num_ooms"] == 4


def test_the_meters_resets_are_not_seen_by_any_reading_of_the_workload(books: Books) -> None:
    statistics = Statistics()
    books.take(5 * MIB)
    books.take(-4 * MIB)
    statistics.start_new_peaks(0)
    assert statistics.read(0).peak["allocated"] == MIB
    assert torch.cuda.max_memory_allocated(0) == torch.cuda.max_memory_reserved(0) == 5 * MIB
    assert torch.cuda.memory_stats(0)["active_bytes.all.peak"] == 5 * MIB
    if "accelerator.reset_peak_memory_stats" in RESETS:
        assert torch.accelerator.max_memory_allocated(0) == 5 * MIB
    assert torch.cuda.memory_allocated(0) == MIB
