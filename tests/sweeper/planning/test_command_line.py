"""The parser: which command a line is, its flags and its words. Nothing is composed or run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.errors import Mistake
from sweeper.planning.command_line import names_run, python_of, read, run_of


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("", "sweep"),
        ("batch=1", "sweep"),
        ("+model.config.x=1 batch=1", "sweep"),
        ("~model", "sweep"),
        ("-m batch=1", "sweep"),
        ("sweep batch=1", "sweep"),
        ("estimate", "estimate"),
        ("frontier outputs/a=b", "frontier"),
        ("-m estimate batch=1", "estimate"),
        ("--json estimate batch=1", "estimate"),
        ("batch=1 estimate -m", "estimate"),
        ("--cfg job estimate batch=1", "estimate"),
        ("--info defaults estimate batch=1", "estimate"),
        ("--at batch=1 effects outputs/a", "effects"),
    ],
)
def test_a_first_word_that_is_no_override_is_the_command(line: str, command: str) -> None:
    assert read(line.split()).command == command


@pytest.mark.parametrize("line", ["{} {run}", "{} -m {run} -cd {folder}", "--config-dir={folder} {} {run} --multirun"])
@pytest.mark.parametrize("command", ["frontier", "effects", "environment", "estimate"])
def test_every_command_takes_the_flags_of_a_sweep_in_any_place(tmp_path: Path, command: str, line: str) -> None:
    run = tmp_path / "model"
    run.mkdir()
    found = read(line.format(command, folder=tmp_path, run=run).split())
    assert (found.command, found.words) == (command, (str(run),))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-cd", "nosuch"], "--config-dir nosuch: no such folder"),
        (["-cd", "file"], "--config-dir file: is a file; name its folder"),
        (["--config-dir="], "--config-dir needs a folder, as in -cd options"),
        (["-cd", "a/model"], "--config-dir a/model: has none of the folders card, design, .*; write -cd a$"),
        (["-cd", "a", "-cd", "b"], "-cd is given twice; add the other with 'hydra.searchpath=.FOLDER.'"),
    ],
)
def test_a_folder_of_options_is_one_and_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name / "model").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(Mistake, match=f"^{message}"):
        read([*flags, "batch=1"])


@pytest.mark.parametrize(
    "line",
    [
        "batch=1 hydra.searchpath=[] --cfg job context=2 -cd options lr=-1e-3",
        "--cfg job -cd options batch=1 context=2 hydra.searchpath=[] lr=-1e-3",
        "-cd=options batch=1 context=2 --cfg=job lr=-1e-3 hydra.searchpath=[]",
    ],
)
def test_flags_and_overrides_are_distinguished_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options" / "model").mkdir(parents=True)
    found = read(line.split())
    assert found.overrides == ("batch=1", "context=2", "lr=-1e-3")
    assert found.of_hydra == ("hydra.searchpath=[]",)
    assert (found.flags.cfg, found.flags.config_dir) == ("job", "options")
    assert found.arguments == tuple(line.split())


@pytest.mark.parametrize(
    ("line", "shows"),
    [("batch=1", False), ("batch=1 -i", True), ("estimate --version", True), ("environment --json", False)],
)
def test_a_flag_that_only_shows_something_is_known(line: str, shows: bool) -> None:
    assert read(line.split()).shows == shows


def test_the_flags_of_effects_are_values() -> None:
    flags = read(["effects", "outputs/a", "--at", "batch=16, context=8192", "--picture", "a.png"]).flags
    assert (flags.at, flags.picture, flags.json) == ({"batch": 16, "context": 8192}, "a.png", False)
    assert read(["effects", "outputs/a"]).flags.at is None


def test_a_run_may_stand_before_and_after_the_flags() -> None:
    assert run_of(read(["frontier", "--json", "outputs/a"])) == "outputs/a"
    assert run_of(read(["frontier", "outputs/a", "--json"])) == "outputs/a"


def test_estimate_takes_a_run_or_overrides_and_the_value_of_a_flag_is_neither(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert names_run(read(["estimate", "outputs/a"]))
    assert not names_run(read(["estimate", "-cd", str(tmp_path), "batch=1", "+model.config.x=1"]))


def test_environment_takes_one_key() -> None:
    assert python_of(read(["environment"])) is None
    assert python_of(read(["environment", "--json", "python=/usr/bin/python3"])) == "/usr/bin/python3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("estimte batch=1", "no such command: estimte (did you mean estimate?)"),
        ("batch=1 --confi x", "no such flag: --confi"),  # no abbreviations
        ("effects a --at batch=0", "--at batch=0: 'batch=0' is not batch or context and a number"),
        ("batch=1 --run", "--run is not supported: every command line is a sweep"),
        (
            "hydra.sweeper.x=1",
            "hydra.sweeper.x=1: sweeper does not use it; an experiment file lists values",
        ),
        ("hydra.job.env_set.X=1", "hydra.job.env_set.X=1: sweeper does not use it; env.NAME=VALUE sets a variable"),
        ("+hydra.job.env_set.X=1", "+hydra.job.env_set.X=1: sweeper does not use it; env.NAME=VALUE"),
        ("hydra.job.chdir=true", "hydra.job.chdir=true: sweeper does not use it; a workload runs in the folder"),
        ("hydra.run.dir=x", "hydra.run.dir=x: sweeper does not use it; outputs= and name= choose the folder"),
        ("hydra.sweep.dir=x", "hydra.sweep.dir=x: sweeper does not use it; outputs= and name= choose the folder"),
        ("hydra/launcher=basic", "hydra/launcher=basic: sweeper does not use it; sweeper plans and starts its own"),
        ("hydra.verbose=true", "hydra.verbose=true: sweeper does not use it; leave it out"),
        ("--package model", "--resolve and --package change how --cfg shows the configuration: add --cfg job"),
    ],
)
def test_a_line_that_cannot_be_read_is_a_mistake_of_one_line(line: str, message: str) -> None:
    with pytest.raises(Mistake) as mistake:
        read(line.split())
    assert str(mistake.value).startswith(message)
    assert "\n" not in str(mistake.value)
