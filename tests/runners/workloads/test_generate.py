"""The memory of generation: each kind of cache, and no more tensors than a plain loop holds."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from runners.phases import Notes, Unavailable
from runners.workloads import generate
from tests.measuring import SETTLED, Lab
from tests.tracing import events, peak, peak_of, real_peak

CONF = Path(__file__).resolve().parents[3] / "conf" / "model"
GENERATE = {
    "new_tokens": 6, "prefill_chunk": None, "cache": "dynamic", "cache_backend": None, "prompt_lengths": 1,
    "packing": "padded", "logits": "last",
}  # fmt: skip
LAYERS, KV_HEADS, HEAD_DIM, FLOAT32, WINDOW = 2, 2, 8, 4, 5
POSITION = 2 * KV_HEADS * HEAD_DIM * FLOAT32  # bytes of a position's keys and values in one layer


@pytest.fixture
def windowed(decoder: dict[str, Any]) -> dict[str, Any]:
    config = {**decoder["config"], "sliding_window": WINDOW}
    return decoder | {"name": "windowed", "model_type": "mistral", "config": config}


@pytest.fixture
def generated(run: Any, decoder: dict[str, Any]) -> Callable[..., Any]:
    def measured(workload: dict[str, Any] | None = None, **changes: Any) -> Any:
        return run("generate", workload=GENERATE | (workload or {}), **({"model": decoder} | changes))

    return measured


def network(model: dict[str, Any], settled: Any, **changes: Any) -> Any:
    from runners.models import transformers_models

    return transformers_models.build(settled("generate", model=model, workload=GENERATE, **changes), "cpu")


def tokens(network: Any, **workload: Any) -> torch.Tensor:
    """[sequences, new tokens], of a first generation."""
    chosen = []

    class Watched(generate.Generation):
        def _choose(self, logits: torch.Tensor) -> torch.Tensor:
            chosen.append(super()._choose(logits))
            return chosen[-1]

    network.module.eval()
    with torch.inference_mode():
        watched = Watched.of(network, GENERATE | workload)
        watched.once(lambda name, run_index: nullcontext(Notes()))
    return torch.cat(chosen).view(-1, len(watched.prompts.lengths)).T  # the first tokens may be chosen in parts


# --- phases and tokens ------------------------------------------------------------------------------------------------


def test_prefill_and_decode_are_phases_the_first_time_and_each_time_after(generated: Any) -> None:
    result = generated(warmup=2, repeats=2)
    assert result.names == [
        *(("model_load", None), ("inputs", None), ("cold_prefill", None), ("cold_decode", None), ("warmup", None)),
        *(("warm_prefill", 0), ("warm_decode", 0), ("warm_prefill", 1), ("warm_decode", 1)),
    ]
    assert result.phase("warmup")["iterations"] == 2
    assert result.phase("warm_decode", 1)["iterations"] == 5  # the prefill chose the first of six
    assert (result.returned["steps"], result.returned["tokens"]) == (5 * 6, 5 * 6 * 2)


def test_all_new_tokens_are_generated_even_if_the_model_would_stop(decoder: dict[str, Any], settled: Any) -> None:
    unhindered = tokens(network(decoder, settled, batch=1), new_tokens=4)
    wanted = unhindered[0, 1].item()
    ending = decoder | {"config": {**decoder["config"], "eos_token_id": [wanted, 7]}}
    made = tokens(network(ending, settled, batch=1), new_tokens=4)
    assert made.shape == (1, 4)
    assert wanted not in made
    assert made[0, 0] == unhindered[0, 0]


@pytest.mark.parametrize("new_tokens", [1, 2, 9])
def test_generated_tokens_are_reported_by_their_checksum(generated: Any, new_tokens: int) -> None:
    returned = generated({"new_tokens": new_tokens}, repeats=1).returned
    assert returned["metrics"]["new_tokens"] == new_tokens
    assert (returned["steps"], returned["tokens"]) == (2 * new_tokens, 2 * 2 * new_tokens)


def test_each_time_the_same_tokens_are_made_and_the_same_memory_is_taken(generated: Any) -> None:
    result = generated(repeats=2)
    decodes = [result.phase("cold_decode"), result.phase("warm_decode", 0), result.phase("warm_decode", 1)]
    assert len({phase["metrics"]["checksum"] for phase in decodes}) == 1
    for name in ("warm_prefill", "warm_decode"):
        assert result.tensor(name, "peak", 1) == result.tensor(name, "peak", 0)
    assert result.tensor("warm_prefill", "baseline", 1) == result.tensor("inputs", "end")
    assert result.lines[-1]["counters"]["cpu"]["end"]["tensor"] == 0


def test_checkpointing_changes_nothing_without_training(decoder: dict[str, Any], settled: Any) -> None:
    plain, checkpointed = network(decoder, settled), network(decoder, settled)
    module = checkpointed.module
    getattr(module, "activation_checkpointing_enable", module.gradient_checkpointing_enable)()  # its later name
    assert torch.equal(tokens(plain), tokens(checkpointed))


# --- caches -----------------------------------------------------------------------------------------------------------


def test_a_dynamic_cache_holds_the_prompt_and_every_token_that_was_read(generated: Any) -> None:
    result = generated(batch=3, context=16)
    prefill, decode = (result.phase(name)["metrics"] for name in ("cold_prefill", "cold_decode"))
    assert prefill["cache_bytes"] == prefill["cache_bytes_by_formula"] == LAYERS * POSITION * 3 * 16
    assert decode["cache_bytes"] == decode["cache_bytes_by_formula"] == LAYERS * POSITION * 3 * (16 + 5)
    assert decode["cache_bytes_on_device"] == decode["cache_bytes"]


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize(("batch", "context", "new_tokens"), [(1, 1, 1), (2, 16, 6), (3, 7, 20)])
def test_a_static_cache_takes_exactly_its_capacity_at_once(
    generated: Any, dtype: str, size: int, batch: int, context: int, new_tokens: int
) -> None:
    options = {"cache": "static", "new_tokens": new_tokens}
    result = generated(options, batch=batch, context=context, dtype=dtype)
    taken = 2 * LAYERS * KV_HEADS * HEAD_DIM * size * batch * (context + new_tokens)
    for name in ("cold_prefill", "cold_decode"):
        metrics = result.phase(name)["metrics"]
        assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] == taken


@pytest.mark.parametrize(
    ("context", "new_tokens", "pages"), [(1, 1, 1), (16, 1, 1), (16, 2, 2), (15, 2, 1), (40, 25, 4), (40, 26, 5)]
)
@pytest.mark.parametrize("chunk", [None, 7])
def test_a_paged_cache_takes_whole_pages_of_16_tokens_at_once(
    generated: Any, context: int, new_tokens: int, pages: int, chunk: int | None
) -> None:
    """The last new token is chosen and never read, so that it needs no place."""
    options = {"cache": "paged", "new_tokens": new_tokens, "prefill_chunk": chunk}
    result = generated(options, batch=3, context=context)
    for name in ("cold_prefill", "cold_decode"):
        metrics = result.phase(name)["metrics"]
        assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] == LAYERS * POSITION * 3 * 16 * pages


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_pages_make_the_same_tokens_however_the_prompts_are_read(
    decoder: dict[str, Any], settled: Any, attention: str
) -> None:
    """All at once, one after another, two at a time, and each in parts."""
    built = network(decoder, settled, batch=3, context=37, attention=attention)
    plain = tokens(built, new_tokens=20)
    for chunk in (None, 37, 80, 8):
        assert torch.equal(tokens(built, cache="paged", new_tokens=20, prefill_chunk=chunk), plain)


def test_pages_are_read_in_place_and_freed_with_their_cache(generated: Any) -> None:
    """A decoding step holds the pages, and neither a second cache nor a copy of a layer of it."""
    sizes = {"batch": 4, "context": 500}
    paged, static = (generated({"cache": kind, "new_tokens": 13}, **sizes) for kind in ("paged", "static"))
    held = LAYERS * POSITION * 4 * 512
    assert paged.phase("cold_decode")["metrics"]["cache_bytes"] == held
    difference = paged.tensor("cold_decode", "peak") - static.tensor("cold_decode", "peak")
    assert abs(difference) <= held - LAYERS * POSITION * 4 * 500
    assert paged.tensor("warm_prefill", "baseline", 0) == paged.tensor("inputs", "end")


def test_prompts_that_are_read_one_after_another_take_the_activations_of_one(generated: Any) -> None:
    workload = {"cache": "paged", "new_tokens": 1}
    together, alone = (
        generated({**workload, "prefill_chunk": chunk}, batch=8, context=256).phase("warm_prefill", 0)["counters"][
            "cpu"
        ]
        for chunk in (None, 256)
    )
    held = LAYERS * POSITION * 8 * 256
    activations = [each["peak"]["tensor"] - each["baseline"]["tensor"] - held for each in (together, alone)]
    assert activations[0] > 7 * activations[1] > 0


def test_a_calculated_device_skips_prompts_that_take_what_the_one_before_takes(
    decoder: dict[str, Any], settled: Any
) -> None:
    from runners.models import transformers_models

    workload = GENERATE | {"cache": "paged", "prefill_chunk": 40}  # two prompts a pass, and one in the last
    values = settled("generate", model=decoder, workload=workload, batch=11, context=20)

    class Whole(generate.Generation):
        def _is_known(self, groups: Any, place: int) -> bool:
            return False

    def calculated(kind: type[generate.Generation]) -> list[int]:
        def work(device: str) -> None:
            generation = kind.of(transformers_models.build(values, device), workload)
            with torch.inference_mode():
                for _ in range(2):
                    generation.once(lambda name, run_index: nullcontext(Notes()))

        return events(work)

    with_all, skipping = calculated(Whole), calculated(generate.Generation)
    assert len(skipping) < len(with_all)
    assert peak_of(skipping) == peak_of(with_all)


@pytest.mark.parametrize(("batch", "context"), [(1, 20), (7, 40)])
def test_a_calculated_device_follows_the_first_and_last_steps_of_an_answer_and_finds_the_peak_of_all(
    decoder: dict[str, Any], settled: Any, batch: int, context: int
) -> None:
    """Where the decoding steps have the peak, too: its pages are read in a prefill of few tokens."""
    from runners.models import transformers_models

    workload = GENERATE | {"cache": "paged", "prefill_chunk": 16, "new_tokens": 90}
    values = settled("generate", model=decoder, workload=workload, batch=batch, context=context)

    class Whole(generate.Generation):
        def _is_skipped(self, step: int) -> bool:
            return False

    def calculated(kind: type[generate.Generation]) -> tuple[list[int], int]:
        ends = []

        def work(device: str) -> None:
            generation = kind.of(transformers_models.build(values, device), workload)
            notes = Notes()
            with torch.inference_mode():
                generation.once(lambda name, run_index: nullcontext(notes))
            ends.append(notes)

        return events(work), ends[0].metrics

    (with_all, all_metrics), (skipping, metrics) = calculated(Whole), calculated(generate.Generation)
    assert len(skipping) < len(with_all) / 3
    assert peak_of(skipping) == peak_of(with_all)
    assert (metrics.pop("decoding_steps"), all_metrics.pop("decoding_steps")) == (8, 89)
    assert metrics | {"checksum": None} == all_metrics | {"checksum": None}
    assert metrics["cache_bytes"] == LAYERS * POSITION * batch * 16 * -(-(context + 89) // 16)


@pytest.mark.parametrize(("kind", "attention"), [("decoder", "eager"), ("windowed", "sdpa")])
def test_every_step_is_followed_whose_tensors_grow_with_the_answer(
    request: pytest.FixtureRequest, settled: Any, kind: str, attention: str
) -> None:
    """The steps in between leave gaps of their own sizes, which can decide what fits."""
    from runners.models import transformers_models

    workload = GENERATE | {"cache": "paged", "new_tokens": 20}
    model = request.getfixturevalue(kind)
    values = settled("generate", model=model, workload=workload, batch=1, context=8, attention=attention)
    followed = []

    def work(device: str) -> None:
        generation = generate.Generation.of(transformers_models.build(values, device), workload)
        with torch.inference_mode():
            followed.append(generation.once(lambda name, run_index: nullcontext(Notes()))["decoding_steps"])

    events(work)
    assert followed == [19]


def test_the_pages_of_every_layer_are_allocated_before_a_pass(decoder: dict[str, Any], settled: Any) -> None:
    built = network(decoder, settled, batch=3, context=20)
    spec = generate.Generation.of(built, GENERATE | {"cache": "paged", "new_tokens": 14}).cache_spec
    cache = spec.cache(built.dtype, "cpu")
    pages = [layer.keys.untyped_storage().nbytes() for layer in cache.layers]
    assert pages == [POSITION * 3 * 48] * LAYERS
    before = [layer.keys.data_ptr() for layer in cache.layers]
    cache.select(0, 3, 0)
    with torch.inference_mode():
        built.module(**built.inputs(), **{spec.argument: cache}, use_cache=True)
    assert [layer.keys.data_ptr() for layer in cache.layers] == before


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"prompt_lengths": 2}, "workload.cache=paged with workload.prompt_lengths=2: every prompt has the pages"),
        ({"packing": "packed"}, "workload.cache=paged with workload.packing=packed"),
    ],
)
def test_pages_of_prompts_of_different_lengths_are_refused(
    generated: Any, workload: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generated({"cache": "paged", **workload})


@pytest.mark.parametrize(("context", "new_tokens"), [(2, 2), (3, 6), (16, 2), (16, 30)])
def test_a_sliding_cache_holds_no_more_than_the_window(
    generated: Any, windowed: dict[str, Any], context: int, new_tokens: int
) -> None:
    result = generated({"cache": "sliding", "new_tokens": new_tokens}, model=windowed, context=context)
    metrics = result.phase("cold_decode")["metrics"]
    assert metrics["cache_bytes"] == LAYERS * POSITION * 2 * min(context + new_tokens - 1, WINDOW)
    assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"]


def test_a_sliding_cache_holds_the_whole_prompt_until_the_first_token_is_read(
    generated: Any, windowed: dict[str, Any]
) -> None:
    metrics = generated({"cache": "sliding"}, model=windowed, context=16).phase("cold_prefill")["metrics"]
    assert metrics["cache_bytes_by_formula"] == LAYERS * POSITION * 2 * WINDOW
    assert metrics["cache_bytes"] == LAYERS * POSITION * 2 * 16  # what it keeps is a view of it


def test_without_a_sliding_cache_a_window_saves_nothing(generated: Any, windowed: dict[str, Any]) -> None:
    metrics = generated(model=windowed, context=16).phase("cold_decode")["metrics"]
    assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] == LAYERS * POSITION * 2 * (16 + 5)


def test_layers_without_a_window_store_everything_next_to_those_with_one(
    generated: Any, decoder: dict[str, Any]
) -> None:
    kinds = ["sliding_attention", "full_attention"]
    config = {**decoder["config"], "sliding_window": WINDOW, "layer_types": kinds, "head_dim": 16}
    gemma = decoder | {"name": "gemma", "model_type": "gemma3_text", "config": config}
    for cache, positions in (("sliding", WINDOW + 21), ("static", WINDOW + 22), ("dynamic", 2 * 21)):
        metrics = generated({"cache": cache}, model=gemma, context=16).phase("cold_decode")["metrics"]
        assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] == 2 * POSITION * 2 * positions


def test_a_quantized_cache_holds_a_byte_an_element_and_its_scales(generated: Any) -> None:
    options = {"cache": "quantized", "cache_backend": "fp8"}
    metrics = generated(options, context=16).phase("cold_decode")["metrics"]
    assert (
        metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] == LAYERS * (POSITION // FLOAT32 * 2 * 21 + 2 * 4)
    )


@pytest.fixture
def quanto(monkeypatch: pytest.MonkeyPatch) -> Any:
    """optimum-quanto's compiled operator, replaced by one in Python: compiling it takes a minute."""
    pytest.importorskip("optimum.quanto")

    def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
        return torch.cat([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)])

    compiled = importlib.import_module("optimum.quanto.library.extensions").get_extension("quanto_cpp")
    monkeypatch.setattr(compiled, "_lib", SimpleNamespace(unpack=unpack))
    return compiled


def check_half_a_byte_an_element(generated: Any, backend: str) -> None:
    result = generated({"cache": "quantized", "cache_backend": backend}, context=64)
    prompt, read = (2 * POSITION // FLOAT32 * positions for positions in (64, 5))  # elements in a layer
    quantised = LAYERS * (prompt // 2 + prompt // 64 * 2 * FLOAT32)
    for name, held in (("cold_prefill", quantised), ("cold_decode", quantised + LAYERS * read * FLOAT32)):
        metrics = result.phase(name)["metrics"]
        assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] == held


@pytest.mark.filterwarnings("ignore")  # the library warns when it is imported
def test_quanto_holds_half_a_byte_an_element_scales_and_the_last_tokens(generated: Any, quanto: Any) -> None:
    check_half_a_byte_an_element(generated, "quanto")


@pytest.mark.filterwarnings("ignore")  # the library warns when it is imported
def test_hqq_holds_half_a_byte_an_element_scales_and_the_last_tokens(generated: Any) -> None:
    if importlib.util.find_spec("hqq") is None:
        # Passed with hqq 0.2.8.post1. Once it is installed, every import of transformers' models imports it too.
        pytest.skip("hqq is not installed with the test extra: it adds 1 s and 42 MiB to each import of transformers")
    check_half_a_byte_an_element(generated, "hqq")


@pytest.mark.filterwarnings("ignore")
def test_quanto_without_a_compiler_is_unavailable_before_anything_is_measured(
    generated: Any, quanto: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise RuntimeError("Error building extension 'quanto_cpp'")

    monkeypatch.setattr(quanto, "_lib", None)
    monkeypatch.setattr(importlib.import_module("optimum.quanto.library.extensions.extension"), "load", load)
    with pytest.raises(Unavailable, match=r"cache_backend=quanto: .* RuntimeError: Error building"):
        generated({"cache": "quantized", "cache_backend": "quanto"}, context=64)


def test_every_kind_of_cache_makes_the_same_tokens(windowed: dict[str, Any], settled: Any) -> None:
    built = network(windowed, settled, context=12)
    made = {kind: tokens(built, cache=kind, new_tokens=10) for kind in ("dynamic", "static", "sliding", "paged")}
    assert torch.equal(made["dynamic"], made["static"])
    assert torch.equal(made["dynamic"], made["paged"])
    assert torch.equal(made["dynamic"], made["sliding"])


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "gpt_bigcode", "falcon", "opt", "mixtral"])
def test_the_arithmetic_is_right_for_each_way_of_sharing_heads(generated: Any, kind: str) -> None:
    config: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind in ("qwen2", "mixtral", "opt"):
        config |= {"opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}}.get(kind, {"intermediate_size": 48})
    if kind in ("qwen2", "mixtral"):
        config["num_key_value_heads"] = 2
    metrics = generated(model={"name": kind, "library": "transformers", "model_type": kind, "config": config})
    metrics = metrics.phase("cold_decode")["metrics"]
    assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"] > 0


# --- several prompts --------------------------------------------------------------------------------------------------


def test_lengths_lie_between_half_the_context_and_the_context_and_do_not_depend_on_their_number() -> None:
    from runners.models.transformers_prompts import prompt_length

    lengths = [prompt_length(index, 64) for index in range(32)]
    assert lengths[:5] == [64, 48, 56, 40, 60]
    assert all(32 < length <= 64 for length in lengths)
    assert len(set(lengths)) == 32
    assert [prompt_length(index, 1) for index in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_prompt_makes_the_same_tokens_alone_padded_and_packed(
    decoder: dict[str, Any], settled: Any, cache: str, attention: str
) -> None:
    built = network(decoder, settled, batch=4, context=16, attention=attention)
    options = {"cache": cache, "prompt_lengths": 4, "new_tokens": 12}
    padded, packed = (tokens(built, **options, packing=packing) for packing in ("padded", "packed"))
    assert torch.equal(padded, packed)
    ids = built.inputs()["input_ids"]
    for row, length in enumerate((16, 12, 14, 10)):
        one = {"input_ids": ids[row : row + 1, -length:]}
        single = SimpleNamespace(module=built.module, inputs=lambda one=one: one, device="cpu", dtype=torch.float32)
        assert torch.equal(tokens(single, cache=cache, new_tokens=12)[0], padded[row])


@pytest.mark.parametrize("cache", ["sliding", "static"])
def test_padding_does_not_change_what_is_seen_through_a_window(
    windowed: dict[str, Any], settled: Any, cache: str
) -> None:
    built = network(windowed, settled, batch=3, context=16)
    options = {"prompt_lengths": 3, "new_tokens": 12}
    assert torch.equal(tokens(built, cache=cache, **options), tokens(built, cache="dynamic", **options))


def test_texts_of_different_lengths_make_the_same_tokens_padded_as_alone(decoder: dict[str, Any], settled: Any) -> None:
    built = network(decoder, settled, batch=2, context=8)
    ids = built.inputs()["input_ids"]
    padded = {"input_ids": ids, "attention_mask": torch.tensor([[1] * 8, [0] * 3 + [1] * 5])}
    alone = {"input_ids": ids[1:, -5:]}
    made = [
        tokens(SimpleNamespace(module=built.module, inputs=lambda read=read: read, device="cpu", dtype=torch.float32))
        for read in (padded, alone)
    ]
    assert torch.equal(made[0][1], made[1][0])


def described(name: str) -> dict[str, Any]:
    model: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return model


def test_images_are_read_in_the_prefill_and_never_again(generated: Any) -> None:
    result = generated(model=described("tiny-llava"), context=24)
    assert set(result.phase("cold_prefill")["shapes"]) == {"input_ids", "pixel_values"}
    assert result.phase("cold_decode")["shapes"] == {"input_ids": [2, 1]}
    metrics = result.phase("cold_decode")["metrics"]
    assert metrics["cache_bytes"] == metrics["cache_bytes_by_formula"]
    with pytest.raises(ValueError, match=r"workload.prompt_lengths=2: prompts of tiny-llava contain images"):
        generated({"prompt_lengths": 2}, model=described("tiny-llava"), context=24)


def test_states_have_no_formula_but_are_measured(generated: Any) -> None:
    short, long = (generated(model=described("tiny-mamba"), context=context) for context in (8, 24))
    metrics = [result.phase("cold_decode")["metrics"] for result in (short, long)]
    assert metrics[0]["cache_bytes"] == metrics[1]["cache_bytes"] > 0
    assert metrics[0]["cache_bytes_by_formula"] is None


def test_shapes_and_lengths_are_those_that_reached_the_model(generated: Any) -> None:
    result = generated({"prompt_lengths": 3}, batch=2, context=16)
    assert result.phase("inputs")["metrics"]["lengths"] == [16, 12, 14] * 2
    assert result.phase("cold_prefill")["shapes"] == {
        "input_ids": [6, 16],
        "attention_mask": [6, 16],
        "position_ids": [6, 16],
    }
    packed = generated({"prompt_lengths": 3, "packing": "packed"}, batch=2, context=16)
    assert packed.phase("cold_prefill")["shapes"]["input_ids"] == [1, 84]
    assert packed.phase("cold_decode")["shapes"]["input_ids"] == [1, 6]
    assert packed.phase("cold_decode")["metrics"]["cache_bytes"] == LAYERS * POSITION * (84 + 5 * 6)
    assert generated().phase("warm_prefill", 0)["shapes"] == {"input_ids": [2, 8]}


@pytest.mark.parametrize("key", ["new_tokens", "prompt_lengths"])
def test_more_new_tokens_or_prompts_never_take_less_memory(generated: Any, key: str) -> None:
    peaks = [generated({key: value}, context=16).tensor("warm_decode", "peak", 0) for value in (1, 2, 3, 8)]
    assert peaks == sorted(peaks)
    assert peaks[-1] > peaks[0]


# --- prefill in chunks ------------------------------------------------------------------------------------------------


def cached(network: Any, **workload: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer after the prefill and a first token, (sequences, heads, positions, head size)."""
    held: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Watched(generate.Generation):
        def _metrics(self, cache: Any, chosen: Any) -> dict[str, Any]:
            held[:] = [(layer.keys, layer.values) for layer in cache.layers]
            return super()._metrics(cache, chosen)

    network.module.eval()
    with torch.inference_mode():
        Watched.of(network, GENERATE | workload).once(lambda name, run_index: nullcontext(Notes()))
    return held


GEMMA = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 16}


@pytest.mark.parametrize("chunk", [1, 3, 8, 15])
@pytest.mark.parametrize("lengths", [1, 3])
@pytest.mark.parametrize("cache", ["dynamic", "static", "sliding"])
def test_a_prefill_in_chunks_leaves_the_same_cache_and_tokens(
    decoder: dict[str, Any], settled: Any, cache: str, lengths: int, chunk: int
) -> None:
    gemma = decoder | {"name": "gemma", "model_type": "gemma3_text", "config": {**decoder["config"], **GEMMA}}
    built = network(gemma, settled, batch=lengths, context=16)
    options = {"cache": cache, "prompt_lengths": lengths, "new_tokens": 4}
    assert torch.equal(tokens(built, **options, prefill_chunk=chunk), tokens(built, **options))
    made = (cached(built, **options, prefill_chunk=each) for each in (chunk, None))
    for in_chunks, at_once in zip(*made, strict=True):
        for one, other in zip(in_chunks, at_once, strict=True):
            assert one.shape == other.shape
            for row, length in enumerate((16, 12, 14)[:lengths]):  # what padding holds is never read
                padding = 16 - length if one.shape[2] >= 16 else 0
                torch.testing.assert_close(one[row, :, padding:], other[row, :, padding:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("logits", ["all", "last"])
@pytest.mark.parametrize("chunk", [1, 5, 16, 41, 42])
def test_a_packed_row_in_chunks_makes_the_same_tokens(
    decoder: dict[str, Any], settled: Any, chunk: int, logits: str
) -> None:
    built = network(decoder, settled, batch=3, context=16)  # 16 + 12 + 14 tokens
    options = {"prompt_lengths": 3, "packing": "packed", "logits": logits, "new_tokens": 4}
    assert torch.equal(tokens(built, **options, prefill_chunk=chunk), tokens(built, **options))


@pytest.mark.parametrize("name", ["gpt2", "opt", "bloom", "gpt-neox", "phi3", "mixtral"])
def test_each_way_of_counting_positions_continues_in_the_next_chunk(name: str, settled: Any) -> None:
    built = network(described(f"tiny-{name}"), settled, batch=2, context=12)
    assert torch.equal(tokens(built, prefill_chunk=5), tokens(built))


def test_chunks_are_passes_of_the_prefill_and_one_that_holds_the_context_is_all_at_once(generated: Any) -> None:
    whole, large, small = (generated({"prefill_chunk": chunk}, context=16) for chunk in (None, 16, 5))
    assert [result.phase("cold_prefill")["iterations"] for result in (whole, large, small)] == [1, 1, 4]
    assert small.phase("cold_prefill")["shapes"] == {"input_ids": [2, 5]}
    for name in ("cold_prefill", "cold_decode"):
        assert large.tensor(name, "peak") == whole.tensor(name, "peak")
        checksums = {result.phase(name)["metrics"]["checksum"] for result in (whole, large, small)}
        assert len(checksums) == 1
        assert small.phase(name)["metrics"]["cache_bytes"] == whole.phase(name)["metrics"]["cache_bytes"]


def test_chunks_lower_the_peak_of_the_prefill_by_the_activations_of_the_rest(generated: Any) -> None:
    whole, chunked = (generated({"prefill_chunk": chunk}, context=512) for chunk in (None, 64))
    assert chunked.tensor("cold_prefill", "end") == whole.tensor("cold_prefill", "end")
    held = whole.tensor("cold_prefill", "end")
    assert chunked.tensor("cold_prefill", "peak") - held < 0.6 * (whole.tensor("cold_prefill", "peak") - held)


@pytest.mark.parametrize("cache", ["dynamic", "static", "sliding"])
def test_a_prefill_in_chunks_is_calculated_as_it_is_measured(
    windowed: dict[str, Any], settled: Any, cache: str
) -> None:
    from runners.models import transformers_models

    def work(device: str) -> None:
        point = settled("generate", model=windowed, workload=GENERATE, context=32)
        tokens(transformers_models.build(point, device), cache=cache, prefill_chunk=10)

    assert peak(work) == real_peak(work)


def test_a_prompt_that_must_be_read_at_once_is_refused_in_chunks(generated: Any) -> None:
    with pytest.raises(ValueError, match=r"workload.prefill_chunk=4: tiny-mamba has layers that cannot continue"):
        generated({"prefill_chunk": 4}, model=described("tiny-mamba"))
    with pytest.raises(ValueError, match=r"workload.prefill_chunk=4: tiny-jamba has layers that cannot continue"):
        generated({"prefill_chunk": 4}, model=described("tiny-jamba"))
    with pytest.raises(ValueError, match=r"workload.prefill_chunk=4: prompts of tiny-llava contain images"):
        generated({"prefill_chunk": 4}, model=described("tiny-llava"), context=24)
    quantized = {"cache": "quantized", "cache_backend": "fp8"}
    with pytest.raises(ValueError, match=r"workload.prefill_chunk=4: a quantized cache would quantise each chunk"):
        generated({"prefill_chunk": 4, **quantized})
    whole = generated({"prefill_chunk": 8, **quantized}, context=8)
    assert whole.phase("cold_prefill")["iterations"] == 1


# --- logits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_the_logits_of_the_last_tokens_alone_lower_the_peak_of_the_prefill(
    generated: Any, decoder: dict[str, Any], packing: str
) -> None:
    wide = decoder | {"config": {**decoder["config"], "vocab_size": 4096}}
    options = {"prompt_lengths": 2, "packing": packing}
    every, last = (generated(options | {"logits": each}, model=wide, context=64) for each in ("all", "last"))
    rows = 2 * (64 + (64 if packing == "padded" else 48))  # tokens that have logits
    spared = every.tensor("cold_prefill", "peak") - last.tensor("cold_prefill", "peak")
    assert spared > 0.8 * rows * 4096 * FLOAT32
    assert every.returned["metrics"]["checksum"] == last.returned["metrics"]["checksum"]
    assert every.tensor("cold_prefill", "end") == last.tensor("cold_prefill", "end")


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_a_sliding_cache_without_a_window_is_refused(generated: Any) -> None:
    with pytest.raises(ValueError, match=r"workload.cache=sliding: minute has no layer with a window"):
        generated({"cache": "sliding"})


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"packing": "packed"}, "workload.packing=packed: not every layer of windowed"),
        ({"cache": "quantized", "cache_backend": "fp8"}, "workload.cache=quantized: windowed has layers"),
    ],
)
def test_options_that_a_window_excludes_are_rejected(
    generated: Any, windowed: dict[str, Any], workload: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        generated(workload, model=windowed)


def test_tokens_beyond_learned_positions_are_refused_by_name(generated: Any) -> None:
    config = {"vocab_size": 96, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    gpt = {"name": "gpt", "library": "transformers", "model_type": "gpt2", "config": config}
    assert generated(model=gpt, context=10).returned["metrics"]["new_tokens"] == 6
    with pytest.raises(ValueError, match=r"context=11 and workload.new_tokens=6: gpt has 16 positions"):
        generated(model=gpt, context=11)


def test_a_model_with_an_encoder_is_refused(generated: Any) -> None:
    with pytest.raises(ValueError, match="workload=generate: tiny-t5 has an encoder"):
        generated(model=described("tiny-t5"))


def test_a_model_without_tokens_is_refused(run: Any) -> None:
    with pytest.raises(ValueError, match="workload=generate: mlp generates no tokens"):
        run("generate", workload=GENERATE)


def test_an_offloaded_cache_is_unavailable_on_cpu(generated: Any) -> None:
    with pytest.raises(Unavailable, match=r"workload.cache=offloaded: .* not cpu"):
        generated({"cache": "offloaded"})


def test_a_missing_library_makes_a_point_unavailable(tmp_path: Any, decoder: dict[str, Any]) -> None:
    workload = {"name": "generate", **GENERATE, "cache": "quantized", "cache_backend": "quanto"}
    lab = Lab(tmp_path, tmp_path)
    try:
        without = {"PYTHONPATH": str(tmp_path), "OMP_WAIT_POLICY": "PASSIVE"}
        (tmp_path / "optimum").mkdir()
        (tmp_path / "optimum" / "__init__.py").write_text("")  # one without quanto in it
        values = {**SETTLED, "model": decoder, "context": 8, "warmup": 0, "repeats": 1}
        measured = lab.settle(lab.start_values({**values, "workload": workload}, environ=without))
    finally:
        lab.engine.close()
    assert measured.outcome.status == "unavailable"
    message = measured.outcome.error_message or ""
    assert message.startswith("optimum.quanto is not installed: ")
    assert message.endswith('pip install "sweeper[quantize]"')


# --- what a decoding step reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_every_weight_but_the_table_of_which_it_looks_up_rows(
    generated: Any, decoder: dict[str, Any], tied: bool
) -> None:
    """32 x 96 elements of embedding, which is read as a whole only where it is the output layer too."""
    model = decoder | {"config": {**decoder["config"], "tie_word_embeddings": tied}}
    result = generated(model=model, batch=3, context=16)
    metrics = result.returned["metrics"]
    table = 0 if tied else 96 * 32 * FLOAT32
    assert metrics["step_weight_bytes"] == result.model["parameter_bytes"] - table
    assert metrics["prompt_cache_bytes"] == LAYERS * POSITION * 3 * 16


@pytest.mark.parametrize("cache", ["dynamic", "static", "paged"])
def test_a_step_reads_no_empty_place_of_a_cache_and_nothing_before_a_window(
    generated: Any, windowed: dict[str, Any], decoder: dict[str, Any], cache: str
) -> None:
    for model, positions in ((decoder, 19), (windowed, WINDOW)):
        result = generated({"cache": cache}, model=model, batch=3, context=19)
        assert result.returned["metrics"]["prompt_cache_bytes"] == LAYERS * POSITION * 3 * positions


def test_what_a_step_of_experts_reads_is_not_known(generated: Any) -> None:
    config = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = {"name": "experts", "library": "transformers", "model_type": "mixtral", "config": config}
    assert generated(model=model).returned["metrics"]["step_weight_bytes"] is None
