"""Triton kernels on tensors without data: a launch writes into the tensors that it is given, and allocates nothing.

The tensors that a kernel fills are made by the Python code around it, which is traced like any other. An autotuned
kernel is measured at its first call for a shape, with a buffer that empties the card's cache (triton 3.9,
backends/nvidia/driver.py, get_empty_cache_for_benchmark).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any

import torch

from runners.simulation.torch_replaced import replaced
from runners.simulation.torch_tracer import MetaTracer

BENCHMARK_BUFFER = 2**28  # bytes
SPEED = [1.0, 1.0, 1.0]  # milliseconds of every configuration: the first of several is chosen


def adapted(tracer: MetaTracer) -> Callable[[ModuleType], AbstractContextManager[Any]]:
    """What changes in the library while a workload is traced."""

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        tracer.numbers.written((*args, *kwargs.values()))

    def benchmarked(self: Any, *args: Any, **kwargs: Any) -> list[float]:
        torch.empty(BENCHMARK_BUFFER, dtype=torch.uint8, device="meta")
        return SPEED

    def from_import_on(module: ModuleType) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(replaced(module.runtime.jit.JITFunction, run=launched))
        stack.enter_context(replaced(module.runtime.autotuner.Autotuner, _bench=benchmarked))
        return stack

    return from_import_on
