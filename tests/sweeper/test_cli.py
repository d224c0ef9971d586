"""The output and the exit code of command lines. No test here measures anything.

Most run in this process, by `typed`. A real process is started for what only a process has: its standard streams, its
folder on the path, the modules it loads.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]

from runners.point import canonical
from sweeper import cli
from sweeper.cards import CONF
from sweeper.errors import Mistake
from sweeper.plan import dotted
from sweeper.planning.schema import Keys
from sweeper.views import help

ROOT = Path(__file__).parents[2]
NO_RUN = ["estimate", "devices=cpu"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Typed = Callable[..., Ended]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """A command line typed in an empty folder, run in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging, "raiseExceptions", True)  # restored afterwards: --info turns it off

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["sweeper", *arguments])
        return Ended(cli.main(), *capsys.readouterr())

    return run


def sweeper(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments],
        cwd=cwd,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["btach=1,2"], "sweeper: no such key: btach (did you mean batch?)"),
        (["devices=[CUDA:0]"], "sweeper: devices=CUDA:0: not a device; write devices=cuda:0\n"),
        (["batch=0"], "sweeper: batch=0: must be 1 or more"),
        (["estimat", "batch=1"], "sweeper: no such command: estimat (did you mean estimate?)"),
        (["nonsense"], "sweeper: no such command: nonsense; there are sweep, estimate, fit, effects, "),
        (
            ["--cfg", "job", "batch=1,2"],
            "sweeper: --cfg shows one configuration, and batch has several values: ",
        ),
        (["--cfg", "job", "btach=1"], "sweeper: no such key: btach (did you mean batch?)"),
        (["--cfg", "job", "-p", "nosuch"], "sweeper: --package nosuch: no such key"),
        (["--cfg", "hydra"], "sweeper: argument --cfg/-c: invalid choice: 'hydra'"),
        (["--cfg", "job", "grid.batch=[1]"], "sweeper: grid.batch: for experiment files; "),
        (["--cfg", "job", "workload.choices={}"], "sweeper: workload.choices defines workload=forward"),
        (["--cfg", "jbo"], "sweeper: argument --cfg/-c: invalid choice: 'jbo'"),
        (["--cfg"], "sweeper: argument --cfg/-c: expected one argument; usage: sweeper KEY=VALUE,..."),
        (["batch=1", "--jsn", "context=1"], "sweeper: no such flag: --jsn (did you mean --json?)\n"),
        (["--json", "batch=1", "--quiet"], "sweeper: --quiet --json: --quiet prints the end of a sweep alone, "),
        (["frontier", "--quiet"], "sweeper: no such flag: --quiet; usage: sweeper frontier [RUN] [--json]\n"),
        (["estimate", "--jso"], "sweeper: no such flag: --jso (did you mean --json?)\n"),
        (["frontier", "--xy", "x"], "sweeper: no such flag: --xy; usage: sweeper frontier [RUN] [--json]\n"),
        (
            ["frontier"],
            "sweeper: there is no run in outputs; name the folder of one, or measure one, as in sweeper batch=",
        ),
        (["effects", "a", "--json", "b"], "sweeper: effects takes one run, the folder of a sweep, got a b"),
        (["estimate", "a", "b"], "sweeper: estimate takes keys or one run, the folder of a sweep, got a b"),
        (["effects", "a", "--at", "width=4"], "sweeper: --at width=4: 'width=4' is not batch or context"),
        (["effects", "a", "--picture="], "sweeper: --picture needs a file"),
        (["effects", "a", "--picture"], "sweeper: argument --picture: expected one argument; usage: sweeper effects"),
        (["estimate", "parameters=7e9", "bits=16", "batch=1"], "sweeper: batch=1: "),
        (["estimate", "devices=[gpu]"], "sweeper: devices=gpu: "),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2_and_leaves_nothing(
    tmp_path: Path, typed: Typed, arguments: list[str], line: str
) -> None:
    ended = typed(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(line)
    assert ended.stderr.count("\n") == 1
    assert names_in(tmp_path) == []


def test_a_mistake_ends_the_process_in_the_same_way(tmp_path: Path) -> None:
    done = sweeper("btach=1,2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "sweeper: no such key: btach (did you mean batch?)\n"
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("batch=nan", "must be a whole number"),
        ("budget=1e999", "must be a size"),
        ("seed=99999999999999999999999", "at most 2^63-1"),
        ("objective=batch*nothing", "no point has nothing"),
        ("name=" + "x" * 300, "must be 200 letters or less"),
    ],
)
def test_a_number_or_a_name_out_of_range_is_refused_in_one_line(
    tmp_path: Path, typed: Typed, word: str, right: str
) -> None:
    ended = typed("devices=cpu", word)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert right in ended.stderr
    assert names_in(tmp_path) == []


def test_a_workload_that_cannot_be_imported_is_refused_before_anything_starts(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "mywork.py").write_text("import not_there\n")
    ended = typed("devices=cpu", "workload=custom", "workload.target=mywork:run", "batch=1,2")
    assert ended.returncode == 2
    assert "not_there" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert set(names_in(tmp_path)) <= {"mywork.py", "__pycache__"}


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_conf_in_the_folder_is_not_mistaken_for_sweepers_own(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("batch: 999\n")
    (tmp_path / "conf" / "__init__.py").touch()
    done = sweeper("--cfg", "job", "-p", "batch", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "1")
    assert len(sweeper(*NO_RUN, "batch=1,2", cwd=tmp_path).stdout) > 0
    assert names_in(tmp_path) == ["conf"]


def test_estimate_shows_the_plan_and_hydra_leaves_no_file(tmp_path: Path, typed: Typed) -> None:
    ended = typed(*NO_RUN, "batch=1,2,4", "context=2048,4096")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "6 points" in ended.stdout
    assert names_in(tmp_path) == []


def test_estimate_takes_numbers_without_a_configuration(typed: Typed) -> None:
    ended = typed("estimate", "parameters=7000000000", "bits=16", "reserve_gib=4")
    assert ended.returncode == 0
    assert "14,000,000,000 bytes" in ended.stdout


def test_flags_stand_anywhere_among_the_overrides(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "options" / "model").mkdir(parents=True)
    (tmp_path / "options" / "model" / "mine.yaml").write_text("name: mine\nlibrary: torch\nwidth: 8\n")
    ended = typed("estimate", "devices=cpu", "batch=1,2", "-cd", "options", "--json", "model=mine")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [point["values"]["batch"] for point in json.loads(ended.stdout)["points"]] == [1, 2]


def test_sweep_is_the_command_of_a_line_without_one(typed: Typed) -> None:
    assert typed("--cfg", "job", "batch=3", "-p", "batch") == typed("sweep", "batch=3", "--cfg", "job", "-p", "batch")


def test_commands_that_read_a_run_take_the_newest_and_name_it(tmp_path: Path, typed: Typed) -> None:
    for age, name in enumerate(("newest", "older", "not-a-run")):
        folder = tmp_path / "outputs" / name
        (folder / "points").mkdir(parents=True)
        if name != "not-a-run":
            (folder / "plan.jsonl").write_text("")
            os.utime(folder / "plan.jsonl", (1e9 - age, 1e9 - age))
    (tmp_path / "outputs" / "link").mkdir()
    (tmp_path / "outputs" / "link" / "plan.jsonl").symlink_to("/dev/null")
    for command in ("frontier", "effects"):
        alone, named = typed(command), typed(command, "outputs/newest")
        assert alone.returncode == named.returncode
        assert alone.stdout == named.stdout
        assert f"sweeper: {command}: outputs/newest, the newest run\n" in alone.stderr
    assert "did you mean outputs/older?" in typed("frontier", "oldr").stderr
    assert typed("frontier", "batch=1,2").stderr == (
        "sweeper: frontier batch=1,2: takes a run, the folder of a sweep; write sweeper design=frontier batch=1,2\n"
    )


# --- what is only shown -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", ["env.PYTORCH_ALLOC_CONF=x:1", "model=llama-3.1-8b,mlp outputs=/dev/null/below"])
def test_a_refusal_comes_without_the_assumptions_of_a_sweep_that_does_not_start(typed: Typed, refused: str) -> None:
    assumption = "for the context and libraries"
    assert assumption in typed("estimate", "devices=sim:rtx-4090", "model=mlp").stderr
    ended = typed("devices=sim:rtx-4090", *refused.split())
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert assumption not in ended.stderr


@pytest.mark.parametrize("arguments", [["--help", "batch=1,2"], ["sweep", "-h"], ["model=mlp", "--help"]])
def test_help_fits_a_terminal_and_names_each_command_key_and_option(typed: Typed, arguments: list[str]) -> None:
    ended = typed(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert lines == [line.rstrip() for line in lines]
    commands = [command for command in cli.COMMANDS if command != "sweep"]
    keys = [each.name for each in dataclasses.fields(Keys) if each.name not in ("grid", "points")]
    options = [
        path.stem for group in ("workload", "inputs", "design", "experiment") for path in (CONF / group).iterdir()
    ]
    for word in (*commands, *keys, *options, "sim:rtx-4090", "sim:all", "interval", "--json", "card:NAME"):
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w])", ended.stdout), word
    assert f"({len(list((CONF / 'model').iterdir()))})" in ended.stdout


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_each_command_has_a_help_within_80_columns(typed: Typed, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = typed(command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"sweeper {'' if command == 'sweep' else command}" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


@pytest.mark.parametrize("group", help.GROUPS)
def test_help_of_a_group_describes_each_of_its_options(typed: Typed, group: str) -> None:
    ended = typed("--help", group)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.removeprefix(help.CARDS).strip().splitlines()
    found = [line.split(None, 1) for line in lines if not line.startswith(" ")]
    key = "" if group == "card" else f"{group}="
    assert [name for name, _ in found] == sorted(f"{key}{path.stem}" for path in (CONF / group).iterdir())
    assert ended.stdout.startswith(help.CARDS) == (group == "card")
    assert max(map(len, ended.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("word", "group"), [("models", "model"), ("Cards", "card"), ("train", "workload")])
def test_help_of_a_plural_and_of_an_option_is_that_of_their_group(typed: Typed, word: str, group: str) -> None:
    assert typed("--help", word).stdout == typed("--help", group).stdout


def test_help_of_a_key_is_that_of_the_program(typed: Typed) -> None:
    assert typed("--help", "batch").stdout == typed("--help").stdout


def test_help_of_an_unknown_word_is_a_mistake_of_one_line(typed: Typed) -> None:
    ended = typed("--help", "xyzzy")
    groups = "the groups are model, card, workload, inputs, design, experiment"
    assert ended.stderr == f"sweeper: --help xyzzy: no group or option of this name; {groups}\n"
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "did you mean workload?" in typed("--help", "wrkload").stderr


def test_help_of_a_group_has_the_users_own_options(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "options" / "model").mkdir(parents=True)
    (tmp_path / "options" / "model" / "mine.yaml").write_text("# My model: as trained.\nname: mine\n")
    (tmp_path / "options" / "model" / "bare.yaml").write_text("name: bare\n")
    lines = typed("--help", "model", "-cd", "options").stdout.splitlines()
    assert "model=bare" in lines
    assert f"{'model=mine':<25}  My model" in lines


def test_every_key_that_help_shows_with_a_value_is_accepted(tmp_path: Path, typed: Typed) -> None:
    """Each `key=value` with a value that can be typed as it stands."""
    shown = re.findall(r"(?:^|  )([a-z_.]+=[a-z0-9|-]+)(?=\s|$)", help.HELP, re.M)
    words = [word.partition("|")[0] for word in shown]
    assert {"batch=1", "start=cold", "seed=0", "design=grid", "resume=same"} <= set(words)
    once = {word.partition("=")[0]: word for word in words}.values()
    assert typed("--cfg", "job", *once)[::2] == (0, "")


@pytest.mark.parametrize("workload", ["forward", "train", "generate"])
def test_every_key_that_cfg_shows_can_be_typed_back(tmp_path: Path, typed: Typed, workload: str) -> None:
    shown = typed("--cfg", "job", f"workload={workload}").stdout
    found = dict(dotted(yaml.safe_load(shown)))
    names = {key: value for key, value in found.items() if key.endswith(".name")}
    assert names == {
        "model.name": "tiny-llama", "workload.name": workload, "inputs.name": "synthetic", "design.name": "grid",
    }  # fmt: skip
    words = [f"{key}={canonical(value)}" for key, value in found.items() if key not in names and value != {}]
    assert len(words) > 40
    assert typed("--cfg", "job", f"workload={workload}", *words).stdout == shown


def test_cfg_refuses_the_file_that_a_sweep_would_refuse(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "options" / "experiment").mkdir(parents=True)
    file = tmp_path / "options" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nhydra:\n  run:\n    dir: elsewhere\n")
    words = ("experiment=mine", "-cd", "options")
    swept = typed(*words)
    assert (swept.returncode, swept.stdout) == (2, "")
    where = "sweeper: options/experiment/mine.yaml, line 4: hydra.run.dir"
    assert swept.stderr.startswith(f"{where}: sweeper does not use it")
    for flags in (("--cfg", "job"), ("--info", "defaults")):
        assert typed(*flags, *words) == swept


def test_cfg_shows_the_grid_of_an_experiment(typed: Typed) -> None:
    shown = yaml.safe_load(typed("--cfg", "job", "experiment=small_training").stdout)
    assert shown["grid"]
    assert "points" not in shown


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "effects",
            ["usage: sweeper effects [RUN]", "--json", "--at SIZE", "--picture FILE", "costs"],
        ),
        ("environment", ["usage: sweeper environment", "python=INTERPRETER", "--json"]),
        ("frontier", ["usage: sweeper frontier [RUN]", "--json", "the folder of a sweep"]),
    ],
)
def test_a_command_that_takes_no_keys_has_a_help_of_its_own(typed: Typed, command: str, words: list[str]) -> None:
    ended = typed(command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    for word in words:
        assert word in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--version"], "sweeper 0.1.0"),
        (["--cfg", "job", "batch=3"], "batch: 3"),
        (["-m", "--cfg", "job", "batch=3"], "batch: 3"),
        (["estimate", "--cfg", "job", "batch=3", "--json"], "batch: 3"),
        (["--cfg", "job", "devices=cpu,cuda:0", "-p", "devices"], "- cuda:0"),
        (["--cfg", "job", "-p", "workload", "workload=custom", "workload.params.x=3"], "x: 3"),
        (["--info", "searchpath", "batch=1,2"], str(ROOT / "conf")),
        (["--info", "defaults", "batch=1,2"], "workload/forward"),
        (["--info", "plugins"], "DesignSweeper"),
        (["--hydra-help", "batch=1,2"], "Hydra"),
        (["-sc", "install=bash"], "hydra_bash_completion"),
    ],
)
def test_flags_that_show_something_print_it(tmp_path: Path, typed: Typed, arguments: list[str], shown: str) -> None:
    ended = typed(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert shown in ended.stdout
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sweeper batch=1,2 conte", "context="),
        ("sweeper estimate batch=1,2 conte", "context="),
        ("python -m sweeper conte", "context="),
        ("sweeper -m batch=1,2 conte", "context="),
        ("sweeper model=smollm2-1", "model=smollm2-135m"),
        ("sweeper desig", "design="),
        ("sweeper est", "estimate"),
        ("sweeper devices=sim:rtx-40", "devices=sim:rtx-4090"),
        ("sweeper batch=1 devices=[cpu,sim:rtx-40", "devices=[cpu,sim:rtx-4090"),
        ("sweeper budget=card:h1", "budget=card:h100-80gb"),
    ],
)
def test_a_shell_completes_keys_and_options(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, line: str, offered: str
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert offered in typed("-sc", "query=bash").stdout.split()


@pytest.mark.parametrize("breaks", ["", ":"])
def test_bash_completes_a_word_with_a_colon_whether_it_divides_words_there_or_not(
    tmp_path: Path, typed: Typed, breaks: str
) -> None:
    """Bash replaces what follows the last colon, where it divides words at colons."""
    (tmp_path / "sweeper").write_text("#!/bin/sh\necho devices=sim:rtx-3090 devices=sim:rtx-4090\n")
    (tmp_path / "sweeper").chmod(0o755)
    code = typed("-sc", "install=bash").stdout
    asked = f"""{code}
        COMP_WORDBREAKS='{breaks}' COMP_LINE='sweeper devices=sim:rtx-4' COMP_POINT=25 COMP_CWORD=3
        hydra_bash_completion; echo "${{COMPREPLY[@]}}" """
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", asked], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == ("rtx-4090\n" if breaks else "devices=sim:rtx-4090\n")


@pytest.mark.parametrize(
    "words", [["install=tcsh"], ["install"], ["bash"], ["install=BASH"], ["install=pwsh"], ["query=bash"], []]
)
def test_what_no_shell_asks_for_is_a_mistake_of_one_line(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.delenv("COMP_LINE", raising=False)
    ended = typed("-sc", *words)
    shown = " ".join(["-sc", *words])
    assert (ended.returncode, ended.stderr) == (2, f"sweeper: {shown}: write -sc install=bash|zsh|fish\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_offers_only_what_may_be_typed(typed: Typed, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    def offered(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        return typed("-sc", f"query={shell}").stdout.split()

    for workload in ("forward", "train", "generate", "custom", "command") if shell == "bash" else ("train",):
        shown = yaml.safe_load(typed("--cfg", "job", f"workload={workload}").stdout)["workload"]
        keys = {key: "." if isinstance(value, dict) else "=" for key, value in shown.items() if key != "name"}
        of_workload = offered(f"sweeper workload={workload} workload.")
        assert sorted(of_workload) == sorted(f"workload.{key}{end}" for key, end in keys.items())
    every = offered("sweeper ")
    groups = {group for group in help.GROUPS if group != "card"}
    keys_of_runs = {each.name for each in dataclasses.fields(Keys) if each.name not in ("grid", "points")}
    assert {re.split("[.=]", word)[0] for word in every} == groups | keys_of_runs | set(cli.COMMANDS)
    assert offered("sweeper frontier ") == []  # the shell offers files
    assert "retry=" in every
    assert offered("sweeper hydra") == []
    assert "card=rtx-4090" in offered("sweeper estimate card=rtx-40")


# --- how a command ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("two\nlines"), 2, "sweeper: two lines\n"),
        (Mistake("two\nlines"), 2, "sweeper: two lines\n"),
    ],
    ids=repr,
)
def test_the_end_of_a_command_sets_the_exit_code(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, line: str
) -> None:
    def command(line: object) -> int:
        raise raised

    monkeypatch.setitem(cli.COMMANDS, "frontier", command)
    assert typed("frontier", "x") == (code, "", line)


def test_an_error_that_is_a_bug_is_not_hidden(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "frontier", lambda line: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        typed("frontier", "x")


# --- a process --------------------------------------------------------------------------------------------------------


def test_a_closed_output_pipe_causes_no_message(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m sweeper --info all | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_no_command_loads_torch_and_those_without_a_plan_load_no_hydra(tmp_path: Path) -> None:
    script = """\
        import sys
        sys.argv = ["sweeper", *sys.argv[1:]]
        from sweeper.cli import main
        code = main()
        heavy = ("torch", "transformers", "hydra", "omegaconf", "pandas")
        print("loaded", *[name for name in heavy if name in sys.modules])
        sys.exit(code)
    """

    def loaded(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()[-1].split()[1:]

    assert loaded(*NO_RUN, "batch=1,2") == ["hydra", "omegaconf"]
    assert loaded("estimate", "parameters=7e9", "bits=16") == []
    assert loaded("frontier", "nosuch") == []
    assert loaded("effects", "--help") == []
    assert loaded("--help") == []
    assert loaded("--help", "card", "-cd", "nosuch") == []
    assert loaded("environment", "pyton=x") == []
    assert loaded("nonsense") == []


@pytest.mark.slow
def test_sweeper_works_from_an_installed_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: building writes next to the sources
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "outputs", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "site"), str(source)]
    subprocess.run(pip, check=True, timeout=300)
    shutil.rmtree(source)
    empty = tmp_path / "empty"
    empty.mkdir()
    site = {"PYTHONPATH": str(tmp_path / "site")}
    done = sweeper(*NO_RUN, "batch=1,2", cwd=empty, **site)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 points" in done.stdout
    assert (tmp_path / "site" / "sweeper" / "py.typed").is_file()
    for name in ("page.html.jinja", "sheet.html.jinja", "page.css", "page.js"):  # of the command report
        assert (tmp_path / "site" / "sweeper" / "views" / "page" / name).is_file()
    assert str(tmp_path / "site" / "sweeper" / "conf") in sweeper("--info", "searchpath", cwd=empty, **site).stdout
    assert names_in(empty) == []


LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ["fit", LONG, "rtx-4090"],
        ["fit", f"a/{LONG}", "rtx-4090"],
        ["fit", f"{LONG}.yaml", "rtx-4090"],
        ["fit", "gpt2", LONG],
        ["show", LONG],
        ["show", "run", LONG],
        ["report", LONG],
        ["effects", LONG, "--picture", f"{LONG}.png"],
        ["compare", LONG, LONG],
        ["estimate", LONG],
        ["list", f"outputs={LONG}"],
        ["environment", f"python={LONG}"],
        ["devices=cpu", "model=pretrained", f"model.path={LONG}"],
        ["devices=cpu", f"model={LONG}"],
        ["devices=cpu", "workload=custom", f"workload.target={LONG}:run"],
        ["devices=cpu", f"outputs={LONG}"],
        ["-cd", LONG, "batch=1"],
        [f"experiment={LONG}"],
        [LONG],
    ],
)
def test_a_word_that_is_too_long_for_a_files_name_is_one_short_line(typed: Typed, words: list[str]) -> None:
    ended = typed(*words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert len(ended.stderr) < 400
