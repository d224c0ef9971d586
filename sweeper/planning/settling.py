"""How the values of one composed configuration settle into a point, or are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from runners.device import Card
from runners.point import Point, canonical
from runners.workloads.command import placeholders
from sweeper import quality
from sweeper.errors import Mistake, did_you_mean
from sweeper.plan import typed
from sweeper.planning.keys import (
    AT_LEAST,
    MOST,
    NULL_IS_A_CHOICE,
    POINT_KEYS,
    SWITCHES,
    TYPES,
    WORKLOAD_KEYS,
    _at_least,
    _one_of,
    _positive,
    _size,
)
from sweeper.units import SIZE

DTYPES = ("float32", "bfloat16", "float16", "float64")
SPELLED = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "float": "float32", "fp32": "float32", "f32": "float32", "double": "float64", "fp64": "float64", "f64": "float64",
}  # fmt: skip
LEAST_BUDGET = 2**20  # below, it was meant in another unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function of the user's takes."""

    parameters: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the values of a point are checked against, beside the schema."""

    swept: Collection[str]  # keys with several values
    signature: Callable[[str, str], Signature]  # of the function that a key names; raises Mistake
    cards: Mapping[str, Card]  # described in conf/card
    given: Collection[str] = ()  # keys that have a value of the user's own, or several


def settled(config: Mapping[str, Any], rules: Rules) -> Point:
    """The point of one composed configuration. Raises Mistake for the first value that is not right."""
    workload = dict(config["workload"])
    if "name" not in workload:
        raise Mistake("workload: choose one, as in workload=forward")
    uses = set(workload.pop("uses", WORKLOAD_KEYS))
    _choices(workload, workload.pop("choices", {}))
    _ranges(workload, workload.pop("at_least", {}))
    _of_use(workload, workload.pop("only_with", {}), rules.swept)
    if "target" in workload:
        signature = rules.signature("workload.target", workload["target"])
        uses = {key for key in uses if signature.takes(key)}
        _received(workload, signature)
    elif "argv" in workload:
        workload["argv"] = _words(workload["argv"])
        signature = _of_argv(workload)
        uses = {key for key in uses if signature.takes(key)}
        _received(workload, signature)
    _used(rules.swept, uses, workload)
    values = {key: _checked(key, config[key]) for key in POINT_KEYS}
    values["workload"] = workload
    if "inputs" in uses and values["inputs"].get("of_positions") is not None:
        values["context"] = _share_of_positions(values, rules.given)
    values["quality"] = {"target": _quality(values, uses, rules)}
    if values["budget"] is not None:
        values["budget"] = _budget(values["budget"], rules.cards)
    for key in WORKLOAD_KEYS:
        if key not in uses:
            values[key] = None
        elif (values[key] is None and key not in NULL_IS_A_CHOICE) or (key == "model" and "name" not in values[key]):
            example = "model=tiny-llama" if key == "model" else f"{key}={AT_LEAST.get(key, 1)}"
            raise Mistake(f"{key} has no value, and workload={workload['name']} uses it: give it one, as in {example}")
    return Point(values=_as_json(values))


def _checked(key: str, value: Any) -> Any:
    """Checked also where it makes no difference: context=0 is a mistake, whoever does not look at it."""
    return CHECKS[key](key, value) if key in CHECKS and value is not None else value


# Where the configuration of a model says how many positions it has, the first one that is there.
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions")


def _share_of_positions(values: Mapping[str, Any], given: Collection[str]) -> int:
    """The context that is this share of the model's positions; of generating, what the new tokens leave of it."""
    inputs, model = values["inputs"], values["model"]
    share = f"inputs.of_positions={typed(inputs['of_positions'])}"
    if "context" in given:
        raise Mistake(f"context: inputs={inputs['name']} sets it, to a share of the positions ({share}); leave one out")
    if isinstance(inputs["of_positions"], bool) or not 0 < inputs["of_positions"] <= 1:
        raise Mistake(f"{share}: must be a share of the model's positions, above 0 and at most 1")
    config = _configuration(model)
    for said in (config, config.get("text_config") or {}):
        for name in POSITIONS:
            if isinstance(said.get(name), int):
                context = int(said[name] * Decimal(str(inputs["of_positions"])))
                context -= values["workload"].get("new_tokens") or 0
                if context < 1:
                    raise Mistake(f"{share}: leaves no context out of the {said[name]} positions of {model['name']}")
                return context
    raise Mistake(f"inputs={inputs['name']}: the configuration of {model['name']} tells no positions; give a context")


def _configuration(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model's own configuration: as it is written out, or of a checkpoint's folder. Raises Mistake."""
    if "path" not in model:
        return model.get("config") or {}
    try:
        config = json.loads((Path(model["path"]).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise Mistake(f"model.path={model['path']}: its positions are in config.json, which is not there") from error
    return config if isinstance(config, dict) else {}


def _quality(values: Mapping[str, Any], uses: Collection[str], rules: Rules) -> str | None:
    """The user's metric, which is called in every point. What its number is held against is a matter of the run."""
    target: str | None = values["quality"]["target"]
    if target is None:
        return None
    if "quality" not in uses:
        raise Mistake(f"quality.target={target}: workload={values['workload']['name']} has no model to give it")
    if values["phases"] == "whole":
        raise Mistake("phases=whole: quality.target would be measured with the rest; take phases=each")
    quality.check_call(target, rules.signature("quality.target", target).required)
    return target


def _dtype(key: str, value: str) -> str:
    name = value.removeprefix("torch.")
    name = SPELLED.get(name, name)
    if name not in DTYPES:
        near = did_you_mean(value, [*DTYPES, *SPELLED])
        raise Mistake(f"{key}={value}: must be one of {', '.join(DTYPES)}, in which a model computes{near}")
    return name


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(AT_LEAST, _at_least),
    **dict.fromkeys(SWITCHES, _one_of),
    "dtype": _dtype,
    "timeout": _positive,
}


def _budget(value: Any, cards: Mapping[str, Card]) -> int:
    """Whole bytes, so that 1GiB, 1024MiB and a card whose allocator can have as much are one point."""
    if isinstance(value, str) and value.startswith("card:"):
        card = value.removeprefix("card:")
        if card not in cards:
            raise Mistake(f"budget={value}: no such card{did_you_mean(card, cards) or f'; give a size, as in {SIZE}'}")
        return cards[card].usable_bytes
    return _size("budget", value, LEAST_BUDGET)


def _choices(workload: Mapping[str, Any], choices: Mapping[str, Collection[Any]]) -> None:
    for key, possible in choices.items():
        words = list(map(typed, possible))  # as words: 1 would else be one of true and false
        if typed(workload[key]) not in words:
            near = did_you_mean(typed(workload[key]), words)
            raise Mistake(f"workload.{key}={typed(workload[key])}: must be {' or '.join(words)}{near}")


def _ranges(workload: Mapping[str, Any], least: Mapping[str, float]) -> None:
    """A whole number as the bound wants a whole number; null is left to the workload."""
    for key, bound in least.items():
        value = Point(values=workload).get(key)
        kinds = (int,) if isinstance(bound, int) else (int, float)
        if value is None or (isinstance(value, kinds) and not isinstance(value, bool) and bound <= value <= MOST):
            continue
        raise Mistake(f"workload.{key}={typed(value)}: must be {TYPES[type(bound).__name__]}, {bound:g} or more")


def _of_use(workload: dict[str, Any], only_with: Mapping[str, Mapping[str, Any]], swept: Collection[str]) -> None:
    """Null for a key that makes no difference beside the others' values: its values are then one point."""
    for key, others in only_with.items():
        if all(workload[other] == value for other, value in others.items()):
            continue
        if f"workload.{key}" in swept and not any(f"workload.{other}" in swept for other in others):
            needed = " ".join(f"workload.{other}={typed(value)}" for other, value in others.items())
            raise Mistake(f"workload.{key} has several values, and is of use only with {needed}")
        workload[key] = None


def _received(workload: Mapping[str, Any], signature: Signature) -> None:
    """Whether the user's function takes every parameter it is given, and is given every one it needs."""
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


def _words(argv: Any) -> list[str]:
    """The arguments of a program, as they will be given to it: a number is written as it was typed."""
    if not isinstance(argv, list) or not argv or any(isinstance(each, (list, Mapping)) for each in argv):
        raise Mistake(f"workload.argv={typed(argv)}: must be a list of words, as in [python,train.py,--bs,'{{batch}}']")
    words = [typed(each) for each in argv]
    program = words[0]
    if "{" not in program and program != "python" and shutil.which(program) is None:
        raise Mistake(f"workload.argv: {program} is neither an executable file nor a name on PATH")
    return words


def _of_argv(workload: Mapping[str, Any]) -> Signature:
    """What stands in braces in a program's arguments, as if it were the parameters of a function."""
    try:
        names = placeholders(workload["argv"])
    except ValueError as error:
        raise Mistake(f"workload.argv: {error}") from None
    for name in names:
        if name not in CALLED_WITH and name not in (workload.get("params") or {}):
            near = did_you_mean(name, CALLED_WITH) or f"; workload.params.{name}=... would give it"
            raise Mistake(f"workload.argv: {{{name}}} stands for nothing{near}")
    return Signature(parameters=names, required=(), takes_any=False)


# What a workload of the user's is given by name, as far as it accepts it, beside `phase` and its params.
CALLED_WITH = ("batch", "context", "dtype", "device", "warmup", "repeats", "seed")


def _used(swept: Collection[str], uses: Collection[str], workload: Mapping[str, Any]) -> None:
    """Values of a key that makes no difference would be equal points, measured twice and told apart by nothing."""
    for key in swept:
        root = key.partition(".")[0]
        if root in WORKLOAD_KEYS and root not in uses:
            if "target" in workload and root in CALLED_WITH:
                raise Mistake(f"{key} has several values, and {workload['target']} takes no {root}")
            if "argv" in workload and root in CALLED_WITH:
                raise Mistake(f"{key} has several values, and workload.argv has no {{{root}}}")
            raise Mistake(f"{key} has several values, and workload={workload['name']} does not use it")


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        same: dict[str, Any] = json.loads(canonical(values))
    except (TypeError, ValueError):
        key = next(key for key, value in _leaves(values) if not _is_json(value))
        raise Mistake(f"{key}: must be a finite number, a word, true, false, null, or lists or mappings") from None
    return same


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_json(value: Any) -> bool:
    try:
        canonical(value)
    except (TypeError, ValueError):
        return False
    return True
