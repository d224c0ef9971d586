"""Rules of what CUDA kernels allocate: figures worked out by hand, and attention on tensors without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from runners.meters import torch_cuda_kernels as kernels
from runners.meters.torch_cuda_kernels import Architecture, attention, attention_kernel

aten = torch.ops.aten
AMPERE, ADA, HOPPER = (Architecture("nvidia", each) for each in ((8, 0), (8, 9), (9, 0)))
TURING, VOLTA, BLACKWELL = (Architecture("nvidia", each) for each in ((7, 5), (7, 0), (10, 0)))
AMD = Architecture("amd", None)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def of(op: Any, *args: Any, arch: Architecture = AMPERE, result: Any = None, **kwargs: Any) -> list[int]:
    result = op(*args, **kwargs) if result is None else result
    return list(kernels.temporaries(arch)[op](args, kwargs, result))


def chosen(
    arch: Architecture,
    query: Tensor,
    key: Tensor | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> str:
    key = query if key is None else key
    return attention_kernel(arch, query, key, key, mask, dropout_p, is_causal, enable_gqa)


# ---- Which kernel


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [(VOLTA, "math"), (TURING, "math"), (AMPERE, "flash"), (ADA, "flash"), (HOPPER, "cudnn"), (AMD, "flash")],
)
def test_bfloat16_takes_the_first_kernel_of_the_card(arch: Architecture, kernel: str) -> None:
    assert chosen(arch, meta(2, 8, 128, 64), is_causal=True) == kernel


@pytest.mark.parametrize("arch", [VOLTA, TURING, AMPERE, HOPPER])
def test_float32_is_for_the_efficient_kernel_and_float64_for_math(arch: Architecture) -> None:
    assert chosen(arch, meta(2, 8, 128, 64, dtype=torch.float32)) == "efficient"
    assert chosen(arch, meta(2, 8, 128, 64, dtype=torch.float64)) == "math"


def test_a_mask_is_not_for_flash() -> None:
    query, mask = meta(2, 8, 128, 64), meta(128, 128)
    assert chosen(AMPERE, query, mask=mask) == "efficient"
    assert chosen(HOPPER, query, mask=mask) == "cudnn"
    assert chosen(HOPPER, query, mask=meta(1, 128, 128)) == "efficient"
    assert chosen(HOPPER, query, mask=meta(128, 128, grad=True)) == "efficient"


def test_grouped_heads_with_a_mask_leave_math_alone() -> None:
    query, key, mask = meta(2, 8, 128, 64), meta(2, 2, 128, 64), meta(128, 128)
    assert chosen(AMPERE, query, key, enable_gqa=True) == "flash"
    assert chosen(AMPERE, query, key, mask, enable_gqa=True) == "math"
    assert chosen(HOPPER, query, key, mask, enable_gqa=True) == "cudnn"


def test_the_width_of_a_head_decides() -> None:
    assert chosen(AMPERE, meta(2, 8, 128, 256)) == "flash"
    assert chosen(AMPERE, meta(2, 8, 128, 264)) == "efficient"
    assert chosen(AMPERE, meta(2, 8, 128, 65)) == "flash"
    assert chosen(HOPPER, meta(2, 8, 128, 65)) == "flash"
    assert chosen(HOPPER, meta(2, 8, 128, 256)) == "cudnn"
    assert chosen(BLACKWELL, meta(2, 8, 128, 256)) == "flash"
    assert chosen(AMPERE, meta(2, 8, 128, 66, dtype=torch.float32)) == "math"
    assert chosen(TURING, meta(2, 8, 128, 66, dtype=torch.float32)) == "efficient"
    assert chosen(TURING, meta(2, 8, 128, 66, dtype=torch.float16)) == "math"


def test_training_with_wide_heads_is_not_for_flash_on_consumer_cards() -> None:
    wide, widest = meta(2, 8, 128, 208, grad=True), meta(2, 8, 128, 256, grad=True)
    assert [chosen(AMPERE, wide), chosen(ADA, wide), chosen(ADA, wide.detach())] == ["flash", "efficient", "flash"]
    assert [chosen(ADA, widest), chosen(ADA, widest, dropout_p=0.1)] == ["flash", "efficient"]
    with torch.no_grad():
        assert chosen(ADA, wide) == "flash"


def test_causal_with_unequal_lengths_is_not_for_flash() -> None:
    assert chosen(AMPERE, meta(2, 8, 16, 64), meta(2, 8, 128, 64), is_causal=True) == "efficient"
    assert chosen(AMPERE, meta(2, 8, 16, 64), meta(2, 8, 128, 64)) == "flash"


def test_cudnn_wants_dropout_in_sixteenths_and_more_than_one_key() -> None:
    query = meta(2, 8, 128, 64)
    assert chosen(HOPPER, query, dropout_p=0.1) == "flash"
    assert chosen(HOPPER, query, dropout_p=0.125) == "cudnn"
    assert chosen(HOPPER, meta(2, 8, 1, 64)) == "flash"


def test_tensors_that_are_not_batches_of_heads_are_for_math() -> None:
    assert chosen(AMPERE, meta(8, 128, 64)) == "math"
    assert chosen(AMPERE, meta(2, 8, 0, 64)) == "math"
    assert chosen(AMPERE, meta(2, 8, 64, 128).transpose(2, 3)) == "math"


def test_what_the_workload_switched_off_is_not_chosen() -> None:
    query = meta(2, 8, 128, 64)
    with sdpa_kernel(SDPBackend.MATH):
        assert chosen(HOPPER, query) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        assert chosen(HOPPER, query) == "efficient"
        with pytest.raises(RuntimeError, match="No available kernel"):
            chosen(HOPPER, meta(2, 8, 128, 64, dtype=torch.float64))


# ---- Attention without data


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("arch", "head", "masked", "forward"),
    [
        (AMPERE, 64, False, "_scaled_dot_product_flash_attention"),
        (AMPERE, 60, False, "_scaled_dot_product_flash_attention"),
        (AMPERE, 64, True, "_scaled_dot_product_efficient_attention"),
        (HOPPER, 64, False, "_scaled_dot_product_cudnn_attention"),
        (HOPPER, 64, True, "_scaled_dot_product_cudnn_attention"),
        (VOLTA, 64, False, "_safe_softmax"),
        (VOLTA, 64, True, "_safe_softmax"),
    ],
)
def test_attention_has_the_shape_of_the_query_and_differentiates(
    arch: Architecture, head: int, masked: bool, forward: str
) -> None:
    query, key, value = (meta(2, 4, length, head, grad=True) for length in (20, 30, 30))
    mask = meta(20, 30, dtype=torch.bool) if masked else None
    with Seen() as seen:
        out = attention(arch, query, key, value, mask)
        out.backward(torch.empty_like(out))
    assert out.shape == query.shape
    assert out.dtype == query.dtype
    assert [each.grad.shape for each in (query, key, value)] == [each.shape for each in (query, key, value)]
    names = [op.overloadpacket.__name__ for op in seen.ops]
    assert forward in names
    assert forward.startswith("_safe") or f"{forward}_backward" in names


@pytest.mark.parametrize(("arch", "statistics"), [(AMPERE, (2, 8, 20)), (HOPPER, (2, 8, 20, 1))])
def test_the_statistics_of_grouped_heads_are_saved(arch: Architecture, statistics: tuple[int, ...]) -> None:
    query, key = meta(2, 8, 20, 64, grad=True), meta(2, 2, 20, 64, grad=True)
    saved: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(tuple(each.shape)) or each, lambda x: x):
        out = attention(arch, query, key, key, is_causal=True, enable_gqa=True)
    assert statistics in saved
    out.sum().backward()
    assert key.grad is not None
    assert key.grad.shape == key.shape


def test_the_efficient_kernel_saves_rows_of_32_and_pads_its_mask() -> None:
    query, key = meta(2, 8, 20, 64, grad=True), meta(2, 8, 30, 64, grad=True)
    saved: list[tuple[Any, Any]] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: saved.append((tuple(each.shape), each.stride())) or each, lambda each: each
    ):
        attention(AMPERE, query, key, key, meta(20, 30))
    assert (2, 8, 32) in [shape for shape, _ in saved]
    assert ((2, 8, 20, 30), (0, 0, 32, 1)) in saved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["plain", "causal", "mask", "boolean", "scale", "negative"])
def test_math_computes_what_the_operator_does(dtype: torch.dtype, way: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 5, 8, dtype=dtype) for heads in (4, 2, 2))
    mask = torch.randn(5, 5, dtype=dtype) if way == "mask" else None
    mask = torch.ones(5, 5, dtype=torch.bool).tril() if way == "boolean" else mask
    scale = {"scale": 0.3, "negative": -0.3}.get(way)
    with sdpa_kernel(SDPBackend.MATH):
        ours = attention(AMPERE, query, key, value, mask, 0.0, way == "causal", scale, True)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, way == "causal", scale=scale, enable_gqa=True
        )
    assert torch.equal(ours, theirs)


def test_math_adds_its_mask_in_place() -> None:
    with Seen() as seen:
        attention(VOLTA, *(meta(2, 4, 16, 64) for _ in range(3)), is_causal=True)
    assert aten.add_.Tensor in seen.ops
    assert aten.add.Tensor not in seen.ops


# ---- What the kernels allocate


def test_few_queries_split_their_keys() -> None:
    # 8 groups, 4096 keys in 32 blocks of 128, 216 places: 16 parts use 128 of 216, 32 use 256 of 432, 59 % both;
    # what is between cuts no other way, and 11 parts use 41 %.
    query, key = meta(1, 32, 1, 128), meta(1, 8, 4096, 128)
    rows = 16 * 8 * 4
    assert of(aten._scaled_dot_product_flash_attention.default, query, key, key, 0.0, False, scale=0.1) == [
        rows * 4,
        rows * 128 * 4,
    ]
    many = meta(8, 32, 1024, 128)
    assert of(aten._scaled_dot_product_flash_attention.default, many, many, many, 0.0, True) == []


def test_flash_backward_takes_sums_in_float32_and_the_grads_of_every_head() -> None:
    query, key = meta(2, 200, 8, 96).transpose(1, 2), meta(2, 200, 2, 96).transpose(1, 2)
    rows = 2 * 8 * 256
    grads = [2 * 200 * 8 * 96 * 2] * 2
    args = (query, query, key, key, query)
    rule = kernels.TEMPORARIES[aten._scaled_dot_product_flash_attention_backward.default]
    assert rule(args, {}, None) == [rows * 4, rows * 96 * 4, *grads]
    plain = meta(2, 8, 200, 96)
    copies = [2 * 200 * 8 * 96 * 2] * 2
    assert rule((plain, query, query, query, plain), {}, None) == [*copies, rows * 4, rows * 96 * 4]


def test_a_safe_softmax_holds_two_results_and_a_mask() -> None:
    scores = meta(2, 4, 16, 32, dtype=torch.float32)
    assert of(aten._safe_softmax.default, scores, -1) == [16384, 4, 4096, 128, 4]


# ---- cuBLAS and types


def test_the_workspace_of_cublas_grew_with_hopper() -> None:
    assert [kernels.workspace_bytes(each) for each in (VOLTA, AMPERE, ADA)] == [8519680] * 3
    assert [kernels.workspace_bytes(each) for each in (HOPPER, BLACKWELL)] == [33554432] * 2
    assert kernels.workspace_bytes(AMD) == 134217728


def test_products_take_a_handle_and_sums_do_not() -> None:
    assert all(map(kernels.is_matmul, (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.addmm.out)))
    assert not any(map(kernels.is_matmul, (aten.add.Tensor, aten.convolution.default)))


def test_a_card_lacks_the_types_that_came_after_it() -> None:
    assert kernels.lacks(AMPERE, torch.bfloat16) is None
    assert kernels.lacks(TURING, torch.bfloat16) == (
        "bfloat16 needs compute capability 8.0, and this card has 7.5: torch only emulates it there"
    )
    assert "8.9" in (kernels.lacks(AMPERE, torch.float8_e4m3fn) or "")
    assert kernels.lacks(ADA, torch.float8_e4m3fn) is None
    assert kernels.lacks(VOLTA, torch.float16) is None
    assert kernels.lacks(AMD, torch.bfloat16) is None
