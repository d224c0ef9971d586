"""Memory of CUDA kernels compared with figures computed by hand, and attention on tensors without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from runners.simulation.kernels.torch_attention import attention, attention_kernel
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture, why_unsupported
from runners.simulation.kernels.torch_products import is_matmul, workspace_bytes
from runners.simulation.kernels.torch_temporaries import temporaries

aten = torch.ops.aten
AMPERE, ADA, HOPPER = (GpuArchitecture("nvidia", each) for each in ((8, 0), (8, 9), (9, 0)))
TURING, VOLTA, BLACKWELL = (GpuArchitecture("nvidia", each) for each in ((7, 5), (7, 0), (10, 0)))
AMD = GpuArchitecture("amd", None)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def sizes(op: Any, *args: Any, arch: GpuArchitecture = AMPERE, result: Any = None, **kwargs: Any) -> list[int]:
    """The bytes of an operator's temporaries by its rule. The operator runs unless its `result` is given."""
    result = op(*args, **kwargs) if result is None else result
    return list(temporaries(arch)[op](args, kwargs, result))


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


# ---- Which kernel


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


# ---- Memory of the attention kernels

FLASH, FLASH_BACKWARD = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
)
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def test_few_queries_split_the_keys() -> None:
    # 8 groups, 4096 keys in 32 blocks of 128, 216 blocks at once: 16 parts use 128 of 216 and 32 parts 256 of 432, both
    # 59 %. The numbers between divide the blocks no differently, and 11 parts use 41 %.
    query, key = meta(1, 32, 1, 128), meta(1, 8, 4096, 128)
    rows = 16 * 8 * 4
    assert sizes(FLASH, query, key, key, 0.0, False, scale=0.1) == [rows * 4, rows * 128 * 4]
    # 114 multiprocessors run 228 blocks at once: again 16 parts. With 4 multiprocessors nothing is split.
    assert sizes(FLASH, query, key, key, arch=GpuArchitecture("nvidia", (9, 0), 114)) == [rows * 4, rows * 128 * 4]
    assert sizes(FLASH, query, key, key, arch=GpuArchitecture("nvidia", (8, 6), 4)) == []


def test_with_many_queries_or_dropout_the_keys_are_not_split() -> None:
    query = meta(8, 32, 1024, 128)
    assert sizes(FLASH, query, query, query, 0.0, True) == []
    assert sizes(FLASH, meta(1, 8, 1, 128), query[:1, :8], query[:1, :8], 0.1, False) == [16]


def test_flash_backward_has_sums_in_float32_and_the_gradients_of_every_head() -> None:
    query, key = meta(2, 200, 8, 96).transpose(1, 2), meta(2, 200, 2, 96).transpose(1, 2)
    rows = 2 * 8 * 256
    grads = [2 * 200 * 8 * 96 * 2] * 2
    args = (query, query, key, key, query)
    assert sizes(FLASH_BACKWARD, *args, result=()) == [rows * 4, rows * 96 * 4, *grads]
    plain = meta(2, 8, 200, 96)
    copies = [2 * 200 * 8 * 96 * 2] * 2
    args = (plain, query, query, query, plain)
    assert sizes(FLASH_BACKWARD, *args, result=()) == [*copies, rows * 4, rows * 96 * 4]


def test_the_efficient_kernel_keeps_a_wide_result_in_float32() -> None:
    op = aten._scaled_dot_product_efficient_attention.default
    wide, narrow = meta(2, 8, 64, 256), meta(2, 8, 64, 128)
    assert sizes(op, wide, wide, wide, None, False) == [2 * 8 * 64 * 256 * 4]
    assert sizes(op, narrow, narrow, narrow, None, False) == []
    assert sizes(op, wide.float(), wide.float(), wide.float(), None, False) == []


@pytest.mark.parametrize(
    ("arch", "head", "dtype", "workspace"),
    [
        (AMPERE, 64, torch.bfloat16, 16 * 16 * (4 + 64 * 64) * 4),
        (AMPERE, 64, torch.float32, 16 * 16 * (4 + 64 * 64) * 4),
        (AMPERE, 128, torch.bfloat16, 16 * 8 * (4 + 128 * 128) * 4),
        (ADA, 96, torch.bfloat16, 16 * 8 * 2 * (4 + 128 * 64) * 4),
        (AMPERE, 256, torch.bfloat16, 16 * (8 * 4 * (4 + 128 * 64) + 12 * 64 * (256 + 256)) * 4),  # 200 // 16 parts
    ],
)
def test_efficient_backward_has_tiles_of_the_gradient_of_queries(
    arch: GpuArchitecture, head: int, dtype: torch.dtype, workspace: int
) -> None:
    tensor = meta(2, 1024, 8, head, dtype=dtype).transpose(1, 2)
    assert sizes(EFFICIENT_BACKWARD, *[tensor] * 4, arch=arch, result=()) == [2 * 8 * 1024 * 4, workspace]
    plain = meta(2, 8, 1024, head, dtype=dtype)
    copy = plain.numel() * plain.element_size()
    assert sizes(EFFICIENT_BACKWARD, plain, *[tensor] * 3, arch=arch, result=())[0] == copy


def test_cudnn_backward_has_the_gradient_of_queries_in_float32() -> None:
    tensor = meta(2, 8, 1024, 128)
    op = aten._scaled_dot_product_cudnn_attention_backward.default
    assert sizes(op, *[tensor] * 4, arch=HOPPER, result=()) == [2 * 8 * 1024 * 129 * 4]


# ---- Memory of other kernels


def test_a_safe_softmax_holds_two_results_and_a_mask() -> None:
    scores = meta(2, 4, 16, 32, dtype=torch.float32)
    assert sizes(aten._safe_softmax.default, scores, -1) == [16384, 4, 4096, 128, 4]


def test_softmax_backward_multiplies_first_and_log_softmax_does_not() -> None:
    scores = meta(2, 4, 16, 32)
    assert sizes(aten._softmax_backward_data.default, scores, scores, -1, torch.bfloat16) == [8192]
    assert sizes(aten._log_softmax_backward_data.default, scores, scores, -1, torch.bfloat16) == []
    turned = meta(2, 4, 32, 16).transpose(2, 3)
    assert sizes(aten._log_softmax_backward_data.default, turned, scores, -1, torch.bfloat16) == [8192]


def test_embedding_backward_sorts_above_3072_tokens() -> None:
    op = aten.embedding_dense_backward.default
    grad, tokens = meta(4, 1024, 512), meta(4, 1024, dtype=torch.int64)
    assert sizes(op, grad[:3], tokens[:3], 32000, -1, False) == []
    one = 4096 * 8
    parts = 409 + 4096  # of ten rows each, and one incomplete part a token
    assert sizes(op, grad, tokens, 32000, -1, False) == [one] * 3 + [8] + [one] * 2 + [8, parts * 8, parts * 512 * 4]
    few = 409 + 100
    assert sizes(op, grad, tokens, 100, -1, False) == [one] * 3 + [8, 800, 800, 8, few * 8, few * 512 * 4]


def test_index_put_sorts_to_accumulate() -> None:
    op = aten.index_put_.default
    tensor, where, values = (meta(1000, 64), meta(5000, dtype=torch.int64), meta(5000, 64))
    assert sizes(op, tensor, [where], values, True) == [40000] * 4 + [80000]
    assert sizes(op, tensor, [where], values) == []
    assert sizes(op, tensor, [where], meta(1, 64), True) == [40000, 5000 * 64 * 2] + [40000] * 3 + [80000]
    assert sizes(op, tensor[:256], [where], values, True) == [40000] * 4  # one pass of eight bits


def test_sort_keeps_positions_and_second_buffers_above_4096() -> None:
    op = aten.sort.default
    row = 128256
    assert sizes(op, meta(8, 4096), -1) == []
    assert sizes(op, meta(1, row, dtype=torch.float32), -1, True) == [8 * row, 12 * row]
    assert sizes(op, meta(4, row, dtype=torch.float32)) == [32 * row, 32 * row, 16 * row, 48 * row]
    assert sizes(op, meta(200, 5000)) == [8_000_000, 10_000_000]
    assert sizes(aten.sort.stable, meta(200, 5000), stable=True, dim=1) == [8_000_000, 10_000_000]


def test_sampling_draws_a_random_number_for_each_weight() -> None:
    weights = meta(4, 32000, dtype=torch.float32)
    assert sizes(aten.multinomial.default, weights, 1) == [512000]
    assert sizes(aten.multinomial.default, weights, 3, False) == [512000, 48]
    assert sizes(aten.multinomial.default, weights, 3, True) == []


def test_masked_scatter_counts_the_masked_elements_before_each() -> None:
    tensor, mask = meta(2, 10, 64), meta(2, 10, 1, dtype=torch.bool)
    assert sizes(aten.masked_scatter.default, tensor, mask.expand(2, 10, 64), tensor) == [10240, 1280]
    assert sizes(aten.masked_scatter.default, tensor, meta(2, 10, 64, dtype=torch.bool), tensor) == [10240]


def test_norms_of_a_list_keep_a_number_for_each_chunk() -> None:
    tensors = [meta(100), meta(200_000)]
    assert sizes(aten._foreach_norm.Scalar, tensors, 2.0, result=()) == [2 * 4 * 4]
    assert sizes(aten._foreach_norm.Scalar, tensors, 3.0, result=()) == []


def test_the_backward_of_a_norm_sums_many_short_rows_by_blocks() -> None:
    many, few, weight = meta(131072, 512), meta(1024, 512), meta(512)
    layer, rms = aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default
    sums = 2048 * 512 * 2
    rest = ([512], None, None, weight, weight, [True, True, True])
    assert sizes(layer, many, many, *rest, result=()) == [sums, sums]
    assert sizes(layer, few, few, *rest, result=()) == []
    assert sizes(rms, many, many, [512], None, weight, [True, True], result=()) == [sums]
    assert sizes(rms, many, many, [512], None, weight, [True, False], result=()) == []


# ---- Reductions


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [(AMPERE, 54), (HOPPER, 66), (GpuArchitecture("nvidia", (9, 0), 114), 57), (TURING, 10)],
)
def test_a_sum_of_columns_has_a_buffer_for_every_thread(arch: GpuArchitecture, blocks: int) -> None:
    # 8192 rows, 4096 columns: a thread has 4 columns and a block 32 x 4 threads, so there are 32 columns of blocks,
    # each with as many blocks as fill the card: 108 x 2048 / 128 / 32 on an A100, 40 x 1024 / 128 / 32 on a T4.
    buffer = 4 * 4096 * blocks * 32 * 4
    assert sizes(aten.sum.dim_IntList, meta(8192, 4096), [0], arch=arch) == [buffer, 4 * 32]
    assert sizes(aten.sum.dim_IntList, meta(4, 2048, 4096), [0, 1], arch=arch) == [buffer, 4 * 32]


def test_a_sum_of_everything_has_one_number_for_each_block() -> None:
    tensor = meta(4096, 4096, dtype=torch.float32)
    assert sizes(aten.sum.default, tensor) == [4 * 432, 4]  # 512 threads: 4 blocks on each of 108
    assert sizes(aten.mean.default, tensor) == [4 * 432, 4]
    assert sizes(aten.linalg_vector_norm.default, tensor) == [4 * 432, 4]


def test_sums_of_rows_need_no_buffer() -> None:
    assert sizes(aten.mean.dim, meta(8, 1024, 4096), [-1], True) == []
    assert sizes(aten.sum.dim_IntList, meta(8, 0), [0]) == []
    assert sizes(aten.sum.default, meta()) == []


def test_counting_a_mask_converts_it_first() -> None:
    assert sizes(aten.sum.dim_IntList, meta(8, 1024, dtype=torch.bool), [1]) == [65536]
    assert sizes(aten.sum.dim_IntList, meta(8, 1024), [1], dtype=torch.float32) == []


def test_argmax_keeps_a_value_and_an_index_for_each_block() -> None:
    assert sizes(aten.argmax.default, meta(1, 128256, dtype=torch.float32), -1) == []
    # 512 threads with 297 elements each, at least 16 a block: 19 blocks.
    assert sizes(aten.argmax.default, meta(1, 151936, dtype=torch.float32), -1) == [16 * 19, 4]


def test_a_sum_over_more_than_two_gibibytes_runs_in_halves() -> None:
    # Half of 131072 rows, 128 columns of blocks; 16384 rows a thread, at most 256 a block: 64 blocks.
    assert sizes(aten.sum.dim_IntList, meta(131072, 16384), [0]) == [4 * 16384 * 64 * 32 * 4, 4 * 128]


class Charged(TorchDispatchMode):
    """Applies the rules to every operator, as the tracer does."""

    def __init__(self, arch: GpuArchitecture) -> None:
        super().__init__()
        self.rules = temporaries(arch)
        self.charged: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if rule := self.rules.get(func):
            self.charged[str(func)] = max(self.charged.get(str(func), 0), sum(rule(args, kwargs or {}, result)))
        return result


@pytest.mark.parametrize("arch", [VOLTA, AMPERE, HOPPER, AMD])
def test_the_rules_accept_the_arguments_of_a_training_step(arch: GpuArchitecture) -> None:
    with torch.device("meta"):
        embedding, norm, linear = torch.nn.Embedding(1000, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 1000)
        tokens = torch.zeros(8, 1024, dtype=torch.int64)
    parameters = [*embedding.parameters(), *norm.parameters(), *linear.parameters()]
    with Charged(arch) as charged:
        hidden = norm(embedding(tokens)).view(8, 1024, 8, 64).transpose(1, 2)
        hidden = attention(arch, hidden, hidden, hidden, is_causal=True).transpose(1, 2).reshape(8, 1024, 512)
        logits = linear(torch.nn.functional.rms_norm(hidden, [512], norm.weight))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        torch._foreach_norm([each.grad for each in parameters])
        torch.multinomial(logits[:, -1].softmax(-1).sort().values, 1).argmax()
    parts = 819 + 1000
    positions = 3 * 8192 * 8 + 8 + 2 * 1000 * 8 + 8 + parts * 8
    assert charged.charged["aten.embedding_dense_backward.default"] == positions + parts * 512 * 4
    assert charged.charged["aten._foreach_norm.Scalar"] == 5 * 8 * 4
    assert (charged.charged.get("aten.sum.dim_IntList", 0) > 0) == (arch is not AMD)


# ---- cuBLAS and dtypes


def test_the_cublas_workspace_is_larger_from_hopper_on() -> None:
    assert [workspace_bytes(each) for each in (VOLTA, AMPERE, ADA)] == [8519680] * 3
    assert [workspace_bytes(each) for each in (HOPPER, BLACKWELL)] == [33554432] * 2
    assert workspace_bytes(AMD) == 134217728


def test_products_use_a_cublas_handle_and_sums_do_not() -> None:
    assert all(map(is_matmul, (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.addmm.out)))
    assert not any(map(is_matmul, (aten.add.Tensor, aten.convolution.default)))


def test_a_card_does_not_compute_in_newer_dtypes() -> None:
    assert why_unsupported(AMPERE, torch.bfloat16) is None
    assert why_unsupported(TURING, torch.bfloat16) == (
        "bfloat16 needs compute capability 8.0, and this card has 7.5: torch only emulates it there"
    )
    assert "8.9" in (why_unsupported(AMPERE, torch.float8_e4m3fn) or "")
    assert why_unsupported(ADA, torch.float8_e4m3fn) is None
    assert why_unsupported(VOLTA, torch.float16) is None
    assert why_unsupported(AMD, torch.bfloat16) is None
