"""Prompts that `generate` cannot read in chunks (runners/models/transformers_caches.py has the same rules). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Model types whose layers have a state that no chunk continues: `_is_stateful` in transformers' modelling code.
STATEFUL = frozenset((
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "qwen3_next",
    "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
))  # fmt: skip


def refused_chunk(workload: Mapping[str, Any], context: int | None, model: Any, model_type: Any) -> str | None:
    """Why prompts of `context` tokens cannot be read in the chunks of a workload; None if no reason is known.

    A chunk of the whole prompt is none, except for a packed row, which is longer.
    """
    chunk = workload.get("prefill_chunk") if workload.get("name") == "generate" else None
    if chunk is None or context is None or (chunk >= context and workload.get("packing") != "packed"):
        return None
    if workload.get("cache") == "quantized":
        return f"workload.prefill_chunk={chunk} with workload.cache=quantized: each chunk would be quantized anew"
    if model_type in STATEFUL:
        return f"workload.prefill_chunk={chunk} with model={model} ({model_type}): its layers cannot continue a prompt"
    return None
