"""What is asked for: the plan, and how the values of one configuration settle into a point, or are refused.

Knows every key, its type and its range; nothing of Hydra. Past this module nobody checks a value again.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from runners.device import Card, Device
from runners.outcome import Status
from runners.point import Point, canonical
from runners.workloads.command import placeholders
from sweeper import quality
from sweeper.errors import Mistake
from sweeper.frontier.margins import WORDS
from sweeper.objective import Objective
from sweeper.units import SIZE, parse_bytes

# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A key with several values, as it is typed (`batch`, `model`, `model.width`), in the order asked for.

    Of an interval the values are whole numbers that are never written out (sweeper.designs.search.Interval).
    """

    key: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point, the one asked for before it that differs from it in the fewest dimensions, and in which it differs."""

    point: Point
    changed_from: str | None = None
    changed: tuple[str, ...] = ()
    nth: int = 1  # 2: once more, whatever the first attempt told
    later: bool = False  # it is in the plan, and nobody knows yet whether it has to be measured
    because: str | None = None  # it need not be measured: the attempt that implies how it would end


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """How the run is made: no dimension, and in no point's id."""

    name: str | None
    outputs: str
    python: str
    retry: tuple[str, ...]
    resume: str
    stop_after_same_error: int  # 0: never
    objective: Objective
    heartbeat: float
    parallel: bool
    trace: str = "never"
    quality: Mapping[str, Any] | None = None  # how it is compared: sweeper/quality.py
    confirm: str = "edge"  # what a frontier asks once more: edge, all, none
    repeat_points: int = 1  # attempts at every point
    margin: Mapping[str, int | str] = field(default_factory=dict)  # by name: bytes, or measured or calculated


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a command line asked for. `settle` gives the point of one value per dimension; the rest is fixed."""

    run: RunKeys
    design: str
    design_options: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]
    devices: tuple[Device, ...]
    points: tuple[Point, ...]  # each once, in the order of the design
    settle: Callable[[Mapping[str, Any]], Point]
    command: tuple[str, ...]  # the arguments, as they were typed
    reference_of: Callable[[Point], str | None] = lambda point: None  # the point its quality is held against, by id


# --- the keys ---------------------------------------------------------------------------------------------------------


@dataclass
class Keys:
    """The schema of conf/config.yaml, which has the defaults and says what each key is for."""

    model: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    design: dict[str, Any] = field(default_factory=dict)

    dtype: str = "float32"
    attention: str | None = None
    quantize: str = "none"
    batch: int = 1
    context: int = 1
    warmup: int | None = None
    repeats: int | None = None
    seed: int = 0
    start: str = "cold"
    allocator: str = "system"
    phases: str = "each"
    cache: str = "keep"
    tensors: bool = True
    timeout: float | None = None
    budget: Any = None
    quality: dict[str, Any] = field(default_factory=dict)

    devices: Any = "auto"
    name: str | None = None
    outputs: str = "outputs"
    python: str | None = None
    retry: Any = field(default_factory=list)
    resume: str = "same"
    stop_after_same_error: int = 0
    objective: str = "tokens"
    confirm: str = "edge"
    repeat_points: int = 1
    resolution: dict[str, Any] = field(default_factory=dict)
    margin: dict[str, Any] = field(default_factory=dict)
    heartbeat: float = 0.2
    parallel: bool = False
    trace: str = "never"

    grid: dict[str, Any] = field(default_factory=dict)
    points: list[Any] = field(default_factory=list)


# Which of these a workload uses it says under `uses`; the others make no difference to it, and are null in its points.
WORKLOAD_KEYS = (
    "model", "inputs", "dtype", "attention", "quantize", "batch", "context", "warmup", "repeats", "seed", "cache",
    "quality",
)  # fmt: skip
# What a workload's file says of its keys. None of them is a key itself, or stands in a point.
WORKLOAD_RULES = ("uses", "choices", "at_least", "only_with")
NULL_IS_A_CHOICE = ("attention",)  # the library's own
RUN_KEYS = (
    "devices", "name", "outputs", "python", "retry", "resume", "stop_after_same_error", "objective", "confirm",
    "repeat_points", "resolution", "margin", "heartbeat", "parallel", "trace",
)  # fmt: skip
LISTS = ("devices", "retry")  # the run keys that take several

SWITCHES = {
    "start": ("cold", "warm"),
    "allocator": ("system", "repeatable"),
    "phases": ("each", "whole"),
    "cache": ("keep", "empty"),
    "attention": ("eager", "sdpa", "flash_attention_2"),
    "quantize": ("none", "int8", "int4", "nf4"),
    "resume": ("same", "anew"),
    "confirm": ("edge", "all", "none"),
    "trace": ("never", "on_failure"),
}
AT_LEAST = {
    "batch": 1, "context": 1, "repeats": 1, "warmup": 0, "seed": 0, "stop_after_same_error": 0, "repeat_points": 1,
}  # fmt: skip
MOST = 2**63 - 1  # what a column of the tables holds
LONGEST_NAME = 200
DTYPES = ("float32", "bfloat16", "float16", "float64")
SPELLED = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "float": "float32", "fp32": "float32", "f32": "float32", "double": "float64", "fp64": "float64", "f64": "float64",
}  # fmt: skip
LEAST_BUDGET = 2**20  # below, it was meant in another unit
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}
RETRIED = tuple(str(each) for each in Status if each not in (Status.OK, Status.SKIPPED, Status.NOT_RUN))


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """` (did you mean batch?)`, or nothing."""
    near = difflib.get_close_matches(str(word), list(known), 1, 0.65)
    return f" (did you mean {near[0]}?)" if near else ""


def expected(key: str) -> str:
    """What the schema wants of a key, in words."""
    types = {each.name: str(each.type) for each in fields(Keys)}
    return TYPES.get(types.get(key, "").partition(" | ")[0], "another kind of value")


def typed(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else canonical(value)


# --- points -----------------------------------------------------------------------------------------------------------


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


POINT_KEYS = tuple(each.name for each in fields(Keys) if each.name not in (*RUN_KEYS, "design", "grid", "points"))


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


def _at_least(key: str, value: int) -> int:
    if not AT_LEAST[key] <= value <= MOST:
        raise Mistake(f"{key}={value}: must be {AT_LEAST[key]} or more{', and at most 2^63-1' if value > MOST else ''}")
    return value


def _one_of(key: str, value: str) -> str:
    if value not in SWITCHES[key]:
        raise Mistake(f"{key}={value}: must be {' or '.join(SWITCHES[key])}{did_you_mean(value, SWITCHES[key])}")
    return value


def _positive(key: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise Mistake(f"{key}={value:g}: must be a number of seconds above 0")
    return value


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


def _size(key: str, value: Any, least: int) -> int:
    size = parse_bytes(value)
    if size is None:
        raise Mistake(f"{key}={typed(value)}: must be a size, as in {SIZE}")
    if size < least:
        raise Mistake(f"{key}={value}: that is {size} bytes; write {SIZE}")
    return size


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


# --- the run ----------------------------------------------------------------------------------------------------------


def run_keys(config: Mapping[str, Any]) -> RunKeys:
    """How the run is made. Raises Mistake."""
    if not config["outputs"]:
        raise Mistake("outputs=: name a folder")
    return RunKeys(
        name=_run_name(config["name"]),
        outputs=config["outputs"],
        python=interpreter(config["python"]),
        retry=_retry(listed(config["retry"])),
        resume=_one_of("resume", config["resume"]),
        stop_after_same_error=_at_least("stop_after_same_error", config["stop_after_same_error"]),
        objective=Objective.parse(config["objective"]),
        confirm=_one_of("confirm", config["confirm"]),
        repeat_points=_at_least("repeat_points", config["repeat_points"]),
        margin={str(name): _term(str(name), value) for name, value in config["margin"].items()},
        heartbeat=_positive("heartbeat", config["heartbeat"]),
        parallel=config["parallel"],
        trace=_one_of("trace", config["trace"]),
        quality=quality.fixed(config["quality"]),
    )


def is_of_run(key: str) -> bool:
    """Whether a key, as it is typed, says how the run is made."""
    return key.partition(".")[0] in RUN_KEYS or ".".join(key.split(".")[:2]) in quality.OF_RUN


def listed(value: Any) -> list[Any]:
    """A run key that takes several: one word is a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _run_name(name: str | None) -> str | None:
    if name is not None and len(name) > LONGEST_NAME:
        raise Mistake(f"name={name[:20]}...: must be {LONGEST_NAME} letters or less, and has {len(name)}")
    if name is not None and (not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name in (".", "..")):
        raise Mistake(f"name={name}: must be letters, digits, '.', '_' and '-', and is a folder's name in outputs")
    return name


def resolutions(config: Mapping[str, Any], intervals: Collection[str]) -> dict[str, int]:
    """How finely each interval is searched, by its key. Raises Mistake."""
    found = dict(_leaves(config["resolution"]))
    for key, value in found.items():
        if key not in intervals:
            known = ", ".join(intervals) or "there is none"
            raise Mistake(f"resolution.{key}={typed(value)}: is of an interval that is searched ({known})")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Mistake(f"resolution.{key}={typed(value)}: must be a whole number, 1 or more")
    return {key: found.get(key, 1) for key in intervals}


def _term(name: str, value: Any) -> int | str:
    """A term of the margin: bytes that the user assumes, or where rows of the run tell it from."""
    if not isinstance(value, str) or value not in WORDS:
        return _size(f"margin.{name}", value, least=0)
    if name not in WORDS[value]:
        verb = "measures" if value == "measured" else "calculates"
        raise Mistake(f"margin.{name}={value}: a run {verb} {', '.join(WORDS[value])}; give bytes, as in {SIZE}")
    return value


def _retry(statuses: Iterable[Any]) -> tuple[str, ...]:
    asked = [str(status) for status in statuses]
    for status in asked:
        if status not in (*RETRIED, "all"):
            near = did_you_mean(status, RETRIED)
            raise Mistake(f"retry={status}: must be all, or statuses out of {', '.join(RETRIED)}{near}")
    return RETRIED if "all" in asked else tuple(dict.fromkeys(asked))


def interpreter(python: str | None) -> str:
    """The measured interpreter, as an absolute path. A link stays one: the environment of a venv hangs on its name."""
    if python is None:
        return sys.executable
    name = os.path.expanduser(python)
    found = shutil.which(name)
    if found is None:
        path = Path(name)
        if path.is_dir():
            raise Mistake(f"python={python}: is a folder; name the interpreter, as in {path / 'bin' / 'python'}")
        why = "is not executable" if path.exists() else "is neither a file nor a name on PATH"
        raise Mistake(f"python={python}: {why}")
    return os.path.abspath(found)
