"""The kernels of bitsandbytes without its compiled code.

Its operators are Python functions for each device: they allocate results and buffers by PyTorch, choose a path by the
sizes and by the GPU, and pass addresses to compiled code, which allocates nothing (bitsandbytes 0.50.2,
backends/cuda/ops.py and backends/cpu/ops.py). The same functions run here with the compiled code left out, so that each
release allocates as its own.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from runners.phases import Unavailable
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.torch_replaced import replaced
from runners.simulation.torch_tracer import MetaTracer

RAW_STREAM = "_cuda_getCurrentRawStream"  # of torch._C; a build without CUDA has none


@contextmanager
def without_cuda() -> Iterator[None]:
    """Enter around the import: with CUDA the library would load its compiled code, which needs a driver."""
    with replaced(torch.cuda, is_available=_unavailable):
        yield


def adapted(tracer: MetaTracer, is_host: bool) -> Callable[[ModuleType], AbstractContextManager[None]]:
    """What changes in the library while a workload is traced."""

    def from_import_on(module: ModuleType) -> AbstractContextManager[None]:
        functional = module.functional
        changed: dict[str, Any] = {
            "get_4bit_type": partial(_table, tracer, functional.get_4bit_type),
            "create_dynamic_map": partial(_with_data, functional.create_dynamic_map),
        }
        if hasattr(functional, "name2qmap"):
            changed["name2qmap"] = {}  # tables by device that the library keeps, and those of this trace have no data
        if not is_host:
            changed |= {"get_paged": partial(_paged, tracer), "fill": _nothing, "prefetch_tensor": _nothing}
        return replaced(functional, **changed)

    return from_import_on


def _with_data(make: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A table that is made on the host of numbers."""
    with torch._C.DisableTorchFunction():
        table: torch.Tensor = make(*args, **kwargs)
    return table


def _table(tracer: MetaTracer, make: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The 16 values of a 4-bit type, which kernels read to tell the types apart."""
    table: torch.Tensor = make(*args, **kwargs)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        tracer.remember(table, make(*args, **{**kwargs, "device": "cpu"}))
    return table


def _paged(tracer: MetaTracer, *shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """The state of a paged optimizer. It is managed memory of the driver's, which moves between the host and the card,
    and no memory of PyTorch's allocator."""
    with tracer.outside_allocator():
        made: Any = torch.empty(shape, dtype=dtype, device="meta")
    made.is_paged, made.page_deviceid = True, 0
    paged: torch.Tensor = made
    return paged


def bitsandbytes_kernels(architecture: GpuArchitecture | None) -> Mapping[str, Callable[..., Any]]:
    """The Python kernels of a GPU's architecture, or of a CPU for None, by the names of the operators.

    Raises Unavailable for a release whose kernels are not in Python (before 0.46).
    """
    device = "cpu" if architecture is None else "cuda"
    kernels: dict[str, Callable[..., Any]] = {}
    for backend in ("default", device):
        kernels |= _kernels_of(backend, device, architecture)
    return kernels


def _kernels_of(backend: str, device: str, architecture: GpuArchitecture | None) -> dict[str, Callable[..., Any]]:
    """Run the module of a backend anew. It takes the compiled library and the function that registers kernels from
    other modules, which have others in their place meanwhile."""
    registration = importlib.import_module("bitsandbytes._ops")
    compiled = importlib.import_module("bitsandbytes.cextension")
    found: dict[str, Callable[..., Any]] = {}

    def collect(operator: str, device_type: str) -> Callable[[Any], Any]:
        def collected(kernel: Any) -> Any:
            if device_type == backend:
                found[operator] = kernel
            return kernel

        return collected

    name = f"bitsandbytes.backends.{backend}.ops"
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise Unavailable(f"bitsandbytes: this release has no {name}, whose kernels a calculated device runs")
    module = module_from_spec(spec)
    is_amd = architecture is not None and architecture.vendor == "amd"
    missing = isinstance(compiled.lib, getattr(compiled, "ErrorHandlerMockBNBNativeLibrary", ()))
    with ExitStack() as stack:
        stack.enter_context(replaced(registration, register_kernel=collect))
        if device == "cuda" or not missing:  # without the library, a CPU has fewer kernels
            stack.enter_context(replaced(compiled, lib=_NothingCompiled()))
        stack.enter_context(replaced(torch, compile=_not_compiled))
        stack.enter_context(replaced(torch.version, hip="calculated" if is_amd else None))
        if not hasattr(torch._C, RAW_STREAM):
            setattr(torch._C, RAW_STREAM, _nothing)
            stack.callback(delattr, torch._C, RAW_STREAM)
        logging.disable(logging.WARNING)  # each was shown when the library itself was imported
        stack.callback(logging.disable, logging.NOTSET)
        spec.loader.exec_module(module)
    _describe_gpu(module, architecture)
    return found


def _describe_gpu(module: ModuleType, architecture: GpuArchitecture | None) -> None:
    """Answer the module's questions about the GPU."""
    names = vars(module)
    if "_get_4bit_code" in names:  # keeps its tables for each device, and those of this trace have no data

        @cache
        def code(quant_type: str, device: torch.device) -> torch.Tensor:
            functional = importlib.import_module("bitsandbytes.functional")
            table: torch.Tensor = functional.get_4bit_type(quant_type, device=device)
            return table

        names["_get_4bit_code"] = code
    if architecture is None:
        return
    major, minor = architecture.capability or (0, 0)
    names["_get_raw_stream"] = _nothing
    names["_gpu_dispatch_props"] = lambda device_index: (architecture.processors, major, minor)
    names["_rocm_gfx_arch"] = lambda device_index: architecture.name
    names["CUBLAS_Context"] = _NothingCompiled()


def _unavailable() -> bool:
    return False


def _not_compiled(function: Any = None, **options: Any) -> Any:
    return function if function is not None else _not_compiled


def _nothing(*_: Any, **__: Any) -> int:
    """A function of the compiled library: allocates nothing and succeeds."""
    return 0


class _NothingCompiled:
    """Stands in for the compiled library and for handles of it."""

    def __getattr__(self, name: str) -> Any:
        def function(*_: Any) -> int:
            return 0

        return function

    def get_instance(self) -> _NothingCompiled:
        return self
