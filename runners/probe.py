"""A short-lived process that reports what one interpreter can measure.

The orchestrator has no torch, and the measured interpreter may be another one. So this module runs under the measured
interpreter, with `{"devices": true, "target": "mywork:run"}` as its argument, and prints one JSON line. A part that
fails reports the root cause in one line and does not affect the others.

    python      version; executable
    torch       version, or None and the reason in torch_error. Imported only with `devices`
    backend     cuda, hip or cpu: what torch was built for; backend_version, driver
    gpus        [{index, name, uuid, total_bytes, idle, capability, error}] in torch's order; gpus_error: why there are
                none. A GPU that cannot be opened has an index and the error alone
    cpu         name, cores, total_bytes, available_bytes, guard_bytes, phase_peaks; phase_peaks_error: why not
    libraries   version of each distribution, None where it is not installed
    install     the command that installs each distribution that is missing
    target      of a user's function: parameters it takes by name, required, takes_any, takes_phase; or error

The syntax is that of Python 3.8, so that an interpreter that is too old can report it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import platform
import sys
import traceback
import warnings
from pathlib import Path

from runners import reply

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

# By distribution: those that `environment` lists.
LIBRARIES = (
    "transformers",
    "peft",
    "numpy",
    "torchao",
    "bitsandbytes",
    "optimum-quanto",
    "pillow",
    "nvidia-ml-py",
    "amdsmi",
)
# The probe's own context, where it has one, and what small tools hold take less than this; any workload takes more.
IDLE_BELOW_BYTES = 2**30
MIB = 2**20


def main(arguments: Sequence[str]) -> None:
    request = json.loads(arguments[0]) if arguments else {}
    reply.reply(lambda: probe(devices=bool(request.get("devices")), target=request.get("target")))


def probe(devices: bool, target: str | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable}
    answer.update(_torch() if devices else _no_torch(None))
    answer["cpu"] = _cpu()
    answer["libraries"] = {name: _version(name) for name in LIBRARIES}
    answer["install"] = _installations(name for name, version in answer["libraries"].items() if version is None)
    answer["target"] = None if target is None else _target(target)
    return answer


# --- torch and its devices --------------------------------------------------------------------------------------------


def _no_torch(error: str | None) -> dict[str, Any]:
    return {
        "torch": None,
        "torch_error": error,
        "backend": None,
        "backend_version": None,
        "driver": None,
        "gpus": [],
        "gpus_error": error,
    }


def _torch() -> dict[str, Any]:
    too_old = _too_old()
    if too_old is not None:
        return _no_torch(too_old)
    # With NVML, counting devices creates no context on them.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch = importlib.import_module("torch")
            version = str(torch.__version__)
    except BaseException as error:  # a broken installation raises anything, SystemExit included
        libraries = importlib.import_module("runners.libraries")
        return _no_torch(libraries.why_not_imported("torch", error, root_cause(error)))
    answer = _no_torch(None)
    answer["torch"] = version
    answer["backend"], answer["backend_version"] = _backend(torch)
    answer["driver"] = _driver(answer["backend"])
    answer["gpus"], answer["gpus_error"] = _gpus(torch, answer["backend"])
    return answer


def _too_old() -> str | None:
    if sys.version_info[:2] >= reply.OLDEST_PYTHON:
        return None
    return f"Python {platform.python_version()} is too old: 3.10 or newer is needed"


def _backend(torch: Any) -> tuple[str, str | None]:
    built_for = getattr(torch, "version", None)
    for backend in ("hip", "cuda"):
        version = getattr(built_for, backend, None)
        if version:
            return backend, str(version)
    return "cpu", None


def _gpus(torch: Any, backend: str) -> tuple[list[dict[str, Any]], str | None]:
    if backend == "cpu":
        return [], f"this torch ({torch.__version__}) is built without CUDA and ROCm"
    try:
        # Before they are counted: until then torch counts with NVML, which knows cards that CUDA does not give to this
        # process (of a card in MIG mode it gives one slice). This creates no context.
        torch.cuda.init()
        count = torch.cuda.device_count()
    except BaseException as error:
        return [], _hidden() or root_cause(error)
    gpus = [_gpu_or_error(torch, index, backend) for index in range(count)]
    return gpus, None if count else _hidden() or "torch sees no device"


def _hidden() -> str | None:
    """The environment variable that hides every GPU, in one line; None if none does."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = os.environ.get(variable)
        if value is not None and value.strip() in ("", "-1"):
            return f"{variable}={value!r} hides every device"
    return None


def _gpu_or_error(torch: Any, index: int, backend: str) -> dict[str, Any]:
    """One GPU; if it cannot be opened, the reason, which costs no other one."""
    try:
        return {**_gpu(torch, index, backend), "error": None}
    except BaseException as error:
        unknown = dict.fromkeys(("name", "uuid", "total_bytes", "idle", "capability"))
        return {"index": index, **unknown, "error": root_cause(error)}


def _gpu(torch: Any, index: int, backend: str) -> dict[str, Any]:
    # Not at the top: it imports torch.
    uuid = importlib.import_module("runners.meters.cuda").device_uuid(index)
    properties = torch.cuda.get_device_properties(index)
    if backend == "hip":
        capability = getattr(properties, "gcnArchName", None)
    else:
        capability = f"{properties.major}.{properties.minor}"
    return {
        "index": index,
        "name": properties.name,
        "uuid": uuid,
        "total_bytes": properties.total_memory,
        "idle": _idle(torch, index, uuid),
        "capability": capability,
    }


def _idle(torch: Any, index: int, uuid: str | None) -> bool | None:
    """Whether little memory is in use, what a display takes aside.

    Reads it through torch, which creates a context, only where NVML cannot.
    """
    used = None if uuid is None else _used_bytes(uuid)
    if used is None:
        try:
            free, total = torch.cuda.mem_get_info(index)
        except BaseException:
            return None
        used = total - free
    return bool(used < IDLE_BELOW_BYTES)


def _used_bytes(uuid: str) -> int | None:
    """The bytes used on an NVIDIA device by programs that may compute; None where nvidia-ml-py is missing or fails."""
    nvml = importlib.import_module("runners.meters.nvml")
    used: int | None = nvml.used_bytes(uuid)
    if used is None:
        return None
    drawing = [each.used_bytes or 0 for each in nvml.others_on(uuid) or () if each.only_graphics]
    return used - sum(drawing)


def _driver(backend: str) -> str | None:
    """The version of the driver: from NVML for NVIDIA, from the kernel module for AMD."""
    with contextlib.suppress(Exception):
        if backend == "hip":
            return Path("/sys/module/amdgpu/version").read_text().strip() or None
        if backend == "cuda":
            version: str | None = importlib.import_module("runners.meters.nvml").driver_version()
            return version
    return None


# --- the machine ------------------------------------------------------------------------------------------------------


def _cpu() -> dict[str, Any]:
    answer: dict[str, Any] = {
        "name": None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "total_bytes": None,
        "available_bytes": None,
        "guard_bytes": None,
        "phase_peaks": False,
        "phase_peaks_error": None,
    }
    try:
        # Not at the top: an interpreter that is too old cannot import it, and still has to answer.
        cpu = importlib.import_module("runners.meters.cpu")
        answer["name"] = cpu.name()
        answer["total_bytes"] = cpu.total_memory_bytes()
        available = cpu.available_memory_bytes()
        if available is not None:
            answer["available_bytes"] = available
            answer["guard_bytes"] = max(0, available - cpu.guard_reserve_bytes(available))
        answer["phase_peaks_error"] = _why_no_phase_peaks(cpu)
    except Exception as error:
        answer["phase_peaks_error"] = root_cause(error)
    answer["phase_peaks"] = answer["phase_peaks_error"] is None
    with contextlib.suppress(OSError, ValueError, AttributeError):  # where there is no /proc
        if answer["total_bytes"] is None:
            answer["total_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    answer["name"] = answer["name"] or platform.processor() or platform.machine() or None
    return answer


def _why_no_phase_peaks(cpu: Any) -> str | None:
    """None if the kernel resets a process's high-water mark, as tried with memory that is touched and freed."""
    if not Path("/proc/self/status").exists():
        return f"{platform.system()} has no /proc: only the peak of the whole process can be read"
    touched = b"\1" * (8 * MIB)
    del touched
    before = cpu.read_status().peak.get("resident")
    if before is None:
        return "/proc/self/status has no VmHWM"
    if not cpu.CpuMeter().resets:
        return "the kernel refuses to reset the high-water mark (/proc/self/clear_refs)"
    if cpu.read_status().peak["resident"] >= before:
        return "the kernel accepts a reset of the high-water mark and does not do it (/proc/self/clear_refs)"
    return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.import_module("importlib.metadata").version(distribution)  # type: ignore[no-any-return]
    except Exception:
        return None


def _installations(distributions: Iterable[str]) -> dict[str, str]:
    libraries = importlib.import_module("runners.libraries")
    names = {library.distribution: name for name, library in libraries.LIBRARIES.items()}
    return {each: libraries.installation(names[each]) for each in distributions if each in names}


def _missing_library(error: BaseException) -> str:
    """`; pip install "sweeper[examples]" installs lightning` after the error of an import; empty for other modules."""
    libraries = importlib.import_module("runners.libraries")
    library = libraries.library_of(getattr(error, "name", None) or "") if isinstance(error, ImportError) else None
    return f"; {libraries.installation(library)} installs {library}" if library else ""


# --- a user's function ------------------------------------------------------------------------------------------------


def _target(target: str) -> dict[str, Any]:
    """The parameters of `module:function`, found as the measured process finds it."""
    too_old = _too_old()
    if too_old is not None:
        return {"error": too_old}
    module_name, colon, path = target.partition(":")
    if not (colon and module_name and path):
        return {"error": f"{target!r} is not of the form module:function"}
    importlib.import_module("runners.launch_command").search_current_folder()
    try:
        function: Any = importlib.import_module(module_name)
    except BaseException as error:  # a module can raise anything, SystemExit included
        unsearched = ""
        if isinstance(error, ModuleNotFoundError) and os.environ.get("PYTHONSAFEPATH"):
            unsearched = "; PYTHONSAFEPATH is set, so the current folder is not searched: add it to PYTHONPATH"
        return {"error": f"{module_name} cannot be imported: {root_cause(error)}{unsearched}{_missing_library(error)}"}
    try:
        for part in path.split("."):
            function = getattr(function, part)
        return _taken_by(function, target)
    except AttributeError:
        return {"error": f"{module_name} has no {path}"}
    except BaseException as error:
        return {"error": f"{target} cannot be read: {root_cause(error)}"}


def _taken_by(function: Callable[..., Any], target: str) -> dict[str, Any]:
    if not callable(function):
        return {"error": f"{target} is of type {type(function).__name__}, not a function"}
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return {"error": f"{target} is async: a call would run none of it"}
    if inspect.isgeneratorfunction(function):
        return {"error": f"{target} is a generator: a call would run none of it"}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        return {"error": f"{target} has no signature that can be read: {error}"}
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    nameless = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY and each.default is each.empty]
    if nameless:
        return {"error": f"{target} takes {nameless[0]} by position only: values are passed by name"}
    return {
        "parameters": [each.name for each in named],
        "required": [each.name for each in named if each.default is each.empty],
        "takes_any": any(each.kind is each.VAR_KEYWORD for each in parameters),
        "takes_phase": any(each.name == "phase" for each in named),
    }


# --- errors as answers ------------------------------------------------------------------------------------------------


def root_cause(error: BaseException) -> str:
    """One line: the error, where it was raised, and the first of its causes, if it has one."""
    first = error
    seen = {id(error)}
    while True:
        cause = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        first = cause
    line = _one_line(error)
    return line if first is error else f"{line}, because of {_one_line(first)}"


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    line = type(error).__name__ + (": " + message if message else "")
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_machinery(each.filename)]
    if frames:
        line += f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return line


def _is_machinery(filename: str) -> bool:
    """Whether a frame is of the import system or of this module, and so not of the user's files."""
    return filename.startswith("<frozen") or filename == __file__ or filename.endswith("importlib/__init__.py")
