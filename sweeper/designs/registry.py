"""The designs, by the name that `design=` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sweeper.designs.dialogue import Design
from sweeper.designs.fit import fit
from sweeper.designs.frontier import frontier
from sweeper.designs.grid import axes, grid, listed
from sweeper.designs.levers import levers

# Each takes a plan, calculated peaks, the points of earlier runs, and a function for messages.
DESIGNS: Mapping[str, Callable[..., Design]] = {
    "grid": grid, "axes": axes, "list": listed, "frontier": frontier, "levers": levers,
    "fit": fit,
}  # fmt: skip
