"""Closed forms of the memory that a pass holds: the logits, the tensors of the loss, and the activations. Pure.

The formulas follow the modelling code of transformers. tests/sweeper/estimates/test_activations.py compares them with
the same workload traced without data: they are exact except for a device's rounding of each tensor. Where a formula
would not be exact, there is no term.

    logits            the model's output
    logits_float32    the float32 copy that the library's loss computes with, if the logits have another type
    log_softmax       the tensor that the loss keeps for its backward pass
    logits_gradients  the gradients of log_softmax and of its input, which are alive together
    activations       the tensors that the layers of a llama-type decoder keep for the backward pass

A layer keeps the inputs of its matrix products and non-linear operations. For N tokens, hidden size H, inner size I,
A = heads x head dimension, K = key-value heads x head dimension and E bytes an element these are: in each of two norms
the input (a float32 copy if E is not 4), one float32 for each token, the normalised and the scaled input; the rotated
queries and keys, the values, the attention's output and a log-sum-exp for each head and token; in the mlp the gate, its
activation, the up projection and their product. Additions keep nothing. Rotations keep their angles, which all layers
share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper.estimates.memory_terms import DTYPE_BITS, MemoryTerm, NoClosedForm, element_bits, name_of
from sweeper.estimates.parameter_counts import Layer, Parameters, parameters
from sweeper.units import format_count

FLOAT32 = 4
POSITION = 8  # int64
FROM_LOSS = "transformers.loss.loss_utils.ForCausalLMLoss and torch.nn.functional.cross_entropy"
SAVED = "tensors that autograd saves in transformers' modelling code"
ACTIVATIONS = (None, "silu", "swish")
ROTATIONS = ("default", "linear", "llama3")


def logits(values: Mapping[str, Any]) -> list[MemoryTerm]:
    """The logits of a forward pass or of training, and the tensors of the loss. Raises NoClosedForm."""
    workload = values["workload"]
    vocabulary, size = _vocabulary(values), _computed_bytes(values)
    if workload.get("compile"):
        raise NoClosedForm("torch.compile decides which tensors are kept")
    if workload["name"] == "forward":
        _are_drawn(values)
        last = workload.get("logits") == "last"
        rows = values["batch"] * (1 if last else values["context"])
        of = "the last token of each sequence" if last else "every token"
        alive = "alive from the matrix product that computes them to the end of the pass"
        return [
            _of_logits("logits", rows, vocabulary, size, f"logits of {of}; {alive}", "the model's output", ("forward",))
        ]
    rows = _tokens(values)
    made = _of_logits(
        "logits", rows, vocabulary, size,
        "logits of every token; alive from the end of the forward pass until the loss is computed, then freed",
        "the model's output", ("forward", "loss"),
    )  # fmt: skip
    copy = _of_logits(
        "logits_float32", rows, vocabulary, FLOAT32,
        "a float32 copy, alive while the loss is computed; float32 logits are not copied", FROM_LOSS, ("loss",),
    )  # fmt: skip
    kept = _of_logits(
        "log_softmax", rows, vocabulary, FLOAT32,
        "float32 for any dtype of the model; alive from the loss until its backward pass", FROM_LOSS,
        ("loss", "backward"),
    )  # fmt: skip
    gradients = _of_logits(
        "logits_gradients", rows, vocabulary, FLOAT32,
        "gradients of the log-softmax and of its input, in float32, alive together as the backward pass begins",
        FROM_LOSS, ("backward",), copies=2,
    )  # fmt: skip
    return [made, *([copy] if size != FLOAT32 else []), kept, gradients]


def activations(values: Mapping[str, Any]) -> list[MemoryTerm]:
    """The tensors held from the forward pass until the backward pass uses them, without logits. Raises NoClosedForm."""
    count, size = parameters(values), element_bits(values) // 8
    if count.layer is None or count.attention is None:
        kind = (values.get("model") or {}).get("model_type") or name_of(values.get("model"))
        raise NoClosedForm(f"no formula is known for the tensors that {kind} keeps for its backward pass")
    _check_exact(values, count)
    tokens, context, layer, attention = _tokens(values), values["context"], count.layer, count.attention
    angles = 2 * context * attention.head_dim * size
    norm, norm_is = _norm(tokens, layer, size)
    of_tokens = format_count(tokens, "token")
    if values["workload"].get("checkpointing"):
        inputs, positions = tokens * layer.hidden * size, context * POSITION
        return [
            MemoryTerm(
                term="activations",
                bytes=attention.layers * inputs + norm + angles + positions,
                formula=(
                    f"{format_count(attention.layers, 'layer input')} x {of_tokens} x {layer.hidden} hidden"
                    f" x {size} bytes + last norm {norm:,} ({norm_is}) + cosines and sines {angles:,}"
                    f" + positions {positions:,}"
                ),
                assumption=(
                    "checkpointing keeps the input of each layer; as the forward pass ends, before any layer is"
                    " recomputed; without the states of random number generators"
                ),
                source=SAVED,
                alive=("forward", "loss", "backward"),
            )
        ]
    queries, keys = layer.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    attending = tokens * (2 * queries + 2 * keys) * size
    sums = tokens * layer.heads * max(FLOAT32, size)
    gated = 4 * tokens * layer.inner * size
    each = 2 * norm + attending + sums + gated
    return [
        MemoryTerm(
            term="activations",
            bytes=attention.layers * each + norm + angles,
            formula=(
                f"{format_count(attention.layers, 'layer')} x {each:,} (2 norms x {norm:,} = {norm_is}; attention"
                f" {attending:,} = {of_tokens} x (2 x {queries} + 2 x {keys}) x {size} bytes; its sums {sums:,}; mlp"
                f" {gated:,} = 4 x {of_tokens} x {layer.inner} inner x {size} bytes) + last norm {norm:,} + cosines"
                f" and sines {angles:,}"
            ),
            assumption=(
                "tensors saved for the backward pass, at their largest as the forward pass ends; with a fused attention"
                " kernel, as on cpu and on CUDA in 16 bits (in float32 with grouped heads CUDA has none and keeps more)"
            ),
            source=SAVED,
            alive=("forward", "loss", "backward"),
        )
    ]


def _norm(tokens: int, layer: Layer, size: int) -> tuple[int, str]:
    """Bytes that a norm keeps, and their formula: the input, one float32 a token, the normalised, the scaled input."""
    one = tokens * (layer.hidden * (FLOAT32 + 2 * size) + FLOAT32)
    return one, f"{format_count(tokens, 'token')} x ({layer.hidden} x ({FLOAT32} + 2 x {size}) + {FLOAT32}) bytes"


def _of_logits(
    term: str,
    rows: int,
    vocabulary: int,
    size: int,
    assumption: str,
    source: str,
    alive: tuple[str, ...],
    copies: int = 1,
) -> MemoryTerm:
    several = f"{copies} x " if copies > 1 else ""
    return MemoryTerm(
        term=term,
        bytes=copies * rows * vocabulary * size,
        formula=f"{several}{format_count(rows, 'token')} x {vocabulary:,} vocabulary x {size} bytes",
        assumption=assumption,
        source=source,
        alive=alive,
    )


def _vocabulary(values: Mapping[str, Any]) -> int:
    vocabulary = parameters(values).vocabulary
    if vocabulary is None:
        raise NoClosedForm(f"model={name_of(values.get('model'))} has no vocabulary")
    return vocabulary


def _tokens(values: Mapping[str, Any]) -> int:
    """Tokens of one microbatch. The planner refuses a batch that `accumulate` does not divide."""
    _are_drawn(values)
    return int(values["batch"]) // int(values["workload"].get("accumulate") or 1) * int(values["context"])


def _are_drawn(values: Mapping[str, Any]) -> None:
    inputs = name_of(values.get("inputs"))
    if inputs in ("text", "images"):
        raise NoClosedForm(f"samples of inputs={inputs} have different lengths")


def _computed_bytes(values: Mapping[str, Any]) -> int:
    """Bytes of an element of the output: in autocast's precision, or in the dtype. Raises NoClosedForm if quantised."""
    bits = element_bits(values)
    return DTYPE_BITS.get(str(values["workload"].get("precision")), bits) // 8


def _check_exact(values: Mapping[str, Any], count: Parameters) -> None:
    workload, config = values["workload"], (values["model"].get("config") or {})
    if workload.get("compile"):
        raise NoClosedForm("torch.compile decides which tensors are kept")
    if workload.get("method", "full") != "full":
        raise NoClosedForm(f"workload.method={workload['method']}: frozen layers keep less than trained ones")
    if workload.get("precision") is not None:
        raise NoClosedForm(
            f"workload.precision={workload['precision']}: autocast also keeps casts of weights and inputs"
        )
    if values.get("attention") not in (None, "sdpa"):
        raise NoClosedForm(f"attention={values['attention']} keeps tensors that the fused kernel (sdpa) does not")
    if config.get("attn_implementation") not in (None, "sdpa"):
        raise NoClosedForm(f"model.config.attn_implementation={config['attn_implementation']} keeps more than sdpa")
    if config.get("hidden_act") not in ACTIVATIONS:
        raise NoClosedForm(f"model.config.hidden_act={config['hidden_act']} may keep other tensors than silu")
    if config.get("attention_dropout"):
        raise NoClosedForm("model.config.attention_dropout above 0 uses another kernel on cpu and keeps its mask")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) not in ROTATIONS:
        raise NoClosedForm(f"model.config.rope_scaling of type {kind} is not known here")
    assert count.attention is not None
    window = count.attention.window
    if window is not None and values["context"] >= window:
        raise NoClosedForm(
            f"a context of {values['context']:,} reaches the sliding window of {window:,}: a mask is kept"
        )
