"""The attention kernel that CUDA would choose, and the operators that PyTorch runs around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_sizes import HALVES

aten = torch.ops.aten

BACKENDS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}  # aten/src/ATen/SDPBackend.h
CUDA_PRIORITY = ("cudnn", "flash", "efficient", "math")
INITIAL_PRIORITY = torch._C._get_sdp_priority_order() if hasattr(torch._C, "_get_sdp_priority_order") else []


# ---- Which kernel
# aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h


def attention_kernel(
    arch: GpuArchitecture,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """The first kernel that accepts these tensors: cudnn (on Hopper and B200 only), flash, efficient or math.

    query, key and value are (batch, heads, length, head size). Raises RuntimeError, like PyTorch, if all are disabled.
    """
    accepts = _accepting(_Inputs(arch, query, key, value, mask, dropout_p, is_causal, enable_gqa))
    for kernel in _by_priority():
        if accepts[kernel]():
            return kernel
    raise RuntimeError("No available kernel. Aborting execution.")


def _accepting(inputs: _Inputs) -> dict[str, Callable[[], bool]]:
    """Whether each kernel is enabled and accepts the tensors."""
    return {
        "cudnn": lambda: torch._C._get_cudnn_sdp_enabled() and _takes_cudnn(inputs),
        "flash": lambda: torch._C._get_flash_sdp_enabled() and _takes_flash(inputs),
        "efficient": lambda: torch._C._get_mem_efficient_sdp_enabled() and _takes_efficient(inputs),
        "math": torch._C._get_math_sdp_enabled,
    }


def can_use(arch: GpuArchitecture, kernel: str, params: Any) -> bool:
    """What torch.backends.cuda.can_use_flash_attention and its like answer for their `SDPAParams`."""
    tensors = (params.query, params.key, params.value, params.attn_mask)
    return _accepting(_Inputs(arch, *tensors, params.dropout, params.is_causal, params.enable_gqa))[kernel]()


def _by_priority() -> Sequence[str]:
    """The order that the caller set, as by `sdpa_kernel(..., set_priority=True)`, or CUDA's own."""
    get = getattr(torch._C, "_get_sdp_priority_order", None)  # since PyTorch 2.6
    order = get() if get else INITIAL_PRIORITY
    if order == INITIAL_PRIORITY:
        return CUDA_PRIORITY
    return [BACKENDS[each] for each in order if each in BACKENDS]


@dataclass(frozen=True, slots=True)
class _Inputs:
    arch: GpuArchitecture
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout_p: float
    is_causal: bool
    enable_gqa: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def capability(self) -> tuple[int, int]:
        return self.arch.capability or (9, 0)  # as an MI300 reports

    @property
    def amd(self) -> bool:
        return self.arch.vendor == "amd"

    @property
    def trains(self) -> bool:
        return torch.is_grad_enabled() and any(each.requires_grad for each in self.tensors)

    def are(self, *dtypes: torch.dtype) -> bool:
        return self.query.dtype in dtypes and all(each.dtype == self.query.dtype for each in self.tensors)

    def are_batches(self) -> bool:
        """Whether all have four dimensions and the same batch, none is nested, and no sequence is empty."""
        return (
            all(each.dim() == 4 and not each.is_nested for each in self.tensors)
            and len({each.size(0) for each in self.tensors}) == 1
            and self.query.size(2) > 0
            and self.key.size(2) > 0
        )

    def heads_fit(self, grouped: bool, key_as_value: bool = True) -> bool:
        query, key, value = (each.size(1) for each in self.tensors)
        if not (self.enable_gqa and grouped):
            return query == key == value
        return query % key == 0 and (key == value if key_as_value else query % value == 0)

    def last_is_dense(self, one_is_dense: bool) -> bool:
        dense = all(each.stride(3) == 1 for each in self.tensors) or (one_is_dense and self.query.size(3) == 1)
        return dense and (self.mask is None or self.mask.stride(-1) == 1)


def _takes_cudnn(inputs: _Inputs) -> bool:
    # On other cards the order of priority puts math before cudnn.
    if inputs.amd or inputs.capability not in ((9, 0), (10, 0), (10, 3)):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    return (
        inputs.are(*HALVES)
        and inputs.are_batches()
        and inputs.heads_fit(grouped=True, key_as_value=False)
        and inputs.last_is_dense(one_is_dense=True)
        and _mask_suits_cudnn(inputs)
        and (inputs.dropout_p * 16).is_integer()
        and _shape_suits_cudnn(inputs)
    )


def _mask_suits_cudnn(inputs: _Inputs) -> bool:
    mask, query = inputs.mask, inputs.query
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    full = (*query.shape[:3], inputs.key.size(2))[-mask.dim() :]
    return all(have in (1, want) for have, want in zip(mask.shape, full, strict=True))


def _shape_suits_cudnn(inputs: _Inputs) -> bool:
    batch, heads, length, head = inputs.query.shape
    head_v = inputs.value.size(3)
    hopper = inputs.capability == (9, 0)
    limit = 256 if hopper else 192 if (head, head_v) == (192, 128) else 128
    return (
        max(batch, heads) <= 65535
        and max(head, head_v) <= limit
        and head % 8 == head_v % 8 == 0
        and inputs.key.size(2) != 1
        and not (length == 1 and inputs.dropout_p)
    )


def _takes_flash(inputs: _Inputs) -> bool:
    return (
        inputs.mask is None
        and (8, 0) <= inputs.capability <= (12, 1)
        and inputs.are(*HALVES)
        and inputs.are_batches()
        and len({each.size(3) for each in inputs.tensors}) == 1
        and inputs.query.size(3) <= (512 if inputs.amd else 256)
        and _backward_suits_flash(inputs)
        and not (inputs.is_causal and inputs.query.size(2) != inputs.key.size(2))
        and inputs.heads_fit(grouped=True)
        and inputs.last_is_dense(one_is_dense=True)
    )


def _backward_suits_flash(inputs: _Inputs) -> bool:
    """Consumer cards have too little shared memory for wide heads."""
    small = not inputs.amd and ((8, 6) <= inputs.capability <= (8, 9) or inputs.capability >= (12, 0))
    head = inputs.query.size(3)
    return not (small and inputs.trains) or head <= 192 or (head > 224 and inputs.dropout_p == 0)


def _takes_efficient(inputs: _Inputs) -> bool:
    bfloat16 = inputs.capability >= (8, 0)
    return (
        inputs.are(torch.float16, torch.float32, *([torch.bfloat16] if bfloat16 else []))
        and (5, 0) <= inputs.capability <= (12, 1)
        and inputs.are_batches()
        and _heads_suit_efficient(inputs)
        and inputs.heads_fit(grouped=False)
        and inputs.last_is_dense(one_is_dense=False)
        and not (inputs.amd and inputs.mask is not None and inputs.mask.dtype not in (torch.bool, inputs.query.dtype))
    )


def _heads_suit_efficient(inputs: _Inputs) -> bool:
    query, key, value = (each.size(3) for each in inputs.tensors)
    half = inputs.query.dtype in HALVES
    if inputs.amd:
        alignment = 8 if half else 4
        return query == key == value <= 512 and query > 0 and query % alignment == 0
    major = inputs.capability[0]
    alignment = (8 if half else 4) if major >= 8 else 8 if half and major == 7 else 1
    return query == key and query > 0 and value > 0 and query % alignment == value % alignment == 0


# ---- Kernels called directly
# aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (compute capability 8.0 and half precision),
# mem_eff_attention (5.0; kernels for bfloat16 since 8.0), and sdp_utils.cpp, check_cudnn_hardware_support (8.0)

OPERATORS = {
    "flash": (
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"),
        *("_flash_attention_forward", "_flash_attention_backward"),
    ),
    "efficient": (
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward"),
        *("_efficient_attention_forward", "_efficient_attention_backward"),
    ),
    "cudnn": (
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
        *("_cudnn_attention_forward", "_cudnn_attention_backward"),
    ),
}
KERNEL_OF = {name: kernel for kernel, names in OPERATORS.items() for name in names}
SINCE = {"flash": (8, 0), "efficient": (5, 0), "cudnn": (8, 0)}


def check_direct_call(arch: GpuArchitecture, operator: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    """Raise RuntimeError for an operator of one attention kernel that the card does not have for this dtype."""
    kernel = KERNEL_OF.get(operator._schema.name.removeprefix("aten::"))
    if kernel is None or arch.capability is None:
        return
    needed = (8, 0) if kernel == "efficient" and dtype is torch.bfloat16 else SINCE[kernel]
    if arch.capability < needed:
        need, have = (".".join(map(str, each)) for each in (needed, arch.capability))
        raise RuntimeError(
            f"{operator}: {kernel} attention needs compute capability {need} in {dtype}, and this card has {have}"
        )
    if kernel == "flash" and operator._overloadname == "default" and dtype not in HALVES:
        raise RuntimeError(f"{operator}: flash attention computes in float16 and bfloat16 only, not in {dtype}")


# ---- Operators around the kernel
# aten/src/ATen/native/transformers/attention.cpp


def attention(
    arch: GpuArchitecture,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention with the kernel of that card. The tensors may be on any device, without data.

    query is (batch, heads, length, head size); key and value are the same with a length of their own, and with fewer
    heads if `enable_gqa`. The result has the shape of query. Raises RuntimeError if all kernels are disabled.
    """
    mask = attn_mask
    kernel = attention_kernel(arch, query, key, value, mask, dropout_p, is_causal, enable_gqa)
    trains = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    if kernel == "flash":
        head = query.size(-1)
        scale = 1 / math.sqrt(head) if scale is None else scale
        padded = [_pad(each) for each in (query, key, value)]
        out: Tensor = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out if out.size(-1) == head else out[..., :head]
    if mask is not None and mask.dtype == torch.bool:
        mask = _added(mask, query.dtype)
    if kernel == "cudnn":
        out = aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, trains, dropout_p, is_causal, False, scale=scale
        )[0]
    elif kernel == "efficient":
        mask = None if mask is None else _expanded(mask, query, key)
        out = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, trains, dropout_p, is_causal, scale=scale
        )[0]
    else:
        out = attention_in_parts(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    return out


def _pad(tensor: Tensor, to: int = 8) -> Tensor:
    rest = tensor.size(-1) % to
    return torch.nn.functional.pad(tensor, (0, to - rest)) if rest else tensor


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of booleans as a mask that is added to the scores."""
    zero = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask.logical_not(), -math.inf, zero)


def _expanded(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask expanded to all batches and heads. Its rows must begin at multiples of 8 elements: else it is padded."""
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        last = mask.size(-1)
        mask = torch.nn.functional.pad(mask, (0, 8 - last % 8))[..., :last]
    return mask.expand(*query.shape[:3], key.size(2))


def attention_in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """_scaled_dot_product_attention_math as on CUDA: without data, PyTorch's own would not add the mask in place.

    Returns the result and the scores after softmax and dropout.
    """
    dtype, mask = query.dtype, attn_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = _added(mask, dtype)
    in_halves = getattr(torch._C, "_get_math_sdp_allow_fp16_bf16_reduction", lambda: True)()  # since PyTorch 2.5
    if not in_halves and dtype in HALVES:
        query, key, value = query.float(), key.float(), value.float()
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    root = math.sqrt(abs(scale))
    query = aten.mul.Scalar(query, -root if scale < 0 else root)
    if is_causal:
        if mask is not None:
            raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
        lower = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        mask = _added(lower, query.dtype)
    if enable_gqa:
        key, value = (_repeated(each, query.size(-3)) for each in (key, value))
    scores = torch.matmul(query, aten.mul.Scalar(key.transpose(-2, -1), root))
    if mask is not None:
        scores.add_(mask)
    scores = (aten._safe_softmax if hasattr(aten, "_safe_softmax") else torch.softmax)(scores, -1)  # since PyTorch 2.5
    if dropout_mask is not None:
        scores = scores.masked_fill(dropout_mask.logical_not(), 0.0)
        value = value * (1 / (1 - dropout_p))
    elif dropout_p:
        scores = torch.dropout(scores, dropout_p, True)
    returned = scores.to(dtype)
    return torch.matmul(scores, value).to(dtype), returned


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    have = tensor.size(-3)
    return tensor if have == heads else tensor.repeat_interleave(heads // have, -3)
