"""Recurrent layers: on a CPU compared with a CPU, on CUDA with what is known of cuDNN."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runners.phases import Unavailable
from runners.simulation import torch_recurrent_cpu
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_recurrent_kernels import MODES, Shape, reserve_bytes, workspace_bytes
from runners.simulation.torch_device_rules import CudaRules
from runners.simulation.torch_recurrent_cpu import lstm_workspace_bytes
from runners.simulation.torch_tracer import WORKSPACE, MetaTracer
from runners.simulation.uncertainty import with_uncertainty
from tests.programs import HOST, calculated
from tests.tracing import counted, peak, real_peak

HOPPER, TURING, AMD = GpuArchitecture("nvidia", (9, 0)), GpuArchitecture("nvidia", (7, 5)), GpuArchitecture("amd", None)
FLOAT, BFLOAT16 = torch.float32, torch.bfloat16
LENGTHS = [10, 9, 6, 6, 3, 1]


def network(cell: str, trains: bool = True, packed: bool = False, dtype: torch.dtype = FLOAT, **options: Any) -> Any:
    """A pass through layers of this cell, and back if it trains."""

    def work(device: str) -> None:
        layers = getattr(nn, cell)(24, 32, device=device, dtype=dtype, **options)
        first = len(LENGTHS), max(LENGTHS)
        given = torch.ones(*(first if options.get("batch_first") else first[::-1]), 24, device=device, dtype=dtype)
        if packed:
            given = nn.utils.rnn.pack_padded_sequence(given, torch.tensor(LENGTHS), options.get("batch_first", False))
        with torch.set_grad_enabled(trains):
            made, _ = layers(given)
        if packed:
            made, _ = nn.utils.rnn.pad_packed_sequence(made)
        if trains:
            made.sum().backward()

    return work


# --- on a CPU ---

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"num_layers": 2, "bidirectional": True, "dropout": 0.3, "batch_first": True},
    "without biases": {"bias": False},
    "bfloat16": {"dtype": BFLOAT16},
    "packed": {"packed": True, "bidirectional": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_take_the_bytes_of_a_cpu(cell: str, trains: bool, case: str) -> None:
    work = network(cell, trains, **CASES[case])
    # A dispatch mode changes how the gradients of steps accumulate, and PyTorch's own counter needs none.
    expected = counted(work) if trains and case == "packed" else real_peak(work)
    assert peak(work) == pytest.approx(expected, rel=0.005)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_is_made_of_other_operators_on_a_cpu() -> None:
    for trains in (True, False):
        work = network("LSTM", trains, proj_size=8, num_layers=2)
        assert peak(work) == real_peak(work)


@pytest.mark.parametrize("shape", [(3, 2, 8, 16), (12, 20, 64, 16), (12, 20, 16, 65), (4, 4, 128, 1024)])
def test_the_workspace_of_onednn_is_as_large_as_on_this_cpu(shape: tuple[int, ...]) -> None:
    length, batch, features, size = shape
    weights = [torch.zeros(4 * size, features), torch.zeros(4 * size, size), *(torch.zeros(4 * size) for _ in "ih")]
    state = torch.zeros(batch, size)
    made = torch.ops.aten.mkldnn_rnn_layer(
        *(torch.zeros(length, batch, features), *weights, state, state, False, [], 2, size, 1),
        *(True, False, False, True),
    )
    assert lstm_workspace_bytes(*shape, 4) == made[3].numel()


def test_an_lstm_is_refused_where_onednn_keeps_another_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_recurrent_cpu, "lstm_workspace_bytes", lambda *_: 2**20)
    torch_recurrent_cpu._keeps_this_workspace.cache_clear()
    try:
        with pytest.raises(Unavailable, match="what it keeps for the backward pass is not known"):
            peak(network("LSTM"))
    finally:
        torch_recurrent_cpu._keeps_this_workspace.cache_clear()


# --- on CUDA ---


def traced(work: Callable[[str], Any], arch: GpuArchitecture = HOPPER) -> MetaTracer:
    tracer = MetaTracer(CudaRules(arch))
    with tracer.around_workload():
        work("meta")
    return tracer


def sizes(work: Callable[[str], Any], arch: GpuArchitecture = HOPPER) -> list[int]:
    return [event for event in traced(work, arch).events if 0 <= event < WORKSPACE]


def shape(cell: str, length: int, batch: int, features: int, hidden: int, layers: int, packed: bool = False) -> Shape:
    return Shape(MODES[cell], length * batch, length, batch, features, hidden, 0, layers, 1, 4, packed)


@pytest.mark.parametrize(("cell", "reading"), [("lstm", 736_000_000), ("gru", 864_000_000)])
def test_the_reserve_of_cudnn_is_the_published_one(cell: str, reading: int) -> None:
    assert reserve_bytes(shape(cell, 250, 100, 123, 320, 4)) == reading


@pytest.mark.parametrize(("packed", "reading"), [(True, 9_961_472), (False, 21_496_576)])
def test_the_workspace_of_cudnn_is_the_published_one(packed: bool, reading: int) -> None:
    assert workspace_bytes(shape("rnn_relu", 20, 64, 512, 512, 2, packed), train=True) == reading


@pytest.mark.parametrize(("cell", "reading"), [("lstm", 17_730_560), ("gru", 13_169_920)])
def test_an_older_workspace_lies_within_the_bounds(cell: str, reading: int) -> None:
    estimate = workspace_bytes(shape(cell, 250, 100, 123, 320, 4, packed=True), train=True)
    assert estimate.low <= reading <= estimate.high


def test_on_cuda_the_weights_are_in_one_buffer_and_so_are_their_gradients() -> None:
    def work(device: str) -> None:
        layers = nn.LSTM(24, 32, num_layers=2).to(device)
        assert len({each.untyped_storage()._cdata for each in layers.parameters()}) == 1
        assert [each.shape for each in layers.parameters()] == [each.shape for each in nn.LSTM(24, 32, 2).parameters()]
        layers(torch.empty(10, 6, 24, device=device))[0].sum().backward()
        assert len({each.grad.untyped_storage()._cdata for each in layers.parameters()}) == 1

    buffer = (4 * 32 * (24 + 32) + 4 * 32 * (32 + 32) + 4 * 4 * 32) * 4
    assert sizes(work).count(buffer) == 2  # weights and gradients


def test_weights_of_several_storages_are_copied_in_each_pass() -> None:
    def work(device: str) -> None:
        weights = [torch.empty(*shape, device=device) for shape in ((96, 24), (96, 32), (96,), (96,))]
        given, state = torch.empty(10, 6, 24, device=device), torch.empty(1, 6, 32, device=device)
        for _ in range(2):
            torch.gru(given, state, weights, True, 1, 0.0, True, False, False)

    assert sizes(work).count(3 * 32 * (24 + 32 + 2) * 4) == 2


def test_autocast_copies_all_weights_to_a_buffer_of_float16() -> None:
    def work(device: str) -> None:
        layers = nn.LSTM(24, 32).to(device)
        with torch.autocast("cuda", dtype=BFLOAT16):
            made, _ = layers(torch.empty(10, 6, 24, device=device))
        assert made.dtype is torch.float16
        made.float().sum().backward()
        assert layers.weight_hh_l0.grad.dtype is FLOAT

    buffer = 4 * 32 * (24 + 32 + 2)
    assert sizes(work).count(2 * buffer) == 2  # the copy, and its gradient


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("case", [case for case in CASES if case != "bfloat16"])
def test_what_cudnn_decides_has_bounds_around_the_calculated_peak(cell: str, case: str) -> None:
    tracer = traced(network(cell, **CASES[case]))
    assert all(low <= tracer.events[number] <= high for number, low, high in tracer.bounds)
    metrics = with_uncertainty({"loss": 1.0}, tracer.events, tracer.bounds)
    assert metrics["loss"] == 1.0
    assert metrics["peak_may_be_lower_by_bytes"] >= 0 < metrics["peak_may_be_higher_by_bytes"]


def test_the_bounds_of_a_peak_count_what_is_alive_together() -> None:
    events = array("q", [1024, 2048, -1, 512, -2, -3])
    assert with_uncertainty(None, events, [(1, 1024, 4096)]) == {
        "peak_may_be_lower_by_bytes": 1024,
        "peak_may_be_higher_by_bytes": 2048,
    }
    assert with_uncertainty(None, events, []) == {}


def test_inference_keeps_no_reserve() -> None:
    assert len(traced(network("LSTM", trains=False)).bounds) == 2  # in training mode it is made, and freed at once

    def work(device: str) -> None:
        with torch.no_grad():
            nn.LSTM(24, 32).to(device).eval()(torch.empty(10, 6, 24, device=device))

    assert len(traced(work).bounds) == 1


@pytest.mark.parametrize(("arch", "dtype"), [(TURING, BFLOAT16), (AMD, BFLOAT16)])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_a_card_without_a_kernel_for_the_dtype_computes_by_cells(
    cell: str, arch: GpuArchitecture, dtype: torch.dtype
) -> None:
    tracer = traced(network(cell, dtype=dtype, num_layers=2, bidirectional=True), arch)
    assert not tracer.bounds
    assert len(tracer.events) > 500


def test_a_recurrent_layer_on_an_amd_card_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"aten\.gru cannot be traced for an AMD card: .* MIOpen"):
        traced(network("GRU"), AMD)


def test_cells_of_a_gru_and_without_biases_are_traced_on_cuda() -> None:
    def work(device: str) -> None:
        given = torch.empty(8, 24, device=device)
        nn.GRUCell(24, 32, device=device)(given).sum().backward()
        nn.LSTMCell(24, 32, bias=False, device=device)(given)[0].sum().backward()

    assert 8 * 5 * 32 * 4 in sizes(work)  # a GRU keeps five numbers for each unit


@pytest.mark.parametrize("kind", [list, lambda each: torch.tensor(each)])
def test_a_calculated_host_packs_sequences_of_known_lengths(kind: Any) -> None:
    def program() -> list[Any]:
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 5, 2), kind([5, 3, 1]), batch_first=True)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(nn.GRU(2, 4)(packed)[0], batch_first=True)
        return [packed.data.shape[0], packed.batch_sizes.tolist(), list(padded.shape), lengths.tolist()]

    assert calculated(program, HOST).returned == {"result": [9, [3, 2, 2, 1, 1], [3, 5, 4], [5, 3, 1]]}


def test_lengths_that_are_not_calculated_are_at_most_all_and_the_row_says_so() -> None:
    def program() -> list[int]:
        lengths = torch.randn(3, 5).argmax(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(3, 5, 2), lengths, batch_first=True, enforce_sorted=False
        )
        return list(packed.data.shape)

    found = calculated(program, HOST)
    assert found.returned == {"result": [3 * 5, 2]}
    assert [bound["operator"] for bound in found.assumed["bounds"]] == ["aten._pack_padded_sequence"]
