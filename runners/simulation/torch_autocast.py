"""Autocast on tensors without data.

PyTorch's autocast works by the dispatch keys of real devices and leaves tensors without data alone. Here the operators
that are registered for a device's autocast key are registered for the key of a backend that no build has, with the same
policies (aten/src/ATen/autocast_mode.h and .cpp), and any caller of an operator reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from runners.simulation.torch_tracer import replaced

aten = torch.ops.aten

AUTOCAST: Any = torch._C._dispatch_key_parse("AutocastPrivateUse1")
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
ACTIVE: list[_Autocast] = []  # the last one belongs to the device whose rules are applied

IN_AUTOCAST_DTYPE = frozenset(  # computed in the dtype of autocast
    (
        *("_convolution", "convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d"),
        *("conv_transpose2d", "conv_transpose3d", "prelu", "addmm", "_addmm_activation", "addmv", "addr", "matmul"),
        *("einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul"),
        *("linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell"),
        *("rnn_tanh_cell", "rnn_relu_cell", "mkldnn_rnn_layer", "mkldnn_reorder_linear_weight"),
        *("_native_multi_head_attention", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
        *("cudnn_convolution", "cudnn_convolution_transpose"),
    )
)
IN_WIDEST_DTYPE = frozenset(  # computed in the widest dtype of the arguments
    (
        *("stack", "cat", "index_copy", "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot"),
        *("grid_sampler", "index_put", "tensordot", "scatter_add"),
    )
)
OPTIONAL_DTYPE = frozenset(  # on CUDA their `dtype` argument defaults to float32, and their arguments are not cast
    (*("prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum"),)
)  # all other operators compute in float32


@contextmanager
def autocast_replaced(device: str) -> Iterator[None]:
    """Replace torch.autocast by one for `device`, "cpu" or "cuda", that works on tensors without data."""
    cast = _Autocast(device)
    kind = (
        torch.amp.autocast_mode.autocast
    )  # its methods are replaced, since libraries have imported the class by many names

    def enabled(device_type: str | None = None) -> bool:
        return cast.enabled if cast.applies_to(device_type or "cuda") else was_enabled(device_type or "cuda")

    def dtype(device_type: str) -> torch.dtype:
        return cast.dtype if cast.applies_to(device_type) else was_dtype(device_type)

    def available(device_type: str) -> bool:
        return True

    was_enabled, was_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    with (
        replaced(kind, __init__=_init, __enter__=_enter, __exit__=_exit),
        replaced(torch, is_autocast_enabled=enabled, get_autocast_dtype=dtype),
        replaced(torch.amp, is_autocast_available=available),
        cast.registered(),
    ):
        ACTIVE.append(cast)
        try:
            yield
        finally:
            ACTIVE.pop()
            cast.set(False, cast.dtype)


class _Autocast:
    """The state of autocast, and its copies of weights.

    A weight is cast once, and the copy is kept until the outermost context ends: these copies are most of the memory
    that autocast adds.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.enabled, self.dtype = False, torch.bfloat16 if device == "cpu" else torch.float16
        self.depth = 0
        self.copies: Any = WeakTensorKeyDictionary()

    def applies_to(self, device_type: str) -> bool:
        return device_type in (self.device, "meta")

    def set(self, enabled: bool, dtype: torch.dtype) -> None:
        self.enabled, self.dtype = enabled, dtype
        torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOCAST, not enabled)
        torch._C._dispatch_tls_set_dispatch_key_included(AUTOCAST, enabled)

    @contextmanager
    def registered(self) -> Iterator[None]:
        others = torch._C._dispatch_library("IMPL", "_", AUTOCAST.name)
        others.fallback_fallthrough(AUTOCAST.name)
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(AUTOCAST_KEYS[self.device]):
            space, _, operator = name.partition("::")
            if space == "aten":
                library.impl(operator, self._kernel(operator), AUTOCAST.name)
        try:
            yield
        finally:
            library._destroy()
            others.reset()

    def _kernel(self, operator: str) -> Callable[..., Any]:
        name, _, overload = operator.partition(".")
        called = getattr(getattr(aten, name), overload or "default")

        def in_dtype(*args: Any, **kwargs: Any) -> Any:
            return self.call(called, self.dtype, args, kwargs)

        def in_float32(*args: Any, **kwargs: Any) -> Any:
            return self.call(called, torch.float32, args, kwargs)

        def in_widest(*args: Any, **kwargs: Any) -> Any:
            dtypes = [leaf.dtype for leaf in tree_iter((args, kwargs)) if self._casts(leaf)]
            return self.call(called, torch.float32 if torch.float32 in dtypes else self.dtype, args, kwargs)

        def with_dtype(*args: Any, **kwargs: Any) -> Any:
            place = [argument.name for argument in called._schema.arguments].index("dtype")
            if len(args) <= place and any(self._casts(leaf) for leaf in args):
                kwargs["dtype"] = kwargs.get("dtype") or torch.float32
            return self.call(called, None, args, kwargs)

        if name in OPTIONAL_DTYPE and self.device != "cpu":
            return with_dtype
        return in_dtype if name in IN_AUTOCAST_DTYPE else in_widest if name in IN_WIDEST_DTYPE else in_float32

    def call(self, function: Any, to: torch.dtype | None, args: Any, kwargs: Any) -> Any:
        """Call the function on cast arguments, with autocast disabled within it."""
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
            if to is not None:
                args, kwargs = tree_map(partial(self._cast, to), (args, kwargs))
            return function(*args, **kwargs)

    def _casts(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and (value.is_meta or value.device.type == self.device)
            and value.is_floating_point()
            and value.dtype != torch.float64
        )

    def _cast(self, to: torch.dtype, value: Any) -> Any:
        if not self._casts(value) or value.dtype == to:
            return value
        kept = value.is_leaf and value.requires_grad and value.dtype == torch.float32 and not value._is_view()
        if not kept or to != self.dtype:
            return value.to(to)
        if value not in self.copies:
            self.copies[value] = value.to(to)
        return self.copies[value]


def _init(
    context: Any,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> None:
    """This and the two functions below replace the methods of torch.autocast."""
    context.device, context.fast_dtype = device_type, dtype or torch.get_autocast_dtype(device_type)
    context._enabled = enabled and context.fast_dtype in (torch.bfloat16, torch.float16)


def _enter(context: Any) -> Any:
    cast = ACTIVE[-1]
    context.prev = cast.enabled, cast.dtype
    cast.depth += 1
    if cast.applies_to(context.device):
        cast.set(context._enabled, context.fast_dtype)
    return context


def _exit(context: Any, *raised: Any) -> bool:
    cast = ACTIVE[-1]
    cast.depth -= 1
    if not cast.depth:
        cast.copies.clear()
    cast.set(*context.prev)
    return False
