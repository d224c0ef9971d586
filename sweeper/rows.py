"""What the rows of a table are made of, and a row that was read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from runners.outcome import Outcome, Phase
from runners.point import Attempt, Point

# A row of points.parquet or phases.parquet read back: its values by column name (docs/columns.md), null as None.
# Swept keys add columns of their own, so that no class could list them all.
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """What the columns of a planned point are taken from: the point, and its line of plan.jsonl."""

    point_id: str
    point: Point
    line: Mapping[str, Any]


AFTER_TRAINING = ("evaluation", "export")  # phases, of sweeper's own workloads and of anybody's that calls them so


@dataclass(frozen=True)
class SettledAttempt:
    """What the columns of an attempt are taken from. Its peaks are looked for once."""

    attempt: Attempt
    outcome: Outcome
    environment_id: str | None

    @cached_property
    def peaks(self) -> dict[str, int]:
        highest: dict[str, int] = {}
        for phase in self.outcome.phases:
            if not phase.counts:
                continue
            for counter, value in phase.peak.items():
                if value > highest.get(counter, -1):
                    highest[counter] = value
            # The driver has no high-water mark of what is used on a device: the highest reading is all there is.
            for reading in (phase.baseline, phase.end):
                if reading.get("used", -1) > highest.get("used", -1):
                    highest["used"] = reading["used"]
        if self.outcome.peak_is_partial:  # a 0 is of the phases before the one that did not end: nothing was read of it
            return {counter: value for counter, value in highest.items() if value}
        return highest

    @property
    def beyond_training(self) -> dict[str, dict[str, int]]:
        """Of each phase that follows the training: how far its peaks lie above all there were before, 0 if they do not.

        Of several devices the highest peak, like the columns of peaks.
        """
        names = [phase.name for phase in self.outcome.phases if phase.counts]
        if not any(name in AFTER_TRAINING for name in names):
            return {}
        training: dict[str, int] = {}
        after: dict[str, dict[str, int]] = {}
        for phase in self.outcome.phases:
            if phase.name in AFTER_TRAINING:
                _keep_highest(after.setdefault(phase.name, {}), phase)
            elif not after and phase.counts:
                _keep_highest(training, phase)
        finished = {phase.name for phase in self.outcome.phases if phase.completed}
        return {
            name: {counter: max(0, peak - training[counter]) for counter, peak in peaks.items() if counter in training}
            for name, peaks in after.items()
            if training and name in finished
        }

    @property
    def used_by_others(self) -> int | None:
        if self.attempt.device.card is not None:
            return self.attempt.device.card.used_by_others_bytes
        return self.outcome.used_before_bytes

    @property
    def quality(self) -> float | None:
        """What the user's metric gave, if that was a finite number."""
        number = self._assessed.get("quality")
        return float(number) if isinstance(number, (int, float)) else None

    @property
    def quality_error(self) -> str | None:
        error: str | None = self._assessed.get("quality_error")
        return error

    @property
    def _assessed(self) -> Mapping[str, Any]:
        """A workload of the user's may call its own metrics so."""
        return self.outcome.metrics if self.attempt.point.get("quality.target") is not None else {}

    @cached_property
    def lengths(self) -> Mapping[str, Any]:
        """What the phase that made the inputs says of them; measured as a whole, the workload's one phase says it."""
        return next((phase.metrics for phase in self.outcome.phases if phase.name in ("inputs", "whole")), {})


def _keep_highest(peaks: dict[str, int], phase: Phase) -> None:
    readings = [phase.peak, *({"used": each["used"]} for each in (phase.baseline, phase.end) if "used" in each)]
    for reading in readings:
        for counter, value in reading.items():
            peaks[counter] = max(value, peaks.get(counter, value))


class MeasuredPhase(NamedTuple):  # a million are made of a large run, in a third of a frozen dataclass's time
    """What the columns of a phase on one device are taken from."""

    point_id: str
    attempt: Attempt
    position: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class EstimatedTerm:
    """What the columns of one term of an estimate are taken from."""

    point_id: str
    term: Any
