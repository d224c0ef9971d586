"""Runs the sweeps of the table of architectures in docs/architectures.md and writes the table.

python docs/write_architectures.py
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("architectures.md")
BEGIN, END = "<!-- architectures -->", "<!-- end of architectures -->"
HEAD = ("model", "dimension", "reaches the model as", "forward", "train", "generate")
OPERATIONS = HEAD[3:]
WORDS = ("batch=2", "repeats=1", "start=warm", "devices=cpu", "parallel=true", "seed=0")


@dataclass(frozen=True)
class Group:
    """Models with the same dimensions, each with two values; a dimension that does not vary takes the first."""

    models: tuple[str, ...]
    dimensions: dict[str, tuple[int, int]]
    generates: bool = False


CONTEXT = {"context": (16, 64)}
GROUPS = {
    "decoders": Group(("gpt2", "opt", "gpt-neox", "bloom", "gemma2", "phi3"), CONTEXT, generates=True),
    "mixtral": Group(("mixtral",), CONTEXT | {"model.config.num_local_experts": (4, 8)}, generates=True),
    "experts": Group(("qwen2-moe", "olmoe", "jamba"), CONTEXT | {"model.config.num_experts": (4, 8)}, generates=True),
    "state-space": Group(("mamba", "mamba2", "falcon-mamba"), CONTEXT, generates=True),
    "encoders": Group(("bert", "roberta", "distilbert", "modernbert", "deberta"), CONTEXT),
    "encoder-decoders": Group(("t5", "bart"), CONTEXT),
    "whisper": Group(("whisper",), CONTEXT | {"model.config.max_source_positions": (64, 256)}),
    "speech": Group(("speech-to-text",), CONTEXT | {"inputs.frames": (64, 256)}),
    "waves": Group(("wav2vec2",), {"inputs.frames": (4000, 16000)}),
    "spectrograms": Group(("ast",), {"model.config.max_length": (64, 256)}),
    "images": Group(
        ("vit", "deit", "dinov2", "swin", "convnext", "resnet"), {"inputs.resolution": (32, 64), "batch": (2, 4)}
    ),
    "films": Group(("videomae",), {"model.config.num_frames": (4, 8), "batch": (2, 4)}),
    "pairs": Group(("clip",), CONTEXT | {"inputs.resolution": (32, 64)}),
    "text-with-images": Group(("llava", "paligemma"), CONTEXT | {"inputs.images": (1, 2)}, generates=True),
    "text-with-images-of-any-size": Group(
        ("qwen2-vl", "idefics3"),
        CONTEXT | {"inputs.images": (1, 2), "inputs.resolution": (32, 64)},
        generates=True,
    ),
}


@dataclass(frozen=True)
class Measured:
    """Results of one workload at the two values of a dimension."""

    statuses: tuple[str, str]
    peaks: tuple[int, int]  # peak bytes of live tensors; 0 for a point without a peak
    steps: tuple[int, int]
    shapes: tuple[dict[str, list[int]], dict[str, list[int]]]  # of the model's inputs in the first pass

    @property
    def cell(self) -> str:
        if self.statuses != ("ok", "ok"):
            return ", ".join(self.statuses)
        return "ok, {} → {} KiB".format(*(f"{peak / 1024:,.0f}" for peak in self.peaks))


@dataclass(frozen=True)
class Row:
    model: str
    key: str
    values: tuple[int, int]
    by_operation: dict[str, Measured]

    @property
    def cells(self) -> tuple[str, ...]:
        shapes = [self._shape(which) for which in (0, 1)]
        names = list(shapes[0])
        changed = [name for name in names if shapes[0][name] != shapes[1][name]]
        reached = "; ".join(f"{name} {shapes[0][name]} → {shapes[1][name]}" for name in changed)
        same = "; ".join(f"{name} {shapes[0][name]}" for name in names)
        operations = (self.by_operation[name].cell if name in self.by_operation else "" for name in OPERATIONS)
        return (
            f"`tiny-{self.model}`",
            f"`{self.key}` {self.values[0]}, {self.values[1]}",
            reached or f"the same: {same}",
            *operations,
        )

    def _shape(self, which: int) -> dict[str, str]:
        return {name: "x".join(map(str, size)) for name, size in self.by_operation["forward"].shapes[which].items()}


def measured(folder: Path, names: tuple[str, ...] = tuple(GROUPS)) -> Iterator[Row]:
    """Run the sweeps in `folder` and yield a row for each model and dimension."""
    for name in names:
        group = GROUPS[name]
        operations = OPERATIONS if group.generates else OPERATIONS[:2]
        tables = {operation: _sweep(folder, f"{name}-{operation}", group, operation) for operation in operations}
        for model, (key, values) in itertools.product(group.models, group.dimensions.items()):
            pairs = {operation: _pair(group, model, key, *tables[operation]) for operation in operations}
            yield Row(model, key, values, pairs)


def _sweep(folder: Path, name: str, group: Group, operation: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    swept = [f"{key}={first},{second}" for key, (first, second) in group.dimensions.items()]
    models = "model=" + ",".join(f"tiny-{model}" for model in group.models)
    fixed = [word for word in WORDS if word.partition("=")[0] not in group.dimensions]
    few = ("workload.new_tokens=4",) if operation == "generate" else ()
    words = (models, f"workload={operation}", *swept, *fixed, *few, f"name={name}", f"outputs={folder}")
    command = [sys.executable, "-m", "sweeper", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: an undecided point; the table shows its status
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    run = folder / name
    return pd.read_parquet(run / "points.parquet"), pd.read_parquet(run / "phases.parquet")


def _pair(group: Group, model: str, key: str, points: pd.DataFrame, phases: pd.DataFrame) -> Measured:
    found = []
    for which in (0, 1):
        rows = points[points["model"] == f"tiny-{model}"]
        for dimension, values in group.dimensions.items():
            rows = rows[rows[dimension] == values[which if dimension == key else 0]]
        (row,) = rows.to_dict("records")
        of_row = phases[(phases["point_id"] == row["point_id"]) & phases["shapes"].notna()]
        shapes: dict[str, list[int]] = json.loads(of_row["shapes"].iloc[0]) if len(of_row) else {}
        found.append((row["status"], _number(row["peak_tensor_bytes"]), _number(row["steps"]), shapes))
    statuses, peaks, steps, shapes_of_both = zip(*found, strict=True)
    return Measured(statuses, peaks, steps, shapes_of_both)


def _number(value: Any) -> int:
    return 0 if pd.isna(value) else int(value)


def table(rows: list[Row]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(row.cells) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written = table(list(measured(Path(folder))))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{written}\n{END}{after}")
