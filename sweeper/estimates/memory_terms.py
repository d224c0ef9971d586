"""What an estimate is made of: terms of whole bytes, each with its formula, its assumption and its source. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from sweeper.units import GIB

DTYPE_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}

# When terms are alive together, each a moment that every pass of the workload comes through.
MOMENTS = {
    "forward": "as a forward pass ends",
    "loss": "in the loss, before the logits are given back",
    "backward": "as the backward pass begins, at the gradient of the logits",
    "step": "as the optimizer has made its update",
    "decode": "as the last token is chosen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One summand: whole bytes, where they come from, and in which of MOMENTS they are alive."""

    term: str
    bytes: int
    formula: str
    assumption: str
    source: str
    alive: tuple[str, ...] = ()


class NoClosedForm(Exception):
    """Says what the arithmetic does not know; becomes a sentence of the estimate, never a number."""


def weights(parameters: int, bits: int) -> MemoryTerm:
    """Parameters at so many bits each, rounded up to the byte: 3 parameters of 4 bits take 2 bytes."""
    return MemoryTerm(
        term="weights",
        bytes=-(-parameters * bits // 8),
        formula=f"{parameters:,} parameters x {bits} bits / 8",
        assumption="every parameter at the same width; no scales or zero points of a quantised format, no buffers",
        source="arithmetic",
    )


def kv_cache(
    *, layers: int, kv_heads: int, head_dim: int, tokens: int, sequences: int, element_bytes: int
) -> MemoryTerm:
    """Keys and values: one vector of each per layer, key-value head and token. Query heads do not count."""
    return MemoryTerm(
        term="kv_cache",
        bytes=2 * layers * kv_heads * head_dim * tokens * sequences * element_bytes,
        formula=(
            f"2 (key, value) x {layers} layers x {kv_heads} key-value heads x {head_dim} head dimension"
            f" x {tokens:,} tokens x {sequences} sequences x {element_bytes} bytes"
        ),
        assumption="every token of every sequence is kept, unquantised, and nothing is allocated ahead",
        source="arithmetic",
    )


def reserve(gib: Decimal) -> MemoryTerm:
    """An assumed reserve, rounded up to the byte."""
    return MemoryTerm(
        term="reserve",
        bytes=ceil(Fraction(gib) * GIB),
        formula=f"{gib:f} GiB x 2^30",
        assumption="a figure given by whoever asked, for everything that is not weights; nothing here calculates it",
        source="reserve_gib",
    )


def element_bits(values: Mapping[str, Any]) -> int:
    """Of what a point stores and computes in."""
    quantize = values.get("quantize") or "none"
    if quantize != "none":
        raise NoClosedForm(f"quantize={quantize} leaves some modules as they are, and which hangs on the model's code")
    dtype = str(values.get("dtype"))
    if dtype not in DTYPE_BITS:
        raise NoClosedForm(f"the width of dtype={dtype} is not known")
    return DTYPE_BITS[dtype]


def name_of(option: Any) -> Any:
    """The name of a group's option; a scalar is its own."""
    return option.get("name") if isinstance(option, Mapping) else option


# --- as a person reads them ---
