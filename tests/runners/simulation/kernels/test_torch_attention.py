"""Which attention kernel is selected, and attention on tensors without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from runners.simulation.kernels.torch_attention import attention, attention_kernel
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from tests.runners.simulation.kernels.operators import ADA, AMD, AMPERE, BLACKWELL, HOPPER, TURING, VOLTA, aten, meta


def selected(
    arch: GpuArchitecture,
    query: Tensor,
    key: Tensor | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> str:
    key = query if key is None else key
    return attention_kernel(arch, query, key, key, mask, dropout_p, is_causal, enable_gqa)


@pytest.mark.parametrize(
    ("arch", "kernel"),
    [(VOLTA, "math"), (TURING, "math"), (AMPERE, "flash"), (ADA, "flash"), (HOPPER, "cudnn"), (AMD, "flash")],
)
def test_bfloat16_selects_the_first_kernel_that_the_card_supports(arch: GpuArchitecture, kernel: str) -> None:
    assert selected(arch, meta(2, 8, 128, 64), is_causal=True) == kernel


@pytest.mark.parametrize("arch", [VOLTA, TURING, AMPERE, HOPPER])
def test_float32_selects_the_efficient_kernel_and_float64_math(arch: GpuArchitecture) -> None:
    assert selected(arch, meta(2, 8, 128, 64, dtype=torch.float32)) == "efficient"
    assert selected(arch, meta(2, 8, 128, 64, dtype=torch.float64)) == "math"


def test_flash_takes_no_mask() -> None:
    query, mask = meta(2, 8, 128, 64), meta(128, 128)
    assert selected(AMPERE, query, mask=mask) == "efficient"
    assert selected(HOPPER, query, mask=mask) == "cudnn"
    assert selected(HOPPER, query, mask=meta(1, 128, 128)) == "efficient"
    assert selected(HOPPER, query, mask=meta(128, 128, grad=True)) == "efficient"


def test_grouped_heads_with_a_mask_select_math() -> None:
    query, key, mask = meta(2, 8, 128, 64), meta(2, 2, 128, 64), meta(128, 128)
    assert selected(AMPERE, query, key, enable_gqa=True) == "flash"
    assert selected(AMPERE, query, key, mask, enable_gqa=True) == "math"
    assert selected(HOPPER, query, key, mask, enable_gqa=True) == "cudnn"


def test_the_width_of_a_head_selects_the_kernel() -> None:
    assert selected(AMPERE, meta(2, 8, 128, 256)) == "flash"
    assert selected(AMPERE, meta(2, 8, 128, 264)) == "efficient"
    assert selected(AMPERE, meta(2, 8, 128, 65)) == "flash"
    assert selected(HOPPER, meta(2, 8, 128, 65)) == "flash"
    assert selected(HOPPER, meta(2, 8, 128, 256)) == "cudnn"
    assert selected(BLACKWELL, meta(2, 8, 128, 256)) == "flash"
    assert selected(AMPERE, meta(2, 8, 128, 66, dtype=torch.float32)) == "math"
    assert selected(TURING, meta(2, 8, 128, 66, dtype=torch.float32)) == "efficient"
    assert selected(TURING, meta(2, 8, 128, 66, dtype=torch.float16)) == "math"


def test_training_with_wide_heads_does_not_select_flash_on_consumer_cards() -> None:
    wide, widest = meta(2, 8, 128, 208, grad=True), meta(2, 8, 128, 256, grad=True)
    assert [selected(AMPERE, wide), selected(ADA, wide), selected(ADA, wide.detach())] == [
        "flash",
        "efficient",
        "flash",
    ]
    assert [selected(ADA, widest), selected(ADA, widest, dropout_p=0.1)] == ["flash", "efficient"]
    with torch.no_grad():
        assert selected(ADA, wide) == "flash"


def test_causal_with_unequal_lengths_does_not_select_flash() -> None:
    assert selected(AMPERE, meta(2, 8, 16, 64), meta(2, 8, 128, 64), is_causal=True) == "efficient"
    assert selected(AMPERE, meta(2, 8, 16, 64), meta(2, 8, 128, 64)) == "flash"


def test_cudnn_needs_dropout_in_sixteenths_and_more_than_one_key() -> None:
    query = meta(2, 8, 128, 64)
    assert selected(HOPPER, query, dropout_p=0.1) == "flash"
    assert selected(HOPPER, query, dropout_p=0.125) == "cudnn"
    assert selected(HOPPER, meta(2, 8, 1, 64)) == "flash"


def test_tensors_without_four_dense_dimensions_select_math() -> None:
    assert selected(AMPERE, meta(8, 128, 64)) == "math"
    assert selected(AMPERE, meta(2, 8, 0, 64)) == "math"
    assert selected(AMPERE, meta(2, 8, 64, 128).transpose(2, 3)) == "math"


def test_a_disabled_backend_is_not_selected() -> None:
    query = meta(2, 8, 128, 64)
    with sdpa_kernel(SDPBackend.MATH):
        assert selected(HOPPER, query) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        assert selected(HOPPER, query) == "efficient"
        with pytest.raises(RuntimeError, match="No available kernel"):
            selected(HOPPER, meta(2, 8, 128, 64, dtype=torch.float64))


# ---- Attention without data


class Recorded(TorchDispatchMode):
    """Keeps the operators that were called."""

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
def test_attention_returns_the_shape_of_the_query_and_has_gradients(
    arch: GpuArchitecture, head: int, masked: bool, forward: str
) -> None:
    query, key, value = (meta(2, 4, length, head, grad=True) for length in (20, 30, 30))
    mask = meta(20, 30, dtype=torch.bool) if masked else None
    with Recorded() as recorded:
        out = attention(arch, query, key, value, mask)
        out.backward(torch.empty_like(out))
    assert out.shape == query.shape
    assert out.dtype == query.dtype
    assert [each.grad.shape for each in (query, key, value)] == [each.shape for each in (query, key, value)]
    names = [op.overloadpacket.__name__ for op in recorded.ops]
    assert forward in names
    assert forward.startswith("_safe") or f"{forward}_backward" in names


@pytest.mark.parametrize(("arch", "statistics"), [(AMPERE, (2, 8, 20)), (HOPPER, (2, 8, 20, 1))])
def test_the_statistics_of_grouped_heads_are_saved(arch: GpuArchitecture, statistics: tuple[int, ...]) -> None:
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
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "boolean", "scale", "negative"])
def test_math_computes_the_same_as_the_operator(dtype: torch.dtype, case: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 5, 8, dtype=dtype) for heads in (4, 2, 2))
    mask = torch.randn(5, 5, dtype=dtype) if case == "mask" else None
    mask = torch.ones(5, 5, dtype=torch.bool).tril() if case == "boolean" else mask
    scale = {"scale": 0.3, "negative": -0.3}.get(case)
    with sdpa_kernel(SDPBackend.MATH):
        ours = attention(AMPERE, query, key, value, mask, 0.0, case == "causal", scale, True)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, case == "causal", scale=scale, enable_gqa=True
        )
    assert torch.equal(ours, theirs)


def test_math_adds_its_mask_in_place() -> None:
    with Recorded() as recorded:
        attention(VOLTA, *(meta(2, 4, 16, 64) for _ in range(3)), is_causal=True)
    assert aten.add_.Tensor in recorded.ops
    assert aten.add.Tensor not in recorded.ops
