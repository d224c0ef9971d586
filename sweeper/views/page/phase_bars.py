"""The memory of one attempt by phase. Pure.

Only one sum is right: what a card's context takes and what its allocator reserved. Allocated memory is part of reserved
memory, and the process's baseline is part of its resident memory: they are drawn inside, never on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runners.device import device_named
from runners.journal import BETWEEN, QUALITY
from sweeper.rows import Row
from sweeper.units import format_bytes

MOST_PHASES = 24
TENSORS = "tensors"  # the kind of a budget that limits tensors themselves
AND_CONTEXT = " + context"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBar:
    """The peaks of one phase on one device, the highest of its repeats, in bytes."""

    phase: str
    completed: bool
    peaks: Mapping[str, int]  # by counter


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBars:
    """`below`: bytes under the outer bar, of the card's context. `limit`: what the end of the bars may reach.

    `outer` and `inner`: counters of which the second is part of the first. `apart`: one that is no part of them.
    """

    title: str
    device: str
    kind: str
    status: str
    outer: str | None
    inner: str | None
    apart: str | None
    below: int
    baseline: int | None
    limit: int | None
    limit_label: str  # what the limit is made of; empty without one
    bars: Sequence[PhaseBar]
    hidden: int

    @property
    def legend(self) -> Sequence[str]:
        """What the bars are, in words."""
        found = []
        if self.below:
            found.append("context and libraries + reserved: they add up")
        if self.inner and self.outer:
            found.append(f"{self.inner} is part of {self.outer}: drawn inside it, never added")
        elif self.outer and self.baseline:
            found.append("the process before the workload is part of resident: drawn inside it")
        if self.apart and self.outer:
            found.append(f"{self.apart} counts other bytes than {self.outer}: a bar of its own")
        if self.limit is not None and self.limit_label.endswith(AND_CONTEXT):
            found.append(f"the budget does not count {format_bytes(self.below)} of context and libraries")
        return found

    @property
    def shown(self) -> Sequence[str]:
        """The counters of a bar in the order of the legend."""
        return [each for each in (self.outer, self.inner, self.apart) if each]


def phase_bars(title: str, row: Row, phases: Iterable[Row]) -> PhaseBars | None:
    """`phases`: rows of phases.parquet. None where no phase of the row's attempt has a peak."""
    device = device_named(row["device"])
    counters = ("allocated", "reserved") if not device.is_host else ("tensor", "resident")
    together: dict[tuple[str, str], list[Row]] = {}
    for phase in phases:
        together.setdefault((phase["phase"], phase["phase_device"]), []).append(phase)
    several = len({phase_device for _, phase_device in together}) > 1
    bars = [
        PhaseBar(
            phase=f"{name} ({phase_device})" if several else name,
            completed=all(each["completed"] for each in of),
            peaks={counter: peak for counter in counters if (peak := _peak(of, counter)) is not None},
        )
        for (name, phase_device), of in together.items()
        if name != QUALITY and (name != BETWEEN or row.get("peak_phase") == BETWEEN)
    ]
    bars = [bar for bar in bars if bar.peaks]
    if not bars:
        return None
    has = {counter for bar in bars for counter in bar.peaks}
    below = row.get("context_bytes") or 0
    on_card = not device.is_host
    limit, label = _limit(row, below)
    return PhaseBars(
        title=title,
        device=row["device"],
        kind=row["kind"],
        status=row["status"],
        outer=next((name for name in ("reserved", "resident") if name in has), None),
        inner="allocated" if "allocated" in has else None,
        apart="tensor" if "tensor" in has else None,
        below=below if "reserved" in has else 0,
        baseline=None if on_card else row.get("process_baseline_bytes"),
        limit=limit,
        limit_label=label,
        bars=bars[:MOST_PHASES],
        hidden=len(bars) - len(bars[:MOST_PHASES]),
    )


def _peak(phases: Iterable[Row], counter: str) -> int | None:
    return max((peak for phase in phases if (peak := phase.get(f"peak_{counter}_bytes")) is not None), default=None)


def _limit(row: Row, below: int) -> tuple[int | None, str]:
    """The bytes that the outer bars may reach and what they are made of, where they are known.

    None on cpu: its budget limits the data that the process adds, and resident memory counts other pages too.
    """
    kind, budget = row.get("budget_kind"), row.get("budget_bytes")
    if device_named(row["device"]).is_host:
        return (budget, f"budget {format_bytes(budget)}") if kind == TENSORS and budget is not None else (None, "")
    total = row.get("device_total_bytes") if below else None
    limits = []
    if budget is not None:
        limits.append((below + budget, f"budget {format_bytes(budget)}{AND_CONTEXT if below else ''}"))
    if total is not None:
        limits.append((total, f"device {format_bytes(total)}"))
    return min(limits, default=(None, ""))
