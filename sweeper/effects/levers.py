"""The keys that reduce the memory of a point: which are left to change, and what rules one out. Pure.

A lever is advised only if it changes the point and the point still runs where it ran. The rules are those by which the
workloads refuse a point before they allocate anything (runners/workloads, runners/models).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runners.device import Card, Device
from runners.point import Point
from sweeper.estimates.memory_terms import DTYPE_BITS
from sweeper.prompt_chunks import refused_chunk

Values = Mapping[str, Any]  # the settled values of a point
Changes = Mapping[str, Any]  # by key, as it is typed

SAME_POINT = "changes nothing here"
BFLOAT16_SINCE = 80  # the compute capability, as runners/simulation/kernels/torch_gpu_architecture.py has it
OWN = ("forward", "train", "generate")  # the workloads whose keys are known here
Q_AND_V = (  # model types with the modules of workload.targets's default, as transformers has them
    *("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2"),
    *("gemma3", "gemma3_text", "olmo", "olmo2", "olmo3", "olmoe", "opt", "granite", "cohere", "cohere2", "stablelm"),
    *("starcoder2", "smollm3", "phi", "glm", "glm4", "helium", "gpt_oss", "nemotron", "gpt_neo", "gptj"),
)
NO_ADAPTER = ("mamba",)  # in a model type: peft refuses its layers
NO_CHECKPOINTING = ("convnext", "resnet")  # model types that transformers refuses to recompute
CHUNK = 2048  # tokens of a prompt in a pass, where it is advised and nothing else is known


def changed(values: Values, changes: Changes) -> dict[str, Any]:
    """A point's values with other values for some keys."""
    found: dict[str, Any] = copy.deepcopy(dict(values))
    for key, value in changes.items():
        *groups, last = key.split(".")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return found


def impossible(values: Values, device: Device) -> str | None:
    """Why a point cannot run on a device, whatever its memory; None if no reason is known here."""
    workload = values.get("workload") or {}
    batch, accumulate = values.get("batch"), workload.get("accumulate") or 1
    if batch is not None and batch % accumulate:
        return f"batch={batch} cannot be split into {accumulate} equal parts"
    model = values.get("model") or {}
    if workload.get("checkpointing") and (
        model.get("library") == "torch" or model.get("model_type") in NO_CHECKPOINTING
    ):
        return f"{model.get('name')} has no layers that support recomputation"
    for key in ("dtype", "workload.precision"):
        if Point(values=values).get(key) == "bfloat16" and not computes_in_bfloat16(device.card):
            return f"{device.name} does not compute in bfloat16"
    if why := refused_chunk(workload, values.get("context"), model.get("name"), model.get("model_type")):
        return why
    return _not_quantized(values, workload)


def _not_quantized(values: Values, workload: Values) -> str | None:
    scheme = values.get("quantize")
    if scheme in (None, "none"):
        return None
    if workload.get("name") == "train" and workload.get("method") != "lora":
        return "quantized weights cannot be trained without workload.method=lora"
    return f"quantize={scheme} has no kernels for float64" if values.get("dtype") == "float64" else None


def computes_in_bfloat16(card: Card | None) -> bool:
    """Unknown counts as yes: a row of the run itself shows the contrary."""
    architecture = "" if card is None else card.architecture
    of_nvidia = re.fullmatch(r"sm_(\d+)", architecture)
    return of_nvidia is None or int(of_nvidia[1]) >= BFLOAT16_SINCE


def levers_of(part: str, values: Values, device: Device, reads_text: bool) -> list[dict[str, Any]]:
    """What reduces a part of a point's peak (`fixed costs`, `cache`, `logits` or `activations`): changes of keys.

    Each changes the point, and none makes it impossible on the device. `reads_text`: whether the context has an effect.
    """
    found = (changes for changes in CANDIDATES[part](values, device))
    smaller = _smaller(values, reads_text) if part != "fixed costs" else iter(())
    return [changes for changes in (*found, *smaller) if impossible(changed(values, changes), device) is None]


def _fixed_costs(values: Values, device: Device) -> Iterator[dict[str, Any]]:
    """Weights, and in training their gradients and the optimizer's states."""
    workload = values["workload"]
    model_type = str((values.get("model") or {}).get("model_type"))
    trains_all = workload["name"] == "train" and workload.get("method") == "full"
    adapter: dict[str, Any] = {}
    if trains_all and not any(each in model_type for each in NO_ADAPTER):
        adapter = {"workload.method": "lora"}
        adapter |= {} if model_type in Q_AND_V else {"workload.targets": "all-linear"}
        yield adapter
    if trains_all and str(workload.get("optimizer")).startswith("adam"):
        yield {"workload.optimizer": "sgd"}  # keeps no state
    if DTYPE_BITS.get(str(values.get("dtype")), 0) > 16:
        yield {"dtype": _half(device)}
    if values.get("quantize") == "none" and workload["name"] in OWN and values.get("dtype") != "float64":
        if adapter:
            yield {**adapter, "quantize": "nf4"}
        elif not trains_all:
            yield {"quantize": "nf4"}


def _half(device: Device) -> str:
    """A dtype of 16 bits that the device is known to compute in."""
    known = device.is_host or (device.card is not None and computes_in_bfloat16(device.card))
    return "bfloat16" if known else "float16"


def _activations(values: Values, device: Device) -> Iterator[dict[str, Any]]:
    workload = values["workload"]
    if workload["name"] == "train":
        if not workload.get("checkpointing"):
            yield {"workload.checkpointing": True}
        yield from _more_microbatches(values)
        if values.get("dtype") == "float32" and workload.get("precision") is None:
            yield {"workload.precision": _half(device)}
    if workload["name"] == "generate" and workload.get("prefill_chunk") is None:
        parts = values["context"] // 2
        if parts:
            yield {"workload.prefill_chunk": min(parts, CHUNK)}


def _logits(values: Values, device: Device) -> Iterator[dict[str, Any]]:
    if values["workload"].get("logits") == "all":
        yield {"workload.logits": "last"}
    if values["workload"]["name"] == "train":
        yield from _more_microbatches(values)


def _cache(values: Values, device: Device) -> Iterator[dict[str, Any]]:
    """The cache holds the tokens of every sequence: only fewer tokens make it smaller without another library."""
    return iter(())


def _more_microbatches(values: Values) -> Iterator[dict[str, Any]]:
    """The next number of equal parts of the batch."""
    now, batch = values["workload"].get("accumulate") or 1, values.get("batch") or 1
    more = (parts for parts in range(now + 1, batch + 1) if batch % parts == 0)
    yield from ({"workload.accumulate": parts} for parts in list(more)[:1])


def _smaller(values: Values, reads_text: bool) -> Iterator[dict[str, Any]]:
    """Half the batch, in the same number of equal parts, and half the context unless the positions decide it."""
    batch, context = values.get("batch"), values.get("context")
    parts = values["workload"].get("accumulate") or 1
    if batch is not None and batch // 2 >= parts:
        yield {"batch": batch // 2 // parts * parts}
    if context is not None and context > 1 and reads_text and (values.get("inputs") or {}).get("of_positions") is None:
        yield {"context": context // 2}


CANDIDATES = {"fixed costs": _fixed_costs, "activations": _activations, "logits": _logits, "cache": _cache}
