"""What training a decoder of 135 million parameters costs over running it: figures that were measured before us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
MIB = 2**20
# workload, batch, context, set_to_none -> MiB: resident over the process baseline, and of live tensors
BILL = {
    ("train", 1, 256, False): (2578, 2537.5),
    ("train", 8, 256, False): (5869, 5830.8),
    ("train", 4, 512, False): (5869, 5830.9),
    ("train", 8, 256, True): (5355, 5317.6),
    ("forward", 8, 256, None): (931, 901.6),
}
# As glibc's malloc has it by default. Not in it: forward b8x256, published as 955-962, which was 993-1065 here in three
# runs, since the temporaries of the weights' initialisation stay in the heap or not.
SYSTEM = {
    ("train", 1, 256, False): (2835, 2884),
    ("train", 8, 256, False): (6481, 6574),
    ("train", 4, 512, False): (6426, 6490),
}

pytestmark = pytest.mark.slow


def sweep(folder: Path, *words: str) -> Path:
    command = [sys.executable, "-m", "sweeper", *words, "parallel=true", "name=bill"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "outputs/bill"


def points_of(run: Path) -> dict[tuple[object, ...], pd.Series]:
    rows = pd.read_parquet(run / "points.parquet")
    keys = ["workload", "batch", "context", "workload.set_to_none"]
    return {tuple(None if pd.isna(row[key]) else row[key] for key in keys): row for _, row in rows.iterrows()}


def over_baseline(row: pd.Series) -> float:
    return float(row["peak_resident_bytes"] - row["process_baseline_bytes"]) / MIB


def test_the_training_bill_is_what_was_measured_before(tmp_path: Path) -> None:
    run = sweep(tmp_path, "experiment=training_bill")
    points = points_of(run)
    assert set(points) == set(BILL)
    for key, (resident, tensor) in BILL.items():
        assert over_baseline(points[key]) == pytest.approx(resident, rel=0.01), key
        assert points[key]["peak_tensor_bytes"] / MIB == pytest.approx(tensor, rel=0.001), key
    phases = pd.read_parquet(run / "phases.parquet")
    large = phases[phases["point_id"] == points["train", 8, 256, False]["point_id"]].set_index("phase")
    first, second = (large.loc[name, "peak_resident_bytes"] for name in ("cold_backward", "warm_backward"))
    assert 1.3 * 1024 < (second - first) / MIB < 1.7 * 1024


def test_the_bill_with_the_systems_own_allocator_is_within_two_percent(tmp_path: Path) -> None:
    points = points_of(sweep(tmp_path, "experiment=training_bill", "allocator=system"))
    for key, (low, high) in SYSTEM.items():
        assert 0.98 * low <= over_baseline(points[key]) <= 1.02 * high, key


def test_the_loop_measured_as_a_whole_has_the_peak_of_its_phases(tmp_path: Path) -> None:
    words = ("model=smollm2-135m", "workload=train", "workload.set_to_none=false", "batch=1", "context=256")
    run = sweep(tmp_path, *words, "allocator=repeatable", "phases=each,whole", "devices=[cpu]")
    each, whole = pd.read_parquet(run / "points.parquet").sort_values("phases").to_dict("records")
    assert each["peak_tensor_bytes"] == whole["peak_tensor_bytes"]
    assert abs(each["peak_resident_bytes"] - whole["peak_resident_bytes"]) < 16 * MIB
    assert whole["peak_phase"] == "whole"
