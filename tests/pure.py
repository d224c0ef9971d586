"""A pytest plugin, `-p tests.pure`: a test that imports torch or starts a process fails. `make check` runs with it."""

from __future__ import annotations

import sys
from typing import Any

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS or (event == "import" and arguments[0] == "torch"):
        what = "imports torch" if event == "import" else f"starts a process ({event})"
        raise AssertionError(f"{what}: it is no pure test, so leave its file out of PURE in the Makefile")


sys.addaudithook(_refuse)
