"""The calculation compared with a real card: the allocator event by event, and whole points."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.simulation.allocator import CachingAllocator, Settings

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
SETTINGS = ["", "max_split_size_mb:32", "roundup_power2_divisions:4", "expandable_segments:True"]

# Allocates and frees the blocks of a history, and prints the allocator's counters after each.
HISTORY = """
import json, sys, torch
COUNTED = [f"{name}_bytes.all.current" for name in ("requested", "allocated", "reserved")]
events, held = json.load(sys.stdin), {}
for number, size in events:
    if size is None:
        del held[number]
    else:
        held[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    print(json.dumps([stats[name] for name in COUNTED]))
"""

pytestmark = pytest.mark.gpu


def history(seed: int, length: int = 600) -> list[tuple[int, int | None]]:
    """Numbered allocations with their sizes, for every rule of the allocator, and frees without a size."""
    draw = random.Random(seed)
    held: list[int] = []
    events: list[tuple[int, int | None]] = []
    for number in range(length):
        if held and draw.random() < 0.45:
            events.append((held.pop(draw.randrange(len(held))), None))
        else:
            largest = draw.choice([2**10, MIB, 9 * MIB, 64 * MIB])
            events.append((number, draw.randint(1, largest)))
            held.append(number)
    return events


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_simulated_allocator_has_the_counters_of_the_real_one_at_every_event(settings: str, seed: int) -> None:
    events = history(seed)
    environ = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings} if settings else dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", HISTORY],
        input=json.dumps(events),
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    real = [json.loads(line) for line in done.stdout.splitlines()]
    imitated, handles, counted = CachingAllocator(None, settings=Settings.parse(settings)), dict[int, int](), []
    for number, size in events:
        if size is None:
            imitated.free(handles.pop(number))
        else:
            handles[number] = imitated.allocate(size)
        counted.append([imitated.requested, imitated.allocated, imitated.reserved])
    assert counted == real


@pytest.mark.parametrize(
    "words",
    [
        ["workload=train", "dtype=bfloat16", "batch=8", "context=512"],
        ["workload=train", "workload.precision=bfloat16", "workload.checkpointing=true", "batch=8", "context=512"],
        ["workload=forward", "dtype=bfloat16", "batch=16", "context=1024"],
        ["workload=generate", "dtype=bfloat16", "batch=8", "context=512"],
    ],
    ids=" ".join,
)
def test_a_measured_point_has_the_calculated_peaks_of_its_card(
    words: list[str], own_card: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    own = [*own_card(tmp_path), f"outputs={tmp_path}", "name=run"]
    command = [sys.executable, "-m", "sweeper", "model=smollm2-135m", *words, "devices=[cuda:0,sim:this]", *own]
    subprocess.run(command, cwd=ROOT, check=True)
    import pandas as pd

    points = pd.read_parquet(tmp_path / "run" / "points.parquet").set_index("device")
    for column, tolerance in (
        ("peak_requested_bytes", 0.01),
        ("peak_allocated_bytes", 0.01),
        ("peak_reserved_bytes", 0.08),
    ):
        measured, calculated = points[column]["cuda:0"], points[column]["sim:this"]
        assert calculated == pytest.approx(measured, rel=tolerance), column
