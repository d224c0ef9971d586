"""Matrix products: which operators use cuBLAS, and the workspace of its handle."""

from __future__ import annotations

import torch

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_sizes import MIB

MATMULS = {
    f"aten.{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear"),
        *("_addmm_activation", "_scaled_mm", "_int_mm"),
    )
}


def is_matmul(op: torch._ops.OpOverload) -> bool:
    """Whether the operator uses a cuBLAS handle. The first use allocates its workspace, which then stays."""
    return str(op.overloadpacket) in MATMULS


def workspace_bytes(arch: GpuArchitecture) -> int:
    """Bytes of the workspace of one handle and stream, which cuBLASLt shares.

    aten/src/ATen/cuda/CublasHandlePool.cpp: 2 x 4 MiB + 8 x 16 KiB, 32 MiB from Hopper on, 128 MiB on MI300 and MI350.
    """
    if arch.vendor == "amd":
        return 128 * MIB
    assert arch.capability
    return 32 * MIB if arch.capability[0] >= 9 else 2 * 4 * MIB + 8 * 16 * 1024
