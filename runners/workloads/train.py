"""Training steps on one batch, then evaluation and export.

Phases: model_load, optimizer, inputs, then forward, loss, backward, step and zero_grad of each step: named `cold_...`
in the first step, one phase `warmup` (if any), then `warm_...` with the run index 0, 1, ... Adam allocates its state in
the first step; only later steps hold it together with activations. With `accumulate`, forward, loss and backward run
once per microbatch. Last come `evaluation`, `export` and `quality`, if configured.

The keys under `workload` are described in conf/workload/train.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from runners.metrics import as_json
from runners.models import builders
from runners.phases import Notes, Phases
from runners.workloads import quality

if TYPE_CHECKING:
    import torch

    from runners.models.torch_models import Network
    from runners.workloads.torch_training import Batch

AnyPhase = Callable[[str, int | None], AbstractContextManager[Notes]]


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules to import before the baseline, including those that torch, transformers and peft import at first use."""
    workload = values["workload"]
    # The first optimizer imports torch._dynamo (+71 MiB, 1 s), compiled or not.
    found = [*builders.imports(values), "torch._dynamo"]
    if workload["checkpointing"]:
        found.append("torch.utils.checkpoint")
    if workload["compile"]:
        found.append("torch._inductor.compile_fx")
    if workload["method"] == "lora":
        found += ["peft", "runners.models.peft_adapters"]
    if workload["export"] is not None:
        found += ["runners.workloads.torch_exports", "torch.utils.serialization.config"]
    if workload["export"] == "save_pretrained":
        found.append("numpy.ctypeslib")
    return tuple(found)


def prepare(values: Mapping[str, Any], device: str) -> None:
    from runners.models import torch_models
    from runners.phases import Unavailable
    from runners.workloads import torch_training

    quality.prepare(values)
    torch_training.prepare(values, device)
    workload = values["workload"]
    if values["model"]["library"] == "torch":
        name = values["model"]["name"]
        if workload["checkpointing"]:
            raise ValueError(f"workload.checkpointing=true: {name} has no layers that support recomputation")
        if workload["export"] == "save_pretrained":
            raise ValueError(
                f"workload.export=save_pretrained: {name} is not a transformers model; use workload.export=state_dict"
            )
    if workload["export"] is not None and torch_models.is_calculated(device):
        raise Unavailable(f"workload.export={workload['export']}: a simulated device has no data to write")
    builders.prepare(values, device)
    if sizes := _evaluation(values):
        builders.prepare({**values, **sizes}, device)


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    from runners.models import torch_weights
    from runners.models.torch_models import empty_cache
    from runners.workloads import torch_training

    training, workload = build(values, device, phase), values["workload"]
    network = training.network
    steps = [training.step(phase, "cold_")]
    if values["warmup"]:
        with phase("warmup") as notes:
            for done in range(values["warmup"]):
                steps.append(training.step(_unmeasured))
                notes.iterations = done + 1
    for run_index in range(values["repeats"]):
        if values["cache"] == "empty":
            empty_cache(device)
        steps.append(training.step(phase, "warm_", run_index))
    metrics = {
        "losses": [step.loss for step in steps],
        "checksum": steps[-1].checksum,
        "dropout": torch_training.draws_numbers(network.module),
        "updates": sum(step.updated for step in steps),
        "optimizer_state_bytes": torch_training.state_bytes(training.optimizer),
        "parameter_bytes": torch_weights.bytes_by_dtype(network.module),
    }
    if sizes := _evaluation(values):
        _evaluate(network.at(**sizes), training.autocast, phase)
    if workload["export"] is not None:
        from runners.workloads.torch_exports import export

        with phase("export") as notes:
            notes.metrics |= export(network, workload["export"])
    metrics |= quality.measure(network, values, phase)
    read = network.positions()
    return {"metrics": metrics, "steps": len(steps), "tokens": None if read is None else len(steps) * read}


def build(values: Mapping[str, Any], device: str, phase: Phases) -> Training:
    """Build model, optimizer and inputs in their phases."""
    from runners.models import torch_models
    from runners.workloads import torch_training

    workload = values["workload"]
    network = builders.load(values, device, phase, lambda network: _adapt(network, workload))
    network.module.train()
    with phase("optimizer"):
        trained = [parameter for parameter in network.module.parameters() if parameter.requires_grad]
        optimizer = torch_training.optimizer(workload["optimizer"], trained, workload["lr"])
    with phase("inputs") as notes:
        inputs = network.inputs()
        notes.shapes, notes.metrics = torch_models.shapes(inputs), network.input_metrics
        batches = torch_training.microbatches(inputs, network.targets(inputs), workload["accumulate"])
    return Training(
        network=network,
        optimizer=optimizer,
        batches=batches,
        autocast=torch_training.autocast(workload["precision"], device),
        scaler=torch_training.scaler(workload["precision"], device),
        max_grad_norm=workload["max_grad_norm"],
        set_to_none=workload["set_to_none"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Result of a step. Loss and checksum of the output are from before the update."""

    loss: Any
    checksum: Any
    updated: bool  # false if float16 gradients overflowed: the scaler then skips the update


class MicrobatchResult(NamedTuple):
    """Result of a microbatch. `loss` keeps the tensor alive as a variable of a training loop would."""

    loss: torch.Tensor
    loss_value: Any  # the loss as JSON
    checksum: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model, its optimizer, and one batch split into microbatches."""

    network: Network
    optimizer: torch.optim.Optimizer
    batches: Sequence[Batch]  # gradients are summed: one update for all
    autocast: Callable[[], AbstractContextManager[Any]]
    scaler: torch.amp.GradScaler
    max_grad_norm: float | None
    set_to_none: bool  # false keeps the gradients' memory between steps

    def step(self, phase: AnyPhase, prefix: str = "", run_index: int | None = None) -> Step:
        """Run one update, each part in its phase."""
        from runners.workloads.torch_training import state_bytes

        losses = []
        for batch in self.batches:
            result = self._accumulate_gradients(
                batch, phase, prefix, run_index
            )  # with the loss's tensor, as a loop's own variable
            losses.append(result.loss_value)
        with phase(f"{prefix}step", run_index) as notes:
            before = self.scaler.get_scale()
            if self.max_grad_norm is not None:
                notes.metrics["grad_norm"] = self._clip(self.max_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            updated = self.scaler.get_scale() >= before
            notes.metrics |= {"updated": updated, "optimizer_state_bytes": state_bytes(self.optimizer)}
        with phase(f"{prefix}zero_grad", run_index):
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        return Step(loss=_mean(losses), checksum=result.checksum, updated=updated)

    def _accumulate_gradients(
        self, batch: Batch, phase: AnyPhase, prefix: str, run_index: int | None
    ) -> MicrobatchResult:
        """Add the gradients of one microbatch."""
        from runners.models.torch_models import checksum, number, shapes

        inputs, targets = batch
        with phase(f"{prefix}forward", run_index) as notes, self.autocast():
            notes.shapes = shapes(inputs)
            output = self.network.forward(inputs)
            notes.metrics["checksum"] = checked = checksum(output.detach())
        with phase(f"{prefix}loss", run_index) as notes, self.autocast():
            loss = self.network.loss(output, targets)
            # As in a loop that keeps only the loss: the backward pass needs the loss's intermediates, not the logits,
            # which would add to its peak (384 MiB of 5831 on smollm2-135m, batch 8, context 256).
            del output
            notes.metrics["loss"] = loss_value = number(loss)
            if len(self.batches) > 1:  # the mean over equal parts is the mean over the batch
                loss = loss / len(self.batches)
        with phase(f"{prefix}backward", run_index) as notes:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            notes.metrics["without_gradient"] = sum(parameter.grad is None for parameter in self._trained())
        return MicrobatchResult(loss, loss_value, checked)

    def _clip(self, most: float) -> Any:
        """Clip the gradients to a norm of `most`. Returns their norm before."""
        import torch

        from runners.models.torch_models import number

        self.scaler.unscale_(self.optimizer)
        return number(torch.nn.utils.clip_grad_norm_(self._trained(), most))

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def _adapt(network: Network, workload: Mapping[str, Any]) -> None:
    """Apply LoRA, checkpointing, precision and torch.compile to a model, as configured."""
    if workload["method"] == "lora":
        from runners.models import peft_adapters

        network.module = peft_adapters.add_lora(network.module, workload)
    if workload["checkpointing"]:
        module: Any = network.module
        # The second name is that of transformers before 5. Reentrant checkpointing does not see that anything needs a
        # gradient if the embedding is frozen.
        enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if workload["precision"] is not None:
        network.compute_dtype = workload["precision"]
    if workload["compile"]:
        network.module.compile()


def _evaluate(network: Network, autocast: Callable[[], AbstractContextManager[Any]], phase: Phases) -> None:
    """One forward pass without gradients, while weights, optimizer state and possibly gradients are in memory."""
    import torch

    from runners.models.torch_models import checksum, shapes

    network.module.eval()
    with phase("evaluation") as notes, torch.inference_mode(), autocast():
        inputs = network.inputs()
        notes.shapes = shapes(inputs)
        notes.metrics["checksum"] = checksum(network.forward(inputs))


def _evaluation(values: Mapping[str, Any]) -> dict[str, int] | None:
    """Batch and context of the evaluation; a missing one is the training's. None if both are missing."""
    requested = {key: size for key, size in values["workload"]["evaluation"].items() if size is not None}
    return {key: values[key] for key in ("batch", "context")} | requested if requested else None


def _mean(losses: Sequence[Any]) -> Any:
    """Mean loss of equal parts. None on the meta device; text such as 'nan' if a loss is not finite."""
    if len(losses) == 1 or None in losses:
        return losses[0]
    return as_json(sum(map(float, losses)) / len(losses))


def _unmeasured(name: str, run_index: int | None) -> AbstractContextManager[Notes]:
    """Stands in for a phase inside `warmup`, which is one phase."""
    return nullcontext(Notes())
