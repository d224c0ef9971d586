"""The objects from which table columns take their values, and the type of a row that was read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from runners.outcome import Outcome, Phase, peaks_of
from runners.point import Attempt, Point
from sweeper.plan_lines import PlannedLine

# A row of points.parquet or phases.parquet read back: its values by column name (docs/columns.md), null as None.
# Swept keys add columns of their own, so that no class could list them all.
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Source of the columns of a planned point: the point, and its line of plan.jsonl."""

    point: Point
    line: PlannedLine

    @property
    def point_id(self) -> str:
        return self.line.id


AFTER_TRAINING = ("evaluation", "export")  # phase names, in sweeper's workloads and in custom ones


@dataclass(frozen=True)
class SettledAttempt:
    """Source of the columns of an attempt that ended."""

    attempt: Attempt
    outcome: Outcome
    environment_id: str | None

    @property
    def beyond_training(self) -> dict[str, dict[str, int]]:
        """The bytes by which the peaks of each phase after training exceed all peaks before it, by phase and counter.

        0 where they do not. With several devices a peak is the highest of any one device, as in the peak columns.
        """
        phases = self.outcome.phases
        if not any(phase.name in AFTER_TRAINING and phase.counts for phase in phases):
            return {}
        first = next(place for place, phase in enumerate(phases) if phase.name in AFTER_TRAINING)
        training = peaks_of(phase for phase in phases[:first] if phase.counts)
        if not training:
            return {}
        finished = {phase.name: None for phase in phases[first:] if phase.name in AFTER_TRAINING and phase.completed}
        peaks = {name: peaks_of(phase for phase in phases if phase.name == name) for name in finished}
        return {
            name: {counter: max(0, peak - training[counter]) for counter, peak in found.items() if counter in training}
            for name, found in peaks.items()
        }

    @property
    def used_by_others(self) -> int | None:
        if self.attempt.device.card is not None:
            others: int | None = self.attempt.point.get("used_by_others")
            return self.attempt.device.card.used_by_others_bytes if others is None else others
        return self.outcome.used_before_bytes

    @property
    def context_bytes(self) -> int | None:
        """What is taken off a calculated card's total for the context and libraries."""
        card = self.attempt.device.card
        return None if card is None or card.is_host else card.context_bytes

    @property
    def context_most_bytes(self) -> int | None:
        card = self.attempt.device.card
        return None if card is None or card.context_range_bytes is None else card.context_range_bytes[1]

    @property
    def quality(self) -> float | None:
        """The user's metric, if it is a finite number (others are recorded as text)."""
        number = self._assessed.get("quality")
        return float(number) if isinstance(number, (int, float)) else None

    @property
    def quality_error(self) -> str | None:
        error: str | None = self._assessed.get("quality_error")
        return error

    @property
    def _assessed(self) -> Mapping[str, Any]:
        """The metrics, if the quality key was used: a custom workload may have metrics of the same names."""
        return self.outcome.metrics if self.attempt.point.get("quality.target") is not None else {}

    @cached_property
    def lengths(self) -> Mapping[str, Any]:
        """Token counts, from the metrics of the phase that made the inputs (`whole` if phases are not separated).

        None of a custom workload, whose metrics and phases are the user's.
        """
        if self.attempt.point.get("workload") == "custom":
            return {}
        return next((phase.metrics for phase in self.outcome.phases if phase.name in ("inputs", "whole")), {})


class MeasuredPhase(NamedTuple):  # a large run makes a million: a third of a frozen dataclass's time
    """Source of the columns of a phase on one device."""

    point_id: str
    attempt: Attempt
    position: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class EstimatedTerm:
    """Source of the columns of one term of an estimate."""

    point_id: str
    term: Any
