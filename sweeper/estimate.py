"""Arithmetic on a point before anything runs: exact integers, each with its formula, assumption and source.

Pure, and without torch: a parameter count comes from the model's own configuration in closed form. What has no closed
form here has no term, and says so; a guess would stand in a table beside the measured and be believed.

    weights    what the parameters take, a tied matrix once
    gradients  one for each trained parameter, in its own type
    optimizer  what the optimizer keeps between steps
    kv_cache   keys and values of the tokens, for each key-value head
    reserve    what somebody assumed; named so

Activations, logits, temporaries, the allocator's rounding and the device's context are in none of them: they are what
a sweep measures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from fractions import Fraction
from json import dumps
from math import ceil
from pathlib import Path
from typing import Any

from runners.point import Attempt, AttemptFolder, Point, canonical
from sweeper.designs import DESIGNS, NOTHING
from sweeper.errors import Mistake
from sweeper.plan import Asked, Plan, did_you_mean, typed
from sweeper.run_folder import POINTS

GIB = 2**30
GB = 10**9
BITS_ASKED = (4, 8, 16, 32)
DTYPE_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
LISTED = 40  # points on the screen; --json has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One summand: whole bytes, and where they come from."""

    term: str
    bytes: int
    formula: str
    assumption: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The terms of one point, and one sentence for each that has no closed form here."""

    terms: tuple[Term, ...] = ()
    not_estimated: tuple[str, ...] = ()


class NoClosedForm(Exception):
    """Says what the arithmetic does not know; becomes a sentence of the estimate, never a number."""


def terms(values: Mapping[str, Any]) -> list[Term]:
    """The terms of a point's settled values; those without a closed form are left out."""
    return list(estimate(values).terms)


def estimate(values: Mapping[str, Any]) -> Estimate:
    found: list[Term] = []
    missing: list[str] = []
    for name, term in _asked_of(values):
        try:
            found.append(term(values))
        except NoClosedForm as reason:
            missing.append(f"{name}: not estimated, {reason}")
    return Estimate(terms=tuple(found), not_estimated=tuple(missing))


def _asked_of(values: Mapping[str, Any]) -> Sequence[tuple[str, Callable[[Mapping[str, Any]], Term]]]:
    """Which terms a workload has."""
    workload = _name(values.get("workload"))
    if workload == "forward":
        return [("weights", _weights_of)]
    if workload == "train":
        return [("weights", _weights_of), ("gradients", _gradients_of), ("optimizer", _optimizer_of)]
    if workload == "generate":
        return [("weights", _weights_of), ("kv_cache", _kv_cache_of)]
    return [("weights", _unknown_workload)]


def _unknown_workload(values: Mapping[str, Any]) -> Term:
    raise NoClosedForm(f"only the code of workload={_name(values.get('workload'))} knows what it builds")


# --- the terms --------------------------------------------------------------------------------------------------------


def weights(parameters: int, bits: int) -> Term:
    """Parameters at so many bits each, rounded up to the byte: 3 parameters of 4 bits take 2 bytes."""
    return Term(
        term="weights",
        bytes=-(-parameters * bits // 8),
        formula=f"{parameters:,} parameters x {bits} bits / 8",
        assumption="every parameter at the same width; no scales or zero points of a quantised format, no buffers",
        source="arithmetic",
    )


def kv_cache(*, layers: int, kv_heads: int, head_dim: int, tokens: int, sequences: int, element_bytes: int) -> Term:
    """Keys and values: one vector of each per layer, key-value head and token. Query heads do not count."""
    return Term(
        term="kv_cache",
        bytes=2 * layers * kv_heads * head_dim * tokens * sequences * element_bytes,
        formula=(
            f"2 (key, value) x {layers} layers x {kv_heads} key-value heads x {head_dim} head dimension"
            f" x {tokens:,} tokens x {sequences} sequences x {element_bytes} bytes"
        ),
        assumption="every token of every sequence is kept, unquantised, and nothing is allocated ahead",
        source="arithmetic",
    )


def reserve(gib: Decimal) -> Term:
    """An assumed reserve, rounded up to the byte."""
    return Term(
        term="reserve",
        bytes=ceil(Fraction(gib) * GIB),
        formula=f"{gib:f} GiB x 2^30",
        assumption="a figure given by whoever asked, for everything that is not weights; nothing here calculates it",
        source="reserve_gib",
    )


def _weights_of(values: Mapping[str, Any]) -> Term:
    count = parameters(values)
    term = weights(count.total, _bits(values))
    return Term(
        term=term.term,
        bytes=term.bytes,
        formula=f"{count.total:,} parameters x {_bits(values) // 8} bytes",
        assumption=f"stored as {values['dtype']}, a tied matrix once; buffers and adapters are left out",
        source=count.formula,
    )


def _gradients_of(values: Mapping[str, Any]) -> Term:
    count = parameters(values)
    _all_are_trained(values)
    return Term(
        term="gradients",
        bytes=count.total * _bits(values) // 8,
        formula=f"{count.total:,} parameters x {_bits(values) // 8} bytes",
        assumption="every parameter is trained; its gradient has its own type, and all are alive at once",
        source="torch.Tensor.grad has its tensor's shape and type",
    )


def _optimizer_of(values: Mapping[str, Any]) -> Term:
    count = parameters(values)
    _all_are_trained(values)
    states, kept = _optimizer_states(values["workload"])
    size = _bits(values) // 8
    assumption = "a state has its parameter's shape and type, and exists after the first step"
    if states >= 2:
        assumption += "; the step counter of each tensor (4 bytes) is neglected"
    return Term(
        term="optimizer",
        bytes=states * count.total * size,
        formula=f"{states} x {count.total:,} parameters x {size} bytes",
        assumption=assumption,
        source=kept,
    )


def _optimizer_states(workload: Mapping[str, Any]) -> tuple[int, str]:
    """How many tensors of a parameter's size the optimizer keeps for it, and which."""
    optimizer = str(_name(workload.get("optimizer"))).lower()
    options = workload["optimizer"] if isinstance(workload.get("optimizer"), Mapping) else workload
    optimizer = re.sub("^adamw-(forloop|foreach|fused)$", "adamw", optimizer)  # implementations: they keep the same
    if optimizer in ("adamw", "adam"):
        if options.get("amsgrad"):
            return 3, f"torch.optim.{optimizer}: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq"
        return 2, f"torch.optim.{optimizer}: exp_avg and exp_avg_sq"
    if optimizer == "sgd":
        if options.get("momentum"):
            return 1, "torch.optim.sgd: momentum_buffer"
        return 0, "torch.optim.sgd without momentum keeps nothing"
    raise NoClosedForm(f"the states of workload.optimizer={optimizer} are not known here")


def _kv_cache_of(values: Mapping[str, Any]) -> Term:
    shape = _architecture(values).attention
    if shape is None:
        raise NoClosedForm(f"model={_name(values.get('model'))} has no attention to keep keys and values for")
    workload = values["workload"]
    if "new_tokens" not in workload:
        raise NoClosedForm("workload.new_tokens is not known")
    cache, concurrency = workload.get("cache"), workload.get("concurrency", 1)
    if cache in NOT_PLAIN:
        raise NoClosedForm(f"workload.cache={cache} {NOT_PLAIN[cache]}")
    if workload.get("packing") == "packed" and concurrency > 1:
        raise NoClosedForm("workload.packing=packed keeps no more than the prompts have, each a length of its own")
    tokens = values["context"] + workload["new_tokens"]
    if cache in ("dynamic", "sliding"):
        tokens -= 1  # the last token is chosen and never read: only a static cache has room for it
    if shape.window is not None and tokens > shape.window and cache != "dynamic":
        if cache is None or not shape.all_windowed:
            raise NoClosedForm(f"{tokens:,} tokens are more than the sliding window of {shape.window:,}")
        tokens = shape.window
    term = kv_cache(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tokens=tokens,
        sequences=values["batch"] * concurrency,
        element_bytes=_bits(values) // 8,
    )
    return replace(term, assumption=KEPT.get(cache, term.assumption))


KEPT = {
    "static": "room for all new tokens, or for a window of them, is taken at once, in the point's dtype",
    "sliding": "no layer keeps more than its window, in the point's dtype; the prefill holds the whole prompt",
}
NOT_PLAIN = {
    "quantized": "keeps bits and scales of the library's own",
    "offloaded": "keeps on the host what is not at work",
}


def _all_are_trained(values: Mapping[str, Any]) -> None:
    method = values["workload"].get("method", "full")
    if method != "full":
        raise NoClosedForm(f"workload.method={method} trains parameters of its own, which are not counted here")


def _bits(values: Mapping[str, Any]) -> int:
    quantize = values.get("quantize") or "none"
    if quantize != "none":
        raise NoClosedForm(f"quantize={quantize} leaves some modules as they are, and which hangs on the model's code")
    dtype = str(values.get("dtype"))
    if dtype not in DTYPE_BITS:
        raise NoClosedForm(f"the width of dtype={dtype} is not known")
    return DTYPE_BITS[dtype]


def _name(option: Any) -> Any:
    """The name of a group's option; a scalar is its own."""
    return option.get("name") if isinstance(option, Mapping) else option


# --- parameters of the architectures known here -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What decides the size of a key-value cache."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    all_windowed: bool = False  # no layer is without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A count, the sum it is, and the shape of the attention where there is one."""

    total: int
    formula: str
    attention: Attention | None = None


def parameters(values: Mapping[str, Any]) -> Parameters:
    """The parameters of the point's model. Raises NoClosedForm for a model that is not known to the last one."""
    return _architecture(values)


def _architecture(values: Mapping[str, Any]) -> Parameters:
    model = values.get("model")
    if not isinstance(model, Mapping):
        raise NoClosedForm("there is no model")
    if model.get("library") == "torch" and model.get("name") == "mlp":
        return _mlp(model)
    kind = model.get("model_type")
    if kind not in ARCHITECTURES:
        raise NoClosedForm(f"the parameters of model={_name(model)} have no closed form here")
    architecture = ARCHITECTURES[kind]
    return architecture.count(architecture.read(model.get("config") or {}))


def _mlp(model: Mapping[str, Any]) -> Parameters:
    width = model["width"]
    return Parameters(total=2 * (width * width + width), formula=f"2 x ({width} x {width} weights + {width} biases)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A `model_type` of transformers: the keys its count is made of, with the defaults that the library has."""

    count: Callable[[Mapping[str, Any]], Parameters]
    needs: tuple[str, ...]
    defaults: Mapping[str, Any]
    also_called: Mapping[str, str] | None = None  # the library's second name for a key -> the first

    def read(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration with its defaults. A key that is not known here might change the count: no closed form."""
        also_called = self.also_called or {}
        given = {also_called.get(key, key): value for key, value in config.items()}
        missing = [key for key in self.needs if given.get(key) is None]
        if missing:
            raise NoClosedForm(f"model.config does not say {missing[0]}")
        unknown = sorted(set(given) - set(self.needs) - set(self.defaults) - NO_PARAMETERS)
        if unknown:
            raise NoClosedForm(f"model.config.{unknown[0]} is not known here and might change the count")
        return {**self.defaults, **given}


# Keys of transformers' configurations that no parameter depends on.
NO_PARAMETERS = frozenset(
    {
        "activation_function",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "attn_pdrop",
        "bos_token_id",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "hidden_act",
        "initializer_range",
        "layer_norm_epsilon",
        "layer_types",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "original_max_position_embeddings",
        "pad_token_id",
        "partial_rotary_factor",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "scale_attn_by_inverse_layer_idx",
        "scale_attn_weights",
        "sliding_window",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
    }
)


def _llama(config: Mapping[str, Any]) -> Parameters:
    return _decoder(
        config,
        qkv_bias=config["attention_bias"],
        out_bias=config["attention_bias"],
        mlp_bias=config["mlp_bias"],
    )


def _mistral(config: Mapping[str, Any]) -> Parameters:
    return _decoder(config, qkv_bias=False, out_bias=False, mlp_bias=False)


def _qwen2(config: Mapping[str, Any]) -> Parameters:
    return _decoder(config, qkv_bias=True, out_bias=False, mlp_bias=False)


def _decoder(config: Mapping[str, Any], *, qkv_bias: bool, out_bias: bool, mlp_bias: bool) -> Parameters:
    """Embedding, layers of (attention, gated mlp, two norms), a norm, and a head unless it is the embedding."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
    kv_heads = heads if config["num_key_value_heads"] is None else config["num_key_value_heads"]
    dimension = hidden // heads if config["head_dim"] is None else config["head_dim"]
    queries, keys = heads * dimension, kv_heads * dimension
    attention = hidden * (queries + 2 * keys) + queries * hidden
    attention += (queries + 2 * keys if qkv_bias else 0) + (hidden if out_bias else 0)
    mlp = 3 * hidden * inner + (2 * inner + hidden if mlp_bias else 0)
    head = 0 if config["tie_word_embeddings"] else vocabulary * hidden
    total = vocabulary * hidden + layers * (attention + mlp + 2 * hidden) + hidden + head
    formula = (
        f"embedding {vocabulary * hidden:,} + {layers} layers x (attention {attention:,} + mlp {mlp:,}"
        f" + norms {2 * hidden:,}) + norm {hidden:,} + " + (f"head {head:,}" if head else "head tied to the embedding")
    )
    # A window counts where the configuration says that it is used: qwen2 names one and leaves it off.
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    all_windowed = "use_sliding_window" not in config  # a key of qwen2, which leaves some layers without
    shape = Attention(
        layers=layers, kv_heads=kv_heads, head_dim=dimension, window=window, all_windowed=all_windowed
    )
    return Parameters(total=total, formula=formula, attention=shape)


def _gpt2(config: Mapping[str, Any]) -> Parameters:
    """Learnt positions, biases everywhere, and layer norms of a weight and a bias."""
    hidden, layers, vocabulary = config["n_embd"], config["n_layer"], config["vocab_size"]
    inner = 4 * hidden if config["n_inner"] is None else config["n_inner"]
    attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden
    mlp = hidden * inner + inner + inner * hidden + hidden
    embeddings = (vocabulary + config["n_positions"]) * hidden
    head = 0 if config["tie_word_embeddings"] else vocabulary * hidden
    total = embeddings + layers * (attention + mlp + 4 * hidden) + 2 * hidden + head
    formula = (
        f"embeddings {embeddings:,} + {layers} layers x (attention {attention:,} + mlp {mlp:,} + norms {4 * hidden:,})"
        f" + norm {2 * hidden:,} + " + (f"head {head:,}" if head else "head tied to the embedding")
    )
    shape = Attention(layers=layers, kv_heads=config["n_head"], head_dim=hidden // config["n_head"])
    return Parameters(total=total, formula=formula, attention=shape)


_DECODER = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
ARCHITECTURES = {
    "llama": Architecture(
        count=_llama,
        needs=_DECODER,
        defaults={
            "num_key_value_heads": None,
            "head_dim": None,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    # These two have a number of key-value heads of their own where none is given: asked for, so that none is assumed.
    "mistral": Architecture(
        count=_mistral,
        needs=(*_DECODER, "num_key_value_heads"),
        defaults={"head_dim": None, "tie_word_embeddings": False, "sliding_window": 4096},
    ),
    "qwen2": Architecture(
        count=_qwen2,
        needs=(*_DECODER, "num_key_value_heads"),
        defaults={
            "head_dim": None,
            "tie_word_embeddings": False,
            "sliding_window": 4096,
            "use_sliding_window": False,
        },
    ),
    "gpt2": Architecture(
        count=_gpt2,
        needs=("n_embd", "n_layer", "n_head", "n_positions", "vocab_size"),
        defaults={"n_inner": None, "tie_word_embeddings": True},
        also_called={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
        },
    ),
}


# --- the bare form: three numbers, and no model -----------------------------------------------------------------------

PARAMETERS = re.compile(r"[0-9]{1,18}")
RESERVE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
BARE = {
    "parameters": "a whole number above 0, as in parameters=7000000000",
    "bits": "one of 4, 8, 16, 32",
    "reserve_gib": "a number of GiB, 0 or more, as in reserve_gib=4 or 0.5",
}


def is_bare(arguments: Sequence[str]) -> bool:
    """Whether `estimate` was given numbers of its own and no configuration."""
    return any(argument.partition("=")[0] in BARE for argument in arguments)


def bare(arguments: Sequence[str], json: bool = False) -> int:
    """`estimate parameters=7000000000 bits=16 reserve_gib=4`: works without a configuration, Hydra or torch."""
    given = _bare_keys(arguments)
    found = [weights(_count(given["parameters"]), _width(given["bits"]))]
    if "reserve_gib" in given:
        found.append(reserve(_reserve(given["reserve_gib"])))
    if json:
        print(dumps(_as_json(Estimate(terms=tuple(found)))))
    else:
        print("\n".join(_lines(Estimate(terms=tuple(found)))))
    return 0


def _bare_keys(arguments: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise Mistake(f"cannot read {argument!r}: write key=value, as in parameters=7000000000 bits=16")
        if key not in BARE:
            near = did_you_mean(key, BARE)
            raise Mistake(f"{key}={value}: beside parameters, bits and reserve_gib nothing is taken{near}")
        if key in given:
            raise Mistake(f"{key} is given twice, {given[key]} and {value}: it is one number")
        given[key] = value
    for key in ("parameters", "bits"):
        if key not in given:
            raise Mistake(f"{key} is missing: {BARE[key]}")
    return given


def _count(value: str) -> int:
    if not PARAMETERS.fullmatch(value) or int(value) == 0:
        raise Mistake(f"parameters={value}: must be {BARE['parameters']}")
    return int(value)


def _width(value: str) -> int:
    if value not in map(str, BITS_ASKED):
        raise Mistake(f"bits={value}: must be {BARE['bits']}")
    return int(value)


def _reserve(value: str) -> Decimal:
    if not RESERVE.fullmatch(value):
        raise Mistake(f"reserve_gib={value}: must be {BARE['reserve_gib']}")
    return Decimal(value)


# --- the plan ---------------------------------------------------------------------------------------------------------


def main(plan: Plan, json: bool = False) -> int:
    """Show what would be run, in its order, and the arithmetic of it. Starts nothing."""
    asked = _first_asked(plan)
    done = _measured(plan, [each.point for each in asked])
    groups = _alike([each.point for each in asked])
    if json:
        print(dumps(_plan_as_json(plan, asked, done, groups)))
    else:
        print("\n".join([*_plan_lines(plan, asked, done), *_estimate_lines(plan, groups)]))
    return 0


def _first_asked(plan: Plan) -> list[Asked]:
    """What the design asks for before it has been told anything: all of it, unless it searches."""
    return list(next(iter(DESIGNS[plan.design](plan, NOTHING)), []))


def _measured(plan: Plan, points: Iterable[Point]) -> set[tuple[str, str]]:
    """(point id, device) of what has ended already, in the run that `name` would extend."""
    if plan.run.name is None:
        return set()
    folder = Path(plan.run.outputs).expanduser() / plan.run.name / POINTS
    return {
        (point.id, device.name)
        for point in points
        for device in plan.devices
        if _has_ended(folder, Attempt(point=point, device=device.name))
    }


def _has_ended(folder: Path, first: Attempt) -> bool:
    """Whether any attempt ended: they are numbered from 1 without a gap, and one that was cut off is made again."""
    attempt = first
    while (there := AttemptFolder(folder / attempt.name)).path.exists():
        if there.settled() is not None:
            return True
        attempt = replace(attempt, number=attempt.number + 1)
    return False


def _alike(points: Iterable[Point]) -> list[tuple[Estimate, list[Point]]]:
    """Points with one and the same estimate, together, in the order they are met."""
    groups: dict[str, tuple[Estimate, list[Point]]] = {}
    for point in points:
        found = estimate(point.values)
        key = canonical([point["model"], point["workload"], point["dtype"], _as_json(found)])
        groups.setdefault(key, (found, []))[1].append(point)
    return list(groups.values())


def _plan_lines(plan: Plan, asked: Sequence[Asked], done: Set[tuple[str, str]]) -> Iterator[str]:
    names = [device.name for device in plan.devices]
    measured = sum((each.point.id, name) in done for each in asked for name in names)
    yield (
        f"plan: {_counted(len(asked), 'point')} x {_counted(len(names), 'device')} ({', '.join(names)}),"
        f" design {plan.design}, {measured} of {len(asked) * len(names)} measured already"
    )
    yield from (
        f"  {device.name} is unavailable: {device.unavailable}" for device in plan.devices if device.unavailable
    )
    if plan.design == "frontier":
        yield "  these are the first it asks for; the rest depends on how they end"
    keys = [dimension.key for dimension in plan.dimensions]
    for order, each in enumerate(asked[:LISTED], 1):
        there = [name for name in names if (each.point.id, name) in done]
        note = f"  measured on {', '.join(there)}" if there else ""
        yield f"  {order:>4}  {_told(each.point, keys) or each.point.id}{note}"
    if len(asked) > LISTED:
        yield f"        and {len(asked) - LISTED:,} more: --json lists every one"


def _estimate_lines(plan: Plan, groups: Sequence[tuple[Estimate, list[Point]]]) -> Iterator[str]:
    keys = [dimension.key for dimension in plan.dimensions]
    for found, points in groups:
        shared = [key for key in keys if len({canonical(point.get(key)) for point in points}) == 1]
        heading = [
            key for key in dict.fromkeys(["model", "workload", "dtype", *shared]) if points[0].get(key) is not None
        ]
        yield ""
        yield f"estimate: {_told(points[0], heading)} ({_counted(len(points), 'point')})"
        yield from (f"  {line}" for line in _lines(found))
    yield ""
    yield "calculated, nothing was run. Activations, logits, temporaries and the device's context are not in it."


def _plan_as_json(
    plan: Plan,
    asked: Sequence[Asked],
    done: Set[tuple[str, str]],
    groups: Sequence[tuple[Estimate, list[Point]]],
) -> dict[str, Any]:
    return {
        "design": plan.design,
        "devices": [
            {"device": device.name, "kind": device.kind, "unavailable": device.unavailable} for device in plan.devices
        ],
        "points": [
            {
                "order": order,
                "id": each.point.id,
                "changed_from": each.changed_from,
                "changed": list(each.changed),
                "measured": [device.name for device in plan.devices if (each.point.id, device.name) in done],
                "values": each.point.values,
            }
            for order, each in enumerate(asked)
        ],
        "estimates": [{"points": [point.id for point in points], **_as_json(found)} for found, points in groups],
    }


def _told(point: Point, keys: Iterable[str]) -> str:
    return " ".join(f"{key}={typed(point.get(key))}" for key in keys)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


# --- how it reads -----------------------------------------------------------------------------------------------------


def _lines(found: Estimate) -> Iterator[str]:
    for term in found.terms:
        yield f"{term.term:<10} {amounts(term.bytes)}"
        yield f"{'':<10} = {term.formula}"
        yield f"{'':<10} assumed: {term.assumption}"
        yield f"{'':<10} source: {term.source}"
    if len(found.terms) > 1:
        yield f"{'total':<10} {amounts(sum(term.bytes for term in found.terms))}"
    yield from found.not_estimated


def amounts(count: int) -> str:
    """Bytes as a person compares them: exact, in GB (10^9) and in GiB (2^30)."""
    return f"{count:,} bytes = {hundredths(count, GB)} GB = {hundredths(count, GIB)} GiB"


def hundredths(count: int, unit: int) -> str:
    """`count / unit` to two decimals, half up. Whole numbers all the way: a float would round some halves down."""
    rounded = (200 * count + unit) // (2 * unit)
    return f"{rounded // 100:,}.{rounded % 100:02d}"


def _as_json(found: Estimate) -> dict[str, Any]:
    return {
        "terms": [asdict(term) for term in found.terms],
        "total_bytes": sum(term.bytes for term in found.terms) if found.terms else None,
        "not_estimated": list(found.not_estimated),
    }
