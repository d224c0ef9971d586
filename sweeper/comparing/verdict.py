"""What two runs decide about a change: what was compared, what became worse, and what stays open. Pure.

Each point is judged by one counter unless others are chosen. On a device with memory of its own it is `allocated`,
which decides what fits there: PyTorch returns what its allocator holds in reserve before it reports that memory is
exhausted. `reserved` depends on how blocks happen to be placed, and can grow where a workload needs less. On cpu it is
`tensor`, which repeats exactly, while `resident` can differ by tens of MiB between two runs of the same code. A point
whose tensors are not counted, such as a command, is judged by `resident` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from runners.device import device_named
from sweeper.comparing.changes import (
    COUNTERS,
    NO_LONGER_FITS,
    PeakDifference,
    RunChanges,
    StatusChange,
    fits,
    undecided,
)
from sweeper.errors import Mistake, did_you_mean
from sweeper.rows import Row


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`chosen`: the counters that judge; None: each point is judged by its own."""

    found: RunChanges
    chosen: Sequence[str] | None = None

    @cached_property
    def peaks(self) -> list[PeakDifference]:
        """The pairs of whole peaks that are judged."""
        return [each for each in self.found.peaks if self.is_judged(each)]

    def is_judged(self, peak: PeakDifference) -> bool:
        return peak.counter in self._counters(peak.first, peak.second)

    @property
    def counters(self) -> list[str]:
        """The counters that judge some point."""
        used = {counter for pair in self.found.points.pairs for counter in self._counters(*pair)}
        return [counter for counter in COUNTERS if counter in used]

    @property
    def grown(self) -> list[PeakDifference]:
        return [each for each in self.peaks if each.is_change and each.bytes > 0]

    @property
    def grown_unjudged(self) -> list[PeakDifference]:
        return [each for each in self.found.changed_peaks if each.bytes > 0 and not self.is_judged(each)]

    @property
    def no_longer_fit(self) -> list[StatusChange]:
        return [each for each in self.found.statuses if each.how == NO_LONGER_FITS]

    @property
    def without_counterpart(self) -> list[Row]:
        """Points that fitted, and that the second run lacks."""
        return [row for row in self.found.points.only_in_first if fits(row)]

    @property
    def not_decided(self) -> list[Row]:
        """Points that fitted, and of which the second run decided nothing."""
        return [second for first, second in self.found.points.pairs if fits(first) and undecided(second)]

    @property
    def without_peaks(self) -> list[Row]:
        """Points that fit in both runs, and of which no peak could be judged."""
        return [second for first, second in self._without_peaks if fits(first) and fits(second)]

    @property
    def not_compared(self) -> int:
        """Points of the first run that the second lacks, or of which neither memory nor fitting could be compared."""
        return len(self.found.points.only_in_first) + sum(not _is_settled(*pair) for pair in self._without_peaks)

    @property
    def compared(self) -> int:
        points = self.found.points
        return len(points.pairs) + len(points.only_in_first) - self.not_compared

    @property
    def is_worse(self) -> bool:
        return bool(self.grown or self.no_longer_fit)

    @property
    def is_open(self) -> bool:
        """Whether what was compared is too little to say that nothing became worse."""
        return not self.peaks or bool(self.without_counterpart or self.not_decided or self.without_peaks)

    @property
    def exit_code(self) -> int:
        """The exit code of a gate: 4 if it is worse, 3 if that stays open, else 0."""
        return 4 if self.is_worse else 3 if self.is_open else 0

    @cached_property
    def _without_peaks(self) -> list[tuple[Row, Row]]:
        judged = {id(each.second) for each in self.peaks}
        return [pair for pair in self.found.points.pairs if id(pair[1]) not in judged]

    def _counters(self, first: Row, second: Row) -> Sequence[str]:
        if self.chosen is not None:
            return self.chosen
        if not device_named(second["device"]).is_host:
            return ("allocated",)
        counted = all(row["peak_tensor_bytes"] is not None for row in (first, second))
        return ("tensor",) if counted else ("resident",)


def _is_settled(first: Row, second: Row) -> bool:
    """Whether the runs decide, without a peak, if a point fits: it fails in one of them for lack of memory, say."""
    if undecided(first) or undecided(second) or (fits(first) and fits(second)):
        return False
    return first["fits"] is not None or second["fits"] is not None


def counters_named(text: str) -> tuple[str, ...]:
    """`reserved,allocated`. Raises Mistake for what is no counter that two runs are compared by."""
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in found:
        if name not in COUNTERS:
            near = did_you_mean(name, COUNTERS)
            raise Mistake(f"--counter {text}: no counter {name!r}{near}; there are {', '.join(COUNTERS)}")
    return found
