"""Calls the user's quality metric on the model after all measurements.

`quality.target` names the function. It receives those of module (in eval mode), tokenizer and processor (the
checkpoint's, or None), device, dtype, batch, context and seed that it accepts. It runs in the phase `quality`, which is
not part of the workload: its memory, or running out of it, does not affect the status of the point.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runners import untrusted
from runners.facts import Cause
from runners.journal import QUALITY
from runners.metrics import LONGEST_TEXT, as_json
from runners.phases import Phases
from runners.refusals import refusal_in
from runners.workloads import custom

if TYPE_CHECKING:
    from runners.models.torch_models import Network

POINT_KEYS = ("dtype", "batch", "context", "seed")  # passed with the point's values


def prepare(values: Mapping[str, Any]) -> None:
    """Import the user's function, if there is one. Raises what the import raises."""
    target = _target(values)
    if target is not None:
        custom.find(target, "quality.target")


def measure(network: Network, values: Mapping[str, Any], phase: Phases) -> dict[str, Any]:
    """The metric `quality`, or `quality_error` if it ran out of memory; empty without `quality.target`.

    Raises TypeError if the function does not return a number.
    """
    target = _target(values)
    if target is None:
        return {}
    import torch

    from runners.models import torch_models

    if torch_models.is_calculated(network.device):
        return {"quality_error": "nothing is computed"}
    called = custom.find(target, "quality.target")
    takes = custom.accepted(inspect.signature(called))
    network.module.eval()
    with phase(QUALITY) as notes:
        try:
            torch.manual_seed(values["seed"])
            with torch.no_grad():
                returned = called(**_arguments(network, values, takes))
        except Exception as error:
            if not _is_refused(error):
                raise
            notes.metrics["quality_error"] = f"out of memory: {untrusted.text(error, LONGEST_TEXT)}"
        else:
            notes.metrics |= _as_metric(target, as_json(returned))
    return dict(notes.metrics)


def _target(values: Mapping[str, Any]) -> str | None:
    target: str | None = (values.get("quality") or {}).get("target")
    return target


def _arguments(network: Network, values: Mapping[str, Any], takes: tuple[str, ...] | None) -> dict[str, Any]:
    known = {name: values[name] for name in POINT_KEYS} | {"module": network.module, "device": network.device}
    if takes is not None:
        known = {name: value for name, value in known.items() if name in takes}
    for name in ("tokenizer", "processor"):
        if takes is None or name in takes:
            known[name] = _of_checkpoint(name, network, values)
    return known


def _of_checkpoint(name: str, network: Network, values: Mapping[str, Any]) -> Any:
    if values["model"]["library"] != "transformers":
        return None
    from runners.models import transformers_real_inputs

    folder = transformers_real_inputs.folder_of(name, values, network.module.config)
    if folder is None:
        return None
    load = {"tokenizer": transformers_real_inputs.tokenizer, "processor": transformers_real_inputs.processor}[name]
    return load(folder)


def _as_metric(target: str, number: Any) -> dict[str, Any]:
    """The metric `quality`, or `quality_error` for NaN and infinities. Raises TypeError for anything else."""
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        return {"quality": number}
    if number in ("nan", "inf", "-inf"):
        return {"quality_error": f"the metric is {number}"}
    raise TypeError(f"quality.target={target}: must return one number, not {number!r:.80}")


def _is_refused(error: BaseException) -> bool:
    kind, *bases = map(untrusted.type_name, untrusted.bases_of(type(error)))
    return refusal_in([Cause(kind, bases, untrusted.text(error, LONGEST_TEXT))]) is not None
