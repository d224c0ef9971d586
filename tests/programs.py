"""Run a user's function as a calculated attempt does, in this process: on a card or a calculated host."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from runners import failure
from runners.device import CPU_CARD, Card, Device
from runners.point import Attempt, Point
from runners.simulation.card_memory import memory_of
from runners.simulation.replay import replay
from runners.simulation.trace import trace_workload
from runners.workloads import command, custom, python_program
from tests.measuring import MIB, SETTLED

H100 = Card(
    name="NVIDIA H100 80GB HBM3", vendor="nvidia", architecture="sm_90", total_bytes=85045477376, context_bytes=2**29
)
MI300X = Card(name="AMD MI300X", vendor="amd", architecture="gfx942", total_bytes=192 * 2**30, context_bytes=2**29)
HOST = CPU_CARD


@dataclass
class Calculated:
    """How a program ended on a device: its journal's lines, and the highest of each counter."""

    lines: list[dict[str, Any]]
    peaks: dict[str, int] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        """The type and the message of what ended it."""
        last = self.lines[-1]
        return None if last["kind"] == "finished" else f"{last['chain'][0]['type']}: {last['chain'][0]['message']}"

    @property
    def steps(self) -> int | None:
        found: int | None = self.lines[-1].get("steps")
        return found

    @property
    def notes(self) -> list[str]:
        return [note for line in self.lines if line["kind"] == "notes" for note in line["notes"]]

    @property
    def assumed(self) -> dict[str, Any]:
        """`values`, `places` and `bounds` of facts.Assumed; empty if nothing was assumed."""
        return next((line for line in reversed(self.lines) if line["kind"] == "assumed"), {})

    @property
    def returned(self) -> Any:
        assert self.error is None, self.lines[-1].get("traceback") or self.error
        return self.lines[-1]["metrics"]


def calculated(
    program: Callable[..., Any], card: Card = H100, total: int | None = None, assume: float | None = None, **params: Any
) -> Calculated:
    """Run the program on a card, of which `total` bytes are free for its allocator, and which refuses more.

    `assume` is the key `workload.assume`.
    """
    card = _with_total(card, total)
    where = f"{program.__module__}:{program.__qualname__}"
    _found[where] = program
    return _calculated({"name": "custom", "target": where, "params": params, "assume": assume}, _CUSTOM, card)


def calculated_command(*argv: str, card: Card = H100, total: int | None = None, steps: int | None = 2) -> Calculated:
    """Run a command as `calculated` runs a function. The interpreter does not end: it is that of the tests."""
    before, python_program.end_interpreter = python_program.end_interpreter, lambda patience: None
    try:
        return _calculated(
            {"name": "command", "argv": list(argv), "params": {}, "steps": steps}, command, _with_total(card, total)
        )
    finally:
        python_program.end_interpreter = before


def _with_total(card: Card, total: int | None) -> Card:
    return card if total is None else replace(card, total_bytes=total + card.context_bytes)


def _calculated(workload: dict[str, Any], module: Any, card: Card) -> Calculated:
    return calculated_point({**SETTLED, "model": None, "workload": workload}, module, card)


def calculated_point(values: dict[str, Any], module: Any, card: Card = H100) -> Calculated:
    """Run a workload of settled values, of which `module` is the code."""
    device = Device(name="sim:cpu" if card.is_host else "sim:card", card=card)
    attempt = Attempt(point=Point(values=values), device=device, number=1, cwd=".")
    trace = trace_workload(attempt, module, failure.failure_facts, refuses=True)
    lines = [json.loads(json.dumps(line)) for line in replay(trace, device.name, memory_of(trace.on(card), None))]
    found = Calculated(lines)
    for line in lines:
        for name, peak in (line.get("counters") or {}).get(device.name, {}).get("peak", {}).items():
            found.peaks[name] = max(found.peaks.get(name, 0), peak)
    return found


_found: dict[str, Callable[..., Any]] = {}


class _Custom:
    """The workload `custom`, for functions that are not imported by name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(custom, name)

    @staticmethod
    def prepare(values: Any, device: str) -> None:
        return None

    @staticmethod
    def run(values: Any, device: str, phase: Any) -> dict[str, Any]:
        before, custom.find = custom.find, lambda target, key="": _found[target]
        try:
            return custom.run(values, device, phase)
        finally:
            custom.find = before


_CUSTOM: Any = _Custom()
__all__ = ["H100", "HOST", "MI300X", "MIB", "Calculated", "calculated", "calculated_command", "calculated_point"]
