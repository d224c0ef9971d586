"""Training steps on one batch: the first, those that warm up, and the ones after.

Phases: model_load, optimizer, inputs, then forward, loss, backward, step and zero_grad of each step: as `cold_...` of
the first (without a run index: there is one), in one phase `warmup` (where there is any), and as `warm_...` with the
run index 0, 1, ... Adam's state appears in the first step, so that only the second holds it under its activations.

Keys under `workload`: optimizer (adamw, sgd), lr, set_to_none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runners.phases import Notes, Phases
from runners.workloads import models

if TYPE_CHECKING:
    import torch

    from runners.workloads.torch_models import Network

# As torch chooses their implementation: foreach on CUDA, which holds a further copy of the parameters in the step,
# and a loop over the parameters on the CPU.
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}

AnyPhase = Callable[[str, int | None], AbstractContextManager[Notes]]


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    # The first optimizer that is made imports torch._dynamo (+71 MiB, 1 s), whatever is compiled later.
    return (*models.imports(values), "torch._dynamo")


def prepare(values: Mapping[str, Any], device: str) -> None:
    if values["workload"]["optimizer"] not in OPTIMIZERS:
        asked = values["workload"]["optimizer"]
        raise ValueError(f"workload.optimizer={asked}: it can be {' or '.join(OPTIMIZERS)}")
    models.prepare(values, device)


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    from runners.workloads.torch_models import empty_cache

    network = models.load(values, device, phase)
    network.module.train()
    with phase("optimizer"):
        optimizer = _optimizer(network, values["workload"])
    with phase("inputs"):
        inputs = network.inputs()
        targets = network.targets(inputs)
    training = Training(
        network=network,
        optimizer=optimizer,
        inputs=inputs,
        targets=targets,
        set_to_none=values["workload"]["set_to_none"],
    )
    losses = [training.step(phase, "cold_")]
    if values["warmup"]:
        with phase("warmup") as notes:
            for done in range(values["warmup"]):
                losses.append(training.step(_unmeasured))
                notes.iterations = done + 1
    for run_index in range(values["repeats"]):
        if values["cache"] == "empty":
            empty_cache(device)
        losses.append(training.step(phase, "warm_", run_index))
    return {"metrics": {"losses": losses}, "steps": len(losses), "tokens": len(losses) * network.positions()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One batch, and what learns from it."""

    network: Network
    optimizer: torch.optim.Optimizer
    inputs: Mapping[str, torch.Tensor]
    targets: torch.Tensor
    set_to_none: bool  # false keeps the gradients' memory from step to step

    def step(self, phase: AnyPhase, prefix: str = "", run_index: int | None = None) -> Any:
        """One step, phase by phase. Gives its loss, from before the update."""
        from runners.workloads.torch_models import number, shapes

        with phase(f"{prefix}forward", run_index) as notes:
            notes.shapes = shapes(self.inputs)
            output = self.network.forward(self.inputs)
        with phase(f"{prefix}loss", run_index) as notes:
            loss = self.network.loss(output, self.targets)
            # What a loop that only keeps the loss does: the backward pass needs the loss's own intermediates, not the
            # logits. Kept, they are under its peak (384 MiB of 5831 on smollm2-135m, batch 8, context 256).
            del output
            notes.metrics["loss"] = number(loss)
        told = notes.metrics["loss"]
        with phase(f"{prefix}backward", run_index):
            loss.backward()  # type: ignore[no-untyped-call]
        with phase(f"{prefix}step", run_index):
            self.optimizer.step()
        with phase(f"{prefix}zero_grad", run_index):
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        return told


def _optimizer(network: Network, workload: Mapping[str, Any]) -> torch.optim.Optimizer:
    import torch

    kind = getattr(torch.optim, OPTIMIZERS[workload["optimizer"]])
    optimizer: torch.optim.Optimizer = kind(network.module.parameters(), lr=workload["lr"])
    return optimizer


def _unmeasured(name: str, run_index: int | None) -> AbstractContextManager[Notes]:
    """A phase within the phase `warmup`, which is one."""
    return nullcontext(Notes())
