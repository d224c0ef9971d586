"""Parameter counts of known architectures, in closed form from the model's configuration. Pure.

Tests compare each count with the class of transformers, built without data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runners.point import canonical
from sweeper.estimates.memory_terms import NoClosedForm, name_of
from sweeper.units import format_count

LANGUAGE_MODELLING = ("ForCausalLM", "LMHeadModel")  # suffixes of the classes whose head is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The dimensions that decide the size of a key-value cache."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    all_windowed: bool = False  # every layer has the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The dimensions that decide how much a layer of a llama-type decoder keeps for its backward pass."""

    hidden: int
    inner: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A parameter count with its formula, and further dimensions of the model, None where it has none."""

    total: int
    formula: str
    attention: Attention | None = None
    layer: Layer | None = None
    vocabulary: int | None = None


def parameters(values: Mapping[str, Any]) -> Parameters:
    """The parameters of a point's model. Raises NoClosedForm unless the count is exact."""
    model = values.get("model")
    if not isinstance(model, Mapping):
        raise NoClosedForm("there is no model")
    return _counted(canonical(model))


@lru_cache(maxsize=64)  # the points of a sweep have few models
def _counted(model_json: str) -> Parameters:
    model = json.loads(model_json)
    if model.get("library") == "torch" and model.get("name") == "mlp":
        return _mlp(model)
    kind, head = model.get("model_type"), model.get("architecture")
    if head is not None and not str(head).endswith(LANGUAGE_MODELLING):
        raise NoClosedForm(f"model.architecture={head} has another head than a language model")
    if kind not in MODEL_FAMILIES:
        raise NoClosedForm(f"the parameters of model={name_of(model)} have no closed form here")
    family = MODEL_FAMILIES[kind]
    return family.count(family.read(model.get("config") or {}))


def _mlp(model: Mapping[str, Any]) -> Parameters:
    width = model.get("width")
    if type(width) is not int:
        raise NoClosedForm(f"model.width={width} is not a whole number")
    return Parameters(total=2 * (width * width + width), formula=f"2 x ({width} x {width} weights + {width} biases)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """A `model_type` of transformers: the keys that its count depends on, with the library's defaults."""

    count: Callable[[Mapping[str, Any]], Parameters]
    needs: tuple[str, ...]
    defaults: Mapping[str, Any]
    also_called: Mapping[str, str] | None = None  # an alias of the library for a key -> the key

    def read(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration with its defaults. Raises NoClosedForm for an unknown key: it might change the count."""
        also_called = self.also_called or {}
        given = {also_called.get(key, key): value for key, value in config.items()}
        missing = [key for key in self.needs if given.get(key) is None]
        if missing:
            raise NoClosedForm(f"model.config.{missing[0]} is missing")
        unknown = sorted(set(given) - set(self.needs) - set(self.defaults) - NO_PARAMETERS)
        if unknown:
            raise NoClosedForm(f"model.config.{unknown[0]} is not known here and might change the count")
        return {**self.defaults, **given}


# Keys of transformers' configurations that do not change the number of parameters.
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
        f"embedding {vocabulary * hidden:,} + {format_count(layers, 'layer')} x (attention {attention:,} + mlp {mlp:,}"
        f" + norms {2 * hidden:,}) + norm {hidden:,} + " + (f"head {head:,}" if head else "head tied to the embedding")
    )
    # qwen2 names a window and does not use it unless use_sliding_window is set.
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    all_windowed = "use_sliding_window" not in config  # qwen2 has this key, and layers without a window
    shape = Attention(layers=layers, kv_heads=kv_heads, head_dim=dimension, window=window, all_windowed=all_windowed)
    layer = Layer(hidden=hidden, inner=inner, heads=heads)
    return Parameters(total=total, formula=formula, attention=shape, layer=layer, vocabulary=vocabulary)


def _gpt2(config: Mapping[str, Any]) -> Parameters:
    """Learned positions, biases everywhere, layer norms with weight and bias."""
    hidden, layers, vocabulary = config["n_embd"], config["n_layer"], config["vocab_size"]
    inner = 4 * hidden if config["n_inner"] is None else config["n_inner"]
    attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden
    mlp = hidden * inner + inner + inner * hidden + hidden
    embeddings = (vocabulary + config["n_positions"]) * hidden
    head = 0 if config["tie_word_embeddings"] else vocabulary * hidden
    total = embeddings + layers * (attention + mlp + 4 * hidden) + 2 * hidden + head
    formula = (
        f"embeddings {embeddings:,} + {format_count(layers, 'layer')} x (attention {attention:,} + mlp {mlp:,}"
        f" + norms {4 * hidden:,}) + norm {2 * hidden:,} + "
        + (f"head {head:,}" if head else "head tied to the embedding")
    )
    shape = Attention(layers=layers, kv_heads=config["n_head"], head_dim=hidden // config["n_head"])
    return Parameters(total=total, formula=formula, attention=shape, vocabulary=vocabulary)


_DECODER = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
MODEL_FAMILIES = {
    "llama": ModelFamily(
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
    # mistral and qwen2 default to their own number of key-value heads: it is required here, so that none is assumed.
    "mistral": ModelFamily(
        count=_mistral,
        needs=(*_DECODER, "num_key_value_heads"),
        defaults={"head_dim": None, "tie_word_embeddings": False, "sliding_window": 4096},
    ),
    "qwen2": ModelFamily(
        count=_qwen2,
        needs=(*_DECODER, "num_key_value_heads"),
        defaults={
            "head_dim": None,
            "tie_word_embeddings": False,
            "sliding_window": 4096,
            "use_sliding_window": False,
        },
    ),
    "gpt2": ModelFamily(
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
