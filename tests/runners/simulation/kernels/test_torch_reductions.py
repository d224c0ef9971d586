"""Memory of reductions compared with figures computed by hand."""

from __future__ import annotations

import pytest
import torch

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from tests.runners.simulation.kernels.operators import AMPERE, HOPPER, TURING, aten, meta, sizes


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [(AMPERE, 54), (HOPPER, 66), (GpuArchitecture("nvidia", (9, 0), 114), 57), (TURING, 10)],
)
def test_a_sum_of_columns_has_a_buffer_for_every_thread(arch: GpuArchitecture, blocks: int) -> None:
    # 8192 rows, 4096 columns: a thread has 4 columns and a block 32 x 4 threads, so there are 32 columns of blocks,
    # each with as many blocks as fill the card: 108 x 2048 / 128 / 32 on an A100, 40 x 1024 / 128 / 32 on a T4.
    buffer = 4 * 4096 * blocks * 32 * 4
    assert sizes(aten.sum.dim_IntList, meta(8192, 4096), [0], arch=arch) == [buffer, 4 * 32]
    assert sizes(aten.sum.dim_IntList, meta(4, 2048, 4096), [0, 1], arch=arch) == [buffer, 4 * 32]


def test_a_sum_of_everything_has_one_number_for_each_block() -> None:
    tensor = meta(4096, 4096, dtype=torch.float32)
    assert sizes(aten.sum.default, tensor) == [4 * 432, 4]  # 512 threads: 4 blocks on each of 108
    assert sizes(aten.mean.default, tensor) == [4 * 432, 4]
    assert sizes(aten.linalg_vector_norm.default, tensor) == [4 * 432, 4]


def test_sums_of_rows_need_no_buffer() -> None:
    assert sizes(aten.mean.dim, meta(8, 1024, 4096), [-1], True) == []
    assert sizes(aten.sum.dim_IntList, meta(8, 0), [0]) == []
    assert sizes(aten.sum.default, meta()) == []


def test_counting_a_mask_converts_it_first() -> None:
    assert sizes(aten.sum.dim_IntList, meta(8, 1024, dtype=torch.bool), [1]) == [65536]
    assert sizes(aten.sum.dim_IntList, meta(8, 1024), [1], dtype=torch.float32) == []


def test_argmax_keeps_a_value_and_an_index_for_each_block() -> None:
    assert sizes(aten.argmax.default, meta(1, 128256, dtype=torch.float32), -1) == []
    # 512 threads with 297 elements each, at least 16 a block: 19 blocks.
    assert sizes(aten.argmax.default, meta(1, 151936, dtype=torch.float32), -1) == [16 * 19, 4]


def test_a_sum_over_more_than_two_gibibytes_runs_in_halves() -> None:
    # Half of 131072 rows, 128 columns of blocks; 16384 rows a thread, at most 256 a block: 64 blocks.
    assert sizes(aten.sum.dim_IntList, meta(131072, 16384), [0]) == [4 * 16384 * 64 * 32 * 4, 4 * 128]
