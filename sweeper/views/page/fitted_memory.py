"""Memory against tokens: the peaks of the points that passed, and what the fits of their phases give. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runners.device import device_named
from sweeper.effects.families import Family, families, title
from sweeper.effects.memory_fit import TERMS, NotFitted, Size
from sweeper.rows import Row

MOST_FAMILIES = 4
MOST_LINES = 6  # contexts that have a line of their own
STEPS = 24  # of a line
DESCRIBES = 0.02  # the worst error of a fit that can be relied on; one operation is fitted to 0.3 %


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakPoint:
    size: Size
    bytes: int
    phase: str

    @property
    def tokens(self) -> int:
        return self.size.batch * self.size.context


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLine:
    """The largest of the phases' fits along the batch, at one context. `measured_to`: its last measured tokens."""

    context: int
    measured_to: int
    points: Sequence[tuple[int, int]]  # tokens, bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the fit of one phase costs, in bytes of each term; None where the points do not separate it."""

    phase: str
    terms: Sequence[int | None]
    worst: float | None  # of the fitted peaks, as a fraction
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMemory:
    title: str
    device: str
    kind: str
    counter: str
    points: Sequence[PeakPoint]
    lines: Sequence[FittedLine]
    costs: Sequence[Cost]
    limit: int | None
    left_out: int  # points without a complete peak
    failed_tokens: Sequence[tuple[int, int]]  # tokens and context of the points where memory was refused

    @property
    def off_by(self) -> float | None:
        """The worst error of a fit that does not describe its peaks; None if all do."""
        worst = max((cost.worst for cost in self.costs if cost.worst is not None), default=0.0)
        return worst if worst > DESCRIBES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMemories:
    shown: Sequence[FittedMemory]
    hidden: int


def fitted_memories(points: Sequence[Row], phases: Sequence[Row]) -> FittedMemories:
    """One for each setting with at least two points that passed, by its first counter."""
    first: dict[tuple[str, str], Family] = {}
    for family in families(points, phases):
        first.setdefault((family.rows[0]["point_id"], family.rows[0]["device"]), family)
    several = [family for family in first.values() if len(family.passed) > 1]
    shown = several[:MOST_FAMILIES]
    named = [_fitted("  ".join(title(family, shown)), family) for family in shown]
    return FittedMemories(shown=named, hidden=len(several) - len(shown))


def _fitted(name: str, family: Family) -> FittedMemory:
    points = [
        PeakPoint(size=size, bytes=family.peaks[phase][size], phase=phase.phase)
        for size in family.sizes
        for phase in [family.peak_phase(size)]
    ]
    failed = [row for row in family.rows if row["fits"] is False and row["batch"] and row["context"]]
    tops = {point.phase for point in points}
    limits = {_limit(row) for row in family.rows}
    row = family.rows[0]
    return FittedMemory(
        title=name,
        device=row["device"],
        kind=row["kind"],
        counter=family.counter,
        points=points,
        lines=list(_lines(family, [Size(row["batch"], row["context"]) for row in failed])),
        costs=[_cost(family, phase.phase) for phase in family.fits if phase.phase in tops],
        limit=next(iter(limits)) if len(limits) == 1 else None,
        left_out=sum(family.left_out.values()),
        failed_tokens=[(row["batch"] * row["context"], row["context"]) for row in failed],
    )


def _limit(row: Row) -> int | None:
    """What the peaks cannot exceed: a budget of tensors, or what a card's allocator can reserve at most.

    None on cpu: its budget limits the data that the process adds, of which tensors are a part.
    """
    budget, total = row.get("budget_bytes"), row.get("device_total_bytes")
    if device_named(row["device"]).is_host:
        return budget if row.get("budget_kind") == "tensors" else None
    room = None if total is None else total - (row.get("context_bytes") or 0)
    return min((each for each in (budget, room) if each is not None), default=None)


def _lines(family: Family, failed: Sequence[Size]) -> list[FittedLine]:
    contexts = sorted({size.context for size in family.sizes})
    kept = (
        contexts if len(contexts) <= MOST_LINES else [contexts[place * (len(contexts) - 1) // 5] for place in range(6)]
    )
    found = []
    for context in kept:
        batches = [size.batch for size in family.sizes if size.context == context]
        beyond = [size.batch for size in failed if size.context == context and size.batch > max(batches)]
        end = min(beyond, default=max(batches))
        values = sorted({round(min(batches) + step * (end - min(batches)) / STEPS) for step in range(STEPS + 1)})
        peaks = [(batch * context, family.at(Size(batch, context)).bytes) for batch in values]
        known = [(tokens, peak) for tokens, peak in peaks if peak is not None]
        if len(known) > 1:
            found.append(FittedLine(context=context, measured_to=max(batches) * context, points=known))
    return found


def _cost(family: Family, name: str) -> Cost:
    fit = next(found for phase, found in family.fits.items() if phase.phase == name)
    if isinstance(fit, NotFitted):
        return Cost(phase=name, terms=[None] * len(TERMS), worst=None, refused=fit.because)
    terms = [None if (cost := fit.costs.get(term)) is None else round(cost) for term in TERMS]
    return Cost(phase=name, terms=terms, worst=None if fit.is_exact_by_count else fit.worst, refused=None)
