"""Opens the files of a run without following links: another user can write where a run is kept, and plant one there.

The folder of the runs, and every folder above it, may be a link (`outputs -> /data/outputs`): the user chose it. The
run's folder and everything in it may not. A file is opened relative to a descriptor of its folder, and each of these
folders is opened relative to the one above it, so nobody can put a link into the path while it is being opened. A name
that leads to a link, a pipe, a device or a folder raises OSError. So does a file that is written to, if it has another
name (a hard link) or belongs to another user than the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

TRACES = "followed"  # a folder of a run, of its allocation traces
POINTS = "points"  # the folder of a run that holds its attempts, in folders of their own
ATTEMPT = re.compile(r"([0-9a-f]{2})[0-9a-f]{14}\.[^/]+")  # an attempt's folder; its first group names the one above it

FILE, FOLDER, LINK = "a file", "a folder", "a symbolic link"
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# With O_PATH, a folder that may be entered and not listed can be opened.
OPEN_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for its other end.
OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_to_write(path: Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a file, for example to append to it. `flags` may create it, and may not truncate it.

    Raises OSError.
    """
    with _folder(path.parent) as folder:
        descriptor = _open(path, flags, mode, folder)
        try:
            found, owner = os.fstat(descriptor), os.fstat(folder).st_uid
            if found.st_nlink > 1:
                raise OSError(errno.EMLINK, f"it has {found.st_nlink} names (hard links)", str(path))
            if found.st_uid not in (os.geteuid(), 0, owner):
                raise OSError(errno.EPERM, f"it belongs to {user(found.st_uid)}", str(path))
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def create(path: Path, mode: int = 0o666) -> int:
    """A descriptor of a new file, in place of whatever has its name, which is removed. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with _folder(path.parent) as folder:
        try:
            return _open(path, flags, mode, folder)
        except FileExistsError:
            _unlink(path, folder)
        return _open(path, flags, mode, folder)


def write(path: Path, data: bytes) -> None:
    """Write a new file, in place of whatever has its name. Raises OSError."""
    with os.fdopen(create(path), "wb") as file:
        file.write(data)


def open_to_read(path: Path) -> IO[bytes]:
    """Only the file's own name is known to be no link. Raises OSError."""
    return os.fdopen(_open(path, os.O_RDONLY), "rb")


def read(path: Path, largest: int | None = None) -> bytes:
    """The content of a file, as `open_to_read` opens it. Raises OSError, also if it has more than `largest` bytes."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if largest is not None and size > largest:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {largest} are read", str(path))
        # Not read(largest): that takes as many addresses as it may read, which a limit may not allow.
        return file.read() if largest is None else file.read(size)


def replace(path: Path, new: Path) -> None:
    """Rename a file within its folder. Raises OSError."""
    with _folder(path.parent) as folder:
        try:
            os.replace(path.name, new.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise _at(new, error) from None


def remove(path: Path) -> None:
    """Remove a file, if it exists. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), _folder(path.parent) as folder:
        _unlink(path, folder)


def make_folder(path: Path) -> None:
    """Make a folder, and for an attempt's the two above it in its run. Raises FileExistsError, and OSError."""
    own = _own_parts(path.parts)
    made = path.parts[1 - own :] if own > 2 else path.parts[-1:]
    if own <= 2:
        path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        place = Path(*path.parts[: len(path.parts) - len(made)])
        folder = opened.enter_context(_folder(place))
        for part in made[:-1]:
            place /= part
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            folder = _open_folder(place, folder)
            opened.callback(os.close, folder)
        try:
            os.mkdir(made[-1], dir_fd=folder)
        except OSError as error:
            raise _at(path, error) from None


def kind_of(path: Path) -> str | None:
    """What has this name: `a file`, `a folder`, `a symbolic link` and so on; None if nothing has. Raises OSError."""
    try:
        return _kind(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def user(uid: int) -> str:
    """`user alice`, or `user 1000` where that has no name."""
    import pwd  # imported late: the measured process needs no names

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def why(error: OSError) -> str:
    """The reason of an error, with the owner of what may not be read or written."""
    text = error.strerror or str(error)
    if error.filename is None or error.errno not in (errno.EACCES, errno.EPERM):
        return text
    path = Path(error.filename)
    place = next(each for each in (path, *path.parents) if os.access(each, os.F_OK) or each == each.parent)
    return f"{text} ({place} belongs to {user(place.stat().st_uid)})"


def _open(path: Path, flags: int, mode: int = 0o666, folder: int | None = None) -> int:
    try:
        descriptor = os.open(path if folder is None else path.name, flags | OPEN_FILE, mode, dir_fd=folder)
    except OSError as error:
        # A link is reported as a loop, a pipe without a reader and a socket as a missing device.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise _refusal(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False) if folder else None) from None
        raise _at(path, error) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise _refusal(path, found)
    return descriptor


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder, opened without following links in the part of its path that belongs to a run."""
    own = _own_parts(path.parts)
    place = Path(*path.parts[: len(path.parts) - own])
    descriptor = os.open(place, OPEN_FOLDER)
    try:
        for part in path.parts[len(path.parts) - own :]:
            place /= part
            inner = _open_folder(place, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _open_folder(path: Path, above: int) -> int:
    try:
        return os.open(path.name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            raise _refusal(path, os.stat(path.name, dir_fd=above, follow_symlinks=False)) from None
        raise _at(path, error) from None


def _own_parts(parts: tuple[str, ...]) -> int:
    """How many folders at the end of a path belong to a run, its own included. Elsewhere, 1: the last one."""
    for above in (1, 2):  # of an attempt's folder, and of a folder in it
        found = ATTEMPT.fullmatch(parts[-above]) if len(parts) > above + 2 else None
        if found and parts[-above - 1] == found[1] and parts[-above - 2] == POINTS:
            return above + 3
    return min(len(parts), 2 if parts[-1:] == (TRACES,) else 1)


def _unlink(path: Path, folder: int) -> None:
    try:
        os.unlink(path.name, dir_fd=folder)
    except OSError as error:
        raise _at(path, error) from None


def _kind(found: os.stat_result) -> str:
    return KINDS.get(stat.S_IFMT(found.st_mode), "of an unknown kind")


def _refusal(path: Path, found: os.stat_result | None = None) -> OSError:
    return OSError(errno.ELOOP, f"it is {_kind(found or os.lstat(path))}", str(path))


def _at(path: Path, error: OSError) -> OSError:
    """The same error with the whole path, of which it has only the last name."""
    return type(error)(error.errno, error.strerror, str(path))
