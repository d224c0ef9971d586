"""What CUDA kernels allocate for themselves, and which attention kernel CUDA would choose: rules read from PyTorch's
source, so that a workload followed on tensors without data can be charged for them.

Each rule names the source it was read from. Headers and operators are those of PyTorch 2.13; .cu and .cpp files are the
nearest state that could be had, not always that of the release. Taken as given: a wheel for CUDA 13 with cuDNN above
9.15, no deterministic algorithms, no graph capture, cuBLAS by its defaults.

A rule gives what is alive at the operator's fullest moment, not what was freed before. Not followed, so that a
calculated peak can be lower than a card's:

    cuDNN        the workspace of a convolution, and what an attention plan adds to what its frontend asks for
    CUB          histograms and look-back of a sort (1 % of what is followed), and what scans and unique take
    efficient    backward of half precision with heads of 97 to 128 on cards other than A100, H100 and B200: sums of
                 keys and values, if the larger kernel does not fit
    top-k        buffers of the kernel that gives a row several blocks; whether 2.13 sorts instead
    reductions   all but sum, mean, vector norm and argmax
    indexing     nonzero, masks of booleans as indices, unique, scatter where it must be deterministic
    CUTLASS      grouped and scaled products; FlashAttention 3; nested tensors
    AMD          attention (AOTriton), norms, reductions, and hipBLASLt's 76 MiB beside hipBLAS's workspace

And what tensors without data do that CUDA does not, so that it can be higher: the seed and offset of the efficient
kernel, which are on the host (two blocks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Rule = Callable[[Sequence[Any], Mapping[str, Any], Any], Sequence[int]]

MIB = 2**20
FLOAT = 4  # bytes of the type that halves are accumulated in
HALVES = (torch.float16, torch.bfloat16)

# How many multiprocessors the usual card has: V100, T4, A100, RTX 3090, RTX 4090, H100 SXM, B200, RTX 5090.
MULTIPROCESSORS = {
    (7, 0): 80,
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 82,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (12, 0): 170,
}


@dataclass(frozen=True, slots=True)
class GpuArchitecture:
    vendor: str  # nvidia or amd
    capability: tuple[int, int] | None  # as (9, 0); None on amd
    multiprocessors: int | None = None  # None: of the usual card of this capability

    @property
    def processors(self) -> int:
        return self.multiprocessors or MULTIPROCESSORS.get(self.capability or (0, 0), 108)

    @property
    def threads(self) -> int:
        """Resident on one multiprocessor."""
        if self.capability == (7, 5):
            return 1024
        small = self.capability is not None and (8, 6) <= self.capability <= (8, 9)
        return 1536 if small or self.capability in ((12, 0), (12, 1)) else 2048


# ---- What a card cannot do

# bfloat16: torch.cuda.is_bf16_supported(including_emulation=False); older cards hold it and compute in float32.
# float8: aten/src/ATen/native/cuda/ScaledBlas.cpp, _scaled_mm; the types of blocks of 32 and 16 need Blackwell.
NEEDED = {
    "bfloat16": (8, 0),
    "float8_e4m3fn": (8, 9),
    "float8_e5m2": (8, 9),
    "float8_e8m0fnu": (10, 0),
    "float4_e2m1fn_x2": (10, 0),
}
DTYPES: Mapping[torch.dtype, tuple[int, int]] = {
    getattr(torch, name): needed for name, needed in NEEDED.items() if hasattr(torch, name)
}


def why_unsupported(arch: GpuArchitecture, dtype: torch.dtype) -> str | None:
    """Why such a card does not compute in that type, if it does not."""
    needed = DTYPES.get(dtype)
    if arch.capability is None or needed is None or arch.capability >= needed:
        return None
    name = str(dtype).removeprefix("torch.")
    have, need = (".".join(map(str, each)) for each in (arch.capability, needed))
    return f"{name} needs compute capability {need}, and this card has {have}" + (
        ": torch only emulates it there" if dtype is torch.bfloat16 else ""
    )


# ---- cuBLAS

MATMULS = {
    f"aten.{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear"),
        *("_addmm_activation", "_scaled_mm", "_int_mm"),
    )
}


def is_matmul(op: torch._ops.OpOverload) -> bool:
    """Whether it takes a cuBLAS handle: the first that does brings the workspace, which then stays."""
    return str(op.overloadpacket) in MATMULS


def workspace_bytes(arch: GpuArchitecture) -> int:
    """Of one handle and stream, which cuBLASLt shares.

    aten/src/ATen/cuda/CublasHandlePool.cpp: 2 x 4 MiB + 8 x 16 KiB, 32 MiB from Hopper on, 128 MiB on MI300 and MI350.
    """
    if arch.vendor == "amd":
        return 128 * MIB
    assert arch.capability
    return 32 * MIB if arch.capability[0] >= 9 else 2 * 4 * MIB + 8 * 16 * 1024


# ---- Attention: which kernel
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
    """The first one that takes these tensors: cudnn (on Hopper and B200 only), flash, efficient, math."""
    given = _Given(arch, query, key, value, mask, dropout_p, is_causal, enable_gqa)
    if torch._C._get_cudnn_sdp_enabled() and _takes_cudnn(given):
        return "cudnn"
    if torch._C._get_flash_sdp_enabled() and _takes_flash(given):
        return "flash"
    if torch._C._get_mem_efficient_sdp_enabled() and _takes_efficient(given):
        return "efficient"
    if torch._C._get_math_sdp_enabled():
        return "math"
    raise RuntimeError("No available kernel. Aborting execution.")


@dataclass(frozen=True, slots=True)
class _Given:
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
        return self.arch.capability or (9, 0)  # what an MI300 reports

    @property
    def amd(self) -> bool:
        return self.arch.vendor == "amd"

    @property
    def trains(self) -> bool:
        return torch.is_grad_enabled() and any(each.requires_grad for each in self.tensors)

    def are(self, *dtypes: torch.dtype) -> bool:
        return self.query.dtype in dtypes and all(each.dtype == self.query.dtype for each in self.tensors)

    def are_batches(self) -> bool:
        """Four dimensions, one batch, none of them nested, no empty sequence."""
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


def _takes_cudnn(given: _Given) -> bool:
    # Everywhere but on these, the order puts math before it.
    if given.amd or given.capability not in ((9, 0), (10, 0), (10, 3)):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    return (
        given.are(*HALVES)
        and given.are_batches()
        and given.heads_fit(grouped=True, key_as_value=False)
        and given.last_is_dense(one_is_dense=True)
        and _mask_suits_cudnn(given)
        and (given.dropout_p * 16).is_integer()
        and _shape_suits_cudnn(given)
    )


def _mask_suits_cudnn(given: _Given) -> bool:
    mask, query = given.mask, given.query
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    full = (*query.shape[:3], given.key.size(2))[-mask.dim() :]
    return all(have in (1, want) for have, want in zip(mask.shape, full, strict=True))


def _shape_suits_cudnn(given: _Given) -> bool:
    batch, heads, length, head = given.query.shape
    head_v = given.value.size(3)
    hopper = given.capability == (9, 0)
    limit = 256 if hopper else 192 if (head, head_v) == (192, 128) else 128
    return (
        max(batch, heads) <= 65535
        and max(head, head_v) <= limit
        and head % 8 == head_v % 8 == 0
        and given.key.size(2) != 1
        and not (length == 1 and given.dropout_p)
    )


def _takes_flash(given: _Given) -> bool:
    return (
        given.mask is None
        and (8, 0) <= given.capability <= (12, 1)
        and given.are(*HALVES)
        and given.are_batches()
        and len({each.size(3) for each in given.tensors}) == 1
        and given.query.size(3) <= (512 if given.amd else 256)
        and _backward_suits_flash(given)
        and not (given.is_causal and given.query.size(2) != given.key.size(2))
        and given.heads_fit(grouped=True)
        and given.last_is_dense(one_is_dense=True)
    )


def _backward_suits_flash(given: _Given) -> bool:
    """Wide heads need more shared memory than the consumer cards have."""
    small = not given.amd and ((8, 6) <= given.capability <= (8, 9) or given.capability >= (12, 0))
    head = given.query.size(3)
    return not (small and given.trains) or head <= 192 or (head > 224 and given.dropout_p == 0)


def _takes_efficient(given: _Given) -> bool:
    bfloat16 = given.capability >= (8, 0)
    return (
        given.are(torch.float16, torch.float32, *([torch.bfloat16] if bfloat16 else []))
        and (5, 0) <= given.capability <= (12, 1)
        and given.are_batches()
        and _heads_suit_efficient(given)
        and given.heads_fit(grouped=False)
        and given.last_is_dense(one_is_dense=False)
        and not (given.amd and given.mask is not None and given.mask.dtype not in (torch.bool, given.query.dtype))
    )


def _heads_suit_efficient(given: _Given) -> bool:
    query, key, value = (each.size(3) for each in given.tensors)
    half = given.query.dtype in HALVES
    if given.amd:
        alignment = 8 if half else 4
        return query == key == value <= 512 and query > 0 and query % alignment == 0
    major = given.capability[0]
    alignment = (8 if half else 4) if major >= 8 else 8 if half and major == 7 else 1
    return query == key and query > 0 and value > 0 and query % alignment == value % alignment == 0


# ---- Attention: what is done around the kernel
# aten/src/ATen/native/transformers/attention.cpp


def attention(
    arch: GpuArchitecture,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention as that card would do it, on tensors of any device that need no data."""
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
        out = _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    return out


def _pad(tensor: Tensor, to: int = 8) -> Tensor:
    rest = tensor.size(-1) % to
    return torch.nn.functional.pad(tensor, (0, to - rest)) if rest else tensor


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of booleans as what is added to the scores."""
    zero = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask.logical_not(), -math.inf, zero)


def _expanded(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """To all batches and heads, its rows beginning at multiples of 8 numbers: else it is copied with room between."""
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        last = mask.size(-1)
        mask = torch.nn.functional.pad(mask, (0, 8 - last % 8))[..., :last]
    return mask.expand(*query.shape[:3], key.size(2))


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """As the composite operator, which on tensors without data would not add the mask in place as it does on CUDA."""
    dtype = query.dtype
    if not torch._C._get_math_sdp_allow_fp16_bf16_reduction() and dtype in HALVES:
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
    scores = aten._safe_softmax(scores, -1)
    if dropout_p:
        scores = torch.dropout(scores, dropout_p, True)
    returned = scores.to(dtype)  # the second result, which nobody keeps
    out = torch.matmul(scores, value).to(dtype)
    del returned
    return out


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    have = tensor.size(-3)
    return tensor if have == heads else tensor.repeat_interleave(heads // have, -3)


# ---- What the kernels of attention allocate


def round_up(number: int, to: int) -> int:
    return ceil_divide(number, to) * to


def ceil_divide(number: int, by: int) -> int:
    return -(-number // by)


def contiguous_copies(*tensors: Tensor) -> list[int]:
    """Of those that a kernel first makes contiguous."""
    return [each.nbytes for each in tensors if not each.is_contiguous()]


# aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp


def _rounded_head(head: int) -> int:
    return round_up(head, 32 if head <= 128 else 64)


def _splits(tiles: int, processors: int, blocks: int) -> int:
    """In how many parts the keys are cut so that few queries keep all multiprocessors busy."""
    if tiles >= 0.8 * processors:
        return 1

    def is_new(parts: int) -> bool:
        return parts == 1 or ceil_divide(blocks, parts) != ceil_divide(blocks, parts - 1)

    def efficiency(parts: int) -> float:
        waves = tiles * parts / processors
        return waves / math.ceil(waves)

    candidates = [parts for parts in range(1, min(128, processors, blocks) + 1) if is_new(parts)]
    best = max(map(efficiency, candidates))
    return next(parts for parts in candidates if efficiency(parts) >= 0.85 * best)


def _flash_forward_sizes(arch: GpuArchitecture, query: Tensor, key: Tensor, dropout_p: float) -> list[int]:
    """float32 statistics and results of the parts that the keys are cut in. All of batch, length, heads, head."""
    batch, length, heads, head = query.shape
    length_k, heads_k = key.shape[1:3]
    if dropout_p:
        return [16]  # cuts nothing, and makes the seed twice
    if length == 1 and heads > heads_k:  # one token: the heads of a group become its queries
        length, heads = heads // heads_k, heads_k
    block = 256 if head <= 64 else 128 if head <= 128 else 64
    parts = _splits(batch * heads * ceil_divide(length, 64), 2 * arch.processors, ceil_divide(length_k, block))
    rows = parts * batch * heads * length
    return [rows * FLOAT, rows * _rounded_head(head) * FLOAT] if parts > 1 else []


def _flash_backward_sizes(grad: Tensor, query: Tensor, key: Tensor, out: Tensor) -> list[int]:
    """Of rows in blocks of 128: the sum of each and the gradient of queries, in float32; with grouped heads also the
    gradients of keys and values for every head. All of batch, length, heads, head."""
    batch, length, heads, head = query.shape
    rows = batch * heads * round_up(length, 128)
    grouped = [batch * key.size(1) * heads * head * key.element_size()] * 2 if key.size(2) != heads else []
    return [*contiguous_copies(grad, out), rows * FLOAT, rows * _rounded_head(head) * FLOAT, *grouped]


def flash_forward(arch: GpuArchitecture) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        query, key = (each.transpose(1, 2) for each in args[:2])
        return _flash_forward_sizes(arch, query, key, args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0))

    return rule


def flash_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    grad, query, key, _, out = (each.transpose(1, 2) for each in args[:5])
    return _flash_backward_sizes(grad, query, key, out)


# aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h, kernels/cutlassF.h


def efficient_forward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """The result in float32, where a head is too wide for registers and the result is of halves."""
    query, _, value = args[:3]
    wide = max(query.size(-1), value.size(-1)) > 128
    return [result[0].numel() * FLOAT] if wide and query.dtype in HALVES else []


# aten/src/ATen/native/transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h, kernels/cutlassB.h


def efficient_backward(arch: GpuArchitecture) -> Rule:
    """The sum of each row, and for each batch and head a workspace: tiles of the gradient of queries with a lock of 16
    bytes, and the gradients of keys and values for each part of the keys, where a head is too wide for registers."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        grad, query, key, value = (each.transpose(1, 2) for each in args[:4])
        batch, length, heads, head = query.shape
        half = query.dtype in HALVES
        rows, columns = _tile(arch, half, max(head, value.size(3)))
        tiles = ceil_divide(length, rows) * ceil_divide(head, columns) * (4 + rows * columns)
        sums = 0
        if half and max(head, value.size(3)) > 128:
            parts = max(1, min(_parts(batch * heads, key.size(1), columns), 200 // (batch * heads)))
            sums = parts * columns * (round_up(head, rows) + round_up(value.size(3), rows))
        delta = batch * heads * length * FLOAT
        workspace = batch * heads * round_up(tiles + sums, 4) * FLOAT
        product = batch * heads * length * value.size(3) * FLOAT  # gradient times result, of which delta is the sum
        own = [delta, workspace] if half or product < delta + workspace else [product]
        return [*contiguous_copies(grad), *own]

    return rule


def _tile(arch: GpuArchitecture, half: bool, head: int) -> tuple[int, int]:
    """Of the first kernel that takes such a head: 64 by 64, or larger with the shared memory of A100 and H100."""
    large = arch.capability in ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
    if half and 64 < head <= 96 and arch.capability in ((8, 6), (8, 9)):
        return 128, 64
    if not large or head <= 64:
        return 64, 64
    return (128, 128) if half and head <= 128 else (128, 64)


def _parts(heads: int, length_k: int, columns: int) -> int:
    return 1 if heads >= 256 and length_k <= 2 * columns else ceil_divide(length_k, columns)


# NVIDIA's cudnn-frontend 1.23, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h


def cudnn_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """The gradient of queries and the sum of each row, in float32, in one workspace: its frontend's part of it."""
    batch, heads, length, head = args[1].shape
    return [batch * heads * length * (head + 1) * FLOAT]


# ---- What other kernels allocate


# aten/src/ATen/native/transformers/attention.cpp
def safe_softmax(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """The softmax, what is masked, which rows are wholly so, and two numbers; the result is chosen from these."""
    one = result.element_size()
    return [result.nbytes, one, result.numel(), result.numel() // max(result.size(args[1]), 1), one]


# aten/src/ATen/native/cuda/SoftMax.cu
def softmax_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """The gradient times the output."""
    grad, output = args[:2]
    return [grad.numel() * max(grad.element_size(), output.element_size()), *contiguous_copies(output)]


def log_softmax_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    return contiguous_copies(*args[:2])


# aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu
def embedding_backward(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Above 3072 tokens: sorted and original positions, where segments of one token begin, how many parts of at most
    ten rows each has and where those begin, and a row of float32 for each part."""
    grad, indices, weights, _, by_frequency = args[:5]
    count, one = indices.numel(), indices.element_size()
    copies = contiguous_copies(grad)
    if count <= 3072 and not by_frequency:
        return copies
    segments = min(count, weights)
    parts = count // 10 + segments
    row = grad.size(-1) * (FLOAT if grad.dtype in HALVES else grad.element_size())
    counted = [count * one] if by_frequency else []
    return [
        *copies,
        *(count * one, count * one, *counted, count * one, 8),
        *(segments * one, segments * one, 8, parts * one, parts * row),
    ]


# aten/src/ATen/native/cuda/Indexing.cu
def index_put(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Accumulating sorts: linear positions, the values if they were expanded, sorted and original positions, a range,
    and the sort's second buffers of keys and values. Without accumulation nothing."""
    tensor, indices, values = args[:3]
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulates or not given or any(each.dtype in (torch.bool, torch.uint8) for _, each in given):
        return []
    sizes = zip_longest(*(reversed(each.shape) for _, each in given), fillvalue=1)  # as they broadcast
    count = math.prod(map(max, sizes))
    dims = [dim for dim, _ in given]
    kept = [size for dim, size in enumerate(tensor.shape) if dim not in dims]
    adjacent = dims[-1] - dims[0] == len(dims) - 1
    slice_ = math.prod(tensor.shape[dims[-1] + 1 :] if adjacent else kept)
    full = count * math.prod(kept)
    expanded = values.numel() != full or not values.is_contiguous()
    bits = max((tensor.numel() - 1) // max(slice_, 1), 1).bit_length()
    copies = [full * values.element_size()] if expanded else []
    return [*contiguous_copies(tensor), 8 * count, *copies, *[8 * count] * 3, *_radix_sort(8, 8, count, bits)]


# NVIDIA's CUB, device/dispatch/dispatch_radix_sort.cuh
def _radix_sort(key: int, value: int, count: int, bits: int) -> list[int]:
    """Of eight bits a pass; more than one needs second buffers."""
    return [(key + value) * count] if bits > 8 else []


# aten/src/ATen/native/cuda/Sort.h, SortStable.cu
def sort(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """Above 4096 in a row. One row: its positions; a few rows: positions with rows, before and after, and the keys."""
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    length = tensor.size(dim) if tensor.dim() else 1
    if length <= 4096:
        return []
    count, key = tensor.numel(), tensor.element_size()
    rows = count // length
    if rows == 1 or length >= 1_000_000:
        return [8 * length, *_radix_sort(key, 8, length, 8 * key)]
    if rows < 128:
        return [8 * count, 8 * count, key * count, *_radix_sort(key, 8, count, 8 * key)]
    return [8 * count, *_radix_sort(key, 8, count, 16)]  # by segments: second buffers for keys of any width


# aten/src/ATen/native/Distributions.cpp
def multinomial(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """Without replacement, or one: numbers to divide the probabilities by; the values of the largest if several."""
    weights, samples = args[:2]
    replaces = args[2] if len(args) > 2 else kwargs.get("replacement", False)
    if replaces and samples != 1:
        return []
    return [weights.nbytes] + ([result.numel() * weights.element_size()] if samples != 1 else [])


# aten/src/ATen/native/cuda/Indexing.cu, IndexKernel.cpp
def masked_scatter(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
    """For each place how many before it are masked, and the mask if it was expanded."""
    tensor, mask = args[:2]
    full = mask.shape == tensor.shape and mask.is_contiguous()
    return [8 * tensor.numel(), *([] if full else [tensor.numel()])]


# aten/src/ATen/native/cuda/ForeachReduceOp.cu, MultiTensorApply.cuh
def foreach_norm(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """One number for each chunk of 65536, as many for each tensor as the largest has."""
    tensors = args[0]
    order = float(args[1]) if len(args) > 1 else 2.0
    one_kind = len({(each.dtype, each.device) for each in tensors}) == 1
    if not one_kind or not tensors[0].is_floating_point() or order not in (1.0, 2.0, math.inf):
        return []
    dtype = kwargs.get("dtype") or (args[2] if len(args) > 2 else None) or tensors[0].dtype
    chunks = max(ceil_divide(each.numel(), 65536) for each in tensors)
    return [len(tensors) * chunks * (FLOAT if dtype in HALVES else dtype.itemsize)]


# aten/src/ATen/native/cuda/layer_norm_kernel.cu
def norm_backward(arch: GpuArchitecture, learned: Callable[[Sequence[Any]], Sequence[Tensor | None]]) -> Rule:
    """Of many short rows: a sum for each block of rows, of each parameter that learns."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        grad, tensor, shape = args[:3]
        width = math.prod(shape)
        rows = tensor.numel() // max(width, 1)
        copies = contiguous_copies(grad, tensor)
        if rows <= 65536 or width // 32 >= arch.processors // 2:
            return copies
        blocks = min(32768 // ceil_divide(width, 32), ceil_divide(rows, 32))
        parameters = [
            each for each, learns in zip(learned(args), args[-1][1:], strict=True) if each is not None and learns
        ]
        return [*copies, *(blocks * width * each.element_size() for each in parameters)]

    return rule


# ---- Reductions
# aten/src/ATen/native/cuda/Reduce.cuh, TensorIterator.cpp, ReduceOpsUtils.h


@dataclass(frozen=True, slots=True)
class _Dim:
    size: int
    stride: int  # in the input
    kept: int  # its stride in the result


def _reduction(arch: GpuArchitecture, tensor: Tensor, reduced: Sequence[int], number: int, vector: int) -> list[int]:
    """Where several blocks share a result: room for what each found, and a counter for each column of blocks.

    number is of bytes accumulated in, vector how many neighbours a thread loads. If neighbours are different results,
    the room is as many times larger as a block is wide, though no more than one in so many is used.
    """
    inner, outer = _dims(tensor, set(reduced))
    if tensor.numel() == 0 or not inner:
        return []
    inner, outer = _within_32_bits(inner, outer, tensor.element_size())
    results, inputs = (math.prod(each.size for each in dims) for dims in (outer, inner))
    along = not outer or inner[0].stride < outer[0].stride  # a thread's neighbours are of one result
    width_limit, height_limit = (inputs, results) if along else (results, inputs)
    together = 1
    if along and inner[0].stride == 1 and len(inner) == 1 and inputs >= 128:
        width_limit //= vector
    elif not along and outer[0].stride == 1:
        together = _aligned(tensor, inner, outer)
        width_limit //= together
    width, height = _block(width_limit, height_limit, 512 // together)
    step = width if along else 1
    outputs = 1 if along else width
    shares = ceil_divide(inputs, step) >= min(16 * height, 256)
    if shares:
        step *= height
    else:
        outputs *= height
    columns = ceil_divide(results // together, outputs)
    target = arch.processors * (arch.threads // (width * height))
    each = ceil_divide(inputs, step)
    if not shares or each < 256 or columns > target:
        return []
    blocks = max(min(ceil_divide(target, columns), ceil_divide(each, 16)), ceil_divide(each, 256))
    return [number * results * blocks * (1 if along else width * together), 4 * columns] if blocks > 1 else []


def _dims(tensor: Tensor, reduced: set[int]) -> tuple[list[_Dim], list[_Dim]]:
    """Reduced and kept, from the fastest on, joined where one goes on as another ends."""
    kept, dims = 1, []
    for dim in reversed(range(tensor.dim())):
        size = tensor.size(dim)
        dims.append((dim, _Dim(size, tensor.stride(dim), 0 if dim in reduced else kept)))
        kept *= 1 if dim in reduced else size
    inner = sorted((each for dim, each in dims if dim in reduced and each.size > 1), key=lambda each: each.stride)
    outer = [each for dim, each in dims if dim not in reduced and each.size > 1]
    return _joined(inner), _joined(outer)


def _joined(dims: list[_Dim]) -> list[_Dim]:
    joined: list[_Dim] = []
    for each in dims:
        last = joined[-1] if joined else None
        if last and last.size * last.stride == each.stride and last.size * last.kept == each.kept:
            joined[-1] = _Dim(last.size * each.size, last.stride, last.kept)
        else:
            joined.append(each)
    return joined


def _within_32_bits(inner: list[_Dim], outer: list[_Dim], one: int) -> tuple[list[_Dim], list[_Dim]]:
    """The half, quarter, ... that one launch takes of what reaches over more than 2 GiB."""
    inner, outer = list(inner), list(outer)
    while sum((each.size - 1) * each.stride * one for each in inner + outer) >= 2**31:
        dims = max((inner, outer), key=lambda dims: max(((each.size - 1) * each.stride for each in dims), default=0))
        at = max(range(len(dims)), key=lambda at: (dims[at].size - 1) * dims[at].stride)
        dims[at] = _Dim(ceil_divide(dims[at].size, 2), dims[at].stride, dims[at].kept)
    return inner, outer


def _aligned(tensor: Tensor, inner: list[_Dim], outer: list[_Dim]) -> int:
    """How many neighbouring results a thread can load at once: 4, 2 or 1."""
    numbers = [tensor.storage_offset(), outer[0].size, *(each.stride for each in [*inner, *outer[1:]])]
    return next(together for together in (4, 2, 1) if all(number % together == 0 for number in numbers))


def _block(width_limit: int, height_limit: int, threads: int) -> tuple[int, int]:
    widest, highest = (
        threads if limit >= threads else 1 << max(limit, 1).bit_length() - 1 for limit in (width_limit, height_limit)
    )
    height = min(highest, threads // min(widest, 32))
    return min(widest, threads // height), height


def _every(tensor: Tensor, dim: Any) -> list[int]:
    """The dimensions that are reduced: one, some, or all."""
    dims = [dim] if isinstance(dim, int) else dim
    return [each % tensor.dim() for each in dims] if dims and tensor.dim() else list(range(tensor.dim()))


def sum_or_mean(arch: GpuArchitecture, has_dim: bool) -> Rule:
    """ReduceSumProdKernel.cu, ReduceMomentKernel.cu. What is not of the result's type is first converted, except halves
    to float32."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
        tensor, wanted = args[0], result.dtype
        number = FLOAT if wanted in HALVES else result.element_size()
        converts = tensor.dtype != wanted and not (tensor.dtype in HALVES and wanted == torch.float32)
        size = result.element_size() if converts else tensor.element_size()
        dims = _every(tensor, args[1] if has_dim and len(args) > 1 else kwargs.get("dim"))
        own = _reduction(arch, tensor, dims, number, 8 if size == 2 else 4)
        return [*([tensor.numel() * size] if converts else []), *own]

    return rule


def vector_norm(arch: GpuArchitecture) -> Rule:
    """ReduceNormKernel.cu."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
        number = FLOAT if result.dtype in HALVES else result.element_size()
        return _reduction(arch, args[0], _every(args[0], args[2] if len(args) > 2 else kwargs.get("dim")), number, 4)

    return rule


def argmax(arch: GpuArchitecture) -> Rule:
    """ReduceArgMaxKernel.cu: a number and its place."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> Sequence[int]:
        return _reduction(arch, args[0], _every(args[0], args[1] if len(args) > 1 else kwargs.get("dim")), 16, 4)

    return rule


# ---- All of them


def temporaries(arch: GpuArchitecture) -> Mapping[torch._ops.OpOverload, Rule]:
    """For each operator: the bytes of what its kernel allocates beside its results, all freed when it ends."""
    rules: dict[str, Rule] = {
        "_safe_softmax": safe_softmax,
        "_softmax_backward_data": softmax_backward,
        "_log_softmax_backward_data": log_softmax_backward,
        "embedding_dense_backward": embedding_backward,
        "index_put": index_put,
        "index_put_": index_put,
        "_index_put_impl_": index_put,
        "sort": sort,
        "sort.stable": sort,
        "multinomial": multinomial,
        "masked_scatter": masked_scatter,
        "masked_scatter_": masked_scatter,
        "_foreach_norm.Scalar": foreach_norm,
    }
    if arch.vendor == "nvidia":
        rules |= {
            "_scaled_dot_product_flash_attention": flash_forward(arch),
            "_scaled_dot_product_flash_attention_backward": flash_backward,
            "_scaled_dot_product_efficient_attention": efficient_forward,
            "_scaled_dot_product_efficient_attention_backward": efficient_backward(arch),
            "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
            "native_layer_norm_backward": norm_backward(arch, lambda args: args[5:7]),
            "_fused_rms_norm_backward": norm_backward(arch, lambda args: args[4:5]),
            "sum": sum_or_mean(arch, has_dim=False),
            "sum.dim_IntList": sum_or_mean(arch, has_dim=True),
            "mean": sum_or_mean(arch, has_dim=False),
            "mean.dim": sum_or_mean(arch, has_dim=True),
            "linalg_vector_norm": vector_norm(arch),
            "argmax": argmax(arch),
        }
    return {op: rule for name, rule in rules.items() if (op := _operator(name))}


def _operator(name: str) -> torch._ops.OpOverload | None:
    """None if this release has none of that name."""
    packet, _, overload = name.partition(".")
    op: torch._ops.OpOverload | None = getattr(getattr(aten, packet, None), overload or "default", None)
    return op
