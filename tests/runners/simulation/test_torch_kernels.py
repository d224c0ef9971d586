"""Rules of what CUDA kernels allocate: figures worked out by hand, and attention on tensors without data."""

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


def of(op: Any, *args: Any, arch: GpuArchitecture = AMPERE, result: Any = None, **kwargs: Any) -> list[int]:
    """What the rule of an operator says, of the operator as it runs on these, unless its result is given."""
    result = op(*args, **kwargs) if result is None else result
    return list(temporaries(arch)[op](args, kwargs, result))


def chosen(
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
def test_bfloat16_takes_the_first_kernel_of_the_card(arch: GpuArchitecture, kernel: str) -> None:
    assert chosen(arch, meta(2, 8, 128, 64), is_causal=True) == kernel


@pytest.mark.parametrize("arch", [VOLTA, TURING, AMPERE, HOPPER])
def test_float32_is_for_the_efficient_kernel_and_float64_for_math(arch: GpuArchitecture) -> None:
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
    arch: GpuArchitecture, head: int, masked: bool, forward: str
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


# ---- What the kernels of attention allocate

FLASH, FLASH_BACKWARD = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
)
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def test_few_queries_split_their_keys() -> None:
    # 8 groups, 4096 keys in 32 blocks of 128, 216 places: 16 parts use 128 of 216, 32 use 256 of 432, 59 % both;
    # what is between cuts no other way, and 11 parts use 41 %.
    query, key = meta(1, 32, 1, 128), meta(1, 8, 4096, 128)
    rows = 16 * 8 * 4
    assert of(FLASH, query, key, key, 0.0, False, scale=0.1) == [rows * 4, rows * 128 * 4]
    # With 114 multiprocessors 228 places: the same 16 parts; with 4 too few to split for.
    assert of(FLASH, query, key, key, arch=GpuArchitecture("nvidia", (9, 0), 114)) == [rows * 4, rows * 128 * 4]
    assert of(FLASH, query, key, key, arch=GpuArchitecture("nvidia", (8, 6), 4)) == []


def test_many_queries_and_dropout_split_nothing() -> None:
    query = meta(8, 32, 1024, 128)
    assert of(FLASH, query, query, query, 0.0, True) == []
    assert of(FLASH, meta(1, 8, 1, 128), query[:1, :8], query[:1, :8], 0.1, False) == [16]


def test_flash_backward_takes_sums_in_float32_and_the_grads_of_every_head() -> None:
    query, key = meta(2, 200, 8, 96).transpose(1, 2), meta(2, 200, 2, 96).transpose(1, 2)
    rows = 2 * 8 * 256
    grads = [2 * 200 * 8 * 96 * 2] * 2
    args = (query, query, key, key, query)
    assert of(FLASH_BACKWARD, *args, result=()) == [rows * 4, rows * 96 * 4, *grads]
    plain = meta(2, 8, 200, 96)
    copies = [2 * 200 * 8 * 96 * 2] * 2
    args = (plain, query, query, query, plain)
    assert of(FLASH_BACKWARD, *args, result=()) == [*copies, rows * 4, rows * 96 * 4]


def test_the_efficient_kernel_keeps_a_wide_result_in_float32() -> None:
    op = aten._scaled_dot_product_efficient_attention.default
    wide, narrow = meta(2, 8, 64, 256), meta(2, 8, 64, 128)
    assert of(op, wide, wide, wide, None, False) == [2 * 8 * 64 * 256 * 4]
    assert of(op, narrow, narrow, narrow, None, False) == []
    assert of(op, wide.float(), wide.float(), wide.float(), None, False) == []


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
def test_efficient_backward_has_tiles_of_the_grad_of_queries(
    arch: GpuArchitecture, head: int, dtype: torch.dtype, workspace: int
) -> None:
    tensor = meta(2, 1024, 8, head, dtype=dtype).transpose(1, 2)
    assert of(EFFICIENT_BACKWARD, *[tensor] * 4, arch=arch, result=()) == [2 * 8 * 1024 * 4, workspace]
    plain = meta(2, 8, 1024, head, dtype=dtype)
    copy = plain.numel() * plain.element_size()
    assert of(EFFICIENT_BACKWARD, plain, *[tensor] * 3, arch=arch, result=())[0] == copy


def test_cudnn_backward_asks_for_the_grad_of_queries_in_float32() -> None:
    tensor = meta(2, 8, 1024, 128)
    op = aten._scaled_dot_product_cudnn_attention_backward.default
    assert of(op, *[tensor] * 4, arch=HOPPER, result=()) == [2 * 8 * 1024 * 129 * 4]


# ---- What other kernels allocate


def test_a_safe_softmax_holds_two_results_and_a_mask() -> None:
    scores = meta(2, 4, 16, 32, dtype=torch.float32)
    assert of(aten._safe_softmax.default, scores, -1) == [16384, 4, 4096, 128, 4]


def test_softmax_backward_multiplies_first_and_log_softmax_does_not() -> None:
    scores = meta(2, 4, 16, 32)
    assert of(aten._softmax_backward_data.default, scores, scores, -1, torch.bfloat16) == [8192]
    assert of(aten._log_softmax_backward_data.default, scores, scores, -1, torch.bfloat16) == []
    turned = meta(2, 4, 32, 16).transpose(2, 3)
    assert of(aten._log_softmax_backward_data.default, turned, scores, -1, torch.bfloat16) == [8192]


def test_embedding_backward_sorts_above_3072_tokens() -> None:
    op = aten.embedding_dense_backward.default
    grad, tokens = meta(4, 1024, 512), meta(4, 1024, dtype=torch.int64)
    assert of(op, grad[:3], tokens[:3], 32000, -1, False) == []
    one = 4096 * 8
    parts = 409 + 4096  # ten rows each, and one begun for every token
    assert of(op, grad, tokens, 32000, -1, False) == [one] * 3 + [8] + [one] * 2 + [8, parts * 8, parts * 512 * 4]
    few = 409 + 100
    assert of(op, grad, tokens, 100, -1, False) == [one] * 3 + [8, 800, 800, 8, few * 8, few * 512 * 4]


def test_index_put_sorts_to_accumulate() -> None:
    op = aten.index_put_.default
    tensor, where, values = (meta(1000, 64), meta(5000, dtype=torch.int64), meta(5000, 64))
    assert of(op, tensor, [where], values, True) == [40000] * 4 + [80000]
    assert of(op, tensor, [where], values) == []
    assert of(op, tensor, [where], meta(1, 64), True) == [40000, 5000 * 64 * 2] + [40000] * 3 + [80000]
    assert of(op, tensor[:256], [where], values, True) == [40000] * 4  # one pass of eight bits


def test_sort_keeps_positions_and_second_buffers_above_4096() -> None:
    op = aten.sort.default
    row = 128256
    assert of(op, meta(8, 4096), -1) == []
    assert of(op, meta(1, row, dtype=torch.float32), -1, True) == [8 * row, 12 * row]
    assert of(op, meta(4, row, dtype=torch.float32)) == [32 * row, 32 * row, 16 * row, 48 * row]
    assert of(op, meta(200, 5000)) == [8_000_000, 10_000_000]
    assert of(aten.sort.stable, meta(200, 5000), stable=True, dim=1) == [8_000_000, 10_000_000]


def test_sampling_divides_by_as_many_random_numbers() -> None:
    weights = meta(4, 32000, dtype=torch.float32)
    assert of(aten.multinomial.default, weights, 1) == [512000]
    assert of(aten.multinomial.default, weights, 3, False) == [512000, 48]
    assert of(aten.multinomial.default, weights, 3, True) == []


def test_masked_scatter_counts_what_comes_before() -> None:
    tensor, mask = meta(2, 10, 64), meta(2, 10, 1, dtype=torch.bool)
    assert of(aten.masked_scatter.default, tensor, mask.expand(2, 10, 64), tensor) == [10240, 1280]
    assert of(aten.masked_scatter.default, tensor, meta(2, 10, 64, dtype=torch.bool), tensor) == [10240]


def test_norms_of_many_tensors_keep_a_number_for_each_chunk() -> None:
    tensors = [meta(100), meta(200_000)]
    assert of(aten._foreach_norm.Scalar, tensors, 2.0, result=()) == [2 * 4 * 4]
    assert of(aten._foreach_norm.Scalar, tensors, 3.0, result=()) == []


def test_a_norm_of_many_short_rows_sums_by_blocks() -> None:
    many, few, weight = meta(131072, 512), meta(1024, 512), meta(512)
    layer, rms = aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default
    sums = 2048 * 512 * 2
    rest = ([512], None, None, weight, weight, [True, True, True])
    assert of(layer, many, many, *rest, result=()) == [sums, sums]
    assert of(layer, few, few, *rest, result=()) == []
    assert of(rms, many, many, [512], None, weight, [True, True], result=()) == [sums]
    assert of(rms, many, many, [512], None, weight, [True, False], result=()) == []


# ---- Reductions


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [(AMPERE, 54), (HOPPER, 66), (GpuArchitecture("nvidia", (9, 0), 114), 57), (TURING, 10)],
)
def test_a_sum_of_columns_has_room_for_every_thread(arch: GpuArchitecture, blocks: int) -> None:
    # 8192 rows, 4096 columns: 4 columns a thread, 32 threads wide and 4 high, so 32 columns of blocks; as many blocks
    # in each as fill the card: 108 x 2048 / 128 / 32 on an A100, 40 x 1024 / 128 / 32 on a T4.
    room = 4 * 4096 * blocks * 32 * 4
    assert of(aten.sum.dim_IntList, meta(8192, 4096), [0], arch=arch) == [room, 4 * 32]
    assert of(aten.sum.dim_IntList, meta(4, 2048, 4096), [0, 1], arch=arch) == [room, 4 * 32]


def test_a_sum_of_everything_has_one_number_for_each_block() -> None:
    tensor = meta(4096, 4096, dtype=torch.float32)
    assert of(aten.sum.default, tensor) == [4 * 432, 4]  # 512 threads: 4 blocks on each of 108
    assert of(aten.mean.default, tensor) == [4 * 432, 4]
    assert of(aten.linalg_vector_norm.default, tensor) == [4 * 432, 4]


def test_sums_of_rows_need_no_room() -> None:
    assert of(aten.mean.dim, meta(8, 1024, 4096), [-1], True) == []
    assert of(aten.sum.dim_IntList, meta(8, 0), [0]) == []
    assert of(aten.sum.default, meta()) == []


def test_counting_a_mask_makes_whole_numbers_of_it_first() -> None:
    assert of(aten.sum.dim_IntList, meta(8, 1024, dtype=torch.bool), [1]) == [65536]
    assert of(aten.sum.dim_IntList, meta(8, 1024), [1], dtype=torch.float32) == []


def test_the_largest_of_a_vocabulary_keeps_its_place() -> None:
    assert of(aten.argmax.default, meta(1, 128256, dtype=torch.float32), -1) == []
    # 512 threads with 297 numbers each, 16 at least: 19 blocks.
    assert of(aten.argmax.default, meta(1, 151936, dtype=torch.float32), -1) == [16 * 19, 4]


def test_a_sum_over_more_than_two_gibibytes_is_done_in_halves() -> None:
    # 65536 of 131072 rows, 128 columns of blocks; 16384 rows a thread, 256 at most: 64 blocks.
    assert of(aten.sum.dim_IntList, meta(131072, 16384), [0]) == [4 * 16384 * 64 * 32 * 4, 4 * 128]


class Charged(TorchDispatchMode):
    """Asks the rules about every operator, as the meter does."""

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
def test_a_step_of_training_meets_rules_that_take_its_arguments(arch: GpuArchitecture) -> None:
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


# ---- cuBLAS and types


def test_the_workspace_of_cublas_grew_with_hopper() -> None:
    assert [workspace_bytes(each) for each in (VOLTA, AMPERE, ADA)] == [8519680] * 3
    assert [workspace_bytes(each) for each in (HOPPER, BLACKWELL)] == [33554432] * 2
    assert workspace_bytes(AMD) == 134217728


def test_products_take_a_handle_and_sums_do_not() -> None:
    assert all(map(is_matmul, (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.addmm.out)))
    assert not any(map(is_matmul, (aten.add.Tensor, aten.convolution.default)))


def test_a_card_lacks_the_types_that_came_after_it() -> None:
    assert why_unsupported(AMPERE, torch.bfloat16) is None
    assert why_unsupported(TURING, torch.bfloat16) == (
        "bfloat16 needs compute capability 8.0, and this card has 7.5: torch only emulates it there"
    )
    assert "8.9" in (why_unsupported(AMPERE, torch.float8_e4m3fn) or "")
    assert why_unsupported(ADA, torch.float8_e4m3fn) is None
    assert why_unsupported(VOLTA, torch.float16) is None
    assert why_unsupported(AMD, torch.bfloat16) is None
