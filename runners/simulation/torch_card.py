"""The device that a traced program chose, in front of tensors without data.

A function mode answers for every function and attribute of torch that names a device: the program reads `cuda:0` (or
`cpu`, where a host is calculated) from tensors that are on `meta`. What is below a dispatch mode sees them as they are.

On a card, tensors of the host are real: they have data, and take none of the card's memory. Where a host is calculated,
every tensor that the program makes is without data.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
import torch.utils._device as default_device
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

from runners.simulation.levels import Level
from runners.simulation.torch_assumed_numbers import is_assumed, plain_of
from runners.simulation.torch_card_beneath import Beneath, of_program
from runners.simulation.torch_card_storages import Storages
from runners.simulation.torch_cuda_types import AcceleratorError, LegacyTensor
from runners.simulation.torch_replaced import replaced
from runners.simulation.torch_tracer import MetaTracer
from runners.simulation.torch_truncated import NAME, draws_in_rounds, truncated
from runners.threads import EnteredInThreads

META, CPU = torch.device("meta"), torch.device("cpu")
NO_FUNCTION_MODES = torch._C.DisableTorchFunction
NO_DISPATCH_MODES = torch._C._DisableTorchDispatch
COPIES_OF_ANOTHER_DEVICE = "can't convert {} device type tensor to numpy. Use Tensor.cpu() first."

CUFFT_PLANS = 4096  # that the cache holds at most (aten/src/ATen/native/cuda/CuFFTPlanCache.h)
DEVICE_OF_WRAPPER = 5  # its position in Tensor._make_wrapper_subclass, after the class and the size
IN_A_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class ProgramDevice(TorchFunctionMode):
    """Entered around a program, with a tracer inside. `device` is what the program reads: `cuda:0` or `cpu`."""

    def __init__(self, tracer: MetaTracer, device: torch.device, use: Callable[[], int] = lambda: 1) -> None:
        """`use` is called where the program uses the card: the number of cards that it has left itself."""
        super().__init__()
        self._tracer, self._device, self._use = tracer, device, use
        self._is_card = device.type == "cuda"
        self._draws = tracer.numbers.draws
        if self._draws is not None:
            self._draws.follows_state = True
        self._constructors: frozenset[Any] = frozenset(_device_constructors())
        self._pinned: dict[int, Any] = {}  # by the address of a live storage on the host
        self._beneath = Beneath(self, self._seen, tracer)
        self._storages = Storages(tracer, device, self._real, self._has_storage_here)
        tensor: Any = torch.Tensor
        self._handlers: dict[Any, Handler] = {
            tensor.device.__get__: self._device_of,
            tensor.is_cuda.__get__: self._is_type("cuda"),
            tensor.is_cpu.__get__: self._is_type("cpu"),
            tensor.is_meta.__get__: self._is_type("meta"),
            tensor.get_device: self._index,
            tensor.type: self._type,
            tensor.to: self._to,
            tensor.cuda: self._cuda,
            tensor.cpu: self._cpu,
            tensor.pin_memory: self._pin,
            tensor.is_pinned: self._is_pinned,
            tensor.record_stream: self._nothing,
            tensor.data_ptr: self._address,
            tensor.data.__set__: self._set_data,
            tensor.numpy: self._numpy,
            tensor.__array__: self._array,
            tensor.tolist: self._list,
            tensor.__getitem__: self._at_index,
            tensor.__setitem__: self._at_index,
            tensor.__repr__: self._text,
            tensor.__format__: self._formatted,
            tensor.item: self._number("Tensor.item"),
            tensor.__bool__: self._number("bool", bool),
            tensor.is_nonzero: self._number("Tensor.is_nonzero", bool),
            torch.is_nonzero: self._number("torch.is_nonzero", bool),
            tensor.__float__: self._number("float", float),
            tensor.__int__: self._number("int", int),
            tensor.__index__: self._number("index", int),
            tensor.__deepcopy__: self._deep_copy,
            tensor.is_shared: self._is_type("cuda"),
            tensor.share_memory_: self._share,
            tensor.__dlpack__: self._dlpack,
            tensor.__cuda_array_interface__.__get__: self._array_interface,
            tensor.__dlpack_device__: self._dlpack_device,
            torch.device: self._make_device,
            torch._C._nn._parse_to: self._parse_to,
            torch.as_tensor: self._as_tensor,
            torch.tensor: self._tensor,
            torch._has_compatible_shallow_copy_type: self._may_take_data,
        }
        if self._is_card:
            self._handlers |= self._of_transforms()
        else:
            self._handlers |= dict.fromkeys((torch.stft, torch.istft, tensor.stft, tensor.istft), self._together)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter around the program, and again around what PyTorch calls of the program beneath a function mode."""
        make: Any = torch.Tensor._make_wrapper_subclass

        def make_wrapper(kind: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) > DEVICE_OF_WRAPPER:
                before, device, after = args[:DEVICE_OF_WRAPPER], args[DEVICE_OF_WRAPPER], args[DEVICE_OF_WRAPPER + 1 :]
                return make(kind, size, *before, self._real(device), *after, **kwargs)
            return make(kind, size, *args, **{**kwargs, "device": self._real(kwargs.get("device"))})

        of_init = {NAME: truncated(self.is_here, self._draws)} if draws_in_rounds() else {}
        with (
            replaced(torch.Tensor, _make_wrapper_subclass=make_wrapper),
            replaced(torch.nn.init, **of_init),
            self._beneath.entered(),
            self._storages.entered(),
            EnteredInThreads(lambda: self),
            self._tracer.assumptions.followed_in_python(),
            self,
        ):
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._tracer.is_elsewhere:
            if self._is_card and self._names_card(func, args, kwargs or {}):
                raise RuntimeError(IN_A_FORK)
            return self._tracer.call_elsewhere(func, args, kwargs or {})
        if self._tracer.fake_modes:
            return func(*args, **(kwargs or {}))
        if self._tracer.assumptions.handed_out:
            found = _assumed_in(args, kwargs)
            if found:
                return self._with_assumed(found, func, args, kwargs or {})
        if types and of_program(types):
            return self._beneath.of_class(func, types, args, kwargs or {})
        return self._answer(func, args, kwargs)

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._draws is not None and kwargs and (generator := kwargs.get("generator")) is not None:
            with self._draws.by(generator):
                return self._answer_without_generator(func, args, kwargs)
        return self._answer_without_generator(func, args, kwargs)

    def _answer_without_generator(self, func: Any, args: Any, kwargs: Any) -> Any:
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(func, args, kwargs or {})
        if func in self._constructors:
            return self._make(func, args, kwargs or {})
        if kwargs:
            if (device := kwargs.get("device")) is not None and not isinstance(device, torch.Tensor):
                return self._make(func, args, kwargs)
            if kwargs.get("generator") is not None:
                kwargs = self._with_generator(args, kwargs)
            return func(*args, **kwargs)
        return func(*args)

    def _with_generator(self, args: Any, kwargs: Any, device: Any = None) -> dict[str, Any]:
        """The arguments with a generator that draws here. Raises RuntimeError for one of another device.

        `device` is the real one of what is made; None for that of the first tensor.
        """
        generator = kwargs["generator"]
        tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor))
        first = next(tensors, None) if device is None else None
        is_here = device == META or (first is not None and self.is_here(first))
        wanted, given = "cpu", generator.device.type
        if self._is_card and is_here:
            wanted = "cuda"
        elif device is not None and not is_here:
            wanted = device.type
        if given != wanted:
            raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{given}'")
        draws = not is_here and (self._is_card or first is not None)  # what has no data on a host draws nothing either
        return {**kwargs, "generator": generator if draws else None}

    def _with_assumed(self, found: list[Any], func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function with numbers that are assumed: they decide a size, or its results are assumed too."""
        name = getattr(func, "__name__", str(func))
        if name == "__getitem__":
            args = args[0], self._with_bounds(args[1])
        for number in _assumed_in(*_deciding_sizes(name, args, kwargs)):
            if isinstance(number, int):
                self._tracer.assumptions.size(number, name)
        result = self._answer(func, _plain(args), _plain(kwargs))
        level = max(number.level for number in found)
        with NO_FUNCTION_MODES():
            for each in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(each, torch.Tensor):
                    self._tracer.numbers.doubt(each, level)
        return result

    def _names_card(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether a function is called for a device of the card's type."""
        if func is torch.Tensor.cuda:
            return True
        device = kwargs.get("device", args[1] if func is torch.Tensor.to and len(args) > 1 else None)
        return isinstance(device, (int, str, torch.device)) and _type(device) == "cuda"

    def _with_bounds(self, index: Any) -> Any:
        """An index in which an assumed end of a slice is that of the dimension: it has at most all elements."""
        if isinstance(index, tuple):
            return tuple(map(self._with_bounds, index))
        if not isinstance(index, slice) or (index.start is not None and index.stop is not None):
            return index
        end = index.stop if index.start is None else index.start
        if not is_assumed(end) or end.level is not Level.ASSUMED:
            return index
        self._tracer.assumptions.bound("slice")
        return slice(None, None, index.step)

    def _at_index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A slice may end at a tensor of one number, and one may choose an element: PyTorch reads it as a known one."""
        tensor, index, *value = args
        parts = index if isinstance(index, tuple) else (index,)
        ends = [end for each in parts if type(each) is slice for end in (each.start, each.stop)]
        if not any(map(self.is_here, ends)) and not any(map(self._is_position, parts)):
            return func(*args)
        parts = self._with_positions(tensor, tuple(map(self._with_numbers, parts)))
        found = _assumed_in(parts, None)
        args = (tensor, parts, *value)
        return self._with_assumed(found, func, args, {}) if found else func(*args)

    def _is_position(self, index: Any) -> bool:
        """Whether an index is one whole number of the device's, which chooses an element."""
        if not self.is_here(index) or index.ndim:
            return False
        return index.dtype not in (torch.bool, torch.uint8) and not index.is_floating_point()

    def _with_positions(self, tensor: torch.Tensor, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """An index in which each number that is not known is a position that exists."""
        shape, made, dim = tensor.shape, [], 0
        for number, part in enumerate(parts):
            if part is Ellipsis:
                dim = len(shape) - sum(map(_dimensions, parts[number + 1 :]))
            elif self._is_position(part) and dim < len(shape):
                with NO_FUNCTION_MODES():
                    read = self._tracer.numbers.answer(part)
                    if read.level > Level.KNOWN:
                        position = min(max(int(read.tensor.item()), 0), max(shape[dim] - 1, 0))
                        self._tracer.assumptions.note("index")
                        part = self._tracer.assumptions.remembering(position, read.level)
            dim += _dimensions(part)
            made.append(part)
        return tuple(made)

    def _with_numbers(self, index: Any) -> Any:
        if type(index) is not slice:
            return index

        def number(end: Any) -> Any:
            if not self.is_here(end) or end.numel() != 1:
                return end
            with NO_FUNCTION_MODES():
                return self._tracer.numbers.number(end, "slice")

        return slice(number(index.start), number(index.stop), index.step)

    # --- where a tensor is ---

    def is_here(self, tensor: Any) -> bool:
        """Whether a tensor without data stands for one on the program's device."""
        with NO_FUNCTION_MODES():
            return isinstance(tensor, torch.Tensor) and tensor.is_meta and not self._tracer.is_abstract(tensor)

    def _seen(self, device: Any) -> Any:
        """A real device as the program sees it."""
        is_here = isinstance(device, torch.device) and device.type == "meta" and not self._tracer.is_made_on_meta
        return self._device if is_here else device

    def _device_of(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._device if self.is_here(args[0]) else func(*args)

    def _is_type(self, name: str) -> Handler:
        def answer(func: Any, args: Any, kwargs: Any) -> Any:
            return self._device.type == name if self.is_here(args[0]) else func(*args)

        return answer

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        return (0 if self._is_card else -1) if self.is_here(args[0]) else func(*args)

    def _real(self, device: Any) -> torch.device | None:
        """The device that a device of the program's is made on. Raises RuntimeError for a card that is not there."""
        if device is None:
            return None
        real = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if real.type == self._device.type:
            if self._is_card and real.index not in (None, 0):
                raise AcceleratorError("CUDA error: invalid device ordinal")
            if not self._use():
                raise RuntimeError("No CUDA GPUs are available")
            return META
        return real

    def _make_device(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._is_card and len(args) == 1 and isinstance(args[0], int):
            return func("cuda", args[0])
        return func(*args, **kwargs)

    def _parse_to(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The arguments of Module.to, with the device as the program has named it, by itself or by a tensor."""
        if self._is_card and args and type(args[0]) is int:
            args = torch.device("cuda", args[0]), *args[1:]
        elif self._is_card and type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        device, *others = func(*args, **kwargs)
        tensor = args[0] if args else kwargs.get("tensor")
        return self._device if self.is_here(tensor) else device, *others

    # --- what makes and moves tensors ---

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None and func in self._constructors:
            device = default_device.CURRENT_DEVICE  # of torch.set_default_device, whose own mode is beneath this one
        if device is None:
            if kwargs.get("generator") is not None:
                kwargs = self._with_generator(args, kwargs)
            if not self._is_card and func in self._constructors:
                kwargs = {**kwargs, "device": META}
        else:
            real = self._real(device)
            kwargs = {**kwargs, "device": real}
            if kwargs.get("generator") is not None:
                kwargs = self._with_generator(args, kwargs, real if _type(device) != "meta" else CPU)
            if real == META and (self._tracer.has_abstract or _type(device) == "meta"):
                with self._tracer.made_for(_type(device)):
                    made = func(*args, **kwargs)
                    self._tracer.see(made)
                    return made
        if kwargs.get("pin_memory"):
            return self._pinned_copy(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)

    def _as_tensor(self, func: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 2:
            args, kwargs = args[:2], {**kwargs, "device": args[2]}
        return self._make(func, args, kwargs)

    def _tensor(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A list with the numbers of the device's tensors in place of these, at the level at which they are known."""
        data = args[0] if args else kwargs.get("data")
        first = data
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        if first is data or not isinstance(first, torch.Tensor) or not self.is_here(first):
            return self._make(func, args, kwargs)
        level, dtypes = Level.KNOWN, []

        def number(leaf: Any) -> Any:
            nonlocal level
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if leaf.numel() != 1:
                raise ValueError("only one element tensors can be converted to Python scalars")
            read = self._tracer.numbers.answer(leaf)
            level = max(level, read.level)
            dtypes.append(leaf.dtype)
            return read.tensor.item()

        with NO_FUNCTION_MODES():
            numbers = tree_map(number, data)
        if level > Level.KNOWN:
            self._tracer.assumptions.note("torch.tensor")
        if kwargs.get("dtype") is None:
            kwargs = {**kwargs, "dtype": reduce(torch.promote_types, dtypes)}
        made = self._make(func, (numbers,), {name: each for name, each in kwargs.items() if name != "data"})
        with NO_FUNCTION_MODES():
            self._tracer.numbers.doubt(made, level)
        return made

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *given = args
        if given and (isinstance(given[0], (str, int)) or type(given[0]) is torch.device):
            return self._moved(func, tensor, given[0], given[1:], kwargs)
        if self._tracer.has_abstract and given and isinstance(given[0], torch.Tensor):
            with self._tracer.made_for(self._device_of(torch.Tensor.device.__get__, given, {}).type):
                return func(*args, **kwargs)
        if kwargs.get("device") is not None:
            rest = {name: value for name, value in kwargs.items() if name != "device"}
            return self._moved(func, tensor, kwargs["device"], given, rest)
        return func(*args, **kwargs)

    def _moved(self, func: Any, tensor: Any, device: Any, rest: Any, kwargs: Any) -> Any:
        real = self._real(device)
        if real == META and (self._tracer.has_abstract or _type(device) == "meta"):
            if _type(device) != "meta" and not self.is_here(tensor) and tensor.is_meta:
                raise NotImplementedError(
                    "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
                    "torch.nn.Module.to() when moving module from meta to a different device."
                )
            if _type(device) == "meta" and self.is_here(tensor):
                kwargs = {**kwargs, "copy": True}  # to the tracer it is the same device
            with self._tracer.made_for(_type(device)):
                return func(tensor, META, *rest, **kwargs)
        if real == META and not self._is_card:  # the host's own tensors stay as they are
            with NO_FUNCTION_MODES():
                real = tensor.device
        return func(tensor, real, *rest, **kwargs)

    def _cuda(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_card:
            return func(*args, **kwargs)
        tensor, *given = args
        device = given[0] if given else kwargs.get("device")
        options = {name: value for name, value in kwargs.items() if name != "device"}
        return torch.Tensor.to(tensor, self._real("cuda" if device is None else device), **options)

    def _cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if not self._is_card and self.is_here(args[0]) else func(*args, **kwargs)

    def _type(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *given = args
        wanted = given[0] if given else kwargs.get("dtype")
        if wanted is None:
            name: str = func(tensor)
            return name.replace("meta", "cuda") if self._is_card else name.replace("torch.meta.", "torch.")
        if isinstance(wanted, LegacyTensor):
            return torch.Tensor.to(tensor, META, wanted.dtype)
        if isinstance(wanted, str) and wanted.startswith("torch.cuda."):
            return torch.Tensor.to(tensor, META, getattr(torch, wanted.removeprefix("torch.cuda.")).dtype)
        return func(*args, **kwargs)

    def _may_take_data(self, func: Any, args: Any, kwargs: Any) -> bool:
        """On a real device tensors of the host and of the card may take each other's place, and none of `meta`."""
        with NO_FUNCTION_MODES():
            if sum(map(self._tracer.is_abstract, args)) == 1:
                return False
        return True if any(map(self.is_here, args)) else bool(func(*args, **kwargs))

    def _set_data(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`tensor.data = other`. Between the host and the card the two tensors change places: `meta` has no data to
        take over. The tensor keeps its identity, and so does a parameter that two modules share."""
        tensor, other = args
        with NO_FUNCTION_MODES():
            if tensor.is_meta == other.is_meta:
                return func(tensor, other)
            needs_gradient, gradient = tensor.requires_grad, tensor.grad
            hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
            tensor.grad = tensor._backward_hooks = None
            taken = other.detach().requires_grad_(needs_gradient)
            try:
                torch._C._swap_tensor_impl(tensor, taken)
            except RuntimeError as error:
                raise self._tracer.unavailable(
                    f"a tensor that a graph of autograd holds was moved to another device: {error}"
                ) from None
            if any(hooks) and tensor.requires_grad:
                tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks
            if gradient is not None and gradient.is_meta == tensor.is_meta:
                tensor.grad = gradient
        return None

    # --- pinned memory of the host ---

    def _pin(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_card:
            return func(*args, **kwargs)
        if self.is_here(args[0]):
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        return args[0] if self._holds_pinned(args[0]) else self._pinned_copy(args[0].clone())

    def _pinned_copy(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._pinned[key] = weakref.ref(storage, lambda _: self._pinned.pop(key, None))
        return tensor

    def _holds_pinned(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def _is_pinned(self, func: Any, args: Any, kwargs: Any) -> bool:
        return self._is_card and not self.is_here(args[0]) and self._holds_pinned(args[0])

    # --- what a program reads of a tensor ---

    def _nothing(self, func: Any, args: Any, kwargs: Any) -> None: ...

    def _address(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An address that two tensors have in common if they share memory there."""
        tensor = args[0]
        if not self.is_here(tensor):
            return func(tensor)
        with NO_FUNCTION_MODES():
            address = self._tracer.address(tensor.untyped_storage())
            return address + tensor.storage_offset() * tensor.element_size() if address and tensor.numel() else 0

    def _numpy(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if self.is_here(tensor):
            if self._is_card:
                raise TypeError(COPIES_OF_ANOTHER_DEVICE.format(self._device))
            with NO_FUNCTION_MODES(), NO_DISPATCH_MODES():
                tensor = self._tracer.host_copy(tensor.detach())
        array = func(tensor, *args[1:], **kwargs)
        with NO_FUNCTION_MODES():
            level = self._tracer.numbers.level(tensor)
        return array if level is Level.KNOWN else numpy_arrays().assumed(array, level, self._tracer.assumptions)

    def _array(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        if not self.is_here(tensor):
            return func(*args, **kwargs)
        if self._is_card:
            raise TypeError(COPIES_OF_ANOTHER_DEVICE.format(self._device))
        with NO_FUNCTION_MODES(), NO_DISPATCH_MODES():
            copy = self._tracer.host_copy(tensor.detach())
        return func(copy, *rest, **kwargs)

    def _list(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        with NO_FUNCTION_MODES(), NO_DISPATCH_MODES():  # what stands for numbers is no memory of the program's
            numbers = self._tracer.numbers
            if not tensor.is_meta and numbers.level(tensor) is Level.KNOWN:
                return func(tensor)
            return numbers.list_of(tensor, "Tensor.tolist")

    def _number(self, operator: str, kind: Any = None) -> Handler:
        """What reads one number. `kind` is the type that Python demands of it."""

        def read(func: Any, args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            with NO_FUNCTION_MODES(), NO_DISPATCH_MODES():  # what stands for numbers is no memory of the program's
                numbers = self._tracer.numbers
                if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1 or self._tracer.is_abstract(tensor):
                    return func(*args)
                level = numbers.level(tensor)
                if not tensor.is_meta and level is Level.KNOWN:
                    return func(*args)
                if kind is None:
                    return numbers.number(tensor, operator)
                number = numbers.answer(tensor).tensor.item()
                if level is Level.KNOWN:
                    return kind(number)
                if kind is bool:
                    return self._tracer.assumptions.truth(bool(number), level, operator)
                if kind is int:
                    return self._tracer.assumptions.whole(int(number), level, operator)
                return self._tracer.assumptions.real(float(number), level, operator)

        return read

    def _of_transforms(self) -> dict[Any, Handler]:
        """The cache of cuFFT's plans, which are outside of the allocator."""
        every: Any = torch

        def size(func: Any, args: Any, kwargs: Any) -> Any:
            raise self._tracer.unavailable("the number of cuFFT's plans is not followed: no transform is planned")

        return {
            every._cufft_get_plan_cache_size: size,
            every._cufft_get_plan_cache_max_size: lambda func, args, kwargs: CUFFT_PLANS,
            every._cufft_set_plan_cache_max_size: self._nothing,
            every._cufft_clear_plan_cache: self._nothing,
        }

    def _together(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function that compares the devices of its tensors before any operator does."""
        with NO_FUNCTION_MODES():
            args, kwargs = self._tracer.on_one_device(func, args, kwargs)
        return func(*args, **kwargs)

    # --- copies, pickles and other libraries ---

    def _deep_copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, memo = args
        return self._storages.deep_copy(tensor, memo) if self._has_storage_here(tensor) else func(tensor, memo)

    def _has_storage_here(self, tensor: Any) -> bool:
        return self.is_here(tensor) and tensor.layout is torch.strided

    def _share(self, func: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if self.is_here(args[0]) else func(*args)

    def _dlpack(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.is_here(args[0]):
            raise self._tracer.unavailable("a tensor of the card was given to another library (DLPack)")
        return func(*args, **kwargs)

    def _dlpack_device(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self.is_here(args[0]):
            return func(*args)
        kinds: Any = torch.utils.dlpack.DLDeviceType
        if not self._is_card:
            return kinds.kDLCPU, 0
        return kinds.kDLCUDA if hasattr(kinds, "kDLCUDA") else kinds.kDLGPU, 0  # the second in PyTorch 2.5

    def _array_interface(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._is_card and self.is_here(args[0]):
            raise self._tracer.unavailable("a tensor of the card was given to another library (CUDA array interface)")
        return func(*args)

    def _text(self, func: Any, args: Any, kwargs: Any) -> str:
        text: str = func(*args, **kwargs)
        return text.replace("device='meta'", f"device='{self._device}'") if self.is_here(args[0]) else text

    def _formatted(self, func: Any, args: Any, kwargs: Any) -> str:
        tensor, form = args
        if self.is_here(tensor) and tensor.dim() == 0:
            with NO_FUNCTION_MODES(), NO_DISPATCH_MODES():
                return format(self._tracer.numbers.number(tensor, "format"), form)
        return self._text(func, args, kwargs)


# Functions whose whole numbers are numbers and no sizes, positions or dimensions.
OF_NUMBERS = frozenset(
    f"{before}{name}{after}"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge")
    for before, after in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
) | frozenset(
    {
        *("true_divide", "floor_divide", "remainder", "fmod", "rsub", "subtract", "multiply", "divide", "maximum"),
        *("minimum", "clamp", "clamp_", "clip", "clip_", "fill_", "masked_fill", "masked_fill_", "tensor", "as_tensor"),
        *("new_tensor", "scalar_tensor", "where", "isin", "lerp", "lerp_", "addcmul", "addcdiv", "addcmul_"),
        *("addcdiv_", "__contains__", "greater", "less", "greater_equal", "less_equal", "not_equal", "copysign"),
        *("index_fill", "index_fill_", "manual_seed", "__format__", "item", "normal_", "uniform_"),
    }
)


def _deciding_sizes(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments that can decide a size: an index takes one element, whichever it is, and a slice takes some."""
    if name in OF_NUMBERS:
        return (), {}
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return [each for each in index if isinstance(each, slice)], {}
    if name in ("full", "new_full", "full_like"):
        return args[: 2 if name == "new_full" else 1], {name: kwargs[name] for name in ("size",) if name in kwargs}
    return args, kwargs


def _dimensions(index: Any) -> int:
    """How many dimensions a part of an index takes."""
    if index is None or isinstance(index, bool):
        return 0
    return index.ndim if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) else 1


def _assumed_in(args: Any, kwargs: Any) -> list[Any]:
    """The assumed numbers among arguments, in shapes, in slices and in lists."""
    found: list[Any] = []
    waiting = [*args, *kwargs.values()] if kwargs else list(args)
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if is_assumed(each):
            found.append(each)
        elif kind is tuple or kind is list or kind is torch.Size:
            waiting += each
        elif kind is slice:
            waiting += (each.start, each.stop, each.step)
    return found


def _plain(nested: Any) -> Any:
    """The same without numbers that remember."""
    kind = type(nested)
    if kind is tuple or kind is list:
        return kind(map(_plain, nested))
    if kind is dict:
        return {name: _plain(each) for name, each in nested.items()}
    if kind is slice:
        return slice(*map(_plain, (nested.start, nested.stop, nested.step)))
    return plain_of(nested)


def numpy_arrays() -> Any:
    """Imported with NumPy, by a program that has it."""
    from runners.simulation import torch_numpy_arrays

    return torch_numpy_arrays


def _type(device: Any) -> str:
    return "cuda" if isinstance(device, int) else torch.device(device).type
