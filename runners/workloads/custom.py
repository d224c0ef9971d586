"""A callable of the user's own: found by `workload.target`, called with what it accepts of what is known.

Known are batch, context, dtype (its name, as "float32"), device (as torch spells it), phase, warmup, repeats, seed,
and every key of `workload.params`. With `**anything` it accepts all of them, but `phase` only by that very name: a
callable without it is called once, as the one phase `run`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from runners.phases import Phases
from runners.workloads.metrics import as_metrics

STANDARD = ("batch", "context", "dtype", "warmup", "repeats", "seed")  # and `device` and `phase`
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    return ("torch",)


def prepare(values: Mapping[str, Any], device: str) -> None:
    """Import the user's module and see that the call can be made: what is wrong with either raises as it is."""
    target = values["workload"]["target"]
    called = find(target)
    signature = inspect.signature(called)
    takes = accepted(signature)
    params = values["workload"].get("params") or {}
    for name in params:
        if name in STANDARD or name in ("device", "phase"):
            raise TypeError(f"workload.params.{name}: {name} is a key of its own")
        if takes is not None and name not in takes:
            raise TypeError(f"workload.params.{name}: {target} takes {', '.join(takes) or 'nothing'}")
    phase = {"phase": None} if "phase" in signature.parameters else {}
    try:
        signature.bind(**_arguments(values, device, takes), **phase)
    except TypeError as error:
        raise TypeError(f"{target}: {error}; workload.params can give it") from None


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    called = find(values["workload"]["target"])
    signature = inspect.signature(called)
    arguments = _arguments(values, device, accepted(signature))
    if "phase" in signature.parameters:
        returned = called(**arguments, phase=phase)
    else:
        with phase("run"):
            returned = called(**arguments)
    return {"metrics": as_metrics(returned), "steps": None, "tokens": None}


def accepted(signature: inspect.Signature) -> tuple[str, ...] | None:
    """The names a callable can be given, or None if it accepts any."""
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters if parameter.kind in NAMED)


def _arguments(values: Mapping[str, Any], device: str, takes: tuple[str, ...] | None) -> dict[str, Any]:
    """Everything but `phase` that the callable accepts."""
    known = {name: values[name] for name in STANDARD} | {"device": device}
    known |= values["workload"].get("params") or {}
    return known if takes is None else {name: value for name, value in known.items() if name in takes}


def find(target: str, key: str = "workload.target") -> Callable[..., Any]:
    """What `package.module:name` or `package.module:name.attribute` names."""
    module, colon, path = target.partition(":")
    if not (module and colon and path):
        raise ValueError(f"{key}={target}: it is written module:function")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{key}={target} is a {type(found).__name__}, not a callable")
    called: Callable[..., Any] = found
    return called
