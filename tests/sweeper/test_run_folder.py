"""A run's folder: when it can be opened, and what it keeps."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runners import stored_json
from runners.device import device_named
from runners.point import Attempt, AttemptFolder, Point
from sweeper.errors import Mistake
from sweeper.plan_lines import PlannedLine, read_plan
from sweeper.run_folder import RunFolder, open_run
from sweeper.tables.loading import load
from tests import command_line, other_user

POINT, CPU = Point(values={"batch": 1}), device_named("cpu")
LINE = PlannedLine(id=POINT.id, order=0, device="cpu", values=POINT.values)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RunFolder]:
    with closing(open_run(str(tmp_path), "run", "slug")) as run:
        yield run


def test_a_named_run_is_that_folder_and_can_be_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        run = open_run(str(tmp_path / "outputs"), "run", "slug")
        assert run.path == tmp_path / "outputs" / "run"
        run.close()


def test_a_run_without_a_name_is_a_new_folder_every_time(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with closing(open_run(str(tmp_path), None, "train/gpt 2")) as run:
            names.add(run.path.name)
    assert len(names) == 3
    assert all("-train-gpt-2" in name for name in names)


def test_a_run_is_open_for_one_sweep_at_a_time(opened: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match=r"name=run: pid \d+ on .* is sweeping into"):
        open_run(str(tmp_path), "run", "slug")
    opened.close()
    open_run(str(tmp_path), "run", "slug").close()


def test_a_folder_that_is_no_run_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    with pytest.raises(Mistake, match=r"name=mine: .* is not a run of sweeper"):
        open_run(str(tmp_path), "mine", "slug")
    with pytest.raises(Mistake, match=r"name=file: .* is a file"):
        open_run(str(tmp_path), "file", "slug")


def test_outputs_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Mistake, match=r"outputs=.*/file/outputs: .* cannot be written"):
        open_run(str(tmp_path / "file" / "outputs"), "run", "slug")


def test_a_line_of_the_plan_is_on_disk_at_once(opened: RunFolder) -> None:
    opened.plan([LINE])
    assert list(read_plan(opened.path)) == [LINE]


def test_a_torn_line_is_skipped_and_damages_none_after_it(opened: RunFolder, tmp_path: Path) -> None:
    opened.plan([LINE])
    opened.close()
    with (opened.path / "plan.jsonl").open("a") as plan:
        plan.write('{"kind": "asked", "id": "f')
    with closing(open_run(str(tmp_path), "run", "slug")) as again:
        again.plan([LINE])
        assert list(read_plan(again.path)) == [LINE, LINE]


def test_a_removed_folder_is_noticed(opened: RunFolder) -> None:
    opened.check()
    (opened.path / "plan.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="the run's folder was removed"):
        opened.plan([LINE])


def attempted(run: RunFolder, number: int) -> AttemptFolder:
    attempt = Attempt(point=POINT, device=CPU, number=number)
    folder = run.attempt_folder(attempt)
    folder.create(attempt)
    folder.journal.write_text('{"kind": "baseline"}\n')
    return folder


def test_the_attempts_at_a_point_come_in_the_order_they_were_made(opened: RunFolder) -> None:
    folders = [attempted(opened, number) for number in (1, 2, 3)]
    assert list(opened.attempts(POINT, CPU)) == folders
    assert list(opened.attempts(POINT, device_named("cuda:0"))) == []
    assert list(opened.attempts(Point(values={"batch": 2}), CPU)) == []


def test_a_folder_in_which_nothing_began_is_no_attempt_and_is_removed(opened: RunFolder) -> None:
    first = attempted(opened, 1)
    half_made = opened.attempt_folder(Attempt(point=POINT, device=CPU, number=2))
    half_made.path.mkdir()
    (half_made.path / "point.json.123.tmp").touch()
    assert list(opened.attempts(POINT, CPU)) == [first]
    assert not half_made.path.exists()
    half_made.create(Attempt(point=POINT, device=CPU, number=2))
    half_made.journal.touch()
    assert list(opened.attempts(POINT, CPU)) == [first]
    assert not half_made.path.exists()


def test_traces_are_kept_for_one_sweep_only(opened: RunFolder, tmp_path: Path) -> None:
    file = opened.allocation_trace(POINT, "sm_90")
    assert file == opened.allocation_trace(POINT, "sm_90") != opened.allocation_trace(POINT, "sm_80")
    file.write_text(json.dumps({}))
    opened.close()
    assert not file.exists()


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a symbolic link": lambda path, elsewhere: path.symlink_to(elsewhere),
    "a pipe": lambda path, elsewhere: os.mkfifo(path),
    "a folder": lambda path, elsewhere: path.mkdir(),
    "a file": lambda path, elsewhere: path.touch(),
}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        (".lock", ["a symbolic link", "a pipe", "a folder"]),
        ("plan.jsonl", ["a symbolic link", "a pipe", "a folder"]),
        ("points", ["a symbolic link", "a pipe", "a file"]),
        ("points/ab", ["a symbolic link", "a pipe", "a file"]),
        ("points.parquet", ["a folder"]),
    ],
)
def test_something_else_in_place_of_a_part_of_a_run_is_refused_in_one_line(
    tmp_path: Path, name: str, kinds: list[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for kind in kinds:
        run = tmp_path / "outputs" / kind.replace(" ", "-")
        (run / "points").mkdir(parents=True)
        (run / "plan.jsonl").touch()
        place = run / name
        place.unlink() if name == "plan.jsonl" else place.rmdir() if name == "points" else None
        PLANTED[kind](place, elsewhere)
        with pytest.raises(Mistake, match=f"name={run.name}: {place} is {kind} and not a (file|folder); remove it"):
            open_run(str(tmp_path / "outputs"), run.name, "slug")
    assert list(elsewhere.iterdir()) == []


def test_a_lock_and_a_plan_with_a_second_name_are_refused_in_one_line_and_stay_as_they_are(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".lock", "plan.jsonl"):
        run = tmp_path / "outputs" / name.strip(".")
        run.mkdir(parents=True)
        os.link(victim, run / name)
        with pytest.raises(Mistake, match=rf"{name} cannot be written: it has 2 names \(hard links\)"):
            open_run(str(tmp_path / "outputs"), run.name, "slug")
        assert victim.read_text() == "mine"
        (run / name).unlink()


def test_a_run_that_is_a_link_is_refused_with_what_to_type_and_outputs_that_is_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    open_run(str(tmp_path / "outputs"), "mine", "slug").close()
    assert {path.name for path in (tmp_path / "disk" / "mine").iterdir()} == {".lock", "plan.jsonl"}
    (tmp_path / "disk" / "theirs").symlink_to(tmp_path / "disk" / "mine")
    with pytest.raises(Mistake, match=f"is a symbolic link, .* type outputs={tmp_path / 'disk'} name=mine$"):
        open_run(str(tmp_path / "outputs"), "theirs", "slug")


def test_an_attempt_that_is_a_link_is_no_attempt_and_nothing_behind_it_is_removed(
    opened: RunFolder, tmp_path: Path
) -> None:
    first = attempted(opened, 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.tex").touch()
    opened.attempt_folder(Attempt(point=POINT, device=CPU, number=2)).path.symlink_to(tmp_path / "elsewhere")
    third = attempted(opened, 3)
    assert list(opened.attempts(POINT, CPU)) == [first, third]
    assert (tmp_path / "elsewhere" / "thesis.tex").exists()


@pytest.mark.parametrize("kind", PLANTED)
def test_traces_that_were_planted_are_removed_and_never_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    open_run(str(tmp_path), "run", "slug").close()
    PLANTED[kind](tmp_path / "run" / "followed", tmp_path / "elsewhere")
    name = f"{POINT.id}.12345678"
    if kind in ("a symbolic link", "a folder"):
        (tmp_path / "run" / "followed" / name).write_text("planted")
    with closing(open_run(str(tmp_path), "run", "slug")) as run:
        trace = run.allocation_trace(POINT, "sm_90")
        assert list(trace.parent.iterdir()) == []
        assert trace.parent.is_dir()
        assert not trace.parent.is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ([name] if kind == "a symbolic link" else [])


def test_a_run_whose_plan_was_deleted_is_continued_with_its_attempts(tmp_path: Path) -> None:
    with closing(open_run(str(tmp_path), "run", "slug")) as run:
        folder = attempted(run, 1)
    (tmp_path / "run" / "plan.jsonl").unlink()
    with closing(open_run(str(tmp_path), "run", "slug")) as run:
        assert list(run.attempts(POINT, CPU)) == [folder]
        run.plan([LINE])
        assert list(read_plan(run.path)) == [LINE]


@other_user.only_root
def test_a_run_of_another_user_that_may_not_be_written_is_refused_in_one_line_with_its_owner() -> None:
    with other_user.shared_folder() as shared:
        with closing(open_run(str(shared / "outputs"), "mine", "slug")) as run:
            attempted(run, 1)
        (shared / "given").mkdir()
        (shared / "given").chmod(0o777)
        with closing(open_run(str(shared / "given"), "mine", "slug")) as run:
            attempted(run, 1)
        for path in (run.path, run.path / ".lock", run.path / "plan.jsonl"):
            path.chmod(0o777)

        def sweep() -> None:
            for outputs, name, place in (
                ("outputs", None, "outputs"),
                ("outputs", "theirs", "outputs"),
                ("outputs", "mine", "outputs/mine/.lock"),
                ("given", "mine", "given/mine/points"),  # a folder that only its owner may write to
            ):
                with pytest.raises(Mistake) as refused:
                    open_run(str(shared / outputs), name, "slug")
                line = str(refused.value)
                assert line.startswith(f"outputs={shared / outputs}: {shared / outputs}/")
                assert line.endswith(
                    f"cannot be written: {os.strerror(errno.EACCES)} ({shared / place} belongs to user root)"
                )

        other_user.act(sweep)


def test_a_run_that_a_newer_version_wrote_to_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with closing(open_run(str(tmp_path), "run", "slug")) as run:
        run.plan([LINE])
    plan = tmp_path / "run" / "plan.jsonl"
    line = stored_json.sealed({"kind": "run", "format": 99, "axes": "something new"})
    plan.write_bytes(plan.read_bytes() + line)
    before = plan.read_bytes()
    why = r"a newer version of sweeper wrote this run \(format 99 of its plan; .* up to 2\); update sweeper"
    with pytest.raises(Mistake, match=f"^name=run: {why}$"):
        open_run(str(tmp_path), "run", "slug")
    with pytest.raises(Mistake, match=f"^{tmp_path}/run: {why}$"):
        load(tmp_path / "run")
    for words in (
        ["show", "run"],
        ["report", "run"],
        ["compare", "run", "run"],
        ["frontier", "run"],
        ["estimate", "run"],
    ):
        ended = command_line.run(words, tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert "a newer version of sweeper wrote this run" in ended.stderr
    assert plan.read_bytes() == before
