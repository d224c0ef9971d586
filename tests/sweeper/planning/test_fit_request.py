"""What the words of `fit` become. Starts nothing."""

from __future__ import annotations

import pytest

from sweeper import cards
from sweeper.planning.fit_request import contexts_of, dtype_of, read_request

LLAMA = {"library": "transformers", "model_type": "llama", "config": {"vocab_size": 1000}}


def test_a_bare_word_is_a_model_or_a_card_in_any_order() -> None:
    typed = read_request(["model=gpt2", "card=rtx-4090", "context=512"])
    for words in (["gpt2", "rtx-4090", "context=512"], ["rtx-4090", "context=512", "gpt2"]):
        bare = read_request(words)
        assert (bare.model, bare.cards) == ("gpt2", ("rtx-4090",))
        assert set(bare.overrides) == set(typed.overrides) == {"model=gpt2", "context=512", "devices=[sim:rtx-4090]"}


def test_a_workload_that_is_named_is_the_only_one() -> None:
    request = read_request(["gpt2", "rtx-4090", "workload=generate"])
    assert [each.name for each in request.settings] == ["run (generate)"]
    assert "workload=generate" not in request.overrides, "its points have it"
    own = read_request(["rtx-4090", "workload=custom", "workload.target=mywork:run"])
    assert own.settings == ()
    assert "workload=custom" in own.overrides


def test_a_key_in_which_the_training_rows_differ_leaves_those_that_have_its_value() -> None:
    request = read_request(["gpt2", "rtx-4090", "workload.method=lora", "quantize=nf4"])
    assert [each.name for each in request.settings] == ["QLoRA + checkpointing", "LoRA + checkpointing", "LoRA"]
    assert set(request.overrides) == {"model=gpt2", "quantize=nf4", "devices=[sim:rtx-4090]"}
    request = read_request(["gpt2", "rtx-4090", "workload.checkpointing=false", "workload=train"])
    assert [each.name for each in request.settings] == ["LoRA", "full training"]


@pytest.mark.parametrize(
    ("positions", "contexts"),
    [
        (131072, (512, 2048, 8192, 32768, 131072)),
        (32768, (2048, 4096, 8192, 16384, 32768)),
        (1024, (64, 128, 256, 512, 1024)),
        (514, (64, 128, 256, 512, 514)),
        (40, (40,)),
        (None, (512, 1024, 2048, 4096, 8192)),
    ],
)
def test_contexts_are_at_most_five_and_end_at_the_models_own_maximum(
    positions: int | None, contexts: tuple[int, ...]
) -> None:
    assert contexts_of(LLAMA, positions) == contexts


def test_a_model_of_images_has_no_contexts() -> None:
    assert contexts_of({"library": "transformers", "model_type": "vit", "config": {"image_size": 30}}, None) == ()


def test_the_dtype_is_bfloat16_where_the_card_computes_in_it() -> None:
    known = cards.of_sweeper()
    assert dtype_of([known["rtx-4090"]]) == "bfloat16"
    assert dtype_of([known["mi300x-192gb"]]) == "bfloat16"
    assert dtype_of([known["t4-16gb"]]) == dtype_of([known["rtx-4090"], known["v100-16gb"]]) == "float16"


def test_lora_adapts_every_linear_layer_of_a_model_without_the_default_modules() -> None:
    request = read_request(["gpt2", "rtx-4090"])
    of = {kind: request.points((512,), kind) for kind in ("llama", "gpt2")}
    assert not any("workload.targets" in point for point in of["llama"])
    targets = [point.get("workload.targets") for point in of["gpt2"] if point.get("workload.method") == "lora"]
    assert targets == ["all-linear"] * 3
