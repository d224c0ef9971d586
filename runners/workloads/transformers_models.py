"""Decoders of the transformers library: with random weights from a configuration, or from a checkpoint."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from runners.phases import Unavailable
from runners.workloads.torch_models import Network, dtype_named, first_device, generator, weights_seed

# In a repository on the hub: at its top only, and no second copy of the weights in another format.
CONFIGURATION, WEIGHTS, OLDER_WEIGHTS = "*.json", "*.safetensors", "pytorch_model*.bin"
NOT_WANTED = ["*/*", "consolidated*"]


class Decoder(Network):
    """Reads [batch, context] random tokens, learns to repeat them. Never keeps keys and values."""

    def inputs(self) -> dict[str, torch.Tensor]:
        shape = (self._values["batch"], self._values["context"])
        drawn = generator(self._values["seed"])
        return {"input_ids": torch.randint(self._config.vocab_size, shape, generator=drawn).to(self.device)}

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.module(**inputs, use_cache=False).logits
        return logits

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs["input_ids"]

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The model's own, which computes in float32 and shifts the labels by one."""
        loss: torch.Tensor = self.module.loss_function(  # type: ignore[operator]
            logits=output, labels=targets, vocab_size=self._config.vocab_size
        )
        return loss

    def facts(self) -> dict[str, Any]:
        model = self._values["model"]
        return super().facts() | {
            "attention": self._config._attn_implementation,
            "model_revision": _revision(_folder(model)) if "path" in model else None,
        }

    @property
    def _config(self) -> Any:
        return self.module.config


def prepare(values: Mapping[str, Any]) -> None:
    """Import the modelling code and fetch the checkpoint, so that neither happens in a measured phase.

    Only a hub name reaches for the network, and only here.
    """
    model = values["model"]
    if "path" in model:
        _fetch(model)
    config = _config(model)
    _model_class(config.model_type)
    positions = getattr(config, "n_positions", None)  # a table: past its end lies a device assert on a GPU
    if positions is not None and values["context"] > positions:
        raise ValueError(f"context={values['context']}: {model['name']} has {positions} positions")


def build(values: Mapping[str, Any], device: str) -> Network:
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(weights_seed(values["seed"]))
    model, dtype = values["model"], dtype_named(values["dtype"])
    if first_device(device) == "meta":
        with torch.device("meta"):
            module = _from_config(_config(model), dtype)
    elif "path" in model:
        module = transformers.AutoModelForCausalLM.from_pretrained(_folder(model), dtype=dtype, local_files_only=True)
    else:
        module = _from_config(_config(model), dtype)
    return Decoder(module, values, device)


def described(model: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class of a model and its configuration, without building it."""
    config = _config(model)
    return _model_class(config.model_type), config


def _from_config(config: Any, dtype: torch.dtype) -> Any:
    """Random weights by the model's own initialisation.

    In the dtype from the start, as the library does it: made in float32 and then cast, a model in bfloat16 would need
    the memory of one in float32.
    """
    return _model_class(config.model_type)._from_config(config, dtype=dtype)


def _config(model: Mapping[str, Any]) -> Any:
    if "path" in model:
        import transformers

        return transformers.AutoConfig.from_pretrained(_folder(model), local_files_only=True)
    # A copy: the library completes the rope parameters it is given in place.
    return _model_class(model["model_type"]).config_class(**copy.deepcopy(dict(model["config"])))


def _model_class(model_type: str) -> Any:
    """The class with the language modelling head, by the library's naming: LlamaForCausalLM, GPT2LMHeadModel."""
    kind = model_type.replace("-", "_")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    for name in module.__all__:
        if name.endswith(("ForCausalLM", "LMHeadModel")):
            return getattr(module, name)
    raise ValueError(f"model_type {model_type!r} has no decoder with a language modelling head in transformers")


def _fetch(model: Mapping[str, Any]) -> None:
    path, revision = model["path"], model.get("revision")
    if _is_local(path):
        if not Path(path).expanduser().is_dir():
            raise FileNotFoundError(f"model.path={path}: no such folder")
        if revision is not None:
            raise ValueError(f"model.revision={revision}: only the hub has them, and model.path={path} is a folder")
        return
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _snapshot(model, local_files_only=False, patterns=[CONFIGURATION, WEIGHTS])
        if not any(folder.glob(WEIGHTS)):
            _snapshot(model, local_files_only=False, patterns=[CONFIGURATION, OLDER_WEIGHTS])
    except LocalEntryNotFoundError as error:
        raise Unavailable(f"model.path={path} is no folder here, and the hub cannot be reached: {error}") from error


def _folder(model: Mapping[str, Any]) -> Path:
    path = model["path"]
    return Path(path).expanduser() if _is_local(path) else _snapshot(model, local_files_only=True, patterns=None)


def _is_local(path: str) -> bool:
    """Whether a path means a folder here: it is one, or no repository of the hub can be named so."""
    return Path(path).expanduser().is_dir() or not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path)


def _snapshot(model: Mapping[str, Any], local_files_only: bool, patterns: list[str] | None) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model["path"],
            revision=model.get("revision"),
            allow_patterns=patterns,
            ignore_patterns=NOT_WANTED,
            local_files_only=local_files_only,
        )
    )


def _revision(folder: Path) -> str | None:
    """The commit of a checkpoint from the hub, which names its folder in the hub's cache; a plain folder has none."""
    folder = folder.absolute()
    return folder.name if folder.parent.name == "snapshots" else None
