"""Autocast on tensors without data.

PyTorch's autocast works by the dispatch keys of real devices and leaves tensors without data alone. Here the operators
that are registered for a device's autocast key are registered for the key of a backend that no build has, with the same
policies (aten/src/ATen/autocast_mode.h and .cpp), and any caller of an operator reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from runners.simulation.torch_replaced import replaced

aten = torch.ops.aten

AUTOCAST: Any = torch._C._dispatch_key_parse("AutocastPrivateUse1")
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}

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
    """Make torch.autocast for `device`, "cpu" or "cuda", work on tensors without data, for which libraries name the
    device `meta`.

    The state stays PyTorch's own, so that every function that reads it is right. Only the functions that change it are
    replaced, since the key of tensors without data has to follow.
    """
    cast = _Autocast(device)

    def real(device_type: str) -> str:
        return device if device_type == "meta" else device_type

    def is_enabled(device_type: str = "cuda") -> bool:
        return was_enabled(real(device_type))

    def dtype(device_type: str) -> torch.dtype:
        return was_dtype(real(device_type))

    def set_enabled(device_type: Any, enabled: bool | None = None) -> None:
        arguments = (device_type,) if enabled is None else (real(device_type), enabled)  # one argument: on CUDA
        set_was_enabled(*arguments)
        cast.follow()

    def set_dtype(device_type: str, to: torch.dtype) -> None:
        set_was_dtype(real(device_type), to)

    def available(device_type: str) -> bool:
        return was_available(real(device_type))

    def cast_inputs(value: Any, device_type: str, to: torch.dtype) -> Any:
        """For torch.amp.custom_fwd(cast_inputs=...), which asks each tensor for its device."""
        return was_cast(was_cast(value, "meta", to) if device_type == device else value, device_type, to)

    def clear() -> None:
        cast.copies.clear()
        was_cleared()

    was_enabled, was_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    was_cleared, was_available = torch.clear_autocast_cache, torch.amp.is_autocast_available
    was_cast: Any = torch.amp.autocast_mode._cast
    set_was_enabled: Any = torch.set_autocast_enabled
    set_was_dtype: Any = torch.set_autocast_dtype
    state = was_enabled(device), was_dtype(device)
    with (
        replaced(torch, is_autocast_enabled=is_enabled, get_autocast_dtype=dtype, clear_autocast_cache=clear),
        replaced(torch, set_autocast_enabled=set_enabled, set_autocast_dtype=set_dtype),
        replaced(torch.amp, is_autocast_available=available),
        replaced(torch.amp.autocast_mode, is_autocast_available=available, _cast=cast_inputs),
        nullcontext() if device == "cpu" else cuda_autocast_available(),
        cast.registered(),
    ):
        try:
            yield
        finally:
            set_was_dtype(device, state[1])
            set_enabled(device, state[0])


@contextmanager
def cuda_autocast_available() -> Iterator[None]:
    """Let torch.autocast and a gradient scaler for CUDA be made where there is no CUDA. PyTorch disables them when they
    are made, which for a decorator is when its module is imported."""

    def unavailable() -> bool:
        return False

    def supports_bfloat16(including_emulation: bool = True) -> bool:
        return including_emulation  # every card does; older ones convert

    with (
        replaced(torch.cuda.amp.common, amp_definitely_not_available=unavailable),
        replaced(torch.cuda, is_bf16_supported=supports_bfloat16),
    ):
        yield


class _Autocast:
    """The state of autocast, and its copies of weights.

    A weight is cast once, and the copy is kept until the outermost context ends: these copies are most of the memory
    that autocast adds.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.copies: Any = WeakTensorKeyDictionary()

    @property
    def dtype(self) -> torch.dtype:
        return torch.get_autocast_dtype(self.device)

    def follow(self) -> None:
        """Enable or disable the key of tensors without data as PyTorch's own state says."""
        enabled = torch.is_autocast_enabled(self.device)
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
        if not torch.is_autocast_cache_enabled():
            return value.to(to)
        if value not in self.copies:
            self.copies[value] = value.to(to)
        return self.copies[value]
