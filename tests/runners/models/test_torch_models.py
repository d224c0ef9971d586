"""The models of conf/model, built as they are measured: on `meta`, where sizes are exact and weights cost nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

CONF = Path(__file__).resolve().parents[3] / "conf" / "model"
PARAMETERS = {
    "tiny-llama": 6_840_576,
    "small-llama": 7_901_440,
    "gpt2": 124_439_808,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "qwen2.5-0.5b": 494_032_768,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.1-8b": 8_030_261_248,
}


def described(name: str) -> dict[str, Any]:
    model: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return model


def facts(name: str, device: str = "meta", dtype: str = "bfloat16") -> dict[str, Any]:
    from runners.models import torch_models, transformers_models

    model = described(name)
    values = {"model": model, "dtype": dtype, "batch": 1, "context": 16, "seed": 0}
    library = torch_models if model["library"] == "torch" else transformers_models
    return library.build(values, device).facts()


def test_every_model_that_is_named_after_another_is_counted_here() -> None:
    """The tiny models, one of each architecture, have no published counterpart; docs/architectures.md has a table."""
    files = {path.stem for path in CONF.glob("*.yaml") if not path.stem.startswith("tiny-")}
    assert files == {*PARAMETERS, "mlp", "pretrained"} - {"tiny-llama"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_has_the_parameters_of_the_one_it_is_named_after(name: str) -> None:
    counted = facts(name)
    assert counted["parameters"] == counted["trainable_parameters"] == PARAMETERS[name]
    assert counted["parameter_bytes"] == 2 * PARAMETERS[name]
    assert counted["attention_used"] == "sdpa"
    assert described(name)["name"] == name


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 27_362_304), ("bfloat16", 13_681_152), ("float16", 13_681_152)]
)
def test_weights_take_the_bytes_of_their_dtype(dtype: str, size: int) -> None:
    assert facts("tiny-llama", device="cpu", dtype=dtype)["parameter_bytes"] == size


def test_the_mlp_is_two_layers_with_small_weights_and_no_biases() -> None:
    import torch

    from runners.models import torch_models

    width = described("mlp")["width"]
    values = {"model": described("mlp"), "dtype": "float32", "batch": 1, "context": 1, "seed": 0}
    network = torch_models.build(values, "cpu")
    assert network.facts()["parameters"] == 2 * (width * width + width)
    for name, parameter in network.module.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.02)
            assert torch.isfinite(parameter).all()


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b"])
def test_long_contexts_are_scaled_as_the_model_was_trained(name: str) -> None:
    from runners.models import transformers_models

    values = {"model": described(name), "dtype": "bfloat16", "batch": 1, "context": 16, "seed": 0}
    config = transformers_models.build(values, "meta").module.config
    rope = getattr(config, "rope_parameters", None) or config.rope_scaling
    assert (rope["rope_type"], rope["original_max_position_embeddings"]) == ("llama3", 8192)


def test_building_a_model_does_not_modify_its_configuration() -> None:
    from runners.models import transformers_models

    model = described("llama-3.2-1b")
    transformers_models.build({"model": model, "dtype": "bfloat16", "batch": 1, "context": 1, "seed": 0}, "meta")
    assert model == described("llama-3.2-1b")


def test_a_model_that_needs_only_torch_imports_only_torch() -> None:
    code = """
import sys
from runners.workloads import forward
values = {"model": {"name": "mlp", "library": "torch", "width": 8}, "dtype": "float32"}
print(forward.imports(values))
forward.prepare(values, "cpu")
print(sorted(name for name in ("transformers", "huggingface_hub", "torch._dynamo", "yaml") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["('torch',)", "[]"]


def test_imports_imports_nothing_itself() -> None:
    code = """
import sys
from runners.workloads import custom, forward, train
plain = {"checkpointing": False, "compile": False, "optimizer": "adamw", "method": "full", "export": None}
print(train.imports({"workload": plain, "model": {"library": "torch"}}))
for named in ({"model_type": "gpt-neox"}, {"model_type": "clip_vision_model"}, {"model_type": "bret"}, {"path": "x"}):
    print(forward.imports({"model": {"library": "transformers", **named}}))
print(custom.imports({}), "torch" in sys.modules, "transformers" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "('torch', 'torch._dynamo')",
        "('torch', 'transformers.models.gpt_neox.modeling_gpt_neox')",
        *["('torch', 'transformers.models.auto.modeling_auto')"] * 3,
        "('torch',) False False",
    ]
