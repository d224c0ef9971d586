"""A run without processes: plan.jsonl and attempt folders as a sweep and its attempts write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.device import device_named
from runners.point import Attempt, AttemptFolder, Point

MIB = 2**20
BASELINE = 219 * MIB
ADDRESSES = {"address": 500 * MIB, "virtual": 800 * MIB}
RECORD = {
    "host": "node1",
    "system": "Linux 6.1 x86_64",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "backend": "cpu",
    "backend_version": None,
    "libraries": {"transformers": "5.24.0"},
    "threads": 2,
    "variables": {"OMP_NUM_THREADS": "2"},
    "device_name": "a processor",
    "device_uuid": None,
    "device_total_bytes": 16 * 2**30,
    "allocator_backend": "malloc",
    "driver": None,
}
VALUES: dict[str, Any] = {
    "model": {"name": "mlp", "library": "torch", "width": 64},
    "workload": {"name": "forward"},
    "dtype": "float32",
    "batch": 1,
    "context": 64,
    "warmup": 1,
    "repeats": 2,
    "seed": 0,
    "start": "cold",
    "allocator": "system",
    "phases": "each",
    "cache": "keep",
    "tensors": True,
    "timeout": None,
    "budget": None,
}
OUT_OF_MEMORY = {
    "type": "RuntimeError",
    "bases": ["Exception", "BaseException"],
    "message": "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)",
}


class WrittenRun:
    """Writes a run's folder, one fact at a time."""

    def __init__(self, folder: Path, swept: Mapping[str, list[Any]], **keys: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.order = 0
        self.extend(swept, **keys)

    def extend(self, swept: Mapping[str, list[Any]], **keys: Any) -> None:
        dimensions = [{"key": key, "values": values} for key, values in swept.items()]
        started = "2026-11-29T12:00:00+00:00"
        self.plan(kind="run", format=1, design="grid", dimensions=dimensions, keys=keys, started_at=started)

    def plan(self, **line: Any) -> None:
        with (self.folder / "plan.jsonl").open("a") as plan:
            plan.write(json.dumps(line) + "\n")

    def device(self, name: str, unavailable: str | None = None, total_bytes: int | None = 16 * 2**30) -> None:
        self.plan(
            kind="device",
            name=name,
            device_kind=name.partition(":")[0],
            uuid=f"GPU-{name}" if name.startswith("cuda") else None,
            total_bytes=None if unavailable else total_bytes,
            unavailable=unavailable,
        )

    def ask(
        self,
        device: str | None = None,
        changed_from: Point | None = None,
        changed: tuple[str, ...] = (),
        **values: Any,
    ) -> Point:
        point = Point(values=VALUES | values)
        self.plan(
            kind="asked",
            id=point.id,
            order=self.order,
            device=device,
            changed_from=None if changed_from is None else changed_from.id,
            changed=list(changed),
            values=point.values,
        )
        self.order += 1
        return point

    def skip(self, point: Point, because: Attempt) -> None:
        self.plan(kind="skipped", id=point.id, device=because.device.name, because=because.name)

    def passes(self, point: Point, peak: int = BASELINE + 64 * MIB, **more: Any) -> Attempt:
        lines = [*started(), *phase("inputs", BASELINE + MIB), *phase("cold_forward", peak)]
        finished = {"kind": "finished", "metrics": more.pop("metrics", {}), "steps": None, "tokens": 64}
        return self.attempt(point, [*lines, finished], {"code": 0, "signal": None}, **more)

    def is_refused(self, point: Point, **more: Any) -> Attempt:
        lines = [*started(), *phase("inputs", BASELINE + MIB), *phase("cold_forward", BASELINE + 32 * MIB, False)]
        return self.attempt(point, [*lines, failed(OUT_OF_MEMORY)], {"code": 0, "signal": None}, **more)

    def raises(self, point: Point, message: str = "index out of range", **more: Any) -> Attempt:
        lines = [*started(), *phase("cold_forward", BASELINE + MIB, False)]
        cause = {"type": "IndexError", "bases": ["LookupError"], "message": message}
        return self.attempt(point, [*lines, failed(cause)], {"code": 0, "signal": None}, **more)

    def ends(self, point: Point, **ended: Any) -> Attempt:
        lines = [*started(), *phase("cold_forward", BASELINE + MIB)[:2]]
        return self.attempt(point, lines, ended)

    def attempt(
        self,
        point: Point,
        journal: list[dict[str, Any]],
        ended: Mapping[str, Any] | None,
        device: str = "cpu",
        number: int = 1,
    ) -> Attempt:
        attempt = Attempt(point=point, device=device_named(device), number=number)
        folder = AttemptFolder(self.folder / "points" / attempt.name)
        folder.create(attempt)
        lines = [json.dumps({"t": 100.0 + second} | line) for second, line in enumerate(journal)]
        folder.journal.write_text("".join(line + "\n" for line in lines))
        if ended is not None:
            word = {"format": 1, "pid": 4242, "started_at": "2026-11-29T12:00:01.500000+00:00", "duration_s": 1.25}
            folder.exit.write_text(json.dumps(word | dict(ended)))
        return attempt


def started() -> list[dict[str, Any]]:
    counters = {"resident": BASELINE, "resident_anon": 150 * MIB, **ADDRESSES, "virtual_peak": 800 * MIB}
    return [
        {"kind": "environment", "pid": 4242, "at": "2026-11-29T12:00:02+00:00", "record": RECORD},
        {
            "kind": "baseline",
            "counters": counters,
            "available_memory_bytes": 15 * 2**30,
            "instrumented": True,
        },
        {"kind": "budget", "budget_kind": "guard", "budget_bytes": 14 * 2**30},
        {"kind": "model", "facts": {"parameters": 8192, "parameter_bytes": 32768, "storage_dtype": "float32"}},
    ]


def phase(name: str, peak: int, completed: bool = True, device: str = "cpu") -> list[dict[str, Any]]:
    before = {"resident": BASELINE, "tensor": MIB, **ADDRESSES, "mapped": 300 * MIB}
    peaks = {"resident": peak, "tensor": peak - BASELINE, "address": 800 * MIB + peak - BASELINE}
    counters = {device: {"baseline": before, "end": before, "peak": peaks, "alloc_retries": None, "num_ooms": None}}
    between = {device: {"baseline": before, "end": before, "peak": {**before, "address": 800 * MIB}}}
    return [
        {
            "kind": "ended",
            "phase": "between",
            "run_index": None,
            "elapsed_s": 0.01,
            "completed": True,
            "counters": between,
        },
        {"kind": "began", "phase": name, "run_index": 0, "counters": {device: {"baseline": before}}},
        {
            "kind": "ended",
            "phase": name,
            "run_index": 0,
            "elapsed_s": 0.5,
            "iterations": 1,
            "completed": completed,
            "counters": counters,
            "shapes": {"input": [1, 64]},
            "metrics": {"loss": 1.5},
        },
    ]


def failed(*chain: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "failed", "chain": list(chain), "traceback": "Traceback (most recent call last): ..."}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., WrittenRun]:
    """`written({"batch": [1, 2]}, devices=("cpu",))` starts a run in a new folder."""

    def write(
        swept: Mapping[str, list[Any]], devices: tuple[str, ...] = ("cpu",), name: str = "bill", **keys: Any
    ) -> WrittenRun:
        run = WrittenRun(tmp_path / "outputs" / name, swept, **keys)
        for device in devices:
            run.device(device)
        return run

    return write
