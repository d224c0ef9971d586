"""An answer that cannot be written, as on a full disk, is never a success of the command."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper import cli
from sweeper.tables.run_tables import Tables
from tests import command_line
from tests.sweeper.conftest import WrittenRun

COMMANDS = {
    "list": [],
    "show": ["outputs/bill"],
    "show --csv": ["outputs/bill"],
    "show --json": ["outputs/bill"],
    "show --markdown": ["outputs/bill"],
    "frontier": ["outputs/bill"],
    "effects": ["outputs/bill"],
    "estimate": ["outputs/bill"],
    "compare": ["outputs/bill", "outputs/other"],
    "compare --csv": ["outputs/bill", "outputs/other"],
    "report": ["outputs/bill"],
    "environment": [],
    "--version": [],
    "--help": [],
    "--cfg job": [],
    "fit --csv": ["gpt2", "h100-80gb", "context=64", "workload=forward"],
}


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A device on which every write fails, as on a full disk."""
    device = Path("/dev/full")
    if not device.is_char_device():
        device = tmp_path / "full"
        try:
            os.mknod(device, 0o20666, os.makedev(1, 7))
        except PermissionError:
            pytest.skip("/dev/full is no device, and only a superuser makes one")
    return device


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_that_cannot_be_written_is_one_line_and_exit_code_2(
    command: str,
    full: Path,
    written: Callable[..., WrittenRun],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = written({"batch": [1, 2]})
    for batch in (1, 2):
        run.passes(run.ask(batch=batch))
    Tables(run.folder).write()
    shutil.copytree(run.folder, run.folder.with_name("other"))
    monkeypatch.chdir(run.folder.parents[1])
    monkeypatch.setattr(sys, "argv", ["sweeper", *command.split(), *COMMANDS[command]])
    with full.open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        code = cli.main()
    lines = capsys.readouterr().err.splitlines()
    assert (code, lines[-1:]) == (2, ["sweeper: the output cannot be written: No space left on device"])
    assert command.startswith("fit") or len(lines) == 1


@pytest.mark.parametrize("command", ["report --output", "effects --picture"])
def test_a_pipe_or_a_device_is_never_replaced_by_a_file(
    command: str, written: Callable[..., WrittenRun], tmp_path: Path
) -> None:
    run = written({"batch": [1, 2]})
    place = tmp_path / "out.png"
    os.mkfifo(place)
    name, option = command.split()
    done = command_line.run([name, str(run.folder), option, str(place)], tmp_path)
    assert (done.returncode, done.stderr) == (2, f"sweeper: {option} {place}: is a pipe; name a file\n")
    assert place.is_fifo()
