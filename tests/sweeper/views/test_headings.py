"""Two things that differ never have the same heading, and none is a bare id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.tables import loading
from sweeper.tables.run_tables import Tables
from sweeper.views import comparison_report, decision_sheet
from tests import command_line
from tests.sweeper.conftest import MIB, WrittenRun

Written = Callable[..., WrittenRun]


@pytest.fixture
def two_sweeps(written: Written) -> Path:
    """Batch 1 and 2, once with checkpointing and once without it: two sweeps into one run, and only batch was swept."""
    run = written({"batch": [1, 2]})
    run.device("cpu")
    for checkpointing in (False, True):
        run.extend({"batch": [1, 2]})
        for batch in (1, 2):
            workload = {"name": "train", "checkpointing": checkpointing}
            run.passes(run.ask(batch=batch, workload=workload), peak=(300 if checkpointing else 400) * MIB + batch)
    Tables(run.folder).write()
    return run.folder


def test_groups_of_a_frontier_that_differ_in_a_key_that_was_not_swept_name_it(two_sweeps: Path) -> None:
    sheet = decision_sheet.decision_sheet(two_sweeps, loading.read(two_sweeps))
    groups = [line for line in sheet["observed"]["frontier_text"].splitlines() if line.startswith("cpu")]
    assert len(groups) == len(set(groups)) == 2
    assert [group.split("workload.checkpointing=")[1] for group in groups] == ["false", "true"]
    loads = [load["at"] for load in sheet["observed"]["loads"]]
    assert loads == [{"workload.checkpointing": checkpointing, "batch": 2} for checkpointing in (False, True)]


def test_compared_points_that_differ_in_a_key_that_was_not_swept_name_it(two_sweeps: Path) -> None:
    text = comparison_report.as_text(comparison_report.run_comparison("two", loading.read(two_sweeps)))
    for batch in (1, 2):
        for checkpointing in ("false", "true"):
            assert f"\nbatch={batch} workload.checkpointing={checkpointing}\n" in text


def test_a_single_compared_point_is_named_by_its_values(written: Written) -> None:
    run = written({})
    run.device("cpu")
    point = run.ask(batch=3)
    run.passes(point)
    Tables(run.folder).write()
    text = comparison_report.as_text(comparison_report.run_comparison("one", loading.read(run.folder)))
    assert "\nmodel=mlp workload=forward dtype=float32 batch=3 context=64\n" in text
    assert point.id not in text


def test_an_estimate_names_its_only_point_and_says_nothing_of_measuring(tmp_path: Path) -> None:
    words = ["estimate", "model=tiny-llama", "batch=3"]
    done = command_line.run([*words, "context=64"], tmp_path)
    assert "measured" not in done.stdout + done.stderr
    assert "     1  model=tiny-llama workload=forward dtype=float32 batch=3 context=64\n" in done.stdout
    assert "estimate: model=tiny-llama workload=forward dtype=float32 batch=3 context=64 (1 point)" in done.stdout
    assert "weights    27,362,304 bytes = 27.36 MB = 26.09 MiB" in done.stdout
    found: dict[str, Any] = json.loads(command_line.run([*words, "--json"], tmp_path).stdout)
    assert len(found["points"]) == 1


def test_the_heading_of_an_adapter_has_its_rank_and_its_targets_also_where_they_are_defaults(written: Written) -> None:
    run = written({"batch": [1, 2]})
    run.device("cpu")
    for batch in (1, 2):
        workload = {"name": "train", "method": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}
        run.passes(run.ask(batch=batch, workload=workload), peak=300 * MIB + batch)
    Tables(run.folder).write()
    sheet = decision_sheet.decision_sheet(run.folder, loading.read(run.folder))
    heading = sheet["observed"]["frontier_text"].splitlines()[0]
    assert '  workload.rank=8  workload.targets=["q_proj","v_proj"]' in heading
