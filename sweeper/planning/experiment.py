"""The values that an experiment file sweeps: the lists under `grid:`, or the points under `points:`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf

from sweeper.errors import Mistake
from sweeper.plan import typed
from sweeper.planning.composer import PLANNING_GROUPS
from sweeper.planning.hydra_errors import explained
from sweeper.planning.overrides import Typed, parse
from sweeper.planning.schema import RUN_KEYS


def grid_of(config: DictConfig, loader: ConfigLoader) -> dict[str, Sequence[Any]]:
    """The values of each dotted key under `grid:`. Raises Mistake."""
    return {str(key): _values(str(key), value, loader) for key, value in _raw(config, "grid").items()}


def points_of(config: DictConfig) -> list[dict[str, Any]]:
    """The mappings under `points:`, by dotted key. Raises Mistake."""
    found = []
    for point in _raw(config, "points"):
        if not isinstance(point, Mapping):
            raise Mistake(f"points: {typed(point)}: must be keys and values, as in {{batch: 1, model.width: 64}}")
        for key in point:
            _refuse_run_keys(str(key), "points")
        found.append({str(key): value for key, value in point.items()})
    return found


def refuse_typed(given: Typed) -> None:
    """Raises Mistake for keys of an experiment file on the command line, and for several experiments or designs."""
    for key in (*given.fixed, *given.several):
        if key.partition(".")[0] in ("grid", "points"):
            raise Mistake(f"{key}: for experiment files; on the command line write the key, as in batch=1,2,4")
    for key, values in given.several.items():
        if key.partition(".")[0] in PLANNING_GROUPS:
            raise Mistake(f"{key}={','.join(map(typed, values))}: one {key} at a time; run them in turn")


def _values(key: str, value: Any, loader: ConfigLoader) -> Sequence[Any]:
    _refuse_run_keys(key, "grid")
    if isinstance(value, str):  # in the command line's own form: "1,2,4", range(1,5)
        with explained():
            found = parse([f"{key}={value}"], loader)
        return found.several.get(key) or (found.fixed[key],)
    if not isinstance(value, list) or not value:
        raise Mistake(f"grid: {key}: must be a list of values, as in {key}: [1, 2, 4]")
    return tuple(value)


def _refuse_run_keys(key: str, where: str) -> None:
    if key.partition(".")[0] in (*RUN_KEYS, *PLANNING_GROUPS, "grid", "points"):
        raise Mistake(f"{where}: {key}: is a key of the run, and has one value for all its points")


def _raw(config: DictConfig, key: str) -> Any:
    """As written in the file: interpolations are resolved in each point."""
    return OmegaConf.to_container(config[key], resolve=False)
