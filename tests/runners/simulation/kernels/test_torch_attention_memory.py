"""Memory of the attention kernels compared with figures computed by hand."""

from __future__ import annotations

import pytest
import torch

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from tests.runners.simulation.kernels.operators import ADA, AMPERE, HOPPER, aten, meta, sizes

FLASH, FLASH_BACKWARD = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
)
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def test_few_queries_split_the_keys() -> None:
    # 8 groups, 4096 keys in 32 blocks of 128, 216 blocks at once: 16 parts use 128 of 216 and 32 parts 256 of 432, both
    # 59 %. The numbers between divide the blocks no differently, and 11 parts use 41 %.
    query, key = meta(1, 32, 1, 128), meta(1, 8, 4096, 128)
    rows = 16 * 8 * 4
    assert sizes(FLASH, query, key, key, 0.0, False, scale=0.1) == [rows * 4, rows * 128 * 4]
    # 114 multiprocessors run 228 blocks at once: again 16 parts. With 4 multiprocessors nothing is split.
    assert sizes(FLASH, query, key, key, arch=GpuArchitecture("nvidia", (9, 0), 114)) == [rows * 4, rows * 128 * 4]
    assert sizes(FLASH, query, key, key, arch=GpuArchitecture("nvidia", (8, 6), 4)) == []


def test_with_many_queries_or_dropout_the_keys_are_not_split() -> None:
    query = meta(8, 32, 1024, 128)
    assert sizes(FLASH, query, query, query, 0.0, True) == []
    assert sizes(FLASH, meta(1, 8, 1, 128), query[:1, :8], query[:1, :8], 0.1, False) == [16]


def test_flash_backward_has_sums_in_float32_and_the_gradients_of_every_head() -> None:
    query, key = meta(2, 200, 8, 96).transpose(1, 2), meta(2, 200, 2, 96).transpose(1, 2)
    rows = 2 * 8 * 256
    grads = [2 * 200 * 8 * 96 * 2] * 2
    args = (query, query, key, key, query)
    assert sizes(FLASH_BACKWARD, *args, result=()) == [rows * 4, rows * 96 * 4, *grads]
    plain = meta(2, 8, 200, 96)
    copies = [2 * 200 * 8 * 96 * 2] * 2
    args = (plain, query, query, query, plain)
    assert sizes(FLASH_BACKWARD, *args, result=()) == [*copies, rows * 4, rows * 96 * 4]


def test_the_efficient_kernel_keeps_a_wide_result_in_float32() -> None:
    op = aten._scaled_dot_product_efficient_attention.default
    wide, narrow = meta(2, 8, 64, 256), meta(2, 8, 64, 128)
    assert sizes(op, wide, wide, wide, None, False) == [2 * 8 * 64 * 256 * 4]
    assert sizes(op, narrow, narrow, narrow, None, False) == []
    assert sizes(op, wide.float(), wide.float(), wide.float(), None, False) == []


@pytest.mark.parametrize(
    ("arch", "head", "dtype", "workspace"),
    [
        (AMPERE, 64, torch.bfloat16, 16 * 16 * (4 + 64 * 64) * 4),
        (AMPERE, 64, torch.float32, 16 * 16 * (4 + 64 * 64) * 4),
        (AMPERE, 128, torch.bfloat16, 16 * 8 * (4 + 128 * 128) * 4),
        (ADA, 96, torch.bfloat16, 16 * 8 * 2 * (4 + 128 * 64) * 4),
        (AMPERE, 256, torch.bfloat16, 16 * (8 * 4 * (4 + 128 * 64) + 12 * 64 * (256 + 256)) * 4),  # 200 // 16 parts
    ],
)
def test_efficient_backward_has_tiles_of_the_gradient_of_queries(
    arch: GpuArchitecture, head: int, dtype: torch.dtype, workspace: int
) -> None:
    tensor = meta(2, 1024, 8, head, dtype=dtype).transpose(1, 2)
    assert sizes(EFFICIENT_BACKWARD, *[tensor] * 4, arch=arch, result=()) == [2 * 8 * 1024 * 4, workspace]
    plain = meta(2, 8, 1024, head, dtype=dtype)
    copy = plain.numel() * plain.element_size()
    assert sizes(EFFICIENT_BACKWARD, plain, *[tensor] * 3, arch=arch, result=())[0] == copy


def test_cudnn_backward_has_the_gradient_of_queries_in_float32() -> None:
    tensor = meta(2, 8, 1024, 128)
    op = aten._scaled_dot_product_cudnn_attention_backward.default
    assert sizes(op, *[tensor] * 4, arch=HOPPER, result=()) == [2 * 8 * 1024 * 129 * 4]
