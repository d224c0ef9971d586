"""Replacing parts of PyTorch and its classes while a workload runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from inspect import isfunction
from types import FunctionType
from typing import Any

import torch
from torch.utils._contextlib import _DecoratorContextManager

ABSENT: Any = object()


@contextmanager
def replaced(where: Any, **names: Any) -> Iterator[None]:
    """Replace attributes of a module, class or object until the end. TorchScript takes what replaces an operator for
    that operator, since it could not compile it. Raises AttributeError for what the module, class or object lacks."""
    before = {name: getattr(where, name) for name in names}
    table = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    operators = {
        id(new): table[id(old)]
        for old, new in zip(before.values(), names.values(), strict=True)
        if isfunction(new) and id(old) in table
    }
    table.update(operators)
    try:
        with members_set(where, names):
            yield
    finally:
        for key in operators:
            table.pop(key, None)


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


@contextmanager
def members_set(where: Any, names: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of a module or members of a class until the end. It may lack some, or inherit them."""
    before = {name: vars(where).get(name, ABSENT) for name in names}
    for name, value in names.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is ABSENT:
                delattr(where, name)
            else:
                setattr(where, name, value)


def without_inference_mode() -> AbstractContextManager[None]:
    """Trace inference mode as no_grad, which takes the same memory: in inference mode composite operators are not
    decomposed, and to decompose them here takes four times as long."""
    return replaced(torch, inference_mode=_InferenceMode)


class _InferenceMode(_DecoratorContextManager):
    """torch.inference_mode without inference tensors. `inference_mode(False)` lets autograd record again."""

    def __new__(cls, mode: Any = True) -> Any:
        return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(torch.is_grad_enabled())
        torch._C._set_grad_enabled(not self.mode)

    def __exit__(self, *raised: object) -> None:
        torch._C._set_grad_enabled(self._before.pop())

    def clone(self) -> _InferenceMode:
        return type(self)(self.mode)


def new_tensor(like: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Tensor.new, which PyTorch lacks for a sparse tensor on `meta`: torch.optim.SparseAdam makes tensors by it."""
    if like.layout is torch.sparse_coo and like.is_meta and len(args) == 3:
        return torch.sparse_coo_tensor(*args)
    return was_new(like, *args, **kwargs)


was_new: Any = torch.Tensor.new
