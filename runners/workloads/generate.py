"""Generation by a decoder with a cache of keys and values: a prefill of the prompts, then one pass per token.

Phases: model_load, inputs, cold_prefill, cold_decode, warmup (if any), then warm_prefill and warm_decode with the run
index 0, 1, ... The prefill chooses the first token of each sequence, decode the others. The last token is never read: a
sequence ends with context + new_tokens - 1 positions in the cache. The most likely token is chosen, but never an end of
sequence; otherwise random weights would decide how many tokens are measured.

The prefill reads the prompts at once, or `prefill_chunk` tokens of each row in a pass, as servers do. A pass in which
no prompt ends computes logits as the others do, and drops them. With a paged cache, `prefill_chunk` is the number of
tokens of a pass: of several whole prompts, or of a part of one. A calculated device skips groups of prompts that are
like the one before, and with a paged cache the decoding steps between the first and the last ones.

Keys under `workload`: new_tokens, prefill_chunk, cache, cache_backend, prompt_lengths, packing, logits.
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
    from runners.models.transformers_caches import CacheSpec
    from runners.models.transformers_prompts import Prompts

BACKENDS: dict[str, tuple[str, ...]] = {"quanto": ("optimum.quanto",), "hqq": ("hqq.core.quantize",), "fp8": ()}

FOLLOWED = 4  # decoding steps that a calculated device follows with a paged cache: the first and the last ones

AnyPhase = Callable[[str, int | None], AbstractContextManager[Notes]]


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    return (*builders.imports(values), *_imports_of_cache(values["workload"]))


def prepare(values: Mapping[str, Any], device: str) -> None:
    quality.prepare(values)
    builders.prepare(values, device)
    name = values["model"]["name"]
    if values["model"]["library"] != "transformers":
        raise ValueError(f"workload=generate: {name} generates no tokens; choose a decoder, as in model=tiny-llama")
    from runners.models import transformers_caches, transformers_models, transformers_prompts

    workload = values["workload"]
    model, config = transformers_models.class_and_config(values["model"])
    in_chunks = transformers_prompts.in_chunks(values)
    transformers_caches.prepare(workload, model, config, name, device, in_chunks)
    transformers_prompts.prepare(values, model, config)


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    import torch

    from runners.models import transformers_models
    from runners.models.torch_models import empty_cache

    sequences = values["batch"] * values["workload"]["prompt_lengths"]
    network = builders.load({**values, "batch": sequences}, device, phase)
    network.module.eval()
    with phase("inputs") as notes:
        generation = Generation.of(network, values["workload"])
        notes.metrics |= {**network.input_metrics, "lengths": generation.prompts.lengths}
    with torch.inference_mode():
        metrics = generation.once(phase, "cold_")
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
            metrics = generation.once(phase, "warm_", run_index)
            done += 1
    passes = done * metrics["new_tokens"]
    metrics = metrics | {"step_weight_bytes": transformers_models.weights_of_a_step(network.module)}
    metrics = metrics | quality.measure(network, values, phase)
    return {"metrics": metrics, "steps": passes, "tokens": passes * sequences}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A model with its prompts, its cache, and the number of tokens to generate."""

    network: Network
    prompts: Prompts
    cache_spec: CacheSpec
    new_tokens: int
    prefill_chunk: int | None  # tokens of each row that a pass of the prefill reads; None: all
    logits: str  # computed in the prefill: `all`, or those of the `last` token of each prompt
    end_tokens: torch.Tensor  # tokens that end a sequence

    @classmethod
    def of(cls, network: Network, workload: Mapping[str, Any]) -> Generation:
        from runners.models import transformers_caches, transformers_prompts

        module: Any = network.module
        prompts = transformers_prompts.prompts(network.inputs(), module, workload)
        return cls(
            network=network,
            prompts=prompts,
            cache_spec=transformers_caches.CacheSpec(
                kind=workload["cache"],
                backend=workload["cache_backend"],
                config=module.config,
                argument=transformers_caches.argument(module),
                capacity=prompts.positions(workload["new_tokens"]),
                rows=prompts.rows,
            ),
            new_tokens=workload["new_tokens"],
            prefill_chunk=workload["prefill_chunk"],
            logits=workload["logits"],
            end_tokens=transformers_prompts.end_tokens(module).to(network.device),
        )

    def once(self, phase: AnyPhase, prefix: str = "", run_index: int | None = None) -> dict[str, Any]:
        """Generate all new tokens of every sequence from an empty cache. Returns the metrics of the decode."""
        import torch

        from runners.models.torch_models import shapes

        with phase(f"{prefix}prefill", run_index) as notes:
            cache = self.cache_spec.cache(self.network.dtype, self.network.device)
            first_tokens = self._read_all(cache, notes)
            chosen = [torch.cat(first_tokens) if len(first_tokens) > 1 else first_tokens[0]]
            notes.metrics |= self._metrics(cache, chosen)
            prompt_bytes = self.cache_spec.read_by_a_step(
                rows=self.prompts.rows,
                positions=self.prompts.positions(0),
                element=self.network.dtype.itemsize,
                held=notes.metrics["cache_bytes"],
            )
        with phase(f"{prefix}decode", run_index) as notes:
            followed = 0
            for step in range(1, self.new_tokens):
                if self._is_skipped(step):
                    chosen.append(chosen[-1].clone())
                    continue
                followed += 1
                if self.cache_spec.kind == "paged":
                    cache.select(0, self.prompts.rows, self.prompts.positions(step - 1))
                inputs = self.prompts.decode(chosen[-1], step, self.cache_spec.width)
                notes.shapes = shapes(inputs)
                chosen.append(self._choose(self.prompts.of_tokens(self._logits(cache, inputs, {}))))
                del inputs
                notes.iterations = step
            notes.metrics |= self._metrics(cache, chosen) | {"decoding_steps": followed}
        return notes.metrics | {"prompt_cache_bytes": prompt_bytes}

    def _read_all(self, cache: Any, notes: Notes) -> list[torch.Tensor]:
        """Read the prompts: the next chunk of each, or with pages one group of prompts after another."""
        chunks = self.prompts.chunks(self.prefill_chunk)
        notes.iterations = 0
        if self.cache_spec.kind != "paged":
            first_tokens = []
            for first, end in chunks:
                first_tokens += self._read_prompts(cache, first, end, notes)
                notes.iterations += 1
            return first_tokens
        groups = self.prompts.groups(self.prefill_chunk)
        found: list[torch.Tensor] = []
        for place, (first_row, end_row) in enumerate(groups):
            if self._is_known(groups, place):
                found.append(found[-1].clone())
            else:
                cache.select(first_row, end_row, 0)
                for first, end in chunks:
                    found += self._read_prompts(cache, first, end, notes, slice(first_row, end_row))
            notes.iterations += len(chunks)
        return found

    def _is_known(self, groups: Sequence[tuple[int, int]], place: int) -> bool:
        """Whether a calculated device need not follow the passes of a group: the first had every page allocated, and a
        later one as large allocates and frees the same, with more first tokens held."""
        from runners.models import torch_models

        sizes = [end - first for first, end in groups[place : place + 2]]
        return place > 0 and sizes[1:] == sizes[:1] and torch_models.is_calculated(self.network.device)

    def _is_skipped(self, step: int) -> bool:
        """Whether a calculated device need not follow a decoding step: every page is allocated already, and each step
        allocates and frees the same, with one token more held.
        """
        from runners.models import torch_models, transformers_caches

        module: Any = self.network.module
        return (
            self.cache_spec.kind == "paged"
            and FOLLOWED < step < self.new_tokens - FOLLOWED
            and torch_models.is_calculated(self.network.device)
            and transformers_caches.steps_take_the_same(module.config)
        )

    def _read_prompts(
        self, cache: Any, first: int, end: int, notes: Notes, rows: slice | None = None
    ) -> list[torch.Tensor]:
        """Read the positions [first, end) of each row, or of some. Returns the first new tokens of the prompts that end
        there.
        """
        from runners.models.torch_models import shapes

        inputs = self.prompts.prefill(first, end, self.cache_spec.width)
        if rows is not None:
            inputs = {name: tensor[rows] for name, tensor in inputs.items()}
        notes.shapes = notes.shapes or shapes(inputs)
        logits_option = {"logits_to_keep": self.prompts.last(first, end)} if self.logits == "last" else {}
        ending = self.prompts.of_prompts(self._logits(cache, inputs, logits_option), first, end)
        del inputs  # a packed row has a quadratic mask
        return [] if ending is None else [self._choose(ending)]

    def _logits(self, cache: Any, inputs: Mapping[str, torch.Tensor], logits_option: Mapping[str, Any]) -> torch.Tensor:
        """Logits (rows, positions, vocabulary) of one pass.

        Not the library's `generate`, which holds more tensors than a loop needs, and different ones by version.
        """
        cache_option = {self.cache_spec.argument: cache, "use_cache": True}
        logits: torch.Tensor = self.network.module(**inputs, **cache_option, **logits_option).logits
        return logits

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        """Tokens (sequences,) from logits (sequences, vocabulary), left on the device: a read would synchronise."""
        return logits.index_fill_(1, self.end_tokens, -math.inf).argmax(1)

    def _metrics(self, cache: Any, chosen: Sequence[torch.Tensor]) -> dict[str, Any]:
        import torch

        from runners.models import transformers_caches
        from runners.models.torch_models import number

        tokens = torch.stack(list(chosen))
        return {
            "new_tokens": len(tokens),
            "checksum": number((tokens * torch.arange(1, len(tokens) + 1, device=tokens.device)[:, None]).sum()),
            "cache_bytes": transformers_caches.bytes_held(cache),
            "cache_bytes_on_device": transformers_caches.bytes_held(cache, self.network.device),
            "cache_bytes_by_formula": self.cache_spec.bytes_by_formula(
                rows=self.prompts.rows,
                prompt=self.prompts.positions(0),
                positions=self.prompts.positions(len(tokens) - 1),
                element=self.network.dtype.itemsize,
            ),
        }


def _imports_of_cache(workload: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules of a cache, which the first prefill would otherwise import while it is measured."""
    if workload["cache"] == "static":
        return ("torch._dynamo",)  # transformers marks static tensors with it
    if workload["cache"] == "quantized":
        return BACKENDS[workload["cache_backend"]]
    return ()


def _unmeasured(name: str, run_index: int | None) -> AbstractContextManager[Notes]:
    """Stands in for a phase inside `warmup`, which is one phase."""
    return nullcontext(Notes())
