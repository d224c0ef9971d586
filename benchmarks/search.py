"""How many attempts a frontier takes: the search against the full grid, bisection row by row, and a staircase walk.

    python benchmarks/search.py            # 500 frontiers of each kind; 40 of each hard family and shape
    python benchmarks/search.py --quick    # 8 of each; 2 of each hard family and shape

Frontiers are drawn from a memory model, from families in which peaks say little about the limit, and uniformly among
all monotone ones. Worlds that are not monotone show what the search notices. Every seed is fixed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sweeper.confirm import Confirm
from sweeper.designs.expectation import PREDICTOR_ERROR, Predictor, Verdict
from sweeper.designs.lattice import Cell, Lattice
from sweeper.designs.search import LatticeSearch
from sweeper.frontier.evidence import covers
from sweeper.interval import Interval
from sweeper.objective import Number

GIB = 2**30
NOISE = 0.003  # of a peak around the memory model: what a fit within one regime left over
Dimensions = Mapping[str, Sequence[Number]]


def steps(count: int, size: int) -> list[int]:
    return [size * (n + 1) for n in range(count)]


SHAPES: dict[str, Dimensions] = {
    "8x8": {"batch": steps(8, 1), "context": steps(8, 256)},
    "16x16": {"batch": steps(16, 1), "context": steps(16, 256)},
    "6x6x6": {"batch": steps(6, 1), "context": steps(6, 256), "new_tokens": steps(6, 256)},
}
HARD_SHAPES: dict[str, Dimensions] = {
    **SHAPES,
    "5^4": {name: steps(5, 1) for name in ("batch", "context", "new_tokens", "rank")},
    "3^5": {name: steps(3, 1) for name in ("batch", "context", "new_tokens", "rank", "width")},
    "100x100": {"batch": steps(100, 1), "context": steps(100, 64)},
}
# Where limits are drawn, so that edges are about as long as in the study that set the targets: 6.7, 16.9, 22.6.
LIMITS = {"8x8": (0.0, 1.0), "16x16": (0.15, 0.6), "6x6x6": (0.05, 0.75)}
INTERVAL: Dimensions = {"batch": Interval(1, 4096)}


# Frontiers


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """A frontier to find. One from a memory model also has the peak of every point and a limit, in bytes."""

    lattice: Lattice
    fits: frozenset[Cell]
    peaks: Mapping[Cell, int] | None = None
    limit_bytes: int | None = None

    def verdict(self, cell: Cell) -> Verdict:
        fits = cell in self.fits
        return Verdict(fits, self.peaks[cell] if fits and self.peaks else None)

    def maximal(self) -> set[Cell]:
        return {cell for cell in self.fits if not any(other in self.fits for other in self._neighbours(cell, 1))}

    def minimal(self) -> set[Cell]:
        failing = (cell for cell in self.lattice if cell not in self.fits)
        return {cell for cell in failing if all(other in self.fits for other in self._neighbours(cell, -1))}

    def _neighbours(self, cell: Cell, step: int) -> Iterator[Cell]:
        for name in self.lattice.dimensions:
            other = self.lattice.neighbour(cell, name, step)
            if other is not None:
                yield other


def from_memory_model(rng: random.Random, dimensions: Dimensions, limits: tuple[float, float]) -> Frontier:
    """c0 + c1 b + c2 b t (+ c3 b t^2 in every second one), b and t as shares of the largest; new tokens add to t.

    c0 in 0..1, c1 in 0..0.35, c2 in 0.2..1, c3 in 0..1 (times 10 GiB), 0.3 % of noise, made monotone. The limit lies
    uniformly between the smallest and the largest peak, within the given shares of the way.
    """
    lattice = Lattice(dimensions)
    c0, c1, c2 = rng.uniform(0, 1), rng.uniform(0, 0.35), rng.uniform(0.2, 1)
    c3 = rng.uniform(0, 1) if rng.random() < 0.5 else 0.0
    top = {name: values[-1] for name, values in dimensions.items()}
    peaks: dict[Cell, float] = {}
    for cell in lattice:
        share = {name: value / top[name] for name, value in lattice.point(cell).items()}
        b, t, new = share["batch"], share["context"], share.get("new_tokens", 0.0)
        model = c0 + c1 * b + c2 * b * (t + new) + c3 * b * t * t
        peaks[cell] = 10 * GIB * model * (1 + NOISE * rng.gauss(0, 1))
    for cell in lattice:
        smaller = (lattice.neighbour(cell, name, -1) for name in dimensions)
        peaks[cell] = max(peaks[cell], *(peaks[at] for at in smaller if at is not None), 0.0)
    low, high = min(peaks.values()), max(peaks.values())
    return _limited(lattice, peaks, low + (high - low) * rng.uniform(*limits))


def _constant(rng: random.Random, most: float) -> Callable[[float, float, float], float]:
    """Large weights: a constant of 3 to 50 times all that varies."""
    fixed = most * math.exp(rng.uniform(math.log(3), math.log(50)))
    return lambda b, t, varies: fixed + varies


def _plateaus(rng: random.Random, most: float) -> Callable[[float, float, float], float]:
    """Segments of an allocator: what varies is rounded up to multiples of a twelfth to a third of its range."""
    segment, fixed = most / rng.randint(3, 12), most * rng.uniform(0.3, 5)
    return lambda b, t, varies: fixed + segment * math.ceil(varies / segment)


def _steps(rng: random.Random, most: float) -> Callable[[float, float, float], float]:
    """One to four jumps, and little growth between them."""
    jumps = [(most * rng.random(), most * rng.uniform(0.1, 0.5)) for _ in range(rng.randint(1, 4))]
    return lambda b, t, varies: 0.5 * most + 0.1 * varies + sum(jump for at, jump in jumps if varies > at)


def _regimes(rng: random.Random, most: float) -> Callable[[float, float, float], float]:
    """The peak is the larger of two: an optimizer's step that hardly grows, and activations."""
    first, offset = most * rng.uniform(0.3, 0.9), most * rng.uniform(0, 0.3)
    return lambda b, t, varies: most + max(first * (0.2 + 0.1 * t), 1.2 * varies - offset)


def _quadratic(rng: random.Random, most: float) -> Callable[[float, float, float], float]:
    """Eager attention: the square of the context."""
    square = most * rng.uniform(0.5, 4)
    return lambda b, t, varies: 0.3 * most + 0.3 * varies + square * b * t * t


HARD: dict[str, Callable[[random.Random, float], Callable[[float, float, float], float]]] = {
    "constant": _constant, "plateaus": _plateaus, "steps": _steps, "regimes": _regimes, "quadratic": _quadratic,
}  # fmt: skip


def from_hard_family(rng: random.Random, family: str, dimensions: Dimensions) -> Frontier:
    """c1 b + c2 b (t + the other dimensions), changed as the family says; 0.3 % of noise on what is not rounded."""
    lattice = Lattice(dimensions)
    c1, c2, *costs = (rng.uniform(0.0, 0.35), rng.uniform(0.2, 1), *(rng.uniform(0.1, 0.6) for _ in dimensions))
    model = HARD[family](rng, c1 + c2 * (1 + sum(costs[2:])))
    noise = 0.0 if family in ("constant", "plateaus") else NOISE
    peaks: dict[Cell, float] = {}
    for cell in lattice:
        b, t, *others = (value / dimensions[name][-1] for name, value in lattice.point(cell).items())
        varies = c1 * b + c2 * b * (t + sum(cost * other for cost, other in zip(costs[2:], others, strict=True)))
        peaks[cell] = 10 * GIB * model(b, t, varies) * (1 + noise * rng.gauss(0, 1))
    for cell in lattice:
        smaller = (lattice.neighbour(cell, name, -1) for name in dimensions)
        peaks[cell] = max(peaks[cell], *(peaks[at] for at in smaller if at is not None), 0.0)
    low, high = min(peaks.values()), max(peaks.values())
    return _limited(lattice, peaks, low + (high - low) * rng.uniform(0.02, 0.98))


def from_interval_model(rng: random.Random, dimensions: Dimensions) -> Frontier:
    """c0 + c1 b with its edge log-uniform over the interval; c0 takes 0..0.8 of the limit, 24 GiB. Noise as above."""
    lattice, limit = Lattice(dimensions), 24.0 * GIB
    edge = int(math.exp(rng.uniform(0, math.log(len(lattice) + 1))))
    fixed = rng.uniform(0, 0.8) * limit
    each = (limit - fixed) / (edge + 0.5)
    noisy = ((fixed + each * (level + 1)) * (1 + NOISE * rng.gauss(0, 1)) for level in range(len(lattice)))
    return _limited(lattice, {(0, level): peak for level, peak in enumerate(accumulate(noisy, max))}, limit)


def _limited(lattice: Lattice, peaks: Mapping[Cell, float], limit: float) -> Frontier:
    return Frontier(
        lattice=lattice,
        fits=frozenset(cell for cell, peak in peaks.items() if peak <= limit),
        peaks={cell: int(peak) for cell, peak in peaks.items()},
        limit_bytes=int(limit),
    )


def uniform_frontiers(rng: random.Random, dimensions: Dimensions, count: int) -> Iterator[Frontier]:
    """Samples uniformly from all monotone sets: a random walk on the heights up to which the columns fit.

    The walk reaches every monotone set, and each step is as likely as its inverse, so all sets become equally likely.
    """
    lattice = Lattice(dimensions)
    height, width = len(lattice.levels), lattice.width
    columns = [(column, 0) for column in range(width)]
    above = [[lattice.neighbour(cell, name) for name in lattice.others] for cell in columns]
    below = [[lattice.neighbour(cell, name, -1) for name in lattice.others] for cell in columns]
    heights = [height // 2] * width
    for sample in range(count):
        for _ in range((60 if sample else 2000) * width):
            column, step = rng.randrange(width), rng.choice((-1, 1))
            new = heights[column] + step
            lowest = max((heights[at[0]] for at in above[column] if at), default=0)
            highest = min((heights[at[0]] for at in below[column] if at), default=height)
            if lowest <= new <= highest:
                heights[column] = new
        yield Frontier(
            lattice=lattice,
            fits=frozenset((column, level) for column in range(width) for level in range(heights[column])),
        )


def stand_in(rng: random.Random, frontier: Frontier, error: float, common: float = 0.0) -> Predictor:
    """A predictor with an independent relative `error` at each point, and a `common` one at all points."""
    assert frontier.peaks is not None
    bias = common * rng.gauss(0, 1)
    off = {cell: peak * math.exp(bias + error * rng.gauss(0, 1)) for cell, peak in frontier.peaks.items()}
    return lambda point: off[frontier.lattice.cell(point)]


# Methods


@dataclass(frozen=True, slots=True)
class Cost:
    """The attempts that it took to find one frontier."""

    attempts: int
    confirmations: int = 0
    wrong: bool = False


def searched(
    frontier: Frontier, predictor: Predictor | None, error: float = PREDICTOR_ERROR, with_peaks: bool = True
) -> Cost:
    search = LatticeSearch(
        frontier.lattice.dimensions,
        limit_bytes=frontier.limit_bytes if with_peaks else None,
        predictor=predictor,
        predictor_error=error,
    )
    reasons: Counter[str] = Counter()
    while (attempt := search.next_attempt()) is not None:
        reasons[attempt.reason] += 1
        search.record(frontier.verdict(frontier.lattice.cell(attempt.point)))
    return Cost(reasons["search"], reasons["confirm"], not _is_right(search, frontier))


def _is_right(search: LatticeSearch, frontier: Frontier) -> bool:
    evidence, lattice = search.evidence, frontier.lattice
    return (
        set(map(lattice.cell_at, evidence.largest_fitting)) == frontier.maximal()
        and set(map(lattice.cell_at, evidence.smallest_failing)) == frontier.minimal()
        and evidence.consistent  # so the edge implies all other points
        and not search.flaky
    )


def full_grid(frontier: Frontier) -> Cost:
    return Cost(len(frontier.lattice))


def row_by_row(frontier: Frontier) -> Cost:
    """Bisect each row separately, as a user would."""
    attempts = 0
    for column in range(frontier.lattice.width):
        low, high = -1, len(frontier.lattice.levels)
        while high - low > 1:
            middle = (low + high) // 2
            attempts += 1
            low, high = (middle, high) if (column, middle) in frontier.fits else (low, middle)
    return Cost(attempts)


def staircase(frontier: Frontier) -> Cost:
    """Walk along each slice from its highest corner, down at a failure, on at a pass, never into what is implied."""
    lattice = frontier.lattice
    lowest, highest = [-1] * lattice.width, [len(lattice.levels)] * lattice.width
    attempts = 0
    for column, place in enumerate(lattice.columns):
        while highest[column] - lowest[column] > 1:
            attempts += 1
            level = highest[column] - 1
            for each, other in enumerate(lattice.columns):
                if (column, level) in frontier.fits:
                    lowest[each] = max(lowest[each], level) if covers(place, other) else lowest[each]
                else:
                    highest[each] = min(highest[each], level) if covers(other, place) else highest[each]
    return Cost(attempts)


def edge(frontier: Frontier) -> Cost:
    """The points on both sides of the edge, which even an oracle has to run."""
    return Cost(len(frontier.maximal()) + len(frontier.minimal()))


def doubling(frontier: Frontier) -> Cost:
    """Double until it fails, then bisect."""
    edge, size = len(frontier.fits), len(frontier.lattice)
    tried, at = 0, 1
    while at <= size:
        tried += 1
        if at > edge:
            break
        at *= 2
    low, high = at // 2, min(at, size + 1)
    while high - low > 1:
        middle = (low + high) // 2
        tried += 1
        low, high = (middle, high) if middle <= edge else (low, middle)
    return Cost(tried, _confirmations_of_an_interval(edge, size))


def bisection(frontier: Frontier) -> Cost:
    return Cost(row_by_row(frontier).attempts, _confirmations_of_an_interval(len(frontier.fits), len(frontier.lattice)))


def _confirmations_of_an_interval(edge: int, size: int) -> int:
    return (edge > 0) + (edge < size)


# The table

Method = Callable[[Frontier, int], Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The attempts of one method on one kind of frontier."""

    mean: float
    p95: int
    confirmations: float
    wrong: int

    @property
    def both(self) -> float:
        return self.mean + self.confirmations

    @classmethod
    def of(cls, method: Method, frontiers: Sequence[Frontier]) -> Measured:
        costs = [method(frontier, seed) for seed, frontier in enumerate(frontiers)]
        attempts = sorted(cost.attempts for cost in costs)
        return cls(
            mean=sum(attempts) / len(costs),
            p95=attempts[min(len(costs) - 1, int(0.95 * len(costs)))],
            confirmations=sum(cost.confirmations for cost in costs) / len(costs),
            wrong=sum(cost.wrong for cost in costs),
        )


def predicted(error: float, claimed: float | None = None, common: float = 0.0) -> Method:
    def find(frontier: Frontier, seed: int) -> Cost:
        predictor = stand_in(random.Random(f"predictor {seed}"), frontier, error, common)
        return searched(frontier, predictor, claimed or max(error, common))

    return find


WITHOUT, WITH = "search without expectation", "search, predictor 3 %"
UNSURE, MISTAKEN = "search, predictor 30 %", "search, predictor 30 % that claims 3 %"
EDGE = "the edge alone"
BASELINES: dict[str, Method] = {
    EDGE: lambda frontier, seed: edge(frontier),
    "full grid": lambda frontier, seed: full_grid(frontier),
    "bisection row by row": lambda frontier, seed: row_by_row(frontier),
    "staircase": lambda frontier, seed: staircase(frontier),
}
ON_AN_INTERVAL: dict[str, Method] = {
    "bisection": lambda frontier, seed: bisection(frontier),
    "doubling, then bisection": lambda frontier, seed: doubling(frontier),
}
BLIND: dict[str, Method] = {WITHOUT: lambda frontier, seed: searched(frontier, None, with_peaks=False)}
SEARCHES: dict[str, Method] = {
    **BLIND,
    "search, fit to measured peaks": lambda frontier, seed: searched(frontier, None),
    "search, predictor 1 %": predicted(0.01),
    WITH: predicted(0.03),
    "search, predictor 3 %, same error everywhere": predicted(0.0, common=0.03),
    "search, predictor 10 %": predicted(0.10),
    UNSURE: predicted(0.30),
    MISTAKEN: predicted(0.30, claimed=0.03),
}
ALWAYS_ALL = {*BASELINES, *ON_AN_INTERVAL, WITHOUT, WITH}  # the other lines take the first fifth of the frontiers
INTERVAL_NAME = "1..4096"
EXACT = "search, exact predictor"
HARD_SEARCHES: dict[str, Method] = {
    **BLIND,
    "search, fit to measured peaks": SEARCHES["search, fit to measured peaks"],
    EXACT: predicted(0.0, claimed=PREDICTOR_ERROR),
    WITH: SEARCHES[WITH],
    MISTAKEN: SEARCHES[MISTAKEN],
}
AUDITED = ("edge", "audit:4", "audit:8", "audit:16")
NOTICED = 0.5
RATIO, STAIRS = 1.25, 1.1
TRUSTED = (EXACT, WITH)  # predictors whose error is what they claim
# Attempts above the ratio on a single frontier. See the README for why none is not possible.
EXCESS = {WITHOUT: 0.0, "search, fit to measured peaks": 4.0, EXACT: 0.5, WITH: 6.0, MISTAKEN: 8.0}
AT_MOST = {
    (WITHOUT, "8x8"): 13.2,
    (WITHOUT, "16x16"): 31.0,
    (WITHOUT, "6x6x6"): 39.5,
    (WITHOUT, INTERVAL_NAME): 14.0,
    (WITH, "8x8"): 7.5,
    (WITH, "16x16"): 22.0,
    (WITH, "6x6x6"): 25.0,
    (WITH, INTERVAL_NAME): 8.0,
}
Results = dict[tuple[str, str], Measured]


def memory_models(count: int) -> dict[str, list[Frontier]]:
    return {
        name: [from_memory_model(random.Random(f"{name} {n}"), shape, LIMITS[name]) for n in range(count)]
        for name, shape in SHAPES.items()
    }


def uniform(count: int) -> dict[str, list[Frontier]]:
    return {
        name: list(uniform_frontiers(random.Random(f"uniform {name}"), shape, count)) for name, shape in SHAPES.items()
    }


def interval_models(count: int) -> dict[str, list[Frontier]]:
    return {INTERVAL_NAME: [from_interval_model(random.Random(f"interval {n}"), INTERVAL) for n in range(count)]}


def interval_uniform(count: int) -> dict[str, list[Frontier]]:
    rng, lattice = random.Random("uniform interval"), Lattice(INTERVAL)
    edges = [rng.randint(0, len(lattice)) for _ in range(count)]
    return {INTERVAL_NAME: [Frontier(lattice=lattice, fits=frozenset((0, n) for n in range(e))) for e in edges]}


def table(title: str, kinds: Mapping[str, Sequence[Frontier]], methods: Mapping[str, Method], quick: bool) -> Results:
    """Print and return the mean and the 95th percentile of attempts and, after a plus, the mean confirmations."""
    results: Results = {}
    print(f"{title}\n\n| | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for name, method in methods.items():
        cells = []
        for kind, frontiers in kinds.items():
            count = len(frontiers) if quick or name in ALWAYS_ALL else len(frontiers) // 5
            cell = results[name, kind] = Measured.of(method, frontiers[:count])
            extra = f" + {cell.confirmations:.1f}" if cell.confirmations else ""
            cells.append(f"{cell.mean:.1f} ({cell.p95}){extra}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print()
    return results


def hard_table(count: int, shapes: Mapping[str, Dimensions]) -> list[str]:
    """Print mean attempts, and the largest excess over a search without expectation; return the missed targets."""
    misses = []
    print(f"{count} frontiers of each hard family: mean attempts, and the most attempts above 1.25 of those without\n")
    print("| | staircase | " + " | ".join(HARD_SEARCHES) + " |\n|---|---|" + "---|" * len(HARD_SEARCHES))
    for shape, dimensions in shapes.items():
        for family in HARD:
            frontiers = [
                from_hard_family(random.Random(f"{family} {shape} {n}"), family, dimensions)
                for n in range(count if shape != "100x100" else max(2, count // 10))
            ]
            walked = Measured.of(BASELINES["staircase"], frontiers).mean
            costs = {name: [find(f, n) for n, f in enumerate(frontiers)] for name, find in HARD_SEARCHES.items()}
            blind = [cost.attempts for cost in costs[WITHOUT]]
            cells = [f"{walked:.1f}"]
            for name, found in costs.items():
                mean = sum(cost.attempts for cost in found) / len(found)
                over = max(cost.attempts - RATIO * without for cost, without in zip(found, blind, strict=True))
                cells.append(f"{mean:.1f}" + (f" ({over:+.0f})" if name != WITHOUT else ""))
                where = f"{name}, {family} {shape}"
                if wrong := sum(cost.wrong for cost in found):
                    misses.append(f"{where}: {wrong} wrong")
                if over > EXCESS[name]:
                    misses.append(f"{where}: {over:.1f} attempts more than {RATIO} of a search without expectation")
                if name in TRUSTED and count > 2 and mean > STAIRS * walked:
                    misses.append(f"{where}: {mean:.1f}, more than {STAIRS} of a staircase walk")
            print(f"| {family} {shape} | " + " | ".join(cells) + " |", flush=True)
    print()
    return misses


# Worlds in which memory sometimes decreases


def _indivisible(rng: random.Random, dimensions: Dimensions) -> Callable[[Mapping[str, Number]], float]:
    """A batch that is no multiple of 2, 4 or 8 takes 2 to 25 % more: padding, or another kernel."""
    multiple, more = rng.choice((2, 4, 8)), rng.uniform(0.02, 0.25)
    return lambda point: 1 + more * (point["batch"] % multiple > 0)


def _other_kernel(rng: random.Random, dimensions: Dimensions) -> Callable[[Mapping[str, Number]], float]:
    """From some context on, a kernel takes 5 to 40 % less."""
    contexts = dimensions["context"]
    at, less = rng.choice(contexts[1:]), rng.uniform(0.05, 0.4)
    return lambda point: 1 - less * (point["context"] >= at)


def not_monotone(rng: random.Random, dimensions: Dimensions) -> Frontier | None:
    """A memory model changed by one of the two; None if every point that fits covers only points that fit."""
    lattice = Lattice(dimensions)
    factor = rng.choice((_indivisible, _other_kernel))(rng, dimensions)
    c0, c1, c2 = rng.uniform(0, 1), rng.uniform(0, 0.35), rng.uniform(0.2, 1)
    top = {name: values[-1] for name, values in dimensions.items()}
    peaks = {}
    for cell in lattice:
        point = lattice.point(cell)
        b, t = point["batch"] / top["batch"], point["context"] / top["context"]
        peaks[cell] = 10 * GIB * (c0 + (c1 * b + c2 * b * t) * factor(point))
    low, high = min(peaks.values()), max(peaks.values())
    found = _limited(lattice, peaks, low + (high - low) * rng.uniform(0.1, 0.9))
    below = (lattice.neighbour(cell, name, -1) for cell in found.fits for name in dimensions)
    return found if any(at is not None and at not in found.fits for at in below) else None


def audit_table(count: int) -> list[str]:
    """Print how many worlds the search notices, and how many implied points are wrong; return the missed targets."""
    misses = []
    print("Worlds in which memory sometimes decreases: noticed, implied points that are wrong, attempts in all\n")
    print("| | " + " | ".join(AUDITED) + " |\n|---|" + "---|" * len(AUDITED))
    for shape in ("8x8", "16x16"):
        drawn = (not_monotone(random.Random(f"not monotone {shape} {n}"), SHAPES[shape]) for n in range(2 * count))
        worlds = [world for world in drawn if world is not None]
        cells, shares = [], []
        for confirm in AUDITED:
            noticed = wrong = implied = attempts = 0
            for world in worlds:
                search = LatticeSearch(SHAPES[shape], limit_bytes=world.limit_bytes, confirm=Confirm.parse(confirm))
                while (attempt := search.next_attempt()) is not None:
                    attempts += 1
                    search.record(world.verdict(world.lattice.cell(attempt.point)))
                noticed += not search.evidence.consistent
                for point, by in search.implied():
                    implied += 1
                    wrong += (world.lattice.cell(point) in world.fits) != (world.lattice.cell(by) in world.fits)
            shares.append(noticed / len(worlds))
            cells.append(
                f"{noticed} of {len(worlds)}, {wrong / max(1, implied):.1%} of {implied}, {attempts / len(worlds):.1f}"
            )
        print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)
        if count > 2 and shares[-1] < NOTICED:
            misses.append(f"{shape}: {AUDITED[-1]} notices {shares[-1]:.0%}, less than {NOTICED:.0%}")
    print()
    return misses


def missed(results: Results, quick: bool) -> list[str]:
    """The targets that the figures miss."""
    misses = [f"{name}, {kind}: {cell.wrong} wrong" for (name, kind), cell in results.items() if cell.wrong]
    if quick:  # 8 frontiers are too few for a mean
        return misses
    for (name, kind), most in AT_MOST.items():
        took = results[name, kind].both if kind == INTERVAL_NAME else results[name, kind].mean
        if took > most:
            misses.append(f"{name}, {kind}: {took:.2f}, more than {most}")
    for name in (UNSURE, MISTAKEN):
        for kind in (*SHAPES, INTERVAL_NAME):
            if results[name, kind].mean > results[f"{WITHOUT}, same frontiers", kind].mean + 1:
                misses.append(f"{name}, {kind}: more than one attempt worse than without")
    return misses


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="8 frontiers of each kind")
    quick = parser.parse_args(arguments).quick
    count, began = (8 if quick else 500), time.process_time()
    print("Mean attempts (95th percentile) + mean confirmations.\n")
    same = {f"{WITHOUT}, same frontiers": BLIND[WITHOUT]}  # for the lines that take a fifth
    searches = {**SEARCHES, **same}
    results = table(f"{count} frontiers of a memory model", memory_models(count), {**BASELINES, **searches}, quick)
    results |= table(
        f"{count} intervals 1..4096, edges log-uniform", interval_models(count), {**ON_AN_INTERVAL, **searches}, quick
    )
    misses = (
        missed(results, quick)
        + (hard_table(2, SHAPES) if quick else hard_table(40, HARD_SHAPES))
        + audit_table(2 if quick else 100)
    )
    others = table(f"{count} uniformly random frontiers", uniform(count), {**BASELINES, **BLIND}, quick)
    others |= table(
        f"{count} intervals 1..4096, edges uniform", interval_uniform(count), {**ON_AN_INTERVAL, **BLIND}, quick
    )
    misses += missed(others, quick=True)
    print(
        f"{time.process_time() - began:.0f} s of one core. "
        + ("; ".join(misses) or "All targets met, 0 wrong answers.")
    )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
