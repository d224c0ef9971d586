"""The memory cgroups (versions 2 and 1) of this process: their limits, and the number of OOM kills."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Files(NamedTuple):
    """The root of a version's hierarchy, and the names of its files."""

    root: Path
    limit: str
    usage: str
    events: str


V2 = Files(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "memory.events")
V1 = Files(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")


def limits() -> Iterator[tuple[int, int]]:
    """(limit, usage) in bytes of each cgroup that has a limit, innermost first."""
    for folder, files in _folders():
        with suppress(OSError, ValueError):  # no such file at the root, or no limit ("max")
            yield int((folder / files.limit).read_text()), int((folder / files.usage).read_text())


def oom_kills() -> int | None:
    """The number of processes that the OOM killer ended in the innermost cgroup; None where there is no count."""
    for folder, files in _folders():
        with suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", (folder / files.events).read_text(), re.MULTILINE)
            if found:
                return int(found[1])
    return None


def _folders() -> Iterator[tuple[Path, Files]]:
    try:
        lines = Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        files = V2 if controllers == "" else V1 if "memory" in controllers.split(",") else None
        if files is not None:
            folder = files.root / path.lstrip("/")
            while folder.is_relative_to(files.root):
                yield folder, files
                folder = folder.parent
