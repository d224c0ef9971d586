"""`sweeper fit` on the command line, and its table."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests import command_line

CARD = {"name": "mine", "vendor": "nvidia", "architecture": "sm_89", "total_bytes": 2**31, "context_bytes": 2**29}
CONTEXTS = (4096, 32768)


def fit(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = command_line.run(["fit", *words, f"outputs={folder}"], folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a card of the user's own, of 1.5 GiB, and a run on it."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "mine" / "card").mkdir(parents=True)
    (folder / "mine" / "card" / "tiny.yaml").write_text(json.dumps(CARD))
    (folder / "first.txt").write_text(fit(folder, *words(folder)).stdout)
    return folder


def words(folder: Path) -> list[str]:
    own = ["--config-dir", str(folder / "mine")]
    return ["tiny-llama", "tiny", f"context={','.join(map(str, CONTEXTS))}", "name=run", *own]


@pytest.fixture(scope="module")
def found(home: Path) -> dict[str, Any]:
    """The table as JSON, from a second command that recalls every point."""
    table: dict[str, Any] = json.loads(fit(home, *words(home), "--json").stdout)
    return table


def cell(found: dict[str, Any], setting: str, context: int) -> dict[str, Any]:
    return next(each for each in found["cells"] if (each["setting"], each["context"]) == (setting, context))


def test_every_setting_has_a_cell_for_each_context(found: dict[str, Any]) -> None:
    assert found["settings"] == [
        "run (forward)", "run (generate)", "QLoRA + checkpointing", "LoRA + checkpointing", "LoRA",
        "full training + checkpointing", "full training",
    ]  # fmt: skip
    assert found["contexts"] == list(CONTEXTS)
    assert len(found["cells"]) == 14
    assert all(each["kind"] == "calculated" and each["peak_bytes"] > 0 for each in found["cells"])


def test_each_largest_batch_was_calculated_and_the_next_one_fails(home: Path, found: dict[str, Any]) -> None:
    points = pd.read_parquet(home / "run" / "points.parquet").set_index("point_id")
    for each in found["cells"]:
        rows = points.loc[each["point_ids"]].set_index("batch")
        assert rows["context"].unique().tolist() == [each["context"]]
        assert rows.loc[1, "unlimited_peak_bytes"] == each["peak_bytes"]
        if each["fits"]:
            assert rows.loc[each["largest_batch"], "status"] == "ok"
            assert rows.loc[each["largest_batch"], "peak_allocated_bytes"] == each["largest_peak_bytes"]
            assert each["failing_batch"] == each["largest_batch"] + 1
        else:
            assert each["failing_batch"] == 1
            assert each["largest_batch"] is None
        assert rows.loc[each["failing_batch"], "status"] == "oom"
        assert rows.loc[each["failing_batch"], "needs_at_least_bytes"] == each["needs_at_least_bytes"]


def test_an_ordinary_sweep_calculates_the_same_bytes(home: Path, found: dict[str, Any]) -> None:
    of = {workload: cell(found, name, 4096) for workload, name in (("train", "LoRA"), ("forward", "run (forward)"))}
    batches = sorted({1, *(each[key] for each in of.values() for key in ("largest_batch", "failing_batch"))})
    point = "{workload: train, workload.method: lora, batch: %d}, {workload: forward, batch: %d}"
    points = ", ".join(point % (batch, batch) for batch in batches)
    (home / "mine" / "experiment").mkdir()
    (home / "mine" / "experiment" / "both.yaml").write_text(f"# @package _global_\npoints: [{points}]\n")
    typed = ["experiment=both", "model=tiny-llama", "context=4096", "dtype=bfloat16", "devices=[sim:tiny]"]
    done = command_line.run([*typed, "--config-dir", str(home / "mine"), f"outputs={home}", "name=both"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.read_parquet(home / "both" / "points.parquet").set_index(["workload", "batch"])
    for workload, each in of.items():
        mine, largest, failing = rows.loc[workload], each["largest_batch"], each["failing_batch"]
        assert mine.loc[1, "peak_allocated_bytes"] == each["peak_bytes"]
        assert mine.loc[largest, "peak_allocated_bytes"] == each["largest_peak_bytes"]
        assert mine.loc[failing, "unlimited_peak_bytes"] == each["failing_peak_bytes"]
        assert mine.loc[[1, largest, failing], "status"].tolist() == ["ok", "ok", "oom"]


def test_the_same_name_recalls_every_point(home: Path, found: dict[str, Any]) -> None:
    attempts = pd.read_parquet(home / "run" / "attempts.parquet")
    assert not attempts.duplicated("point_id").any()
    assert fit(home, *words(home)).stdout == (home / "first.txt").read_text()


def test_the_frontier_of_the_run_has_the_same_edges(home: Path, found: dict[str, Any]) -> None:
    text = command_line.run(["frontier", str(home / "run")], home).stdout
    for setting in ("LoRA", "full training"):
        each = cell(found, setting, 4096)
        assert f"batch={each['largest_batch']} context=4096" in text


def test_what_does_not_fit_has_the_changes_that_make_it_fit(home: Path, found: dict[str, Any]) -> None:
    (training,) = [each for each in found["levers"] if each["setting"] == "full training"]
    assert (training["context"], training["fits"]) == (32768, True)
    assert training["peak_bytes"] == cell(found, "full training", 32768)["peak_bytes"]
    rows = pd.read_parquet(home / "run" / "points.parquet")
    changed = rows[(rows["status"] == "ok") & (rows["peak_allocated_bytes"] == training["changed_peak_bytes"])]
    assert len(changed) >= 1
    assert training["changes"] == {"workload.checkpointing": True}


def test_the_text_says_what_it_is_within_80_columns(home: Path) -> None:
    text = (home / "first.txt").read_text()
    table, _, commands = text.partition("\nrun folder: ")
    assert max(map(len, table.splitlines())) <= 80
    assert "Calculated, not measured." in table
    assert "mine: 1.50 GiB usable = 2.00 GiB - 512.00 MiB for the context and libraries" in table
    assert "tiny-llama, 6,840,576 parameters, bfloat16" in table
    measure = commands.rpartition("one row on a real card: sweeper ")[2].strip()
    words = [each for each in measure.split() if not each.startswith("devices=")]
    done = command_line.run(["estimate", *words], home)
    assert done.returncode == 0, done.stderr


def test_the_other_forms_have_the_same_cells(home: Path, found: dict[str, Any]) -> None:
    lines = list(csv.DictReader(fit(home, *words(home), "--csv").stdout.splitlines()))
    assert [(line["setting"], int(line["context"]), int(line["peak_bytes"])) for line in lines] == [
        (each["setting"], each["context"], each["peak_bytes"]) for each in found["cells"]
    ]
    markdown = fit(home, *words(home), "--markdown").stdout
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 7
    assert {line.count("|") for line in table} == {len(CONTEXTS) + 2}


def test_a_setting_that_the_model_cannot_take_is_a_row_with_the_reason(home: Path) -> None:
    done = fit(home, "mlp", "tiny", "context=65536", "workload=train", *words(home)[-2:], code=3)
    assert re.search(r"\nfull training  +[0-9.]+\n +x[0-9]+\n", done.stdout)
    assert re.search(r"\nLoRA \+ checkpointing  +-\n", done.stdout)
    assert "LoRA + checkpointing: ValueError: workload.checkpointing=true: mlp has no layers" in done.stdout


def test_a_program_of_ones_own_has_one_row_and_no_contexts(home: Path) -> None:
    (home / "mywork.py").write_text(
        "import torch\ndef run(*, batch, device):\n    torch.empty(batch, 2**28, device=device)\n"
    )
    target = "workload.target=mywork:run"
    done = fit(home, "tiny", "workload=custom", target, "--json", *words(home)[-2:])
    (each,) = json.loads(done.stdout)["cells"]
    assert (each["setting"], each["context"], each["peak_bytes"]) == ("mywork:run", None, 2**30)
    assert (each["largest_batch"], each["failing_batch"]) == (1, 2)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "fit: name a card, as in sweeper fit model=qwen2.5-7b card=rtx-4090"),
        ("tiny-llama", "fit: name a card"),
        ("rtx-4090", "fit: name a model"),
        ("qwen2.5-7b rtx-409", "neither a model nor a card (did you mean rtx-4090?)"),
        ("qwen7b rtx-4090", "neither a model nor a card (did you mean qwen2.5-7b?)"),
        ("tiny-llama card=rtx-409", "card=rtx-409: no such card (did you mean rtx-4090?)"),
        ("model=qwen card=rtx-4090", "model=qwen: no such model"),
        ("tiny-llama card=cpu", "card=cpu: fit takes a card with memory of its own"),
        ("tiny-llama gpu=rtx-4090", "write card=rtx-4090"),
        ("tiny-llama gpt2 rtx-4090", "model is given twice, tiny-llama and gpt2"),
        ("tiny-llama rtx-4090 devices=[cpu]", "devices=[cpu]: fit takes a card, as in card=rtx-4090"),
        ("tiny-llama rtx-4090 batch=4", "batch=4: fit finds the largest batch itself"),
        ("tiny-llama rtx-4090 design=grid", "design=grid: fit has a design of its own"),
        ("tiny-llama rtx-4090 workload.method=dora", "workload.method=dora: must be full or lora"),
        (
            "tiny-llama rtx-4090 workload=forward workload.method=lora",
            "is a key of training; leave workload=forward out",
        ),
        ("tiny-llama rtx-4090 dtype=float16,float32", "fit takes one dtype; only context and card take several"),
        ("tiny-llama rtx-4090 contxt=3", "no such key: contxt (did you mean context?)"),
        ("tiny-llama rtx-4090 context=0", "context=0: must be 1 or more"),
        ("tiny-llama rtx-4090 workload.rnk=3", "no such key: workload.rnk"),
        ("tiny-llama rtx-4090 --json --csv", "--json --csv: choose one"),
        ("tiny-llama rtx-4090 used_by_others=30GiB", "used_by_others=30GiB: must be less than the 23.09 GiB"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, typed: str, message: str) -> None:
    done = command_line.run(["fit", *typed.split()], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
