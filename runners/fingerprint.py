"""What has to be equal for one attempt to replace another at the same point: versions, settings, the workload's code.

A short-lived process under the measured interpreter (`main`) reads versions and settings once a sweep, for every
request. Each measured process hashes the code itself, since a file can be edited while a sweep runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from runners import facts, launch_command, libraries
from runners.meters import cpu, nvml
from runners.point import Attempt, Point, canonical
from runners.reply import reply

# The only environment variables that are recorded: each changes memory use or decides what runs.
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
# The UUID of the device stands for these.
NOT_COMPARED = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
LARGEST_CODE = 4 * 2**20  # bytes of a file among a program's arguments; larger ones are data
LIBRARIES = ("torch", "numpy", "transformers", "peft", "accelerate", "bitsandbytes", "torchao", "lightning")


def main(arguments: list[str]) -> None:
    """Answer with one JSON line, {"identity": {...}, "code": {names: hash}, "missing": [library], "install": command}.

    The first argument names the workloads, the second optional libraries.
    """
    reply(lambda: _answer(json.loads(arguments[0]), json.loads(arguments[1])))


def _answer(workloads: Sequence[Sequence[str]], needed: Sequence[str]) -> dict[str, Any]:
    launch_command.search_current_folder()
    code = {canonical(names): code_of(names) for names in workloads}  # imports the package that a module is in
    missing = [name for name in needed if not libraries.is_installed(name)]
    install = libraries.installation(*missing)
    return {"identity": identity(), "code": code, "missing": missing, "install": install}


def identity() -> dict[str, str | None]:
    """The versions and settings that are compared, as one flat record; None for what is missing."""
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


def record(attempt: Attempt) -> dict[str, Any]:
    """The environment of an attempt, as far as it is known without torch. No names of users, no secrets."""
    on_cpu = attempt.device.is_cpu
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": None,
        "backend": None,
        "backend_version": None,
        "libraries": {},
        "threads": None,
        "transparent_huge_pages": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "variables": variables(os.environ),
        "workload_code": code_of(code_names(attempt.point)),
        "device_name": cpu.name() if on_cpu else None,
        "device_uuid": attempt.device.uuid,
        "device_total_bytes": cpu.total_memory_bytes() if on_cpu else None,
        "allocator_backend": "malloc" if on_cpu else None,
        "driver": None if on_cpu else nvml.driver_version(),
    }


def fact(record: Mapping[str, Any]) -> facts.Environment:
    """The journal's fact of a record, by this process and now."""
    return facts.Environment(os.getpid(), datetime.now(timezone.utc).isoformat(), record)


def code_names(point: Point) -> list[str]:
    """The arguments of `code_of`: the user's function, the program's arguments or the workload's name; then the user's
    metric and the file of inputs, if the point has them."""
    argv = point.get("workload.argv")
    workload = canonical(argv) if argv else str(point.get("workload.target") or point["workload"])
    context = (point.get("quality.target"), point.get("inputs.file"))
    return [workload, *(str(name) for name in context if name is not None)]


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in VARIABLES if name in environ}


def code_of(names: Sequence[str]) -> str | None:
    """A hash of the files that are measured; None if there are none.

    They are the user's file for `module:function`, the files among a program's arguments, or our own workloads and
    models; then the metric's file and the files of inputs. Modules that they import are not hashed: the versions of
    libraries are compared.
    """
    workload, *context = names
    files = [*_files_of(workload), *(file for name in context for file in _read_by(name) or _files_of(name))]
    digest = hashlib.sha256()
    for file in files:
        seen = file.stat()
        # A large file is data: reading all of it before each attempt would take longer than many attempts.
        large = seen.st_size > LARGEST_CODE
        digest.update(f"{seen.st_size} {seen.st_mtime_ns}".encode() if large else file.read_bytes())
    return digest.hexdigest()[:16] if files else None


def _files_of(name: str) -> list[Path]:
    if name.startswith("["):
        named = [Path(word) for word in json.loads(name) if os.path.isfile(word)]
        return [file for file in named if file.stat().st_size <= LARGEST_CODE]
    if ":" in name:
        origin = _file_of(name.partition(":")[0])
        return [Path(origin)] if origin is not None and Path(origin).is_file() else []
    ours = Path(__file__).parent
    return sorted(file for room in ("models", "workloads") for file in (ours / room).glob("*.py"))


def _read_by(name: str) -> list[Path]:
    """The files at a path; none if the name is not a path."""
    path = Path(name).expanduser()
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    return [path] if path.is_file() else []


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().splitlines()[0]
    except (OSError, IndexError):
        return None


def _file_of(module: str) -> str | None:
    """The file of a module, without importing it."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin
