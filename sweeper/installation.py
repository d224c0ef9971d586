"""What sweeper needs to run: a version of Python, and packages. Written for Python 3.7 and newer, to say so there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

OLDEST = (3, 10)
IMPORTED = ("hydra", "omegaconf", "yaml", "numpy", "pandas", "pyarrow", "rich")  # without torch, the rows say so
CHECKOUT = Path(__file__).resolve().parent.parent


def refusal(python: str = sys.executable, version: tuple[int, int] = sys.version_info[:2]) -> str | None:
    """Why this interpreter cannot run sweeper, and which one can, in one line; None if it can."""
    missing = [name for name in IMPORTED if importlib.util.find_spec(name) is None]
    if version < OLDEST:
        lack = "it is Python {}.{}, and sweeper needs {}.{} or newer".format(*version, *OLDEST)
    elif missing:
        lack = f"it has no {', '.join(missing)}"
    else:
        return None
    return f"{python} cannot run sweeper: {lack}; {_instead(python)}"


def _instead(python: str) -> str:
    of_checkout = CHECKOUT / ".venv" / "bin" / "python"
    if of_checkout.exists() and of_checkout != Path(python):
        return f"use {of_checkout}"
    if (CHECKOUT / "Makefile").exists():
        return f"run `make install` in {CHECKOUT}, and use {of_checkout}"
    return "install sweeper again, with the packages it depends on"
