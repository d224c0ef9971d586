"""Where a command writes the file that its user names."""

from __future__ import annotations

from pathlib import Path

from runners import files
from sweeper.errors import Mistake


def check_place(option: str, file: str) -> None:
    """Raises Mistake for what the file, which is written aside and renamed, must not take the place of.

    The rename by a superuser would replace /dev/null, or the link /dev/stdout, for every program of the machine.
    """
    path = Path(file)
    kind = files.kind_of(path)
    if kind not in (None, files.FILE, files.FOLDER, files.LINK):
        raise Mistake(f"{option} {file}: is {kind}; name a file")
    if kind == files.LINK and (path.parent.resolve() == Path("/dev") or (path.exists() and not path.is_file())):
        raise Mistake(f"{option} {file}: is a symbolic link; name a file")
