"""The command that runs a module of `runners` under any interpreter, with nothing of ours on its path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# The package is loaded from its file, so that only the measured interpreter's site-packages decide what it can import.
# The current folder leaves sys.path until our imports are done (a user's random.py must not break them). The measured
# process puts it back under its absolute name, which stays valid when the workload changes folder.
BOOT = """\
import sys
if sys.path[:1] == ['']: del sys.path[0]
import importlib
from importlib.util import spec_from_file_location
folder = sys.argv[1]
spec = spec_from_file_location('runners', folder + '/__init__.py', submodule_search_locations=[folder])
package = importlib.util.module_from_spec(spec)
sys.modules['runners'] = package
spec.loader.exec_module(package)
importlib.import_module('runners.' + sys.argv[2]).main(sys.argv[3:])
"""


def command(python: str, module: str, *arguments: str) -> list[str]:
    """The argument list that runs `runners.<module>.main(arguments)` under the interpreter `python`."""
    return [python, "-c", BOOT, str(Path(__file__).resolve().parent), module, *arguments]


def other_program(python: str) -> str | None:
    """The version that an executable file reports if it is the version of another program than Python, else None."""
    try:
        ended = subprocess.run(
            [python, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    return lines[0] if ended.returncode == 0 and lines and not lines[0].startswith("Python") else None


def environ(changes: Mapping[str, str | None]) -> dict[str, str | bytes]:
    """The environment of this process with some variables set or, with None, removed.

    Letters that the locale's encoding lacks are UTF-8.
    """
    changed: dict[str, str | None] = {**os.environ, **changes}
    return {name: _encoded(value) for name, value in changed.items() if value is not None}


def _encoded(text: str) -> str | bytes:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text


def search_current_folder() -> None:
    """Let this process import from the current folder first, as `python -c` does, unless PYTHONSAFEPATH is set.

    The path is absolute, since a workload may change folder. Every process that imports a user's module calls this, so
    that the plan and the measurement find the same one.
    """
    folder = os.getcwd()
    if not os.environ.get("PYTHONSAFEPATH") and folder not in sys.path:
        sys.path.insert(0, folder)
