"""Estimate the memory of a point before anything runs: exact integers, each with formula, assumption and source.

Pure, and without torch: parameter counts are closed forms of the model's configuration. A term without an exact formula
is left out with a reason, because a guess would be mistaken for a figure.

    weights      the parameters, a tied matrix once
    gradients    one for each trained parameter, in its type
    optimizer    the states that the optimizer keeps between steps
    kv_cache     keys and values of the tokens, for each key-value head
    logits, ...  the output and the tensors of the loss (sweeper/estimates/activations.py)
    activations  the tensors that layers keep for the backward pass (the same file)
    reserve      an assumed figure

Terms are added up for each moment at which they are alive. The highest sum is a lower bound of the point's peak.
Temporaries, inputs, the allocator's rounding and the device's context are in no term: a sweep measures them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeper.estimates.activations import activations, logits
from sweeper.estimates.memory_terms import MOMENTS, MemoryTerm, NoClosedForm, element_bits, kv_cache, name_of, weights
from sweeper.estimates.parameter_counts import parameters

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The terms of one point, and a sentence for each term without a closed form."""

    terms: tuple[MemoryTerm, ...] = ()
    not_estimated: tuple[str, ...] = ()

    @property
    def together(self) -> dict[str, int]:
        """The sum of the terms alive at each moment, in bytes."""
        return {
            moment: sum(term.bytes for term in self.terms if moment in term.alive)
            for moment in MOMENTS
            if any(moment in term.alive for term in self.terms)
        }

    @property
    def at_least(self) -> tuple[str, int] | None:
        """The moment with the highest sum, and that sum in bytes: a lower bound of the peak. None without terms."""
        return max(self.together.items(), key=lambda sum: sum[1], default=None)


def terms(values: Values) -> list[MemoryTerm]:
    """The terms of a point's settled values that have a closed form."""
    return list(estimate(values).terms)


def estimate(values: Values) -> Estimate:
    """The estimate of a point's settled values."""
    found: list[MemoryTerm] = []
    missing: list[str] = []
    for name, calculate in _terms_of(values):
        try:
            found += calculate(values)
        except NoClosedForm as reason:
            missing.append(f"{name}: not estimated, {reason}")
    return Estimate(terms=tuple(found), not_estimated=tuple(missing))


def _terms_of(values: Values) -> Sequence[tuple[str, Callable[[Values], Sequence[MemoryTerm]]]]:
    """The names of a workload's terms and the functions that calculate them."""
    workload = name_of(values.get("workload"))
    if workload == "forward":
        return [("weights", _weights_of), ("logits", logits)]
    if workload == "train":
        return [
            *(("weights", _weights_of), ("gradients", _gradients_of), ("optimizer", _optimizer_of)),
            *(("activations", activations), ("logits", logits)),
        ]
    if workload == "generate":
        return [("weights", _weights_of), ("kv_cache", _kv_cache_of)]
    return [("weights", _unknown_workload)]


def _unknown_workload(values: Values) -> list[MemoryTerm]:
    raise NoClosedForm(f"workload={name_of(values.get('workload'))} runs code without closed forms")


ALWAYS = {"forward": ("forward",), "train": ("forward", "loss", "backward", "step"), "generate": ("decode",)}


def _weights_of(values: Values) -> list[MemoryTerm]:
    count = parameters(values)
    term = weights(count.total, element_bits(values))
    return [
        replace(
            term,
            formula=f"{count.total:,} parameters x {element_bits(values) // 8} bytes",
            assumption=f"stored as {values['dtype']}, a tied matrix once; without buffers and adapters",
            source=count.formula,
            alive=ALWAYS[name_of(values["workload"])],
        )
    ]


def _gradients_of(values: Values) -> list[MemoryTerm]:
    count, workload = parameters(values), values["workload"]
    _all_are_trained(values)
    keeps = workload.get("set_to_none") is False and _steps(values) > 1
    added_up = (workload.get("accumulate") or 1) > 1
    return [
        MemoryTerm(
            term="gradients",
            bytes=count.total * element_bits(values) // 8,
            formula=f"{count.total:,} parameters x {element_bits(values) // 8} bytes",
            assumption="every parameter is trained; a gradient has its parameter's type, and all are alive together",
            source="torch.Tensor.grad has its tensor's shape and type",
            alive=ALWAYS["train"] if keeps or added_up else ("step",),
        )
    ]


def _optimizer_of(values: Values) -> list[MemoryTerm]:
    count = parameters(values)
    _all_are_trained(values)
    states, kept = _optimizer_states(values["workload"])
    size = element_bits(values) // 8
    assumption = "a state has its parameter's shape and type, and exists after the first step"
    if states >= 2:
        assumption += "; without the step counter of each tensor (4 bytes)"
    return [
        MemoryTerm(
            term="optimizer",
            bytes=states * count.total * size,
            formula=f"{states} x {count.total:,} parameters x {size} bytes",
            assumption=assumption,
            source=kept,
            alive=ALWAYS["train"] if _steps(values) > 1 else ("step",),
        )
    ]


def _steps(values: Values) -> int:
    """The number of all steps: the first, the warm-up, and the repeats (one by default)."""
    repeats = values.get("repeats")
    return 1 + (values.get("warmup") or 0) + (1 if repeats is None else repeats)


def _optimizer_states(workload: Mapping[str, Any]) -> tuple[int, str]:
    """The number of tensors of a parameter's size that the optimizer keeps for it, and their source."""
    optimizer = str(name_of(workload.get("optimizer"))).lower()
    options = workload["optimizer"] if isinstance(workload.get("optimizer"), Mapping) else workload
    optimizer = re.sub("^adamw-(forloop|foreach|fused)$", "adamw", optimizer)  # implementations with the same states
    if optimizer in ("adamw", "adam"):
        if options.get("amsgrad"):
            return 3, f"torch.optim.{optimizer}: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq"
        return 2, f"torch.optim.{optimizer}: exp_avg and exp_avg_sq"
    if optimizer == "sgd":
        if options.get("momentum"):
            return 1, "torch.optim.sgd: momentum_buffer"
        return 0, "torch.optim.sgd without momentum keeps nothing"
    raise NoClosedForm(f"the states of workload.optimizer={optimizer} are not known here")


def _kv_cache_of(values: Values) -> list[MemoryTerm]:
    shape = parameters(values).attention
    if shape is None:
        raise NoClosedForm(f"model={name_of(values.get('model'))} has no attention, so no keys and values")
    workload = values["workload"]
    if "new_tokens" not in workload:
        raise NoClosedForm("workload.new_tokens is not known")
    cache, lengths = workload.get("cache"), workload.get("prompt_lengths", 1)
    if cache in NOT_PLAIN:
        raise NoClosedForm(f"workload.cache={cache} {NOT_PLAIN[cache]}")
    if workload.get("packing") == "packed" and lengths > 1:
        raise NoClosedForm("workload.packing=packed keeps prompts of different lengths")
    tokens = values["context"] + workload["new_tokens"]
    if cache in ("dynamic", "sliding"):
        tokens -= 1  # the last token is never read, so only a static cache has room for it
    if cache == "paged":
        tokens = -(-(tokens - 1) // PAGE) * PAGE
    if shape.window is not None and tokens > shape.window and cache not in ("dynamic", "paged"):
        if cache is None or not shape.all_windowed:
            raise NoClosedForm(f"a context of {tokens:,} exceeds the sliding window of {shape.window:,}")
        tokens = shape.window
    term = kv_cache(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tokens=tokens,
        sequences=values["batch"] * lengths,
        element_bytes=element_bits(values) // 8,
    )
    return [replace(term, assumption=KEPT.get(cache, term.assumption), alive=ALWAYS["generate"])]


PAGE = 16  # tokens of a page, as in runners/models/transformers_caches.py
KEPT = {
    "paged": f"every sequence has whole pages of {PAGE} tokens in every layer, in the point's dtype",
    "static": "memory for all tokens, or for a window of them, is allocated at once, in the point's dtype",
    "sliding": "each layer keeps at most its window, in the point's dtype; the prefill holds the whole prompt",
}
NOT_PLAIN = {
    "quantized": "has bits and scales that the library decides",
    "offloaded": "keeps layers that are not in use on the host",
}


def _all_are_trained(values: Values) -> None:
    method = values["workload"].get("method", "full")
    if method != "full":
        raise NoClosedForm(f"workload.method={method} trains added parameters, which are not counted here")
