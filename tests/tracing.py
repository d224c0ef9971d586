"""Run the same work with and without data: its events, and its peaks in bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from runners.meters.torch_tensors import ALIGNMENT, TensorTracker
from runners.simulation.torch_device_rules import CpuRules
from runners.simulation.torch_tracer import MetaTracer

Work = Callable[[str], Any]  # takes the device for its tensors


def take(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Work:
    """The function on tensors of these shapes, and its gradient if it has one."""

    def work(device: str) -> None:
        made = function(*(torch.rand(*shape, device=device, requires_grad=True) for shape in shapes))
        made = made if isinstance(made, torch.Tensor) else made[0]
        if made.requires_grad:
            (made.abs() if made.is_complex() else made).sum().backward()

    return work


def events(work: Work) -> list[int]:
    tracer = MetaTracer(CpuRules())
    with tracer.around_workload():
        work("meta")
    return list(tracer.events)


def peak(work: Work) -> int:
    """The traced peak of tensors without data."""
    return peak_of(events(work))


def peak_of(traced: Sequence[int]) -> int:
    sizes: list[int] = []
    changes = []
    for event in traced:
        if event >= 0:
            sizes.append(aligned(event))
        changes.append(sizes[-1] if event >= 0 else -sizes[-event - 1])
    return max(accumulate(changes))


def real_peak(work: Work) -> int:
    """The peak of tensors with data, without memory of the kernels themselves."""
    with TensorTracker() as tracker:
        work("cpu")
    return tracker.peak


def counted(work: Work) -> int:
    """The peak by PyTorch's own counter, with memory of the kernels themselves. Without a dispatch mode, since a mode
    changes how gradients accumulate."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work("cpu")
    changes = [event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(aligned(size) if size > 0 else -aligned(-size) for size in changes))


def scripted(function: Callable[..., Any]) -> Any:
    """The function in TorchScript, which newer versions of PyTorch warn about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
