"""Closed forms of what a pass holds, compared to the byte with the same workload traced without data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from json import dumps, loads
from typing import Any

import pytest

from runners.device import CPU_CARD, Device
from runners.point import Attempt, Point
from sweeper.estimates.estimate import Estimate, estimate

pytest.importorskip("transformers")

ALIGNMENT = 63  # bytes that a tensor's size can be below what it is rounded up to
DECODER = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
GPT2 = {
    "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": 1024, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
NARROW = DECODER | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 1024}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
TRAIN = {
    "name": "train", "method": "full", "checkpointing": False, "precision": None, "optimizer": "adamw", "lr": 1e-3,
    "accumulate": 1, "compile": False, "max_grad_norm": None, "set_to_none": True, "export": None,
    "evaluation": {"batch": None, "context": None}, "rank": 2, "alpha": 4, "targets": ["q_proj"], "dropout": 0.0,
}  # fmt: skip


def point(
    kind: str = "llama", config: Mapping[str, Any] = DECODER, workload: Mapping[str, Any] | None = None, **settled: Any
) -> dict[str, Any]:
    return {
        **{"dtype": "float32", "batch": 2, "context": 32, "warmup": 0, "repeats": 1, "seed": 0, "cache": "keep"},
        **{"phases": "each", "attention": None, "quantize": "none", "quality": {"target": None}},
        "inputs": {"name": "synthetic", "resolution": None, "images": None, "frames": None},
        "model": {"name": kind, "library": "transformers", "model_type": kind, "config": dict(config)},
        "workload": {**TRAIN, **(workload or {})},
        **settled,
    }


def traced(values: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    """The bytes of tensors of each phase: at its start, at its peak and at its end."""
    return _traced(dumps(values))


@cache
def _traced(values: str) -> dict[str, Mapping[str, int]]:
    from runners.simulation.card_memory import memory_of
    from runners.simulation.replay import replay
    from runners.simulation.trace import trace_workload
    from runners.workloads import forward, train

    settled = loads(values)
    attempt = Attempt(point=Point(values=settled), device=Device(name="sim:cpu", card=CPU_CARD))
    workload = {"train": train, "forward": forward}[settled["workload"]["name"]]
    lines = list(replay(trace_workload(attempt, workload, failed), "sim:cpu", memory_of(CPU_CARD, None)))
    ended = {line["phase"]: line["counters"]["sim:cpu"] for line in lines if line["kind"] == "ended"}
    return {
        phase: {reading: counters[reading]["tensor"] for reading in ("baseline", "peak", "end")}
        for phase, counters in ended.items()
    }


def failed(error: BaseException) -> dict[str, Any]:
    raise error


def rise(phase: Mapping[str, int], reading: str = "end") -> int:
    return phase[reading] - phase["baseline"]


def of(found: Estimate) -> dict[str, int]:
    return {term.term: term.bytes for term in found.terms}


EXACT: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"kind": "qwen2"},
    "mistral": {"kind": "mistral"},
    "no window": {"kind": "mistral", "config": DECODER | {"sliding_window": None}},
    "every head its own keys": {"config": DECODER | {"num_key_value_heads": 4}},
    "heads wider than hidden": {"config": DECODER | {"head_dim": 96}},
    "biases": {"config": DECODER | {"attention_bias": True, "mlp_bias": True}},
    "a tied head": {"kind": "qwen2", "config": DECODER | {"tie_word_embeddings": True}},
    "rotations of llama 3": {"config": DECODER | {"rope_scaling": LLAMA3}},
    "parts of a batch": {"workload": {"accumulate": 2}},
    "checkpointing": {"workload": {"checkpointing": True}},
    "checkpointing of qwen2": {"kind": "qwen2", "workload": {"checkpointing": True}},
    "sdpa by name": {"attention": "sdpa"},
    "of eight bytes": {"dtype": "float64"},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", EXACT)
def test_the_formula_is_exactly_what_a_forward_pass_holds_for_its_backward_pass(name: str, dtype: str) -> None:
    values = point(**{"dtype": dtype, **EXACT[name]})
    found = estimate(values)
    held = rise(traced(values)["cold_forward"])
    assert (of(found)["activations"] + of(found)["logits"], found.not_estimated) == (held, ())


@pytest.mark.parametrize(
    "odd", [{"context": 13, "batch": 3}, {"config": DECODER | {"intermediate_size": 77}}, {"context": 1, "batch": 8}]
)
def test_unaligned_sizes_differ_from_the_formula_by_the_alignment_only(odd: dict[str, Any]) -> None:
    """Each layer keeps 17 tensors and the last norm 4; then two of angles and one of logits."""
    values = point(**odd, dtype="bfloat16")
    found = of(estimate(values))
    short = rise(traced(values)["cold_forward"]) - found["activations"] - found["logits"]
    tensors = 3 * 17 + 4 + 2 + 1
    assert 0 <= short <= ALIGNMENT * tensors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_terms_of_a_loss_equal_the_bytes_that_it_holds(kind: str, dtype: str) -> None:
    """The loss also holds the labels, padded by one and cut again (8 bytes each), and single numbers."""
    values = point(kind, GPT2 if kind == "gpt2" else NARROW, context=128, dtype=dtype)
    found, phases = of(estimate(values)), traced(values)
    labels = 2 * 2 * 129 * 8 + 8 * ALIGNMENT
    copies = found["log_softmax"] + found.get("logits_float32", 0)
    assert 0 <= rise(phases["cold_loss"], "peak") - copies <= labels
    assert 0 <= rise(phases["cold_loss"]) - (found["log_softmax"] - found["logits"]) <= labels
    assert -labels <= rise(phases["cold_backward"], "peak") - found["logits_gradients"] <= labels


@pytest.mark.parametrize(("logits", "rows"), [("all", 64), ("last", 2)])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_forward_pass_ends_with_its_logits_only(kind: str, logits: str, rows: int) -> None:
    config = GPT2 if kind == "gpt2" else DECODER
    values = point(kind, config, {"name": "forward", "logits": logits}, dtype="bfloat16")
    (term,) = (term for term in estimate(values).terms if term.term == "logits")
    assert term.bytes == rows * config["vocab_size"] * 2
    for phase in ("cold_forward", "warm_forward"):
        assert 0 <= rise(traced(values)[phase]) - term.bytes <= ALIGNMENT


@pytest.mark.parametrize("workload", [{"precision": "bfloat16"}, {"method": "lora"}])
def test_logits_have_a_term_even_if_activations_have_none(workload: dict[str, Any]) -> None:
    if "method" in workload:
        pytest.importorskip("peft")
    values = point(config=NARROW | {"vocab_size": 8192}, workload=workload, context=128)
    found, phases = estimate(values), traced(values)
    copies = of(found)["log_softmax"] + of(found).get("logits_float32", 0)
    assert "activations" not in of(found)
    assert 0 <= rise(phases["cold_loss"], "peak") - copies <= 8192
    assert any(reason.startswith("activations: not estimated, workload.") for reason in found.not_estimated)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("workload", [{}, {"checkpointing": True}, {"optimizer": "sgd"}, {"accumulate": 2}])
def test_the_sum_of_the_terms_alive_together_is_what_is_held_then(workload: dict[str, Any], dtype: str) -> None:
    """In a second step, which also holds inputs, labels, buffers and a step counter for each of Adam's tensors."""
    values = point(config=NARROW, workload=workload, context=128, dtype=dtype)
    together, phases = estimate(values).together, traced(values)
    others = 16 * 1024
    assert 0 <= phases["warm_forward"]["end"] - together["forward"] <= others
    assert 0 <= phases["warm_loss"]["peak"] - together["loss"] <= others
    assert 0 <= phases["warm_backward"]["peak"] - together["backward"] <= others
    assert 0 <= phases["warm_step"]["end"] - together["step"] <= others


def test_no_estimate_is_above_the_traced_peak() -> None:
    for name in EXACT:
        values = point(**EXACT[name])
        highest = max(phase["peak"] for phase in traced(values).values())
        least = estimate(values).at_least
        assert least is not None
        assert least[1] <= highest


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"kind": "gpt2", "config": GPT2}, "gpt2"),
        ({"kind": "mistral", "config": DECODER | {"sliding_window": 32}}, "sliding window of 32"),
        ({"config": DECODER | {"hidden_act": "relu"}}, "hidden_act=relu"),
        ({"config": DECODER | {"attention_dropout": 0.1}}, "attention_dropout"),
        ({"config": DECODER | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}}, "yarn"),
        ({"attention": "eager"}, "attention=eager"),
        ({"workload": {"method": "lora"}}, "workload.method=lora"),
        ({"workload": {"precision": "bfloat16"}}, "workload.precision=bfloat16"),
        ({"workload": {"compile": True}}, "torch.compile"),
        ({"quantize": "int8"}, "quantize=int8"),
        ({"inputs": {"name": "text"}}, "inputs=text"),
    ],
)
def test_a_formula_that_is_not_exact_gives_a_reason_and_no_term(changed: dict[str, Any], because: str) -> None:
    found = estimate(point(**changed))
    assert "activations" not in of(found)
    (reason,) = (reason for reason in found.not_estimated if reason.startswith("activations: not estimated, "))
    assert because in reason


def test_a_window_keeps_a_mask_that_the_formula_does_not_have() -> None:
    """With a window no longer than the text the layers keep more, so there is no term."""
    windowed, plain = (point("mistral", DECODER | {"sliding_window": window}) for window in (32, None))
    assert rise(traced(windowed)["cold_forward"]) > rise(traced(plain)["cold_forward"])
