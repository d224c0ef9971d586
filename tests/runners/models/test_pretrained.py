from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

CONF = Path(__file__).parents[3] / "conf" / "model"


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory, decoder: dict[str, Any]) -> Path:
    """A decoder in bfloat16, saved as its library saves it."""
    folder = tmp_path_factory.mktemp("checkpoint") / "minute"
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**decoder["config"], tie_word_embeddings=True))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches for the hub: its client refuses, and its cache is empty."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def pretrained(path: Path | str, revision: str | None = None) -> dict[str, Any]:
    return {"name": "pretrained", "library": "transformers", "path": str(path), "revision": revision}


def test_weights_equal_those_of_the_checkpoint(run: Any, settled: Any, checkpoint: Path) -> None:
    from runners.models import transformers_models

    network = transformers_models.build(settled(model=pretrained(checkpoint)), "cpu")
    saved = transformers.LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    for name, parameter in saved.named_parameters():
        assert torch.equal(parameter, network.module.get_parameter(name)), name


def test_every_byte_of_a_checkpoint_that_is_read_in_threads_counts(checkpoint: Path) -> None:
    from runners.meters.torch_tensors import TensorTracker
    from runners.threads import EnteredInThreads

    tracker = TensorTracker()
    with tracker, EnteredInThreads(tracker.pushed):
        model = transformers.LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    assert sum(each.nbytes for each in model.parameters()) <= tracker.live <= tracker.peak


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_configured_dtype_overrides_the_checkpoints(run: Any, checkpoint: Path, dtype: str) -> None:
    model = run(model=pretrained(checkpoint), dtype=dtype).model
    assert model["storage_dtype"] == dtype
    assert model["parameter_bytes"] == model["parameters"] * (4 if dtype == "float32" else 2)
    assert model["model_revision"] is None
    assert model["attention_used"] == "sdpa"


def test_a_checkpoint_can_be_trained(run: Any, checkpoint: Path) -> None:
    losses = run("train", model=pretrained(checkpoint), warmup=2).returned["metrics"]["losses"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["bert", "vit", "t5"])
def test_a_checkpoint_of_any_architecture_is_loaded_with_the_class_that_it_names(
    run: Any, settled: Any, tmp_path: Path, name: str
) -> None:
    from runners.models import transformers_models

    described = yaml.safe_load((CONF / f"tiny-{name}.yaml").read_text())
    made = transformers_models.build(settled(model=described, seed=3), "cpu").module
    made.save_pretrained(tmp_path / name)
    loaded = transformers_models.build(settled(model=pretrained(tmp_path / name)), "cpu")
    assert type(loaded.module) is type(made)
    for parameter, weights in made.named_parameters():
        assert torch.equal(weights, loaded.module.get_parameter(parameter)), parameter
    drawn, saved = run(model=described, seed=3), run(model=pretrained(tmp_path / name), seed=3)
    assert saved.returned["metrics"]["checksum"] == drawn.returned["metrics"]["checksum"]
    assert saved.phase("warm_forward", 0)["shapes"] == drawn.phase("warm_forward", 0)["shapes"]


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """New tensors without content hold NaN or the largest integer, so that a test notices one that is never written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def same_tensors(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = ({**dict(each.named_parameters()), **dict(each.named_buffers())} for each in (a, b))
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


BUFFERED = ("bert", "clip", "deberta", "gemma2", "llama", "modernbert", "qwen2-vl", "speech-to-text", "swin")


@pytest.mark.parametrize("name", BUFFERED)
def test_buffers_that_no_checkpoint_contains_are_those_of_a_built_model(
    settled: Any, tmp_path: Path, filled_memory: None, name: str
) -> None:
    from runners.models import transformers_models

    built = transformers_models.build(settled(model=yaml.safe_load((CONF / f"tiny-{name}.yaml").read_text())), "cpu")
    assert any(True for _ in built.module.named_non_persistent_buffers())
    built.module.save_pretrained(tmp_path)
    loaded = transformers_models.build(settled(model=pretrained(tmp_path)), "cpu")
    assert same_tensors(built.module, loaded.module)


@pytest.mark.parametrize(("name", "part"), [("bert", "BertEmbeddings"), ("llama", "LlamaRotaryEmbedding")])
def test_buffers_are_computed_even_if_the_library_takes_their_module_for_initialised(
    settled: Any, tmp_path: Path, filled_memory: None, monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    from runners.models import transformers_models

    built = transformers_models.build(settled(model=yaml.safe_load((CONF / f"tiny-{name}.yaml").read_text())), "cpu")
    built.module.save_pretrained(tmp_path)
    modelling = importlib.import_module(type(built.module).__module__)
    monkeypatch.setattr(getattr(modelling, part), "_is_hf_initialized", True, raising=False)
    loaded = transformers_models.build(settled(model=pretrained(tmp_path)), "cpu")
    assert same_tensors(built.module, loaded.module)


def test_a_checkpoint_can_be_loaded_with_another_head(settled: Any, checkpoint: Path) -> None:
    from runners.models import transformers_models

    model = {**pretrained(checkpoint), "architecture": "LlamaModel"}
    assert type(transformers_models.build(settled(model=model), "cpu").module).__name__ == "LlamaModel"


def test_a_folder_of_the_hubs_cache_has_a_revision(run: Any, checkpoint: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--someone--minute"
    shutil.copytree(checkpoint, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    assert run(model=pretrained(cached / "snapshots" / commit)).model["model_revision"] == commit
    assert run(model=pretrained("someone/minute")).model["model_revision"] == commit


def test_a_hub_that_cannot_be_reached_is_unavailable(run: Any) -> None:
    from runners.phases import Unavailable

    with pytest.raises(Unavailable, match=r"someone/nothing is not a local folder, and the hub cannot be reached"):
        run(model=pretrained("someone/nothing"))


@pytest.mark.parametrize("path", ["./checkpoints/none", "/nowhere/at/all", "~/none/at/all"])
def test_a_missing_folder_is_never_looked_up_on_the_hub(run: Any, path: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"model.path=.*: no such folder"):
        run(model=pretrained(path))


def test_a_folder_has_no_revision_to_choose(run: Any, checkpoint: Path) -> None:
    with pytest.raises(ValueError, match=r"model.revision=main: .* is a folder"):
        run(model=pretrained(checkpoint, "main"))


def test_a_context_beyond_a_checkpoints_positions_is_refused(run: Any, tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=96, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    with pytest.raises(ValueError, match=r"context=17: pretrained has 16 positions"):
        run(model=pretrained(tmp_path / "gpt"), context=17)


def test_weights_that_are_stored_quantized_are_not_calculated(settled: Any, tmp_path: Path) -> None:
    """A model that is built from its configuration has weights in its dtype, which are larger."""
    from runners.models import transformers_models
    from runners.phases import Unavailable

    stored = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "quantization_config": {"quant_method": "awq"},
    }
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(Unavailable, match=r"its weights are stored quantized \(awq\), which is not calculated"):
        transformers_models.prepare(settled(model=pretrained(tmp_path)), "meta")
