"""Follows a workload on tensors without data: which bytes it would take and give back, in which order.

Every storage that an operator returns is an event when it is born and another when the last tensor of it dies, whatever
views share it; so are a kernel's own temporaries and the workspace of the first matrix product, as the device's rules
have them. Nothing is computed, except whole numbers that depend on nothing but other whole numbers (positions, masks,
lengths), and single numbers likewise (a loss's scale): libraries ask for those to decide what to do next.

What cannot be followed raises Unavailable with the operator's name: a number would be a guess.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from runners.meters.torch_tensors import COMPOSITE, UnseenByDynamo, is_composite
from runners.phases import Unavailable

WORKSPACE = 2**62  # in the place of a size: what a matrix product's handle takes, which the card decides
EMPTY_CACHE = 2**62 + 1  # torch.cuda.empty_cache()
LARGEST_VALUE = 2**23  # bytes of whole numbers that are computed: positions and masks, but no mask of a length squared

ALONE = (4, 2)  # references to a tensor and its storage where autograd has the only one: the others are this call's
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
EMPTY, ON_HOST = -1, -2  # in the place of a birth's number: of what has no bytes, and none on the device
SINGLE = 8  # bytes of one number of any type
HOST = torch.device("cpu")

aten = torch.ops.aten


class Rules(Protocol):
    """What a device does in other ways than tensors without data would."""

    device: str  # its type, as torch calls it
    host_counts: bool  # whether tensors in the host's memory are on the device: they are on a CPU

    def applied(self) -> Any:
        """A context manager, entered around the workload."""
        ...

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        """Bytes of each of what the kernel has for itself at its fullest, and gives back as it ends."""
        ...

    def takes_a_handle(self, operator: Any) -> bool:
        """Whether it is a matrix product, for which the library has a workspace."""
        ...


class MetaTracer(UnseenByDynamo):
    """Entered around a workload on the device `meta`. `events`: bytes of a birth, and below zero the death of one.

    The births are numbered from 0 in their order, and the death of number n is -(n + 1).
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.events = array("q")
        self.lost: str | None = None  # why what comes now means nothing: an operator that could not be followed
        self.lost_at = 0  # how many events there were before
        self._rules = rules
        self._births = 0
        # By the address of a live StorageImpl: its bytes, its number, and the reference that tells when it dies.
        self._storages: dict[int, tuple[int, int, Any]] = {}
        self._values: dict[int, torch.UntypedStorage] = {}  # by the same: the whole numbers in it, where they are known
        self._calls: dict[Any, _Call] = {}
        self._on_host = False  # whether what is made now is in the host's memory
        self._handles: set[bool] = set()  # in backward or not: autograd's thread of a device has a handle of its own

    @contextmanager
    def around_workload(self) -> Iterator[None]:
        with self._rules.applied(), _without_inference_mode(), self._constants_known(), self._refusing(), self:
            yield
        if self.lost is not None:  # raised before, and caught by the workload
            raise Unavailable(self.lost)

    def empty_cache(self) -> None:
        self.events.append(EMPTY_CACHE)

    @contextmanager
    def made_on_host(self) -> Iterator[None]:
        """Around what is made in the host's memory and then moved: only what is left at the end is on the device."""
        self._on_host = not self._rules.host_counts
        try:
            yield
        finally:
            self._on_host = False
            for key, (size, number, reference) in list(self._storages.items()):
                if number == ON_HOST:
                    self._storages[key] = size, self._born(size), reference

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in NUMBERS and args[0].is_meta:
            return self._item(args[0])
        if is_composite(func):  # in inference mode they come whole, and the mode would not see what they are made of
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if func is aten._to_copy.default and args[0].is_meta and kwargs.get("device") == HOST:
            return self._copied(args[0], kwargs)
        if func.is_view and args[0].is_meta and args[0].untyped_storage()._cdata in self._storages:
            return func(*args, **kwargs)  # nothing is born, and no kernel runs
        if torch.Tag.dynamic_output_shape in func.tags and _asks_values(func, args):
            return self._by_values(func, args, kwargs)
        accumulated = func is aten.add.Tensor and _is_last_of_a_gradient(*args)
        signature = _signature(func, args, kwargs)
        call = self._calls.get(signature) if signature is not None else None
        if call is None:
            result = self._called(func, args, kwargs)
            temporaries = tuple(self._rules.temporaries(func, args, kwargs, result))
            call = _Call(_made(func, args, result), self._rules.takes_a_handle(func), temporaries)
            if signature is not None and call.made is not None:
                self._calls[signature] = call
        else:
            result = args[0] if call.made is IN_PLACE else None if call.made is NOTHING else _again(call.made)
        if call.takes_a_handle:
            self._take_handle()
        if accumulated:
            self._take_over(args[0], result)
        self._follow_all(result, func, args, kwargs)
        self._take(call.temporaries)
        return result

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return INSTEAD.get(func, func)(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, NotImplementedError) or "meta tensor" in str(error):
                raise self._cannot(func, str(error).partition("\n")[0]) from error
            raise

    def _take(self, sizes: Sequence[int]) -> None:
        """What a kernel has for itself, beside its results: all of it at once."""
        if self._on_host:
            return
        births = []
        for size in sizes:
            self.events.append(size)
            births.append(self._next_birth())
        for birth in births:
            self.events.append(-birth - 1)

    def _follow_all(self, result: Any, func: Any, args: Any, kwargs: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._follow(result, func, args, kwargs)
        elif result is None or (isinstance(result, (list, tuple)) and not result):
            self._changed(func, args)
        else:
            for leaf in tree_iter(result):
                if isinstance(leaf, torch.Tensor):
                    self._follow(leaf, func, args, kwargs)

    def _next_birth(self) -> int:
        self._births += 1
        return self._births - 1

    def _take_handle(self) -> None:
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward not in self._handles and not self._on_host:
            self._handles.add(in_backward)
            self.events.append(WORKSPACE)
            self._next_birth()

    def _follow(self, tensor: torch.Tensor, func: Any, args: Any, kwargs: Any) -> None:
        if not tensor.is_meta:
            if not self._rules.host_counts or tensor.device.type != "cpu":
                return
        elif tensor.layout is not torch.strided:
            raise self._cannot(func, "it gives a sparse tensor")
        key, size = self._held(tensor.untyped_storage())
        if _may_be_known(tensor):
            self._compute(key, size, func, args, kwargs)

    def _held(self, storage: torch.UntypedStorage) -> tuple[int, int]:
        """Its address and bytes, once it is known that it is there."""
        key, size = storage._cdata, storage.nbytes()
        known = self._storages.get(key)
        if known is None:
            reference = weakref.ref(storage, partial(self._died, key))
            self._storages[key] = size, self._born(size), reference
        elif known[0] != size:  # resized in its place: the new memory is taken while the old one is there
            self._storages[key] = size, self._born(size), known[2]
            self._freed(known[1])
        return key, size

    def _take_over(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """With data, autograd adds to a gradient in its place: the sum has its storage."""
        key, storage = old.untyped_storage()._cdata, new.untyped_storage()
        size, number, reference = self._storages[key]
        self._storages[key] = 0, EMPTY, reference
        self._storages[storage._cdata] = size, number, weakref.ref(storage, partial(self._died, storage._cdata))

    def _born(self, size: int) -> int:
        if self._on_host:
            return ON_HOST
        if not size:
            return EMPTY
        self.events.append(size)
        return self._next_birth()

    def _died(self, key: int, _: Any) -> None:
        self._values.pop(key, None)
        self._freed(self._storages.pop(key)[1])

    def _freed(self, number: int) -> None:
        if number >= 0:
            self.events.append(-number - 1)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """What would go on without being seen: threads, in which no mode is, and layers that run in other kernels."""

        def refused(what: str, why: str) -> Any:
            def refuse(*_: Any, **__: Any) -> Any:
                raise self._cannot(what, why)

            return refuse

        recurrent = {name: refused(f"aten.{name}", "its kernels are cuDNN's or oneDNN's own") for name in RECURRENT}
        start = refused("threading.Thread.start", "what a thread makes is not seen")
        with replaced(torch._VF, **recurrent), replaced(threading.Thread, start=start):
            yield

    # --- whole and single numbers ---

    @contextmanager
    def _constants_known(self) -> Iterator[None]:
        """Numbers from Python: torch leaves them out on `meta`, before any operator."""

        def knowing(make: Any, given: int) -> Any:
            def made(*args: Any, **kwargs: Any) -> Any:
                tensor = make(*args, **kwargs)
                if _may_be_known(tensor) and not any(
                    isinstance(each, torch.Tensor) for each in tree_iter(args[given:])
                ):
                    with _disable_current_modes():
                        value = torch.tensor(*args[given:], **{**kwargs, "device": HOST, "dtype": tensor.dtype})
                    key, _ = self._held(tensor.untyped_storage())
                    self._values[key] = value.untyped_storage()
                return tensor

            return made

        makers = {"tensor": knowing(torch.tensor, 0), "as_tensor": knowing(torch.as_tensor, 0)}
        with replaced(torch, **makers), replaced(torch.Tensor, new_tensor=knowing(torch.Tensor.new_tensor, 1)):
            yield

    def _item(self, tensor: torch.Tensor) -> Any:
        return self._known(tensor, aten._local_scalar_dense.default).item()

    def _copied(self, tensor: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
        copy: torch.Tensor = self._known(tensor, aten._to_copy.default).clone().to(options.get("dtype"))
        return copy

    def _known(self, tensor: torch.Tensor, func: Any) -> torch.Tensor:
        value = self._values.get(tensor.untyped_storage()._cdata)
        if value is None:
            raise self._cannot(func, "it asks for numbers (.item(), .cpu()) that are not computed")
        return _on_cpu(tensor, value)

    def _by_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives whose numbers decide how many it gives: of whole numbers that are known."""
        if func is aten.index.Tensor:
            indices, counts = self._without_masks(args[1], func)
            result = func(args[0], indices)
            self._follow_all(result, func, args, kwargs)
            self._take(counts)
            return result
        if func is aten.masked_select.default:
            mask = self._known(args[1], func)
            shape: Any = torch.broadcast_shapes(args[0].shape, mask.shape)  # type: ignore[no-untyped-call]
            result = args[0].new_empty(int(mask.expand(shape).count_nonzero()))
        else:
            if any(leaf.is_floating_point() for leaf in tree_iter(args) if isinstance(leaf, torch.Tensor)):
                raise self._cannot(func, "how much it gives depends on numbers that are not computed")
            made = func(*tree_map(partial(self._if_known, func), args), **kwargs)
            result = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, made)
        self._follow_all(result, func, args, kwargs)
        return result

    def _without_masks(self, indices: Any, func: Any) -> tuple[list[Any], list[int]]:
        """Positions in the places of masks, as the kernel makes them, and the bytes that it takes for them."""
        found: list[Any] = []
        counts = []
        for index in indices:
            if not _is_mask(index):
                found.append(index)
                continue
            count = int(self._known(index, func).count_nonzero())
            found += [torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.ndim)]
            counts.append(count * index.ndim * torch.int64.itemsize)
        return found, counts

    def _if_known(self, func: Any, leaf: Any) -> Any:
        return self._known(leaf, func) if isinstance(leaf, torch.Tensor) and leaf.is_meta else leaf

    def _changed(self, func: Any, args: Any) -> None:
        """By an operator that returns nothing: what it changed is not known any more."""
        if func in FINITE:
            return
        for leaf in tree_iter(args):
            if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                self._values.pop(leaf.untyped_storage()._cdata, None)

    def _compute(self, key: int, size: int, func: Any, args: Any, kwargs: Any) -> None:
        """The whole numbers of a result, if all that it was made of is known; else they are not known any more."""
        given = [leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        keys = [leaf.untyped_storage()._cdata for leaf in given if leaf.is_meta]
        if key in keys and not func._schema.is_mutable:
            return  # a view
        if size > LARGEST_VALUE or not all(each in self._values for each in keys) or _is_unknown(func):
            self._values.pop(key, None)
            return
        values = self._values

        def known(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                return _on_cpu(leaf, values[leaf.untyped_storage()._cdata])
            return HOST if isinstance(leaf, torch.device) else leaf

        concrete_args, concrete_kwargs = tree_map(known, (args, kwargs))
        made = func(*concrete_args, **concrete_kwargs)
        if key in values:
            return  # changed in its place, and the value with it
        if isinstance(made, torch.Tensor) and made.untyped_storage().nbytes() == size:
            values[key] = made.untyped_storage()

    def _cannot(self, func: Any, why: str) -> Unavailable:
        said = f"{func} cannot be followed without data: {why}"
        if self.lost is None:
            self.lost, self.lost_at = said, len(self.events)
        return Unavailable(said)


# --- the same call once more ------------------------------------------------------------------------------------------
# A decoder's layers ask for the same operators on the same shapes, and what an operator gives for shapes takes most of
# the time here (many are written in Python for `meta`): 11 s of 22 in a profile of a training step.

IN_PLACE, NOTHING = "in place", "nothing"
# What changes a tensor's own shape or storage has to be done to each: the tag is not on all of these.
RESHAPES = frozenset({aten.resize_, aten.resize_as_, aten.set_, aten.as_strided_, aten.detach_})


class _Call(NamedTuple):
    """What an operator does for arguments of certain shapes. `made`: its results' shapes; None if they are views."""

    made: Any
    takes_a_handle: bool
    temporaries: tuple[int, ...]


def _signature(func: Any, args: Any, kwargs: Any) -> Any:
    """All that decides the shapes of the results; None where a tensor is none without data, and may have a value."""
    try:
        return func, _described(args), _described(tuple(kwargs.items())) if kwargs else None
    except (ValueError, TypeError):
        return None


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta or value.is_complex() or value.layout is not torch.strided:
            raise ValueError
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (tuple, list)):
        return tuple([_described(each) for each in value])
    hash(value)
    return type(value), value  # 1, 1.0 and True are equal


def _made(func: Any, args: Any, result: Any) -> Any:
    """The shapes of new tensors, in tuples and lists as the operator gives them; None for anything else."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.is_view:
        return None
    if schema.is_mutable:
        if torch.Tag.inplace_view in func.tags or func.overloadpacket in RESHAPES:
            return None
        if result is None or (isinstance(result, tuple) and not result):
            return NOTHING
        return IN_PLACE if args and result is args[0] and isinstance(result, torch.Tensor) else None
    taken = {leaf.untyped_storage()._cdata for leaf in tree_iter(args) if isinstance(leaf, torch.Tensor)}
    try:
        return _shapes(result, taken)
    except ValueError:
        return None


def _shapes(result: Any, taken: set[int]) -> Any:
    if isinstance(result, torch.Tensor):
        key = result.untyped_storage()._cdata
        if not result.is_meta or key in taken or result.storage_offset() or result.layout is not torch.strided:
            raise ValueError
        taken.add(key)
        made = result.shape, result.stride(), result.dtype
        if _again(made).untyped_storage().nbytes() != result.untyped_storage().nbytes():
            raise ValueError
        return made
    if isinstance(result, (tuple, list)):
        return [type(result), *(_shapes(each, taken) for each in result)]
    if result is not None:
        raise ValueError
    return None


def _again(made: Any) -> Any:
    if made is None:
        return None
    if isinstance(made, list):
        return made[0](map(_again, made[1:]))
    shape, stride, dtype = made
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _without_inference_mode() -> AbstractContextManager[None]:
    """As without gradients, which takes the same memory: in inference mode composite operators arrive whole, and to
    take them apart here takes four times as long."""
    return replaced(torch, inference_mode=torch.no_grad)


@contextmanager
def replaced(where: Any, **names: Any) -> Iterator[None]:
    before = {name: getattr(where, name) for name in names}
    for name, value in names.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(where, name, value)


def _is_last_of_a_gradient(old: torch.Tensor, new: Any) -> bool:
    """Whether autograd sums up gradients, and nobody else has the first (torch/csrc/autograd/input_buffer.cpp,
    can_accumulate_inplace). Under a dispatch mode it does not go by that, and adds to a new tensor."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not isinstance(new, torch.Tensor):
        return False
    if old.shape != new.shape or old.dtype != new.dtype or not old.is_meta or not hasattr(old, "_use_count"):
        return False
    storage = old.untyped_storage()
    alone = (old._use_count(), torch._C._storage_Use_Count(storage._cdata)) == ALONE
    return alone and storage.nbytes() == old.nbytes


def _may_be_known(tensor: torch.Tensor) -> bool:
    if not tensor.is_meta:
        return False
    return tensor.untyped_storage().nbytes() <= SINGLE or not (tensor.is_floating_point() or tensor.is_complex())


def _asks_values(func: Any, args: Any) -> bool:
    """Positions give as many as there are; masks as many as are true."""
    return func is not aten.index.Tensor or any(map(_is_mask, args[1]))


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.is_meta and index.dtype in (torch.bool, torch.uint8)


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """torch's own for tensors without data knows bfloat16 alone, which devices do not insist on."""
    groups = () if (a.ndim == 2) != (b.ndim == 2) else (len(offs),) if a.ndim == 2 else (len(a),)
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]), dtype=out_dtype)


def _loss_of_elements(operator: Any) -> Any:
    """The mean of some losses is written into the first of their elements, whose storage it keeps, on any device
    (aten/src/ATen/native/Loss.cpp): that of a mean squared error is as large as the output."""

    def loss(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mean: torch.Tensor = operator(input, target, *args, **kwargs)
        shape: Any = torch.broadcast_shapes(input.shape, target.shape)  # type: ignore[no-untyped-call]
        return mean if mean.ndim else mean.new_empty(shape).as_strided((), ())

    return loss


LOSSES = (aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss)
INSTEAD: dict[Any, Any] = {loss.default: _loss_of_elements(loss.default) for loss in LOSSES}
if hasattr(aten, "_grouped_mm"):
    INSTEAD[aten._grouped_mm.default] = _grouped_mm
NUMBERS = frozenset({aten._local_scalar_dense.default, aten.item.default})
# Their numbers mean nothing: memory as it is found, or drawn.
UNDEFINED = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_like.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)


@cache
def _is_unknown(func: Any) -> bool:
    return func in UNDEFINED or torch.Tag.nondeterministic_seeded in func.tags


# That the gradients of float16 are finite is assumed: a step with others leaves the update out, and takes no more.
FINITE = frozenset({aten._amp_foreach_non_finite_check_and_unscale_.default})


def _on_cpu(tensor: torch.Tensor, value: torch.UntypedStorage) -> torch.Tensor:
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(value, *place)
