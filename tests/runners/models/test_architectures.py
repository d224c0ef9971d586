"""One of each family of architectures, on conf/model as it is; every one of them is swept for docs/architectures.md."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from runners.phases import Unavailable

CONF = Path(__file__).parents[3] / "conf" / "model"
FAMILIES = ("bert", "t5", "whisper", "vit", "clip", "llava", "qwen2-vl", "mixtral", "mamba")
CONTEXT = {"context": (8, 24)}
# What changes, and the input whose shape follows; None where only the model changes.
DIMENSIONS = [
    ("bert", CONTEXT, "input_ids", (2, 8), (2, 24)),
    ("t5", CONTEXT, "decoder_input_ids", (2, 8), (2, 24)),
    ("mamba", CONTEXT, "input_ids", (2, 8), (2, 24)),
    ("mixtral", {"model.config.num_local_experts": (4, 8)}, "input_ids", (2, 8), (2, 8)),
    ("whisper", {"model.config.max_source_positions": (32, 96)}, "input_features", (2, 16, 64), (2, 16, 192)),
    ("vit", {"inputs.resolution": (32, 64)}, "pixel_values", (2, 3, 32, 32), (2, 3, 64, 64)),
    ("vit", {"batch": (1, 3)}, "pixel_values", (1, 3, 32, 32), (3, 3, 32, 32)),
    ("llava", CONTEXT, "input_ids", (2, 8 + 16), (2, 24 + 16)),
    ("llava", {"inputs.images": (1, 3)}, "input_ids", (2, 8 + 16), (2, 8 + 3 * 16)),
    ("qwen2-vl", {"inputs.resolution": (32, 64)}, "input_ids", (2, 8 + 16), (2, 8 + 64)),
    ("qwen2-vl", {"inputs.images": (0, 2)}, "input_ids", (2, 8), (2, 8 + 2 * 16)),
]


def model(name: str, **changes: Any) -> dict[str, Any]:
    described: dict[str, Any] = yaml.safe_load((CONF / f"tiny-{name}.yaml").read_text())
    return {**described, **changes}


def point(name: str, **dotted: Any) -> dict[str, Any]:
    """The changed values of a point by the keys of a command line."""
    values: dict[str, Any] = {"model": model(name), "inputs": {"name": "synthetic"}}
    for key, value in dotted.items():
        *path, last = key.split(".")
        inner = values
        for word in path:
            inner = inner.setdefault(word, {})
        inner[last] = value
    return values


def built(settled: Any, name: str, workload: str = "forward", **dotted: Any) -> Any:
    from runners.models import transformers_models

    values = settled(workload, **point(name, **dotted))
    transformers_models.prepare(values, "cpu")
    return transformers_models.build(values, "cpu")


@pytest.mark.parametrize(("name", "dimension", "read", "small", "large"), DIMENSIONS)
def test_shapes_match_the_configured_sizes_and_peaks_grow_with_them(
    run: Any, name: str, dimension: dict[str, tuple[int, int]], read: str, small: tuple[int], large: tuple[int]
) -> None:
    ((key, values),) = dimension.items()
    results = [run(**point(name, **{key: value})) for value in values]
    shapes = [tuple(result.phase("warm_forward", 0)["shapes"][read]) for result in results]
    assert shapes == [small, large]
    assert [result.returned["steps"] for result in results] == [2, 2]
    first, second = (result.tensor("warm_forward", "peak", 0) for result in results)
    assert first < second


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "clip", "llava", "mixtral", "mamba"])
def test_each_family_learns(run: Any, name: str) -> None:
    losses = run("train", warmup=1, **point(name, **{"workload.lr": 0.001})).returned["metrics"]["losses"]
    assert all(math.isfinite(loss) for loss in losses)
    assert min(losses[1:]) < losses[0]


@pytest.mark.parametrize("name", ["gpt2", "bert", "modernbert", "t5", "whisper", "vit", "clip", "llava"])
def test_the_loss_equals_the_one_that_the_model_computes_from_labels(settled: Any, name: str) -> None:
    network = built(settled, name)
    network.module.eval()
    inputs = network.inputs()
    targets = network.targets(inputs)
    labels = {"return_loss": True} if name == "clip" else {"labels": targets}
    assert torch.equal(network.loss(network.forward(inputs), targets), network.module(**inputs, **labels).loss)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_begins_with_the_samples_of_a_smaller_one(settled: Any, name: str) -> None:
    one, three = (built(settled, name, batch=size).inputs() for size in (1, 3))
    for key, part in one.items():
        assert torch.equal(part, three[key][: len(part)]), key
    assert any(not torch.equal(part, three[key][len(part) : 2 * len(part)]) for key, part in one.items())


def test_a_batch_of_the_mlp_begins_with_the_samples_of_a_smaller_one(settled: Any) -> None:
    from runners.models import torch_models

    (one, learnt_by_one), (three, learnt_by_three) = (
        (network.inputs()["x"], network.targets({}))
        for network in (torch_models.build(settled(batch=size, context=3), "cpu") for size in (1, 3))
    )
    assert torch.equal(one, three[:1])
    assert torch.equal(learnt_by_one, learnt_by_three[:1])


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("bert", 2 * 8), ("t5", 2 * (8 + 8)), ("llava", 2 * (8 + 16)), ("whisper", 2 * 8), ("vit", None)],
)
def test_tokens_are_counted_for_models_that_read_text(run: Any, name: str, tokens: int | None) -> None:
    workload = "train" if name in ("bert", "vit") else "forward"
    assert run(workload, **point(name)).returned["tokens"] == (None if tokens is None else 2 * tokens)


@pytest.mark.parametrize("name", ["t5", "llava", "qwen2-vl", "mixtral", "mamba"])
def test_a_forward_pass_stores_no_keys_and_values(run: Any, name: str) -> None:
    result = run(**point(name, batch=4, context=64))
    rows, length = result.phase("cold_forward")["shapes"]["input_ids"]
    stored = result.tensor("cold_forward", "end") - result.tensor("inputs", "end")
    assert 0 <= stored - 4 * rows * length * 96 < 100  # qwen2-vl remembers by how much positions lag behind tokens


def test_image_tokens_stand_exactly_at_image_positions(settled: Any) -> None:
    network = built(settled, "llava", **{"inputs.images": 2})
    ids = network.inputs()["input_ids"]
    places = ids == network.module.config.image_token_id
    assert places.sum(1).tolist() == [32, 32]
    assert not places[:, 0].any()
    targets = network.targets(network.inputs())
    assert torch.equal(targets == -100, places), "image positions are no targets"


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [("gpt2", "vocab_size"), ("llava", "text_config.vocab_size")],
)
def test_the_last_logits_alone_take_less_memory(run: Any, name: str, vocabulary: str) -> None:
    options = {f"model.config.{vocabulary}": 4096, "context": 64}
    stored = [run(**point(name, **options, **{"workload.logits": which})) for which in ("all", "last")]
    _, length = stored[0].phase("cold_forward")["shapes"]["input_ids"]
    of_one_position = 4 * 2 * 4096
    held = [result.tensor("warm_forward", "end", 0) - result.tensor("inputs", "end") for result in stored]
    assert held == [length * of_one_position, of_one_position]
    all_of_them, last = (result.tensor("warm_forward", "peak", 0) for result in stored)
    assert last < all_of_them


@pytest.mark.parametrize(
    ("name", "used"),
    [("gpt2", "sdpa"), ("deberta", "eager"), ("mamba", None), ("resnet", None), ("llava", "sdpa")],
)
def test_the_attention_in_use_is_reported(settled: Any, name: str, used: str | None) -> None:
    size = {"inputs.resolution": 32} if name == "resnet" else {}
    assert built(settled, name, **size).facts()["attention_used"] == used


def test_eager_attention_is_used_and_seen_in_the_peak(run: Any) -> None:
    results = [run(**point("bert", context=128, attention=kind)) for kind in ("sdpa", "eager")]
    assert [result.model["attention_used"] for result in results] == ["sdpa", "eager"]
    fused, eager = (result.tensor("warm_forward", "peak", 0) for result in results)
    scores = 4 * 2 * 4 * 128 * 128
    assert eager - fused > scores


@pytest.mark.parametrize(
    ("name", "kind", "error", "message"),
    [
        ("mamba", "eager", ValueError, "attention=eager: tiny-mamba has no attention"),
        ("mamba", "flash_attention_2", ValueError, "attention=flash_attention_2: tiny-mamba has no attention"),
        ("deberta", "sdpa", Unavailable, "attention=sdpa: DebertaV2ForMaskedLM does not support"),
        ("bert", "flash_attention_2", Unavailable, "attention=flash_attention_2: its kernels need a CUDA device"),
    ],
)
def test_a_missing_attention_is_never_replaced(
    run: Any, name: str, kind: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(**point(name, attention=kind))


def test_flash_attention_needs_its_dtypes_and_its_library(settled: Any) -> None:
    from runners.models import transformers_models

    for dtype, why in (("float32", "float16 and bfloat16, not in float32"), ("bfloat16", "FlashAttention2")):
        values = settled(**point("bert", attention="flash_attention_2", dtype=dtype))
        with pytest.raises(Unavailable, match=why):
            transformers_models.prepare(values, "cuda:0")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit", {"inputs.resolution": 50}, "inputs.resolution=50: tiny-vit splits images into squares of 8 .* try 56"),
        ("qwen2-vl", {"inputs.resolution": 36}, "inputs.resolution=36: .* squares of 8 pixels; try 40"),
        ("llava", {"inputs.resolution": 64}, "inputs.resolution=64: tiny-llava needs 32 pixels"),
        ("resnet", {}, "inputs.resolution=null: tiny-resnet has no default resolution"),
        ("bert", {"inputs.resolution": 32}, "inputs.resolution=32: tiny-bert reads no images"),
        ("bert", {"inputs.images": 1}, "inputs.images=1: tiny-bert reads no images with text"),
        ("vit", {"inputs.images": 2}, "inputs.images=2: tiny-vit reads no images with text; batch is their number"),
        ("llava", {"inputs.images": -1}, "inputs.images=-1: must be a whole number, 0 or more"),
        ("llava", {"inputs.images": 9}, "context=8: each of the inputs.images=9 needs a text token"),
        ("bert", {"inputs.frames": 9}, "inputs.frames=9: tiny-bert reads no sound"),
        ("whisper", {"inputs.frames": 9}, "inputs.frames=9: tiny-whisper needs 128; model.config.max_source_positions"),
        ("wav2vec2", {}, "inputs.frames=null: tiny-wav2vec2 has no default length"),
        ("opt", {"context": 257}, "context=257: tiny-opt has 256 positions"),
        ("bart", {"context": 257}, "context=257: tiny-bart has 256 positions"),
        ("clip", {"context": 78}, "context=78: tiny-clip has 77 positions"),
        ("whisper", {"context": 129}, "context=129: tiny-whisper has 128 positions"),
        (
            "bert",
            {"workload.logits": "last"},
            "workload.logits=last: BertForMaskedLM cannot compute the last logits alone",
        ),
    ],
)
def test_inputs_that_a_model_cannot_read_are_rejected_before_it_is_built(
    settled: Any, name: str, options: dict[str, Any], message: str
) -> None:
    from runners.models import transformers_models

    with pytest.raises(ValueError, match=message) as refusal:
        transformers_models.prepare(settled(**point(name, **options)), "cpu")
    assert "\n" not in str(refusal.value)


def test_a_model_without_a_position_table_has_no_context_limit(run: Any) -> None:
    short = model("gpt2")["config"] | {}
    rotary = {
        "name": "rotary",
        "library": "transformers",
        "model_type": "llama",
        "config": {
            "vocab_size": short["vocab_size"],
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 16,
        },
    }
    assert run(model=rotary, context=48).returned["steps"] == 2


def test_the_mlp_rejects_keys_that_do_not_apply(run: Any) -> None:
    for changes, message in (
        ({"attention": "eager"}, "attention=eager: mlp has no attention"),
        ({"inputs": {"images": 2}}, "inputs.images=2: mlp reads random numbers"),
        ({"workload": {"logits": "last"}}, "workload.logits=last: mlp has no logits"),
    ):
        with pytest.raises(ValueError, match=message):
            run(**changes)


def test_a_head_without_a_loss_is_not_trained(run: Any) -> None:
    bare = model("bert", architecture="BertModel")
    assert run(model=bare).returned["steps"] == 2
    with pytest.raises(ValueError, match="workload=train: no loss of BertModel is known"):
        run("train", model=bare)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bret"}, r"model.model_type=bret: transformers has no such type \(did you mean bert\?\)"),
        ({"architecture": "BertForMaskdLM"}, r"architecture=BertForMaskdLM: .* \(did you mean BertForMaskedLM\?\)"),
        ({"model_type": "vit", "architecture": None}, r"model_type 'vit' has no decoder .* one of ViTForImage"),
    ],
)
def test_an_unknown_class_is_rejected_with_the_known_ones(run: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(model=copy.deepcopy(model("bert", **changes)))


def test_a_part_of_a_family_is_built_from_its_own_type(run: Any) -> None:
    tower = model("clip")["config"]["vision_config"]
    named = {"name": "tower", "library": "transformers", "model_type": "clip_vision_model"}
    result = run(model={**named, "architecture": "CLIPVisionModel", "config": tower})
    assert result.phase("cold_forward")["shapes"] == {"pixel_values": [2, 3, 32, 32]}
