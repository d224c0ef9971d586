"""Cases of cases.md: spellings of a command line, and mistakes that are refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cases.conftest import Ran, Sweep, run, workload


def refused(ran: Ran, *named: str) -> bool:
    """Whether the command printed one line that names the mistake, and wrote nothing."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("sweeper: ")
    assert ran.err.count("\n") == 1
    assert all(name in ran.err for name in named), ran.err
    assert not ran.folder.parent.exists()
    return True


def test_hydras_own_flag_changes_no_point(sweep: Sweep) -> None:
    """Case 11 (hydra#126, hydra#856, hydra#743): the second command recalls each point of the first."""
    words = ("batch=1,2,4", "context=64,128", "model=mlp")
    plain = sweep(*words)
    assert (plain.code, len(plain.points)) == (0, 6)
    flagged = sweep("-m", *words)
    assert (flagged.code, len(flagged.points)) == (0, 6)
    assert flagged.out.count("(measured before)") == 6
    assert list(flagged.points["point_id"]) == list(plain.points["point_id"])


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "CUDA:0", "cuda:-1", ""])
def test_a_name_that_is_no_device_is_refused_by_name(sweep: Sweep, device: str) -> None:
    """Case 31 (what torch makes of device names)."""
    assert refused(sweep(f"devices=[{device}]", "model=mlp"), f"devices={device or '[]'}")


@pytest.mark.parametrize("word", ["batch=0", "batch=-1", "context=0", "repeats=0", "warmup=-1", "timeout=0"])
def test_a_value_that_is_no_size_is_refused(sweep: Sweep, word: str) -> None:
    """Case 33 (accelerate#334, langchain#36673): an MLP would accept a batch of 0."""
    assert refused(sweep(word, "model=mlp"), word)


def test_no_warmup_is_legal(sweep: Sweep) -> None:
    """Case 33."""
    assert sweep("estimate", "warmup=0", "model=mlp").code == 0


@pytest.fixture(scope="module")
def along_axes(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    words = ["design=axes", "batch=1,2", "context=64,128", *workload("threshold", limt=4)]
    return run(tmp_path_factory.mktemp("along_axes"), words)


def test_one_dimension_at_a_time_plans_each_point_once(along_axes: Ran) -> None:
    """Case 35 (tlaps-bench#60)."""
    rows = along_axes.points
    assert list(zip(rows["batch"], rows["context"], strict=True)) == [(1, 64), (2, 64), (1, 128)]
    assert rows["point_id"].nunique() == 3


@pytest.mark.parametrize(("word", "key"), [("btach=1,2", "btach"), ("+extra.foo=1", "extra")])
def test_an_unknown_key_is_refused_by_name(sweep: Sweep, word: str, key: str) -> None:
    """Case 36 (hydra#776, hydra#1457, hydra#181)."""
    assert refused(sweep(word, *workload("threshold")), key)


def test_a_parameter_that_a_function_accepts_as_a_keyword_is_recorded(along_axes: Ran) -> None:
    """Case 36: with `**_` nothing shows that `limt` is a slip, so the row has it."""
    for config in along_axes.points["config"]:
        assert json.loads(config)["workload"]["params"] == {"limt": 4}


def test_a_parameter_that_a_function_does_not_take_is_refused(sweep: Sweep, tmp_path: Path) -> None:
    """Case 36: without `**_` the slip is known."""
    (tmp_path / "mywork.py").write_text("def run(limit=1):\n    pass\n")
    ran = sweep("workload=custom", "workload.target=mywork:run", "workload.params.limt=4")
    assert refused(ran, "workload.params.limt", "limit")


@pytest.mark.parametrize("dtype", ["flaot16", "int8", "float8_e4m3fn"])
def test_a_dtype_that_no_model_computes_in_is_refused(sweep: Sweep, dtype: str) -> None:
    """Case 60 (transformers#27769)."""
    assert refused(sweep(f"dtype={dtype}", "model=mlp"), f"dtype={dtype}")


def test_a_function_is_found_in_the_current_folder_and_on_pythonpath(
    sweep: Sweep, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Case 46 (Lightning#2691, hydra#922, hydra#2844)."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for folder, module in ((tmp_path, "here"), (elsewhere, "there")):
        (folder / f"{module}.py").write_text("def run(batch):\n    return {'doubled': 2 * batch}\n")
    ran = sweep("workload=custom", "workload.target=here:run,there:run", PYTHONPATH=str(elsewhere))
    assert list(ran.points["status"]) == ["ok", "ok"]
    assert [json.loads(metrics) for metrics in ran.points["metrics"]] == [{"doubled": 2}] * 2


def test_a_variable_is_set_in_the_measured_process_alone_and_is_a_column(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\ndef run():\n    return {'is': os.environ.get('MINE')}\n")
    ran = sweep("workload=custom", "workload.target=mine:run", "env.MINE=one,null,'',007", MINE="of the shell")
    assert [json.loads(metrics)["is"] for metrics in ran.points["metrics"]] == ["one", None, "", "007"]
    assert [None if pd.isna(value) else value for value in ran.points["env.MINE"]] == ["one", None, "", "007"]


@pytest.mark.parametrize(
    ("target", "text", "cause"),
    [
        ("mywork:run", "import not_there\n", "not_there"),
        ("mywork:nope", "def run():\n    pass\n", "nope"),
        ("nomodule:run", "", "nomodule"),
    ],
)
def test_a_function_that_is_not_found_is_refused_with_the_root_cause(
    sweep: Sweep, tmp_path: Path, target: str, text: str, cause: str
) -> None:
    """Case 47 (hydra#799, hydra#2844)."""
    (tmp_path / "mywork.py").write_text(text)
    assert refused(sweep("workload=custom", f"workload.target={target}"), cause)


def test_where_torch_cannot_be_imported_the_rows_say_why(sweep: Sweep, tmp_path: Path) -> None:
    """Case 49 (pytorch#16558): the sweep itself needs no torch and runs to its end."""
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch_cpu.so: the disk ate it')\n")
    ran = sweep("batch=1,2", "model=mlp", "start=cold", PYTHONPATH=str(broken.parent))
    assert ran.code == 2
    assert "Traceback" not in ran.out + ran.err
    assert list(ran.points["status"]) == ["unavailable", "unavailable"]
    assert ran.points["error_message"].str.contains("the disk ate it").all()


def test_the_exit_code_is_3_where_some_or_all_points_are_undecided(sweep: Sweep, every_end: Ran) -> None:
    """Case 66 (asv#296, tool-eval-bench#152, hydra#2284), as the README's table has it."""
    undecided = sweep("workload=command", "workload.argv=[python,-c,'raise SystemExit(1)']")
    assert (undecided.code, list(undecided.points["status"])) == (3, ["error"])
    assert every_end.code == 3


def test_an_outputs_folder_that_cannot_be_made_is_refused(sweep: Sweep, tmp_path: Path) -> None:
    """Case 66: before anything is measured, as root too."""
    (tmp_path / "file").touch()
    assert refused(sweep(*workload("grows"), "outputs=file/below"), "outputs=file/below")


def test_the_counts_of_the_summary_add_up(every_end: Ran) -> None:
    """Case 66."""
    (line,) = [line for line in every_end.out.splitlines() if " points: " in line]
    total, counts = line.partition(";")[0].split(" points: ")
    shown = {status: int(count) for count, status in (each.split() for each in counts.split(", "))}
    assert sum(shown.values()) == int(total) == len(every_end.points)
    assert shown == every_end.points["status"].value_counts().to_dict()
