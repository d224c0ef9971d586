"""Programs of the zoo on two devices, measured on one and calculated for it, and how far the peaks are apart."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

PROGRAMS = Path(__file__).resolve().parents[1] / "benchmarks" / "programs"
# Targets, and the libraries that they need beside torch and numpy: of each kind one that trains for a few seconds.
TEN: Mapping[str, tuple[str, ...]] = {
    "vision.cifar_cnn:main": (),
    "vision.masked_autoencoder:run": ("einops",),
    "segmentation.unet:train_model": ("tqdm",),
    "diffusion.flow_matching_dit:run": (),
    "speech.lstm_forecast:run": (),
    "graphs.sparse_gcn:main": (),
    "recommenders.dlrm:main": (),
    "medical.vnet:run": (),
    "language.transformer_translation:main": (),
    "language.t5_summarization:main": ("transformers",),
}
LEFT_OUT = re.compile(r"workspaces of \w+( \w+)? are not in the peak")  # a note


def missing(target: str) -> list[str]:
    """The libraries that this interpreter lacks for a program. Nothing is imported."""
    return [library for library in TEN[target] if importlib.util.find_spec(library) is None]


def points(targets: Sequence[str], devices: Sequence[str], folder: Path, *words: str) -> dict[tuple[str, str], Any]:
    """The rows of one sweep, by device and target."""
    path = os.pathsep.join(filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sweeper", f"devices=[{','.join(devices)}]", "workload=custom"),
            *(f"workload.target={','.join(targets)}", "start=warm", "timeout=60", f"outputs={folder}", "name=zoo"),
            *words,
        ],
        cwd=PROGRAMS.parents[1],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    table = folder / "zoo" / "points.parquet"
    assert table.exists(), done.stdout + done.stderr
    rows = pd.read_parquet(table).to_dict("records")
    return {(row["device"], row["workload.target"]): row for row in rows}


def difference(measured: Mapping[Any, Any], calculated: Mapping[Any, Any], column: str) -> float:
    """How far the calculated peak is from the measured one, relative to that. It is 0 in the range that the row gives:
    by its metrics, where a library decides the bytes; below the peak, where a size is at most what it was taken as;
    and above it, where a note names what the peak leaves out."""
    real, found = int(measured[column]), int(calculated[column])
    metrics = json.loads(calculated["metrics"]) if isinstance(calculated.get("metrics"), str) else {}
    low = 0 if _listed(calculated, "assumed_bounds") else found - int(metrics.get("peak_may_be_lower_by_bytes") or 0)
    high = found + int(metrics.get("peak_may_be_higher_by_bytes") or 0)
    if any(LEFT_OUT.fullmatch(note) for note in _listed(calculated, "notes")):
        high = max(high, real)
    return max(low - real, real - high, 0) / real


def _listed(row: Mapping[Any, Any], column: str) -> Any:
    return json.loads(row[column]) if isinstance(row.get(column), str) else []
