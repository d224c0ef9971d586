"""Every name of an operator takes the kernel of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import log_softmax, nn, softmax
from torch.cuda import empty_cache
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.nn.functional import softmax as functional_softmax
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.torch_device_rules import CpuRules, CudaRules
from runners.simulation.torch_tracer import EMPTY_CACHE, WORKSPACE, MetaTracer
from tests.tracing import peak, real_peak, scripted

AMPERE, HOPPER = GpuArchitecture("nvidia", (8, 0)), GpuArchitecture("nvidia", (9, 0))
HALF, FLOAT = torch.float16, torch.float32

aten = torch.ops.aten


def traced(work: Callable[[], Any], rules: Any = None) -> MetaTracer:
    tracer = MetaTracer(rules or CudaRules(AMPERE))
    with tracer.around_workload():
        work()
    return tracer


def allocated(work: Callable[[], Any], rules: Any = None) -> list[int]:
    return [event for event in traced(work, rules).events if 0 <= event < WORKSPACE]


def attention_in_module(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


# --- attention ---

scripted_attention = scripted(attention_in_module)

ATTENTION = {
    "imported": scaled_dot_product_attention,
    "torch.ops": aten.scaled_dot_product_attention,
    "torch.ops with its overload": aten.scaled_dot_product_attention.default,
    "torch._C": torch._C._nn.scaled_dot_product_attention,
    "scripted before": scripted_attention,
    "scripted while tracing": lambda *qkv: scripted(attention_in_module)(*qkv),
    "in a checkpoint": lambda *qkv: checkpoint(scaled_dot_product_attention, *qkv, use_reentrant=False),
}
TENSOR, SCORES = 2 * 4 * 256 * 32 * 2, 2 * 4 * 256 * 256 * 2


def attend(call: Callable[..., torch.Tensor], trains: bool) -> None:
    query, key, value = (torch.empty(2, 4, 256, 32, dtype=HALF, device="meta", requires_grad=trains) for _ in "qkv")
    with torch.set_grad_enabled(trains):
        out = call(query, key, value)
    if trains:
        out.backward(torch.empty_like(out))


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("rules", [CudaRules(AMPERE), CudaRules(HOPPER), CpuRules()], ids=["A100", "H100", "cpu"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_by_every_name_takes_the_bytes_of_the_attribute(name: str, rules: Any, trains: bool) -> None:
    expected = allocated(lambda: attend(torch.nn.functional.scaled_dot_product_attention, trains), rules)
    made = allocated(lambda: attend(ATTENTION[name], trains), rules)
    assert max(expected) < SCORES
    if name == "in a checkpoint" and trains:  # which computes it twice
        assert max(made) < SCORES
    else:
        assert made == expected


def test_attention_in_inference_mode_takes_the_kernel_of_the_device() -> None:
    inference_mode = torch.inference_mode  # under its own name: the tracer replaces the attribute

    def work() -> None:
        with inference_mode():
            attend(scaled_dot_product_attention, False)

    assert max(allocated(work)) == TENSOR


VOLTA, TURING, KEPLER = (GpuArchitecture("nvidia", each) for each in ((7, 0), (7, 5), (3, 7)))
FLASH = aten._scaled_dot_product_flash_attention
DIRECT: dict[str, Callable[..., Any]] = {
    "flash": FLASH,
    "efficient": lambda *qkv: aten._scaled_dot_product_efficient_attention(*qkv, None, False),
    "cudnn": lambda *qkv: aten._scaled_dot_product_cudnn_attention(*qkv, None, False),
}


@pytest.mark.parametrize(
    ("kernel", "rules", "dtype", "why"),
    [
        ("flash", CudaRules(TURING), HALF, "flash attention needs compute capability 8.0 in torch.float16, .* has 7.5"),
        ("flash", CudaRules(VOLTA), HALF, "needs compute capability 8.0"),
        ("flash", CudaRules(AMPERE), FLOAT, "computes in float16 and bfloat16 only"),
        ("flash", CudaRules(AMPERE), HALF, None),
        ("efficient", CudaRules(KEPLER), HALF, "needs compute capability 5.0"),
        ("efficient", CudaRules(TURING), torch.bfloat16, "needs compute capability 8.0 in torch.bfloat16"),
        ("efficient", CudaRules(TURING), HALF, None),
        ("efficient", CudaRules(TURING), FLOAT, None),
        ("cudnn", CudaRules(TURING), HALF, "cudnn attention needs compute capability 8.0"),
        ("cudnn", CudaRules(HOPPER), HALF, None),
        ("flash", CpuRules(), FLOAT, "no kernel for a CPU"),
    ],
)
def test_a_kernel_called_directly_is_refused_where_the_card_has_none(
    kernel: str, rules: Any, dtype: torch.dtype, why: str | None
) -> None:
    def work() -> None:
        DIRECT[kernel](*(torch.empty(2, 4, 256, 32, dtype=dtype, device="meta") for _ in "qkv"))

    if why is None:
        assert TENSOR * (2 if dtype is FLOAT else 1) in allocated(work, rules)
        return
    with pytest.raises((RuntimeError, NotImplementedError), match=why):
        traced(work, rules)


def test_scripted_attention_takes_the_same_in_every_run() -> None:
    def runs(call: Callable[..., torch.Tensor]) -> list[int]:
        def work() -> None:
            for _ in range(3):  # TorchScript profiles the first runs and optimises the next
                attend(call, True)

        return allocated(work)

    assert runs(scripted_attention) == runs(scaled_dot_product_attention)


def test_attention_by_the_callers_priority_takes_that_kernel() -> None:
    def work() -> None:
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            attend(scaled_dot_product_attention, False)

    assert SCORES * 2 in allocated(work)  # in float32
    assert max(allocated(lambda: attend(scaled_dot_product_attention, False))) == TENSOR


def test_attention_in_parts_adds_its_mask_in_place() -> None:
    def work(mask: torch.Tensor | None) -> None:
        query, key, value = (torch.empty(2, 4, 256, 32, dtype=FLOAT, device="meta") for _ in "qkv")
        aten._scaled_dot_product_attention_math(query, key, value, mask)

    def masked() -> None:
        work(torch.empty(256, 256, dtype=FLOAT, device="meta"))

    assert allocated(masked).count(SCORES * 2) == allocated(lambda: work(None)).count(SCORES * 2)


# --- softmax ---

SOFTMAX = {
    "torch": lambda x, to: softmax(x, -1, dtype=to),
    "method": lambda x, to: x.softmax(-1, dtype=to),
    "attribute": lambda x, to: torch.nn.functional.softmax(x, dim=-1, dtype=to),
    "imported": lambda x, to: functional_softmax(x, -1, dtype=to),
    "special": lambda x, to: torch.special.softmax(x, -1, dtype=to),
    "torch.ops": lambda x, to: aten.softmax.int(x, -1, to),
    "log": lambda x, to: log_softmax(x, -1, dtype=to),
    "log, method": lambda x, to: x.log_softmax(-1, dtype=to),
    "log, special": lambda x, to: torch.special.log_softmax(x, -1, dtype=to),
    "scripted": lambda x, to: scripted(softmax_to_float32)(x),
}


def softmax_to_float32(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_of_float16_to_float32_converts_in_the_kernel_on_cuda(name: str, grad: bool) -> None:
    def work(dtype: torch.dtype = HALF) -> None:
        SOFTMAX[name](torch.empty(64, 64, dtype=dtype, device="meta", requires_grad=grad), FLOAT)

    assert allocated(work) == [64 * 64 * 2, 64 * 64 * 4]
    assert allocated(lambda: work(torch.bfloat16)) == [64 * 64 * 2, 64 * 64 * 4, 64 * 64 * 4]  # converts before
    assert allocated(work, CpuRules()) == [64 * 64 * 2, 64 * 64 * 4, 64 * 64 * 4]


def test_softmax_of_float16_under_autocast_converts_in_the_kernel_on_cuda() -> None:
    def work() -> None:
        with torch.autocast("cuda", dtype=HALF):
            nn.Softmax(-1)(torch.empty(64, 64, dtype=HALF, device="meta"))

    assert allocated(work) == [64 * 64 * 2, 64 * 64 * 4]


# --- dropout ---


def dropout_in_module(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.1, True)


scripted_dropout = scripted(dropout_in_module)

DROPOUT = {
    "attribute": lambda x: torch.nn.functional.dropout(x, 0.1),
    "imported": lambda x: dropout(x, 0.1),
    "module": nn.Dropout(0.1),
    "torch": lambda x: torch.dropout(x, 0.1, True),
    "torch.ops": lambda x: aten.dropout(x, 0.1, True),
    "scripted before": scripted_dropout,
    "scripted while tracing": lambda x: scripted(dropout_in_module)(x),
}


@pytest.mark.parametrize("name", DROPOUT)
def test_dropout_keeps_a_mask_of_one_byte_an_element_on_cuda_and_factors_on_a_cpu(name: str) -> None:
    def work() -> None:
        DROPOUT[name](torch.empty(1024, dtype=torch.bfloat16, device="meta", requires_grad=True))

    assert allocated(work) == [2048, 2048, 1024]
    assert allocated(work, CpuRules())[:2] == [2048, 2048]
    assert 1024 not in allocated(work, CpuRules())


def test_dropout_that_drops_nothing_keeps_no_mask() -> None:
    def work() -> None:
        x = torch.empty(1024, device="meta", requires_grad=True)
        dropout(x, 0.1, training=False)
        dropout(x, 0.0)

    assert 1024 not in allocated(work)


# --- layers ---


def norm(call: Callable[..., torch.Tensor]) -> None:
    x = torch.empty(64, 512, dtype=HALF, device="meta", requires_grad=True)
    weight = torch.empty(512, dtype=HALF, device="meta", requires_grad=True)
    out = call(x, [512], weight)
    out.backward(torch.empty_like(out))


def norm_in_module(x: torch.Tensor, shape: list[int], weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, shape, weight)


@pytest.mark.skipif(not hasattr(aten, "_fused_rms_norm_backward"), reason="this PyTorch has no kernel for it")
@pytest.mark.parametrize(
    "call", [torch.nn.functional.rms_norm, torch.rms_norm, aten.rms_norm, scripted(norm_in_module)]
)
def test_an_rms_norm_is_one_kernel_on_cuda_that_keeps_a_number_a_row(call: Any) -> None:
    x, weight, row = 64 * 512 * 2, 512 * 2, 64 * 4
    # The input and the weight; the result and a number for each row; the gradients: incoming, input's and weight's.
    assert allocated(lambda: norm(call)) == [x, weight, x, row, x, x, weight]


def test_a_gradient_of_mish_is_one_kernel() -> None:
    def work(device: str) -> None:
        x = torch.zeros(64, 64, device=device, requires_grad=True)
        nn.functional.mish(x).backward(torch.ones(64, 64, device=device))

    assert peak(work) == real_peak(work)
    assert allocated(lambda: work("meta")) == [64 * 64 * 4] * 4


def test_a_cell_of_an_lstm_keeps_the_gates_of_one_kernel_on_cuda() -> None:
    def work() -> None:
        cell = nn.LSTMCell(16, 32, device="meta")
        state = [torch.empty(8, 32, device="meta") for _ in "hc"]
        del cell.bias_hh  # its bytes are those of bias_ih
        cell.bias_hh = cell.bias_ih
        cell(torch.empty(8, 16, device="meta"), state)

    products, state, gates = [8 * 128 * 4] * 2, [8 * 32 * 4] * 2, [8 * 128 * 4]
    assert allocated(work)[-5:] == [*products, *state, *gates]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, h, w: aten.gru(x, h, [w, w], False, 1, 0.0, False, False, False),
        lambda x, h, w: torch.rnn_tanh(x, h, [w, w], False, 1, 0.0, False, False, False),
        lambda x, h, w: torch.lstm(x, [h, h], [w, w], False, 1, 0.0, False, False, False),
    ],
)
def test_a_recurrent_layer_is_one_kernel_on_cuda_by_every_name(call: Any) -> None:
    def work() -> None:
        call(*(torch.empty(*shape, device="meta") for shape in ((3, 2, 8), (1, 2, 8), (32, 8))))

    assert len(traced(work).bounds) == 1  # the workspace of cuDNN


def encoder(device: str) -> None:
    with torch.no_grad():
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device=device).eval()
        layer(torch.zeros(2, 32, 64, device=device))


def self_attention(device: str) -> None:
    with torch.no_grad():
        x = torch.zeros(2, 32, 64, device=device)
        nn.MultiheadAttention(64, 4, batch_first=True, device=device).eval()(x, x, x)


@pytest.mark.parametrize("work", [encoder, self_attention])
def test_a_layer_in_one_operator_takes_the_bytes_of_a_cpu_and_is_followed_on_cuda(work: Any) -> None:
    assert peak(work) == real_peak(work)
    assert traced(lambda: work("meta")).failure is None
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert traced(lambda: work("meta")).failure is None
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


# --- what is no operator ---


def test_emptying_the_cache_is_traced_on_cuda_by_every_name() -> None:
    def work() -> None:
        empty_cache()
        torch.cuda.empty_cache()
        torch.cuda.memory.empty_cache()

    assert list(traced(work).events) == [EMPTY_CACHE] * 3
    assert list(traced(work, CpuRules()).events) == []
    empty_cache()  # as before: there is no CUDA


def test_averages_of_weights_use_foreach_kernels_on_cuda() -> None:
    def work() -> None:
        averages, weights = ([torch.empty(8, device="meta") for _ in range(3)] for _ in "ab")
        get_ema_multi_avg_fn(0.9)(averages, weights, 1)

    assert len(allocated(work)) == 6  # in place


def constants_in_script(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if torch.is_autocast_enabled():
            return x
        return x + torch.tensor(1.0)


def test_torchscript_compiles_what_is_replaced_and_is_as_before_afterwards() -> None:
    before = dict(torch.jit._builtins._get_builtin_table())
    tracer = traced(lambda: scripted(constants_in_script)(torch.empty(4, device="meta")))
    assert tracer.failure is None
    assert torch.jit._builtins._get_builtin_table() == before


def test_operators_are_as_before_after_a_trace() -> None:
    traced(lambda: attend(scaled_dot_product_attention, False))
    query = torch.empty(2, 4, 256, 32, device="meta", requires_grad=True)
    assert "Flash" not in type(scaled_dot_product_attention(query, query, query).grad_fn).__name__
    assert "NativeDropout" not in type(dropout(query, 0.1).grad_fn).__name__
