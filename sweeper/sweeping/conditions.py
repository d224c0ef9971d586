"""The environment variables of a measured process, and the locks of its device."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from runners.device import Device
from runners.point import Point


def environ_of(point: Point, device: Device) -> dict[str, str | None]:
    """Variables that are set before the measured interpreter starts, and recorded with the attempt."""
    environ: dict[str, str | None] = {}
    if device.is_cpu or device.is_calculated:
        environ["CUDA_VISIBLE_DEVICES"] = ""  # code that uses plain `cuda` finds no device
    elif device.uuids:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuids)
    # Threads that spin while waiting slow other attempts down: 3-22 s instead of 1.1-2.4 s for one point.
    if "OMP_WAIT_POLICY" not in os.environ:
        environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if point.get("allocator") == "repeatable":
        # Fixed: glibc's own threshold rises to 32 MiB after the first free, and resident memory then varies by 93 MiB.
        environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
        # MKL's scratch memory per thread depends on the processor: a forward pass takes 944 MiB with AVX-512 and 934
        # with AVX2, which every processor of the last ten years has (931 on one without AVX-512).
        if "MKL_ENABLE_INSTRUCTIONS" not in os.environ:
            environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    if point.get("start") == "warm" and "OPENBLAS_NUM_THREADS" not in os.environ:
        environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads on import, and threads are lost in a fork
    return environ | (point.values.get("env") or {})


def locks_of(device: Device) -> tuple[str, ...]:
    """The lock files of a device's parts, shared by all sweeps of this user: one attempt at a time on each of them.

    A calculated device has none.
    """
    if device.is_calculated:
        return ()
    folder = Path(tempfile.gettempdir()) / f"sweeper-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    names = device.uuids or device.parts
    return tuple(str(folder / f"{name.replace('/', '-').replace(':', '-')}.lock") for name in names)
