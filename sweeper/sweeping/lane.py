"""One device of a sweep and the queue in front of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from runners.device import Device
from runners.point import Attempt
from sweeper.designs.frontier import Answer, Design
from sweeper.plan import PlannedPoint


@dataclass
class Lane:
    """One device and the queue in front of it: a design that asks, and the answers it waits for."""

    device: Device
    design: Design
    asked: list[PlannedPoint] = field(default_factory=list)  # the batch under way
    answers: list[Answer | None] = field(default_factory=list)  # of its points, in the same order
    under_way: Attempt | None = None
    seat: str = ""  # the engine's lane that it is under way in: the device's own, or one of those that calculate
    copied: set[str] = field(default_factory=set)  # points that were measured in copies of its present template
    same_error: list[tuple[str | None, str | None]] | None = field(default_factory=list)  # None: something else came
    done: bool = False

    @property
    def next(self) -> PlannedPoint | None:
        """The point whose turn it is."""
        return self.asked[len(self.answers)] if len(self.answers) < len(self.asked) else None
