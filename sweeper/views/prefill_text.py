"""How a generation reads its prompts, and what it takes at least if it reads them in smaller chunks, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sweeper.estimates.estimate import estimate
from sweeper.rows import Row
from sweeper.units import format_bytes, format_count

GENERATE = "generate"
LEAST = {"weights", "kv_cache"}  # the terms that a prefill holds in chunks of any size


def prefill_of(row: Row) -> str | None:
    """In how many tokens at a time a row's prompts were read. None for another workload."""
    return prefill(json.loads(row["config"])) if row["workload"] == GENERATE else None


def prefill(values: Mapping[str, Any]) -> str:
    """The same for the settled values of a point whose workload is generate."""
    chunk, given = _chunk(values), values["workload"].get("prefill_chunk")
    if given is not None and values["workload"].get("cache") == "paged":
        return f"prompts read one after another, up to {format_count(given, 'token')} in a pass"
    if chunk is None:
        return "prompts read at once" + ("" if given is None else f" (workload.prefill_chunk={given})")
    return f"prompts read in chunks of {format_count(chunk, 'token')}"


def _chunk(values: Mapping[str, Any]) -> int | None:
    """None also for a chunk that holds a whole prompt."""
    workload = values["workload"]
    chunk: int | None = workload.get("prefill_chunk")
    whole = chunk is None or (chunk >= values["context"] and workload.get("packing") != "packed")
    return None if whole else chunk


def least_in_chunks(values: Mapping[str, Any], failed_phase: str | None) -> str | None:
    """What chunks of any size take at least, by arithmetic, for prompts that did not fit. None for other failures.

    `values`: the settled values of a point whose workload is generate.
    """
    if not (failed_phase or "").endswith("prefill"):
        return None
    found = estimate(values)
    if found.at_least is None or {term.term for term in found.terms} != LEAST:
        return None
    chunks = "chunks (workload.prefill_chunk)" if _chunk(values) is None else "smaller chunks"
    return f"{chunks} would take at least {format_bytes(found.at_least[1])}, for weights and cache (arithmetic)"
