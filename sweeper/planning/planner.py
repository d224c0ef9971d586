"""A command line becomes a plan: what is swept, with which design, on which devices; every planned point is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import product
from math import prod
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runners.point import Point
from runners.point import canonical as as_text
from sweeper.designs.dialogue import NOTHING
from sweeper.designs.frontier import grows
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake, did_you_mean
from sweeper.fit_cells import DESIGN, LARGEST_BATCH
from sweeper.interpreter import interpreter
from sweeper.interval import Interval
from sweeper.objective import Objective
from sweeper.plan import Dimension, Plan, RunKeys, dotted, typed
from sweeper.planning import devices
from sweeper.planning.command_line import CommandLine
from sweeper.planning.composer import ENV, Composer, resolved
from sweeper.planning.config_files import located
from sweeper.planning.configurations import ComposedSettler, Configurations, is_plain
from sweeper.planning.experiment import grid_of, points_of, refuse_typed
from sweeper.planning.fit_request import WORKLOADS, FitRequest, contexts_of, dtype_of
from sweeper.planning.hydra_errors import explained
from sweeper.planning.hydra_sweeper import composer_of
from sweeper.planning.model_checks import configuration_of
from sweeper.planning.overrides import MOST_POINTS, parse
from sweeper.planning.point_checks import Rules, positions_of
from sweeper.planning.probes import Probes
from sweeper.planning.run_keys import resolutions, run_keys
from sweeper.planning.schema import Keys, as_list
from sweeper.serving import new_tokens

Choice = Mapping[str, Any]  # a value for each key with several
Values = Mapping[str, Sequence[Any]]  # of each key with several, in the order of the dimensions

OF_THE_SEARCH = ("edge", "confirm")  # keys of the run; `objective` and `margin` also rank the points of other designs
DEFAULTS = {each.name: each.default for each in fields(Keys)}


def plan_of(
    line: CommandLine, probes: Probes, report: Callable[[str], None], request: FitRequest | None = None
) -> Plan:
    """Plan a command line. Raises Mistake. `report` is called with messages for the user.

    `request`: the line is that of `fit`, whose points it has.
    """
    folder = ["--config-dir", line.flags.config_dir] if line.flags.config_dir else []
    with explained():
        planner = _Planner(composer_of([*folder, *line.of_hydra]), line, probes, report, request)
    try:
        with explained():
            return planner.plan()
    except Mistake as mistake:
        raise type(mistake)(
            located(planner.of_each_model(str(mistake)), planner.composer.files, planner.typed.values)
        ) from None


class _Planner:
    def __init__(
        self,
        composer: Composer,
        line: CommandLine,
        probes: Probes,
        report: Callable[[str], None],
        request: FitRequest | None = None,
    ) -> None:
        self.composer, self.line, self.probes, self.report, self.request = composer, line, probes, report, request
        with explained():
            self.typed = parse(line.overrides, composer.loader)
        self.cards = composer.cards()
        self.of_workloads: dict[str, Any] = {}
        if request is not None and request.settings:
            self.typed.fixed.setdefault("dtype", dtype_of([self.cards[card] for card in request.cards]))
            self.of_workloads = self._taken_from(self.typed.fixed)
        self.configurations = Configurations(composer, self.typed)

    def plan(self) -> Plan:
        refuse_typed(self.typed)
        first = self.composer.compose(self.configurations.fixed_groups)
        grid = grid_of(first, self.composer.loader)
        requested = points_of(first) if self.request is None else self._cells(first, self.request)
        listed = [{key: each[key] for key in each if not self._is_typed(key)} for each in requested]
        several = self._several(grid, listed)
        # The keys of listed points are given with each of them: the first point may lack a key that a later one has.
        swept = self.typed.several if listed else several
        beginning = {**{key: values[0] for key, values in swept.items()}, **(listed[0] if listed else {})}
        configuration = self.configurations.of(beginning)
        config = configuration.values
        self._check_run_keys(beginning, several, listed)
        run = run_keys(config)
        intervals = {key: values for key, values in several.items() if isinstance(values, Interval)}
        resolution = resolutions(config, list(intervals))
        several |= {key: Interval(each.low, each.high, resolution[key]) for key, each in intervals.items()}
        rules = Rules(
            swept=[key for key in swept if _varies(several[key])],
            signature=lambda key, target: self.probes.signature(run.python, key, target),
            cards=self.cards,
            interpreter=run.python,
            listed=[key for key in several if key not in swept and _varies(several[key])],
            given={*self.typed.fixed, *swept, *configuration.settings},
            configuration=lambda path, revision: self.probes.configuration(run.python, path, revision),
        )
        reference = {} if run.quality is None else run.quality["reference"]
        settler = ComposedSettler(self.configurations, rules, reference)
        names = devices.canonical(as_list(config["devices"]), list(self.cards))
        design, options = self._design(config, listed)
        if self.request is not None:
            design = DESIGN
            options["concurrency"] = self.request.concurrency
            options["has_contexts"] = "context" in several or self._is_typed("context")
            several.setdefault("batch", Interval(1, LARGEST_BATCH))
        _check_count(design, swept, len(listed))
        self._check_used(design, run)
        if listed:
            options["points"] = self._with_typed(listed)
        plan = Plan(
            run=run,
            design=design,
            design_options=options,
            dimensions=tuple(
                Dimension(key=key, values=self._dimension_values(key, values, settler, beginning))
                for key, values in several.items()
            ),
            devices=(),
            settler=settler,
            command=self.line.arguments,
        )
        plan = replace(plan, first_batch=tuple(next(DESIGNS[design](plan, NOTHING))))
        _check_objective(run.objective, plan.points)
        _check_references(reference, plan)
        if self.request is not None and len(self.request.cards) == 1 and config["used_by_others"] is None:
            # It measures the edges. What others use of a card cannot be set aside on a real one.
            card = self.cards[self.request.cards[0]]
            names += tuple(filter(None, [devices.of_kind(card, lambda: self.probes.devices(run.python))]))
        here = devices.resolve(names, lambda: self.probes.devices(run.python), self.report, self.cards)
        devices.check_budgets(here, plan.points)
        for line in devices.lowered_budgets(here, plan.points):
            self.report(line)
        devices.check_others(here, plan.points, str(config["budget"]).startswith("card:"))
        devices.check_assumed(here, plan.points)
        assumptions = devices.assumptions(here, plan.points) if self.request is None else ()  # its table has them
        for line in (*assumptions, *devices.unmeasured(here)):
            self.report(line)
        devices.check_variables(here, {*config["env"], *(key.removeprefix(ENV) for key in several)})
        return replace(plan, devices=here)

    def of_each_model(self, message: str) -> str:
        """The message for a key that a model lacks, with every model of the sweep that lacks it."""
        models = self.typed.several.get("model", ())
        missing = re.match(r"no such key: (model\.\S+) with model=\S+", message)
        if missing is None or len(models) < 2 or isinstance(models, Interval):
            return message
        lacking = []
        for model in models:
            config = self.composer.compose({**self.configurations.fixed_groups, "model": model})
            if OmegaConf.select(config, missing[1], default=...) is ...:
                lacking.append(f"model={model}")
        if len(lacking) < 2:
            return message
        return f"no such key: {missing[1]} with {' and '.join(lacking)}; give each model a sweep with keys of its own"

    def _check_run_keys(self, beginning: Choice, several: Values, listed: Sequence[Choice]) -> None:
        """Raises Mistake if a key of the run follows a swept key: it has one value for all points."""
        written = self.configurations.interpolated_run_keys(beginning)
        if not written:
            return
        first = Point(values=self.configurations.of(beginning).values)
        others: list[tuple[Iterable[str], Choice]] = [(point, {**beginning, **point}) for point in listed]
        for key in self.typed.several if listed else several:
            values = several[key]
            several_of = (values[0], values[-1]) if isinstance(values, Interval) else values
            others += [((key,), {**beginning, key: value}) for value in several_of]
        for keys, choice in others:
            point = Point(values=self.configurations.of(choice).values)
            for key, text in written.items():
                if point.get(key) != first.get(key):
                    follows = f"this one follows {' or '.join(keys)}, which has several"
                    raise Mistake(f"{key}={typed(text)}: a key of the run has one value for all points, and {follows}")

    def _is_typed(self, key: str) -> bool:
        """Whether the command line has the key, which then overrides an experiment's."""
        return key in self.typed.fixed or key in self.typed.several

    def _cells(self, first: DictConfig, request: FitRequest) -> list[dict[str, Any]]:
        """The first point of each cell of `fit`. Contexts that are typed are combined with them later."""
        if not request.settings:
            return request.points(())
        for key, value in self.typed.fixed.items():
            if key.startswith("model."):
                self.composer.update(first, key, value, key in self.typed.added)
        model = resolved(first.model)
        python = interpreter(self.typed.fixed.get("python"))
        config = configuration_of(model, lambda path, revision: self.probes.configuration(python, path, revision))
        contexts = () if self._is_typed("context") else contexts_of(model, positions_of(config))
        model_type = model.get("model_type") or config.get("model_type")
        points = request.points(request.chosen_contexts(contexts), model_type)
        for point in points:
            if request.concurrency is not None and "workload.new_tokens" in point:
                point["workload.new_tokens"] = new_tokens(config, self.typed.fixed.get("attention"))
            point |= {key: value for key, value in self.of_workloads.items() if self._has(point["workload"], key)}
        return points

    def _taken_from(self, typed: dict[str, Any]) -> dict[str, Any]:
        """The keys of a workload that were typed for `fit`, which has several workloads; unknown keys stay."""
        keys = [key for key in typed if key.startswith("workload.")]
        known = [key for key in keys if any(self._has(workload, key) for workload in WORKLOADS)]
        return {key: typed.pop(key) for key in known}

    def _has(self, workload: str, key: str) -> bool:
        return OmegaConf.select(self.composer.compose({"workload": workload}), key, default=...) is not ...

    def _several(self, grid: Values, listed: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
        """The swept keys: those typed come first, and so are outermost, then those of the experiment."""
        found = dict(self.typed.several)
        found |= {key: values for key, values in grid.items() if not self._is_typed(key)}
        if listed:
            if grid:
                raise Mistake("the experiment has both grid: and points:; keep one, and type the other keys")
            keys = dict.fromkeys(key for point in listed for key in point)
            found |= {key: tuple(point[key] for point in listed if key in point) for key in keys}
        for key, values in found.items():
            _check_finite(key, values)
            _check_parts(key, values, (*self.typed.fixed, *found))
        return found

    def _with_typed(self, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The listed points for each combination of the keys that are swept on the command line."""
        keys = list(self.typed.several)
        combinations = product(*self.typed.several.values())
        return [{**dict(zip(keys, values, strict=True)), **point} for values in combinations for point in listed]

    def _dimension_values(
        self, key: str, values: Sequence[Any], settler: ComposedSettler, beginning: Mapping[str, Any]
    ) -> Sequence[Any]:
        """The distinct values as they settle: half and float16 are one. Interpolations stay as they were typed."""
        if isinstance(values, Interval):
            return values
        found: dict[str, Any] = {}
        if key in self.composer.groups:
            self._check_distinct(key, values)
        elif {type(value) for value in (*values, self._settled(key, values[0], settler, beginning))} == {int}:
            return tuple(dict.fromkeys(values))  # they settle alike, and a thousand take seconds
        for value in values:
            settled = value if key in self.composer.groups else self._settled(key, value, settler, beginning)
            found.setdefault(as_text(settled), settled)
        return tuple(found.values())

    def _settled(self, key: str, value: Any, settler: ComposedSettler, beginning: Mapping[str, Any]) -> Any:
        """A value of a key as it settles, or as it was typed if it does not, or is not used in this combination."""
        if is_plain(value):
            with suppress(Mistake, KeyError):  # of this combination; the points themselves report their mistakes
                as_settled = settler.settle({**beginning, key: value})[key]
                return value if as_settled is None else as_settled
        return value

    def _check_distinct(self, group: str, options: Sequence[Any]) -> None:
        """Raises Mistake if two options have the same name: the tables could not distinguish them."""
        named: dict[Any, Any] = {}
        for option in dict.fromkeys(options):
            name = self.composer.compose({**self.configurations.fixed_groups, group: option})[group].get("name")
            if name in named:
                raise Mistake(f"{group}={named[name]},{option}: both are named {name}; give one another name")
            named[name] = option

    def _check_used(self, design: str, run: RunKeys) -> None:
        """Raises Mistake for a key of the search in a sweep that does not search."""
        for key in OF_THE_SEARCH:
            value = getattr(run, key)
            if design != "frontier" and (key in self.typed.fixed or value != DEFAULTS[key]):
                raise Mistake(f"{key}={value}: has an effect only with design=frontier")

    def _design(self, config: Mapping[str, Any], listed: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        options = dict(config["design"])
        name = options.pop("name", None)
        if name == "grid" and listed and "design" not in self.typed.fixed:
            name = "list"
        if name not in DESIGNS:
            raise Mistake(f"design={name}: no such design{did_you_mean(name, DESIGNS)}; there are {', '.join(DESIGNS)}")
        if name == "list" and not listed:
            raise Mistake("design=list: there are no points; an experiment file lists them under points:")
        if name != "list" and listed:
            raise Mistake(f"design={name}: the experiment lists its points, which takes design=list")
        return name, options


def _varies(values: Sequence[Any]) -> bool:
    return len(values) > 1 if isinstance(values, Interval) else len(set(map(as_text, values))) > 1


def _check_count(design: str, swept: Values, listed: int) -> None:
    """Raises Mistake for too many points, before they are listed. A search lists none of the values that it searches.

    `listed`: the points of an experiment that lists them, each of which takes every combination of the swept values.
    """
    lengths = {key: len(values) for key, values in swept.items() if not isinstance(values, Interval)}
    if design == "frontier":
        lengths = {key: length for key, length in lengths.items() if not grows(Dimension(key=key, values=swept[key]))}
    count = sum(lengths.values()) if design in ("axes", "levers") else prod(lengths.values())
    count *= max(1, listed)
    if count > MOST_POINTS:
        keys = ", ".join(f"{key} ({length:,} values)" for key, length in lengths.items() if length > 1)
        cure = "list fewer values, or search with design=frontier and interval()"
        raise Mistake(f"{keys}: these are {count:,} points, and a sweep lists up to {MOST_POINTS:,}; {cure}")


def _check_finite(key: str, values: Sequence[Any]) -> None:
    if isinstance(values, Interval):
        return
    for value in values:
        try:
            as_text(value)
        except (TypeError, ValueError):
            raise Mistake(f"{key}={value}: must be a finite number, a word, or lists and mappings of them") from None


def _check_parts(key: str, values: Sequence[Any], keys: Iterable[str]) -> None:
    """Raises Mistake if a key is given by itself, and again as a part of the values of a swept key."""
    for value in () if isinstance(values, Interval) else values:
        for part, _ in dotted({key: value}) if isinstance(value, Mapping) else ():
            for other in keys:
                if other != key and f"{part}.".startswith(f"{other}.") and other.startswith(f"{key}."):
                    raise Mistake(f"{other} is given twice, by itself and in {key}={typed(value)}; keep one")


def _check_objective(objective: Objective, points: Sequence[Point]) -> None:
    """Raises Mistake for a key that no point has: it would make every point equally large."""
    for key in objective.keys:
        values = [value for point in points if (value := point.get(key)) is not None]
        if not values:
            raise Mistake(f"objective={objective}: no point has {key}; name tokens, or keys such as batch and context")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise Mistake(f"objective={objective}: {key} is {typed(value)}, which is not a number")


def _check_references(reference: Mapping[str, Any], plan: Plan) -> None:
    """Raises Mistake if the sweep lacks the point that another point's quality is compared with."""
    if not reference:
        return
    references = plan.settler.quality_references
    planned = {point.id for point in plan.points}
    named = " ".join(f"quality.reference.{key}={typed(value)}" for key, value in reference.items())
    if not any(each in references for each in planned):
        raise Mistake(f"{named}: there is no quality to compare; quality.target names the function that measures it")
    for point in plan.points:
        if references.get(point.id, point.id) not in planned:
            at = " ".join(f"{key}={typed(point[key])}" for key in reference if point.get(key) is not None)
            raise Mistake(f"{named}: no such point is in the sweep to compare those with {at} with; add its values")
