"""Locks name their holder, and another user can neither hold them nor lead them elsewhere."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runners import locks
from tests import other_user

FOLDER_OF = "from runners import locks; print(locks.device_folder())"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which all users share."""
    with other_user.shared_folder() as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture
def usual(shared: Path) -> Path:
    return shared / f"sweeper-{os.geteuid()}"


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "cpu.lock"
    lock = locks.take(path)
    locks.sign(lock, "a much longer name")
    locks.sign(lock, "pid 1")
    with pytest.raises(locks.Held) as held:
        locks.take(path)
    assert held.value.holder == "pid 1"
    lock.close()
    locks.take(path).close()


@other_user.only_root
def test_another_user_cannot_hold_a_lock(shared: Path) -> None:
    """A file that can be read can be locked. Earlier versions let everybody read the lock of a run."""
    new, earlier = shared / "new.lock", shared / "earlier.lock"
    earlier.touch(0o644)
    for path, mode in ((new, 0o600), (earlier, 0o640)):
        locks.take(path).close()
        assert stat.S_IMODE(path.stat().st_mode) == mode

        def hold(path: Path = path) -> None:
            with pytest.raises(PermissionError):
                fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)

        other_user.act(hold)


def test_a_lock_that_leads_elsewhere_is_refused_and_leaves_what_is_there(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "cpu.lock").symlink_to(victim)
    os.link(victim, tmp_path / "gpu.lock")
    for name, why in (("cpu.lock", "it is a symbolic link"), ("gpu.lock", "it has 2 names")):
        with pytest.raises(OSError, match=why):
            locks.take(tmp_path / name)
    assert victim.read_text() == "mine"


def test_the_folder_of_a_users_device_locks_is_closed_to_others(usual: Path) -> None:
    assert locks.device_folder() == usual
    assert locks.why_not_usual(usual) is None
    for mode in (0o777, 0o755):
        usual.chmod(mode)
        assert locks.device_folder() == usual
        assert stat.S_IMODE(usual.stat().st_mode) == 0o700


@other_user.only_root
def test_a_user_whose_folder_another_one_has_taken_gets_one_that_all_sweeps_of_the_user_share(usual: Path) -> None:
    def take() -> None:
        usual.mkdir()
        (usual / "cpu.lock").symlink_to("/etc/passwd")
        usual.with_name(usual.name + "-0").mkdir()  # and one that would come first

    other_user.act(take)
    folder = locks.device_folder()
    assert folder != usual
    assert folder.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    elsewhere = subprocess.run([sys.executable, "-c", FOLDER_OF], capture_output=True, text=True, check=True)
    assert elsewhere.stdout == f"{folder}\n"
    why = f"{usual} belongs to user {other_user.UID}; the locks of devices are in {folder}"
    assert locks.why_not_usual(folder) == why
    with closing(locks.take(folder / "cpu.lock")), pytest.raises(locks.Held):
        locks.take(locks.device_folder() / "cpu.lock")


@pytest.mark.parametrize("kind", ["a symbolic link", "a file"])
def test_something_else_in_place_of_the_folder_is_left_alone(usual: Path, tmp_path: Path, kind: str) -> None:
    usual.touch() if kind == "a file" else usual.symlink_to(tmp_path)
    folder = locks.device_folder()
    assert folder == locks.device_folder() != usual
    assert f"{usual} is {kind}" in str(locks.why_not_usual(folder))
    assert list(tmp_path.iterdir()) == []
