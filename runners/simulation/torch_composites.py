"""Operators that PyTorch makes of others, and that a device computes with kernels of its own.

PyTorch decomposes a composite operator before any dispatch mode sees it, and its kernel for that decides by the device
of the tensors. Tensors without data get what no device gets: attention as two products and a softmax, for example. The
functions here are registered with PyTorch's dispatcher, which every caller of an operator passes: functions and methods
under any name that they were imported by, torch.ops, modules, other operators, and TorchScript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from runners.meters.torch_tensors import COMPOSITE

Functions = Mapping[torch._ops.OpOverload, Callable[..., Any]]


@contextmanager
def composites_replaced(composites: Functions, kernels: Functions) -> Iterator[None]:
    """Replace composite operators on tensors without data.

    `composites` compute an operator by others, which autograd follows. `kernels` make the result of an operator, whose
    gradient is PyTorch's own formula for a device with a kernel for it.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for operator, function in composites.items():
        if operator.has_kernel_for_dispatch_key(COMPOSITE):
            library.impl(operator, function, "AutogradMeta")
    # torch.library does not register a kernel on `meta` for a composite operator, and PyTorch's formula needs one.
    of_meta = torch._C._dispatch_library("IMPL", "aten", "Meta")
    for operator, function in kernels.items():
        of_meta.impl(operator._name.removeprefix("aten::"), "Meta", function)
    try:
        yield
    finally:
        of_meta.reset()
        library._destroy()


def decomposed(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The result of an operator by PyTorch's own decomposition."""
    return operator._op_dk(COMPOSITE, *args, **kwargs)


def operators(*names: str) -> list[torch._ops.OpOverload]:
    """The operators of these names, as in "softmax.int". One that this release of PyTorch lacks is left out."""
    found = []
    for name in names:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        found += [] if operator is None else [operator]
    return found
