"""A budget stands for a smaller device: it refuses the same points every time, as out of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from runners.outcome import Status
from sweeper.units import format_bytes
from sweeper.views.progress import outcome_text
from tests.measuring import MIB, SETTLED, Lab, Measured

ROOT = Path(__file__).parents[2]
REPEATABLE = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_MMAP_THRESHOLD_": str(2**17), "OPENBLAS_NUM_THREADS": "1"}
TRAINING = ["model=small-llama", "workload=train", "allocator=repeatable", "start=warm", "devices=[cpu]"]
GRID = ["batch=range(1,9)", "context=128,256,384,512", "budget=600MiB", "parallel=true"]


def sweep(folder: Path, *words: str) -> pd.DataFrame:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sweeper", *words, "name=run"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return pd.read_parquet(folder / "outputs/run/points.parquet")


@pytest.mark.slow
def test_three_repeats_of_a_grid_under_a_budget_agree_at_every_point_and_fail_cleanly(tmp_path: Path) -> None:
    answers = []
    for repeat in range(3):
        folder = tmp_path / str(repeat)
        folder.mkdir()
        points = sweep(folder, *TRAINING, *GRID).set_index(["batch", "context"]).sort_index()
        assert len(points) == 32
        assert set(points["status"]) == {"ok", "oom"}
        assert set(points["budget_kind"]) == {"data_limit"}
        assert points.query("status == 'oom'")["requested_bytes"].notna().all()
        answers.append(points["fits"].tolist())
    assert answers[0] == answers[1] == answers[2]
    assert 0 < sum(answers[0]) < 32


@pytest.mark.slow
def test_a_search_under_a_budget_finds_what_the_whole_grid_finds_in_20_attempts_of_its_32(tmp_path: Path) -> None:
    found = {}
    for design in ("grid", "frontier"):
        (tmp_path / design).mkdir()
        sweep(tmp_path / design, *TRAINING, *GRID, f"design={design}")
        edge = pd.read_parquet(tmp_path / design / "outputs/run/frontier.parquet")
        found[design] = sorted(edge[["side", "batch", "context"]].itertuples(index=False, name=None))
    assert found["frontier"] == found["grid"]
    attempts = pd.read_parquet(tmp_path / "frontier/outputs/run/attempts.parquet").query("pid.notna()")
    assert len(attempts) <= 20
    edge = pd.read_parquet(tmp_path / "frontier/outputs/run/frontier.parquet")
    assert edge[edge["largest"].fillna(False).astype(bool)]["confirmed"].all()


@pytest.mark.slow
def test_an_interval_is_searched_for_the_largest_batch_of_each_context(tmp_path: Path) -> None:
    words = ["design=frontier", "batch=interval(1,64)", "budget=600MiB", "parallel=true"]
    limits = {}
    for context in (128, 256, 384, 512):
        folder = tmp_path / str(context)
        folder.mkdir()
        sweep(folder, *TRAINING, *words, f"context={context}")
        edge = pd.read_parquet(folder / "outputs/run/frontier.parquet").set_index("side")
        assert edge["batch"]["fails"] == edge["batch"]["fits"] + 1
        assert edge["confirmed"].all()
        limits[context] = edge["batch"]["fits"]
    assert list(limits.values()) == sorted(limits.values(), reverse=True)


@pytest.mark.slow
def test_the_calculated_grid_agrees_with_the_measured_one_at_every_point_that_is_not_next_to_the_budget(
    tmp_path: Path,
) -> None:
    """The scratch memory of kernels is not calculated: a point of 573 MiB passed with 615 MiB and not with 610."""
    points = sweep(tmp_path, *TRAINING[:-1], "devices=[cpu,sim:cpu]", *GRID)
    fits = points.pivot(index=["batch", "context"], columns="device", values="fits")
    assert len(fits) == 32
    calculated = points[points["device"] == "sim:cpu"].set_index(["batch", "context"])
    least = calculated["unlimited_peak_bytes"].fillna(calculated["peak_tensor_bytes"])
    is_near = (least <= 600 * MIB) & (least > 540 * MIB)
    assert is_near.sum() <= 3
    assert (fits["cpu"] == fits["sim:cpu"])[~is_near].all()
    assert not (fits["cpu"] & ~fits["sim:cpu"]).any()
    assert 0 < fits["cpu"].sum() < 32


@pytest.mark.slow
def test_a_search_that_begins_at_the_calculated_edge_takes_14_attempts_at_most(tmp_path: Path) -> None:
    sweep(tmp_path, *TRAINING[:-1], "devices=[cpu,sim:cpu]", *GRID, "design=frontier")
    attempts = pd.read_parquet(tmp_path / "outputs/run/attempts.parquet").query("pid.notna() and device == 'cpu'")
    assert len(attempts) <= 14
    edge = pd.read_parquet(tmp_path / "outputs/run/frontier.parquet").query("device == 'cpu'")
    assert edge[edge["largest"].fillna(False).astype(bool)]["confirmed"].all()


def measure(lab: Lab, batch: int, context: int, budget: int | None) -> Measured:
    model = yaml.safe_load((ROOT / "conf/model/small-llama.yaml").read_text())
    workload = yaml.safe_load((ROOT / "conf/workload/train.yaml").read_text())["workload"]
    values: Mapping[str, Any] = {
        **SETTLED, "model": model, "workload": workload, "batch": batch, "context": context,
        "warmup": 0, "repeats": 1, "allocator": "repeatable", "budget": budget,
    }  # fmt: skip
    return lab.settle(lab.start_values(values, environ=REPEATABLE))


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "context"), [(4, 256), (2, 512)])
def test_the_smallest_budget_that_passes_is_what_a_free_run_uses_of_its_budget(
    lab: Lab, batch: int, context: int
) -> None:
    free = measure(lab, batch, context, 8 * 2**30).outcome  # never reached, but starts the same threads
    assert free.status is Status.OK
    expected = free.budget_used_bytes
    assert expected is not None
    fails, passes = expected - 32 * MIB, expected + 32 * MIB
    assert measure(lab, batch, context, fails).outcome.status is Status.OOM
    assert measure(lab, batch, context, passes).outcome.status is Status.OK
    while passes - fails > MIB // 2:
        middle = (passes + fails) // 2
        outcome = measure(lab, batch, context, middle).outcome
        assert outcome.status in (Status.OK, Status.OOM), outcome
        passes, fails = (middle, fails) if outcome.fits else (passes, middle)
    assert abs(passes - expected) <= 2 * MIB


def test_what_is_used_of_a_small_budget_is_what_the_workload_holds(lab: Lab) -> None:
    """Not the 64 MiB of addresses that a thread had reserved for a moment before the workload began."""
    for mib in (8, 16, 32):
        outcome = lab.measure("faulty:good", {"mib": mib}, budget=64 * MIB).outcome
        assert outcome.budget_used_bytes is not None
        assert mib * MIB <= outcome.budget_used_bytes < (mib + 1) * MIB


@pytest.mark.parametrize(
    ("how", "budget", "after", "fits"),
    [
        ("mmap", 24, 16, None),
        ("tensor", 24, 0, None),
        ("mmap", 48, 24, True),  # 56 MiB, but never at once
        ("mmap", None, 0, True),
    ],
)
def test_shared_memory_above_a_budget_that_cannot_limit_it_decides_nothing(
    lab: Lab, how: str, budget: int | None, after: int, fits: bool | None
) -> None:
    """32 MiB that are shared, and then, without them, `after` of the process's own."""
    size = None if budget is None else budget * MIB
    outcome = lab.measure("faulty:shares", {"mib": 32, "how": how, "after": after}, budget=size).outcome
    assert (outcome.status, outcome.fits) == (Status.OK, fits)
    assert outcome.used_with_shared_bytes is not None
    left = 17 if how == "tensor" else 0  # that malloc keeps of a tensor of 16 MiB after it was copied
    assert 32 * MIB <= outcome.used_with_shared_bytes < (35 + left) * MIB
    used = f"undecided: it used {format_bytes(outcome.used_with_shared_bytes)}, shared memory included"
    assert outcome_text(outcome).startswith(used if fits is None else "fits")


def test_without_a_budget_a_point_that_is_too_large_for_the_machine_is_refused_and_not_killed(lab: Lab) -> None:
    """The guard is the memory available at the start, less a reserve."""
    measured = lab.measure("faulty:reserves", {"mib": 2**20})
    outcome = measured.outcome
    assert (outcome.status, outcome.fits, outcome.budget_kind) == (Status.OOM, False, "guard")
    assert outcome.available_memory_bytes is not None
    assert outcome.budget_bytes is not None
    assert 0 < outcome.budget_bytes < outcome.available_memory_bytes
    assert outcome.requested_bytes == 2**40
