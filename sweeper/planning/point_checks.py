"""Settles the values of one composed configuration into a point, or refuses them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from runners.device import Card
from runners.point import Point, canonical
from runners.workloads.command import placeholders
from sweeper import quality
from sweeper.cards import card_named
from sweeper.errors import Mistake, NotTogether, did_you_mean
from sweeper.plan import dotted, typed
from sweeper.planning.model_checks import Configuration, configuration_in, configuration_of, refuse_model
from sweeper.planning.schema import (
    CHOICES,
    LATER_KEYS,
    MAXIMUM,
    MINIMUM,
    NULLABLE,
    POINT_KEYS,
    REFUSED_VARIABLES,
    TYPE_NAMES,
    WORKLOAD_KEYS,
)
from sweeper.planning.suggestions import instead_of, no_such_card
from sweeper.planning.value_checks import at_least, one_of, positive_seconds, size_in_bytes
from sweeper.prompt_chunks import refused_chunk
from sweeper.units import format_bytes, typed_bytes

DTYPES = ("float32", "bfloat16", "float16", "float64")
DTYPE_ALIASES = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "float": "float32", "fp32": "float32", "f32": "float32", "double": "float64", "fp64": "float64", "f64": "float64",
}  # fmt: skip
MINIMUM_BUDGET_BYTES = 2**20  # a smaller number was probably meant in another unit
# Where a model's configuration has its number of positions; the first key that is present counts.
POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions")
# Arguments that a user's function receives by name besides `phase` and its params, if it accepts them.
PYTHON = ("python", "python3")  # the measured interpreter, as a program's name
CALLED_WITH = ("batch", "context", "dtype", "device", "warmup", "repeats", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parameters of a user's function."""

    parameters: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The conditions that a point has to meet in addition to the schema."""

    swept: Collection[str]  # keys with more than one value
    signature: Callable[[str, str], Signature]  # (key, target) -> that function's; raises Mistake
    cards: Mapping[str, Card]  # by name, from conf/card
    interpreter: str = "python"  # the path of the measured one
    listed: Collection[str] = ()  # keys in which listed points differ
    given: Collection[str] = ()  # keys that the user gave one or more values
    # (path, revision) of a checkpoint -> its configuration; raises Mistake
    configuration: Configuration = configuration_in

    @property
    def varied(self) -> tuple[str, ...]:
        return (*self.swept, *self.listed)


def settled(config: Mapping[str, Any], rules: Rules) -> Point:
    """The point of one composed configuration. Raises Mistake for the first invalid value."""
    workload = dict(config["workload"])
    if "name" not in workload:
        raise Mistake("workload: choose one, as in workload=forward")
    uses = set(workload.pop("uses", WORKLOAD_KEYS))
    _check_choices(workload, workload.pop("choices", {}))
    _check_ranges(workload, workload.pop("at_least", {}))
    _null_where_unused(workload, workload.pop("only_with", {}), rules)
    _check_division(workload, workload.pop("divides", {}), config)
    if "target" in workload:
        signature = rules.signature("workload.target", workload["target"])
        uses = {key for key in uses if signature.takes(key)}
        _check_parameters(workload, signature)
    elif "argv" in workload:
        workload["argv"] = _argv(workload["argv"], rules.interpreter)
        signature = _placeholders(workload)
        uses = {key for key in uses if signature.takes(key)}
        _check_parameters(workload, signature)
    _check_assumed(workload)
    _check_unused_keys(rules, uses, workload)
    values = {key: _checked(key, config[key]) for key in POINT_KEYS}
    values["workload"] = workload
    values.pop("env")
    if config["env"]:  # absent where there is none: the id of such a point is that of earlier versions
        values["env"] = _environment(config["env"])
    if "inputs" in uses and values["inputs"].get("of_positions") is not None:
        values["context"] = _share_of_positions(values, rules)
    values["quality"] = {"target": _quality(values, uses, rules)}
    others = values["used_by_others"]
    if others is not None:
        least = MINIMUM_BUDGET_BYTES if isinstance(others, int) and others > 0 else 0  # 1 was meant in another unit
        values["used_by_others"] = others = size_in_bytes("used_by_others", others, least)
    if values["budget"] is not None:
        values["budget"] = _budget(values["budget"], rules.cards, others or 0)
    for key in WORKLOAD_KEYS:
        if key not in uses:
            values[key] = None
        elif (values[key] is None and key not in NULLABLE) or (key == "model" and "name" not in values[key]):
            example = "model=tiny-llama" if key == "model" else f"{key}={MINIMUM.get(key, 1)}"
            raise Mistake(f"{key} has no value, and workload={workload['name']} uses it: give it one, as in {example}")
    refuse_model(values, rules.varied)
    model = values["model"] or {}
    model_type = model.get("model_type") or configuration_of(model, rules.configuration).get("model_type")
    if why := refused_chunk(workload, values["context"], model.get("name"), model_type):
        raise NotTogether(f"{why}; leave out one of them")
    return Point(values=_as_json({key: value for key, value in values.items() if not _is_later_null(key, value)}))


def _is_later_null(key: str, value: Any) -> bool:
    return value is None and key in LATER_KEYS


def _environment(variables: Mapping[str, Any]) -> dict[str, str | None]:
    """Environment variables as text; None removes one. Raises Mistake."""
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Mistake(f"env.{name}: must be the name of an environment variable, of letters, digits and _")
        if name in REFUSED_VARIABLES:
            raise Mistake(f"env.{name}: {REFUSED_VARIABLES[name]}")
        if isinstance(value, (list, Mapping)) or "\0" in typed(value):
            raise Mistake(f"env.{name}={typed(value)}: must be a word, a number or null, in quotes if it has a comma")
    return {name: None if value is None else typed(value) for name, value in variables.items()}


def _checked(key: str, value: Any) -> Any:
    """Checked even where the workload does not use it: context=0 is a mistake everywhere."""
    return CHECKS[key](key, value) if key in CHECKS and value is not None else value


def _share_of_positions(values: Mapping[str, Any], rules: Rules) -> int:
    """The context that fills this share of the model's positions, less the new tokens where some are generated."""
    inputs, model = values["inputs"], values["model"]
    share = f"inputs.of_positions={typed(inputs['of_positions'])}"
    if "context" in rules.given:
        raise Mistake(f"context: inputs={inputs['name']} sets it to a share of the positions ({share}); leave one out")
    if isinstance(inputs["of_positions"], bool) or not 0 < inputs["of_positions"] <= 1:
        raise Mistake(f"{share}: must be a share of the model's positions, above 0 and at most 1")
    positions = positions_of(configuration_of(model, rules.configuration))
    if positions is None:
        raise Mistake(f"inputs={inputs['name']}: {model['name']} has no positions in its configuration; give a context")
    context = int(positions * Decimal(str(inputs["of_positions"]))) - (values["workload"].get("new_tokens") or 0)
    if context < 1:
        raise Mistake(f"{share}: leaves no context out of the {positions} positions of {model['name']}")
    return context


def positions_of(config: Mapping[str, Any]) -> int | None:
    """The number of tokens that a model was made for, as its configuration has it."""
    candidates = [each.get(key) for each in (config, config.get("text_config") or {}) for key in POSITION_KEYS]
    return next((each for each in candidates if isinstance(each, int)), None)


def _quality(values: Mapping[str, Any], uses: Collection[str], rules: Rules) -> str | None:
    """The user's metric, checked. The settings of its comparison are keys of the run (quality.RUN_KEYS)."""
    target: str | None = values["quality"]["target"]
    if target is None:
        return None
    if "quality" not in uses:
        raise Mistake(f"quality.target={target}: workload={values['workload']['name']} has no model to give it")
    if values["phases"] == "whole":
        raise Mistake("phases=whole: quality.target would be measured with the rest; use phases=each")
    quality.check_call(target, rules.signature("quality.target", target).required)
    return target


def _dtype(key: str, value: str) -> str:
    name = value.removeprefix("torch.")
    name = DTYPE_ALIASES.get(name, name)
    if name not in DTYPES:
        near = instead_of(key, value, [*DTYPES, *DTYPE_ALIASES])
        raise Mistake(f"{key}={value}: must be one of {', '.join(DTYPES)}{near}")
    return name


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(MINIMUM, at_least),
    **dict.fromkeys(CHOICES, one_of),
    "dtype": _dtype,
    "timeout": positive_seconds,
}


def _budget(value: Any, cards: Mapping[str, Card], others: int) -> int:
    """In bytes, so that 1GiB, 1024MiB and a card with that much usable memory are the same point.

    `others` is what other processes use of the card that the budget is named after.
    """
    if isinstance(value, str) and value.startswith("card:"):
        typed_name = value.removeprefix("card:")
        card = card_named(typed_name, cards)
        if card is None:
            raise Mistake(no_such_card(f"budget={value}", typed_name, list(cards), "card:"))
        usable = cards[card].usable_bytes
        if usable - others < MINIMUM_BUDGET_BYTES:
            left = f"leaves too little of the {format_bytes(usable)} of budget={value}"
            raise Mistake(f"used_by_others={typed_bytes(others)}: {left}; give less")
        return usable - others
    return size_in_bytes("budget", value, MINIMUM_BUDGET_BYTES, list(cards))


def _check_choices(workload: Mapping[str, Any], choices: Mapping[str, Collection[Any]]) -> None:
    for key, possible in choices.items():
        words = list(map(typed, possible))  # compared as text: 1 == True
        if typed(workload[key]) not in words:
            near = instead_of(f"workload.{key}", typed(workload[key]), words)
            raise Mistake(f"workload.{key}={typed(workload[key])}: must be {' or '.join(words)}{near}")


def _check_ranges(workload: Mapping[str, Any], minimum: Mapping[str, float]) -> None:
    """A bound that is a whole number allows only whole numbers. Null is always allowed."""
    for key, bound in minimum.items():
        value = Point(values=workload).get(key)
        kinds = (int,) if isinstance(bound, int) else (int, float)
        if value is None or (isinstance(value, kinds) and not isinstance(value, bool) and bound <= value <= MAXIMUM):
            continue
        raise Mistake(f"workload.{key}={typed(value)}: must be {TYPE_NAMES[type(bound).__name__]}, {bound:g} or more")


def _null_where_unused(workload: dict[str, Any], only_with: Mapping[str, Mapping[str, Any]], rules: Rules) -> None:
    """Set keys to null that have no effect with the other values, so that their values settle to one point.

    Raises Mistake for such a key if it was given, and the other values are the same in every point.
    """
    for key, others in only_with.items():
        if all(workload[other] == value for other, value in others.items()):
            continue
        name, vary = f"workload.{key}", any(f"workload.{other}" in rules.varied for other in others)
        if not vary and (name in rules.swept or name in rules.given):
            needed = " ".join(f"workload.{other}={typed(value)}" for other, value in others.items())
            given = f"{name} has several values, and" if name in rules.swept else f"{name}={typed(workload[key])}"
            raise Mistake(f"{given} has an effect only with {needed}")
        workload[key] = None


def _check_assumed(workload: dict[str, Any]) -> None:
    """A null is left out, so that the ids of earlier points stay as they were. Raises Mistake for no finite number."""
    assumed = workload.get("assume")
    if assumed is None:
        workload.pop("assume", None)
    elif isinstance(assumed, bool) or not isinstance(assumed, (int, float)) or not math.isfinite(assumed):
        raise Mistake(f"workload.assume={typed(assumed)}: must be a finite number, as in workload.assume=0.5")
    else:
        workload["assume"] = float(assumed)


def _check_division(workload: Mapping[str, Any], divides: Mapping[str, str], config: Mapping[str, Any]) -> None:
    """Raises NotTogether if a key of the workload is not a divisor of the key of the point that it divides."""
    for key, other in divides.items():
        parts, whole = workload[key], config[other]
        if parts and whole is not None and whole % parts:
            cure = f"{other} must be a multiple of {parts}, in an interval by resolution.{other}={parts}"
            raise NotTogether(f"workload.{key}={parts}: {other}={whole} cannot be split into equal parts; {cure}")


def _check_parameters(workload: Mapping[str, Any], signature: Signature) -> None:
    """Raises Mistake if the user's function does not accept a parameter, or requires one that is not given."""
    target, params = workload.get("target", "workload.argv"), workload.get("params")
    if not isinstance(params, Mapping):
        raise Mistake(f"workload.params={typed(params)}: must be keys and values, as in workload.params.width=512")
    for key in params:
        if key in (*CALLED_WITH, "phase"):
            raise Mistake(f"workload.params.{key}: {key} is given by sweeper; leave out workload.params.")
        if not signature.takes(key):
            near = did_you_mean(key, [name for name in signature.parameters if name not in CALLED_WITH])
            raise Mistake(f"workload.params.{key}: {target} takes no {key}{near}")
    for name in signature.required:
        if name not in params and name not in (*CALLED_WITH, "phase"):
            raise Mistake(f"workload.params.{name}: {target} needs it, as in workload.params.{name}=1")


def _argv(argv: Any, interpreter: str) -> list[str]:
    """A program's arguments as strings; numbers keep the form in which they were typed."""
    if not isinstance(argv, list) or not argv or any(isinstance(each, (list, Mapping)) for each in argv):
        raise Mistake(f"workload.argv={typed(argv)}: must be a list of words, as in [python,train.py,--bs,'{{batch}}']")
    words = [typed(each) for each in argv]
    program = words[0]
    beside = os.path.join(os.path.dirname(interpreter), program)  # where an environment has its programs
    if "{" not in program and program not in PYTHON and not (shutil.which(program) or shutil.which(beside)):
        raise Mistake(f"workload.argv: {program} is neither an executable file nor a name on PATH")
    return words


def _placeholders(workload: Mapping[str, Any]) -> Signature:
    """The placeholders in a program's arguments, as the parameters of a function."""
    try:
        names = placeholders(workload["argv"])
    except ValueError as error:
        raise Mistake(f"workload.argv: {error}") from None
    for name in names:
        if name not in CALLED_WITH and name not in (workload.get("params") or {}):
            near = did_you_mean(name, CALLED_WITH) or f"; workload.params.{name}=... would define it"
            raise Mistake(f"workload.argv: {{{name}}} is not defined{near}")
    return Signature(parameters=names, required=(), takes_any=False)


def _check_unused_keys(rules: Rules, uses: Collection[str], workload: Mapping[str, Any]) -> None:
    """Raises Mistake for a key without effect that was swept or given.

    The values of a swept one would be equal points, each measured again. One that was given once may have its effect in
    the points of another workload.
    """
    workload_varies = any(key.partition(".")[0] == "workload" for key in rules.varied)
    for key in [*rules.swept, *(() if workload_varies else sorted(rules.given))]:
        root = key.partition(".")[0]
        if root in WORKLOAD_KEYS and root not in uses:
            given = f"{key} has several values, and" if key in rules.swept else f"{key} was given, and"
            if "target" in workload and root in CALLED_WITH:
                raise Mistake(f"{given} {workload['target']} takes no {root}")
            if "argv" in workload and root in CALLED_WITH:
                raise Mistake(f"{given} workload.argv has no {{{root}}}")
            raise Mistake(f"{given} workload={workload['name']} does not use it")


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        same: dict[str, Any] = json.loads(canonical(values))
    except (TypeError, ValueError):
        key = next(key for key, value in dotted(values) if not _is_json(value))
        raise Mistake(f"{key}: must be a finite number, a word, true, false, null, or lists or mappings") from None
    return same


def _is_json(value: Any) -> bool:
    try:
        canonical(value)
    except (TypeError, ValueError):
        return False
    return True
