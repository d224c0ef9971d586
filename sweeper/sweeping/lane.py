"""One device of a sweep and the queue in front of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from runners.device import Device
from runners.outcome import Outcome, Status
from runners.point import Attempt
from sweeper.designs.dialogue import Answer, Design
from sweeper.plan import PlannedPoint


@dataclass
class Lane:
    """A device, the design that plans its points, and the batch in progress."""

    device: Device
    design: Design
    batch: list[PlannedPoint] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)  # to the batch's points, in the same order
    running: Attempt | None = None
    engine_lane: str = ""  # of the running attempt: the device's own, or a shared one if it is calculated
    forked: set[str] = field(default_factory=set)  # points that have an attempt forked from the present template
    same_error: list[tuple[str | None, str | None]] | None = field(default_factory=list)  # None: they differed
    done: bool = False

    @property
    def next(self) -> PlannedPoint | None:
        """The next point of the batch; None if every one has its answer."""
        return self.batch[len(self.answers)] if len(self.answers) < len(self.batch) else None

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
