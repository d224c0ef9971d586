"""What a device would do in other ways than tensors without data: which kernels it chooses, what autocast casts.

Each rule is named for what it stands for, and is in force while a workload is followed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from runners.device import Card
from runners.simulation import torch_kernels as cuda_kernels
from runners.simulation.torch_tracer import replaced

aten = torch.ops.aten
COMPOSITE = functional.scaled_dot_product_attention


class CpuRules:
    """The CPU's: one attention kernel, no optimizer over lists of tensors, and no memory that a dispatch mode misses
    but for what torch_tensors names."""

    device = "cpu"
    host_counts = True

    def applied(self) -> AbstractContextManager[Any]:
        return all_entered(
            attention_replaced(_attention_on_cpu), autocast_replaced("cpu"), foreach_norms(), fused_optimizers()
        )

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        return ()

    def takes_a_handle(self, operator: Any) -> bool:
        return False


def gpu_architecture(card: Card) -> cuda_kernels.GpuArchitecture:
    """Of a card's file: sm_90 is compute capability 9.0, sm_120 is 12.0."""
    found = re.fullmatch(r"sm_(\d+)(\d)", card.architecture)
    capability = (int(found[1]), int(found[2])) if found else None
    return cuda_kernels.GpuArchitecture(card.vendor, capability)


class CudaRules:
    """CUDA's, for cards of one architecture."""

    device = "cuda"
    host_counts = False

    def __init__(self, architecture: cuda_kernels.GpuArchitecture) -> None:
        self._architecture = architecture
        self._temporaries = cuda_kernels.temporaries(architecture)

    def applied(self) -> AbstractContextManager[Any]:
        return all_entered(
            attention_replaced(self._attention),
            autocast_replaced("cuda"),
            foreach_norms(),
            foreach_optimizers(),
            fused_dropout(),
            fused_softmax(),
        )

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        rule = self._temporaries.get(operator)
        return () if rule is None else rule(args, kwargs, result)

    def takes_a_handle(self, operator: Any) -> bool:
        return cuda_kernels.is_matmul(operator)

    def _attention(self, *given: Any) -> torch.Tensor:
        return cuda_kernels.attention(self._architecture, *given)


@contextmanager
def all_entered(*rules: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(rule)
        yield


# --- attention --------------------------------------------------------------------------------------------------------


def attention_replaced(kernel: Callable[..., torch.Tensor]) -> AbstractContextManager[None]:
    """On tensors without data the composite of products and a softmax would run: the memory of eager attention.

    The function itself is replaced, and no mode is entered for it: Tensor.backward leaves such modes, and layers that
    recompute would attend in another way than they had.
    """

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if not query.is_meta:
            options: Any = {"scale": scale, "enable_gqa": enable_gqa}
            return COMPOSITE(query, key, value, attn_mask, dropout_p, is_causal, **options)
        given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        cast = ACTIVE[-1] if ACTIVE else None
        if cast is None or not cast.enabled:
            return kernel(*given)
        attended: torch.Tensor = cast.called(kernel, cast.dtype, given, {})
        return attended

    return replaced(functional, scaled_dot_product_attention=attend)


def _attention_on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """What the CPU's own choice is, asked of tensors of these shapes that take no memory."""
    with _disable_current_modes():
        q, k, v = (_without_memory(each) for each in (query, key, value))
        m = None if mask is None else _without_memory(mask)
        flash = torch._fused_sdp_choice(q, k, v, m, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if not flash:
        return COMPOSITE(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if mask is not None and mask.dtype == torch.bool:  # what the composite does before its kernel
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    output: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )[0]
    return output


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    last = tensor.shape[-1] if tensor.ndim else 1
    return torch.empty(last, dtype=tensor.dtype).expand(tensor.shape).requires_grad_(tensor.requires_grad)


# --- autocast ---------------------------------------------------------------------------------------------------------
# torch's own goes by the dispatch keys of real devices, and leaves tensors without data alone. So what is registered
# for the device's key is registered once more, for the key of a backend that no build here has, with the same policies
# (aten/src/ATen/autocast_mode.h and .cpp). Whoever calls an operator reaches them.

AUTOCAST: Any = torch._C._dispatch_key_parse("AutocastPrivateUse1")
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
ACTIVE: list[_Autocast] = []  # of the device whose rules are applied

IN_AUTOCAST_DTYPE = frozenset(  # computed in autocast's own dtype
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
IN_WIDEST_DTYPE = frozenset(  # in the widest dtype that is given
    (
        *("stack", "cat", "index_copy", "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot"),
        *("grid_sampler", "index_put", "tensordot", "scatter_add"),
    )
)
OPTIONAL_DTYPE = frozenset(  # told on CUDA to give float32, and given what there is
    (*("prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum"),)
)  # all others in float32


@contextmanager
def autocast_replaced(device: str) -> Iterator[None]:
    cast = _Autocast(device)
    kind = torch.amp.autocast_mode.autocast  # itself, since its users have imported it by many names

    def enabled(device_type: str | None = None) -> bool:
        return cast.enabled if cast.is_of(device_type or "cuda") else was_enabled(device_type or "cuda")

    def dtype(device_type: str) -> torch.dtype:
        return cast.dtype if cast.is_of(device_type) else was_dtype(device_type)

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
    """What is in force, and the weights that it has cast.

    A weight is cast once, and its copy kept until the outermost one is left: with every weight's, it is the largest
    thing that autocast adds.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.enabled, self.dtype = False, torch.bfloat16 if device == "cpu" else torch.float16
        self.depth = 0
        self.copies: Any = WeakTensorKeyDictionary()

    def is_of(self, device_type: str) -> bool:
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
            return self.called(called, self.dtype, args, kwargs)

        def in_float32(*args: Any, **kwargs: Any) -> Any:
            return self.called(called, torch.float32, args, kwargs)

        def in_widest(*args: Any, **kwargs: Any) -> Any:
            given = [leaf.dtype for leaf in tree_iter((args, kwargs)) if self._casts(leaf)]
            return self.called(called, torch.float32 if torch.float32 in given else self.dtype, args, kwargs)

        def told(*args: Any, **kwargs: Any) -> Any:
            place = [argument.name for argument in called._schema.arguments].index("dtype")
            if len(args) <= place and any(self._casts(leaf) for leaf in args):
                kwargs["dtype"] = kwargs.get("dtype") or torch.float32
            return self.called(called, None, args, kwargs)

        if name in OPTIONAL_DTYPE and self.device != "cpu":
            return told
        return in_dtype if name in IN_AUTOCAST_DTYPE else in_widest if name in IN_WIDEST_DTYPE else in_float32

    def called(self, function: Any, to: torch.dtype | None, args: Any, kwargs: Any) -> Any:
        """Cast, and without autocast: it does not look into an operator that it has cast for."""
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
    """In the place of torch.autocast's own methods: this one, and the two below."""
    context.device, context.fast_dtype = device_type, dtype or torch.get_autocast_dtype(device_type)
    context._enabled = enabled and context.fast_dtype in (torch.bfloat16, torch.float16)


def _enter(context: Any) -> Any:
    cast = ACTIVE[-1]
    context.prev = cast.enabled, cast.dtype
    cast.depth += 1
    if cast.is_of(context.device):
        cast.set(context._enabled, context.fast_dtype)
    return context


def _exit(context: Any, *raised: Any) -> bool:
    cast = ACTIVE[-1]
    cast.depth -= 1
    if not cast.depth:
        cast.copies.clear()
    cast.set(*context.prev)
    return False


# --- lists of tensors -------------------------------------------------------------------------------------------------


def foreach_optimizers() -> AbstractContextManager[None]:
    """On CUDA optimizers go over lists of tensors unless told otherwise, which holds a copy of the parameters."""
    from torch.optim import optimizer

    def supported() -> list[str]:
        return ["cuda", "meta"]

    return replaced(
        optimizer, _get_foreach_kernels_supported_devices=supported, _get_fused_kernels_supported_devices=supported
    )


def fused_optimizers() -> AbstractContextManager[None]:
    """A CPU has them, and goes over lists only if it is told to."""
    from torch.optim import optimizer

    def supported() -> list[str]:
        return ["cpu", "meta"]

    return replaced(optimizer, _get_fused_kernels_supported_devices=supported)


def foreach_norms() -> AbstractContextManager[None]:
    """The norm of all gradients is of a list of tensors on CUDA and on the CPU."""
    from torch.nn.utils import clip_grad

    def supported(*_: Any, **__: Any) -> bool:
        return True

    return replaced(clip_grad, _device_has_foreach_support=supported, _has_foreach_support=supported)


# --- dropout ----------------------------------------------------------------------------------------------------------


def fused_dropout() -> AbstractContextManager[None]:
    """On CUDA dropout is one kernel that keeps a mask of a byte each (aten/src/ATen/native/Dropout.cpp,
    is_fused_kernel_acceptable); elsewhere it keeps what it multiplied by, in the input's dtype."""
    composite, variants = torch.dropout, vars(functional)["_VF"]

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if train and 0 < p < 1 and input.is_meta and input.numel():
            dropped: torch.Tensor = torch.native_dropout(input, p, train)[0]
            return dropped
        return composite(input, p, train)

    return all_entered(replaced(torch, dropout=dropout), replaced(variants, dropout=dropout))


# --- softmax ----------------------------------------------------------------------------------------------------------


def fused_softmax() -> AbstractContextManager[None]:
    """Of float16 to float32, as eager attention asks for it, CUDA's kernel converts as it goes; elsewhere the scores
    are there in float32 too (aten/src/ATen/native/SoftMax.cpp, softmax with a dtype: of float16 alone)."""

    def one_kernel(composite: Any, kernel: Any) -> Any:
        def softmax(input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
            half = input.is_meta and input.dtype is torch.float16 and dtype is torch.float32 and dim is not None
            return kernel(input, dim, True) if half else composite(input, dim, _stacklevel, dtype)

        return softmax

    return replaced(
        functional,
        softmax=one_kernel(functional.softmax, aten._softmax),
        log_softmax=one_kernel(functional.log_softmax, aten._log_softmax),
    )
