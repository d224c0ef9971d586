"""The differences of devices from tensors without data: the kernels that they choose, and the casts of autocast.

Each rule is a context manager that is entered while a workload is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from runners.simulation.kernels.torch_attention import attention
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_products import is_matmul
from runners.simulation.kernels.torch_temporaries import temporaries
from runners.simulation.torch_autocast import ACTIVE, autocast_replaced
from runners.simulation.torch_tracer import replaced

aten = torch.ops.aten
COMPOSITE = functional.scaled_dot_product_attention


class CpuRules:
    """The rules of a CPU: one attention kernel, and optimizers that update one tensor at a time.

    There are no temporaries, since a measured `tensor` does not include them either (meters/torch_tensors.py).
    """

    host_counts = True

    def applied(self) -> AbstractContextManager[Any]:
        return all_entered(
            attention_replaced(_attention_on_cpu), autocast_replaced("cpu"), foreach_norms(), fused_optimizers()
        )

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        return ()

    def uses_workspace(self, operator: Any) -> bool:
        return False


class CudaRules:
    """The rules of CUDA cards of one architecture."""

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

    def _attention(self, *arguments: Any) -> torch.Tensor:
        return attention(self._architecture, *arguments)


@contextmanager
def all_entered(*rules: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(rule)
        yield


# --- attention --------------------------------------------------------------------------------------------------------


def attention_replaced(kernel: Callable[..., torch.Tensor]) -> AbstractContextManager[None]:
    """Replace scaled_dot_product_attention, which on tensors without data would run as products and a softmax, with the
    memory of eager attention.

    The function itself is replaced rather than intercepted by a mode: Tensor.backward leaves such modes, and
    checkpointed layers would recompute with another kernel.
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
        arguments = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        cast = ACTIVE[-1] if ACTIVE else None
        if cast is None or not cast.enabled:
            return kernel(*arguments)
        attended: torch.Tensor = cast.call(kernel, cast.dtype, arguments, {})
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
    """Attention by the kernel that a CPU chooses for tensors of these shapes."""
    with _disable_current_modes():
        q, k, v = (_without_memory(each) for each in (query, key, value))
        m = None if mask is None else _without_memory(mask)
        flash = torch._fused_sdp_choice(q, k, v, m, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if not flash:
        return COMPOSITE(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if mask is not None and mask.dtype == torch.bool:  # as the composite operator before its kernel
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    output: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )[0]
    return output


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of this shape on the CPU with one row of data."""
    last = tensor.shape[-1] if tensor.ndim else 1
    return torch.empty(last, dtype=tensor.dtype).expand(tensor.shape).requires_grad_(tensor.requires_grad)


# --- optimizers and norms ---------------------------------------------------------------------------------------------


def foreach_optimizers() -> AbstractContextManager[None]:
    """On CUDA optimizers use foreach kernels by default, which hold a copy of the parameters."""
    from torch.optim import optimizer

    def supported() -> list[str]:
        return ["cuda", "meta"]

    return replaced(
        optimizer, _get_foreach_kernels_supported_devices=supported, _get_fused_kernels_supported_devices=supported
    )


def fused_optimizers() -> AbstractContextManager[None]:
    """A CPU has fused optimizers, and uses foreach kernels only on request."""
    from torch.optim import optimizer

    def supported() -> list[str]:
        return ["cpu", "meta"]

    return replaced(optimizer, _get_fused_kernels_supported_devices=supported)


def foreach_norms() -> AbstractContextManager[None]:
    """The norm of all gradients uses foreach kernels on CUDA and on a CPU."""
    from torch.nn.utils import clip_grad

    def supported(*_: Any, **__: Any) -> bool:
        return True

    return replaced(clip_grad, _device_has_foreach_support=supported, _has_foreach_support=supported)


# --- dropout ----------------------------------------------------------------------------------------------------------


def fused_dropout() -> AbstractContextManager[None]:
    """On CUDA dropout is one kernel that keeps a mask of one byte an element (aten/src/ATen/native/Dropout.cpp,
    is_fused_kernel_acceptable). Elsewhere it keeps the factors, in the input's dtype."""
    composite, variants = torch.dropout, vars(functional)["_VF"]

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if train and 0 < p < 1 and input.is_meta and input.numel():
            dropped: torch.Tensor = torch.native_dropout(input, p, train)[0]
            return dropped
        return composite(input, p, train)

    return all_entered(replaced(torch, dropout=dropout), replaced(variants, dropout=dropout))


# --- softmax ----------------------------------------------------------------------------------------------------------


def fused_softmax() -> AbstractContextManager[None]:
    """On CUDA a softmax from float16 to float32, as in eager attention, converts within its kernel. Elsewhere it
    converts the scores first (aten/src/ATen/native/SoftMax.cpp, softmax with a dtype: float16 only)."""

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
