"""Trace a workload on tensors without data: which bytes it allocates and frees, in which order.

A storage that an operator returns is one event when it is allocated and one when its last tensor is freed; views
are no events. The device's rules add the temporaries of kernels and the workspace of the first matrix product.
Nothing is computed, except whole numbers that depend on whole numbers only (positions, masks, lengths) and single
numbers likewise (the scale of a loss), which libraries read to decide what to do next.

What cannot be traced raises Unavailable with the operator's name, since any number would be a guess.
"""

from __future__ import annotations

import os
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from runners.meters.torch_gradients import GradientSums
from runners.meters.torch_tensors import COMPOSITE, TensorTracker, UnseenByDynamo, is_composite, storages_of
from runners.phases import Unavailable
from runners.simulation import torch_sparse
from runners.simulation.allocator import FIRST_ADDRESS
from runners.simulation.assumptions import Assumptions, asking_frame
from runners.simulation.card_memory import CALCULATED
from runners.simulation.events import EMPTY_CACHE, FRACTION, STREAM, WHOLE, WORKSPACE
from runners.simulation.kernels.torch_sizes import Estimate
from runners.simulation.levels import Level
from runners.simulation.live_memory import LiveMemory
from runners.simulation.torch_assumed_numbers import is_assumed, level_of_array, plain_of
from runners.simulation.torch_call_cache import (
    IN_PLACE,
    NOTHING,
    CachedCall,
    changes_alike,
    recreate,
    shapes_of,
    signature_of,
)
from runners.simulation.torch_composites import Functions, composites_replaced, operators
from runners.simulation.torch_data_dependent import OF_MASKS, DataDependent, is_on_device, needs_values
from runners.simulation.torch_draws import Draws
from runners.simulation.torch_numbers import LARGEST_FILLED, Numbers, is_followed
from runners.simulation.torch_replaced import intercepted, new_tensor, replaced, without_inference_mode
from runners.simulation.torch_results import RESULTS
from runners.threads import EnteredInThreads

TORCH = os.path.join(os.path.dirname(torch.__file__), "")
OF_AUTOGRAD = -1  # the handle of autograd's thread
# In place of an allocation's number: a storage without events, one that has yet to move, or one on no device.
EMPTY, ON_HOST, ABSTRACT = -1, -2, -3
HOST, META, ABSTRACT_DEVICE = torch.device("cpu"), torch.device("meta"), "meta"

aten = torch.ops.aten


class Extensions(Protocol):
    """Operators of libraries other than PyTorch."""

    on_bound: Callable[[str, str], None]  # called with an operator whose result is of unknown size, and its bound

    def of(self, operator: Any) -> Any:
        """The function that computes an operator by others; None for one that is not known or is PyTorch's."""
        ...


class Rules(Protocol):
    """The differences of a device from tensors without data."""

    host_counts: bool  # whether tensors in host memory count: only on a CPU

    composites: Functions  # operators that are made of others on the device, but of different ones
    kernels: Functions  # operators that have a kernel on the device, in place of others
    replacements: Functions  # the results of operators that depend on more than the shapes of their arguments
    extensions: Extensions  # operators of other libraries

    def applied(self) -> AbstractContextManager[Any]:
        """Entered around the workload."""
        ...

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        """Bytes of each buffer that the kernel holds at its peak in addition to its results, and frees when it ends."""
        ...

    def check(self, operator: Any, args: Sequence[Any]) -> None:
        """Raise for an operator that the device has no kernel for."""
        ...

    def left_out(self, operator: Any) -> str | None:
        """What the peak lacks of an operator's memory."""
        ...

    def uses_workspace(self, operator: Any) -> bool:
        """Whether it is a matrix product, for which the library keeps a workspace."""
        ...


class MetaTracer(UnseenByDynamo):  # type: ignore[no-untyped-call]
    """Trace a workload that runs on the device `meta`.

    `events` has the bytes of each allocation. Allocations are numbered from 0, and the event -(n + 1) frees number n.
    """

    def __init__(self, rules: Rules, assumptions: Assumptions | None = None) -> None:
        super().__init__()
        self.assumptions = assumptions or Assumptions()
        self.assumptions.on_failure = self._fail
        self.notes: dict[str, None] = {}  # what has to be known to read the figures, in order and each once
        draws = Draws(self.notes.setdefault, lambda: self.is_made_on_meta) if rules.host_counts else None
        self.numbers = Numbers(self.assumptions, draws)
        self._data_dependent = DataDependent(self.numbers, self.assumptions, self._unavailable)
        rules.extensions.on_bound = self.assumptions.bound
        self.events = array("q")
        self.memory: LiveMemory | None = None  # what the program sees of the card's memory while it runs
        # Of each event whose bytes a library decides: its number, and the least and the most bytes.
        self.bounds: list[tuple[int, int, int]] = []
        self.failure: str | None = None  # what could not be traced: the events are worthless from there on
        self.failure_event = 0  # the number of events before that point
        self.on_failure: Callable[[], None] = lambda: None
        self._rules = rules
        self._allocations = 0
        # By the address of a live StorageImpl: its bytes, its number, and the weak reference that reports its end.
        self._storages: dict[int, tuple[int, int, Any]] = {}
        self._calls: dict[Any, CachedCall] = {}
        self._sums = GradientSums()
        self._on_host = False  # whether new tensors are in host memory
        self.has_abstract = False  # whether a tensor was made on no device
        self._made_for: str | None = None  # the device that the program has named for new tensors
        self._twins: dict[int, tuple[torch.UntypedStorage, Any]] = {}  # without data, by the address of those with
        self._outside = False  # whether they are in memory that has no events
        self._first_thread = threading.get_ident()
        self.host_tensors = TensorTracker()  # of a card's program: with data, in the memory of the host
        self._has_threads = False  # whether there was another thread than the workload's first
        self._turn = threading.RLock()
        self._dead: deque[int] = deque()  # storages that were freed in another thread's turn
        self._made_by: dict[int, tuple[int, int]] = {}  # by living thread: its allocations, and all before it
        self._unordered_threads = 0
        self.fake_modes = 0  # that the program is in: what it makes there takes no memory of any device
        self.is_elsewhere = False  # in a process that the workload forked, which is not followed
        _TRACERS.add(self)
        self._stream = 0
        self._workspaces: dict[tuple[int, int], int] = {}  # their allocations, by handle and stream
        self._handles: dict[int, int] = {}  # of matrix products, by living thread
        self._replacements: Functions = {**RESULTS, **rules.replacements}

    @contextmanager
    def around_workload(self) -> Iterator[None]:
        """Enter around the workload. Raises Unavailable at the end if the workload caught that exception before."""
        with (
            self._rules.applied(),
            composites_replaced(self._rules.composites, self._rules.kernels),
            without_inference_mode(),
            self._remember_constants(),
            EnteredInThreads(self.in_thread),
            self._follow_empty_cache(),
            replaced(torch.Tensor, new=new_tensor),
            self,
        ):
            yield
        if self.failure is not None:
            raise Unavailable(self.failure)

    @property
    def counts_host(self) -> bool:
        """Whether tensors in host memory count: where a CPU is calculated."""
        return self._rules.host_counts

    @property
    def is_unused(self) -> bool:
        """Whether no tensor was ever on the device."""
        return not any(0 < event < WORKSPACE for event in self.events)

    def empty_cache(self) -> None:
        self.events.append(EMPTY_CACHE)

    def clear_workspaces(self) -> None:
        """Free the workspaces of matrix products. The next product allocates its own anew."""
        while self._workspaces:
            self._free(self._workspaces.popitem()[1])

    def use_stream(self, number: int) -> None:
        """Allocate on this stream from here on."""
        self._stream = number
        self.events.append(STREAM + number)

    def refuse_beyond(self, fraction: float) -> None:
        """Refuse what needs more than this share of the card from here on."""
        self.events.append(FRACTION + int(fraction * WHOLE))
        if self.memory is not None:
            self.memory.limit_changed()

    def allocate(self, size: int) -> int:
        """Memory that belongs to no tensor, for `free`. Raises what a program on the device catches."""
        return self._requested(size)

    def free(self, number: int) -> None:
        self._free(number)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage without data has another size now, which no operator shows."""
        known = self._storages.get(storage._cdata)
        with self._turn:
            if known is not None and known[1] == ABSTRACT:
                self._storages[storage._cdata] = storage.nbytes(), ABSTRACT, known[2]
            else:
                self._registered(storage)

    def address(self, storage: torch.UntypedStorage) -> int:
        """Where the imitated allocator has put a storage: 0 if it has no memory, as on a real device."""
        size, number, _ = self._storages.get(storage._cdata, (storage.nbytes(), EMPTY, None))
        if not size or number == ABSTRACT:
            return 0
        if self.memory is None or number < 0:
            return FIRST_ADDRESS + int(storage._cdata)
        with self._turn:
            return self.memory.address(number)

    def _follow_empty_cache(self) -> AbstractContextManager[None]:
        """Trace torch.cuda.empty_cache(), which does nothing where there is no CUDA, by any name."""
        if self._rules.host_counts:
            return nullcontext()
        return intercepted(torch.cuda.memory.empty_cache, lambda _: self.empty_cache())

    @contextmanager
    def made_on_host(self) -> Iterator[None]:
        """Enter around what is built in host memory and then moved: only what is left at the end reaches the device."""
        self._on_host = not self._rules.host_counts
        try:
            yield
        finally:
            self._on_host = False
            for key, (size, number, reference) in list(self._storages.items()):
                if number == ON_HOST:
                    self._storages[key] = size, self._allocate(size), reference

    @contextmanager
    def made_for(self, device: str) -> Iterator[None]:
        """Enter around what a program makes for a device by name. What it makes on `meta` takes memory of no device."""
        with self._turn:
            before, self._made_for = self._made_for, device
            try:
                yield
            finally:
                self._made_for = before

    @property
    def is_made_on_meta(self) -> bool:
        return self._made_for == ABSTRACT_DEVICE

    def is_abstract(self, tensor: torch.Tensor) -> bool:
        if not self.has_abstract or tensor.layout is not torch.strided:
            return False
        return self._storages.get(tensor.untyped_storage()._cdata, (0, EMPTY))[1] == ABSTRACT

    def host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its numbers, on the host."""
        return self.numbers.host_copy(tensor, "Tensor.cpu")

    @contextmanager
    def moved_to_device(self, module: torch.nn.Module) -> Iterator[None]:
        """Enter around what moves a module from the host, within `made_on_host`, and then changes it on the device."""
        before = self._on_host
        self._on_host = False
        try:
            if before:
                for parameter in module.parameters():
                    parameter.data = torch.empty_like(parameter)
            yield
        finally:
            self._on_host = before

    @contextmanager
    def outside_allocator(self) -> Iterator[None]:
        """Enter around what makes tensors in memory of another kind, which has no events."""
        before = self._outside
        self._outside = True
        try:
            yield
        finally:
            self._outside = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a tensor made of others: its class calls operators on them, which come back here
        with torch._C.DisableTorchFunction():  # a program's device (torch_card.py) does not answer here
            if self.is_elsewhere or self.fake_modes:
                if self.is_elsewhere and func in OF_MASKS:
                    args = self._data_dependent.with_true_masks(func, args)
                result = func(*args, **(kwargs or {}))
                if self.is_elsewhere:
                    self.numbers.follow_host(result, args, kwargs)
                return result
            if not self._has_threads:
                return self._follow(func, args, kwargs or {})
            with self._turn:
                return self._follow(func, args, kwargs or {})

    def _is_work_of_host(self, args: Any, kwargs: Any) -> bool:
        """Whether an operator works on the host, with data that is known, and takes nothing of a card."""
        if self._rules.host_counts or kwargs.get("device") == META:
            return False
        level = self.numbers.level
        for each in (*args, *kwargs.values()) if kwargs else args:
            for leaf in each if isinstance(each, (list, tuple)) else (each,):
                if isinstance(leaf, torch.Tensor) and (leaf.is_meta or level(leaf) > Level.KNOWN):
                    return False
        return True

    def call_elsewhere(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function in a forked process. Of a calculated host it has tensors without data, which get some."""
        if self._rules.host_counts:
            with torch._C.DisableTorchFunction():
                args, kwargs = tree_map(self._with_data, (args, kwargs))
        return func(*args, **kwargs)

    def _with_data(self, value: Any) -> Any:
        return self.numbers.with_data(value) if _is_dense(value) and not self.is_abstract(value) else value

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._is_work_of_host(args, kwargs):
            made = self._call(func, args, kwargs, plain=True)
            for leaf in made if isinstance(made, (list, tuple)) else (made,):
                if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                    self.host_tensors.track(leaf)
            return made
        if (
            func is aten.empty.memory_format
            and self._rules.host_counts
            and kwargs.get("device") == HOST
            and all(args[0])
            and _calls_a_class_of_tensors()
        ):
            kwargs = {**kwargs, "device": META}  # torch.Tensor(2, 3), which no function mode sees
        if func in TO_PYTHON:
            return self._data_dependent.item(args[0]) if args[0].is_meta else func(*args, **kwargs)
        if func is aten.allclose.default and is_on_device(args):
            with self:
                close = aten.isclose.default(*args, **kwargs).all()
            return self._data_dependent.are_close(close)
        if (composite := self._rules.composites.get(func)) is not None:
            with self:
                return composite(*args, **kwargs)
        if func is aten.equal.default and (args[0].is_meta or args[1].is_meta):
            return self._data_dependent.equal(*args)
        if (kernel := self._rules.extensions.of(func)) is not None:
            return self._followed(kernel, args, kwargs)
        if is_composite(func) and func not in self._rules.kernels:  # inference mode does not decompose them before
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if func is aten._to_copy.default and args[0].is_meta and kwargs.get("device") == HOST:
            return self._copy_value(args[0], kwargs)
        if func is aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            copy = self.host_copy(args[1])
            if self.numbers.level(copy) is Level.KNOWN or copy.nbytes <= LARGEST_FILLED:
                args[0].copy_(copy)
            self.numbers.follow_host(args[0], (copy,), {})
            return args[0]
        if func.is_view and _is_dense(args[0]) and args[0].untyped_storage()._cdata in self._storages:
            return func(*args, **kwargs)  # no allocation, no kernel
        if torch.Tag.dynamic_output_shape in func.tags and func not in RESULTS and needs_values(func, args):
            result, of_masks = self._data_dependent.result(func, args, kwargs)
            self._trace_all(result, func, args, kwargs)
            self._allocate_temporaries(of_masks)
            return result
        if self.has_abstract and self._made_for is None and self._all_abstract(args, kwargs):
            with self.made_for(ABSTRACT_DEVICE):
                return self._follow(func, args, kwargs)
        if func is aten._pack_padded_sequence.default and args[1].is_meta and self._rules.host_counts:
            args = args[0], self._lengths_of_host(*args), *args[2:]
        accumulated = func is aten.add.Tensor and not kwargs and self._sums.is_in_place(*args)
        signature = None if func in self._rules.replacements else signature_of(func, args, kwargs)
        call = self._calls.get(signature) if signature is not None else None
        if call is None:
            if signature is None and func not in (LENGTHS_OF_HOST if self._rules.host_counts else BETWEEN_DEVICES):
                given = args
                args, kwargs = self.on_one_device(func, args, kwargs)
                if args is not given and func._schema.is_mutable and args[0] is not given[0]:
                    self._write_without_data(given[0])
            elif func in PUTTING and not self._rules.host_counts:
                self.on_one_device(func, (args[0], args[2]), {})
            self._rules.check(func, args)
            if (left_out := self._rules.left_out(func)) is not None:
                self.notes[left_out] = None
            result = None if changes_alike(func, signature) else self._call(func, args, kwargs)
            if not self._rules.host_counts and not is_on_device((args, kwargs, result)):
                self._trace_all(result, func, args, kwargs)  # work of the host, with data: it takes nothing of the card
                return result
            temporaries = (*self._rules.temporaries(func, args, kwargs, result), *self._moved_indices(func, args))
            made = None if signature is None else shapes_of(func, args, result)
            uses_workspace = self._rules.uses_workspace(func) and not _is_sparse_product(args)
            call = CachedCall(made, uses_workspace, temporaries)
            if signature is not None and call.made is not None:
                self._calls[signature] = call
        else:
            result = None if call.made is NOTHING else args[0] if call.made is IN_PLACE else recreate(call.made)
        if call.uses_workspace:
            self._allocate_workspace()
        if accumulated:
            self._transfer_storage(args[0], result)
        self._trace_all(result, func, args, kwargs)
        self._allocate_temporaries(call.temporaries)
        return result

    def _all_abstract(self, args: Any, kwargs: Any) -> bool:
        """Whether an operator has tensors of no device only. Raises RuntimeError as a device would if it has others."""
        given = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.is_meta]
        abstract = [self.is_abstract(leaf) for leaf in given]
        if any(abstract) and not all(abstract):
            device = "cpu" if self._rules.host_counts else "cuda:0"
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {device} and meta!"
            )
        return bool(given) and all(abstract)

    def on_one_device(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The arguments of an operator, of which none or all but single numbers are without data.

        Raises RuntimeError as a card would. Where a host is calculated, tensors with data get twins without, and single
        numbers as well where they are positions, or the like.
        """
        given = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        takes_numbers = not self._rules.host_counts or torch.Tag.pointwise in getattr(func, "tags", ())
        real = [leaf for leaf in given if leaf.device == HOST and (leaf.ndim or not takes_numbers)]
        if not real or not any(leaf.is_meta for leaf in given):
            return args, kwargs
        if not self._rules.host_counts:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            )
        twins = {id(leaf): self._twin(leaf) for leaf in real}
        return tree_map(lambda leaf: twins.get(id(leaf), leaf), (args, kwargs))

    def _lengths_of_host(self, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> torch.Tensor:
        """The lengths of sequences with data, as the operator reads them: at most all where they are not known."""
        if self.numbers.knows(lengths):
            return self.numbers.answer(lengths).tensor.clone()
        self.assumptions.bound("aten._pack_padded_sequence")
        return torch.full(lengths.shape, padded.size(1 if batch_first else 0), dtype=lengths.dtype)

    def _write_without_data(self, tensor: Any) -> None:
        """What is written to data from tensors without does not reach them: they are assumed from then on."""
        if isinstance(tensor, torch.Tensor):
            self.numbers.taint(tensor, Level.ASSUMED)

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor without data, in a storage that counts as part of its own."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._twins:
            twin: Any = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
            self._storages[twin._cdata] = (
                storage.nbytes(),
                EMPTY,
                weakref.ref(twin, partial(self._storage_died, twin._cdata)),
            )
            self._twins[key] = twin, weakref.ref(storage, lambda _: self._twins.pop(key, None))
            self.numbers.share(twin, tensor)
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        return torch.empty(0, dtype=tensor.dtype, device="meta").set_(self._twins[key][0], *place)

    def _followed(self, kernel: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator of another library."""
        try:
            with self:
                return kernel(*args, **kwargs)
        except Unavailable as error:
            self._fail(str(error))
            raise

    def _call(self, func: Any, args: Any, kwargs: Any, plain: bool = False) -> Any:
        """The result of an operator. `plain` is as PyTorch computes it on the host."""
        try:
            if plain:
                return func(*args, **kwargs)
            if self._is_followed_sparse(func, args, kwargs):
                return torch_sparse.call(func, args, kwargs, self._known_value, narrows=self._rules.host_counts)
            return self._replacements.get(func, func)(*args, **kwargs)
        except torch_sparse.UnknownCount as error:
            raise self._unavailable(
                func, "the number of its elements depends on numbers that are not computed"
            ) from error
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, NotImplementedError) or "meta tensor" in str(error):
                raise self._unavailable(func, str(error).partition("\n")[0]) from error
            message = str(error)
            if "DefaultCPUAllocator" in message and CALCULATED not in message:  # the workload may catch it
                why = "this machine has too little memory for a tensor that has data"
                raise self._unavailable(func, why) from error
            raise

    def _moved_indices(self, func: Any, args: Any) -> Iterator[int]:
        """Bytes of the indices of the host, which the kernel copies to the device. A mask becomes positions before that
        (aten/src/ATen/native/IndexingUtils.h)."""
        if self._rules.host_counts or func not in WITH_INDICES or not args[0].is_meta:
            return
        for index in args[1]:
            if index is not None and not index.is_meta:
                if index.dtype in (torch.bool, torch.uint8):
                    yield from [int(index.count_nonzero()) * torch.int64.itemsize] * index.ndim
                else:
                    yield index.nbytes

    def _is_followed_sparse(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operator has or makes sparse tensors without data. Next to a card, those of the host have data."""
        if not torch_sparse.any_sparse(args, kwargs) and func not in MAKE_SPARSE:
            return False
        return self._rules.host_counts or is_on_device((args, kwargs)) or kwargs.get("device") == META

    def _allocate_temporaries(self, sizes: Sequence[int]) -> None:
        """All temporaries of a kernel are alive at once."""
        if self._on_host:
            return
        numbers: list[int] = []
        try:
            for size in sizes:
                self._note_bounds(size)
                numbers.append(self._requested(size))
        finally:
            for number in numbers:
                self.events.append(-number - 1)

    def _note_bounds(self, size: int) -> None:
        if size and isinstance(size, Estimate):
            self.bounds.append((len(self.events), size.low, size.high))

    def _trace_all(self, result: Any, func: Any, args: Any, kwargs: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._trace(result, func)
        elif result is not None:
            for leaf in tree_iter(result):
                if isinstance(leaf, torch.Tensor):
                    self._trace(leaf, func)
        self.numbers.follow(result, func, args, kwargs)
        self._data_dependent.distinct.follow(result, func, args)

    def _requested(self, event: int) -> int:
        """The number of a new allocation. Raises what a program on the device catches if it does not fit."""
        self.events.append(event)
        if self.memory is not None and self.memory.refuses and (refused := self.memory.check()) is not None:
            raise (RuntimeError if self._rules.host_counts else torch.OutOfMemoryError)(str(refused))
        self._allocations += 1
        if self._has_threads and (thread := threading.get_ident()) in self._made_by:
            made, before = self._made_by[thread]
            self._made_by[thread] = made + 1, before
        return self._allocations - 1

    def _allocate_workspace(self) -> None:
        key = self._handle(), self._stream
        if key not in self._workspaces and not self._on_host:
            self._workspaces[key] = self._requested(WORKSPACE)

    def _handle(self) -> int:
        """The number of the library's handle. Each thread has one, autograd's too, and a new thread takes over that of
        a thread that has ended (aten/src/ATen/cuda/detail/DeviceThreadHandles.h)."""
        if torch._C._current_graph_task_id() != -1:
            return OF_AUTOGRAD
        thread = threading.get_ident() if self._has_threads else self._first_thread
        if thread not in self._handles:
            self._handles[thread] = min(set(range(len(self._handles) + 1)) - set(self._handles.values()))
        return self._handles[thread]

    def _trace(self, tensor: torch.Tensor, func: Any) -> None:
        if not tensor.is_meta and not (self._rules.host_counts and tensor.device.type == "cpu"):
            self.host_tensors.track(tensor)
            return
        if tensor.layout is not torch.strided:
            sparse: Any = tensor
            estimates = getattr(sparse, "estimates", None)
            for number, storage in enumerate(storages_of(tensor)):
                if estimates and not self._on_host:
                    self._note_bounds(estimates[number])
                self._registered(storage)
            if (known := getattr(sparse, "known_indices", None)) is not None:
                del sparse.known_indices
                self.numbers.keep(sparse._indices(), known, Level.FINITE)
            return
        if not self._on_host:
            self._note_bounds(getattr(tensor, "estimate", 0))
        self._registered(tensor.untyped_storage())

    def _registered(self, storage: torch.UntypedStorage) -> int:
        """Its address. A storage that is new or resized adds its events."""
        while self._dead:
            self._end_storage(self._dead.popleft())
        key: int = storage._cdata
        size = storage.nbytes()
        known = self._storages.get(key)
        if known is None:
            reference = weakref.ref(storage, partial(self._storage_died, key))
            self._storages[key] = size, self._allocate(size), reference
            self._sums.made(key)
        elif known[0] != size:  # resized in place: the old memory is freed after the new is allocated
            self._storages[key] = size, self._allocate(size), known[2]
            self._free(known[1])
            self.numbers.forget(key)
        return key

    def _transfer_storage(self, old: torch.Tensor, new: Any) -> None:
        """With data, autograd accumulates a gradient in place: the sum has the storage of the first gradient."""
        key, storage = old.untyped_storage()._cdata, new.untyped_storage()
        size, number, reference = self._storages[key]
        self._storages[key] = 0, EMPTY, reference
        self._storages[storage._cdata] = size, number, weakref.ref(storage, partial(self._storage_died, storage._cdata))

    def _allocate(self, size: int) -> int:
        if self._on_host:
            return ON_HOST
        if self._made_for == ABSTRACT_DEVICE:
            self.has_abstract = True
            return ABSTRACT
        if not size or self._outside:
            return EMPTY
        return self._requested(size)

    def _storage_died(self, key: int, _: Any) -> None:
        """Never wait here: the collector may run this in any thread, whatever locks that holds."""
        if not self._has_threads:
            self._end_storage(key)
        elif self._turn.acquire(blocking=False):
            self._end_storage(key)
            self._turn.release()
        else:
            self._dead.append(key)

    def _end_storage(self, key: int) -> None:
        self.numbers.forget(key)
        self._data_dependent.distinct.forget(key)
        self._sums.died(key)
        self._free(self._storages.pop(key)[1])

    def _free(self, number: int) -> None:
        if number >= 0:
            self.events.append(-number - 1)

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Enter in another thread than the workload's. Threads take turns from then on."""
        self._has_threads = True
        thread = threading.get_ident()
        self._made_by[thread] = 0, self._allocations
        with self.pushed():
            try:
                yield
            finally:
                self._unordered_threads += self._is_unordered(*self._made_by.pop(thread))
                self._handles.pop(thread, None)

    @property
    def unordered_threads(self) -> int:
        """Threads that made tensors on the device while others did: in which order is not determined."""
        return self._unordered_threads + sum(self._is_unordered(*made) for made in list(self._made_by.values()))

    def _is_unordered(self, made: int, before: int) -> bool:
        return 0 < made < self._allocations - before

    # --- values of whole and single numbers ---

    @contextmanager
    def _remember_constants(self) -> Iterator[None]:
        """Keep the values of tensors made from Python numbers: on `meta` torch drops them before any operator."""

        def remembering(make: Any, first: int) -> Any:
            def made(*args: Any, **kwargs: Any) -> Any:
                tensor = make(*args, **kwargs)
                with torch._C.DisableTorchFunction():
                    if is_followed(tensor) and not any(
                        isinstance(each, torch.Tensor) for each in tree_iter(args[first:])
                    ):
                        assumed = [each for each in tree_iter(args[first]) if is_assumed(each)]
                        given = tree_map(plain_of, args[first]) if assumed else args[first]
                        with _disable_current_modes():
                            value = torch.tensor(given, device=HOST, dtype=tensor.dtype)
                        self.remember(tensor, value)
                        if assumed:
                            self.numbers.doubt(tensor, max(each.level for each in assumed))
                    if (level := level_of_array(args[first])) > Level.KNOWN:
                        self.numbers.doubt(tensor, level)
                return tensor

            return made

        _device_constructors()  # PyTorch keeps this set of functions: it must not keep what replaces one
        names = ("tensor", "as_tensor", "from_numpy")
        makers = {name: remembering(getattr(torch, name), 0) for name in names}
        with replaced(torch, **makers), replaced(torch.Tensor, new_tensor=remembering(torch.Tensor.new_tensor, 1)):
            yield

    def see(self, made: Any) -> None:
        """Register a tensor that PyTorch makes beneath all operators, as torch.tensor does on `meta`."""
        with torch._C.DisableTorchFunction():
            if _is_dense(made):
                self._registered(made.untyped_storage())

    def remember(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Keep the value of a tensor without data."""
        if torch._C.TensorBase.is_meta.__get__(tensor):  # type: ignore[attr-defined]
            self._registered(tensor.untyped_storage())
            self.numbers.set(tensor.untyped_storage(), value.untyped_storage())

    def _copy_value(self, tensor: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return torch_sparse.with_parts(tensor, lambda part: self.numbers.host_copy(part, "Tensor.cpu"))
        copy = self.numbers.host_copy(tensor, "Tensor.cpu")
        dtype = options.get("dtype")
        if dtype is None or dtype == copy.dtype:
            return copy
        level, copy = self.numbers.level(copy), copy.to(dtype)
        if level > Level.KNOWN:
            self.numbers.taint(copy, level)
        return copy

    def _known_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self.numbers.read(tensor)
        return None if found is None or found.level > Level.FINITE else found.tensor

    def _unavailable(self, func: Any, why: str) -> Unavailable:
        return self.unavailable(f"{self.assumptions.where()}, {func} cannot be traced without data: {why}")

    def unavailable(self, message: str) -> Unavailable:
        """To raise where the trace cannot go on. A program that catches it is not followed further."""
        self._fail(message)
        return Unavailable(message)

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure, self.failure_event = message, len(self.events)
            self.on_failure()


# Those that a forked process finds: it works with data, as on any device.
_TRACERS: weakref.WeakSet[MetaTracer] = weakref.WeakSet()


def _work_with_data() -> None:
    for tracer in _TRACERS:
        tracer.is_elsewhere = True


os.register_at_fork(after_in_child=_work_with_data)


def _calls_a_class_of_tensors() -> bool:
    """Whether Python code outside of PyTorch calls torch.Tensor or the like, and not an operator that fills a tensor of
    the host itself, such as ctc_loss."""
    frame = asking_frame()
    if frame is None or frame.f_code.co_filename.startswith(TORCH):
        return False
    return any(name.endswith("Tensor") for name in frame.f_code.co_names)


def _is_dense(value: Any) -> bool:
    """Whether it is a tensor without data that has one storage."""
    return isinstance(value, torch.Tensor) and value.is_meta and value.layout is torch.strided


def _is_sparse_product(args: Any) -> bool:
    """Whether a product is of a sparse tensor: cuSPARSE computes it, without the workspace of cuBLAS."""
    return any(isinstance(each, torch.Tensor) and each.layout is not torch.strided for each in args)


PUTTING = frozenset({aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default})
WITH_INDICES = PUTTING | {aten.index.Tensor}
# Operators that read lengths on the host, whatever device they run on.
LENGTHS_OF_HOST = frozenset({aten._pack_padded_sequence.default, aten._ctc_loss.default, aten._ctc_loss.Tensor})
# Their tensors may be on several devices.
BETWEEN_DEVICES = LENGTHS_OF_HOST | frozenset(
    {aten._to_copy.default, aten.copy_.default, *WITH_INDICES, aten._foreach_copy_.default}
)
MAKE_SPARSE = frozenset(operators("_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "sparse_mask"))
TO_PYTHON = frozenset({aten._local_scalar_dense.default, aten.item.default})
