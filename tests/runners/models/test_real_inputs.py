"""The user's own text and images, compared with the library's own pipeline; tokenizer and processor are saved here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from PIL import Image

LINES = ["one two three", "four", "one two three four five six seven", "eight nine"]
WORDS = ["<pad>", "</s>", "<unk>", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A word is a token; trained on the text that the tests read."""
    trained = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=WORDS[:3])
    trained.train_from_iterator(LINES, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    saved.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path, decoder: dict[str, Any], tokenizer: Path) -> dict[str, Any]:
    """A decoder with its tokenizer next to it."""
    config = transformers.LlamaConfig(**decoder["config"])
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(tmp_path / "llama")
    return {"name": "pretrained", "library": "transformers", "path": str(tmp_path / "llama"), "revision": None}


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "corpus.txt").write_text("\n".join(LINES[:2]) + "\n\n  \n" + "\n".join(LINES[2:]) + "\n")
    return str(tmp_path / "corpus.txt")


@pytest.fixture
def vision(tmp_path: Path) -> dict[str, Any]:
    """A vision model with an image processor of another size than the images'."""
    config = transformers.ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    written = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "do_resize": True}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(written))
    return {"name": "pretrained", "library": "transformers", "path": str(tmp_path / "vit"), "revision": None}


@pytest.fixture
def images(tmp_path: Path) -> str:
    (tmp_path / "images").mkdir()
    for number, size in enumerate([(40, 30), (64, 64), (20, 50)]):
        Image.new("RGB", size, (50 * number, 10, 200)).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / "notes.md").write_text("no image")
    return str(tmp_path / "images")


def text(file: str, **changes: Any) -> dict[str, Any]:
    return {"name": "text", "file": file, "samples": "lines", "padding": "longest", "tokenizer": None} | changes


def pictures(file: str, **changes: Any) -> dict[str, Any]:
    return {"name": "images", "file": file, "resolution": None, "processor": None} | changes


def test_shapes_are_those_after_tokenising_cutting_and_padding(run: Any, checkpoint: Any, corpus: str) -> None:
    result = run(model=checkpoint, batch=3, context=5, inputs=text(corpus))
    shapes = {"input_ids": [3, 5], "attention_mask": [3, 5]}
    assert result.phase("inputs")["shapes"] == result.phase("cold_forward")["shapes"] == shapes
    result = run(model=checkpoint, batch=2, context=5, inputs=text(corpus))
    assert result.phase("cold_forward")["shapes"]["input_ids"] == [2, 3]
    assert result.returned["tokens"] == 2 * 2 * 3
    result = run(model=checkpoint, batch=2, context=5, inputs=text(corpus, padding="context"))
    assert result.phase("cold_forward")["shapes"]["input_ids"] == [2, 5]


def test_truncated_and_padded_tokens_are_reported(run: Any, checkpoint: Any, corpus: str) -> None:
    metrics = run(model=checkpoint, batch=3, context=5, inputs=text(corpus)).phase("inputs")["metrics"]
    assert metrics == {
        "asked_tokens": 15,
        "real_tokens": 3 + 1 + 5,
        "padded_tokens": 2 + 4,
        "truncated_tokens": 2,
        "truncated_samples": 1,
        "longest_sample_tokens": 7,
        "samples_in_file": 4,
        "repeated_samples": 0,
    }


def test_pieces_are_full_and_start_over_at_the_end_of_the_text(run: Any, checkpoint: Any, corpus: str) -> None:
    result = run(model=checkpoint, batch=5, context=4, inputs=text(corpus, samples="pieces"))
    metrics = result.phase("inputs")["metrics"]
    assert result.phase("cold_forward")["shapes"]["input_ids"] == [5, 4]
    assert (metrics["real_tokens"], metrics["padded_tokens"], metrics["truncated_tokens"]) == (20, 0, 0)
    assert (metrics["samples_in_file"], metrics["repeated_samples"]) == (3, 2)  # 13 tokens


@pytest.mark.parametrize("samples", ["lines", "pieces"])
def test_a_batch_begins_with_the_batch_of_one(settled: Any, checkpoint: Any, corpus: str, samples: str) -> None:
    one, six = (inputs_of(settled, checkpoint, batch, text(corpus, samples=samples)) for batch in (1, 6))
    seen = one["attention_mask"].sum()
    assert torch.equal(one["input_ids"][0, :seen], six["input_ids"][0, :seen])
    assert torch.equal(six["input_ids"][0], six["input_ids"][4 if samples == "lines" else 2])


def test_the_tokens_are_the_tokenizers(settled: Any, checkpoint: Any, corpus: str) -> None:
    ids = inputs_of(settled, checkpoint, 2, text(corpus))["input_ids"]
    words = transformers.AutoTokenizer.from_pretrained(checkpoint["path"])
    assert words.batch_decode(ids) == ["one two three", "four <pad> <pad>"]


def test_padding_is_left_out_of_the_loss(run: Any, settled: Any, checkpoint: Any, corpus: str) -> None:
    from runners.models import transformers_models

    network = transformers_models.build(settled(model=checkpoint, context=5, inputs=text(corpus)), "cpu")
    inputs = network.inputs()
    assert network.targets(inputs).eq(-100).equal(inputs["attention_mask"] == 0)
    losses = run("train", model=checkpoint, context=5, inputs=text(corpus)).returned["metrics"]["losses"]
    assert losses[1] < losses[0]


def test_a_model_built_from_a_configuration_needs_a_tokenizer_folder(
    run: Any, decoder: dict[str, Any], corpus: str, tokenizer: Path
) -> None:
    with pytest.raises(ValueError, match=r"minute is built from a configuration.*inputs.tokenizer=FOLDER"):
        run(model=decoder, inputs=text(corpus))
    result = run(model=decoder, inputs=text(corpus, tokenizer=str(tokenizer)))
    assert result.phase("inputs")["metrics"]["real_tokens"] == 4


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    run: Any, decoder: dict[str, Any], corpus: str, tokenizer: Path
) -> None:
    decoder["config"]["vocab_size"] = 6
    with pytest.raises(ValueError, match=r"its tokens go up to \d+, and the model has 6"):
        run(model=decoder, batch=4, inputs=text(corpus, tokenizer=str(tokenizer)))


def test_an_encoder_and_its_decoder_read_the_same_text(run: Any, corpus: str, tokenizer: Path) -> None:
    config = {"vocab_size": 96, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = {"name": "t5", "library": "transformers", "model_type": "t5", "architecture": "T5ForConditionalGeneration"}
    given = text(corpus, tokenizer=str(tokenizer))
    result = run("train", model=model | {"config": config}, context=5, inputs=given)
    shapes = result.phase("cold_forward")["shapes"]
    assert shapes["input_ids"] == shapes["decoder_input_ids"] == shapes["decoder_attention_mask"] == [2, 3]
    assert result.returned["tokens"] == 2 * 2 * (3 + 3)


def test_images_are_resized_by_the_models_processor(run: Any, vision: Any, images: str) -> None:
    result = run(model=vision, batch=4, inputs=pictures(images))
    for name in ("inputs", "cold_forward"):
        assert result.phase(name)["shapes"] == {"pixel_values": [4, 3, 32, 32]}
    assert result.phase("inputs")["metrics"] == {
        "image_sizes": [[30, 40], [64, 64], [50, 20]],
        "samples_in_file": 3,
        "repeated_samples": 1,
    }
    assert run(model=vision, inputs=pictures(images, resolution=48)).phase("cold_forward")["shapes"] == {
        "pixel_values": [2, 3, 48, 48]
    }


def test_a_batch_of_images_begins_with_those_of_a_smaller_one(settled: Any, vision: Any, images: str) -> None:
    one, three = (inputs_of(settled, vision, batch, pictures(images))["pixel_values"] for batch in (1, 3))
    assert torch.equal(one[0], three[0])
    assert not torch.equal(three[0], three[1])


def test_inputs_of_another_kind_than_the_model_reads_are_refused(
    run: Any, checkpoint: Any, vision: Any, corpus: str, images: str
) -> None:
    with pytest.raises(ValueError, match=r"inputs=text: .*pretrained \(ViT\w+\) reads pixel_values"):
        run(model=vision, inputs=text(corpus))
    with pytest.raises(ValueError, match=r"inputs=images: .*pretrained \(Llama\w+\) reads input_ids"):
        run(model=checkpoint, inputs=pictures(images))
    with pytest.raises(ValueError, match=r"inputs=text: mlp reads random numbers"):
        run(inputs=text(corpus))


@pytest.mark.parametrize("file", ["nothing.txt", "."])
def test_a_missing_file_is_rejected_before_anything_is_measured(run: Any, checkpoint: Any, file: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"inputs.file=.*: no such file"):
        run(model=checkpoint, inputs=text(file))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "images"])
def test_no_module_is_imported_while_inputs_are_made(
    settled: Any, checkpoint: Any, vision: Any, corpus: str, images: str, kind: str
) -> None:
    """In a process of its own: what other tests imported would hide it."""
    import subprocess

    point = settled(
        model=checkpoint if kind == "text" else vision, inputs=text(corpus) if kind == "text" else pictures(images)
    )
    code = (
        "import importlib, json, sys\n"
        "values = json.loads(sys.argv[1])\n"
        "from runners.workloads import forward\n"
        "for name in forward.imports(values): importlib.import_module(name)\n"
        "forward.prepare(values, 'cpu')\n"
        "from runners.models import transformers_models\n"
        "network = transformers_models.build(values, 'cpu')\n"
        "before = set(sys.modules)\n"
        "network.inputs()\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(point)], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr


def inputs_of(settled: Any, model: Any, batch: int, inputs: Any) -> dict[str, torch.Tensor]:
    from runners.models import transformers_models

    point = settled(model=model, batch=batch, context=5, inputs=inputs)
    return transformers_models.build(point, "cpu").inputs()
