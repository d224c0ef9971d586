"""Workloads that take known amounts of a device's memory and launch no kernel with memory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

MIB = 2**20


def take(mib: int, device: str) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def hold(*, device: str, **_: Any) -> None:
    """512 MiB, and nothing else."""
    take(512, device)


def weights(*, device: str, phase: Any) -> None:
    """The first phase leaves 256 MiB alive, which are part of the second one's peak."""
    with phase("weights"):
        kept = take(256, device)
    with phase("work"):
        take(64, device)
    del kept


def chunks(*, batch: int, device: str, phase: Any) -> int:
    """Keeps `batch` times 64 MiB."""
    with phase("fill"):
        kept = [take(64, device) for _ in range(batch)]
    return len(kept)


def capped(*, batch: int, device: str, phase: Any) -> int:
    """`chunks` in a process that limits itself to 1 GiB."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(2**30 / total, device)
    return chunks(batch=batch, device=device, phase=phase)


def growing(*, device: str, phase: Any) -> None:
    """Sixteen allocations, each freed before the next. Each is larger, so that no cached block can be reused."""
    with phase("grow"):
        for step in range(1, 17):
            take(16 * step, device)


def resets(*, device: str, phase: Any) -> None:
    """512 MiB, then a reset by the workload, which reads what torch gives it after the phases' own resets."""
    with phase("first"):
        take(512, device)
        torch.cuda.reset_peak_memory_stats()
        take(64, device)
    with phase("second"):
        assert torch.cuda.max_memory_allocated() == 64 * MIB, torch.cuda.max_memory_allocated()


def graph(*, device: str, phase: Any) -> None:
    """A graph that allocates and frees 64 MiB while it is captured."""
    with phase("capture"):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            held = torch.zeros(64 * MIB, dtype=torch.uint8, device=device)
            total = held.sum()
            del held
    with phase("replay"):
        captured.replay()
        torch.cuda.synchronize()
    del total


def out_of_range(*, batch: int, device: str, phase: Any) -> None:
    """With batch=1 an assertion in a kernel fails, unseen by the workload, and destroys the process's context."""
    with phase("look_up"):
        kept = take(128, device)
        index = torch.tensor([9 if batch == 1 else 0], device=device)
        torch.zeros(4, device=device)[index]
    del kept


def hang(*, device: str, phase: Any) -> None:
    with phase("hang"):
        kept = take(512, device)
        torch.cuda.synchronize(device)
        while kept.numel():
            pass


def pause(*, device: str, ready: str, go: str, **_: Any) -> None:
    """Holds memory on the device until a byte arrives in the pipe `go`."""
    kept = take(512, device)
    Path(ready).write_text("r")
    with open(go, "rb", buffering=0) as pipe:
        pipe.read(1)
    del kept


def both(*, device: str, phase: Any) -> None:
    """Takes a different amount of each of two devices."""
    assert torch.cuda.device_count() == 2
    with phase("hold"):
        kept = [take(64, "cuda:0"), take(192, "cuda:1")]
    del kept


def halves(*, batch: int, device: str, phase: Any) -> int:
    """As a batch-size finder: `batch` times 64 MiB, and half of that after each refusal."""
    while True:
        try:
            with phase("fill"):
                take(64 * batch, device)
            return batch
        except torch.cuda.OutOfMemoryError:
            batch //= 2
