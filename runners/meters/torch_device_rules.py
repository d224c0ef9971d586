"""What a device would do in other ways than tensors without data: which kernels it chooses, what autocast casts.

Each rule is named for what it stands for, and is in force while a workload is followed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils._python_dispatch import _disable_current_modes

from runners.meters import torch_cuda_kernels as cuda_kernels

aten = torch.ops.aten
COMPOSITE = functional.scaled_dot_product_attention


class CpuRules:
    """The CPU's: one attention kernel, no optimizer over lists of tensors, and no memory that a dispatch mode misses
    but for what torch_tensors names."""

    device = "cpu"
    host_counts = True

    def applied(self) -> AbstractContextManager[Any]:
        return _in_force(attention_by(_attention_on_cpu), _autocast(LOW_ON_CPU, HIGH_ON_CPU), lists_in_norms())

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        return ()

    def takes_a_handle(self, operator: Any) -> bool:
        return False


def architecture(card: Mapping[str, Any]) -> cuda_kernels.Architecture:
    """Of a card's file: sm_90 is compute capability 9.0, sm_120 is 12.0."""
    found = re.fullmatch(r"sm_(\d+)(\d)", card["architecture"])
    capability = (int(found[1]), int(found[2])) if found else None
    return cuda_kernels.Architecture(card["vendor"], capability)


class CudaRules:
    """CUDA's, for cards of one architecture. `chosen` are the attention kernels it has chosen so far."""

    device = "cuda"
    host_counts = False

    def __init__(self, architecture: cuda_kernels.Architecture) -> None:
        self._architecture = architecture
        self._temporaries = cuda_kernels.temporaries(architecture)

    def applied(self) -> AbstractContextManager[Any]:
        return _in_force(
            attention_by(self._attention), _autocast(LOW_ON_CUDA, HIGH_ON_CUDA), lists_in_norms(), lists_in_optimizers()
        )

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        rule = self._temporaries.get(operator)
        return () if rule is None else rule(args, kwargs, result)

    def takes_a_handle(self, operator: Any) -> bool:
        return cuda_kernels.is_matmul(operator)

    def _attention(self, *given: Any) -> torch.Tensor:
        return cuda_kernels.attention(self._architecture, *given)


@contextmanager
def _in_force(*rules: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(rule)
        yield


@contextmanager
def _replaced(where: Any, **names: Any) -> Iterator[None]:
    before = {name: getattr(where, name) for name in names}
    for name, value in names.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(where, name, value)


# --- attention --------------------------------------------------------------------------------------------------------


def attention_by(kernel: Callable[..., torch.Tensor]) -> AbstractContextManager[None]:
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
        if has_torch_function((query, key, value)):  # of an autocast that is in force
            given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            attended: torch.Tensor = handle_torch_function(attend, (query, key, value), *given)
            return attended
        if not query.is_meta:
            options: Any = {"scale": scale, "enable_gqa": enable_gqa}
            return COMPOSITE(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return kernel(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    attend.attends = True  # type: ignore[attr-defined]
    return _replaced(functional, scaled_dot_product_attention=attend)


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

PRODUCTS = ("matmul", "mm", "mv", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "chain_matmul", "einsum")
CONVOLUTIONS = tuple(f"conv{transposed}{n}d" for transposed in ("", "_transpose") for n in (1, 2, 3))


def _named(names: Sequence[str], *places: Any) -> frozenset[Any]:
    return frozenset(getattr(place, name) for place in places for name in names if hasattr(place, name))


# The operators that autocast computes in its own precision and in float32 (torch/aten/src/ATen/autocast_mode.h), as
# Python calls them. On CUDA more of them are kept in float32 than on the CPU.
LOW = _named((*PRODUCTS, "__matmul__", "__rmatmul__"), torch, torch.Tensor) | _named(
    (*CONVOLUTIONS, "linear"), functional
)
LOW_ON_CPU = LOW
LOW_ON_CUDA = LOW | _named(("prelu",), functional, torch)
HIGH_ON_CPU = _named(("nll_loss", "mse_loss", "cosine_embedding_loss", "binary_cross_entropy"), functional) | _named(
    ("prod", "quantile", "nanquantile", "polar"), torch, torch.Tensor
)
HIGH_ON_CUDA = _named(
    (
        *("softmax", "softmin", "log_softmax", "layer_norm", "group_norm", "nll_loss", "cross_entropy", "l1_loss"),
        *("mse_loss", "smooth_l1_loss", "kl_div", "cosine_similarity", "cosine_embedding_loss", "huber_loss"),
        *("binary_cross_entropy_with_logits", "softplus", "poisson_nll_loss", "gaussian_nll_loss", "rms_norm"),
    ),
    functional,
) | _named(
    (
        *("softmax", "log_softmax", "exp", "expm1", "log", "log10", "log2", "log1p", "pow", "__pow__", "rsqrt"),
        *("reciprocal", "sum", "prod", "cumsum", "cumprod", "norm", "acos", "asin", "cosh", "sinh", "tan"),
        *("erfinv", "logsumexp", "dist", "cdist", "renorm"),
    ),
    torch,
    torch.Tensor,
)


@contextmanager
def _autocast(low: frozenset[Any], high: frozenset[Any]) -> Iterator[None]:
    """torch's own goes by the dispatch keys of real devices. What is in force of this one stands in `_Cast.active`."""
    from torch.utils import checkpoint

    class Autocast(_Cast):
        LOW, HIGH = low, high

    def state(device_type: str = "cuda") -> tuple[dict[str, Any], dict[str, Any]]:
        now = _Cast.active[-1] if _Cast.active else None
        device = {"enabled": now is not None and now.enabled, "dtype": now.dtype if now else torch.bfloat16}
        return {**device, "cache_enabled": True}, {"enabled": False, "dtype": torch.bfloat16, "cache_enabled": True}

    def available(device_type: str) -> bool:
        return True

    with (
        _replaced(torch, autocast=Autocast),
        _replaced(torch.amp, autocast=Autocast, is_autocast_available=available),
        _replaced(checkpoint, _get_autocast_kwargs=state),  # layers that recompute do it in the forward's precision
    ):
        yield


class _Cast(TorchFunctionMode):
    """Within it products are computed in `dtype`, and what would lose too much in it in float32.

    A weight is cast once, and its copy kept until the outermost one is left: with every weight's, it is the largest
    thing that autocast adds.
    """

    LOW: frozenset[Any]
    HIGH: frozenset[Any]
    active: ClassVar[list[_Cast]] = []

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype or (torch.bfloat16 if device_type == "cpu" else torch.float16)
        # The host's own has nothing to cast where the device is another.
        self.enabled = enabled
        self._counts = device_type != "cpu" or enabled
        self._copies: dict[int, torch.Tensor] = {}

    def __enter__(self) -> _Cast:
        if self._counts:
            if self.active:
                self._copies = self.active[0]._copies
            self.active.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        if self._counts:
            self.active.pop()
            if not self.active:
                self._copies.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # An outer one is still on the stack of modes: the innermost decides.
        if not self.active or self.active[-1] is not self or not self.enabled:
            return func(*args, **kwargs)
        if func in self.LOW or getattr(func, "attends", False):
            to = self.dtype
        elif func in self.HIGH and kwargs.get("dtype") is None:
            to = torch.float32
        else:
            return func(*args, **kwargs)
        with _suspended(self):  # torch's own does not look into an operator that it has cast for
            return func(*self._cast(args, to), **{name: self._cast(value, to) for name, value in kwargs.items()})

    def _cast(self, value: Any, to: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(each, to) for each in value)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype in (to, torch.float64):
            return value
        kept = value.is_leaf and value.requires_grad and value.dtype == torch.float32 and not value._is_view()
        if not kept:
            return value.to(to)
        copy = self._copies.get(id(value))
        if copy is None:
            copy = self._copies[id(value)] = value.to(to)
        return copy


@contextlib.contextmanager
def _suspended(cast: _Cast) -> Iterator[None]:
    cast.active.append(_NONE)
    try:
        yield
    finally:
        cast.active.pop()


_NONE = _Cast("meta", enabled=False)


# --- lists of tensors -------------------------------------------------------------------------------------------------


def lists_in_optimizers() -> AbstractContextManager[None]:
    """On CUDA optimizers go over lists of tensors unless told otherwise, which holds a copy of the parameters."""
    from torch.optim import optimizer

    def supported() -> list[str]:
        return ["cuda", "meta"]

    return _replaced(
        optimizer, _get_foreach_kernels_supported_devices=supported, _get_fused_kernels_supported_devices=supported
    )


def lists_in_norms() -> AbstractContextManager[None]:
    """The norm of all gradients is of a list of tensors on CUDA and on the CPU."""
    from torch.nn.utils import clip_grad

    def supported(*_: Any, **__: Any) -> bool:
        return True

    return _replaced(clip_grad, _device_has_foreach_support=supported, _has_foreach_support=supported)
