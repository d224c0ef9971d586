from __future__ import annotations

from typing import Any

import pytest
import torch

WEIGHTS = 4 * (2 * 32 * 32 + 2 * 32)  # bytes of the mlp of width 32
ONE = 4 * 2 * 8 * 32  # bytes of a batch of its inputs, and of its outputs


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("repeats", [1, 2])
def test_the_first_pass_the_warming_up_and_each_repeat_are_phases(run: Any, warmup: int, repeats: int) -> None:
    result = run(warmup=warmup, repeats=repeats)
    assert result.names == [
        ("model_load", None),
        ("inputs", None),
        ("cold_forward", None),
        *([("warmup", None)] if warmup else []),
        *[("warm_forward", index) for index in range(repeats)],
    ]
    if warmup:
        assert result.phase("warmup")["iterations"] == warmup


def test_steps_and_tokens_count_the_completed_passes(run: Any) -> None:
    returned = run(warmup=3, repeats=2).returned
    assert (returned["steps"], returned["tokens"]) == (6, 6 * 2 * 8)


def test_an_output_is_alive_when_its_phase_is_read_and_gone_before_the_next(run: Any) -> None:
    result = run(repeats=2)
    for name, index in (("cold_forward", None), ("warm_forward", 0), ("warm_forward", 1)):
        assert result.tensor(name, "end", index) == WEIGHTS + 2 * ONE
    assert result.tensor("warm_forward", "peak", 1) == result.tensor("warm_forward", "peak", 0)
    assert result.lines[-1]["counters"]["cpu"]["end"]["tensor"] == 0


def test_warming_up_never_holds_two_outputs(run: Any) -> None:
    assert run(warmup=1).tensor("warmup", "peak") == run(warmup=5).tensor("warmup", "peak")


def test_shapes_are_those_that_reached_the_model(run: Any, decoder: dict[str, Any]) -> None:
    assert run().phase("warm_forward", 0)["shapes"] == {"x": [2, 8, 32]}
    result = run(model=decoder, batch=3, context=5, warmup=1)
    for name, index in (("cold_forward", None), ("warmup", None), ("warm_forward", 0)):
        assert result.phase(name, index)["shapes"] == {"input_ids": [3, 5]}


def test_no_keys_and_values_are_stored(run: Any, decoder: dict[str, Any]) -> None:
    result = run(model=decoder, batch=4, context=64)
    logits, tokens = 4 * 4 * 64 * 96, 8 * 4 * 64
    held = result.tensor("cold_forward", "end") - result.tensor("inputs", "end")
    assert result.tensor("inputs", "end") - result.tensor("model_load", "end") <= tokens
    assert held == logits


def test_a_decoder_does_not_record_gradients(run: Any, decoder: dict[str, Any]) -> None:
    held = [run(model=decoder | {"config": decoder["config"] | {"num_hidden_layers": n}}, context=64) for n in (2, 6)]
    passing = [result.tensor("cold_forward", "peak") - result.tensor("inputs", "end") for result in held]
    assert passing[0] == passing[1]


def test_equal_points_give_equal_outputs_and_another_seed_gives_others(run: Any, decoder: dict[str, Any]) -> None:
    first, again, other = (run(model=decoder, seed=seed).returned["metrics"]["checksum"] for seed in (1, 1, 2))
    assert first == again != other


def test_products_of_float32_are_of_the_highest_precision(run: Any) -> None:
    torch.set_float32_matmul_precision("high")
    assert run().model["matmul_precision"] == "highest"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_dtype_is_the_weights_and_the_inputs(run: Any, decoder: dict[str, Any], dtype: str) -> None:
    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    for model in (decoder, None):
        result = run(dtype=dtype, **({"model": model} if model else {}))
        assert (result.model["storage_dtype"], result.model["compute_dtype"]) == (dtype, dtype)
        assert result.model["parameter_bytes"] == size * result.model["parameters"]
    assert result.tensor("cold_forward", "end") == (WEIGHTS + 2 * ONE) // 4 * size


def test_a_context_beyond_learned_positions_is_refused_by_name(run: Any) -> None:
    config = {"vocab_size": 96, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    gpt = {"name": "gpt", "library": "transformers", "model_type": "gpt2", "config": config}
    assert run(model=gpt, context=16).model["parameters"] > 0
    with pytest.raises(ValueError, match=r"context=17: gpt has 16 positions"):
        run(model=gpt, context=17)
