"""One device of a sweep and the queue in front of it.

A measured device runs one attempt at a time. A calculated one runs as many as there are cores, and the answers keep the
order of the batch whatever ends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from runners.device import Device
from runners.outcome import Outcome, Status
from runners.point import Attempt
from sweeper.designs.dialogue import Answer, Design
from sweeper.plan import PlannedPoint


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt under way, and the place of its point in the batch."""

    attempt: Attempt
    place: int


@dataclass
class Lane:
    """A device, the design that plans its points, and the batch in progress."""

    device: Device
    design: Design
    batch: list[PlannedPoint] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)  # to the batch's points, in the same order
    taken: int = 0  # points of the batch that were started or recalled, from the first on
    running: dict[str, Running] = field(default_factory=dict)  # by the engine's lane: the device's own, or a shared one
    forked: set[str] = field(default_factory=set)  # points that have an attempt forked from the present template
    same_error: list[tuple[str | None, str | None]] | None = field(default_factory=list)  # None: they differed
    done: bool = False

    def take(self, batch: Sequence[PlannedPoint]) -> None:
        """Queue the design's next batch."""
        self.batch, self.answers, self.taken = list(batch), [None] * len(batch), 0

    @property
    def next(self) -> PlannedPoint | None:
        """The next point of the batch; None if every one was started or has its answer."""
        return self.batch[self.taken] if self.taken < len(self.batch) else None

    def is_running(self, planned: PlannedPoint) -> bool:
        return any(each.attempt.point.id == planned.point.id for each in self.running.values())

    def gives_up(self, outcome: Outcome, limit: int) -> bool:
        """Note a new outcome. Whether the lane's first `limit` outcomes are all the same error; 0 means no limit.

        Outcomes that depend on memory or on the device (oom, timeout, unavailable) do not count.
        """
        if outcome.status is Status.OK:
            self.same_error = None
        if self.same_error is None or limit == 0 or outcome.status is not Status.ERROR:
            return False
        self.same_error.append((outcome.error_type, outcome.failed_phase))
        if len(set(self.same_error)) > 1:
            self.same_error = None
            return False
        return len(self.same_error) >= limit
