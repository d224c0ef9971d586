"""Locks that the kernel releases when their holder ends, however it ends: of a run's folder, and of a device.

A file's text names the holder. Every user who can read a file can lock it, so these are closed to others. A run's can
be opened to its group, to share the run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from functools import partial
from pathlib import Path
from typing import IO

from runners import files

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


class Held(Exception):
    """Another process holds the lock. `holder` is what it wrote; empty if it wrote nothing."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def take(path: Path) -> IO[str]:
    """Lock a file, which is created if it is missing, until it is closed. Raises Held at once, and OSError."""
    lock = os.fdopen(files.open_to_write(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE), "r+", errors="replace")
    try:
        found = os.fstat(lock.fileno())
        if found.st_mode & 0o007 and found.st_uid == os.geteuid():  # made by an earlier version, readable by all
            os.fchmod(lock.fileno(), found.st_mode & 0o770)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with lock:
            raise Held(lock.read(500).strip()) from None
    except OSError as error:  # such as a file system without locks
        lock.close()
        raise OSError(error.errno, error.strerror, str(path)) from None
    return lock


def is_held(path: Path) -> bool:
    """Whether a process of this machine holds a lock that `take` would refuse. It is not taken, not even for a moment.

    A sweep that begins meanwhile would be refused. The kernel's list has the inode of each locked file.
    """
    try:
        inode = str(os.lstat(path).st_ino)
        with open("/proc/locks") as held:
            return any(map(partial(_is_of, inode), held))
    except OSError:  # no such file, or no /proc
        return False


def _is_of(inode: str, line: str) -> bool:
    """Whether a line of /proc/locks is of this file: `1: FLOCK  ADVISORY  WRITE 4242 fe:01:131089 0 EOF`.

    A process that waits has `->` before the type.
    """
    words = line.split()
    return len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode


def holder(path: Path) -> str:
    """What the last holder of a lock wrote into it; empty if it cannot be read."""
    try:
        with files.open_to_read(path) as lock:
            return lock.read(500).decode(errors="replace").strip()
    except OSError:
        return ""


def sign(lock: IO[str], holder: str) -> None:
    """Write who holds a lock."""
    lock.seek(0)
    lock.truncate()
    lock.write(holder + "\n")
    lock.flush()


def device_folder() -> Path:
    """The folder of this user's locks of devices, in the folder for temporary files. Raises OSError.

    Another user can take its name first. Then it is a folder with more letters in its name: the first that belongs to
    this user, so that all sweeps of the user find the same one, else a new one.
    """
    usual = _usual()
    with contextlib.suppress(FileExistsError):
        usual.mkdir(mode=PRIVATE_FOLDER)
    if _is_ours(usual):
        return usual
    ours = filter(_is_ours, sorted(usual.parent.glob(f"{usual.name}-*")))
    return next(ours, None) or Path(tempfile.mkdtemp(prefix=usual.name + "-", dir=usual.parent))


def why_not_usual(folder: Path) -> str | None:
    """Why `device_folder` is not the usual one; None if it is."""
    usual = _usual()
    if folder == usual:
        return None
    kind = files.kind_of(usual)
    is_folder = kind == "a folder"
    what = f"belongs to {files.user(os.lstat(usual).st_uid)}" if is_folder else f"is {kind}"
    return f"{usual} {what}; the locks of devices are in {folder}"


def _usual() -> Path:
    return Path(tempfile.gettempdir(), f"sweeper-{os.geteuid()}")


def _is_ours(folder: Path) -> bool:
    """Whether a name is a folder of this user, which is then closed to others."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            return False
        if stat.S_IMODE(found.st_mode) != PRIVATE_FOLDER:
            os.fchmod(descriptor, PRIVATE_FOLDER)
        return True
    finally:
        os.close(descriptor)
