"""`environment`: the devices and counters that can be measured here, and the reasons for those that cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runners.probe import LIBRARIES
from sweeper import __version__
from sweeper.units import format_bytes
from sweeper.views.layout import named

# Shown wherever CUDA is offered, until tests/gpu has passed on a GPU (`make test-gpu`).
CUDA_UNPROVEN = (
    "CUDA and ROCm are unproven: the meter uses PyTorch's documented interface, but has not run on a GPU yet"
)
CPU_COUNTERS = ("resident", "resident_anon", "resident_file", "address", "tensor")
CUDA_COUNTERS = ("allocated", "reserved", "requested", "active", "used")
PURPOSES = {  # of the libraries that a plain installation lacks, by distribution
    "transformers": "every model but model=mlp, and workload=generate",
    "peft": "workload.method=lora",
    "torchao": "quantize=int8,int4",
    "bitsandbytes": "quantize=nf4 and workload.optimizer=adamw-8bit",
    "optimum-quanto": "workload.cache=quantized",
    "pillow": "inputs=images",
    "nvidia-ml-py": "the driver's version, and other processes on an NVIDIA GPU",
    "amdsmi": "the driver's version, and other processes on an AMD GPU",
}


def environment(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The value for JSON: the answer of runners.probe, and what follows from it for each kind of device."""
    return {
        "sweeper": __version__,
        **answer,
        "devices": [_cpu(answer), *_gpus(answer), _sim(answer)],
        "missing": [
            {"library": library, "for": purpose, "install": answer["install"][library]}
            for library, purpose in PURPOSES.items()
            if _is_useful(answer, library)
        ],
        "unproven": [CUDA_UNPROVEN],
    }


def _cpu(answer: Mapping[str, Any]) -> dict[str, Any]:
    cpu = answer["cpu"]
    has_torch = answer["torch"] is not None
    lacking = {} if cpu["phase_peaks"] else {"resident": f"no peak for each phase: {cpu['phase_peaks_error']}"}
    return {
        "device": "cpu",
        "kind": "measured",
        "name": cpu["name"],
        "total_bytes": cpu["total_bytes"],
        "unavailable": None if has_torch else answer["torch_error"],
        "counters": list(CPU_COUNTERS) if has_torch else [],
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
            "unavailable": gpu.get("error"),
            "counters": [] if gpu.get("error") else list(CUDA_COUNTERS),
            "uuid": gpu["uuid"],
            "capability": gpu["capability"],
            "idle": gpu["idle"],
        }
        for gpu in answer["gpus"]
    ]


def _sim(answer: Mapping[str, Any]) -> dict[str, Any]:
    has_torch = answer["torch"] is not None
    return {
        "device": "sim:CARD",
        "kind": "calculated",
        "name": "tensors without data and a simulated allocator; sim:all is every card of conf/card",
        "total_bytes": None,
        "unavailable": None if has_torch else answer["torch_error"],
        "counters": list(CUDA_COUNTERS) if has_torch else [],
    }


def _is_useful(answer: Mapping[str, Any], library: str) -> bool:
    """Whether a library is missing and would add something: one for a GPU's driver needs a GPU."""
    if answer["libraries"].get(library) is not None:
        return False
    backend = {"nvidia-ml-py": "cuda", "amdsmi": "hip"}.get(library)
    return backend is None or answer["backend"] == backend


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(found: Mapping[str, Any], width: int | None = None) -> str:
    """For a person. `width`: columns to wrap at; None for one line each, where the output goes to a program."""
    return "\n".join(_lines(found, width))


def _lines(found: Mapping[str, Any], width: int | None) -> Iterator[str]:
    yield f"sweeper {found['sweeper']}, Python {found['python']} ({found['executable']})"
    yield _torch_line(found)
    versions = {name: found["libraries"].get(name) for name in LIBRARIES}
    yield "libraries: " + (", ".join(f"{name} {version}" for name, version in versions.items() if version) or "none")
    yield ""
    for device in found["devices"]:
        yield from (named(name, text, width) for name, text in _device_lines(device))
    yield ""
    for missing in found["missing"]:
        yield named("missing", f"{missing['library']}, for {missing['for']}: {missing['install']}", width)
    yield from (named("not proven", text, width) for text in found["unproven"])


def _torch_line(found: Mapping[str, Any]) -> str:
    if found["torch"] is None:
        return str(found["torch_error"])
    build = {"cuda": "CUDA", "hip": "ROCm", "cpu": "the CPU alone"}[found["backend"]]
    version = f" {found['backend_version']}" if found["backend_version"] else ""
    driver = f", driver {found['driver']}" if found["driver"] else ""
    return f"torch {found['torch']}, built for {build}{version}{driver}"


def _device_lines(device: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of a name, empty in all lines but the first, and a text."""
    if device["unavailable"]:
        yield device["device"], f"no: {device['unavailable']}"
        return
    facts = [device["name"] or "no name"]
    if device["total_bytes"] is not None:
        facts.append(format_bytes(device["total_bytes"]))
    if device.get("idle") is not None:
        facts.append("idle" if device["idle"] else "in use")
    if device.get("uuid"):
        facts.append(device["uuid"])
    yield device["device"], ", ".join(facts)
    yield "", f"for each phase: {', '.join(device['counters'])}"
    for counter, why in device.get("lacking", {}).items():
        yield "", f"{counter}: {why}"
    if device.get("guard_bytes") is not None:
        guard = format_bytes(device["guard_bytes"])
        yield "", f"without a budget a point may take {guard} now: the available memory less a reserve"
