"""The probability that each point fits, before it is run. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING

from sweeper.designs.lattice import Cell, Lattice, LatticePoint
from sweeper.objective import Number

if TYPE_CHECKING:
    from sweeper.designs.least_squares import Equations

Predictor = Callable[[Mapping[str, Number]], float]  # bytes
Form = Sequence[tuple[str, int]]  # dimensions and their exponents

PREDICTOR_ERROR = 0.03  # relative, one deviation: published predictors reach 1-3 %
FIT_ERROR = 0.05
TOO_UNSURE = 0.25  # above this error an expectation is worse than none
NOISE = 0.006  # relative error of a peak around the memory model
SHORT = 64  # levels up to which the search compares every open point; on a longer dimension only the promising ones


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an attempt: whether the point fits (None: undecided), and the peak of the deciding counter."""

    fits: bool | None
    peak_bytes: int | None = None
    retry: bool = False  # undecided, and another attempt may decide it


class Expectation:
    """The probability that each point fits, from the source that was more accurate so far: a predictor or a fit.

    The predictor is scaled by the median ratio of measured to predicted bytes. The fit gives the costs of a memory
    model. It uses the measured peaks and, with a small weight, the predictions for the whole lattice, which averages
    out errors that differ between points. The error of each source is tracked by comparing every attempt with what the
    source had predicted, so a surprise widens it at once. On the benchmark's first 100 of 16 x 16: 19.4 attempts with
    3 %, 22.9 with 10 %; the predictor alone, its error doubled at each surprise, took 23.1 and 31.4.
    """

    def __init__(
        self, lattice: Lattice, limit_bytes: int | None, predictor: Predictor | None, predictor_error: float
    ) -> None:
        self._lattice = lattice
        self._limit = limit_bytes or 0
        self._peaks: dict[Cell, int | None] = {}  # of the points that fit
        self._failed: list[Cell] = []
        self._forms = _forms(lattice.dimensions)
        self._parts_of: dict[Cell, list[float]] = {}
        self._costs: list[float] | None = None
        self._predictor = predictor if limit_bytes else None
        self._predicted: dict[Cell, float] = {}
        self._scale = 1.0
        self._errors = {
            "predictor": PredictionError(predictor_error),
            "fit": PredictionError(predictor_error if predictor else FIT_ERROR),
        }
        self._survey: Equations | None = None
        if self._predictor is not None:
            cells = self._surveyed()
            self._survey = _equations(len(self._forms), map(self._parts, cells), map(self._prediction, cells))
        self._fit()
        self._decide()

    def set_limit(self, limit_bytes: int) -> None:
        self._limit = self._limit or limit_bytes

    def _decide(self) -> None:
        """Choose the source to use: `predictor`, `fit`, or None if neither is accurate enough."""
        usable = [name for name in ("fit", "predictor") if self._knows(name)]
        self.source = min(usable, key=lambda name: self._errors[name].size, default=None)
        self.error = self._errors[self.source].size if self.source else math.inf
        if self.error >= TOO_UNSURE:
            self.source = None

    def _knows(self, source: str) -> bool:
        return (self._predictor if source == "predictor" else self._costs) is not None

    def probability(self, cell: Cell) -> float:
        """The probability that the point fits, without what verdicts imply."""
        assert self.source is not None
        deviations = math.log(self._limit / self._bytes(cell, self.source)) / self.error
        return 0.5 * math.erfc(-deviations / math.sqrt(2))

    def learn(self, cell: Cell, verdict: Verdict) -> None:
        """Take in a verdict that decided a point."""
        if not self._limit:
            return
        for source, error in self._errors.items():
            if self._knows(source):
                error.learn(self._off_by(self._bytes(cell, source), verdict))
        if verdict.fits:
            self._peaks[cell] = verdict.peak_bytes
        else:
            self._failed.append(cell)
        if self._predictor is not None:
            ratios = [peak / self._prediction(seen) for seen, peak in self._peaks.items() if peak]
            self._scale = statistics.median(ratios) if ratios else 1.0
        self._fit()
        self._decide()

    def _off_by(self, expected: float, verdict: Verdict) -> float:
        """The relative error of an expected peak; the least possible one if only the side of the limit is known."""
        if verdict.fits and verdict.peak_bytes:
            return math.log(verdict.peak_bytes / expected)
        missed = math.log(self._limit / expected)
        return 1.5 * (min(0.0, missed) if verdict.fits else max(0.0, missed))

    def _bytes(self, cell: Cell, source: str) -> float:
        if source == "predictor":
            return self._prediction(cell) * self._scale
        assert self._costs is not None
        total: float = sum(map(mul, self._costs, self._parts(cell)))
        return max(1.0, total)

    def _prediction(self, cell: Cell) -> float:
        assert self._predictor is not None
        if cell not in self._predicted:
            self._predicted[cell] = max(1.0, float(self._predictor(self._lattice.point(cell))))
        return self._predicted[cell]

    def _surveyed(self) -> list[Cell]:
        """Every point of a small lattice, and some points of a large one, at levels in equal ratios."""
        height, width = len(self._lattice.levels), self._lattice.width
        levels: Iterable[int] = range(height)
        if height > SHORT:
            levels = sorted({int((height - 1) ** (k / 48)) for k in range(49)})
        columns = range(0, width, -(-width * SHORT // 1024) if width * SHORT > 1024 else 1)
        return [(column, level) for column in columns for level in levels]

    def _parts(self, cell: Cell) -> list[float]:
        if cell not in self._parts_of:
            self._parts_of[cell] = _parts(self._lattice.point(cell), self._forms)
        return self._parts_of[cell]

    def _fit(self) -> None:
        peaks = {cell: float(peak) for cell, peak in self._peaks.items() if peak}
        if not self._limit or (self._predictor is None and len(peaks) < 3):
            return
        self._costs = self._fitted(peaks)
        misplaced = [c for c in self._failed if self._bytes(c, "fit") < self._limit]
        misplaced += [c for c, peak in self._peaks.items() if not peak and self._bytes(c, "fit") > self._limit]
        if misplaced:
            self._costs = self._fitted({**peaks, **dict.fromkeys(misplaced, float(self._limit))})

    def _fitted(self, peaks: Mapping[Cell, float]) -> list[float]:
        equations = _equations(len(self._forms), map(self._parts, peaks), peaks.values())
        if self._survey is not None:
            weight = (NOISE / max(NOISE, self._errors["predictor"].size)) ** 2
            equations.include(self._survey, weight, self._scale)
        return equations.nonnegative([i for i, cost in enumerate(self._costs or ()) if cost])


def interpolated(dimensions: Mapping[str, Sequence[Number]], known: Sequence[tuple[LatticePoint, float]]) -> Predictor:
    """A predictor that has the bytes of some points, and fits costs to them for all others."""
    forms = _forms(dimensions)
    parts = [_parts(point, forms) for point, _ in known]
    costs = _equations(len(forms), parts, [total for _, total in known]).nonnegative()
    exact = {tuple(point[name] for name in dimensions): total for point, total in known}

    def predict(point: Mapping[str, Number]) -> float:
        total = exact.get(tuple(point[name] for name in dimensions))
        return sum(map(mul, costs, _parts(point, forms))) if total is None else total

    return predict


class PredictionError:
    """The relative error of a source, from its misses. Recent ones weigh more; the claimed error weighs as three."""

    def __init__(self, claimed: float) -> None:
        self._claimed = self.size = claimed
        self._squares = self._count = 0.0

    def learn(self, miss: float) -> None:
        if miss == 0.0:  # on the right side of the limit, and nothing else is known
            return
        self._squares = 0.85 * self._squares + miss * miss
        self._count = 0.85 * self._count + 1
        self.size = max(0.004, math.sqrt((3 * self._claimed**2 + self._squares) / (3 + self._count)))


def _forms(dimensions: Iterable[str]) -> list[Form]:
    """The terms of memory: every product of dimensions, and batch x context squared for eager attention."""
    names = list(dimensions)[:4]
    forms: list[Form] = [
        tuple((name, 1) for bit, name in enumerate(names) if which >> bit & 1) for which in range(1 << len(names))
    ]
    if "context" in names:
        forms.append((("batch", 1), ("context", 2)) if "batch" in names else (("context", 2),))
    return forms


def _parts(point: Mapping[str, Number], forms: Iterable[Form]) -> list[float]:
    return [float(math.prod(point[name] ** power for name, power in form)) for form in forms]


def _equations(unknowns: int, parts: Iterable[Sequence[float]], totals: Iterable[float]) -> Equations:
    from sweeper.designs.least_squares import Equations  # numpy takes 0.1 s, and most commands fit nothing

    return Equations(unknowns, list(parts), list(totals))
