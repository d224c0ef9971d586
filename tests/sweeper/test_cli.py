"""The command as a person types it: what is printed where, and how it ends. Nothing here measures anything."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_RUN = ["estimate", "devices=cpu"]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def sweeper(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments],
        cwd=cwd,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["btach=1,2"], "sweeper: no such key: btach (did you mean batch?)"),
        (["devices=[CUDA:0]"], "sweeper: devices=CUDA:0: not a device (did you mean cuda:0?); write cpu, cuda:0,"),
        (["batch=0"], "sweeper: batch=0: must be 1 or more"),
        (["estimat", "batch=1"], "sweeper: no such command: estimat (did you mean estimate?)"),
        (["nonsense"], "sweeper: no such command: nonsense; there are effects, environment, estimate, frontier"),
        (
            ["--cfg", "job", "batch=1,2"],
            "sweeper: --cfg shows one configuration, and batch has several: ",
        ),
        (["--cfg", "job", "btach=1"], "sweeper: no such key: btach (did you mean batch?)"),
        (["--cfg", "job", "-p", "nosuch"], "package 'nosuch' not found in config"),
        (["--cfg", "jbo"], "sweeper: argument --cfg/-c: invalid choice: 'jbo'"),
        (["estimate", "parameters=7", "bits=16", "batch=1"], "sweeper: batch=1: "),
        (["estimate", "devices=[gpu]"], "sweeper: devices=gpu: "),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2_and_leaves_nothing(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    done = sweeper(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert left_in(tmp_path) == []


def test_the_same_line_is_said_under_a_folder_that_has_a_conf_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("batch: 999\n")
    (tmp_path / "conf" / "__init__.py").touch()
    done = sweeper("--cfg", "job", "-p", "batch", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "1")
    assert len(sweeper(*NO_RUN, "batch=1,2", cwd=tmp_path).stdout) > 0
    assert left_in(tmp_path) == ["conf"]


def test_estimate_shows_the_plan_and_hydra_leaves_no_file(tmp_path: Path) -> None:
    done = sweeper(*NO_RUN, "batch=1,2,4", "context=2048,4096", "hydra.job.chdir=true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 points" in done.stdout
    assert left_in(tmp_path) == []


def test_the_numbers_alone_are_estimated_without_a_configuration(tmp_path: Path) -> None:
    done = sweeper("estimate", "parameters=7000000000", "bits=16", "reserve_gib=4", cwd=tmp_path)
    assert done.returncode == 0
    assert "14,000,000,000 bytes" in done.stdout


def test_help_tells_the_commands_the_groups_and_the_keys(tmp_path: Path) -> None:
    done = sweeper("--help", "batch=1,2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("estimate", "environment", "frontier", "model: ", "tiny-llama", "workload: ", "devices=", "budget="):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--version"], "sweeper 0.1.0"),
        (["--cfg", "job", "batch=3"], "batch: 3"),
        (["-m", "--cfg", "job", "batch=3"], "batch: 3"),
        (["--cfg", "job", "devices=cpu,cuda:0", "-p", "devices"], "- cuda:0"),
        (["--cfg", "job", "-p", "workload", "workload=custom", "workload.params.x=3"], "x: 3"),
        (["--info", "searchpath", "batch=1,2"], str(ROOT / "conf")),
        (["--info", "defaults", "batch=1,2"], "workload/forward"),
        (["--info", "plugins"], "DesignSweeper"),
        (["--hydra-help", "batch=1,2"], "Hydra"),
        (["-sc", "install=bash"], "hydra_bash_completion"),
    ],
)
def test_what_is_only_shown_is_shown(tmp_path: Path, arguments: list[str], shown: str) -> None:
    done = sweeper(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sweeper batch=1,2 conte", "context="),
        ("sweeper estimate batch=1,2 conte", "context="),
        ("python -m sweeper conte", "context="),
        ("sweeper -m batch=1,2 conte", "context="),
        ("sweeper model=smollm2-1", "model=smollm2-135m"),
        ("sweeper desig", "design="),
    ],
)
def test_a_shell_is_offered_what_can_be_typed_next(tmp_path: Path, typed: str, offered: str) -> None:
    done = sweeper("-sc", "query=bash", cwd=tmp_path, COMP_LINE=typed, COMP_POINT=str(len(typed)))
    assert offered in done.stdout.split()


def test_a_reader_who_stops_reading_is_not_told_of_it(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m sweeper --info all | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_a_workload_that_cannot_be_imported_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "mywork.py").write_text("import not_there\n")
    done = sweeper("devices=cpu", "workload=custom", "workload.target=mywork:run", "batch=1,2", cwd=tmp_path)
    assert done.returncode == 2
    assert "not_there" in done.stderr
    assert done.stderr.count("\n") == 1
    assert set(left_in(tmp_path)) <= {"mywork.py", "__pycache__"}


def test_the_orchestrator_loads_no_torch_and_a_light_command_no_hydra(tmp_path: Path) -> None:
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
    assert loaded("estimate", "parameters=7", "bits=16") == []
    assert not {"hydra", "omegaconf", "torch"} & set(loaded("frontier", "nosuch"))
    assert loaded("nonsense") == []


@pytest.mark.slow
def test_it_works_from_a_wheel_that_is_installed_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: building writes beside the sources
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
    assert str(tmp_path / "site" / "sweeper" / "conf") in sweeper("--info", "searchpath", cwd=empty, **site).stdout
    assert left_in(empty) == []


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
def test_numbers_and_names_that_nothing_can_hold_are_refused_in_one_line(tmp_path: Path, word: str, right: str) -> None:
    done = sweeper("devices=cpu", word, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert right in done.stderr
    assert left_in(tmp_path) == []


def test_output_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", "--help"],
            cwd=tmp_path, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be written" in done.stderr
