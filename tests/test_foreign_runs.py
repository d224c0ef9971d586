"""The folder of somebody else's run: what it names is never run, resolved or unpickled, and controls no terminal.

Each test puts one way in into a run that was measured, then continues the run by its name and gives it to every command
that reads one.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runners.point import Point
from sweeper import load
from tests import command_line, other_user

PROGRAM = "workload.argv=[sh,-c,'exit 0',sh,'{batch}']"
TYPED = ["devices=[cpu]", "parallel=true", "timeout=60", "workload=command", PROGRAM, "name=run"]
READING = (["frontier"], ["effects"], ["estimate"], ["show"])
SECRET = "abc123-of-the-environment"
TRAP = "open('was-run', 'w').close()\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A current folder with a run of eight points in outputs/run."""
    folder = tmp_path_factory.mktemp("measured")
    ran = command_line.run([*TYPED, "batch=1,2,3,4,5,6,7,8"], folder)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the run, in a current folder with code that would leave a file behind if it were imported."""
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    (tmp_path / "theirs.py").write_text(TRAP)
    run = tmp_path / "outputs" / "run"
    yield run
    assert not list(tmp_path.rglob("was-run*"))


def edit(run: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change every JSON object in the files of this name, and remove checksums, as files of earlier versions had none.

    The tables are removed, so that they are made again from these files.
    """
    for path in run.rglob(name):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            change(line)
            for checksum in ("crc32", "checksums", "journal_bytes"):
                line.pop(checksum, None)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for table in run.glob("*.parquet"):
        table.unlink()


def set_values(run: Path, *several: dict[str, Any]) -> None:
    """Make each point another one, with the values of its turn, in the plan, the requests and the folders' names."""
    turns = itertools.cycle(several)
    others: dict[str, Point] = {}

    def change(line: dict[str, Any]) -> None:
        id = line.get("id")
        if "values" in line and id is not None:
            if id not in others:
                others[id] = Point(values=line["values"] | next(turns))
            line["values"] = others[id].values
        for key in ("id", "changed_from"):
            if line.get(key) in others:
                line[key] = others[line[key]].id

    edit(run, "plan.jsonl", change)
    edit(run, "point.json", change)
    for attempt in list(run.glob("points/*/*")):
        id, _, rest = attempt.name.partition(".")
        there = run / "points" / others[id].id[:2] / f"{others[id].id}.{rest}"
        there.parent.mkdir(exist_ok=True)
        attempt.rename(there)


def use(run: Path, *words: str) -> str:
    """Continue the run with a new point, and read it with every command. Returns all that was printed."""
    folder, env = run.parents[1], {**os.environ, "SECRET_TOKEN": SECRET}
    printed = ""
    reading = [[command, "outputs/run", *words] for command, *words in READING]
    for command in ([*TYPED, *(words or ["batch=1,9"])], *reading):
        ended = command_line.run(command, folder, env)
        assert "Traceback" not in ended.stderr, ended.stderr
        assert ended.returncode in (0, 2, 3), ended.stderr
        printed += ended.stdout + ended.stderr
    return printed


CODE: dict[str, dict[str, Any]] = {
    "workload.target": {"workload": {"name": "custom", "target": "theirs:run", "params": {}}},
    "workload.argv": {"workload": {"name": "command", "argv": ["touch", "was-run"], "params": {}}},
    "quality.target": {"quality": {"target": "theirs:score", "name": "loss"}},
    "inputs": {"inputs": {"name": "text", "path": "theirs.py", "target": "theirs:read"}},
    "env": {"env": {"PYTHONSTARTUP": "theirs.py", "LD_PRELOAD": "./theirs.so", "PYTHONPATH": "."}},
    "_target_": {"model": {"name": "mine", "_target_": "pathlib.Path.touch", "_args_": ["was-run"]}},
    "trust_remote_code": {"model": {"name": "m", "library": "transformers", "path": ".", "trust_remote_code": True}},
    "a YAML tag": {"model": {"name": "!!python/object/apply:os.system ['touch was-run']"}},
}


def test_code_that_points_of_the_run_name_is_not_run(run: Path) -> None:
    set_values(run, *CODE.values())
    printed = use(run)
    for name in ("theirs:run", "touch", "!!python/object/apply:os.system ['touch was-run']"):
        assert name in printed  # the points are there
    assert len(load(run).points) == len(CODE) + 2


@pytest.mark.slow
def test_a_search_that_goes_on_from_points_of_the_run_runs_only_what_was_typed(run: Path) -> None:
    """Its requests name other code than their points, in the folders of points that the search asks for."""
    edit(run, "point.json", lambda line: line["values"].update(CODE["workload.argv"]))
    edit(run, "plan.jsonl", lambda line: "values" in line and line["values"].update(CODE["workload.argv"]))
    use(run, "design=frontier", "batch=interval(1,9)")


def test_an_interpreter_a_folder_and_an_environment_of_the_run_are_not_used(run: Path) -> None:
    python = run / "python"
    python.write_text("#!/bin/sh\ntouch was-run\n")
    python.chmod(0o755)

    def change(line: dict[str, Any]) -> None:
        if line.get("kind") == "run":
            line["keys"] |= {"python": str(python), "outputs": str(run / "other")}
        if "environ" in line:
            line |= {
                "environ": {"PYTHONPATH": str(run), "LD_PRELOAD": str(python)},
                "cwd": str(run),
                "engine": "theirs",
            }

    edit(run, "plan.jsonl", change)
    edit(run, "point.json", change)
    for module in ("torch", "json", "sweeper", "runners", "sitecustomize", "usercustomize"):
        (run / f"{module}.py").write_text(TRAP)
    use(run)
    assert not (run / "other").exists()


@pytest.mark.slow
def test_paths_that_the_run_names_are_not_written_to(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    edit(run, "point.json", lambda line: line.update(locks=[str(victim)], followed=str(victim), trace=True))
    edit(run, "plan.jsonl", lambda line: line.update(path=str(victim), id=line.get("id") and f"../../../{line['id']}"))
    before = {path for path in tmp_path.rglob("*") if run not in path.parents}
    use(run)
    assert victim.read_text() == "mine"
    made = {path for path in tmp_path.rglob("*") if run not in path.parents} - before
    assert {path.name for path in made} <= {"__pycache__", f"theirs.{sys.implementation.cache_tag}.pyc"}


@pytest.mark.slow
def test_an_interpolation_in_the_run_is_text(run: Path) -> None:
    secret = "${oc.env:SECRET_TOKEN}"
    set_values(run, {"model": {"name": secret, "width": secret}, "seed": secret})
    edit(run, "plan.jsonl", lambda line: line.get("settings") and line["settings"].update(model=secret))
    printed = use(run)
    assert secret in printed
    assert SECRET not in printed
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert set(load(run).points["model"].dropna()) == {secret}


class Touch:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-run",)


def test_pickles_in_the_run_are_not_loaded(run: Path) -> None:
    """Arrow unpickled the parameters of such a type as it read a file, until version 14.0.1."""
    for name in ("points", "attempts", "phases"):
        table = pq.read_table(run / f"{name}.parquet")
        column = table.column_names.index("run")
        metadata = {
            "ARROW:extension:name": "arrow.py_extension_type",
            "ARROW:extension:metadata": pickle.dumps(Touch()),
        }
        table = table.set_column(column, pa.field("run", pa.string(), metadata=metadata), table["run"])
        pq.write_table(table, run / f"{name}.parquet")
    for attempt in run.glob("points/*/*"):
        (attempt / "trace.pickle").write_bytes(pickle.dumps(Touch()))
    (run / "followed").mkdir()
    for attempt in run.glob("points/*/*"):
        (run / "followed" / f"{attempt.name.partition('.')[0]}.00000000").write_bytes(pickle.dumps(Touch()))
    load(run)
    use(run)


def test_configurations_in_the_run_are_not_composed(run: Path) -> None:
    for folder in ("conf", ".hydra", "."):
        (run / folder / "workload").mkdir(parents=True, exist_ok=True)
        (run / folder / "workload" / "command.yaml").write_text("argv: [touch, was-run]\n")
        (run / folder / "config.yaml").write_text("workload: {argv: [touch, was-run]}\n")
    use(run)


NASTY = "\x1b]0;theirs\x07\x1b[2J\r\x9b31m\u202e\u2066\x7f\u2028"


def spoiled(value: Any) -> Any:
    """The value with control characters in each text, and in a new name."""
    if isinstance(value, dict):
        return {key: spoiled(each) for key, each in value.items()} | {f"{NASTY}key": NASTY}
    if isinstance(value, list):
        return [spoiled(each) for each in value]
    return value + NASTY if isinstance(value, str) else value


SPOILED = ("record", "identity", "metrics", "settings", "command", "last_output", "phase", "unavailable")


@pytest.mark.slow
def test_control_characters_in_the_run_reach_no_terminal(run: Path) -> None:
    workload = {"name": f"mine{NASTY}", "params": {NASTY: NASTY}}
    set_values(run, {"workload": workload}, {"model": {"name": NASTY}}, {"dtype": NASTY})

    def change(line: dict[str, Any]) -> None:
        line |= {key: spoiled(line[key]) for key in SPOILED if line.get(key)}
        if line.get("kind") == "finished" and line["t"] % 1 < 0.5:
            chain = [{"type": f"Error{NASTY}", "bases": [], "message": NASTY}]
            line |= {"kind": "failed", "chain": chain, "traceback": NASTY}

    for name in ("plan.jsonl", "point.json", "journal.jsonl", "exit.json"):
        edit(run, name, change)
    printed = use(run)
    assert r"\x1b]0;theirs\x07" in printed
    assert not {letter for line in printed.split("\n") for letter in line if not letter.isprintable()}


def test_a_name_with_control_characters_is_shown_escaped(run: Path) -> None:
    run.rename(run.with_name(f"run{NASTY}"))
    (there,) = run.parent.iterdir()
    for command in ("frontier", "effects", "estimate"):
        for name in (str(there), f"{there}2"):
            read = command_line.run([command, name], run.parents[1])
            assert read.returncode == (0 if name == str(there) else 2)
            assert all(line.isprintable() for line in (read.stdout + read.stderr).split("\n"))


def read_by(user: int | None, run: Path) -> dict[str, tuple[int, str, str]]:
    """The exit code and the output of each command that reads the run."""
    found = {}
    for words in READING:
        read = command_line.run([words[0], str(run), *words[1:]], run.parent, user=user)
        found[" ".join(words)] = (read.returncode, read.stdout, read.stderr)
    return found


@other_user.only_root
@pytest.mark.parametrize("has_tables", [True, False], ids=["tables", "journals"])
def test_a_run_that_may_only_be_read_is_read_by_every_command_as_by_its_owner(run: Path, has_tables: bool) -> None:
    with other_user.shared_folder() as shared:
        theirs = Path(shutil.copytree(run, shared / "run"))
        for table in theirs.glob("*.parquet") if not has_tables else ():
            table.unlink()
        theirs.chmod(0o755)
        before = {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}
        read = read_by(other_user.UID, theirs)
        assert read == read_by(None, theirs)
        assert {code for code, _, _ in read.values()} == {0}
        assert before == {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}


@other_user.only_root
@pytest.mark.parametrize("closed", [".", "points", "points/*"])
def test_a_run_that_may_not_be_read_is_one_line_with_its_owner_in_every_command(run: Path, closed: str) -> None:
    with other_user.shared_folder() as shared:
        theirs = Path(shutil.copytree(run, shared / "outputs" / "run"))
        for folder in theirs.glob(closed) if closed != "." else [theirs]:
            folder.chmod(0o700)
        for code, out, err in read_by(other_user.UID, theirs).values():
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert "Permission denied (" in err
            assert "belongs to user root)" in err


@other_user.only_root
def test_a_sweep_among_links_that_another_user_planted_writes_through_none_of_them(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with other_user.shared_folder() as shared:
        run, locks = shared / "outputs" / "run", shared / f"sweeper-{os.geteuid()}"

        def plant() -> None:
            run.mkdir(parents=True)
            (run / "plan.jsonl").touch()
            locks.mkdir()
            (locks / "cpu.lock").symlink_to(victim)
            for table in ("points", "attempts", "phases", "environment", "estimates", "frontier"):
                (run / f".{table}.parquet.tmp").symlink_to(victim)
                (run / f"{table}.parquet").symlink_to(victim)
            (run / "followed").symlink_to(tmp_path)

        other_user.act(plant)
        typed = [word for word in TYPED if word != "parallel=true"]  # which takes no lock of the cpu
        ended = command_line.run([*typed, "batch=1,2"], shared, {**os.environ, "TMPDIR": str(shared)})
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.startswith(
            f"sweeper: {locks} belongs to user {other_user.UID}; the locks of devices are in"
        )
        assert ended.stderr.count("\n") == 1
        assert len(load(run).points) == 2
        assert [path for path in run.rglob("*") if path.is_symlink()] == []
    assert victim.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [victim]
