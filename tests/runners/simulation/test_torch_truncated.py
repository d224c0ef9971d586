from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from runners.meters.torch_tensors import TensorTracker
from tests.measuring import MIB
from tests.programs import H100, HOST, calculated

BOUNDS = {"about all": (-2.0, 2.0), "a tail": (1.0, 3.0)}


@pytest.mark.parametrize("bounds", BOUNDS)
def test_truncated_normal_weights_take_what_a_cpu_takes(bounds: str) -> None:
    def program(**_: Any) -> list[int]:
        weight = nn.init.trunc_normal_(torch.empty(512, 512), 0.0, 1.0, *BOUNDS[bounds])
        return list(weight.shape)

    with TensorTracker() as tracker:
        program()
    found = calculated(program, HOST)
    assert found.returned == {"result": [512, 512]}
    assert found.peaks["tensor"] == pytest.approx(tracker.peak, rel=0.001)


def test_truncated_normal_weights_are_drawn_on_a_card_that_is_named() -> None:
    def program(device: str) -> int:
        return nn.init.trunc_normal_(torch.empty(512, 512, device=device), std=0.02).nbytes

    found = calculated(program, H100)
    assert found.returned == {"result": MIB}
    assert 3 * MIB < found.peaks["requested"] < 6 * MIB  # the weight, those of two rounds, and masks


def test_more_truncated_normal_weights_than_are_drawn_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.simulation.torch_draws.MOST_OF_ROUNDS", 1000)
    found = calculated(lambda device: nn.init.trunc_normal_(torch.empty(500)).nbytes, HOST)
    assert any("random numbers that are drawn" in note for note in found.notes)
