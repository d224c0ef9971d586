"""Tracks the bytes of live CPU tensors: the storages that operators return, from creation to release.

It stands for CUDA's `allocated` on a device without a counting allocator. It leaves out the scratch memory of kernels
and storages that were made before. It equals PyTorch's own CPU counter to 0.02 MiB on decoders, and is below it for
convolutions, sort and LSTM, whose kernels use scratch memory. A sparse tensor has the bytes of its indices and values.
Threads count that enter `pushed`, as threads.EnteredInThreads has them do: libraries read checkpoints in threads.

Quantised weights are tensors of tensors (torchao) or go through operators with Python kernels (bitsandbytes). Both are
tracked down to the storages inside.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from runners.meters.cpu import TensorBytes
from runners.meters.torch_gradients import GradientSums

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
ADD = torch.ops.aten.add.Tensor
ALIGNMENT = 64  # c10/core/alignment.h, gAlignment


class UnseenByDynamo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that leaves compiled code alone.

    A plain mode imports torch._dynamo at its first operator to disable itself inside compiled code (+72 MiB, 1 s, 822
    modules on torch 2.13), and under it torch.compile runs eager without a warning. A workload must not see either.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @contextmanager
    def pushed(self) -> Iterator[None]:
        """Enter in a second thread: entering a mode the usual way keeps its state in globals of all threads."""
        torch._C._push_on_torch_dispatch_stack(self)
        try:
            yield
        finally:
            torch._C._pop_torch_dispatch_stack(None)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class TensorTracker(UnseenByDynamo, TensorBytes):  # type: ignore[no-untyped-call]
    """Entered around a workload. A storage counts once for all its views, until the last of them is released."""

    def __init__(self) -> None:
        UnseenByDynamo.__init__(self)
        TensorBytes.__init__(self)
        # By the address of a live StorageImpl: its bytes, and a weak reference whose callback reports its release.
        self._storages: dict[int, tuple[int, Any]] = {}
        # The collector may release storages in any thread, whatever locks that holds. Appending is atomic.
        self._dead: deque[int] = deque()
        self._counting = threading.RLock()  # the collector may run a finalizer that calls an operator meanwhile
        self._sums = GradientSums()
        _TRACKERS.add(self)
        self._graphs_before = _compiled_graphs()

    @property
    def valid(self) -> bool:  # compiled code is not tracked
        return _compiled_graphs() == self._graphs_before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A tensor made of others has an empty storage of the size before quantisation. Its own class handles the
            # operator by calling operators on the parts, which come back here.
            return NotImplemented
        if is_composite(func):  # inference mode does not decompose them, and their parts would not be seen
            with self.pushed():
                return func._op_dk(COMPOSITE, *args, **(kwargs or {}))
        if _has_python_kernel(func) and _all_on_cpu(args, kwargs):
            # The mode is off while it handles an operator, and would miss the weight that this one dequantises.
            with self.pushed():
                result = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **(kwargs or {}))
        elif func is ADD and not kwargs and self._sums.is_in_place(*args):
            result = args[0].add_(args[1])
        else:
            try:
                result = func(*args, **(kwargs or {}))
            except RuntimeError as error:
                self.was_refused(error)
                raise
        if isinstance(result, torch.Tensor):
            self.track(result)
        else:
            for leaf in tree_iter(result):
                if isinstance(leaf, torch.Tensor):
                    self.track(leaf)
        return result

    def track(self, tensor: torch.Tensor) -> None:
        """Count the storages of a tensor in host memory, once each."""
        if tensor.device.type != "cpu":
            return
        with self._counting:
            self.settle()
            for storage in storages_of(tensor):
                self._track_storage(storage)

    def _track_storage(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        known, reference = self._storages.get(key, (0, None))
        if reference is None:
            reference = weakref.ref(storage, partial(self._died, key))
            self._sums.made(key)
        elif known == size:
            return
        self._storages[key] = size, reference
        self.live += size - known
        self.peak = max(self.peak, self.live)

    def _died(self, key: int, _: Any) -> None:
        self._dead.append(key)

    def settle(self) -> None:
        if not self._dead:
            return
        with self._counting:
            while self._dead:
                key = self._dead.popleft()
                size, _ = self._storages.pop(key)
                self._sums.died(key)
                self.live -= size

    def start_new_peak(self) -> None:
        with self._counting:
            super().start_new_peak()


_TRACKERS: weakref.WeakSet[TensorTracker] = weakref.WeakSet()


def _have_no_other_threads() -> None:
    """In a forked process: the thread that was counting as it was forked is not there to release the lock."""
    for tracker in _TRACKERS:
        tracker._counting = threading.RLock()


os.register_at_fork(after_in_child=_have_no_other_threads)


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor's elements: of a sparse one those of its indices and values, of other layouts none."""
    layout = tensor.layout
    if layout is torch.strided:
        return [tensor.untyped_storage()]
    parts: list[torch.Tensor] = []
    if layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [each.untyped_storage() for each in parts]


@cache
def is_composite(operator: Any) -> bool:
    """Whether an operator is made of others and has no kernel of its own (silu_backward has both)."""
    if not isinstance(operator, torch._ops.OpOverload) or not operator.has_kernel_for_dispatch_key(COMPOSITE):
        return False
    return not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU)


@cache
def _has_python_kernel(operator: Any) -> bool:
    """Whether torch.library registered the operator's CPU kernel, which then calls operators itself."""
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace == "aten":
        return False
    name = operator._name.removesuffix(".default").replace("::", "/")
    return any(f"{name}/{key}" in torch.library._impls for key in ("CPU", "CompositeExplicitAutograd"))


def _all_on_cpu(*arguments: Any) -> bool:
    return all(leaf.device.type == "cpu" for leaf in tree_iter(arguments) if isinstance(leaf, torch.Tensor))


def _compiled_graphs() -> int:
    """The number of graphs that torch.compile has made in this process. Does not import it."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)  # none yet where another thread is importing it
    return 0 if counters is None else int(counters["stats"].get("unique_graphs", 0))
