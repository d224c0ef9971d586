"""Memory of indexing, sorting and sampling compared with figures computed by hand."""

from __future__ import annotations

import torch

from tests.runners.simulation.kernels.operators import aten, meta, sizes


def test_embedding_backward_sorts_above_3072_tokens() -> None:
    op = aten.embedding_dense_backward.default
    grad, tokens = meta(4, 1024, 512), meta(4, 1024, dtype=torch.int64)
    assert sizes(op, grad[:3], tokens[:3], 32000, -1, False) == []
    one = 4096 * 8
    parts = 409 + 4096  # of ten rows each, and one incomplete part a token
    assert sizes(op, grad, tokens, 32000, -1, False) == [one] * 3 + [8] + [one] * 2 + [8, parts * 8, parts * 512 * 4]
    few = 409 + 100
    assert sizes(op, grad, tokens, 100, -1, False) == [one] * 3 + [8, 800, 800, 8, few * 8, few * 512 * 4]


def test_index_put_sorts_to_accumulate() -> None:
    op = aten.index_put_.default
    tensor, where, values = (meta(1000, 64), meta(5000, dtype=torch.int64), meta(5000, 64))
    assert sizes(op, tensor, [where], values, True) == [40000] * 4 + [80000]
    assert sizes(op, tensor, [where], values) == []
    assert sizes(op, tensor, [where], meta(1, 64), True) == [40000, 5000 * 64 * 2] + [40000] * 3 + [80000]
    assert sizes(op, tensor[:256], [where], values, True) == [40000] * 4  # one pass of eight bits


def test_sort_keeps_positions_and_second_buffers_above_4096() -> None:
    op = aten.sort.default
    row = 128256
    assert sizes(op, meta(8, 4096), -1) == []
    assert sizes(op, meta(1, row, dtype=torch.float32), -1, True) == [8 * row, 12 * row]
    assert sizes(op, meta(4, row, dtype=torch.float32)) == [32 * row, 32 * row, 16 * row, 48 * row]
    assert sizes(op, meta(200, 5000)) == [8_000_000, 10_000_000]
    assert sizes(aten.sort.stable, meta(200, 5000), stable=True, dim=1) == [8_000_000, 10_000_000]


def test_sampling_draws_a_random_number_for_each_weight() -> None:
    weights = meta(4, 32000, dtype=torch.float32)
    assert sizes(aten.multinomial.default, weights, 1) == [512000]
    assert sizes(aten.multinomial.default, weights, 3, False) == [512000, 48]
    assert sizes(aten.multinomial.default, weights, 3, True) == []


def test_masked_scatter_counts_the_masked_elements_before_each() -> None:
    tensor, mask = meta(2, 10, 64), meta(2, 10, 1, dtype=torch.bool)
    assert sizes(aten.masked_scatter.default, tensor, mask.expand(2, 10, 64), tensor) == [10240, 1280]
    assert sizes(aten.masked_scatter.default, tensor, meta(2, 10, 64, dtype=torch.bool), tensor) == [10240]
