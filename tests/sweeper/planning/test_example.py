from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from runners.outcome import Status
from sweeper.planning.command_line import read
from sweeper.planning.example import with_example
from tests import command_line

SWEEP = ["batch=1,2,4", "context=2048,4096"]


def test_a_sweep_that_names_nothing_to_measure_is_the_example_and_a_line_shows_what_it_sets() -> None:
    line, remark = with_example(read([*SWEEP, "start=cold"]))
    assert line.overrides == (*SWEEP, "start=cold", "experiment=example")
    assert line.arguments == (*SWEEP, "start=cold"), "what the plan records can be typed again"
    assert remark is not None
    assert "budget=256MiB" in remark
    assert "model.config.num_hidden_layers=2" in remark
    assert "start=" not in remark, "it is typed"
    assert "experiment=null" in remark


@pytest.mark.parametrize(
    "named",
    ["model=gpt2", "model.config.num_hidden_layers=4", "workload=train", "workload.logits=last", "inputs=text",
     "devices=cpu", "experiment=null", "experiment=small_training", "env.OMP_NUM_THREADS=1"],
)  # fmt: skip
def test_a_sweep_that_names_what_to_measure_has_nothing_of_the_example(named: str) -> None:
    line = read([*SWEEP, named])
    assert with_example(line) == (line, None)


def test_a_folder_of_the_users_own_options_leaves_the_example_out(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    line = read([*SWEEP, "-cd", str(tmp_path)])
    assert with_example(line) == (line, None)


def test_the_first_sweep_finds_an_edge_and_its_rows_have_every_setting(tmp_path: Path) -> None:
    """Three of its points need more tensors than the budget has bytes, on any machine; the smallest fits on any."""
    done = command_line.run([*SWEEP, "repeats=1", "warmup=0", "name=first"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("experiment=example") == 1
    assert "budget 256.00 MiB of data, not counting the imports" in done.stdout
    assert "smallest that fails: batch=2 context=4096  out of memory" in done.stdout
    points = pd.read_parquet(tmp_path / "outputs/first/points.parquet").set_index(["batch", "context"])
    for at in ((2, 4096), (4, 2048), (4, 4096)):
        assert points.loc[at, "status"] == Status.OOM
        assert points.loc[at, "needs_at_least_bytes"] > points.loc[at, "budget_bytes"] == 256 * 2**20
    assert points.loc[(1, 2048), "status"] == Status.OK
    assert set(points["start"]) == {"warm"}
    assert '"model.config.num_hidden_layers": 2' in points["settings"].iloc[0]
