"""Tokens, one after another, by a decoder that keeps keys and values: the prompts first, then a pass for each token.

Phases: model_load, inputs, cold_prefill, cold_decode, warmup (where there is any), then warm_prefill and warm_decode
with the run index 0, 1, ... The prefill chooses the first token of each sequence, decode the others: the last one is
never read, so that a sequence ends with context + new_tokens - 1 positions in the cache. The most likely token is
chosen, and never an end of sequence: random weights would else decide how much is measured.

Keys under `workload`: new_tokens, cache, cache_backend, concurrency, packing, logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runners.models import builders
from runners.phases import Notes, Phases
from runners.workloads import quality

if TYPE_CHECKING:
    import torch

    from runners.models.torch_models import Network
    from runners.models.transformers_caches import Keeping
    from runners.models.transformers_prompts import Prompts

BACKENDS: dict[str, tuple[str, ...]] = {"quanto": ("optimum.quanto",), "hqq": ("hqq.core.quantize",), "fp8": ()}

AnyPhase = Callable[[str, int | None], AbstractContextManager[Notes]]


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    return (*builders.imports(values), *_imports_of_cache(values["workload"]))


def prepare(values: Mapping[str, Any], device: str) -> None:
    builders.prepare(values, device)
    name = values["model"]["name"]
    if values["model"]["library"] != "transformers":
        raise ValueError(f"workload=generate: {name} has no tokens to make; choose a decoder, as in model=tiny-llama")
    from runners.models import transformers_caches, transformers_models, transformers_prompts

    workload = values["workload"]
    model, config = transformers_models.described(values["model"])
    transformers_caches.prepare(workload, model, config, name, device)
    transformers_prompts.prepare(values, model, config)


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    import torch

    from runners.models.torch_models import empty_cache

    sequences = values["batch"] * values["workload"]["concurrency"]
    network = builders.load({**values, "batch": sequences}, device, phase)
    network.module.eval()
    with phase("inputs") as notes:
        generation = Generation.of(network, values["workload"])
        notes.metrics |= {**network.told, "lengths": generation.prompts.lengths}
    with torch.inference_mode():
        told = generation.once(phase, "cold_")
        done = 1
        if values["warmup"]:
            with phase("warmup") as notes:
                for warmed in range(values["warmup"]):
                    generation.once(_unmeasured)
                    notes.iterations = warmed + 1
            done += values["warmup"]
        for run_index in range(values["repeats"]):
            if values["cache"] == "empty":
                empty_cache(device)
            told = generation.once(phase, "warm_", run_index)
            done += 1
    passes = done * told["new_tokens"]
    metrics = told | quality.assessed(network, values, phase)
    return {"metrics": metrics, "steps": passes, "tokens": passes * sequences}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A model, what it is asked to go on from, and how."""

    network: Network
    prompts: Prompts
    keeping: Keeping
    new_tokens: int
    logits: str  # of the prefill: all, or of the last token of each prompt
    never: torch.Tensor  # tokens that end a sequence

    @classmethod
    def of(cls, network: Network, workload: Mapping[str, Any]) -> Generation:
        from runners.models import transformers_caches, transformers_prompts

        module: Any = network.module
        prompts = transformers_prompts.prompts(network.inputs(), module, workload)
        return cls(
            network=network,
            prompts=prompts,
            keeping=transformers_caches.Keeping(
                kind=workload["cache"],
                backend=workload["cache_backend"],
                config=module.config,
                argument=transformers_caches.argument(module),
                capacity=prompts.positions(workload["new_tokens"]),
            ),
            new_tokens=workload["new_tokens"],
            logits=workload["logits"],
            never=transformers_prompts.ends_of_sequence(module).to(network.device),
        )

    def once(self, phase: AnyPhase, prefix: str = "", run_index: int | None = None) -> dict[str, Any]:
        """All new tokens of every sequence, from an empty cache. Gives what is told of the last phase."""
        from runners.models.torch_models import shapes

        few = {"logits_to_keep": self.prompts.last()} if self.logits == "last" else {}
        with phase(f"{prefix}prefill", run_index) as notes:
            cache = self.keeping.cache()
            given = self.prompts.prefill(self.keeping.width)
            notes.shapes = shapes(given)
            chosen = [self._choose(self.prompts.of_prompts(self._logits(cache, given, few)))]
            del given  # a packed row has a mask of its length squared
            notes.metrics |= self._told(cache, chosen)
        with phase(f"{prefix}decode", run_index) as notes:
            for step in range(1, self.new_tokens):
                given = self.prompts.decode(chosen[-1], step, self.keeping.width)
                notes.shapes = shapes(given)
                chosen.append(self._choose(self.prompts.of_tokens(self._logits(cache, given, {}))))
                del given
                notes.iterations = step
            notes.metrics |= self._told(cache, chosen)
        return notes.metrics

    def _logits(self, cache: Any, given: Mapping[str, torch.Tensor], few: Mapping[str, Any]) -> torch.Tensor:
        """Not by the library's `generate`: it keeps more than a loop needs, and what it keeps changes with versions."""
        kept = {self.keeping.argument: cache, "use_cache": True}
        logits: torch.Tensor = self.network.module(**given, **kept, **few).logits
        return logits

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        """[sequences] tokens, which stay on the device: to read one would wait for it."""
        return logits.index_fill_(1, self.never, -math.inf).argmax(1)

    def _told(self, cache: Any, chosen: Sequence[torch.Tensor]) -> dict[str, Any]:
        import torch

        from runners.models import transformers_caches
        from runners.models.torch_models import number

        tokens = torch.stack(list(chosen))
        return {
            "new_tokens": len(tokens),
            "checksum": number((tokens * torch.arange(1, len(tokens) + 1, device=tokens.device)[:, None]).sum()),
            "cache_bytes": transformers_caches.bytes_held(cache),
            "cache_bytes_on_device": transformers_caches.bytes_held(cache, self.network.device),
            "cache_bytes_by_formula": self.keeping.bytes_by_formula(
                rows=self.prompts.rows,
                prompt=self.prompts.positions(0),
                positions=self.prompts.positions(len(tokens) - 1),
                element=self.network.dtype.itemsize,
            ),
        }


def _imports_of_cache(workload: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules that a kind of cache is in: the first prefill would import them, and be measured with it."""
    if workload["cache"] == "static":
        return ("torch._dynamo",)  # is told that the tensors stay where they are
    if workload["cache"] == "quantized":
        return BACKENDS[workload["cache_backend"]]
    return ()


def _unmeasured(name: str, run_index: int | None) -> AbstractContextManager[Notes]:
    """A phase within the phase `warmup`, which is one."""
    return nullcontext(Notes())
