"""Least squares with non-negative costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RIDGE = 1e-9  # added to the diagonal, so that parts that grow alike can be solved for
FLAT = 1e-7  # a slope below this cannot improve the fit
ALIKE = 1e-9  # parts that grow exactly alike have slopes that differ by rounding only; the first is chosen


class Equations:
    """Totals, each a sum of parts times unknown costs >= 0. Their relative errors are minimised.

    numpy has no such solver, and scipy would be a dependency of its own, for at most 17 unknowns.
    """

    def __init__(self, unknowns: int, parts: Sequence[Sequence[float]], totals: Sequence[float]) -> None:
        rows = np.reshape(np.array(parts, dtype=float), (-1, unknowns)) / np.array(totals, dtype=float)[:, None]
        self._gram = rows.T @ rows
        self._goal = rows.sum(axis=0)

    def include(self, other: Equations, weight: float, scale: float) -> None:
        """Add other equations with a weight, as if each of their totals were `scale` times as large."""
        self._gram += weight / scale**2 * other._gram
        self._goal += weight / scale * other._goal

    def nonnegative(self, likely: Sequence[int] = ()) -> list[float]:
        """The costs. Those at the `likely` places are assumed to be positive at first, which saves steps.

        Lawson and Hanson's active set method, on the normal equations with a unit diagonal.
        """
        size = len(self._goal)
        norms = np.sqrt(np.diag(self._gram))
        norms[norms == 0] = 1.0
        gram = self._gram / np.outer(norms, norms) + RIDGE * np.eye(size)
        goal = self._goal / norms
        costs, free = np.zeros(size), np.zeros(size, dtype=bool)
        free[list(likely)] = True
        for _ in range(3 * size + 1):
            while free.any():
                best = np.zeros(size)
                best[free] = np.linalg.solve(gram[free][:, free], goal[free])
                if best[free].min() > 0:
                    costs = best
                    break
                negative = free & (best <= 0)  # go towards the best costs as far as none turns negative
                steps = costs[negative] / np.where(costs > best, costs - best, np.inf)[negative]
                costs = costs + steps.min() * np.where(free, best - costs, 0.0)
                free &= ~(negative & (costs <= 1e-12))
                costs[~free] = 0.0
            slopes = np.where(free, 0.0, goal - gram @ costs)
            steepest = slopes.max()
            if steepest < FLAT:
                break
            free[np.argmax(slopes > steepest * (1 - ALIKE))] = True
        found: list[float] = (costs / norms).tolist()
        return found
