"""Memory of operators over lists compared with figures computed by hand."""

from __future__ import annotations

from tests.runners.simulation.kernels.operators import aten, meta, sizes


def test_norms_of_a_list_keep_a_number_for_each_chunk() -> None:
    tensors = [meta(100), meta(200_000)]
    assert sizes(aten._foreach_norm.Scalar, tensors, 2.0, result=()) == [2 * 4 * 4]
    assert sizes(aten._foreach_norm.Scalar, tensors, 3.0, result=()) == []
