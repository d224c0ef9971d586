"""A script of one's own on a card that is not there, by the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests import command_line

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = "--layers,1,--width,64,--heads,4,--context,64"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the untouched script, and the checkpoint of an earlier training."""
    shutil.copy(EXAMPLES / "train.py", tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"of weeks")
    return tmp_path


def swept(folder: Path, argv: str, *words: str) -> tuple[int, str, pd.DataFrame]:
    """The exit code, what was printed, and the points."""
    typed = ["workload=command", f"workload.argv={argv}", "devices=[sim:rtx-4090]", "name=own", *words]
    done = command_line.run(typed, folder)
    return done.returncode, done.stdout + done.stderr, pd.read_parquet(folder / "outputs" / "own" / "points.parquet")


def test_an_untouched_script_is_calculated_by_one_command(folder: Path) -> None:
    code, printed, points = swept(folder, f'[timeout,99,python,train.py,--batch,"{{batch}}",{SMALL}]', "batch=2,4096")
    fits, too_large = (points[points["batch"] == batch].iloc[0] for batch in (2, 4096))
    assert (code, fits["status"], too_large["status"]) == (0, "ok", "oom"), printed
    assert (fits["kind"], fits["steps"], json.loads(fits["metrics"])["ended_after_steps"]) == ("calculated", 2, 2)
    assert fits["host_tensor_peak_bytes"] > 0
    assert json.loads(fits["notes"]) == [
        "ended after 2 steps of its optimizer (workload.steps); what comes later is not in the peak",
        "tensors have no data here, and were not written to checkpoint.pt",
    ]
    assert (folder / "checkpoint.pt").read_bytes() == b"of weeks"
    assert "largest that fits:   batch=2" in printed
    (output,) = (folder / "outputs" / "own" / "points").glob(f"*/{fits['point_id']}.*/output.log")
    *_, last = output.read_text().splitlines()
    assert last == f"step 1: {fits['peak_allocated_bytes'] / 2**20:.0f} MiB", "its own print is the row's"


def test_what_is_known_to_be_unavailable_costs_no_process(folder: Path) -> None:
    (folder / "torchrun").touch(0o755)
    programs = {
        '[bash,-c,"python train.py"]': "workload.argv runs bash, and a calculated device follows a Python program",
        f"[{folder}/torchrun,train.py]": "torchrun starts are processes of their own",
        "[python,-m,torch.distributed.run,train.py]": "the ranks that -m torch.distributed.run starts",
    }
    code, printed, points = swept(folder, ",".join(programs))
    assert (code, set(points["status"])) == (2, {"unavailable"}), printed
    for message, why in zip(points.sort_values("order")["error_message"], programs.values(), strict=True):
        assert why in message
    assert points[["exit_code", "pid", "signal"]].isna().all(axis=None)


def test_a_data_set_that_is_not_there_is_the_scripts_own_error(folder: Path) -> None:
    code, printed, points = swept(folder, f"[python,train.py,{SMALL},--data,data/train.bin]")
    row = points.iloc[0]
    assert (code, row["status"], row["exit_code"]) == (3, "error", 1), printed
    assert row["error_type"] == "FileNotFoundError"
    assert "No such file or directory: 'data/train.bin'" in row["error_message"]
