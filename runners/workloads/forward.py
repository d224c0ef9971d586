"""Forward passes in inference mode.

Phases: model_load, inputs, cold_forward, warmup (if any), warm_forward with the run index 0, 1, ..., quality (if
configured).

Keys under `workload`: logits (`all`, or those of the `last` position).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runners.models import builders
from runners.phases import Phases
from runners.workloads import quality

if TYPE_CHECKING:
    import torch

    from runners.models.torch_models import Network

imports = builders.imports


def prepare(values: Mapping[str, Any], device: str) -> None:
    quality.prepare(values)
    builders.prepare(values, device)


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    import torch

    from runners.models import torch_models

    network = builders.load(values, device, phase)
    network.module.eval()
    with phase("inputs") as notes:
        inputs = network.inputs()
        notes.shapes, notes.metrics = torch_models.shapes(inputs), network.input_metrics
    with torch.inference_mode():
        checksum = _measure(network, inputs, phase, "cold_forward")
        passes = 1
        if values["warmup"]:
            with phase("warmup") as notes:
                notes.shapes = torch_models.shapes(inputs)
                for _ in range(values["warmup"]):
                    network.forward(inputs)  # not assigned: two live outputs would raise the peak
                    passes += 1
                    notes.iterations = passes - 1
        for run_index in range(values["repeats"]):
            if values["cache"] == "empty":
                torch_models.empty_cache(device)
            checksum = _measure(network, inputs, phase, "warm_forward", run_index)
            passes += 1
    metrics = {"checksum": checksum} | quality.measure(network, values, phase)
    read = network.positions()
    return {"metrics": metrics, "steps": passes, "tokens": None if read is None else passes * read}


def _measure(
    network: Network, inputs: Mapping[str, torch.Tensor], phase: Phases, name: str, run_index: int | None = None
) -> Any:
    """Run one pass. Its output is alive at the end of the phase and freed on return."""
    from runners.models.torch_models import checksum, shapes

    with phase(name, run_index) as notes:
        notes.shapes = shapes(inputs)
        output = network.forward(inputs)
        notes.metrics["checksum"] = checksum(output)
    return notes.metrics["checksum"]
