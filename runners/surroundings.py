"""What decides whether two attempts at a point can stand for each other: versions, settings, the workload's own code.

Asked once a sweep, in a short-lived process under the measured interpreter (`main`), and written into each request; the
code's own hash is taken by each measured process, since a file can be edited while a sweep runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from runners.meters import cpu, nvml

# The only environment variables that are ever written down: each of them moves memory or decides what runs.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "GLIBC_TUNABLES",
    "HF_HUB_OFFLINE",
    "HIP_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CUDNN_V8_API_DISABLED",
)
# Which devices are visible is said by the device's own UUID.
NOT_COMPARED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
LIBRARIES = ("torch", "numpy", "transformers", "peft", "accelerate", "bitsandbytes", "torchao", "lightning")


def main(arguments: list[str]) -> None:
    """Print what there is now, as one JSON line: {"identity": {...}, "code": {name: hash}}, of the workloads named."""
    # Where the measured process will look for a user's module first.
    sys.path.insert(0, os.getcwd())
    code = {name: code_of(name) for name in json.loads(arguments[0])}
    print(json.dumps({"identity": identity(), "code": code}))


def identity() -> dict[str, str | None]:
    """One flat record. What is not there is None."""
    from importlib import metadata

    def version(library: str) -> str | None:
        try:
            return metadata.version(library)
        except metadata.PackageNotFoundError:
            return None

    compared = [name for name in VARIABLES if name not in NOT_COMPARED]
    return {
        "python": platform.python_version(),
        "processor": cpu.name(),
        "driver": nvml.driver_version(),
        **{library: version(library) for library in LIBRARIES},
        **{name: os.environ.get(name) for name in compared},
    }


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in VARIABLES if name in environ}


def code_of(name: str) -> str | None:
    """A hash of the code that is measured: of the user's file for `module:function`, else of the workloads we bring.

    What that file imports is not in it, but for the libraries whose versions are compared. None if there is no file.
    """
    module, colon, _ = name.partition(":")
    if not colon:
        files = sorted((Path(__file__).parent / "workloads").glob("*.py"))
    else:
        origin = _file_of(module)
        if origin is None or not Path(origin).is_file():
            return None
        files = [Path(origin)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _file_of(module: str) -> str | None:
    """Where a module comes from, without running it."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin
