"""Memory of softmax and norms compared with figures computed by hand."""

from __future__ import annotations

import torch

from tests.runners.simulation.kernels.operators import aten, meta, sizes


def test_a_safe_softmax_holds_two_results_and_a_mask() -> None:
    scores = meta(2, 4, 16, 32, dtype=torch.float32)
    assert sizes(aten._safe_softmax.default, scores, -1) == [16384, 4, 4096, 128, 4]


def test_softmax_backward_multiplies_first_and_log_softmax_does_not() -> None:
    scores = meta(2, 4, 16, 32)
    assert sizes(aten._softmax_backward_data.default, scores, scores, -1, torch.bfloat16) == [8192]
    assert sizes(aten._log_softmax_backward_data.default, scores, scores, -1, torch.bfloat16) == []
    turned = meta(2, 4, 32, 16).transpose(2, 3)
    assert sizes(aten._log_softmax_backward_data.default, turned, scores, -1, torch.bfloat16) == [8192]


def test_the_backward_of_a_norm_sums_many_short_rows_by_blocks() -> None:
    many, few, weight = meta(131072, 512), meta(1024, 512), meta(512)
    layer, rms = aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default
    sums = 2048 * 512 * 2
    rest = ([512], None, None, weight, weight, [True, True, True])
    assert sizes(layer, many, many, *rest, result=()) == [sums, sums]
    assert sizes(layer, few, few, *rest, result=()) == []
    assert sizes(rms, many, many, [512], None, weight, [True, True], result=()) == [sums]
    assert sizes(rms, many, many, [512], None, weight, [True, False], result=()) == []
