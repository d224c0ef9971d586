"""A program of the user's own while it is followed without data: where it ends, and what it must not do meanwhile.

A file of tensors that have no data would replace the user's own file by nothing, so none is written. Ranks are
processes of their own, which are not followed.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from runners.phases import Unavailable
from runners.simulation.torch_tracer import MetaTracer
from runners.workloads.python_program import Ended

META = torch.device("meta")
NEVER_REACHED = {"tolerance_grad": -1.0, "tolerance_change": -math.inf}
MOST_NAMED = 3  # files that were not written, by name
# Methods that write a model as a folder, and clear what an earlier one left there.
SAVES_A_MODEL = {
    "transformers.modeling_utils": "PreTrainedModel.save_pretrained",
    "peft.peft_model": "PeftModel.save_pretrained",
    "diffusers.models.modeling_utils": "ModelMixin.save_pretrained",
    "sentence_transformers.SentenceTransformer": "SentenceTransformer.save",
}


class OptimizerSteps:
    """Counts the steps of the optimizer that steps first, and ends the program before one more than `most` of them."""

    def __init__(self, most: int | None, end: Callable[[], None]) -> None:
        """`end` is called where the program ends. Without `most` the program goes on to its own end."""
        self.count = 0
        self.over = False
        self._most, self._end = most, end
        self._first: weakref.ref[Any] | None = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        handle = register_optimizer_step_pre_hook(self._begins)
        try:
            yield
        finally:
            handle.remove()

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._first() is not optimizer:
            return
        if self.over or self.count == self._most:
            if not self.over:
                self._end()
            self.over = True
            raise Ended(0, at_once=False)
        self.count += 1


class FollowedProgram:
    """Entered around a program, inside its device."""

    def __init__(self, tracer: MetaTracer) -> None:
        self._tracer = tracer
        self._unwritten: list[str] = []
        self._offloaded = _BytesAtOnce()

    def notes(self) -> list[str]:
        """What happened otherwise than on a real device, or is not determined there."""
        found = []
        if self._unwritten:
            named = ", ".join(self._unwritten[:MOST_NAMED])
            more = len(self._unwritten) - MOST_NAMED
            named += f" and {more} more" if more > 0 else ""
            found.append(f"tensors have no data here, and were not written to {named}")
        if threads := self._tracer.unordered_threads:
            found.append(
                f"threads that allocate while others do: {threads}; their order varies, and one of them is shown"
            )
        if self._offloaded.most:
            found.append(f"torch.autograd.graph.save_on_cpu kept up to {self._offloaded.most} bytes on the host")
        return found

    @contextmanager
    def followed(self) -> Iterator[None]:
        with ExitStack() as stack:
            intercept: Any = lambda function, by: stack.enter_context(intercepted(function, by))  # noqa: E731
            intercept(torch.save, self._save)
            intercept(torch.load, self._load)
            intercept(torch._utils._rebuild_tensor, _rebuilt)
            intercept(torch.optim.LBFGS.step, self._to_its_last_iteration)
            intercept(sys.modules[torch.optim.LBFGS.__module__]._strong_wolfe, _line_search)
            if not self._tracer.counts_host:
                intercept(torch.autograd.graph.save_on_cpu.__init__, self._offload)
            for export in (torch.export.export, torch.export.draft_export):
                intercept(export, self._refuse_export)
            if torch.distributed.is_available():
                intercept(torch.distributed.init_process_group, _refuse_ranks)
            intercept(torch.multiprocessing.start_processes, _refuse_ranks)  # type: ignore[attr-defined]
            stack.enter_context(_Imported("safetensors.torch", lambda module: intercept(module.save_file, self._save)))
            stack.enter_context(_Imported("safetensors.torch", lambda module: intercept(module.save_model, self._save)))
            for name, method in SAVES_A_MODEL.items():
                stack.enter_context(_Imported(name, partial(self._intercept_method, intercept, method)))
            yield

    def _intercept_method(self, intercept: Any, path: str, module: Any) -> None:
        kind, _, name = path.partition(".")
        intercept(vars(getattr(module, kind))[name], self._save)

    def _to_its_last_iteration(self, step: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Its tolerances are compared with numbers that are not calculated: none of them ends it early."""
        group = optimizer.param_groups[0]
        tolerances = {name: group[name] for name in NEVER_REACHED}
        group.update(NEVER_REACHED)
        self._tracer.assumptions.bound("torch.optim.LBFGS", f"at most max_iter={group['max_iter']} iterations")
        try:
            return step(optimizer, *args, **kwargs)
        finally:
            group.update(tolerances)

    def _offload(self, init: Any, hooks: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        """torch.autograd.graph.save_on_cpu, which nobody reads on the host: no numbers are assumed for it there."""

        def keep(tensor: torch.Tensor) -> tuple[Any, torch.Tensor]:
            if not tensor.is_cuda:
                return tensor.device, tensor
            kept = torch.empty(tensor.size(), dtype=tensor.dtype)  # its pages are never touched
            self._offloaded.add(kept)
            return tensor.device, kept

        def bring(packed: tuple[Any, torch.Tensor]) -> torch.Tensor:
            device, kept = packed
            return kept.to(device, non_blocking=pin_memory)

        torch.autograd.graph.saved_tensors_hooks.__init__(hooks, keep, bring)

    def _refuse_export(self, export: Any, *_: Any, **__: Any) -> Any:
        raise self._tracer.unavailable(
            f"torch.export.{export.__name__} cannot be traced without data: it follows the program itself, on tensors "
            "of its own that have no memory; the module that it was given can be called instead"
        )

    def _save(self, save: Any, what: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if not _lacks_data(what):
            return save(what, file, *args, **kwargs)
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else getattr(file, "name", type(file).__name__)
        self._unwritten.append(str(name))
        return None

    def _load(self, load: Any, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else None
        if name is not None and name in self._unwritten:
            raise Unavailable(f"torch.load: the program wrote {name} itself, from tensors that have no data")
        return load(file, partial(_located, map_location), *args, **kwargs)


def _line_search(
    search: Any,
    objective: Any,
    x: Any,
    step: Any,
    direction: Any,
    loss: Any,
    gradient: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[Any, torch.Tensor, Any, int]:
    """That of torch.optim.LBFGS, whose length depends on numbers: two evaluations that are counted as one, the second
    of them with the gradients at both ends of the interval."""
    ends = [gradient.clone(), objective(x, step, direction)[1].clone()]
    loss, gradient = objective(x, step, direction)
    del ends
    return loss, gradient, step, 1


class _BytesAtOnce:
    """The bytes of tensors that are alive, and the most of them at once."""

    def __init__(self) -> None:
        self.most = self._now = 0

    def add(self, tensor: torch.Tensor) -> None:
        self._now += tensor.nbytes
        self.most = max(self.most, self._now)
        weakref.finalize(tensor, self._forget, tensor.nbytes)

    def _forget(self, count: int) -> None:
        self._now -= count


def _located(map_location: Any, storage: Any, location: str) -> Any:
    """Where torch.load puts a storage: on the program's device one without data."""
    if callable(map_location):
        return map_location(storage, location)
    if isinstance(map_location, Mapping):
        location = map_location.get(location, location)
    elif map_location is not None:
        location = str(torch.device(map_location))
    if location.startswith("cuda"):
        return torch.UntypedStorage(storage.nbytes(), device="meta")  # type: ignore[no-untyped-call]
    return storage


def _rebuilt(rebuild: Any, storage: Any, *args: Any) -> Any:
    """A tensor of a file, or of another process, that has data keeps it, where a program's own have none too."""
    if torch._C.StorageBase.device.__get__(storage._untyped_storage) == META:  # type: ignore[attr-defined]
        return rebuild(storage, *args)
    with torch._C.DisableTorchFunction():
        return rebuild(storage, *args)


def _lacks_data(what: Any) -> bool:
    """Whether there is a tensor without data in what is to be written."""

    class Found(Exception):
        pass

    class Finder(pickle.Pickler):
        def persistent_id(self, each: Any) -> Any:
            if isinstance(each, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    if each.is_meta:
                        raise Found
                    return "with data"
            return None

    if isinstance(what, torch.nn.Module):
        what = what.state_dict()
    try:
        Finder(_Nowhere()).dump(what)
    except Found:
        return True
    except Exception:  # it cannot be pickled, which its own way of saving will say
        return False
    return False


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _refuse_ranks(function: Any, *args: Any, **kwargs: Any) -> Any:
    raise Unavailable(
        f"torch.{function.__module__.removeprefix('torch.')}.{function.__name__}: the ranks of a program are processes "
        "of their own, which are not calculated"
    )


# --- functions of others ----------------------------------------------------------------------------------------------


@contextmanager
def intercepted(function: Any, by: Callable[..., Any]) -> Iterator[None]:
    """Have a Python function call `by(original, *args, **kwargs)`, under any name that it was imported by."""
    while not isinstance(function, FunctionType):
        function = function.__wrapped__
    code, names = function.__code__, function.__globals__
    original = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    original.__kwdefaults__, original.__module__ = function.__kwdefaults__, function.__module__
    name = f"_intercepted_{function.__qualname__}"

    def called(*args: Any, **kwargs: Any) -> Any:
        return INTERCEPTED(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821

    free = code.co_freevars
    names[name] = partial(by, original)
    function.__code__ = called.__code__.replace(co_names=(name,), co_freevars=free)
    try:
        yield
    finally:
        function.__code__ = code
        del names[name]


class _Imported:
    """Entered around code: calls `then` with a module of this name, now or when the code has imported it."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name, self._then = name, then

    def __enter__(self) -> None:
        module = sys.modules.get(self._name)
        if module is not None:
            self._then(module)
        else:
            sys.meta_path.insert(0, self)

    def __exit__(self, *raised: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
