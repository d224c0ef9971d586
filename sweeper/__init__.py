"""Whether a workload fits on a device, and the largest that does: measured, point by point."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeper.tables.loading import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """`sweeper.load` brings pandas with it, which no command line should wait for."""
    if name == "load":
        from sweeper.tables.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
