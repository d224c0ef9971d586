"""How likely each point fits, before it is run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from sweeper.designs.lattice import Cell, Lattice, LatticePoint
from sweeper.objective import Number

Predictor = Callable[[Mapping[str, Number]], float]

PREDICTOR_ERROR = 0.03  # relative, one deviation: published predictors reach 1-3 %
FIT_ERROR = 0.05
TOO_UNSURE = 0.25  # from this error on an expectation is worse than none
SHORT = 64  # levels up to which every open point is weighed; on a longer dimension the promising ones


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended: whether the point fits (None: undecided), and the peak of the counter that decides."""

    fits: bool | None
    peak_bytes: int | None = None
    retry: bool = False  # undecided, and another attempt may decide it


class Expectation:
    """How likely each point fits, from whichever has been nearer to the truth so far: the predictor, or a fit.

    The predictor is scaled by the median of observed to predicted. The fit is of the costs of a memory model: to the
    peaks seen and, lightly, to what the predictor says of the whole lattice, which averages out an error that changes
    from point to point. An error is tracked for each, from what it said of every attempt before it was made, so a
    surprise widens it at once. On the benchmark's first 100 of 16 x 16: 19.4 attempts with 3 %, 22.9 with 10 %; the
    predictor alone, weighed by p, its error doubled at each surprise, took 23.1 and 31.4.
    """

    def __init__(
        self, lattice: Lattice, limit_bytes: int | None, predictor: Predictor | None, predictor_error: float
    ) -> None:
        self._lattice = lattice
        self._limit = limit_bytes or 0
        self._peaks: dict[Cell, int | None] = {}  # of what passed
        self._failed: list[Cell] = []
        self._forms = _forms(lattice)
        self._parts_at: dict[Cell, list[float]] = {}
        self._costs: list[float] | None = None
        self._predictor = predictor if limit_bytes else None
        self._predicted: dict[Cell, float] = {}
        self._scale = 1.0
        self._errors = {
            "predictor": PredictionError(predictor_error),
            "fit": PredictionError(predictor_error if predictor else FIT_ERROR),
        }
        self._survey = Equations(len(self._forms))
        if self._predictor is not None:
            for cell in self._surveyed():
                self._survey.add(self._parts(cell), self._prediction(cell))
        self._fit()
        self._decide()

    def set_limit(self, limit_bytes: int) -> None:
        self._limit = self._limit or limit_bytes

    def _decide(self) -> None:
        """Choose the source to follow: `predictor`, `fit`, or None where neither is good enough."""
        usable = [name for name in ("fit", "predictor") if self._knows(name)]
        self.source = min(usable, key=lambda name: self._errors[name].size, default=None)
        self.error = self._errors[self.source].size if self.source else math.inf
        if self.error >= TOO_UNSURE:
            self.source = None

    def _knows(self, source: str) -> bool:
        return (self._predictor if source == "predictor" else self._costs) is not None

    def probability(self, cell: Cell) -> float:
        """That the point fits, by what is expected alone: what was closed since is the search's to know."""
        assert self.source is not None
        deviations = math.log(self._limit / self._bytes(cell, self.source)) / self.error
        return 0.5 * math.erfc(-deviations / math.sqrt(2))

    def learn(self, cell: Cell, verdict: Verdict) -> None:
        """Take in a verdict that told."""
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
        """The relative error of what was expected; where only the side of the limit is known, what it was at least."""
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
        """Every point of a small lattice; of a large one some, near in the ratio of their levels."""
        height, width = len(self._lattice.levels), self._lattice.width
        levels: Iterable[int] = range(height)
        if height > SHORT:
            levels = sorted({int((height - 1) ** (k / 48)) for k in range(49)})
        columns = range(0, width, -(-width * SHORT // 1024) if width * SHORT > 1024 else 1)
        return [(column, level) for column in columns for level in levels]

    def _parts(self, cell: Cell) -> list[float]:
        if cell not in self._parts_at:
            at = self._lattice.point(cell)
            self._parts_at[cell] = [float(math.prod(at[name] ** power for name, power in form)) for form in self._forms]
        return self._parts_at[cell]

    def _fit(self) -> None:
        peaks = {cell: float(peak) for cell, peak in self._peaks.items() if peak}
        if not self._limit or (self._predictor is None and len(peaks) < 3):
            return
        self._costs = self._fitted(peaks)
        misplaced = [c for c in self._failed if self._bytes(c, "fit") < self._limit]
        misplaced += [c for c, peak in self._peaks.items() if not peak and self._bytes(c, "fit") > self._limit]
        if misplaced:
            self._costs = self._fitted({**peaks, **dict.fromkeys(misplaced, float(self._limit))})

    def _fitted(self, seen: Mapping[Cell, float]) -> list[float]:
        equations = Equations(len(self._forms))
        if self._predictor is not None:
            noise = 0.006  # of a peak around the memory model
            equations.include(self._survey, (noise / max(noise, self._errors["predictor"].size)) ** 2, self._scale)
        for cell, total in seen.items():
            equations.add(self._parts(cell), total)
        return equations.nonnegative([i for i, cost in enumerate(self._costs or ()) if cost])


def interpolated(dimensions: Mapping[str, Sequence[Number]], known: Sequence[tuple[LatticePoint, float]]) -> Predictor:
    """The bytes of a few points as they are, and of all others by the costs that explain those."""
    lattice = Lattice(dimensions)
    forms = _forms(lattice)
    names = list(dimensions)

    def parts(point: Mapping[str, Number]) -> list[float]:
        return [float(math.prod(point[name] ** power for name, power in form)) for form in forms]

    equations, exact = Equations(len(forms)), {}
    for point, total in known:
        exact[tuple(point[name] for name in names)] = total
        equations.add(parts(point), total)
    costs = equations.nonnegative()

    def predict(point: Mapping[str, Number]) -> float:
        told = exact.get(tuple(point[name] for name in names))
        return sum(map(mul, costs, parts(point))) if told is None else told

    return predict


class PredictionError:
    """The relative error of a source, from its misses: recent ones count more, the claimed error like three of them."""

    def __init__(self, claimed: float) -> None:
        self._claimed = self.size = claimed
        self._squares = self._count = 0.0

    def learn(self, miss: float) -> None:
        if miss == 0.0:  # on the right side, and nothing more is known
            return
        self._squares = 0.85 * self._squares + miss * miss
        self._count = 0.85 * self._count + 1
        self.size = max(0.004, math.sqrt((3 * self._claimed**2 + self._squares) / (3 + self._count)))


def _forms(lattice: Lattice) -> list[tuple[tuple[str, int], ...]]:
    """What memory grows with: every product of dimensions, and batch x context squared, as eager attention makes it."""
    names = list(lattice.dimensions)[:4]
    forms = [tuple((name, 1) for bit, name in enumerate(names) if which >> bit & 1) for which in range(1 << len(names))]
    if "context" in names:
        forms.append((("batch", 1), ("context", 2)) if "batch" in names else (("context", 2),))
    return forms


class Equations:
    """Costs >= 0 of the parts that make up each total, by least squares of the relative error."""

    def __init__(self, size: int) -> None:
        self._gram = [[0.0] * size for _ in range(size)]
        self._goal = [0.0] * size

    def add(self, parts: Sequence[float], total: float) -> None:
        row = [part / total for part in parts]
        for i, value in enumerate(row):
            self._goal[i] += value
            self._gram[i] = [g + value * other for g, other in zip(self._gram[i], row, strict=True)]

    def include(self, other: Equations, weight: float, scale: float) -> None:
        """Add another's, counted `weight` times, as if each of its totals were `scale` times as big."""
        square, single = weight / scale**2, weight / scale
        for i, line in enumerate(other._gram):
            self._gram[i] = [g + square * value for g, value in zip(self._gram[i], line, strict=True)]
            self._goal[i] += single * other._goal[i]

    def nonnegative(self, likely: Sequence[int] = ()) -> list[float]:
        """Lawson and Hanson's active set, begun with the parts that are likely in it: a few small eliminations."""
        size = len(self._goal)
        norms = [math.sqrt(self._gram[i][i]) or 1.0 for i in range(size)]
        gram = [[self._gram[i][j] / norms[i] / norms[j] + (1e-9 * (i == j)) for j in range(size)] for i in range(size)]
        goal = [self._goal[i] / norms[i] for i in range(size)]
        free = list(likely)
        costs = _bounded(gram, goal, [0.0] * size, free)
        for _ in range(3 * size):
            slopes = [goal[i] - sum(map(mul, gram[i], costs)) if i not in free else 0.0 for i in range(size)]
            steepest = max(range(size), key=slopes.__getitem__)
            if slopes[steepest] < 1e-7:
                break
            free.append(steepest)
            costs = _bounded(gram, goal, costs, free)
        return [cost / norm for cost, norm in zip(costs, norms, strict=True)]


def _bounded(gram: list[list[float]], goal: list[float], costs: list[float], free: list[int]) -> list[float]:
    """The best costs of the free parts; a part that would turn negative is stopped at zero and leaves `free`."""
    costs = list(costs)
    while free:
        best = _solved([[gram[i][j] for j in free] for i in free], [goal[i] for i in free])
        if min(best) > 0:
            for i, value in zip(free, best, strict=True):
                costs[i] = value
            break
        step = min(
            (costs[i] / (costs[i] - b) for i, b in zip(free, best, strict=True) if b <= 0 and costs[i] > b), default=0.0
        )
        for i, value in zip(free, best, strict=True):
            costs[i] += step * (value - costs[i])
        for i in [i for i, value in zip(free, best, strict=True) if value <= 0 and costs[i] <= 1e-12]:
            free.remove(i)
            costs[i] = 0.0
    return costs


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss, with pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for k in range(size):
        pivot = max(range(k, size), key=lambda i: abs(rows[i][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    solution = [0.0] * size
    for k in reversed(range(size)):
        rest = sum(rows[k][j] * solution[j] for j in range(k + 1, size))
        solution[k] = (rows[k][size] - rest) / rows[k][k]
    return solution
