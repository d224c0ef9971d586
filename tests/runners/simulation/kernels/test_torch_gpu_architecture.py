"""The dtypes that an architecture computes in."""

from __future__ import annotations

import torch

from runners.simulation.kernels.torch_gpu_architecture import why_unsupported
from tests.runners.simulation.kernels.operators import ADA, AMD, AMPERE, TURING, VOLTA


def test_a_card_does_not_compute_in_newer_dtypes() -> None:
    assert why_unsupported(AMPERE, torch.bfloat16) is None
    assert why_unsupported(TURING, torch.bfloat16) == (
        "bfloat16 needs compute capability 8.0, and this card has less: torch only emulates it there"
    )
    assert "8.9" in (why_unsupported(AMPERE, torch.float8_e4m3fn) or "")
    assert why_unsupported(ADA, torch.float8_e4m3fn) is None
    assert why_unsupported(VOLTA, torch.float16) is None
    assert why_unsupported(AMD, torch.bfloat16) is None
