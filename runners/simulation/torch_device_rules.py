"""What a device would do in other ways than tensors without data: which kernels it chooses, what autocast casts.

Each rule is named for what it stands for, and is in force while a workload is followed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from runners.device import Card
from runners.simulation.kernels.torch_attention import attention
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_products import is_matmul
from runners.simulation.kernels.torch_temporaries import temporaries
from runners.simulation.torch_autocast import ACTIVE, autocast_replaced
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

    def uses_workspace(self, operator: Any) -> bool:
        return False


def gpu_architecture(card: Card) -> GpuArchitecture:
    """Of a card's file: sm_90 is compute capability 9.0, sm_120 is 12.0."""
    found = re.fullmatch(r"sm_(\d+)(\d)", card.architecture)
    capability = (int(found[1]), int(found[2])) if found else None
    return GpuArchitecture(card.vendor, capability)


class CudaRules:
    """CUDA's, for cards of one architecture."""

    device = "cuda"
    host_counts = False

    def __init__(self, architecture: GpuArchitecture) -> None:
        self._architecture = architecture
        self._temporaries = temporaries(architecture)

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

    def uses_workspace(self, operator: Any) -> bool:
        return is_matmul(operator)

    def _attention(self, *given: Any) -> torch.Tensor:
        return attention(self._architecture, *given)


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
