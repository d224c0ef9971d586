"""The measured interpreter, by what `python=` names. Imports little: a probe starts with it, before everything else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from sweeper.errors import Mistake


def interpreter(python: str | None) -> str:
    """The absolute path of the measured interpreter. Links are kept: a venv is recognised by the path of its python.

    Raises Mistake if it is not an executable file.
    """
    if python is None:
        return sys.executable
    name = os.path.expanduser(python)
    found = shutil.which(name)
    if found is None:
        path = Path(name)
        if path.is_dir():
            raise Mistake(f"python={python}: is a folder; name the interpreter, as in {path / 'bin' / 'python'}")
        why = "is not executable" if path.exists() else "is neither a file nor a name on PATH"
        raise Mistake(f"python={python}: {why}")
    return os.path.abspath(found)
