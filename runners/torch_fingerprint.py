"""The environment of an attempt, as far as it changes memory use: versions, device, settings. No names, no secrets."""

from __future__ import annotations

import sys
from typing import Any

import torch

from runners import fingerprint
from runners.point import Attempt


def record(attempt: Attempt) -> dict[str, Any]:
    """One flat record, the same for every attempt in the same environment."""
    version = torch.version
    found: dict[str, Any] = fingerprint.record(attempt) | {
        "torch": str(torch.__version__),
        "backend": "cuda" if version.cuda else "hip" if getattr(version, "hip", None) else "cpu",
        "backend_version": version.cuda or getattr(version, "hip", None),
        "libraries": {name: _version(name) for name in fingerprint.LIBRARIES[1:] if name in sys.modules},
        "threads": torch.get_num_threads(),
    }
    if attempt.device.is_cpu:
        return found
    if attempt.device.card is not None:
        from runners.simulation import simulate

        return found | simulate.describe(attempt.device.card)
    from runners.meters import cuda

    return found | cuda.describe(0)


def use_kernels_once() -> None:
    """Run one small operation: it puts the pages of the commonest kernels (3 MiB of files) into the baseline."""
    torch.ones(2**12).add_(1)


def start_threads() -> None:
    """Run one parallel operation, so that the worker threads exist before a budget limits memory.

    Under RLIMIT_DATA a thread that cannot start ends the process without an exception (libgomp: Thread creation
    failed). 2**17 elements are four times at::internal::GRAIN_SIZE, below which nothing runs in parallel. Without a
    budget the threads start when the workload first needs them, as in a user's own run: 72 MiB of address space each.
    """
    torch.ones(2**17).add_(1)


def _version(library: str) -> str | None:
    version = getattr(sys.modules[library], "__version__", None)
    return None if version is None else str(version)
