"""Hydra's Sweeper: overrides in, a Plan out. With cli.py the only module that knows Hydra.

The whole way: `hydra.main` composes the primary configuration and hands its loader to our Sweeper; the overrides, as
they were typed, are parsed with Hydra's own grammar; the configuration is composed once for each choice of groups, and
every point is that one with some values updated (0.4 ms instead of 50, and equal to a full composition).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runners.point import Point
from runners.point import canonical as as_text
from sweeper.designs.dialogue import NOTHING
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import Objective
from sweeper.plan import (
    RUN_KEYS,
    Dimension,
    Plan,
    Rules,
    did_you_mean,
    listed,
    resolutions,
    run_keys,
    settled,
    typed,
)
from sweeper.planning import devices
from sweeper.planning.command_line import CommandLine
from sweeper.planning.composer import PLANNING, Composer, _resolved, explained
from sweeper.planning.hydra_sweeper import _run_hydra
from sweeper.planning.overrides import parse
from sweeper.planning.probes import Probes

# --- the Sweeper ------------------------------------------------------------------------------------------------------


# --- what was typed ---------------------------------------------------------------------------------------------------


# --- compositions -----------------------------------------------------------------------------------------------------


# --- errors, one line each --------------------------------------------------------------------------------------------


# --- from one to the other --------------------------------------------------------------------------------------------


def plan_of(line: CommandLine, probes: Probes, say: Callable[[str], None]) -> Plan:
    """Everything the command line asks for, settled and checked. Raises Mistake; starts nothing that measures."""
    plans: list[Plan] = []

    def task(composer: Composer) -> None:
        plans.append(_Planning(composer, line, probes, say).plan())

    folder = ["--config-dir", line.flags.config_dir] if line.flags.config_dir else []
    _run_hydra([*folder, "--multirun", *line.of_hydra], task)
    return plans[0]


@dataclass(slots=True)
class _Base:
    """The configuration of one choice of groups, with everything that was fixed.

    Where no value refers to another, the points are made from plain dictionaries: copying OmegaConf's nodes takes 2 ms
    a point, which is minutes for 100,000 of them.
    """

    config: DictConfig
    resolved: dict[str, Any] | None
    converted: dict[str, Any] = field(default_factory=dict)  # key=value -> that value, as its key has it


class _Planning:
    """One command line on its way to a plan."""

    def __init__(self, composer: Composer, line: CommandLine, probes: Probes, say: Callable[[str], None]) -> None:
        self.composer, self.line, self.probes, self.say = composer, line, probes, say
        with explained():
            self.typed = parse(line.overrides, composer.loader)
        self.fixed_groups = {key: value for key, value in self.typed.fixed.items() if key in composer.groups}
        self.fixed = {key: value for key, value in self.typed.fixed.items() if key not in composer.groups}
        self.cards = composer.cards()
        self._bases: dict[str, _Base] = {}
        self._points: dict[str, Point] = {}
        self._references: dict[str, str] = {}  # a point's id -> the id of the one its quality is held against

    def plan(self) -> Plan:
        self._refuse_planning_keys()
        first = self.composer.compose(self.fixed_groups)
        grid = self._grid(first)
        written = self._written_out(first)
        several = self._dimensions(grid, written)
        varied = self.typed.several if written else several  # the first point may lack a key that a later one has
        beginning = {**{key: values[0] for key, values in varied.items()}, **(written[0] if written else {})}
        config = self._config(beginning)
        run = run_keys(config)
        intervals = {key: values for key, values in several.items() if isinstance(values, Interval)}
        finely = resolutions(config, list(intervals))
        several |= {key: Interval(each.low, each.high, finely[key]) for key, each in intervals.items()}
        self.rules = Rules(
            # Points that are written out, unlike combinations, are not equal by accident: each has the keys it names.
            swept=[key for key in (self.typed.several if written else several) if _varies(several[key])],
            signature=lambda key, target: self.probes.signature(run.python, key, target),
            cards=self.cards,
            given=[*self.typed.fixed, *(self.typed.several if written else several)],
        )
        self.reference = {} if run.quality is None else run.quality["reference"]
        names = devices.canonical(listed(config["devices"]))
        design, options = self._design(config, written)
        plan = Plan(
            run=run,
            design=design,
            design_options=options,
            dimensions=tuple(self._dimension(key, values, beginning) for key, values in several.items()),
            devices=(),
            points=(),
            settle=self.settle,
            command=self.line.arguments,
            reference_of=lambda point: self._references.get(point.id),
        )
        if written:
            plan = replace(plan, design_options={**options, "points": self._with_typed(written)})
        points = tuple({asked.point.id: asked.point for asked in next(DESIGNS[design](plan, NOTHING))}.values())
        _check_objective(run.objective, points)
        self._check_references(points)
        here = devices.resolve(names, lambda: self.probes.devices(run.python), self.say, self.cards)
        return replace(plan, devices=here, points=points)

    def settle(self, choice: Mapping[str, Any]) -> Point:
        known = as_text(dict(choice))
        if known not in self._points:
            self._points[known] = point = settled(self._config(choice), self.rules)
            if self.reference and point.get("quality.target") is not None:
                self._references[point.id] = settled(self._config({**choice, **self.reference}), self.rules).id
        return self._points[known]

    def _check_references(self, points: Sequence[Point]) -> None:
        """Raises Mistake where a point's quality has nothing in the sweep that it can be held against."""
        if not self.reference:
            return
        asked = {point.id for point in points}
        named = " ".join(f"quality.reference.{key}={typed(value)}" for key, value in self.reference.items())
        if not any(point.id in self._references for point in points):
            raise Mistake(f"{named}: there is no quality to compare; quality.target names the function that tells it")
        for point in points:
            if self._references.get(point.id, point.id) not in asked:
                at = " ".join(f"{key}={typed(point[key])}" for key in self.reference if point.get(key) is not None)
                raise Mistake(f"{named}: no such point is in the sweep to hold those with {at} against; add its values")

    def _config(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration of one choice, resolved."""
        groups = {**self.fixed_groups, **{key: value for key, value in choice.items() if key in self.composer.groups}}
        base = self._base(groups)
        values = {key: value for key, value in choice.items() if key not in groups}
        if base.resolved is not None and all(map(_is_plain, values.values())):
            config: Mapping[str, Any] = base.resolved
            for key, value in values.items():
                config = _with(config, key.split("."), self._converted(base, key, value))
            return config
        composed = copy.deepcopy(base.config)
        for key, value in values.items():
            self._update(composed, key, value)
        return _resolved(composed)

    def _base(self, groups: Mapping[str, Any]) -> _Base:
        known = as_text(groups)
        if known not in self._bases:
            config = self.composer.compose(groups)
            config.grid, config.points = {}, []
            for key, value in self.fixed.items():
                self._update(config, key, value)
            raw = OmegaConf.to_container(config, resolve=False)
            self._bases[known] = _Base(config, raw if _stands_alone(raw) else None)  # type: ignore[arg-type]
        return self._bases[known]

    def _converted(self, base: _Base, key: str, value: Any) -> Any:
        """The value as it is after an update of the configuration."""
        known = f"{key}={as_text(value)}"
        if known not in base.converted:
            config = copy.deepcopy(base.config)
            self._update(config, key, value)
            base.converted[known] = OmegaConf.select(config, key)
        return base.converted[known]

    def _update(self, config: DictConfig, key: str, value: Any) -> None:
        self.composer.update(config, key, value, key in self.typed.added)

    def _refuse_planning_keys(self) -> None:
        for key in (*self.typed.fixed, *self.typed.several):
            if key.partition(".")[0] in ("grid", "points"):
                raise Mistake(f"{key}: for experiment files; on the command line write the key, as in batch=1,2,4")
        for key in self.typed.several:
            if key.partition(".")[0] in PLANNING:
                values = ",".join(map(typed, self.typed.several[key]))
                raise Mistake(f"{key}={values}: one {key} at a time; run them in turn")

    def _grid(self, config: DictConfig) -> dict[str, Sequence[Any]]:
        """The lists of an experiment's `grid:`, by dotted key."""
        return {str(key): self._values(str(key), value) for key, value in _raw(config, "grid").items()}

    def _values(self, key: str, value: Any) -> Sequence[Any]:
        self._refuse_run_keys(key, "grid")
        if isinstance(value, str):  # as it would be typed: "1,2,4", range(1,5)
            with explained():
                found = parse([f"{key}={value}"], self.composer.loader)
            return found.several.get(key) or (found.fixed[key],)
        if not isinstance(value, list) or not value:
            raise Mistake(f"grid: {key}: must be a list of values, as in {key}: [1, 2, 4]")
        return tuple(value)

    def _written_out(self, config: DictConfig) -> list[dict[str, Any]]:
        """The mappings of an experiment's `points:`, without what was typed."""
        found = []
        for point in _raw(config, "points"):
            if not isinstance(point, dict):
                raise Mistake(f"points: {typed(point)}: must be keys and values, as in {{batch: 1, model.width: 64}}")
            for key in point:
                self._refuse_run_keys(str(key), "points")
            found.append({str(key): value for key, value in point.items() if not self._is_typed(str(key))})
        return found

    def _refuse_run_keys(self, key: str, where: str) -> None:
        root = key.partition(".")[0]
        if root in (*RUN_KEYS, *PLANNING, "grid", "points"):
            raise Mistake(f"{where}: {key} is a key of the run, and has one value for all its points")

    def _is_typed(self, key: str) -> bool:
        """The command line wins, also with a whole option over the keys within the one that a file would choose."""
        return key in self.typed.fixed or key in self.typed.several

    def _dimensions(self, grid: Mapping[str, Any], written: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
        """Typed ones first and so outermost, then those of the file."""
        found = dict(self.typed.several)
        found |= {key: values for key, values in grid.items() if not self._is_typed(key)}
        if written:
            if grid:
                raise Mistake("the experiment has both grid: and points:; keep one, sweep the other keys by hand")
            keys = dict.fromkeys(key for point in written for key in point)
            found |= {key: tuple(point[key] for point in written if key in point) for key in keys}
        for key, values in found.items():
            _finite(key, values)
        return found

    def _with_typed(self, written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The points of the file, all of them for each combination of what was swept on the command line."""
        keys = list(self.typed.several)
        combinations = product(*self.typed.several.values())
        return [{**dict(zip(keys, values, strict=True)), **point} for values in combinations for point in written]

    def _dimension(self, key: str, values: Sequence[Any], beginning: Mapping[str, Any]) -> Dimension:
        """Its values as they settle, each once: half and float16 are one. What refers to other keys stays as typed."""
        if isinstance(values, Interval):
            return Dimension(key=key, values=values)
        found: dict[str, Any] = {}
        if key in self.composer.groups:
            self._distinct(key, values)
        for value in values:
            same = value
            if key not in self.composer.groups and _is_plain(value):
                with suppress(Mistake, KeyError):  # of this combination; the points themselves say what is wrong
                    as_settled = self.settle({**beginning, key: value})[key]
                    same = value if as_settled is None else as_settled  # null where this combination makes no use of it
            found.setdefault(as_text(same), same)
        return Dimension(key=key, values=tuple(found.values()))

    def _distinct(self, group: str, options: Sequence[Any]) -> None:
        """Options are told apart in the tables by the name in their file."""
        named: dict[Any, Any] = {}
        for option in dict.fromkeys(options):
            name = self.composer.compose({**self.fixed_groups, group: option})[group].get("name")
            if name in named:
                raise Mistake(f"{group}={named[name]},{option}: both call themselves {name}; give one another name")
            named[name] = option

    def _design(self, config: Mapping[str, Any], written: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        options = dict(config["design"])
        name = options.pop("name", None)
        if name == "grid" and written and "design" not in self.typed.fixed:
            name = "list"
        if name not in DESIGNS:
            raise Mistake(f"design={name}: no such design{did_you_mean(name, DESIGNS)}; there are {', '.join(DESIGNS)}")
        if name == "list" and not written:
            raise Mistake("design=list: there are no points; an experiment file writes them out under points:")
        if name != "list" and written:
            raise Mistake(f"design={name}: the experiment writes its points out; design=list takes them")
        return name, options


def _varies(values: Sequence[Any]) -> bool:
    return len(values) > 1 if isinstance(values, Interval) else len(set(map(as_text, values))) > 1


def _finite(key: str, values: Sequence[Any]) -> None:
    if isinstance(values, Interval):
        return
    for value in values:
        try:
            as_text(value)
        except (TypeError, ValueError):
            raise Mistake(f"{key}={value}: must be a finite number, a word, or lists and mappings of them") from None


def _stands_alone(value: Any) -> bool:
    """Whether it means the same wherever it stands: no reference to another key, nothing that is yet to be given."""
    if isinstance(value, dict):
        return all(map(_stands_alone, value.values()))
    if isinstance(value, list):
        return all(map(_stands_alone, value))
    return not (isinstance(value, str) and ("${" in value or value == "???"))


def _is_plain(value: Any) -> bool:
    """A mapping or a list may be merged into what another key gives; a single value takes its own place."""
    return not isinstance(value, (dict, list)) and _stands_alone(value)


def _with(config: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy with another value at the path; the rest is shared."""
    first, *rest = path
    return {**config, first: _with(config.get(first) or {}, rest, value) if rest else value}


def _raw(config: DictConfig, key: str) -> Any:
    """As the file has it: what refers to other keys is resolved in each point."""
    return OmegaConf.to_container(config[key], resolve=False)


def _check_objective(objective: Objective, points: Sequence[Point]) -> None:
    """A key that no point has would make every point equally large."""
    for key in objective.keys:
        values = [value for point in points if (value := point.get(key)) is not None]
        if not values:
            raise Mistake(f"objective={objective}: no point has {key}; name tokens, or keys such as batch and context")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise Mistake(f"objective={objective}: {key} is {typed(value)}, which is no number")
