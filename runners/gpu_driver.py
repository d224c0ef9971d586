"""Whether this process has initialised a GPU's driver. A fork of such a process cannot use a GPU.

Any library can do that as it is imported, by counting devices. torch does not notice if the library is not torch.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

# Open as long as the driver is initialised for computing. NVML, which only reads, opens neither.
OPEN_FILES = ("/dev/nvidia-uvm", "/dev/kfd")
LIBRARY = "libcuda.so"
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED, the answer of every call before cuInit
# With this, torch.cuda.is_available() and device_count() ask NVML instead of the driver ("will NOT poison fork").
ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def initialised() -> str | None:
    """How it shows that the driver was initialised, in a few words; None if it was not."""
    with suppress(Exception):
        if sys.modules["torch"].cuda.is_initialized():
            return "torch.cuda is initialised"
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                if path in OPEN_FILES:
                    return f"{path} is open"
    with suppress(OSError, AttributeError):
        if _is_loaded(LIBRARY):
            import ctypes

            if ctypes.CDLL(f"{LIBRARY}.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED:
                return "the CUDA driver is initialised"
    return None


def _is_loaded(library: str) -> bool:
    return f"/{library}" in Path("/proc/self/maps").read_text(errors="replace")
