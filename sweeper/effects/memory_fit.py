"""A phase's peak as a function of batch and context, fitted to measured peaks. Pure.

    bytes = fixed + batch x (per_sample + per_token x context + per_token_squared x context^2)

The fit is non-negative least squares of the relative errors, for each phase. While one operation sets the peak of the
phase, the form is exact to 0.3 %. Another operation may set it in large points than in small ones. If one form does not
fit all points, up to half of them, the smallest, are left out, provided that the rest agree and the points left out lie
above the form: four points of one operation predict larger points better than six points of several operations.
The squared term is for attention that keeps its scores (eager). With other attention it would only fit the errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

SAME_OPERATION = 0.005  # 0.3 % was seen within one operation; resident memory repeats to some tenths of a percent
FIXED, SAMPLE, TOKEN, SQUARE = "fixed", "per_sample", "per_token", "per_token_squared"
TERMS = (FIXED, SAMPLE, TOKEN, SQUARE)


class Size(NamedTuple):
    batch: int
    context: int


class NotFitted(NamedTuple):
    because: str


@dataclass(frozen=True)
class MemoryFit:
    """`costs`: bytes of each term that the points separate. `peaks`: the peaks it was fitted to, in bytes.

    `smaller`: measured peaks that were left out, because another operation sets them.
    """

    costs: Mapping[str, float]
    peaks: Mapping[Size, int]
    smaller: Mapping[Size, int]

    def at(self, size: Size) -> float | NotFitted:
        """Bytes at a size, inside or outside the measured range, or why they are not known."""
        for name, value in size._asdict().items():
            low, high = self.range[name]
            if low == high != value:
                return NotFitted(f"measured at {name}={low} only")
        found = self._bytes(size)
        if found < max(self.smaller.values(), default=0):
            return NotFitted("another operation sets the peak of the phase in points this small")
        return found

    def holds(self, size: Size) -> bool:
        """Whether a size is within the measured range."""
        return all(low <= value <= high for value, (low, high) in zip(size, self.range.values(), strict=True))

    def of_a_sample(self, size: Size) -> float | None:
        """Bytes that one more sample adds to a point of this size; None where the batch was not varied."""
        more = self._bytes(Size(size.batch + 1, size.context)) - self._bytes(size)
        return more if self._varied("batch") else None

    def of_a_token(self, size: Size) -> float | None:
        """Bytes that one more token adds to one sample; None where the context was not varied."""
        more = self._bytes(Size(size.batch, size.context + 1)) - self._bytes(size)
        return more / size.batch if self._varied("context") else None

    @cached_property
    def range(self) -> dict[str, tuple[int, int]]:
        """The smallest and largest batch and context that it was fitted to."""
        return {
            "batch": (min(size.batch for size in self.peaks), max(size.batch for size in self.peaks)),
            "context": (min(size.context for size in self.peaks), max(size.context for size in self.peaks)),
        }

    @cached_property
    def residuals(self) -> dict[Size, float]:
        """Fitted less measured, as a fraction of the measured peak."""
        return {size: (self._bytes(size) - peak) / max(peak, 1) for size, peak in self.peaks.items()}

    @property
    def worst(self) -> float:
        return max(map(abs, self.residuals.values()))

    @property
    def is_exact_by_count(self) -> bool:
        """Whether there are no more points than terms: residuals are then zero, even if the form is wrong."""
        return len(self.peaks) <= len(self.costs)

    def _bytes(self, size: Size) -> float:
        return sum(cost * _term(name, size) for name, cost in self.costs.items())

    def _varied(self, name: str) -> bool:
        low, high = self.range[name]
        return low != high


def _term(name: str, size: Size) -> int:
    tokens = size.batch * size.context
    return {FIXED: 1, SAMPLE: size.batch, TOKEN: tokens, SQUARE: tokens * size.context}[name]


def fit_memory(peaks: Mapping[Size, int], eager: bool) -> MemoryFit | NotFitted:
    """Fit the peaks of one phase, in bytes by size. `eager`: whether attention is eager."""
    terms = _terms_of(peaks, eager)
    if isinstance(terms, NotFitted):
        return terms
    whole = found = _fit(terms, peaks, {})
    by_peak = sorted(peaks, key=lambda size: (peaks[size], size))
    for left_out in range(1, 1 + min(len(peaks) // 2, len(peaks) - len(terms) - 1)):
        if found.worst <= SAME_OPERATION:
            break
        kept = {size: peaks[size] for size in by_peak[left_out:]}
        if _terms_of(kept, eager) != terms:
            return whole
        found = _fit(terms, kept, {size: peaks[size] for size in by_peak[:left_out]})
    disagree = {size: peak for size, peak in peaks.items() if not _agrees(found, size, peak)}
    if found.worst > SAME_OPERATION or any(peak < found._bytes(size) for size, peak in disagree.items()):
        return whole
    return _fit(terms, {size: peak for size, peak in peaks.items() if size not in disagree}, disagree)


def _agrees(found: MemoryFit, size: Size, peak: int) -> bool:
    return abs(found._bytes(size) - peak) <= SAME_OPERATION * max(peak, 1)


def _fit(terms: Sequence[str], kept: Mapping[Size, int], smaller: Mapping[Size, int]) -> MemoryFit:
    # A peak of 0 counts as one byte: its relative error would have no meaning.
    weights = np.array([1 / max(peak, 1) for peak in kept.values()])
    sizes = np.array([[_term(name, size) for name in terms] for size in kept], dtype=float)
    costs = least_squares(sizes * weights[:, None], np.array(list(kept.values()), dtype=float) * weights)
    return MemoryFit(dict(zip(terms, costs, strict=True)), dict(kept), dict(smaller))


def _terms_of(peaks: Mapping[Size, int], eager: bool) -> tuple[str, ...] | NotFitted:
    """The terms that these sizes separate. With one context, for example, the cost of a token is part of per_sample."""
    batches, contexts = {size.batch for size in peaks}, {size.context for size in peaks}
    if len(batches) <= 1 and len(contexts) <= 1:
        return NotFitted("neither batch nor context was varied")
    if eager and len(contexts) == 2:
        return NotFitted("attention is eager: a term of the squared context needs 3 contexts, there are 2")
    terms = [FIXED]
    terms += [SAMPLE] if len(batches) > 1 else []
    terms += [TOKEN] if len(contexts) > 1 else []
    terms += [SQUARE] if len(contexts) > 1 and eager else []
    if len(peaks) < len(terms):
        return NotFitted(f"as many points as terms ({', '.join(terms)}) are needed, and {len(peaks)} passed")
    sizes = np.array([[_term(name, size) for name in terms] for size in peaks], dtype=float)
    if np.linalg.matrix_rank(sizes / sizes.max(axis=0)) < len(terms):
        return NotFitted(f"the points do not separate {', '.join(terms)}")
    return tuple(terms)


def least_squares(columns: Any, wanted: Any) -> list[float]:
    """The x >= 0 that minimizes |columns x - wanted|; `columns` has shape (points, terms), `wanted` (points,).

    The positive parts of x solve the unconstrained problem of their own columns, so every choice of columns is tried:
    fifteen for four terms.
    """
    scale = np.abs(columns).max(axis=0)
    count = columns.shape[1]
    best, least = np.zeros(count), float(wanted @ wanted)
    for chosen in (list(each) for size in range(1, count + 1) for each in combinations(range(count), size)):
        answer = np.linalg.lstsq(columns[:, chosen] / scale[chosen], wanted, rcond=None)[0]
        errors = columns[:, chosen] / scale[chosen] @ answer - wanted
        if (answer >= 0).all() and float(errors @ errors) < least:
            least = float(errors @ errors)
            best = np.zeros(count)
            best[chosen] = answer / scale[chosen]
    return [float(value) for value in best]
