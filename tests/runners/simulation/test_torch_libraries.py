"""The optimizers of bitsandbytes, whose kernels are compiled code. Skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.programs import H100, HOST, MIB, calculated
from tests.tracing import real_peak

bitsandbytes = pytest.importorskip("bitsandbytes")

Program = Callable[[str], None]
WIDTH = 512


def training(name: str, **options: Any) -> Program:
    def program(device: str) -> None:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
        optimizer = getattr(bitsandbytes.optim, name)(model.parameters(), lr=1e-3, **options)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, WIDTH, device=device)).sum().backward()
            optimizer.step()

    return program


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW8bit", {}),
        ("PagedAdamW8bit", {}),
        ("PagedAdamW32bit", {}),
        ("Lion8bit", {}),
        ("AdEMAMix8bit", {}),
        ("SGD8bit", {"momentum": 0.9}),
    ],
)
def test_an_optimizer_of_bitsandbytes_takes_the_tensors_of_a_measured_one(name: str, options: dict[str, Any]) -> None:
    found = calculated(training(name, **options), HOST)
    assert found.error is None
    assert found.peaks["tensor"] == pytest.approx(real_peak(training(name, **options)), rel=0.0005)


def held(name: str) -> int:
    """What the state of an optimizer holds on the card after a step."""

    def program(device: str) -> dict[str, int]:
        parameter = nn.Parameter(torch.zeros(MIB, device=device))
        parameter.grad = torch.zeros_like(parameter)
        optimizer = getattr(bitsandbytes.optim, name)([parameter])
        before = torch.cuda.memory_allocated()
        optimizer.step()
        return {"bytes": torch.cuda.memory_allocated() - before}

    found: int = calculated(program, H100).returned["bytes"]
    return found


def test_states_of_eight_bits_take_two_bytes_a_parameter_and_two_scales_a_block() -> None:
    tables = 2 * 256 * 4  # the numbers that a byte stands for, signed and not
    scales = 2 * MIB // 256 * 4
    assert 2 * MIB + scales <= held("AdamW8bit") <= 2 * MIB + scales + 2 * tables


def test_paged_states_are_not_in_the_allocators_memory() -> None:
    assert held("PagedAdamW32bit") == 0
    assert held("AdamW32bit") == 8 * MIB
