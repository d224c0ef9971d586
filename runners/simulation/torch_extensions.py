"""Operators of libraries with kernels of their own, on tensors without data.

An operator of a known library runs as its Python kernel for the device does, without the compiled code that the kernel
calls. Any other operator follows the rule that was registered with torch.library.register_fake. An operator without
either is left to PyTorch, which refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS
from torch.utils._pytree import tree_iter

from runners.meters.torch_tensors import is_composite
from runners.phases import Unavailable
from runners.simulation import torch_bitsandbytes, torch_triton
from runners.simulation.assumptions import AT_MOST_ALL
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.late_imports import Adaptation, adapted
from runners.simulation.torch_bitsandbytes import bitsandbytes_kernels, without_cuda
from runners.simulation.torch_compiled import compiled_as_eager
from runners.simulation.torch_tracer import MetaTracer
from runners.simulation.torch_unknown_shapes import MOST_OF_EXTENSIONS

try:
    from torch._library.fake_impl import set_ctx_getter
except ImportError:  # before PyTorch 2.5
    from torch._library.abstract_impl import set_ctx_getter  # type: ignore[import-not-found,no-redef]

Kernel = Callable[..., Any]
ANY_DEVICE, META = torch._C.DispatchKey.CompositeExplicitAutograd, torch._C.DispatchKey.Meta
OWN = frozenset(("aten", "prims", "prim", "quantized", "c10d", "_c10d_functional", "profiler"))  # PyTorch's operators


def libraries_adapted(tracer: MetaTracer, is_host: bool) -> AbstractContextManager[None]:
    """Enter around all that may import the libraries, before the workload is traced."""
    bitsandbytes = Adaptation(without_cuda, torch_bitsandbytes.adapted(tracer, is_host))
    triton = Adaptation(nullcontext, torch_triton.adapted(tracer))
    libraries = {"bitsandbytes": bitsandbytes} if is_host else {"bitsandbytes": bitsandbytes, "triton": triton}
    return adapted({**libraries, **compiled_as_eager(tracer)})


class ExtensionKernels:
    """The kernels of one device: that of `architecture`, or a CPU for None."""

    def __init__(self, architecture: GpuArchitecture | None) -> None:
        self.on_bound: Callable[[str, str], None] = lambda operator, bound: None  # a size was taken as at most this
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
            kernel = self._libraries["bitsandbytes"].get(_name(operator))
            if kernel is not None:
                return kernel
        return self._rule(operator) or _python_kernel(operator) or (None if _is_known(operator) else _refusal(operator))

    def _rule(self, operator: Any) -> Kernel | None:
        """The function that was registered with register_fake. Other tensors that it makes count until it returns."""
        registered: Any = simple_registry.singleton.find(_name(operator))
        rule = (registered.fake_impl if hasattr(registered, "fake_impl") else registered.abstract_impl).kernel
        if rule is None or _without_rule(operator):
            return None
        most = MOST_OF_EXTENSIONS.get(_name(operator))

        def followed(*args: Any, **kwargs: Any) -> Any:
            sizes = _Sizes(operator, None if most is None else most(*args, **kwargs), self.on_bound)
            with set_ctx_getter(lambda: sizes), _triton_followed():
                made = rule(*args, **kwargs)
            _define(made, (args, kwargs))
            return made

        return followed


def _define(made: Any, given: Any) -> None:
    """Zeros in place of what a rule leaves undefined in tensors with data: a position of 0 exists where any does."""
    storages = {each.untyped_storage()._cdata for each in tree_iter(given) if _has_data(each)}
    for each in tree_iter(made):
        if _has_data(each) and each.untyped_storage()._cdata not in storages:
            each.zero_()


def _has_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta


class _Sizes:
    """What torch.library.get_ctx() gives a rule: sizes that depend on numbers."""

    def __init__(self, operator: Any, most: int | None, on_bound: Callable[[str, str], None]) -> None:
        self._operator, self._most, self._on_bound = operator, most, on_bound

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        """The largest that the rule allows, or that is known of this operator. Raises Unavailable without either."""
        known = [each for each in (max, self._most) if each is not None]
        if not known:
            raise Unavailable(
                f"{self._operator} cannot be traced without data: the shape of its result depends on numbers that none "
                "computes, and its rule gives no max to new_dynamic_size"
            )
        self._on_bound(str(self._operator), AT_MOST_ALL)
        return sorted(known)[0]

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> int:
        return self.new_dynamic_size(min=min, max=max)


def _triton_followed() -> AbstractContextManager[None]:
    """Entered around a triton_op, which is its own rule: it calls its kernels as usual."""
    try:
        from torch._library.triton import set_wrap_triton_enabled
    except ImportError:  # before PyTorch 2.6
        return nullcontext()
    return set_wrap_triton_enabled(False)


def _python_kernel(operator: Any) -> Kernel | None:
    """Its kernel for any device, if that is a Python function, which calls other operators."""
    if f"{_name(operator).replace('::', '/')}/{ANY_DEVICE.name}" not in torch.library._impls or _without_rule(operator):
        return None
    return partial(operator._op_dk, ANY_DEVICE)


def _without_rule(operator: Any) -> bool:
    """Whether it was made by torch.library.custom_op, and has no rule. Its kernel would read data."""
    made = OPDEFS.get(_name(operator))
    return made is not None and made._abstract_fn is None


def _is_known(operator: Any) -> bool:
    """Whether tensors without data have a kernel, or PyTorch makes it of others."""
    if _without_rule(operator):
        return False
    return bool(operator.has_kernel_for_dispatch_key(META) or is_composite(operator))


def _refusal(operator: Any) -> Kernel:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unavailable(
            f"{operator} cannot be traced without data: it is an extension's, and no rule says which tensors it makes; "
            f"torch.library.register_fake({_name(operator)!r}) gives one, in a module that workload.rules names"
        )

    return refuse


def _name(operator: Any) -> str:
    name: str = operator._name
    return name.removesuffix(".default")
