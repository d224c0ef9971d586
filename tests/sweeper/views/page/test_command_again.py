from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from sweeper.columns import DIMENSIONS
from sweeper.plan import Plan
from sweeper.views.page.command_again import command_again
from tests.sweeper.planning.test_planner import plan

TYPED = [
    ("devices=cpu", "batch=1,2", "context=64"),
    ("model=mlp", "model.width=32,64", "workload=train", "workload.checkpointing=true", "dtype=bfloat16", "batch=3"),
    ("workload=custom", "workload.target=wl:grows", r"workload.params.text='it\'s a,b'", "batch=1"),
    ("workload=custom", "workload.target=wl:grows", 'workload.params.text="5"', "workload.params.list=[1,two,null]"),
    ("workload=custom", "workload.target=wl:grows", "workload.params.path=/ckpt/fold_${batch}.pt", "batch=1,2"),
    ("workload=custom", "workload.target=wl:grows", r"workload.params.text='C:\dir\\'", "batch=1"),
    ("workload=custom", "workload.target=wl:grows", "workload.params.text='<script>alert(1)</script> $HOME'"),
    ("workload=command", 'workload.argv=[python,train.py,--bs,"{batch}"]', "batch=1,2"),
    ("budget=24GiB", "timeout=90s", "start=warm", "env.MALLOC_ARENA_MAX=1", "batch=1"),
    ("devices=[sim:rtx-4090]", "budget=card:rtx-3070", "batch=1", "workload=generate", "workload.new_tokens=4"),
]


def rows_of(found: Plan) -> list[dict[str, Any]]:
    """The columns that a table would have of each point."""
    return [
        {
            **{column.name: point.get(column.name) for column in DIMENSIONS},
            "device": found.devices[0].name,
            "settings": json.dumps(found.settler.settings[point.id]),
        }
        for point in found.points
    ]


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_the_command_of_a_row_plans_exactly_its_point(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wl.py").write_text("def grows(batch=1, **_): ...\n")
    monkeypatch.chdir(tmp_path)
    found = plan(*words, devices=None if "devices" in words[0] else "cpu")
    for point, row in zip(found.points, rows_of(found), strict=True):
        sweeper, *again = shlex.split(command_again(row, words))
        repeated = plan(*again, devices=None)
        assert sweeper == "sweeper"
        assert [each.id for each in repeated.points] == [point.id]
        assert [device.name for device in repeated.devices] == [row["device"]]


def test_the_command_keeps_the_folder_of_options_and_the_interpreter_of_the_sweep() -> None:
    row = {"device": "cpu", "model": "mine", "workload": "forward", "dtype": "float32", "batch": 1, "context": 64}
    typed = ("-cd", "my options", "model=mine", "python=/opt/py/bin/python", "name=x", "batch=1,2", "outputs=there")
    found = shlex.split(command_again(row, typed))
    assert found[:4] == ["sweeper", "-cd", "my options", "python=/opt/py/bin/python"]
    assert not {"name=x", "outputs=there"} & set(found)
