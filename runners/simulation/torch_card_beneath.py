"""Code of the program that PyTorch calls from beneath a function mode, where the mode is off.

A function mode is off while PyTorch handles a function that the mode passed on. PyTorch calls the program from there:
hooks of saved tensors, dispatch modes, the class of a tensor. Without the mode a program would read the device `meta`,
and what it then makes there would silently take no memory. So the mode is entered again around that code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import MethodType
from typing import Any

import torch
import torch.utils._python_dispatch as dispatch_modes
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from runners.simulation.torch_replaced import replaced
from runners.simulation.torch_tracer import MetaTracer

# Modes that PyTorch itself enters, for tensors of its own.
OWN_MODES = ("torch._subclasses", "torch.fx", "torch._dynamo", "torch._functorch", "torch._export", "runners.")


class Beneath:
    """Enters `mode` around what PyTorch calls of the program. `seen` gives a real device as the program sees it."""

    def __init__(self, mode: TorchFunctionMode, seen: Callable[[Any], Any], tracer: MetaTracer) -> None:
        self._mode, self._seen, self._tracer = mode, seen, tracer

    @contextmanager
    def entered(self) -> Iterator[None]:
        hooks: Any = torch._C._autograd
        push_hooks, push_mode = hooks._push_saved_tensors_default_hooks, dispatch_modes._push_mode
        pop_mode = dispatch_modes._pop_mode
        engine: Any = torch.autograd.graph._engine_run_backward
        grouped: Any = torch._C._group_tensors_by_device_and_dtype
        has_class: Any = torch.overrides.has_torch_function

        def push_hooks_of_program(pack: Any, unpack: Any) -> None:
            push_hooks(self.around(pack), self.around(unpack))

        def push_mode_of_program(mode: Any) -> None:
            if not type(mode).__module__.startswith(OWN_MODES) and "__torch_dispatch__" not in vars(mode):
                mode.__torch_dispatch__ = MethodType(self._dispatch(type(mode).__torch_dispatch__), mode)
            push_mode(mode)
            self._tracer.fake_modes += is_fake(mode)

        def pop_mode_of_program(*args: Any) -> Any:
            mode = pop_mode(*args)
            self._tracer.fake_modes -= is_fake(mode)
            return mode

        def group(*args: Any, **kwargs: Any) -> Any:
            return {(self._seen(device), dtype): each for (device, dtype), each in grouped(*args, **kwargs).items()}

        def has_class_of_its_own(args: Any) -> bool:
            """Attention and transformer layers ask this, and leave their fused kernels if a mode is on."""
            with _mode_off():
                return bool(has_class(args))

        run_backward = self.around(engine)
        with (
            replaced(torch.autograd, _engine_run_backward=run_backward),
            replaced(torch.autograd.graph, _engine_run_backward=run_backward),
            replaced(hooks, _push_saved_tensors_default_hooks=push_hooks_of_program),
            replaced(dispatch_modes, _push_mode=push_mode_of_program, _pop_mode=pop_mode_of_program),
            replaced(torch._C, _group_tensors_by_device_and_dtype=group),
            replaced(torch.overrides, has_torch_function=has_class_of_its_own),
            _recomputed_alike(),
        ):
            yield

    @contextmanager
    def on(self) -> Iterator[None]:
        """Enter the mode, unless it is on."""
        if self._mode in torch.overrides._get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            yield
        else:
            with self._mode:
                yield

    def around(self, function: Any) -> Any:
        """The function, with the mode on while it runs."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self.on():
                return function(*args, **kwargs)

        return called

    def _dispatch(self, dispatch: Any) -> Any:
        """The `__torch_dispatch__` of a program's mode, which sees the program's device."""

        def called(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if kwargs and "device" in kwargs:
                kwargs = {**kwargs, "device": self._seen(kwargs["device"])}
            with self.on():
                return dispatch(mode, func, types, args, kwargs or {})

        return called

    def of_class(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What the classes of the arguments make of a function, or NotImplemented."""
        with self.on():
            for each in types:
                result = each.__torch_function__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        return NotImplemented


def is_fake(mode: Any) -> bool:
    """Whether it is a FakeTensorMode, whose tensors are of any device and in the memory of none."""
    return type(mode).__name__ == "FakeTensorMode"


def of_program(types: Any) -> bool:
    """Whether one of these classes of tensors decides itself what a function does."""
    return any(map(_decides, types)) and torch._C._is_torch_function_enabled()


@cache
def _decides(kind: type) -> bool:
    own: Any = kind.__torch_function__  # type: ignore[attr-defined]
    return getattr(own, "__func__", own) not in NO_CLASS


NO_CLASS = (
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
    torch._C._disabled_torch_function_impl,
)


@contextmanager
def _mode_off() -> Iterator[None]:
    """Take all function modes off. What is left of `has_torch_function` are classes of tensors."""
    modes = [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]


@contextmanager
def _recomputed_alike() -> Iterator[None]:
    """Let checkpointing compare tensors by the device that they are on: it asks in the forward pass from within an
    operator, where no program's device answers, and in the backward pass from outside."""
    extractors: Any = torch.utils.checkpoint._allowed_determinism_checks_to_fns
    before = dict(extractors)

    def described(extract: Any, tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return extract(tensor)

    extractors.update({name: partial(described, extract) for name, extract in before.items()})
    try:
        yield
    finally:
        extractors.update(before)
