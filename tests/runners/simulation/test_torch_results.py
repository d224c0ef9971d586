"""Operators of other fields than language take the bytes of a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from runners.phases import Unavailable
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.torch_device_rules import CudaRules
from runners.simulation.torch_tracer import MetaTracer
from tests.programs import H100, HOST, calculated
from tests.tracing import counted, peak, real_peak, take

aten = torch.ops.aten


def to(x: torch.Tensor, nodes: int) -> torch.Tensor:
    """A node for each row."""
    return torch.arange(len(x), device=x.device) % nodes


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 8 * torch.eye(x.size(-1), device=x.device)


def transcription(targets: Any, lengths: Any) -> Any:
    def loss(x: torch.Tensor) -> torch.Tensor:
        logits = functional.log_softmax(x, 2)
        given = lengths(x.device)
        steps = torch.full_like(given, 50) if isinstance(given, torch.Tensor) else (50,) * 4
        return functional.ctc_loss(logits, targets(x.device), steps, given)

    return loss


def resynthesised(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(256, device=x.device)
    return torch.istft(torch.stft(x, 256, 64, window=window, return_complex=True), 256, 64, window=window)


IMAGE, ROWS, MATRICES = (2, 8, 16, 16), (64, 32), (4, 16, 16)

OPERATORS = {
    "columns of an image": take(lambda x: functional.unfold(x, 3, padding=1), IMAGE),
    "image of columns": take(lambda x: functional.fold(x, (16, 16), 3, padding=1), (2, 72, 256)),
    "cosine embedding": take(
        lambda x, y: functional.cosine_embedding_loss(x, y, torch.ones(64, device=x.device)), ROWS, ROWS
    ),
    "margin of classes": take(lambda x: functional.multi_margin_loss(x, to(x, 32)), ROWS),
    "connectionist, padded": take(
        transcription(lambda on: torch.ones(4, 10, dtype=torch.long, device=on), lambda _: torch.full((4,), 10)),
        (50, 4, 20),
    ),
    "connectionist, joined": take(
        transcription(lambda on: torch.ones(40, dtype=torch.long, device=on), lambda _: (10, 10, 10, 10)), (50, 4, 20)
    ),
    "connectionist, lengths on the device": take(
        transcription(
            lambda on: torch.ones(4, 10, dtype=torch.long, device=on), lambda on: torch.full((4,), 10, device=on)
        ),
        (50, 4, 20),
    ),
    "sampled by a grid": take(lambda x, y: functional.grid_sample(x, y, align_corners=False), IMAGE, (2, 12, 12, 2)),
    "messages": take(
        lambda x, w: torch.zeros(8, 16, device=x.device).index_add(0, to(x, 8), x[to(x, 32)] @ w), ROWS, (32, 16)
    ),
    "mean by node": take(
        lambda x: torch.zeros(8, 32, device=x.device).scatter_reduce(
            0, to(x, 8)[:, None].expand(64, 32), x, "mean", include_self=False
        ),
        ROWS,
    ),
    "spectrum": take(torch.fft.rfft2, IMAGE),
    "spectrogram and back": take(resynthesised, (2, 2048)),
    "cholesky": take(lambda x: torch.linalg.cholesky(positive(x)), MATRICES),
    "singular values": take(lambda x: torch.linalg.svd(positive(x))[1], MATRICES),
    "pseudo-inverse": take(lambda x: torch.linalg.pinv(positive(x)), MATRICES),
    "lu": take(lambda x: torch.linalg.lu_factor(positive(x)), MATRICES),
    "least squares": take(lambda x, y: torch.linalg.lstsq(positive(x), y)[0], MATRICES, (4, 16, 8)),
    "one hot": take(lambda x: functional.one_hot(to(x, 10), 10), ROWS),
    "one hot of as many classes as there are": take(lambda x: functional.one_hot(to(x, 10)), ROWS),
    "circular padding": take(lambda x: functional.pad(x, (1, 1, 1, 1), mode="circular"), IMAGE),
    "trapezoids": take(torch.trapezoid, ROWS),
    "pooling with indices": take(
        lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), 2), IMAGE
    ),
    "spectral norm": lambda on: (
        nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32, device=on))(torch.rand(4, 32, device=on))
        .sum()
        .backward()
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_takes_the_bytes_of_a_cpu(name: str) -> None:
    assert peak(OPERATORS[name]) == pytest.approx(real_peak(OPERATORS[name]), rel=0.005, abs=256)


@pytest.mark.parametrize("name", ["cosine embedding", "pseudo-inverse", "circular padding"])
def test_sums_of_gradients_are_in_place_and_sums_within_a_gradient_are_not(name: str) -> None:
    work = OPERATORS[name]
    assert peak(work) == real_peak(work) == pytest.approx(counted(work), abs=512)


def test_what_a_program_checks_is_assumed_to_be_close() -> None:
    def program(device: str) -> dict[str, bool]:
        x = torch.randn(64, 64, device=device)
        orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16, device=device))
        ones = torch.ones(3, device=device)
        return {
            "unknown": torch.allclose(x, x.exp().log()),
            "known": torch.allclose(ones, ones * 2),
            "card": orthogonal.weight.device.type == torch.device(device).type,
        }

    for card in (H100, HOST):
        assert calculated(program, card).returned == {"unknown": True, "known": False, "card": True}


def test_rows_of_several_lengths_take_the_bytes_of_a_cpu() -> None:
    def program(device: str) -> None:
        rows = [torch.randn(length, 64, device=device) for length in (5, 9)]
        nested = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        output = functional.gelu(nn.Linear(64, 64, device=device)(nested))
        torch.nested.to_padded_tensor(output, 0.0).sum().backward()

    found = calculated(program, HOST)
    assert found.error is None
    assert found.peaks["tensor"] == pytest.approx(real_peak(lambda _: program("cpu")), rel=0.005)


def traced(work: Any) -> MetaTracer:
    tracer = MetaTracer(CudaRules(GpuArchitecture("nvidia", (9, 0))))
    with tracer.around_workload():
        work("meta")
    return tracer


def test_a_transcription_of_unknown_lengths_is_at_most_as_long_as_its_targets() -> None:
    work = take(
        transcription(
            lambda on: torch.ones(4, 10, dtype=torch.long, device=on), lambda on: torch.randint(1, 9, (4,), device=on)
        ),
        (50, 4, 20),
    )
    states = 4 * 50 * 4
    assert [(low, high) for _, low, high in traced(work).bounds] == [(3 * states, 21 * states)]


def transcription_by(dtype: torch.dtype, on: str, lengths: Any) -> Any:
    return take(transcription(lambda _: torch.ones(40, dtype=dtype, device=on), lengths), (50, 4, 20))


TENS = (10, 10, 10, 10)
BY_CUDNN = {
    "lengths of Python": transcription_by(torch.int32, "cpu", lambda _: TENS),
    "lengths of int64": transcription_by(torch.int32, "cpu", lambda _: torch.tensor(TENS)),
    "lengths of int32": transcription_by(torch.int32, "meta", lambda _: torch.tensor(TENS, dtype=torch.int32)),
}


@pytest.mark.parametrize("name", BY_CUDNN)
def test_a_transcription_by_cudnn_is_unavailable(name: str) -> None:
    with pytest.raises(Unavailable, match=r"it runs in cuDNN or MIOpen"):
        traced(BY_CUDNN[name])
    with torch.backends.cudnn.flags(enabled=False):
        assert traced(BY_CUDNN[name]).bounds == []


@pytest.mark.parametrize(("dtype", "on"), [(torch.int64, "cpu"), (torch.int64, "meta"), (torch.int32, "meta")])
def test_a_transcription_by_the_own_kernel_takes_a_number_for_each_state(dtype: torch.dtype, on: str) -> None:
    events = traced(transcription_by(dtype, on, lambda _: TENS)).events
    assert 4 * 50 * 21 * 4 in events


def test_rows_whose_padding_is_not_known_are_unavailable() -> None:
    def program(device: str) -> None:
        offsets = [torch.tensor([0, 1, 3], device=device)]
        aten._padded_dense_to_jagged_forward(torch.ones(2, 3, 4, device=device), offsets)

    for card in (H100, HOST):
        assert "the number of rows without padding depends on numbers" in str(calculated(program, card).error)
