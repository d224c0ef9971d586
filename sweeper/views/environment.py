"""What can be measured here, on which device, with which counters; and what cannot, and why. Measures nothing."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from json import dumps
from typing import Any

from runners.probe import LIBRARIES
from sweeper import __version__
from sweeper.errors import Mistake
from sweeper.planning.probes import Probes
from sweeper.planning.run_keys import interpreter
from sweeper.units import format_bytes

# Said wherever CUDA is offered, until tests/gpu has passed on a GPU (`make test-gpu`).
CUDA_UNPROVEN = (
    "CUDA and ROCm are unproven: the meter follows PyTorch's documented interface, and has not run on a GPU yet"
)
CPU_COUNTERS = ("resident", "resident_anon", "resident_file", "address", "tensor")
CUDA_COUNTERS = ("allocated", "reserved", "requested", "active", "used")
EXTRAS = {
    "transformers": ("models", "the decoders, such as model=smollm2-135m"),
    "peft": ("models", "adapters (LoRA)"),
    "nvidia-ml-py": ("devices", "the driver's version, and who else is on an NVIDIA GPU"),
    "amdsmi": ("devices", "the same for an AMD GPU"),
}


def main(arguments: Sequence[str]) -> int:
    """`environment [--json] [python=INTERPRETER]`."""
    found = environment(_interpreter(arguments))
    if "--json" in arguments:
        print(dumps(found))
    else:
        print("\n".join(_lines(found)))
    return 0


def _interpreter(arguments: Sequence[str]) -> str:
    python = None
    for argument in arguments:
        key, _, value = argument.partition("=")
        if argument == "--json":
            continue
        if key != "python" or not value:
            raise Mistake(f"environment takes python=INTERPRETER and --json, not {argument!r}")
        python = value
    return interpreter(python)


def environment(python: str) -> dict[str, Any]:
    """The probe's answer under that interpreter, and what follows from it for each kind of device."""
    with Probes() as probes:
        answer = probes.devices(python)
    return {
        "sweeper": __version__,
        **answer,
        "devices": [_cpu(answer), *_gpus(answer), _sim(answer)],
        "missing": [_missing(answer, library) for library in EXTRAS if _is_missed(answer, library)],
        "unproven": [CUDA_UNPROVEN],
    }


def _cpu(answer: Mapping[str, Any]) -> dict[str, Any]:
    cpu = answer["cpu"]
    there = answer["torch"] is not None
    lacking = {} if cpu["phase_peaks"] else {"resident": f"no peak of a phase: {cpu['phase_peaks_error']}"}
    return {
        "device": "cpu",
        "kind": "measured",
        "name": cpu["name"],
        "total_bytes": cpu["total_bytes"],
        "unavailable": None if there else answer["torch_error"],
        "counters": list(CPU_COUNTERS) if there else [],
        "lacking": lacking,
        "guard_bytes": cpu["guard_bytes"],
    }


def _gpus(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not answer["gpus"]:
        return [
            {
                "device": "cuda:0",
                "kind": "measured",
                "name": None,
                "total_bytes": None,
                "unavailable": answer["gpus_error"],
                "counters": [],
            }
        ]
    return [
        {
            "device": f"cuda:{gpu['index']}",
            "kind": "measured",
            "name": gpu["name"],
            "total_bytes": gpu["total_bytes"],
            "unavailable": None,
            "counters": list(CUDA_COUNTERS),
            "uuid": gpu["uuid"],
            "capability": gpu["capability"],
            "idle": gpu["idle"],
        }
        for gpu in answer["gpus"]
    ]


def _sim(answer: Mapping[str, Any]) -> dict[str, Any]:
    there = answer["torch"] is not None
    return {
        "device": "sim:CARD",
        "kind": "calculated",
        "name": "tensors without data and an imitated allocator; sim:all is every card of conf/card",
        "total_bytes": None,
        "unavailable": None if there else answer["torch_error"],
        "counters": list(CUDA_COUNTERS) if there else [],
    }


def _is_missed(answer: Mapping[str, Any], library: str) -> bool:
    """Whether an extra would add something here: a library for a GPU's driver adds nothing where there is no GPU."""
    if answer["libraries"].get(library) is not None:
        return False
    wanted_by = {"nvidia-ml-py": "cuda", "amdsmi": "hip"}.get(library)
    return wanted_by is None or answer["backend"] == wanted_by


def _missing(answer: Mapping[str, Any], library: str) -> dict[str, str]:
    extra, purpose = EXTRAS[library]
    if answer["executable"] == sys.executable:
        install = f"pip install 'sweeper[{extra}]'"
    else:  # an environment of the workload's own, where nothing of ours need be installed
        install = f"{answer['executable']} -m pip install {library}"
    return {"library": library, "for": purpose, "install": install}


# --- how it reads -----------------------------------------------------------------------------------------------------


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"sweeper {found['sweeper']}, Python {found['python']} ({found['executable']})"
    yield _torch_line(found)
    installed = {name: found["libraries"].get(name) for name in LIBRARIES}
    yield "libraries: " + (", ".join(f"{name} {told}" for name, told in installed.items() if told) or "none")
    yield ""
    for device in found["devices"]:
        yield from _device_lines(device)
    yield ""
    for missing in found["missing"]:
        yield f"not installed: {missing['library']}, for {missing['for']}: {missing['install']}"
    yield from (_wrapped("not proven", told) for told in found["unproven"])


def _torch_line(found: Mapping[str, Any]) -> str:
    if found["torch"] is None:
        return str(found["torch_error"])
    built = {"cuda": "CUDA", "hip": "ROCm", "cpu": "the CPU alone"}[found["backend"]]
    told = f"torch {found['torch']}, built for {built}"
    if found["backend_version"]:
        told += f" {found['backend_version']}"
    if found["driver"]:
        told += f", driver {found['driver']}"
    return told


def _device_lines(device: Mapping[str, Any]) -> Iterator[str]:
    name = device["device"]
    if device["unavailable"]:
        yield _wrapped(name, f"no: {device['unavailable']}")
        return
    told = [device["name"] or "no name"]
    if device["total_bytes"] is not None:
        told.append(format_bytes(device["total_bytes"]))
    if device.get("idle") is not None:
        told.append("idle" if device["idle"] else "in use")
    if device.get("uuid"):
        told.append(device["uuid"])
    yield _wrapped(name, ", ".join(told))
    yield _wrapped("", f"for each phase: {', '.join(device['counters'])}")
    for counter, why in device.get("lacking", {}).items():
        yield _wrapped("", f"{counter}: {why}")
    if device.get("guard_bytes") is not None:
        guard = format_bytes(device["guard_bytes"])
        yield _wrapped("", f"without a budget a point may take {guard} now: what is available, less a reserve")


def _wrapped(name: str, told: str) -> str:
    """A name and what is said of it, in the width of the terminal; in one line where nobody looks."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6
    first = f"{name:<10} "
    return textwrap.fill(told, width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)
