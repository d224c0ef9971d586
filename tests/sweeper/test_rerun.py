"""The command that runs a row again gives the same point."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from sweeper.plan_lines import PlannedLine, RunLine
from sweeper.rerun import commands, rerun, written
from tests.sweeper.planning.test_planner import plan

COMMANDS = [
    ["batch=3", "context=128"],
    ["model=gpt2", "workload=train", "workload.method=lora", "workload.rank=4", "budget=24GiB", "timeout=5m"],
    ["model=mlp", "model.width=128", "seed=7", "start=warm", "allocator=repeatable", "tensors=false"],
    ["model=tiny-llama", "model.config.num_hidden_layers=3", "workload=generate", "workload.new_tokens=5"],
    ["workload=train", "workload.targets=[q_proj,v_proj]", "workload.method=lora", "workload.dropout=0.1"],
    ["workload=command", "workload.argv=[echo,--size,'{batch}','it is, 1e3']", "batch=2"],
    ["workload=command", "workload.argv=[echo,'1',\"it's\"]", "env.MODE=1", "env.TEXT='a,b'"],
    ["experiment=small_training", "batch=4", "model=tiny-llama", "context=64"],
    ["budget=card:rtx-4090", "dtype=bfloat16", "attention=sdpa"],
    ["workload=train", "workload.accumulate=${batch}", "batch=4"],
]


@pytest.mark.parametrize("typed", COMMANDS, ids=" ".join)
def test_a_row_runs_again_as_the_same_point(typed: list[str]) -> None:
    planned = plan(*typed)
    (point, *_) = planned.points
    settings = planned.settler.settings[point.id]
    row = {
        "config": json.dumps(point.values),
        "settings": json.dumps(settings),
        "device": "cpu",
    }
    program, *words = shlex.split(rerun(row, typed))
    assert program == "sweeper"
    again = plan(*words, devices=None)
    assert [each.id for each in again.points] == [point.id]


@pytest.mark.parametrize(
    "value",
    [
        "a b",
        "it's",
        "1",
        "1e3",
        "null",
        "x,y",
        "a\\'b",
        "end\\",
        "{batch}",
        "a=b",
        "",
        "[x",
        "~x",
        "é",
        "$x",
        "a'\\",
        "a:b",
    ],
)
def test_a_text_is_written_so_that_it_stays_a_text(value: str) -> None:
    read: Any = OverridesParser.create().parse_overrides([f"k={written(value)}"])[0].value()
    assert (read.text if isinstance(read, QuotedString) else read) == value


def test_folders_of_options_and_the_interpreter_are_kept() -> None:
    row = {"config": json.dumps({"model": {"name": "mine"}, "batch": 1}), "settings": "{}", "device": "sim:cpu"}
    typed = ["-cd", "options", "python=/opt/python", "model=mine", "name=first", "--config-dir=more"]
    again = shlex.split(rerun(row, typed))
    kept = ["-cd", "options", "python=/opt/python", "--config-dir=more"]
    assert again == ["sweeper", *kept, "devices=[sim:cpu]", "model=mine", "batch=1"]


def test_a_point_is_run_again_as_the_sweep_that_planned_it_first_typed_it() -> None:
    def run(*command: str) -> RunLine:
        return RunLine(version=None, command=command, design="grid", dimensions=(), keys={}, started_at=None)

    point = PlannedLine(id="a", values={})
    assert commands([run("-cd", "one"), point, run("-cd", "two"), point]) == {"a": ("-cd", "one")}
