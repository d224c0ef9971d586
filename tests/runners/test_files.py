"""What another user plants where a run is kept is neither followed nor written to."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runners import files
from tests import other_user

ROOT = Path(__file__).parents[2]
SECRET = "root:x:0:0"
INSIDE = "outputs/run/points/ab/ab0123456789abcd.cpu.1"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file elsewhere, that links lead to."""
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    return victim


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def append(path: Path) -> None:
    descriptor = files.open_to_write(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"more")
    os.close(descriptor)


def a_socket(path: Path) -> None:
    at = os.open(path.parent, os.O_RDONLY)  # the name of a socket is short
    here = os.getcwd()
    os.fchdir(at)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)
    os.close(at)


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a symbolic link": lambda path, victim: path.symlink_to(victim),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a socket": lambda path, victim: a_socket(path),
    "a folder": lambda path, victim: path.mkdir(),
}


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A pipe that is opened in the usual way waits for ever."""
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("opened", [append, files.read])
def test_something_else_than_a_file_is_refused_by_its_kind(
    folder: Path, victim: Path, kind: str, opened: Callable[[Path], object]
) -> None:
    path = folder / "plan.jsonl"
    PLANTED[kind](path, victim)
    with pytest.raises(OSError, match=f"it is {kind}") as refused:
        opened(path)
    assert refused.value.filename == str(path)
    assert victim.read_text() == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
@pytest.mark.parametrize("opened", [append, files.read])
def test_a_device_is_refused(folder: Path, opened: Callable[[Path], object]) -> None:
    os.mknod(folder / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    with pytest.raises(OSError, match="it is a device"):
        opened(folder / "zero")


def test_a_small_file_takes_no_more_addresses_than_its_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"small")
    code = (
        "import resource, sys; from pathlib import Path; from runners import files\n"
        "status = Path('/proc/self/status').read_text().splitlines()\n"
        "held = next(int(line.split()[1]) * 1024 for line in status if line.startswith('VmData'))\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (held + 2**24, held + 2**24))\n"
        "print(files.read(Path(sys.argv[1]), 2**26))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout == "b'small'\n"


def test_a_link_to_nothing_creates_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "plan.jsonl").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="it is a symbolic link"):
        append(folder / "plan.jsonl")
    assert not (tmp_path / "new").exists()


def test_a_file_with_a_second_name_is_read_and_not_written_to(folder: Path, victim: Path) -> None:
    os.link(victim, folder / "plan.jsonl")
    with pytest.raises(OSError, match=r"it has 2 names \(hard links\)"):
        append(folder / "plan.jsonl")
    assert files.read(folder / "plan.jsonl") == victim.read_bytes() == SECRET.encode()


@other_user.only_root
def test_a_file_of_another_user_is_not_written_to_unless_the_folder_is_theirs_too(folder: Path) -> None:
    path = folder / "plan.jsonl"
    path.write_text("theirs")
    os.chown(path, other_user.UID, other_user.UID)
    with pytest.raises(OSError, match=f"it belongs to user {other_user.UID}"):
        append(path)
    os.chown(folder, other_user.UID, other_user.UID)
    append(path)
    assert path.read_text() == "theirsmore"


@pytest.mark.parametrize("kind", ["a symbolic link", "a pipe", "a socket", "a hard link", "a file"])
def test_a_new_file_takes_the_place_of_whatever_has_its_name(folder: Path, victim: Path, kind: str) -> None:
    path = folder / ".points.parquet.tmp"
    plant = {
        "a hard link": lambda path, victim: os.link(victim, path),
        "a file": lambda path, victim: path.write_text("longer than what is written"),
    } | PLANTED
    plant[kind](path, victim)
    files.write(path, b"new")
    files.replace(path, folder / "points.parquet")
    assert (folder / "points.parquet").read_text() == "new"
    assert (folder / "points.parquet").lstat().st_nlink == 1
    assert victim.read_text() == SECRET
    assert [each.name for each in folder.iterdir()] == ["points.parquet"]


def test_a_link_in_place_of_a_finished_file_is_replaced_and_not_followed(folder: Path, victim: Path) -> None:
    (folder / "points.parquet").symlink_to(victim)
    files.write(folder / "aside", b"new")
    files.replace(folder / "aside", folder / "points.parquet")
    assert files.read(folder / "points.parquet") == b"new"
    files.remove(folder / "points.parquet")
    files.remove(folder / "points.parquet")  # gone already
    assert victim.read_text() == SECRET


@pytest.mark.parametrize("replaced", ["run", "points", "ab", "ab0123456789abcd.cpu.1", "reports"])
def test_no_folder_from_the_runs_own_on_may_be_a_link(tmp_path: Path, replaced: str) -> None:
    attempt = tmp_path / INSIDE / "reports"
    attempt.mkdir(parents=True)
    place = next(each for each in (attempt, *attempt.parents) if each.name == replaced)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(place, elsewhere)
    place.symlink_to(elsewhere)
    for path in (attempt / "file", attempt.parent / "file"):
        if replaced != "reports" or path.parent == attempt:
            for write in (append, files.create, lambda path: files.write(path, b""), files.make_folder, files.remove):
                with pytest.raises(OSError, match="it is a symbolic link") as refused:
                    write(path)
                assert refused.value.filename == str(place)
    assert not list(elsewhere.rglob("file"))


def test_the_folder_of_the_runs_and_those_above_it_may_be_links(tmp_path: Path) -> None:
    (tmp_path / "disk" / "sweeps").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "outputs").symlink_to("sweeps")
    (tmp_path / "disk" / "sweeps" / "run").mkdir()
    attempt = tmp_path / "home" / INSIDE
    files.make_folder(attempt)
    append(attempt / "journal.jsonl")
    append(tmp_path / "home/outputs/run/plan.jsonl")
    assert (tmp_path / "disk/sweeps" / INSIDE.removeprefix("outputs/") / "journal.jsonl").read_text() == "more"
    assert (tmp_path / "disk/sweeps/run/plan.jsonl").read_text() == "more"


def test_the_folder_of_an_attempt_is_made_once_and_never_in_a_run_that_was_removed(tmp_path: Path) -> None:
    attempt = tmp_path / INSIDE
    with pytest.raises(FileNotFoundError):
        files.make_folder(attempt)
    assert not (tmp_path / "outputs").exists()
    (tmp_path / "outputs/run").mkdir(parents=True)
    files.make_folder(attempt)
    with pytest.raises(FileExistsError):
        files.make_folder(attempt)


def test_a_folder_that_another_process_swaps_for_a_link_again_and_again_never_leads_elsewhere(tmp_path: Path) -> None:
    attempt, elsewhere = tmp_path / INSIDE, tmp_path / "elsewhere"
    attempt.mkdir(parents=True)
    elsewhere.mkdir()
    group, aside, link = attempt.parent, tmp_path / "aside", tmp_path / "link"
    (elsewhere / attempt.name).mkdir()
    link.symlink_to(elsewhere)
    swapper = os.fork()
    if swapper == 0:
        while True:
            os.rename(group, aside)
            os.rename(link, group)
            os.rename(group, link)
            os.rename(aside, group)
    refused = written = 0
    try:
        while not (refused > 100 and written > 100):
            try:
                files.write(attempt / "journal.jsonl", b"line")
                written += 1
            except OSError:
                refused += 1
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    assert list((elsewhere / attempt.name).iterdir()) == []
