"""The operators that use cuBLAS, and its workspace."""

from __future__ import annotations

from runners.simulation.kernels.torch_products import is_matmul, workspace_bytes
from tests.runners.simulation.kernels.operators import ADA, AMD, AMPERE, BLACKWELL, HOPPER, VOLTA, aten


def test_the_cublas_workspace_is_larger_from_hopper_on() -> None:
    assert [workspace_bytes(each) for each in (VOLTA, AMPERE, ADA)] == [8519680] * 3
    assert [workspace_bytes(each) for each in (HOPPER, BLACKWELL)] == [33554432] * 2
    assert workspace_bytes(AMD) == 134217728


def test_products_use_a_cublas_handle_and_sums_do_not() -> None:
    assert all(map(is_matmul, (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.addmm.out)))
    assert not any(map(is_matmul, (aten.add.Tensor, aten.convolution.default)))
