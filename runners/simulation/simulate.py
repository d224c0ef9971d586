"""A calculated attempt: trace the point once without data, then replay the trace on the card's simulated allocator.

The trace has the lines of the workload's journal, each with its place among the events, and the events: allocations
and frees of storages in order. The replay hands the events to the allocator and gives the lines its counters. The
journal ends where the allocator refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from runners import facts
from runners.device import Card
from runners.journal import Journal
from runners.point import Attempt
from runners.simulation.allocator import Settings
from runners.simulation.card_memory import memory_of
from runners.simulation.replay import replay
from runners.simulation.spare_process import SpareProcess
from runners.simulation.trace import (
    AllocationTrace,
    DescribeError,
    ReadyPoint,
    card_of,
    is_program,
    trace_workload,
)


def measure(
    attempt: Attempt,
    workload: ModuleType,
    journal: Journal,
    describe_error: DescribeError,
    ready: ReadyPoint | None = None,
    keep: Callable[[ReadyPoint], None] | None = None,
) -> None:
    """Write the journal of a calculated attempt. Raises ValueError for a measured attempt.

    `ready`: its program, imported. Otherwise `keep` is called with that, before it runs, if others can begin there.
    """
    card = card_of(attempt)
    others = attempt.point.get("used_by_others")
    if others is not None:
        card = replace(card, used_by_others_bytes=others)
    budget = attempt.point.get("budget")

    def followed(refuses: bool) -> AllocationTrace:
        point = ready
        if point is None and keep is not None and not refuses:
            point = ReadyPoint(attempt, card)
            point.enter(attempt, workload)
            if point.is_reusable:
                keep(point)
        return trace_workload(attempt, workload, describe_error, card, refuses, point)

    def lines(trace: AllocationTrace, unlimited: bool = False) -> list[dict[str, Any]]:
        return list(
            replay(trace, attempt.device.name, memory_of(trace.on(card), None if unlimited else budget, unlimited))
        )

    if budget is not None:
        kind, room = facts.TENSORS, budget
        if card.total_bytes is not None:
            kind, room = facts.ALLOCATOR, min(budget, card.total_bytes - card.outside_bytes)
        journal.write(facts.Budget(kind, room))
    catches = is_program(attempt)  # a refusal may be caught
    kept = _kept(attempt, card)
    # A script leaves files: it runs once, as on the card itself, and what it would take without a limit is not known.
    runs_once = attempt.point["workload"] == "command"
    spare_needed = catches and kept is None and not runs_once
    with SpareProcess(lambda: followed(refuses=True).packed()) if spare_needed else nullcontext() as spare:
        trace = kept or followed(refuses=runs_once)
        if kept is None and attempt.allocation_trace and trace.lines[-1]["kind"] == "finished":
            trace.write(Path(attempt.allocation_trace))  # a failure may not happen again, and is not kept
        written = lines(trace)
        refused = written[-1]["kind"] == "failed" and trace.lines[-1]["kind"] == "finished"
        if refused and catches:
            written = lines(_followed_again(spare) if spare is not None else followed(refuses=True))
            refused = written[-1]["kind"] == "failed" and _is_refused_in_last_phase(written)
    if refused and _fits_if_expandable(trace, attempt, trace.on(card), budget):
        written[-1]["chain"][0]["message"] += facts.FITS_IF_EXPANDABLE
    journal.write(*map(facts.from_json, written))
    if refused:
        journal.write(facts.Unlimited(_peaks(lines(trace, unlimited=True))))


def _followed_again(spare: SpareProcess) -> AllocationTrace:
    packed = spare.run()
    if packed is None:
        raise RuntimeError("the process in which the program ran with this card's limit ended without a trace")
    return AllocationTrace.unpacked(packed)


def _kept(attempt: Attempt, card: Card) -> AllocationTrace | None:
    """The trace that another attempt has left, if it holds for this card."""
    trace = AllocationTrace.read(Path(attempt.allocation_trace)) if attempt.allocation_trace else None
    return None if trace is None or trace.card not in (None, card.name) else trace


def _is_refused_in_last_phase(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the card refused an allocation in the phase in which the workload failed."""
    failed = [line for line in lines if line["kind"] == "ended" and not line["completed"]][-1:]
    return any(counters.get("refused") for line in failed for counters in line["counters"].values())


def _fits_if_expandable(trace: AllocationTrace, attempt: Attempt, card: Card, budget: int | None) -> bool:
    """Whether the point would fit if the allocator's segments could grow. False where they can already."""
    card = trace.on(card)
    if card.is_host or Settings.parse(card.settings).expandable_segments:
        return False
    settings = ",".join(filter(None, (card.settings.rstrip(", "), "expandable_segments:True")))
    lines = replay(trace, attempt.device.name, memory_of(replace(card, settings=settings), budget))
    return all(line["kind"] != "failed" for line in lines)


def describe(card: Card) -> dict[str, Any]:
    """The card's facts for the record of the environment."""
    return {
        "device_name": card.name,
        "device_total_bytes": card.total_bytes,
        "allocator_backend": "calculated",
        "allocator_settings": card.settings or None,
    }


def _peaks(lines: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The highest value of each counter in bytes; empty if the workload failed."""
    peaks: list[Mapping[str, int]] = []
    for line in lines:
        if line["kind"] == "failed":
            return {}
        peaks += [counters.get("peak", {}) for counters in line.get("counters", {}).values()]
    return facts.highest(peaks)
