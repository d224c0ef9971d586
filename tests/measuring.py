"""Measures attempts as a sweep does, without a command line: one engine, a supervisor, real processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import journal, processes
from runners.device import Card, Device, device_named
from runners.engines.local import Event, Local
from runners.outcome import Outcome, outcome_of
from runners.point import Attempt, AttemptFolder, Point

MIB = 2**20
SETTLED = {
    "dtype": "float32", "batch": 1, "context": 1, "warmup": None, "repeats": None, "seed": 0, "start": "warm",
    "allocator": "system", "phases": "each", "cache": "keep", "tensors": True, "timeout": 60, "budget": None,
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """An attempt that has settled: its outcome, and the JSON of its files."""

    outcome: Outcome
    folder: AttemptFolder
    journal: list[dict[str, Any]]
    exit: dict[str, Any]


class Lab:
    """A lane. Its attempts are numbered, so that the same point can be measured again."""

    def __init__(self, root: Path, cwd: Path) -> None:
        self.root, self.cwd = root, cwd
        self.engine = Local(sys.executable, lanes=1)
        self.number = 0

    def start(
        self, target: str, params: Mapping[str, Any] | None = None, trace: bool = False, **settled: Any
    ) -> Attempt:
        workload = {"name": "custom", "target": target, "params": dict(params or {})}
        return self.start_values({**SETTLED, "model": None, "workload": workload, **settled}, trace=trace)

    def start_values(
        self,
        values: Mapping[str, Any],
        environ: Mapping[str, str | None] | None = None,
        trace: bool = False,
        device: str = "cpu",
        device_uuid: str | None = None,
        card: Mapping[str, Any] | None = None,
        allocation_trace: Path | None = None,
    ) -> Attempt:
        self.number += 1
        attempt = Attempt(
            point=Point(values=values),
            device=Device(
                name=device,
                uuids=tuple(device_uuid.split("+")) if device_uuid else (),
                card=None if card is None else Card.from_json(card),
            ),
            allocation_trace=None if allocation_trace is None else str(allocation_trace),
            number=self.number,
            cwd=str(self.cwd),
            environ=environ or {"OMP_WAIT_POLICY": "PASSIVE"},
            heartbeat=0.1,
            trace=trace,
        )
        folder = self.folder(attempt)
        folder.create(attempt)
        self.engine.start(attempt, folder, "cpu")
        return attempt

    def folder(self, attempt: Attempt) -> AttemptFolder:
        return AttemptFolder(self.root / attempt.name)

    def next_folder(self, target: str, params: Mapping[str, Any], **settled: Any) -> Path:
        workload = {"name": "custom", "target": target, "params": dict(params)}
        point = Point(values={**SETTLED, "model": None, "workload": workload, **settled})
        return self.folder(Attempt(point=point, device=device_named("cpu"), number=self.number + 1)).path

    def wait_for(self, kind: str) -> Event:
        while True:
            for event in self.engine.wait(60):
                if event.kind == kind:
                    return event

    def settle(self, attempt: Attempt) -> Measured:
        event = self.wait_for("settled")
        folder = event.folder
        outcome = outcome_of(attempt, journal.read(folder.journal), folder.settled())
        return Measured(outcome, folder, journal.read_lines(folder.journal), json.loads(folder.exit.read_bytes()))

    def measure(
        self, target: str, params: Mapping[str, Any] | None = None, trace: bool = False, **settled: Any
    ) -> Measured:
        return self.settle(self.start(target, params, trace, **settled))

    @property
    def watcher(self) -> int:
        return self.engine._lanes["cpu"].process.pid

    @property
    def supervisor(self) -> int:
        return processes.descendants_of(self.watcher)[0]

    def left_over(self) -> list[int]:
        """The pids of living processes below the supervisor."""
        return [pid for pid in processes.descendants_of(self.supervisor) if processes._state(pid) != "Z"]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.supervisor}/fd"))
