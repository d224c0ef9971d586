"""What a measured process is given before it starts: environment variables, and the locks of its device."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from runners.device import Device
from runners.point import Point


def environ_of(point: Point, device: Device) -> dict[str, str | None]:
    """What is set in the measured process's environment before its interpreter starts, and recorded with it."""
    environ: dict[str, str | None] = {}
    if device.is_cpu or device.is_calculated:
        environ["CUDA_VISIBLE_DEVICES"] = ""  # code that says plain `cuda` cannot land on a device nobody asked for
    elif device.uuids:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuids)
    # Threads that wait spinning take the cores of whoever else is measured: 3-22 s instead of 1.1-2.4 s for one point.
    if "OMP_WAIT_POLICY" not in os.environ:
        environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if point.get("allocator") == "repeatable":
        # A fixed threshold: glibc's own rises to 32 MiB after the first free, and then resident varies by 93 MiB.
        environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
        # MKL's scratch, kept per thread, hangs on the processor: 944 MiB for a forward pass with AVX-512, 934 with
        # AVX2, which every processor of the last ten years has (931 on one without AVX-512).
        if "MKL_ENABLE_INSTRUCTIONS" not in os.environ:
            environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    if point.get("start") == "warm" and "OPENBLAS_NUM_THREADS" not in os.environ:
        environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts a thread when it is imported, and threads do not fork
    return environ


def locks_of(device: Device) -> tuple[str, ...]:
    """One file per device of this machine, for every sweep of this user: one attempt at a time on a device. None of
    one that is calculated, which is no thing that could be in use."""
    if device.is_calculated:
        return ()
    folder = Path(tempfile.gettempdir()) / f"sweeper-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    names = device.uuids or device.parts
    return tuple(str(folder / f"{name.replace('/', '-').replace(':', '-')}.lock") for name in names)
