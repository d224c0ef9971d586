"""Measures whether a PyTorch workload fits on a device, and the largest configuration that does."""

from __future__ import annotations

TYPE_CHECKING = False  # typing imports re, which a re.py in the current folder would hide: see __main__
if TYPE_CHECKING:
    from sweeper.tables.loading import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """Imports `load` on first use: it needs pandas, and no command should wait for that."""
    if name == "load":
        from sweeper.tables.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
