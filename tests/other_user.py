"""Another user of the machine, for tests of what one user can do to another. Only root can become one."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 12345  # no user of that number exists

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def act(what: Callable[[], object]) -> None:
    """Do something as the other user, in a process of its own. Raises AssertionError with the traceback if it fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become()
            what()
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        failure = told.read()
    os.waitpid(pid, 0)
    assert not failure, failure


def become(uid: int = UID) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder like /tmp: all may write, and remove only what is theirs. pytest's own are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
