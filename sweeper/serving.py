"""A server of a model: how many requests it can answer at once, from rows of the workload `generate`. Pure.

Each request has pages of the cache for its prompt and its new tokens (workload.cache=paged). The prompts are read in
chunks, so that a pass has about as many tokens as a pass of a server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sweeper.fit import Setting

SERVE, PAGED = "serve", "paged"
PASS_TOKENS = 8192  # of all prompts together: the limit that vLLM has by default on a card of 80 GB
NOT_INCLUDED = (
    "what a server keeps for itself (its own reserve and its copies of inputs)",
    "CUDA graphs",
    "the workspaces of its own kernels",
)


def serving_setting(requests: int, given: Collection[str] = ()) -> Setting:
    """`given`: keys that the user typed, which stay as they are."""
    values: Mapping[str, Any] = {
        "workload": "generate",
        "workload.cache": PAGED,
        "workload.prefill_chunk": max(1, PASS_TOKENS // requests),
        "warmup": 0,
        "repeats": 1,
    }
    return Setting(name=SERVE, values={key: value for key, value in values.items() if key not in given})
