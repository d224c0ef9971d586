"""Memory of CPU kernels themselves, by the benchmark's rules and by PyTorch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from benchmarks import calculated
from runners.simulation.torch_device_rules import CpuRules
from tests.tracing import counted, peak


def image(device: str, channels: int) -> torch.Tensor:
    return torch.ones(8, channels, 32, 32, device=device)


def convolve(device: str, channels: int, groups: int = 1) -> None:
    weight = torch.ones(32, channels // groups, 3, 3, device=device)
    functional.conv2d(image(device, channels), weight, padding=1, groups=groups)


def learn_to_convolve(device: str, stride: int = 1, of_input: bool = False) -> None:
    weight = torch.ones(32, 16, 3, 3, device=device, requires_grad=True)
    given = image(device, 16).requires_grad_(of_input)
    functional.conv2d(given, weight, padding=1, stride=stride).square().sum().backward()


def attend(device: str, length: int) -> None:
    with torch.no_grad():
        functional.scaled_dot_product_attention(*(torch.ones(2, 4, length, 32, device=device) for _ in "qkv"))


@pytest.mark.parametrize(
    ("work", "within"),
    [
        (lambda device: functional.mse_loss(image(device, 16), image(device, 16)), 256),
        (lambda device: functional.mse_loss(image(device, 16), image(device, 16), reduction="none"), 256),
        (lambda device: convolve(device, 16), 256),
        (lambda device: convolve(device, 3), 4096),  # the weight is padded to a block of channels
        (lambda device: convolve(device, 16, groups=4), 65536),
        (learn_to_convolve, 256),
        (lambda device: learn_to_convolve(device, of_input=True), 256),
        (lambda device: learn_to_convolve(device, stride=2), 256),
        (
            lambda device: learn_to_convolve(device, stride=2, of_input=True),
            32768,
        ),  # the gradient of the weights does not exist yet
        (lambda device: attend(device, 1024), 256),
        (lambda device: attend(device, 256), 256),
        (lambda device: attend(device, 16), 256),
    ],
)
def test_a_kernels_own_memory_follows_its_rule(
    work: Callable[[str], Any], within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuRules, "temporaries", lambda self, *call: calculated.scratch(*call))
    assert peak(work) == pytest.approx(counted(work), abs=within)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_partial_sums_of_a_weights_gradient_grow_with_the_threads_that_share_images(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only on AVX-512: a processor without it has no partial sums, whatever its number of threads."""
    monkeypatch.setattr(CpuRules, "temporaries", lambda self, *call: calculated.scratch(*call))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert peak(lambda device: learn_to_convolve(device, stride=2)) == pytest.approx(
            counted(lambda device: learn_to_convolve(device, stride=2)), abs=256
        )
    finally:
        torch.set_num_threads(before)


def test_a_row_prints_its_difference_and_the_kernels_own_memory_explains_it() -> None:
    row = calculated.Compared("train mlp", 10 * 2**20, 8 * 2**20, with_scratch=10 * 2**20)
    assert (row.equal, row.explained) == (False, True)
    assert str(row) == "   10.000      8.000     -2.000  train mlp  <- with the kernels' own memory 10.000"


def test_a_row_of_the_benchmark_is_calculated() -> None:
    peak_bytes, why = calculated.calculation(calculated.point_of("forward mlp batch=1 context=8"))
    assert why == ""
    assert peak_bytes is not None
    assert peak_bytes > 0
