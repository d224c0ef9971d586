"""Calls the user's function `workload.target` with those arguments that it accepts.

Available are batch, context, dtype (a name, such as "float32"), device (as torch spells it), phase, warmup, repeats,
seed, and every key of `workload.params`. A function with `**kwargs` receives all of them except `phase`, which needs a
parameter of that name. A function without `phase` is called once, in the phase `run`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from runners.metrics import as_metrics
from runners.phases import Phases

STANDARD = ("batch", "context", "dtype", "warmup", "repeats", "seed")  # and `device` and `phase`
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    return ("torch",)


def prepare(values: Mapping[str, Any], device: str) -> None:
    """Import the user's function and check its arguments.

    Raises TypeError for arguments that do not fit, and any exception of the import.
    """
    target = values["workload"]["target"]
    called = find(target)
    signature = inspect.signature(called)
    takes = accepted(signature)
    params = values["workload"].get("params") or {}
    for name in params:
        if name in STANDARD or name in ("device", "phase"):
            raise TypeError(f"workload.params.{name}: {name} is a top-level key")
        if takes is not None and name not in takes:
            raise TypeError(f"workload.params.{name}: {target} takes {', '.join(takes) or 'nothing'}")
    phase = {"phase": None} if "phase" in signature.parameters else {}
    try:
        signature.bind(**_arguments(values, device, takes), **phase)
    except TypeError as error:
        raise TypeError(f"{target}: {error}; set it in workload.params") from None


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
    """Parameter names of a callable, or None if it accepts any."""
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters if parameter.kind in NAMED)


def _arguments(values: Mapping[str, Any], device: str, takes: tuple[str, ...] | None) -> dict[str, Any]:
    """The arguments that the callable accepts, except `phase`."""
    known = {name: values[name] for name in STANDARD} | {"device": device}
    known |= values["workload"].get("params") or {}
    return known if takes is None else {name: value for name, value in known.items() if name in takes}


def find(target: str, key: str = "workload.target") -> Callable[..., Any]:
    """The callable at `package.module:name` or `package.module:name.attribute`.

    Raises ValueError for a target without a colon, TypeError if it is not callable, ImportError and AttributeError.
    """
    module, colon, path = target.partition(":")
    if not (module and colon and path):
        raise ValueError(f"{key}={target}: write module:function")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{key}={target} is a {type(found).__name__}, not a callable")
    called: Callable[..., Any] = found
    return called
