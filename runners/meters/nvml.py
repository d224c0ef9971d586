"""What NVIDIA's management library knows of a device, where nvidia-ml-py is installed: the driver, and who is on it.

Without torch, so that a supervisor can ask. NVML counts devices in an order of its own and ignores
CUDA_VISIBLE_DEVICES: a device is named by its UUID, never by an index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple


class Other(NamedTuple):
    """A process on a device. Its memory is None where the driver does not tell (WSL, some containers, MIG)."""

    pid: int
    used_bytes: int | None


def driver_version() -> str | None:
    """The version of the NVIDIA driver, or None where there is nobody to ask."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        try:
            version = nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError:
            return None
    return version.decode() if isinstance(version, bytes) else str(version)


def others_on(uuid: str) -> list[Other] | None:
    """The processes on a device other than this one, by pid; None where they cannot be asked for: not measured.

    In a container the pids are the host's, if there are any: then this process cannot be told from the others.
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
    """What is used on a device, whoever uses it; None where it cannot be asked for."""
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
