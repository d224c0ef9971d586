"""Follows the bytes of live CPU tensors: the storages that operators return, from birth to death.

The analogue of CUDA's `allocated` on a device without a counting allocator. Not in it: kernels' scratch, other
threads, and storages that were made before. Equal to PyTorch's own CPU counter to 0.02 MiB on decoders; below it for
convolutions, sort and LSTM, whose kernels have scratch of their own.

Quantised weights are tensors of tensors (torchao), or go through operators whose kernels are Python (bitsandbytes):
both are followed to the storages within.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from runners.meters.cpu import TensorBytes

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
ALIGNMENT = 64  # c10/core/alignment.h, gAlignment


class UnseenByDynamo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A plain mode imports torch._dynamo at its first operator (+72 MiB, 1 s, 822 modules on torch 2.13), to disable
    itself inside compiled code; and under it torch.compile silently runs eager. Neither may happen to a workload, so
    compiled code is let through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class TensorTracker(UnseenByDynamo, TensorBytes):  # type: ignore[no-untyped-call]
    """Entered around a workload. A storage is counted once, whatever views share it, until the last of them dies."""

    def __init__(self) -> None:
        super().__init__()
        # By the address of a live StorageImpl: its bytes, and the weak reference that tells when it dies.
        self._storages: dict[int, tuple[int, Any]] = {}
        # Storages can die in the heartbeat's thread, where the collector happens to run: appending is atomic, and the
        # count itself is changed by the measured thread alone.
        self._dead: deque[int] = deque()
        self._graphs_before = _compiled_graphs()

    @property
    def valid(self) -> bool:  # compiled code is let through, and not followed
        return _compiled_graphs() == self._graphs_before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A tensor made of others has an empty storage, as large as if nothing were quantised. Left to its own
            # class, the operator comes back here as those that it is made of.
            return NotImplemented
        if is_composite(func):  # in inference mode they come whole, and what they are made of would not be seen
            with self:
                return func._op_dk(COMPOSITE, *args, **(kwargs or {}))
        if _has_python_kernel(func) and _all_on_cpu(args, kwargs):
            # The mode is off while it handles an operator, and so would miss the weight that this one dequantises.
            with self:
                result = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **(kwargs or {}))
        else:
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self._follow(result)
        else:
            for leaf in tree_iter(result):
                if isinstance(leaf, torch.Tensor):
                    self._follow(leaf)
        return result

    def _follow(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        if self._dead:
            self.settle()
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        known, reference = self._storages.get(key, (0, None))
        if reference is None:
            reference = weakref.ref(storage, partial(self._died, key))
        elif known == size:
            return
        self._storages[key] = size, reference
        self.live += size - known
        self.peak = max(self.peak, self.live)

    def _died(self, key: int, _: Any) -> None:
        self._dead.append(key)

    def settle(self) -> None:
        while self._dead:
            size, _ = self._storages.pop(self._dead.popleft())
            self.live -= size


@cache
def is_composite(operator: Any) -> bool:
    """Whether it is made of other operators, and has no kernel of its own beside: silu_backward has both."""
    if not isinstance(operator, torch._ops.OpOverload) or not operator.has_kernel_for_dispatch_key(COMPOSITE):
        return False
    return not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU)


@cache
def _has_python_kernel(operator: Any) -> bool:
    """Whether what runs on the CPU was registered by torch.library, and so is made of operators itself."""
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace == "aten":
        return False
    name = operator._name.removesuffix(".default").replace("::", "/")
    return any(f"{name}/{key}" in torch.library._impls for key in ("CPU", "CompositeExplicitAutograd"))


def _all_on_cpu(*arguments: Any) -> bool:
    return all(leaf.device.type == "cpu" for leaf in tree_iter(arguments) if isinstance(leaf, torch.Tensor))


def _compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process, without importing it if the workload has not."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)  # none yet where another thread is importing it
    return 0 if counters is None else int(counters["stats"].get("unique_graphs", 0))
