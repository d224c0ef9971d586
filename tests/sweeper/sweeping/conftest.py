"""An engine that measures nothing: it writes an attempt's files itself and reports it as settled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from runners.device import Device
from runners.engines.local import Event
from runners.point import Attempt, AttemptFolder, Point, write_aside
from sweeper.objective import TOKENS
from sweeper.plan import Dimension, Plan, RunKeys
from sweeper.run_folder import open_run
from sweeper.sweeping.recall import Fingerprint
from sweeper.sweeping.signals import Signals
from sweeper.sweeping.sweep import Sweep
from sweeper.views.progress import Show

PASSES = {"kind": "finished", "metrics": {}, "steps": None, "tokens": 1}
REFUSED = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes. Error code 12"
FINGERPRINT = Fingerprint(identity={"torch": "2.13"}, code={})
CPU = Device(name="cpu", total_bytes=2**34)


def raises(kind: str, message: str = "") -> dict[str, Any]:
    return {"kind": "failed", "chain": [{"type": kind, "bases": ["Exception"], "message": message}], "traceback": ""}


OOM = raises("RuntimeError", REFUSED)


def leave(folder: AttemptFolder, last: Mapping[str, Any], **exit: Any) -> None:
    """Write what an attempt that ended leaves in its folder."""
    lines = [{"kind": "baseline", "counters": {"resident": 1}, "available_memory_bytes": None}, last]
    folder.journal.write_text("".join(json.dumps({"t": 1.0, **line}) + "\n" for line in lines))
    size = folder.journal.stat().st_size
    write_aside(folder.exit, {"format": 1, "code": 0, "signal": None, "journal_bytes": size, **exit})


class FakeEngine:
    """`ends(attempt)` is the last line of the attempt's journal; an attempt without one runs until it is cancelled."""

    def __init__(self, ends: Callable[[Attempt], Mapping[str, Any] | None]) -> None:
        self.ends = ends
        self.calls: list[str] = []
        self.started: list[Attempt] = []
        self.running: dict[str, tuple[Attempt, AttemptFolder]] = {}
        self.most_running = 0
        self.while_waiting: Callable[[], None] = lambda: None

    def start(self, attempt: Attempt, folder: AttemptFolder, lane: str) -> None:
        assert lane not in self.running
        self.started.append(attempt)
        self.running[lane] = attempt, folder
        self.most_running = max(self.most_running, len(self.running))

    def wait(self, timeout: float | None) -> Sequence[Event]:
        self.while_waiting()
        for lane, (attempt, folder) in self.running.items():
            last = self.ends(attempt)
            if last is None and folder.settled() is None:
                continue
            if last is not None:
                leave(folder, last)
            del self.running[lane]
            return [Event("settled", folder, lane)]
        return []

    def cancel(self, reason: str) -> None:
        self.calls.append(f"cancel: {reason}")
        for _, folder in self.running.values():
            write_aside(folder.exit, {"format": 1, "interrupted": True, "reason": reason})

    def has(self, lane: str) -> bool:
        return True

    def renew(self, lane: str) -> None:
        self.calls.append(f"renew {lane}")

    def kill(self) -> None:
        self.calls.append("kill")

    def close(self) -> None:
        self.calls.append("close")


class Settler:
    quality_references: Mapping[str, str] = {}
    settings: Mapping[str, Mapping[str, Any]] = {}

    def settle(self, choice: Mapping[str, Any]) -> Point:
        return Point(values={"workload": {"name": "forward"}, "batch": 1, "context": 1, "start": "cold", **choice})


def plan_of(*devices: Device, run: Mapping[str, Any] | None = None, design: str = "grid", **values: Any) -> Plan:
    keys: dict[str, Any] = {
        "name": "run", "outputs": "outputs", "python": "python", "retry": (), "resume": "same",
        "stop_after_same_error": 0, "objective": TOKENS, "heartbeat": 0.2, "parallel": False,
    }  # fmt: skip
    return Plan(
        run=RunKeys(**keys | dict(run or {})),
        design=design,
        design_options={},
        dimensions=tuple(Dimension(key=key, values=each) for key, each in values.items()),
        devices=devices or (CPU,),
        settler=Settler(),
        command=(),
    )


class Lab:
    """Runs plans with a fake engine into `outputs/run` of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signals = Signals(descriptor=-1)

    def run(
        self,
        plan: Plan,
        ends: Callable[[Attempt], Mapping[str, Any] | None] = lambda attempt: PASSES,
        fingerprint: Fingerprint = FINGERPRINT,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> tuple[int, FakeEngine]:
        """The exit code, and the engine."""
        engine = FakeEngine(ends)
        engine.while_waiting = while_waiting
        run = open_run(str(self.folder / "outputs"), plan.run.name, "slug")
        try:
            return Sweep(plan, fingerprint, run, Show(plan), self.signals, lambda lanes: engine).run(), engine
        finally:
            run.close()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
