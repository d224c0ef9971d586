"""The most tokens a second that a device's memory lets a decoder generate, and what they cost. Arithmetic, pure.

A decoding step reads every weight once, for all sequences together, and the keys and values of each sequence. A device
cannot do that faster than its bandwidth lets it; how much slower it is depends on its kernels and is not estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_HOUR = 3600
MILLION = 10**6
FORMULA = "tokens/s <= batch x bandwidth / (weights + cache)"
PRICE_FORMULA = "price of a million tokens >= price per hour / 3600 / (tokens/s) x 10^6"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpeed:
    """The first decoding step after the prompts. `tokens_per_second`: of all sequences together, at most."""

    batch: int
    weight_bytes: int  # that a step reads
    cache_bytes: int  # of all sequences
    bandwidth_bytes_per_s: int
    tokens_per_second: float
    price_per_million_tokens: float | None  # at least, in the unit of the price per hour; None without one

    @property
    def seconds_per_step(self) -> float:
        """At least."""
        return (self.weight_bytes + self.cache_bytes) / self.bandwidth_bytes_per_s


def most_tokens_per_second(
    *,
    batch: int,
    weight_bytes: int | None,
    cache_bytes: int | None,
    bandwidth_bytes_per_s: int | None,
    price_per_hour: float | None = None,
) -> GenerationSpeed | None:
    """None if the bytes of a step or the bandwidth are not known."""
    if weight_bytes is None or cache_bytes is None or bandwidth_bytes_per_s is None or weight_bytes + cache_bytes == 0:
        return None
    tokens = batch * bandwidth_bytes_per_s / (weight_bytes + cache_bytes)
    price = None if price_per_hour is None else price_per_hour / SECONDS_PER_HOUR / tokens * MILLION
    return GenerationSpeed(
        batch=batch,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        tokens_per_second=tokens,
        price_per_million_tokens=price,
    )
