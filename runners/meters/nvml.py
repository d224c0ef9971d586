"""Reads a device through NVIDIA's management library (nvidia-ml-py): the driver, the processes, the bytes used.

Without torch, for the supervisor. NVML numbers devices in its own order and ignores CUDA_VISIBLE_DEVICES, so a device
is named by its UUID.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple


class Other(NamedTuple):
    """A process on a device. Its memory is None where the driver does not report it (WSL, some containers, MIG)."""

    pid: int
    used_bytes: int | None


def driver_version() -> str | None:
    """The version of the NVIDIA driver; None without NVML."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        try:
            version = nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError:
            return None
    return version.decode() if isinstance(version, bytes) else str(version)


def others_on(uuid: str) -> list[Other] | None:
    """The other processes on a device, by pid; None where they cannot be read.

    In a container the pids can be the host's, or missing: this process then counts as another.
    """
    with _nvml() as nvml:
        if nvml is None:
            return None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = [
                *nvml.nvmlDeviceGetComputeRunningProcesses(handle),
                *nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
            ]
        except nvml.NVMLError:
            return None
    used = {int(process.pid): process.usedGpuMemory for process in running}
    return [Other(pid, None if used[pid] is None else int(used[pid])) for pid in sorted(used) if pid != os.getpid()]


def used_bytes(uuid: str) -> int | None:
    """The bytes used on a device by all processes; None where they cannot be read."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid)).used)
        except nvml.NVMLError:
            return None


@contextmanager
def _nvml() -> Iterator[ModuleType | None]:
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
