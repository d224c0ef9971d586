"""Estimates compared with integers that were counted elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.device import device_named
from runners.point import Attempt, AttemptFolder, Point
from sweeper.estimates import estimate
from sweeper.estimates.estimate import terms
from sweeper.estimates.memory_terms import MemoryTerm, kv_cache, weights
from sweeper.estimates.parameter_counts import parameters
from sweeper.planning.card_request import BITS
from sweeper.units import GIB, format_both, hundredths
from tests import command_line

DECODERS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "tiny-llama": (
        6_840_576,
        "llama",
        {
            "hidden_size": 256,
            "intermediate_size": 688,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 1000,
            "tie_word_embeddings": False,
        },
    ),
    "small-llama": (
        7_901_440,
        "llama",
        {
            "hidden_size": 256,
            "intermediate_size": 688,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "smollm2-135m": (
        134_515_008,
        "llama",
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": (
        124_439_808,
        "gpt2",
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
    ),
    "qwen2.5-7b": (
        7_615_616_512,
        "qwen2",
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
        },
    ),
    "mistral-7b": (
        7_248_023_552,
        "mistral",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32768,
            "sliding_window": None,
        },
    ),
}
# Small models that use the other branch of every option in the closed forms.
ODD: dict[str, tuple[str, dict[str, Any]]] = {
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "head_dim": ("llama", {"head_dim": 48, "num_key_value_heads": None}),
    "one key-value head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "mistral head_dim": ("mistral", {"head_dim": 24}),
    "gpt2": ("gpt2", {"n_inner": 100, "tie_word_embeddings": False}),
    "gpt2 by its other names": ("gpt2 renamed", {}),
}


def values(model: dict[str, Any], workload: dict[str, Any] | str = "forward", **others: Any) -> dict[str, Any]:
    workload = {"name": workload} if isinstance(workload, str) else workload
    return {"model": model, "workload": workload, "dtype": "float32", "batch": 1, "context": 256, **others}


def decoder(name: str) -> dict[str, Any]:
    _, kind, config = DECODERS[name]
    return {"name": name, "library": "transformers", "model_type": kind, "config": config}


def odd(name: str) -> dict[str, Any]:
    kind, changed = ODD[name]
    config: dict[str, Any]
    if kind == "gpt2":
        config = {"n_embd": 96, "n_layer": 3, "n_head": 4, "n_positions": 50, "vocab_size": 77}
    elif kind == "gpt2 renamed":
        config = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
        config |= {"max_position_embeddings": 50, "vocab_size": 77}
    else:
        config = {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 4}
        config |= {"num_key_value_heads": 2, "vocab_size": 77}
    model_type = kind.split()[0]
    return {"name": name, "library": "transformers", "model_type": model_type, "config": {**config, **changed}}


def by_term(found: list[MemoryTerm]) -> dict[str, int]:
    return {term.term: term.bytes for term in found}


def test_weights_of_seven_billion_at_16_bits_are_14_gb_and_13_04_gib() -> None:
    found = weights(7_000_000_000, 16)
    assert found.bytes == 14_000_000_000
    assert format_both(found.bytes) == "14,000,000,000 bytes = 14.00 GB = 13.04 GiB"


@pytest.mark.parametrize(("bits", "expected"), [(4, 2), (8, 3), (16, 6), (32, 12)])
def test_weights_are_rounded_up_to_the_byte(bits: int, expected: int) -> None:
    assert weights(3, bits).bytes == expected


@given(parameters=st.integers(0, 10**18), bits=st.sampled_from(BITS))
def test_weights_are_exact_at_any_size(parameters: int, bits: int) -> None:
    assert weights(parameters, bits).bytes * 8 - parameters * bits in range(8)


def test_a_cache_counts_key_value_heads_and_not_query_heads() -> None:
    found = kv_cache(layers=32, kv_heads=8, head_dim=128, tokens=8192, sequences=1, element_bytes=2)
    assert found.bytes == 1_073_741_824
    four = kv_cache(layers=32, kv_heads=8, head_dim=128, tokens=8192, sequences=4, element_bytes=2)
    assert hundredths(four.bytes, GIB) == "4.00"


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_have_their_published_number_of_parameters(name: str) -> None:
    assert parameters(values(decoder(name))).total == DECODERS[name][0]


def test_an_mlp_has_two_matrices_and_two_biases() -> None:
    assert parameters(values({"name": "mlp", "library": "torch", "width": 1024})).total == 2_099_200


def test_the_closed_forms_count_the_parameters_that_transformers_builds() -> None:
    """With the real classes on the meta device, in a process of their own: this one stays without torch."""
    pytest.importorskip("transformers")
    models = {name: (DECODERS[name][1], decoder(name)["config"]) for name in DECODERS}
    models |= {name: (odd(name)["model_type"], odd(name)["config"]) for name in ODD}
    code = (
        "import json, sys, torch\n"
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        "with torch.device('meta'):\n"
        "    built = {name: AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))\n"
        "             for name, (kind, config) in json.loads(sys.argv[1]).items()}\n"
        "print(json.dumps({name: sum(p.numel() for p in model.parameters()) for name, model in built.items()}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(models)], capture_output=True, text=True, check=True)
    counted = {name: parameters(values(decoder(name))).total for name in DECODERS}
    counted |= {name: parameters(values(odd(name))).total for name in ODD}
    assert counted == json.loads(done.stdout)


def test_training_smollm2_135m_takes_weights_gradients_and_two_moments() -> None:
    bill = by_term(terms(values(decoder("smollm2-135m"), {"name": "train", "optimizer": "adamw"})))
    bill = {term: bill[term] for term in ("weights", "gradients", "optimizer")}
    assert bill == {"weights": 538_060_032, "gradients": 538_060_032, "optimizer": 1_076_120_064}
    assert sum(bill.values()) == 2_152_240_128


@pytest.mark.parametrize(
    ("workload", "states"),
    [
        ({"optimizer": "adamw"}, 2),
        ({"optimizer": "sgd"}, 0),
        ({"optimizer": "sgd", "momentum": 0.9}, 1),
        ({"optimizer": "adamw", "amsgrad": True}, 3),
    ],
)
def test_an_optimizer_keeps_its_own_number_of_states(workload: dict[str, Any], states: int) -> None:
    found = by_term(terms(values(decoder("tiny-llama"), {"name": "train", **workload}, dtype="bfloat16")))
    assert found["optimizer"] == states * 6_840_576 * 2


def test_a_forward_pass_has_weights_and_logits_of_every_token_or_of_the_last() -> None:
    assert by_term(terms(values(decoder("tiny-llama")))) == {"weights": 27_362_304, "logits": 256 * 1000 * 4}
    last = values(decoder("tiny-llama"), {"name": "forward", "logits": "last"}, dtype="float16", batch=3)
    assert by_term(terms(last)) == {"weights": 13_681_152, "logits": 3 * 1000 * 2}


def test_only_terms_alive_together_are_added() -> None:
    """By hand for a training step: no gradient of a weight is alive while the loss is computed."""
    found = estimate.estimate(values(decoder("tiny-llama"), {"name": "train", "optimizer": "adamw"}, repeats=1))
    of = by_term(list(found.terms))
    held = of["weights"] + of["optimizer"]
    assert found.together == {
        "forward": held + of["activations"] + of["logits"],
        "loss": held + of["activations"] + of["logits"] + of["log_softmax"],
        "backward": held + of["activations"] + of["log_softmax"] + of["logits_gradients"],
        "step": held + of["gradients"],
    }
    assert found.at_least == max(found.together.items(), key=lambda moment: moment[1])


def test_the_optimizer_is_alive_with_activations_only_in_a_second_step() -> None:
    workload = {"name": "train", "optimizer": "adamw"}
    (one, two) = (estimate.estimate(values(decoder("tiny-llama"), workload, repeats=repeats)) for repeats in (0, 1))
    optimizer = by_term(list(one.terms))["optimizer"]
    assert one.together == {**{m: two.together[m] - optimizer for m in two.together}, "step": two.together["step"]}


@pytest.mark.parametrize("key", [{"accumulate": 2}, {"set_to_none": False}])
def test_gradients_that_are_kept_are_alive_with_activations(key: dict[str, Any]) -> None:
    point = values(decoder("tiny-llama"), {"name": "train", "optimizer": "sgd", **key}, batch=2)
    (gradients,) = (term for term in terms(point) if term.term == "gradients")
    assert gradients.alive == ("forward", "loss", "backward", "step")


def test_generation_keeps_the_prompt_and_the_new_tokens_of_each_sequence() -> None:
    point = values(decoder("small-llama"), {"name": "generate", "new_tokens": 100}, batch=3, context=156)
    assert by_term(terms(point))["kv_cache"] == 2 * 8 * 2 * 64 * 256 * 3 * 4


@pytest.mark.parametrize(
    ("cache", "tokens"), [("dynamic", 255), ("static", 256)]
)  # the last token is never read, and only a static cache has room for it
def test_the_kind_of_cache_decides_its_number_of_tokens(cache: str, tokens: int) -> None:
    workload = {"name": "generate", "new_tokens": 100, "cache": cache, "prompt_lengths": 2, "packing": "padded"}
    point = values(decoder("small-llama"), workload, batch=3, context=156)
    assert by_term(terms(point))["kv_cache"] == 2 * 8 * 2 * 64 * tokens * 3 * 2 * 4


@pytest.mark.parametrize(("cache", "tokens"), [("dynamic", 4196), ("static", 4096), ("sliding", 4096)])
def test_a_window_bounds_static_and_sliding_caches(cache: str, tokens: int) -> None:
    windowed = decoder("mistral-7b")
    windowed["config"] = {**windowed["config"], "sliding_window": 4096}
    point = values(windowed, {"name": "generate", "new_tokens": 101, "cache": cache}, context=4096)
    assert by_term(terms(point))["kv_cache"] == 2 * 32 * 8 * 128 * tokens * 4


@pytest.mark.parametrize(
    "key", [{"cache": "quantized"}, {"cache": "offloaded"}, {"packing": "packed", "prompt_lengths": 2}]
)
def test_quantized_offloaded_and_packed_caches_have_no_term(key: dict[str, Any]) -> None:
    point = values(decoder("small-llama"), {"name": "generate", "new_tokens": 8, **key})
    assert "kv_cache" not in by_term(terms(point))
    assert "kv_cache: not estimated, workload." in estimate.estimate(point).not_estimated[0]


def test_a_cache_beyond_a_sliding_window_has_no_term() -> None:
    windowed = decoder("mistral-7b")
    windowed["config"] = {**windowed["config"], "sliding_window": 4096}
    point = values(windowed, {"name": "generate", "new_tokens": 1}, context=4096)
    assert "kv_cache" not in by_term(terms(point))
    assert "sliding window of 4,096" in estimate.estimate(point).not_estimated[0]


@pytest.mark.parametrize(
    ("point", "because"),
    [
        (values({"name": "pretrained", "library": "transformers", "path": "x"}), "pretrained"),
        (values({"name": "a", "library": "transformers", "model_type": "mamba", "config": {}}), "model=a"),
        (values({**decoder("gpt2"), "config": {**DECODERS["gpt2"][2], "add_cross_attention": True}}), "add_cross_att"),
        (values({**decoder("tiny-llama"), "config": {"hidden_size": 256}}), "intermediate_size"),
        (values(decoder("tiny-llama"), {"name": "custom", "target": "mywork:run"}), "workload=custom"),
        (values(decoder("tiny-llama"), dtype="int8"), "dtype=int8"),
        (values(decoder("tiny-llama"), quantize="nf4"), "quantize=nf4"),
        (values({**decoder("tiny-llama"), "architecture": "LlamaForSequenceClassification"}), "another head"),
    ],
)
def test_a_model_without_a_closed_form_has_a_reason_and_no_term(point: dict[str, Any], because: str) -> None:
    found = estimate.estimate(point)
    assert found.terms == ()
    assert "not estimated" in found.not_estimated[0]
    assert because in found.not_estimated[0]


def test_an_unknown_optimizer_leaves_the_other_terms() -> None:
    found = estimate.estimate(values(decoder("tiny-llama"), {"name": "train", "optimizer": "muon"}))
    assert "optimizer" not in by_term(list(found.terms))
    assert {"weights", "gradients", "activations"} <= set(by_term(list(found.terms)))
    assert "muon" in found.not_estimated[0]


@given(count=st.integers(0, 2**70), unit=st.sampled_from([10**9, 2**30]))
def test_a_printed_figure_is_the_exact_quotient_rounded_half_up(count: int, unit: int) -> None:
    with localcontext() as context:
        context.prec = 120
        exact = (Decimal(count) / unit).quantize(Decimal("0.01"), ROUND_HALF_UP)
    assert hundredths(count, unit).replace(",", "") == str(exact)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return command_line.run(["estimate", *arguments], cwd)


def test_the_plan_is_shown_in_its_order_and_writes_no_files(tmp_path: Path) -> None:
    shown = run("model=tiny-llama,mlp", "batch=1,2", "workload=train", "devices=cpu", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    order = [line.split(maxsplit=1)[1] for line in shown.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert order == [f"model={m} batch={b}" for m, b in [("tiny-llama", 1), ("tiny-llama", 2), ("mlp", 2), ("mlp", 1)]]
    assert "6,840,576 parameters x 4 bytes" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_plan_as_json_has_every_point_with_its_terms(tmp_path: Path) -> None:
    found = json.loads(run("batch=1,2", "devices=cpu", "--json", cwd=tmp_path).stdout)
    assert [point["values"]["batch"] for point in found["points"]] == [1, 2]
    assert found["points"][1]["changed"] == ["batch"]
    first, second = found["estimates"]
    assert [*first["points"], *second["points"]] == [point["id"] for point in found["points"]]
    assert [term["bytes"] for term in first["terms"]] == [27_362_304, 512 * 1000 * 4]
    assert second["at_least_bytes"] == 27_362_304 + 2 * 512 * 1000 * 4


def test_points_that_a_named_run_has_measured_are_marked(tmp_path: Path) -> None:
    words = ("batch=1,2", "devices=cpu", "name=mine", "--json")
    first, second = json.loads(run(*words, cwd=tmp_path).stdout)["points"]
    points = tmp_path / "outputs" / "mine" / "points"
    points.mkdir(parents=True)
    for point, settled in ((first, True), (second, False)):  # the second was cut off
        attempt = Attempt(point=Point(values=point["values"]), device=device_named("cpu"))
        folder = AttemptFolder(points / attempt.name)
        folder.create(attempt)
        if settled:
            folder.exit.write_text("{}")
    assert [point["measured"] for point in json.loads(run(*words, cwd=tmp_path).stdout)["points"]] == [["cpu"], []]
    assert "1 of 2 have a result already" in run(*words[:-1], cwd=tmp_path).stdout
