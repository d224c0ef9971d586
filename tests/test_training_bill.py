"""The memory of training a decoder of 135 million parameters, compared with earlier measurements of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
MIB = 2**20
# workload, batch, context, set_to_none, changed key -> MiB: resident above the process baseline, and live tensors
BILL = {
    ("train", 1, 256, False, None): (2578, 2537.5),
    ("train", 8, 256, False, None): (5869, 5830.8),
    ("train", 4, 512, False, None): (5869, 5830.9),
    ("train", 8, 256, True, None): (5355, 5317.6),
    ("train", 8, 256, False, "checkpointing"): (3397, 3353.2),
    ("train", 8, 256, False, "bfloat16"): (3672, 3629.9),
    ("train", 8, 256, False, "lora"): (3563, 3523.6),
    ("train", 8, 256, False, "eager"): (6587, 6548.7),
    ("forward", 8, 256, None, None): (931, 901.6),
}
TRAINED = {"lora": 460_800}  # trained parameters; all other training points have 134,515,008
# With the defaults of glibc's malloc. Without forward b8x256: it was published as 955-962, and was 993-1065 here in
# three runs, because temporaries of the weights' initialisation may stay in the heap.
SYSTEM = {
    ("train", 1, 256, False, None): (2835, 2884),
    ("train", 8, 256, False, None): (6481, 6574),
    ("train", 4, 512, False, None): (6426, 6490),
}
SIZES = ("workload", "batch", "context", "workload.set_to_none")
VARIANTS = ("workload.checkpointing", "dtype", "workload.method", "attention")

pytestmark = pytest.mark.slow


def sweep(folder: Path, *words: str) -> Path:
    command = [sys.executable, "-m", "sweeper", *words, "parallel=true", "name=bill"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "outputs/bill"


def points_of(run: Path) -> dict[tuple[object, ...], pd.Series]:
    rows = pd.read_parquet(run / "points.parquet")
    return {(*known(row, SIZES), changed(row)): row for _, row in rows.iterrows()}


def changed(row: pd.Series) -> str | None:
    """The name of the key that a row of the bill changes."""
    checkpointing, dtype, method, attention = known(row, VARIANTS)
    if checkpointing:
        return "checkpointing"
    return next((str(word) for word in (dtype, method, attention) if word not in (None, "float32", "full")), None)


def known(row: pd.Series, keys: Sequence[str]) -> list[object]:
    return [None if pd.isna(row[key]) else row[key] for key in keys]


def over_baseline(row: pd.Series) -> float:
    return float(row["peak_resident_bytes"] - row["process_baseline_bytes"]) / MIB


def test_the_training_bill_repeats_the_earlier_measurements(tmp_path: Path) -> None:
    run = sweep(tmp_path, "experiment=training_bill")
    points = points_of(run)
    assert set(points) == set(BILL)
    for key, (resident, tensor) in BILL.items():
        assert over_baseline(points[key]) == pytest.approx(resident, rel=0.01), key
        assert points[key]["peak_tensor_bytes"] / MIB == pytest.approx(tensor, rel=0.001), key
        if key[0] == "train":
            assert points[key]["trainable_parameters"] == TRAINED.get(str(key[4]), 134_515_008), key
    assert points["train", 8, 256, False, "checkpointing"]["loss_check"] == "same"
    phases = pd.read_parquet(run / "phases.parquet")
    large = phases[phases["point_id"] == points["train", 8, 256, False, None]["point_id"]].set_index("phase")
    first, second = (large.loc[name, "peak_resident_bytes"] for name in ("cold_backward", "warm_backward"))
    assert 1.3 * 1024 < (second - first) / MIB < 1.7 * 1024


def test_the_bill_with_the_system_allocator_is_within_two_percent(tmp_path: Path) -> None:
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
