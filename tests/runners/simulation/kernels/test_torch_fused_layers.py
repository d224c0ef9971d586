"""Layers that CUDA runs in one operator without gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.programs import H100, HOST, MIB, Calculated, calculated

BATCH, LENGTH, WIDTH, HEADS = 4, 64, 256, 8
ROWS = BATCH * LENGTH * WIDTH * 4  # bytes of the input, and of each of query, key, value and output
SCORES = BATCH * HEADS * LENGTH * LENGTH * 4
ATTENTION = (4 * WIDTH * WIDTH + 4 * WIDTH) * 4  # bytes of the layer's parameters
WORKSPACE = 32 * MIB


def attending(padding: bool = False, **options: Any) -> Calculated:
    """What is held beside the parameters, the input and the workspace at the peak of one layer without gradients."""

    def program(device: str) -> dict[str, Any]:
        layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, device=device).eval()
        given = torch.randn(BATCH, LENGTH, WIDTH, device=device)
        mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool, device=device) if padding else None
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            _, weights = layer(given, given, given, key_padding_mask=mask, **options)
        shape = None if weights is None else list(weights.shape)
        return {"peak": torch.cuda.max_memory_allocated() - before - WORKSPACE, "weights": shape}

    return calculated(program)


def test_self_attention_holds_its_projections_until_it_returns() -> None:
    found = attending(need_weights=False).returned
    assert found == {"peak": 3 * ROWS + ROWS + ROWS, "weights": None}  # projections, attended, output


def test_weights_are_computed_from_all_scores() -> None:
    found = attending(need_weights=True).returned
    # query, key and value in one tensor and the scores; then the attended rows, the output and the scores' mean
    assert found == {"peak": 3 * ROWS + SCORES + 2 * ROWS + SCORES // HEADS, "weights": [BATCH, LENGTH, LENGTH]}


def test_a_mask_makes_a_second_tensor_of_scores() -> None:
    masks = BATCH * LENGTH * 4 + 512  # the layer's own in float32, and again in bool
    assert attending(padding=True, need_weights=False).returned["peak"] == 3 * ROWS + 2 * SCORES + masks


def encoding(norm_first: bool, fast: bool) -> Calculated:
    def program(device: str) -> dict[str, int]:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=norm_first)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).eval()
        given = torch.randn(BATCH, LENGTH, WIDTH, device=device)
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            model(given)
        return {"peak": torch.cuda.max_memory_allocated() - before - WORKSPACE}

    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        return calculated(program)
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_without_gradients_holds_less_in_one_operator_a_layer(norm_first: bool) -> None:
    fused, apart = (encoding(norm_first, fast).returned["peak"] for fast in (True, False))
    assert 5 * ROWS < fused <= apart


@pytest.mark.parametrize("card", [H100, HOST])
def test_nested_tensors_of_a_padded_batch_are_refused_with_the_way_around_them(card: Any) -> None:
    def program(device: str) -> None:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 1).to(device).eval()
        mask = torch.zeros(2, 8, dtype=torch.bool, device=device)
        with torch.no_grad():
            model(torch.randn(2, 8, 32, device=device), src_key_padding_mask=mask)

    error = calculated(program, card).error
    assert error is not None
    assert "enable_nested_tensor=False" in error
