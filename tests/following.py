"""The same work on tensors without data and with data: what follows of it, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from torch.profiler import ProfilerActivity, profile

from runners.meters.torch_tensors import ALIGNMENT, TensorTracker
from runners.simulation.torch_device_rules import CpuRules
from runners.simulation.torch_tracer import MetaTracer

Work = Callable[[str], Any]  # is given the device to make its tensors on


def events(work: Work) -> list[int]:
    follower = MetaTracer(CpuRules())
    with follower.around_workload():
        work("meta")
    return list(follower.events)


def peak(work: Work) -> int:
    sizes: list[int] = []
    changes = []
    for event in events(work):
        if event >= 0:
            sizes.append(aligned(event))
        changes.append(sizes[-1] if event >= 0 else -sizes[-event - 1])
    return max(accumulate(changes))


def real_peak(work: Work) -> int:
    """Of tensors, without what kernels have for themselves."""
    with TensorTracker() as following:
        work("cpu")
    return following.peak


def counted(work: Work) -> int:
    """By PyTorch's own counter, with what kernels have for themselves; a dispatch mode changes how gradients add up."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work("cpu")
    changes = [event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(aligned(size) if size > 0 else -aligned(-size) for size in changes))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
