"""Storages without data, as a program copies, pickles, saves, loads and shares them.

PyTorch treats storages on `meta` as if they had no content: it copies a tensor without its storage, and pickles a
shape. Here the memory counts, and so does which tensors share it. A pickled tensor of the device has no data either: a
file that a traced program saves has sizes only, and only a traced program can read them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any
from weakref import WeakValueDictionary

import torch

from runners.simulation.torch_replaced import members_set, replaced
from runners.simulation.torch_tracer import MetaTracer

META = torch.device("meta")
BYTE = torch.uint8
SHARING = ("_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_")  # what sends a storage to another process


class Storages:
    """`device` is what the program reads. `real` gives the device on which a device of the program's is made, and
    `is_here` whether a tensor stands for one of the program's device that has a storage."""

    def __init__(
        self,
        tracer: MetaTracer,
        device: torch.device,
        real: Callable[[Any], torch.device | None],
        is_here: Callable[[Any], bool],
    ) -> None:
        self._tracer, self._device, self._real, self._is_here = tracer, device, real, is_here
        self._location: Any = None  # where a file is loaded to, while it is loaded
        # By the address of a storage, as long as a pickler has it.
        self._tokens: WeakValueDictionary[int, _Token] = WeakValueDictionary()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Until the end storages answer for the device, and files are loaded onto it."""
        storage: Any = torch.UntypedStorage
        base: Any = torch._C.StorageBase.device  # type: ignore[attr-defined]
        is_card = self._device.type == "cuda"
        load, unpickled, new = torch.load, _Token.made, storage.__new__
        reduce: Any = torch.Tensor._reduce_ex_internal
        shared, pointer, share = storage.is_shared, storage.data_ptr, storage.share_memory_

        def device(of: Any) -> torch.device:
            real: torch.device = base.__get__(of)
            return self._device if real.type == "meta" else real

        def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "meta":
                raise self._tracer.unavailable("torch.load(map_location='meta') is not followed")
            before, self._location = self._location, map_location
            try:
                # An assumed number is pickled as a call of its plain type, which a plain number is not.
                with _safe_to_load([int, float]):
                    return load(f, map_location, *args, **kwargs)
            finally:
                self._location = before

        def reduced(tensor: Any, protocol: int) -> Any:
            return self._reduced(tensor) if self._is_here(tensor) else reduce(tensor, protocol)

        def made(kind: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            if is_card and device is not None and torch.device(device).type == "cuda":
                return self.new(*args, **kwargs)
            return new(kind, *args, **({} if device is None else {"device": device}), **kwargs)

        names: dict[str, Any] = {
            "device": property(device),
            "is_cuda": property(lambda of: device(of).type == "cuda"),
            "is_shared": lambda of: device(of).type == "cuda" or shared(of),
            "data_ptr": lambda of: self._tracer.address(of) if base.__get__(of).type == "meta" else pointer(of),
            "resize_": lambda of, size: self._resized(of, size),
            "to": lambda of, *, device, non_blocking=False: self._moved(of, device),
            "cuda": lambda of, device=None, non_blocking=False: self._moved(of, device or "cuda"),
            "cpu": lambda of: self._moved(of, "cpu"),
            "clone": lambda of: self._copied(of),
            "share_memory_": lambda of, *_: of if base.__get__(of).type == "meta" else share(of),
            **{name: self._refusing(base, name) for name in SHARING},
        }
        if not is_card:
            del names["cuda"]
        with ExitStack() as stack:
            stack.enter_context(members_set(storage, names))
            stack.enter_context(members_set(storage, {"__new__": staticmethod(made)}))
            stack.enter_context(replaced(torch, load=loaded))
            stack.enter_context(replaced(torch.Tensor, _reduce_ex_internal=reduced))
            if not is_card:
                stack.enter_context(self._sent_to_processes())
            for where in (torch, torch.utils.dlpack):
                stack.enter_context(replaced(where, **self._capsules(where)))
            stack.enter_context(_safe_to_load([_Token, _rebuilt]))
            _Token.made = self._unpickled
            try:
                yield
            finally:
                _Token.made = unpickled

    def _resized(self, storage: Any, size: int) -> Any:
        torch._C.StorageBase.resize_(storage, size)  # type: ignore[attr-defined]
        if torch._C.StorageBase.device.__get__(storage).type == "meta":  # type: ignore[attr-defined]
            self._tracer.resized(storage)
        return storage

    def _refusing(self, base: Any, name: str) -> Any:
        share = getattr(torch.UntypedStorage, name)

        def shared(storage: Any, *args: Any) -> Any:
            if base.__get__(storage).type == "meta":
                raise self._tracer.unavailable(f"a tensor on {self._device} was sent to another process")
            return share(storage, *args)

        return shared

    @contextmanager
    def _sent_to_processes(self) -> Iterator[None]:
        """Until the end a worker of a DataLoader sends tensors that it made of assumed numbers without their data.

        They are new memory of the calculated host then, as shared memory is to the process that receives it.
        """
        reducers: Any = vars(ForkingPickler)["_extra_reducers"]
        before = {kind: reducers[kind] for kind in (torch.Tensor, torch.nn.Parameter)}

        def sending(reduce: Any) -> Any:
            def reduced(tensor: Any) -> Any:
                with torch._C.DisableTorchFunction():
                    if tensor.layout is not torch.strided or self._tracer.numbers.knows(tensor):
                        return reduce(tensor)
                    memory = tensor.untyped_storage().nbytes(), tensor.dtype, tensor.storage_offset()
                    return _received, (
                        type(tensor),
                        *memory,
                        tuple(tensor.shape),
                        tensor.stride(),
                        tensor.requires_grad,
                    )

            return reduced

        reducers.update({kind: sending(reduce) for kind, reduce in before.items()})
        try:
            yield
        finally:
            reducers.update(before)

    def new(self, size: int = 0) -> Any:
        """A storage of so many bytes on the device."""
        with torch._C.DisableTorchFunction():
            return torch.empty(size, dtype=BYTE, device=META).untyped_storage()

    def _capsules(self, where: Any) -> dict[str, Any]:
        """DLPack between two places of the program: the tensor itself is passed on. Other libraries are refused."""
        pack, unpack = where.to_dlpack, where.from_dlpack

        def to_dlpack(tensor: Any) -> Any:
            return _Capsule(tensor) if self._is_here(tensor) else pack(tensor)

        def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: Any = None) -> Any:
            tensor = ext_tensor.tensor if isinstance(ext_tensor, _Capsule) else ext_tensor
            if not self._is_here(tensor):
                return unpack(ext_tensor, device=device, copy=copy)
            shared = tensor.detach() if device is None else tensor.detach().to(device)
            return shared.clone() if copy else shared

        return {"to_dlpack": to_dlpack, "from_dlpack": from_dlpack}

    def _copied(self, storage: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return _as_bytes(storage).clone().untyped_storage()

    def _moved(self, storage: Any, device: Any) -> Any:
        real = self._real(device)
        with torch._C.DisableTorchFunction():
            content = _as_bytes(storage)
            if content.is_meta and real is not None and real.type == "cpu":
                return content.to(real).untyped_storage() if self._device.type == "cuda" else storage
            return content.to(real).untyped_storage()

    # --- copies of tensors ---

    def deep_copy(self, tensor: Any, memo: dict[Any, Any]) -> Any:
        """As torch.Tensor.__deepcopy__ on a device with data: the whole storage is copied, once for all its tensors."""
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment"
            )
        if id(tensor) in memo:
            return memo[id(tensor)]
        with torch.no_grad():
            storage = copy.deepcopy(tensor.untyped_storage(), memo)
            made = _placed(storage, tensor).requires_grad_(tensor.requires_grad)
            if type(tensor) is not torch.Tensor:
                made = made.as_subclass(type(tensor))
            if tensor.grad is not None:
                made.grad = copy.deepcopy(tensor.grad, memo)
            made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
        memo[id(tensor)] = made
        return made

    # --- pickles ---

    def _reduced(self, tensor: Any) -> Any:
        """What a tensor of the device is pickled as."""
        storage = tensor.untyped_storage()
        token = self._tokens.setdefault(storage._cdata, _Token(storage.nbytes(), storage))
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return _rebuilt, (token, tensor.dtype, *place, tensor.requires_grad)

    def _unpickled(self, size: int) -> Any:
        """A storage for a pickled one, where torch.load was asked to put it."""
        location = self._location
        if callable(location):
            location = location(torch.UntypedStorage(0), str(self._device))  # type: ignore[no-untyped-call]
        elif isinstance(location, dict):
            location = location.get(str(self._device))
        if isinstance(location, torch.UntypedStorage):
            location = location.device
        if location is None or self._device.type == "cpu" or self._real(location) == META:
            return self.new(size)
        with self._tracer.outside_allocator():  # it is on the host from the beginning
            return self._moved(self.new(size), location)


class _Capsule:
    """In place of the capsule in which DLPack passes a tensor on."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


@contextmanager
def _safe_to_load(kinds: list[Any]) -> Iterator[None]:
    """Allow these in files that torch.load reads with weights_only."""
    serialization: Any = torch.serialization
    if hasattr(serialization, "safe_globals"):
        with serialization.safe_globals(kinds):
            yield
        return
    before = list(serialization.get_safe_globals())  # before PyTorch 2.5, which has the context manager
    serialization.add_safe_globals(kinds)
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


class _Token:
    """A storage in a pickle: tensors that share one share its token."""

    made: Callable[[int], Any] = torch.UntypedStorage

    def __init__(self, size: int, storage: Any) -> None:
        self.size, self.storage = size, storage  # the storage is that of copy.copy, which makes no pickle

    def __getstate__(self) -> dict[str, int]:
        return {"size": self.size}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.size, self.storage = state["size"], type(self).made(state["size"])


def _rebuilt(
    token: _Token, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], gradient: bool
) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        made = torch.empty(0, dtype=dtype, device=torch._C.StorageBase.device.__get__(token.storage))  # type: ignore[attr-defined]
        return made.set_(token.storage, offset, shape, stride).requires_grad_(gradient)


def _as_bytes(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=BYTE, device=torch._C.StorageBase.device.__get__(storage)).set_(storage)  # type: ignore[attr-defined]


def _placed(storage: Any, like: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        made: Any = torch.empty(0, dtype=like.dtype, device=META)
        return made.set_(storage, like.storage_offset(), like.shape, like.stride())


def _received(kind: Any, size: int, *described: Any) -> Any:
    with torch._C.DisableTorchFunction():
        token = _Token(size, torch.empty(size, dtype=BYTE, device=META).untyped_storage())
    made = _rebuilt(token, *described)
    return made if kind is torch.Tensor else kind(made, made.requires_grad)
