"""Models of the transformers library: with random weights from a configuration, or from a checkpoint.

Any architecture: what it reads is told in transformers_inputs, and what it is trained towards by the name of its class.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from runners.models import transformers_inputs, transformers_real_inputs
from runners.models.torch_models import Network, dtype_named, first_device, weights_seed
from runners.phases import Unavailable

# In a repository on the hub: at its top only, and no second copy of the weights in another format.
CONFIGURATION, WEIGHTS, OLDER_WEIGHTS = "*.json", "*.safetensors", "pytorch_model*.bin"
NOT_WANTED = ["*/*", "consolidated*"]

LANGUAGE_MODELLING = ("ForCausalLM", "LMHeadModel")  # how a class ends that is taken unless `architecture` names one
TOKENS = (*LANGUAGE_MODELLING, "ForMaskedLM", "ForConditionalGeneration")
CLASSES = tuple(f"For{what}Classification" for what in ("Sequence", "Image", "Video", "Audio"))
PAIRS = ("image_text_contrastive_loss", "clip_loss")  # beside a class that can be asked to return one: clip
NO_TARGET = -100  # of a position that the losses of the library leave out


class Transformer(Network):
    """Reads what its class reads; gives its logits, or what comes first of that which it returns.

    Trained to tell what it has read: the next tokens of a decoder, all tokens of an encoder or a decoder behind one,
    the class of a sample (its number in the batch), or which text belongs to which image. Keeps no keys and values.
    """

    def __init__(self, module: nn.Module, values: Mapping[str, Any], device: str) -> None:
        super().__init__(module, values, device)
        self._lengths: list[int] | None = None  # of the texts that were read, where inputs are not drawn
        self._kind = type(module)  # an adapter may take its place, and hides what a pass takes
        self._options = _options(self._kind, self._config, values)

    def inputs(self) -> dict[str, torch.Tensor]:
        if transformers_real_inputs.are_asked(self._values):
            read = transformers_real_inputs.real_inputs(self._values, self._config)
            self.told, self._lengths = read.told, read.lengths
            return {name: tensor.to(self.device) for name, tensor in read.tensors.items()}
        drawn = transformers_inputs.drawn(self._described, self._values["batch"], self._values["seed"], self.device)
        return {name: tensor.to(self.device) for name, tensor in drawn.items()}

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.module(**inputs, **self._options)[0]
        return output

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if _learns(self._kind) == "tokens":
            tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
            assert tokens is not None
            seen = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
            if seen is not None:
                tokens = tokens.masked_fill(seen == 0, NO_TARGET)
            image = transformers_inputs.image_token(self._config)
            return tokens if image is None else tokens.masked_fill(tokens == image, NO_TARGET)
        samples = torch.arange(self._values["batch"], device=self.device)
        return samples % self._config.num_labels if _learns(self._kind) == "classes" else samples

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The one that the model's own forward pass computes if it is given labels."""
        loss: torch.Tensor
        if _learns(self._kind) == "pairs":
            loss = _pair_loss(self._kind)(output.T)  # of the texts to the images; the output is the other way round
        elif not _calls_loss_function(self._kind):
            loss = nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten(), ignore_index=NO_TARGET)
        elif _learns(self._kind) == "classes":
            loss = self.module.loss_function(targets, output, self._config)  # type: ignore[operator]
        else:  # in float32, and shifted by one in a decoder
            loss = self.module.loss_function(  # type: ignore[operator]
                logits=output, labels=targets, vocab_size=transformers_inputs.vocabulary(self._config)
            )
        return loss

    def positions(self) -> int | None:
        """Tokens of text, the places of images among them: of both sides where there are an encoder and a decoder."""
        if self._lengths is not None:
            return self._values["batch"] * sum(self._lengths) or None
        lengths = [self._described[name].shape[0] for name in transformers_inputs.TEXT if name in self._described]
        return self._values["batch"] * sum(lengths) if lengths else None

    def facts(self) -> dict[str, Any]:
        model = self._values["model"]
        return super().facts() | {
            "attention_used": _attention_used(self.module),
            "model_revision": _revision(_folder(model)) if "path" in model else None,
        }

    @property
    def _described(self) -> dict[str, transformers_inputs.Input]:
        return transformers_inputs.described(self._kind, self._config, self._values)

    @property
    def _config(self) -> Any:
        return self.module.config


def prepare(values: Mapping[str, Any], device: str) -> None:
    """Import the modelling code and fetch the checkpoint, so that neither happens in a measured phase, and refuse what
    cannot be: ValueError, or Unavailable for an attention that is not there.

    Only a hub name reaches for the network, and only here.
    """
    model = values["model"]
    if "path" in model:
        _fetch(model)
    kind, config = described(model)
    for part in _parts(config):
        _import_modelling(part)
    inputs = transformers_inputs.described(kind, config, values)
    if transformers_real_inputs.are_asked(values):
        transformers_real_inputs.prepare(values, kind, config)
    workload = values.get("workload") or {}
    if workload.get("name") == "train" and _learns(kind) is None:
        raise ValueError(f"workload=train: no loss of {kind.__name__} is known; model.architecture names another head")
    last = workload.get("name") == "forward" and workload.get("logits") == "last"
    if last and not _takes(kind, "logits_to_keep"):
        raise ValueError(f"workload.logits=last: {kind.__name__} gives its output whole, and cannot leave any out")
    if values.get("attention") is not None:
        _check_attention(kind, config, values, device)
    _check_positions(kind, config, inputs, values)


def build(values: Mapping[str, Any], device: str) -> Network:
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(weights_seed(values["seed"]))
    model, dtype = values["model"], dtype_named(values["dtype"])
    kind, config = described(model)
    if "path" in model and first_device(device) != "meta":
        module = kind.from_pretrained(_folder(model), dtype=dtype, local_files_only=True, **_attention(values))
    else:
        # In the dtype from the start, as the library does it: made in float32 and then cast, a model in bfloat16 would
        # need the memory of one in float32.
        with torch.device("meta") if first_device(device) == "meta" else nullcontext():
            module = kind._from_config(config, dtype=dtype, **_attention(values))
    return Transformer(module, values, device)


def described(model: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class of a model and its configuration, without building it."""
    if "path" in model:
        import transformers

        config = transformers.AutoConfig.from_pretrained(_folder(model), local_files_only=True)
        named = model.get("architecture") or next(iter(config.architectures or ()), None)
        return _class(importlib.import_module(_modelling(config)), config.model_type, named), config
    kind = _class(_module(model["model_type"]), model["model_type"], model.get("architecture"))
    # A copy: the library completes the rope parameters it is given in place.
    return kind, kind.config_class(**copy.deepcopy(dict(model["config"])))


# --- the class --------------------------------------------------------------------------------------------------------


def _class(module: ModuleType, model_type: str, named: str | None) -> Any:
    """The class of that name, or the one with the language modelling head: LlamaForCausalLM, GPT2LMHeadModel."""
    classes = [name for name in module.__all__ if not name.endswith("PreTrainedModel")]
    if named is None:
        named = next((name for name in classes if name.endswith(LANGUAGE_MODELLING)), None)
        if named is None:
            raise ValueError(
                f"model_type {model_type!r} has no decoder with a language modelling head in transformers: "
                f"name its class in model.architecture, one of {', '.join(classes)}"
            )
    if named not in classes:
        near = difflib.get_close_matches(named, classes, 1)
        raise ValueError(
            f"model.architecture={named}: model_type {model_type!r} has {', '.join(classes)}"
            + (f" (did you mean {near[0]}?)" if near else "")
        )
    return getattr(module, named)


def _module(model_type: str) -> ModuleType:
    """The modelling code of a type of models, which is most often in a module of the same name."""
    kind = model_type.replace("-", "_")
    try:
        return importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(f"transformers.models.{kind}"):
            raise  # of what the modelling code itself imports
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, CONFIG_MAPPING, 1)
        known = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"model.model_type={model_type}: transformers has no such type{known}")
    return importlib.import_module(_modelling(CONFIG_MAPPING[model_type]()))


def _modelling(config: Any) -> str:
    """The module beside the one that a configuration is in."""
    return type(config).__module__.replace(".configuration_", ".modeling_")


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and all those within it: each is of code that the first use would import."""
    yield config
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def _import_modelling(config: Any) -> None:
    """Unless it is a part that has no code of its own."""
    try:
        importlib.import_module(_modelling(config))
    except ModuleNotFoundError as error:
        if error.name != _modelling(config):
            raise


# --- what is asked of a pass ------------------------------------------------------------------------------------------


def _options(kind: Any, config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a pass is told beside its inputs."""
    workload, options = values.get("workload") or {}, dict[str, Any]()
    if _takes(kind, "use_cache") or _takes(kind, "logits_to_keep"):  # the second alone where a decoder is a part: llava
        options["use_cache"] = False
    if workload.get("name") == "forward" and workload.get("logits") == "last":
        options["logits_to_keep"] = 1
    if _takes(kind, "interpolate_pos_encoding"):
        own = transformers_inputs.own_resolution(config)
        if transformers_inputs.resolution(config, values) != own:
            options["interpolate_pos_encoding"] = True
    return options


def _learns(kind: Any) -> str | None:
    """What a class of models can be trained to tell; None where no loss of it is known."""
    if kind.__name__.endswith(TOKENS):
        return "tokens"
    if kind.__name__.endswith(CLASSES):
        return "classes"
    return "pairs" if _takes(kind, "return_loss") and _pair_loss(kind) is not None else None


def _pair_loss(kind: Any) -> Any:
    module = sys.modules[kind.__module__]
    return next((getattr(module, name) for name in PAIRS if hasattr(module, name)), None)


def _takes(kind: Any, argument: str) -> bool:
    return argument in transformers_inputs.arguments(kind)


def _calls_loss_function(kind: Any) -> bool:
    """Whether the loss is the library's own of that kind, in float32; older classes have a cross entropy in place."""
    return "loss_function" in inspect.unwrap(kind.forward).__code__.co_names


# --- attention --------------------------------------------------------------------------------------------------------


def _attention(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing where the choice is the library's."""
    asked = values.get("attention")
    return {} if asked is None else {"attn_implementation": asked}


def _check_attention(kind: Any, config: Any, values: Mapping[str, Any], device: str) -> None:
    asked, name = values["attention"], values["model"]["name"]
    if _attention_used(_without_data(kind, config, {**values, "attention": None})) is None:
        raise ValueError(f"attention={asked}: {name} has no attention")
    if asked == "flash_attention_2":
        computes_in = (values.get("workload") or {}).get("precision") or values["dtype"]
        if device == "meta":
            raise Unavailable(f"attention={asked}: another library's kernels are not followed; sdpa takes torch's own")
        if not device.startswith("cuda"):
            raise Unavailable(f"attention={asked}: its kernels are for CUDA devices, and this is {device}")
        if computes_in not in ("float16", "bfloat16"):
            raise Unavailable(f"attention={asked}: its kernels compute in float16 and bfloat16, not in {computes_in}")
    try:
        _without_data(kind, config, values)
    except (ImportError, ValueError) as error:  # it is not installed, or this class cannot use it
        raise Unavailable(f"attention={asked}: {str(error).partition('. ')[0]}") from error


def _attention_used(module: Any) -> str | None:
    """What its layers look up when they are called. None without any; joined where the parts of a model differ."""
    used = {
        getattr(layer, "config", module.config)._attn_implementation
        for layer in module.modules()
        if "Attention" in type(layer).__name__
    }
    return "+".join(sorted(used)) or None


# --- positions --------------------------------------------------------------------------------------------------------


def _check_positions(
    kind: Any, config: Any, inputs: Mapping[str, transformers_inputs.Input], values: Mapping[str, Any]
) -> None:
    """Past the end of a table of positions lies a device assert on a GPU."""
    new = (values.get("workload") or {}).get("new_tokens") or 0
    for name in transformers_inputs.TEXT:
        if name not in inputs:
            continue
        (length,), positions = inputs[name].shape, _positions(config)
        if positions is None or length + new <= positions:
            continue
        # The number alone may be what a model without a table was trained on. Whether it has one, it shows itself.
        rows = list(_tables(_without_data(kind, config, values)))
        if any(row >= positions for row in rows):
            with_images = "" if length == values["context"] else f" and the images make {length}"
            and_new = f" and workload.new_tokens={new}" if new else ""
            asked, model = f"context={values['context']}{with_images}{and_new}", values["model"]["name"]
            raise ValueError(f"{asked}: {model} has {positions} positions")


def _positions(config: Any) -> int | None:
    text = config.get_text_config()
    names = ("max_target_positions", "n_positions", "max_position_embeddings")
    return next((getattr(text, name) for name in names if isinstance(getattr(text, name, None), int)), None)


def _tables(module: nn.Module) -> Iterator[int]:
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding) and re.search("position|wpe", name) and not re.search("vision|visual", name):
            yield part.num_embeddings


def _without_data(kind: Any, config: Any, values: Mapping[str, Any]) -> Any:
    with torch.device("meta"):
        return kind._from_config(copy.deepcopy(config), dtype=dtype_named(values["dtype"]), **_attention(values))


# --- checkpoints ------------------------------------------------------------------------------------------------------


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
