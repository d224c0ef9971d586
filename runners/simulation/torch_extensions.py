"""Operators of libraries with kernels of their own, on tensors without data.

An operator of a known library runs as its Python kernel for the device does, without the compiled code that the kernel
calls. Any other operator follows the rule that was registered with torch.library.register_fake. An operator without
either is left to PyTorch, which refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.fake_impl import set_ctx_getter

from runners.phases import Unavailable
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation import torch_bitsandbytes
from runners.simulation.late_imports import Adaptation, adapted
from runners.simulation.torch_bitsandbytes import bitsandbytes_kernels, without_cuda
from runners.simulation.torch_tracer import MetaTracer

Kernel = Callable[..., Any]
OWN = frozenset(("aten", "prims", "prim", "quantized", "c10d", "_c10d_functional", "profiler"))  # PyTorch's operators


def libraries_adapted(tracer: MetaTracer, is_host: bool) -> AbstractContextManager[None]:
    """Enter around all that may import the libraries, before the workload is traced."""
    return adapted({"bitsandbytes": Adaptation(without_cuda, torch_bitsandbytes.adapted(tracer, is_host))})


class ExtensionKernels:
    """The kernels of one device: that of `architecture`, or a CPU for None."""

    def __init__(self, architecture: GpuArchitecture | None) -> None:
        self._architecture = architecture
        self._found: dict[Any, Kernel | None] = {}
        self._libraries: dict[str, Mapping[str, Kernel]] = {}

    def of(self, operator: Any) -> Kernel | None:
        """The function that computes this operator by others; None for an operator of PyTorch's."""
        if operator not in self._found:
            self._found[operator] = None if operator.namespace in OWN else self._find(operator)
        return self._found[operator]

    def _find(self, operator: Any) -> Kernel | None:
        if operator.namespace == "bitsandbytes":
            if "bitsandbytes" not in self._libraries:
                self._libraries["bitsandbytes"] = bitsandbytes_kernels(self._architecture)
            kernel = self._libraries["bitsandbytes"].get(operator._name.removesuffix(".default"))
            if kernel is not None:
                return kernel
        return _rule(operator)


def _rule(operator: Any) -> Kernel | None:
    """The function that was registered with register_fake. What it makes beside its results counts as well."""
    entry = simple_registry.singleton.find(operator._name.removesuffix(".default"))
    rule = entry.fake_impl.kernel
    if rule is None:
        return None

    def depends_on_data() -> Any:
        raise Unavailable(
            f"{operator} cannot be traced without data: the shape of its result depends on numbers that are not computed"
        )

    def followed(*args: Any, **kwargs: Any) -> Any:
        with set_ctx_getter(depends_on_data):
            return rule(*args, **kwargs)

    return followed
