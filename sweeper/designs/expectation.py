"""The probability that each point fits, before it is run. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul
from typing import TYPE_CHECKING

from sweeper.designs.lattice import Cell, Lattice, LatticePoint
from sweeper.objective import Number

if TYPE_CHECKING:
    import numpy as np

    from sweeper.designs.least_squares import Equations

    Array = np.ndarray

Predictor = Callable[[Mapping[str, Number]], float]  # bytes
Form = Sequence[tuple[str, int]]  # dimensions and their exponents

FACTOR, CONSTANT, FIT = "factor", "constant", "fit"  # sources: a predictor corrected by either, and a fit

PREDICTOR_ERROR = 0.03  # relative, one deviation: published predictors reach 1-3 %
FIT_ERROR = 0.05
TOO_UNSURE = 0.25  # above this error an expectation is worse than none
CERTAINTY = 0.98  # beyond this, no expectation is used
STEEPNESS = 2.5  # of the probability around the limit: 1.7 is a normal distribution; 7.4 attempts on 8 x 8 for 7.6
BIASED = 3.0  # deviations by which outcomes differ from their probabilities: then the expectation is not used
MEMORY = 0.85  # the weight of an attempt for each later one
NOISE = 0.006  # relative error of a peak around the memory model
SHORT = 128  # levels up to which the search compares every open point; on a longer dimension only the promising ones
MOST_PREDICTED = 1 << 16  # points whose predictions are used one by one; of a larger lattice only a sample is fitted
MOST_FACTORS = 4  # dimensions in one term of the fit: batch x context x width x layers


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an attempt: whether the point fits (None: undecided), and the peak of the deciding counter."""

    fits: bool | None
    peak_bytes: int | None = None
    retry: bool = False  # undecided, and another attempt may decide it


class Expectation:
    """The probability that each point fits, from the source that was most accurate so far.

    The sources are a predictor, corrected by a factor or a constant (medians over the measured peaks), and a fit. The
    fit gives the costs of a memory model. It uses the measured peaks and, with a small weight, the predictions for
    the whole lattice, which averages out errors that differ between points. The error of each source is tracked by
    comparing every attempt with what the source had predicted. No source is used while attempts end against its
    probabilities too often, as they do where the limit lies on a step that the source does not know.
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
        self._of_columns: Array | None = None  # the parts of each column, without the dimension along it
        self._predictor = predictor if limit_bytes else None
        self._predicted: dict[Cell, float] = {}
        self._factor, self._constant = 1.0, 0.0  # corrections of the predictor
        self._surprises = 0  # in a row, while no peak has corrected the predictor
        self._against = self._variance = 0.0  # of outcomes less their probabilities
        self._errors = {FACTOR: PredictionError(predictor_error), CONSTANT: PredictionError(predictor_error)}
        self._errors[FIT] = PredictionError(predictor_error if predictor else FIT_ERROR)
        self._survey: Equations | None = None
        if self._predictor is not None:
            self._begin_with_predictions(predictor_error)
        self._fit()
        self._decide()

    def _begin_with_predictions(self, claimed: float) -> None:
        cells = self._surveyed()
        self._survey = _equations(len(self._forms), map(self._parts, cells), map(self._prediction, cells))
        self._fit()
        misses = [self._bytes(cell, FIT) / self._prediction(cell) - 1 for cell in cells]
        typical = math.sqrt(sum(miss * miss for miss in misses) / len(misses))
        if typical > 1.5 * claimed:  # the predictions have steps that the fit has not
            self._errors[FIT] = PredictionError(typical)

    def set_limit(self, limit_bytes: int) -> None:
        self._limit = self._limit or limit_bytes

    def _decide(self) -> None:
        """Choose the most accurate source, and whether to use it: `source` is None if it is not accurate enough."""
        usable = [name for name in (FIT, FACTOR, CONSTANT) if self._knows(name)]
        self._best = min(usable, key=lambda name: self._errors[name].size, default=None)
        self.error = self._errors[self._best].size if self._best else math.inf
        biased = self._against**2 > BIASED**2 * self._variance
        self.source = None if self.error >= TOO_UNSURE or self._surprises > 1 or biased else self._best

    def _knows(self, source: str) -> bool:
        if source == FIT:
            return self._costs is not None
        if self._predictor is None or (len(self._lattice) > MOST_PREDICTED and self._lattice.width > SHORT):
            return False
        return source == FACTOR or any(self._peaks.values())

    def probability(self, cell: Cell) -> float:
        """The probability that the point fits, without what verdicts imply."""
        assert self._best is not None
        return _logistic(STEEPNESS * math.log(self._limit / self._bytes(cell, self._best)) / self.error)

    def probabilities(self, levels: Array, columns: Array) -> Array:
        """The probability that the points of some columns at some levels fit: columns x levels."""
        import numpy as np

        deviations = np.log(self._limit / self._bytes_at(levels, columns)) / self.error
        found: Array = 1 / (1 + np.exp(-np.clip(STEEPNESS * deviations, -30, 30)))
        return found

    def learn(self, cell: Cell, verdict: Verdict) -> None:
        """Take in a verdict that decided a point."""
        if not self._limit:
            return
        if self._best is not None:
            fits = min(CERTAINTY, max(1 - CERTAINTY, self.probability(cell)))
            self._against = MEMORY * self._against + fits - bool(verdict.fits)
            self._variance = MEMORY**2 * self._variance + fits * (1 - fits)
        corrected = self._predictor is None or any(self._peaks.values())
        for source, error in self._errors.items():
            if self._knows(source) and corrected:
                error.learn(self._off_by(self._bytes(cell, source), verdict))
        if verdict.fits:
            self._peaks[cell] = verdict.peak_bytes
        else:
            self._failed.append(cell)
        if self._predictor is not None:
            self._correct()
        self._fit()
        self._decide()

    def _correct(self) -> None:
        """Correct the predictor by the measured peaks, or before there is one by the sides of the limit.

        A side gives only the least factor. After two surprises the factor could be anything, and the search does
        without an expectation until it has measured a peak.
        """
        known = [(self._prediction(cell), peak) for cell, peak in self._peaks.items() if peak]
        if known:
            self._surprises = 0
            self._factor = statistics.median(peak / predicted for predicted, peak in known)
            self._constant = statistics.median(peak - predicted for predicted, peak in known)
            return
        least = max((self._limit / self._prediction(cell) for cell in self._failed), default=0.0)
        most = min((self._limit / self._prediction(cell) for cell in self._peaks), default=math.inf)
        if least < self._factor < most:
            self._surprises = 0
            return
        self._surprises += 1
        further = 1 + self._errors[FACTOR].size
        self._factor = least * further if self._factor <= least else most / further
        if not least < self._factor < most:
            self._factor = math.sqrt(least * most)

    def _off_by(self, expected: float, verdict: Verdict) -> float | None:
        """The relative error of an expected peak; the least possible one if only the side of the limit is known.

        None if it is the right side, which says nothing about the error.
        """
        if verdict.fits and verdict.peak_bytes:
            return math.log(verdict.peak_bytes / expected)
        missed = math.log(self._limit / expected)
        return 1.5 * missed if (missed < 0) == bool(verdict.fits) else None

    def _bytes(self, cell: Cell, source: str) -> float:
        if source == FACTOR:
            return self._prediction(cell) * self._factor
        if source == CONSTANT:
            return max(1.0, self._prediction(cell) + self._constant)
        assert self._costs is not None
        total: float = sum(map(mul, self._costs, self._parts(cell)))
        return max(1.0, total)

    def _bytes_at(self, levels: Array, columns: Array) -> Array:
        """The bytes of the points of some columns at some levels, from the best source."""
        import numpy as np

        if self._best != FIT:
            predicted = np.array([[self._prediction((int(c), int(level))) for level in levels] for c in columns])
            return self._factor * predicted if self._best == FACTOR else np.maximum(1.0, predicted + self._constant)
        lattice = self._lattice
        if self._of_columns is None:
            firsts = (lattice.point((column, 0)) | {lattice.along: 1} for column in range(lattice.width))
            self._of_columns = np.array([_parts(point, self._forms) for point in firsts])
        along = np.array([float(lattice.levels[int(level)]) for level in levels])
        of_levels = np.array([along ** dict(form).get(lattice.along, 0) for form in self._forms])
        found: Array = np.maximum(1.0, (self._of_columns[columns] * np.array(self._costs)) @ of_levels)
        return found

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
        misplaced = [c for c in self._failed if self._bytes(c, FIT) < self._limit]
        misplaced += [c for c, peak in self._peaks.items() if not peak and self._bytes(c, FIT) > self._limit]
        if misplaced:
            self._costs = self._fitted({**peaks, **dict.fromkeys(misplaced, float(self._limit))})

    def _fitted(self, peaks: Mapping[Cell, float]) -> list[float]:
        equations = _equations(len(self._forms), map(self._parts, peaks), peaks.values())
        if self._survey is not None:
            weight = (NOISE / max(NOISE, self._errors[FACTOR].size)) ** 2
            equations.include(self._survey, weight, self._factor)
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
    """The relative error of a source, from its misses. Recent ones weigh more; the claimed error weighs as two."""

    def __init__(self, claimed: float) -> None:
        self._claimed = self.size = claimed
        self._squares = self._count = 0.0

    def learn(self, miss: float | None) -> None:
        if miss is None:
            return
        self._squares = MEMORY * self._squares + miss * miss
        self._count = MEMORY * self._count + 1
        self.size = max(0.004, math.sqrt((2 * self._claimed**2 + self._squares) / (2 + self._count)))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-min(30.0, max(-30.0, x))))


def _forms(dimensions: Iterable[str]) -> list[Form]:
    """The terms of memory: every product of up to four dimensions, and batch x context squared for eager attention."""
    names = list(dimensions)
    forms: list[Form] = [
        tuple((name, 1) for name in chosen)
        for count in range(min(len(names), MOST_FACTORS) + 1)
        for chosen in combinations(names, count)
    ]
    if "context" in names:
        forms.append((("batch", 1), ("context", 2)) if "batch" in names else (("context", 2),))
    return forms


def _parts(point: Mapping[str, Number], forms: Iterable[Form]) -> list[float]:
    return [float(math.prod(point[name] ** power for name, power in form)) for form in forms]


def _equations(unknowns: int, parts: Iterable[Sequence[float]], totals: Iterable[float]) -> Equations:
    from sweeper.designs.least_squares import Equations  # numpy takes 0.1 s, and most commands fit nothing

    return Equations(unknowns, list(parts), list(totals))
