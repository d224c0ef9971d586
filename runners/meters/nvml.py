"""Reads a device through NVIDIA's management library (nvidia-ml-py): the driver, the processes, the bytes used.

Without torch, for the supervisor. NVML numbers devices in its own order and ignores CUDA_VISIBLE_DEVICES, so a device
is named by its UUID. A process opens one session, at the first call, and keeps it: opening takes most of the time of a
reading. A library that is missing, damaged or of another version gives None.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import NamedTuple


class Other(NamedTuple):
    """A process on a device. Its memory is None where the driver does not report it (WSL, some containers, MIG)."""

    pid: int
    used_bytes: int | None
    only_graphics: bool = False  # as a display server: it computes nothing


def driver_version() -> str | None:
    """The version of the NVIDIA driver; None without NVML."""
    nvml = _session()
    if nvml is None:
        return None
    try:
        version = nvml.nvmlSystemGetDriverVersion()
    except Exception:
        return None
    return version.decode() if isinstance(version, bytes) else str(version)


def others_on(uuid: str) -> list[Other] | None:
    """The other processes on a device, by pid; None where they cannot be read.

    In a container the pids can be the host's, or missing: this process then counts as another.
    """
    nvml = _session()
    if nvml is None:
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        computing = {int(each.pid): each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        drawing = {int(each.pid): each.usedGpuMemory for each in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)}
    except Exception:
        return None
    used = drawing | computing
    return [
        Other(pid, None if used[pid] is None else int(used[pid]), pid not in computing)
        for pid in sorted(used)
        if pid != os.getpid()
    ]


def used_bytes(uuid: str) -> int | None:
    """The bytes used on a device by all processes; None where they cannot be read.

    Without what the driver keeps for itself, which is 0.3 GiB on small and above 1 GiB on large cards. Old drivers and
    libraries (before version 2 of the structure) count it.
    """
    nvml = _session()
    if nvml is None:
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
        except Exception:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:
        return None


def process_name(pid: int) -> str | None:
    """The command of a process on a device according to the driver; /proc may have another process under that pid."""
    nvml = _session()
    if nvml is None:
        return None
    try:
        name = nvml.nvmlSystemGetProcessName(pid)
    except Exception:
        return None
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


_opened: tuple[int, ModuleType] | None = None  # the process that opened the session: a fork opens its own


def _session() -> ModuleType | None:
    global _opened
    if _opened is None or _opened[0] != os.getpid():
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no library, or no driver
            return None
        _opened = os.getpid(), pynvml
    return _opened[1]
