"""Optional libraries: what needs them, whether an interpreter has them, and how they are installed.

The syntax is that of Python 3.8, because `runners.probe` imports this module under any interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from typing import NamedTuple

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Library(NamedTuple):
    distribution: str  # the name that pip installs
    extra: str | None  # of sweeper, as in pyproject.toml; None where no extra has it


# By the name that is imported.
LIBRARIES = {
    "torch": Library("torch", None),
    "transformers": Library("transformers", "models"),
    "peft": Library("peft", "models"),
    "PIL": Library("pillow", "models"),
    "torchao": Library("torchao", "quantize"),
    "bitsandbytes": Library("bitsandbytes", "quantize"),
    "optimum.quanto": Library("optimum-quanto", "quantize"),
    "hqq": Library("hqq", None),  # where it is installed, transformers imports it with every model
    "pynvml": Library("nvidia-ml-py", "devices"),
    "amdsmi": Library("amdsmi", "devices"),
    "matplotlib": Library("matplotlib", "pictures"),
    "altair": Library("altair", "report"),
    "vl_convert": Library("vl-convert-python", "report"),
    "jinja2": Library("jinja2", "report"),
    "accelerate": Library("accelerate", "examples"),
    "lightning": Library("lightning", "examples"),
}
QUANTIZERS = {"int8": "torchao", "int4": "torchao", "nf4": "bitsandbytes"}
OPTIMIZERS = {"adamw-8bit": "bitsandbytes"}
CACHE_BACKENDS = {"quanto": "optimum.quanto", "hqq": "hqq"}


def needed_by(values: Mapping[str, Any]) -> dict[str, str]:
    """The optional libraries that a point needs, by import name, each with the settings that need it."""
    model, inputs = values.get("model") or {}, values.get("inputs") or {}
    workload = values.get("workload") or {}
    scheme, optimizer, backend = values.get("quantize"), workload.get("optimizer"), workload.get("cache_backend")
    found = {}
    if model.get("library") == "transformers":
        found["transformers"] = f"model={model.get('name')}"
    if inputs.get("name") == "images":
        found["PIL"] = "inputs=images"
    if workload.get("method") == "lora":
        found["peft"] = "workload.method=lora"
    if optimizer in OPTIMIZERS:
        found[OPTIMIZERS[optimizer]] = f"workload.optimizer={optimizer}"
    if scheme in QUANTIZERS:
        found[QUANTIZERS[scheme]] = f"quantize={scheme}"
    if workload.get("cache") == "quantized" and backend in CACHE_BACKENDS:
        found[CACHE_BACKENDS[backend]] = f"workload.cache=quantized workload.cache_backend={backend}"
    return found


def is_installed(name: str) -> bool:
    """Whether this interpreter finds a module. Imports nothing, so that a broken library counts as installed."""
    parent, _, rest = name.partition(".")
    try:
        spec = importlib.util.find_spec(parent)
        while spec is not None and rest:
            part, _, rest = rest.partition(".")
            parent += f".{part}"
            spec = PathFinder.find_spec(parent, spec.submodule_search_locations)
    except (ImportError, ValueError):
        return False
    return spec is not None


def library_of(module: str) -> str | None:
    """The name in `LIBRARIES` of the library that a module belongs to; None if it is no such library."""
    return next((name for name in LIBRARIES if module == name or module.startswith(f"{name}.")), None)


def installation(*names: str) -> str:
    """The command that installs libraries of `LIBRARIES` for this interpreter: `pip install "sweeper[models]"`."""
    ours = _extras()
    wanted = [LIBRARIES[name] for name in names]
    extras = sorted({each.extra for each in wanted if each.extra is not None and each.extra in ours})
    others = sorted({each.distribution for each in wanted if each.extra is None or each.extra not in ours})
    words = [f'"sweeper[{",".join(extras)}]"'] if extras else []
    return " ".join([f"{_pip()} install", *words, *others])


def why_not_imported(module: str, error: BaseException, cause: str) -> str:
    """Why a module cannot be imported, with the command that installs its library before the cause.

    `cause`: the error in one line.
    """
    library = _broken_in(error, library_of(module))
    if library is None:
        return f"{module} cannot be imported: {cause}"
    if isinstance(error, ModuleNotFoundError) and error.name in (library, library.partition(".")[0]):
        return f"{library} is not installed: {installation(library)}"
    if library != library_of(module):  # it is imported by the module
        return (
            f"{library} cannot be imported ({installation(library)} installs it anew), and {module} imports it: {cause}"
        )
    return f"{module} cannot be imported ({installation(library)} installs {library}): {cause}"


def _broken_in(error: BaseException, library: str | None) -> str | None:
    """The optional library whose import failed below that of `library`, by the traceback; else `library` itself.

    torch counts only if it was imported itself: a library that does not fit it fails in its code.
    """
    if library is None:
        return None
    found, causes = library, []
    cause = error  # type: BaseException | None
    while cause is not None and cause not in causes:
        causes.append(cause)
        frames = cause.__traceback__
        while frames is not None:
            name = library_of(str(frames.tb_frame.f_globals.get("__name__")))
            found = name if name not in (None, "torch") else found
            frames = frames.tb_next
        cause = cause.__cause__ or cause.__context__
    return found


def _extras() -> list[str]:
    """The extras of sweeper in this interpreter. Empty where it is not installed: pip would look for it elsewhere."""
    metadata = importlib.import_module("importlib.metadata")  # not at the top: the measured process would hold it
    try:
        found: list[str] = metadata.metadata("sweeper").get_all("Provides-Extra") or []
        return found
    except metadata.PackageNotFoundError:
        return []


def _pip() -> str:
    """`pip` where the shell's one belongs to this interpreter, as in an activated environment."""
    found = importlib.import_module("shutil").which("pip")
    same = found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)
    return "pip" if same else f"{sys.executable} -m pip"
