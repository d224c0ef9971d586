"""A workload on tensors without data gives the bytes that the same workload takes with data."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.following import peak, real_peak

KIB = 2**10


def test_an_operator_with_a_kernel_of_its_own_is_not_taken_apart() -> None:
    def work(device: str) -> None:
        x = torch.randn(256 * KIB, device=device, requires_grad=True)
        functional.silu(x).backward(torch.ones(256 * KIB, device=device))

    assert peak(work) == real_peak(work)
