"""The terms of an estimate: whole bytes, each with its formula, assumptions and source. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

from sweeper.units import GIB, format_count

DTYPE_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}

# Moments that every pass of a workload goes through. Terms of one moment are alive together.
MOMENTS = {
    "forward": "as the forward pass ends",
    "loss": "in the loss, before the logits are freed",
    "backward": "as the backward pass begins, at the gradient of the logits",
    "step": "after the optimizer's update",
    "decode": "as the last token is chosen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One summand in whole bytes. `alive`: the moments (keys of MOMENTS) at which it is held."""

    term: str
    bytes: int
    formula: str
    assumption: str
    source: str
    alive: tuple[str, ...] = ()


class NoClosedForm(Exception):
    """Raised for a term without an exact formula. Its message becomes a sentence of the estimate."""


def weights(parameters: int, bits: int) -> MemoryTerm:
    """Parameters of `bits` bits each, rounded up to the byte: 3 parameters of 4 bits take 2 bytes."""
    return MemoryTerm(
        term="weights",
        bytes=-(-parameters * bits // 8),
        formula=f"{parameters:,} parameters x {bits} bits / 8",
        assumption="all parameters have the same width; no buffers, no scales or zero points of a quantised format",
        source="arithmetic",
    )


def kv_cache(
    *, layers: int, kv_heads: int, head_dim: int, tokens: int, sequences: int, element_bytes: int
) -> MemoryTerm:
    """Keys and values: a vector of each per layer, key-value head and token. Query heads do not matter."""
    return MemoryTerm(
        term="kv_cache",
        bytes=2 * layers * kv_heads * head_dim * tokens * sequences * element_bytes,
        formula=(
            f"2 (key, value) x {format_count(layers, 'layer')} x {format_count(kv_heads, 'key-value head')}"
            f" x {head_dim} head dimension x {format_count(tokens, 'token')} x {format_count(sequences, 'sequence')}"
            f" x {element_bytes} bytes"
        ),
        assumption="every token of every sequence is kept, unquantised; nothing is allocated in advance",
        source="arithmetic",
    )


def reserve(gib: Decimal) -> MemoryTerm:
    """An assumed reserve, rounded up to the byte."""
    return MemoryTerm(
        term="reserve",
        bytes=ceil(Fraction(gib) * GIB),
        formula=f"{gib:f} GiB x 2^30",
        assumption="the given figure, for everything but the weights; it is not calculated",
        source="reserve_gib",
    )


def element_bits(values: Mapping[str, Any]) -> int:
    """Bits of an element in the point's dtype. Raises NoClosedForm if it is quantised or not known."""
    quantize = values.get("quantize") or "none"
    if quantize != "none":
        raise NoClosedForm(f"quantize={quantize} leaves some modules unchanged, and the model's code decides which")
    dtype = str(values.get("dtype"))
    if dtype not in DTYPE_BITS:
        raise NoClosedForm(f"the width of dtype={dtype} is not known")
    return DTYPE_BITS[dtype]


def name_of(option: Any) -> Any:
    """The name of a configuration group's option: its `name`, or the value itself if it is a scalar."""
    return option.get("name") if isinstance(option, Mapping) else option
