"""Measures whether a PyTorch workload fits on a device, and the largest configuration that does."""

from __future__ import annotations

TYPE_CHECKING = False  # typing imports re, which a re.py in the current folder would hide: see __main__
if TYPE_CHECKING:
    from sweeper.errors import Mistake as Mistake
    from sweeper.errors import NothingMeasured as NothingMeasured
    from sweeper.errors import SweepStopped as SweepStopped
    from sweeper.from_python import Fit as Fit
    from sweeper.from_python import Run as Run
    from sweeper.from_python import fit as fit
    from sweeper.from_python import run as run
    from sweeper.tables.loading import Frames as Frames
    from sweeper.tables.loading import load as load

__version__ = "0.1.0"
__all__ = ["Fit", "Frames", "Mistake", "NothingMeasured", "Run", "SweepStopped", "__version__", "fit", "load", "run"]

MODULES = {
    "sweeper.errors": ("Mistake", "NothingMeasured", "SweepStopped"),
    "sweeper.from_python": ("Fit", "Run", "fit", "run"),
    "sweeper.tables.loading": ("Frames", "load"),
}


def __getattr__(name: str) -> object:
    """Imports a name on first use: most need pandas, and no command should wait for that."""
    for module, names in MODULES.items():
        if name in names:
            import importlib

            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
