"""Models of the transformers library, with random weights from a configuration or with the weights of a checkpoint.

Supports any architecture: transformers_inputs derives its inputs, and the name of its class decides its targets.
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
from types import ModuleType
from typing import Any

import torch
from torch import nn

from runners.models import checkpoints, torch_models, torch_weights, transformers_inputs, transformers_real_inputs
from runners.models.torch_models import Network, dtype_named, weights_seed
from runners.phases import Unavailable

LANGUAGE_MODELLING = ("ForCausalLM", "LMHeadModel")  # suffix of the class used if `architecture` is not set
TOKEN_HEADS = (*LANGUAGE_MODELLING, "ForMaskedLM", "ForConditionalGeneration")
CLASSIFICATION = tuple(f"For{what}Classification" for what in ("Sequence", "Image", "Video", "Audio"))
PAIR_LOSSES = (
    "image_text_contrastive_loss",
    "clip_loss",
)  # module-level losses of models with a return_loss argument: clip
IGNORE_INDEX = -100  # the library's losses ignore positions with this target


class Transformer(Network):
    """A transformers model. Its output is the first element that the forward pass returns: the logits, if it has any.

    Targets by class: next tokens (decoder), all tokens (encoder, encoder-decoder), the class of a sample (its index in
    the batch), or matching pairs of text and image. The forward pass uses no cache of keys and values.
    """

    def __init__(self, module: nn.Module, values: Mapping[str, Any], device: str) -> None:
        super().__init__(module, values, device)
        self._lengths: list[int] | None = None  # token lengths, if the inputs are the user's texts
        self._model_class = type(module)  # stored: an adapter replaces the module and hides its signature
        self._options = _options(self._model_class, self._config, values)

    def inputs(self) -> dict[str, torch.Tensor]:
        if transformers_real_inputs.are_requested(self._values):
            read = transformers_real_inputs.real_inputs(self._values, self._config)
            self.input_metrics, self._lengths = read.metrics, read.lengths
            return {name: tensor.to(self.device) for name, tensor in read.tensors.items()}
        drawn = transformers_inputs.draw_batch(
            self._input_specs, self._values["batch"], self._values["seed"], self.device
        )
        return {name: tensor.to(self.device) for name, tensor in drawn.items()}

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.module(**inputs, **self._options)[0]
        return output

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if _trains_on(self._model_class) == "tokens":
            tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
            assert tokens is not None
            seen = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
            if seen is not None:
                tokens = tokens.masked_fill(seen == 0, IGNORE_INDEX)
            image = transformers_inputs.image_token(self._config)
            return tokens if image is None else tokens.masked_fill(tokens == image, IGNORE_INDEX)
        samples = torch.arange(self._values["batch"], device=self.device)
        return samples % self._config.num_labels if _trains_on(self._model_class) == "classes" else samples

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The scalar loss that the model's forward pass computes when it receives labels."""
        loss: torch.Tensor
        if _trains_on(self._model_class) == "pairs":
            loss = _pair_loss(self._model_class)(
                output.T
            )  # the loss takes text-to-image logits; the output is image-to-text
        elif not _calls_loss_function(self._model_class):
            loss = nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_INDEX)
        elif _trains_on(self._model_class) == "classes":
            loss = self.module.loss_function(targets, output, self._config)  # type: ignore[operator]
        else:  # computed in float32; decoders shift labels by one
            loss = self.module.loss_function(  # type: ignore[operator]
                logits=output, labels=targets, vocab_size=transformers_inputs.vocabulary(self._config)
            )
        return loss

    def positions(self) -> int | None:
        """Text tokens of a batch, image tokens included; encoder and decoder tokens are added up. None without text."""
        if self._lengths is not None:
            return self._values["batch"] * sum(self._lengths) or None
        lengths = [self._input_specs[name].shape[0] for name in transformers_inputs.TEXT if name in self._input_specs]
        return self._values["batch"] * sum(lengths) if lengths else None

    def facts(self) -> dict[str, Any]:
        model = self._values["model"]
        return super().facts() | {
            "attention_used": _attention_used(self.module),
            "model_revision": checkpoints.revision_of(checkpoints.folder_of(model)) if "path" in model else None,
        }

    @property
    def _input_specs(self) -> dict[str, transformers_inputs.InputSpec]:
        return transformers_inputs.input_specs(self._model_class, self._config, self._values)

    @property
    def _config(self) -> Any:
        return self.module.config


def prepare(values: Mapping[str, Any], device: str) -> None:
    """Import the modelling code and fetch the checkpoint before any measured phase, and check the point.

    Raises ValueError for a model or size that cannot be built, FileNotFoundError for a missing folder, and Unavailable
    for a missing attention implementation or an unreachable hub. Uses the network only if model.path is a hub name.
    """
    model = values["model"]
    calculated = torch_models.is_calculated(device)
    if "path" in model:
        checkpoints.fetch(model, weights=not calculated)
    model_class, config = class_and_config(model)
    if calculated or "path" not in model:
        _check_stored(model, config)
    for part in _parts(config):
        _import_modelling(part)
    inputs = transformers_inputs.input_specs(model_class, config, values)
    if transformers_real_inputs.are_requested(values):
        transformers_real_inputs.prepare(values, model_class, config)
    workload = values.get("workload") or {}
    if workload.get("name") == "train" and _trains_on(model_class) is None:
        raise ValueError(
            f"workload=train: no loss of {model_class.__name__} is known; choose another class with model.architecture"
        )
    last = workload.get("name") == "forward" and workload.get("logits") == "last"
    if last and not _takes(model_class, "logits_to_keep"):
        raise ValueError(f"workload.logits=last: {model_class.__name__} cannot compute the last logits alone")
    if values.get("attention") is not None:
        _check_attention(model_class, config, values, device)
    _check_positions(model_class, config, inputs, values)


def build(values: Mapping[str, Any], device: str) -> Network:
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(weights_seed(values["seed"]))
    model, dtype = values["model"], dtype_named(values["dtype"])
    model_class, config = class_and_config(model)
    first = torch_models.first_device(device)
    if "path" in model and not torch_models.is_calculated(device):
        module = model_class.from_pretrained(
            checkpoints.folder_of(model), dtype=dtype, local_files_only=True, **_attention(values)
        )
        _initialise_buffers(module)
    else:
        # Built in its dtype, as the library does. A cast from float32 would need the memory of the float32 model.
        with nullcontext() if first == "cpu" else torch.device(first):
            module = model_class._from_config(config, dtype=dtype, **_attention(values))
    return Transformer(module, values, device)


def _initialise_buffers(module: Any) -> None:
    """Compute the non-persistent buffers of a loaded model again; a checkpoint does not contain them.

    `from_pretrained` (5.24) allocates them with `torch.empty_like` and computes them only in modules that are not
    marked as initialised. One run of the tests read the positions of BERT uninitialised; it could not be repeated, so
    every such module is initialised again. Loaded parameters carry their own mark and do not change.
    """
    if not hasattr(module, "named_non_persistent_buffers"):  # before 5, buffers were never on the meta device
        return
    for name, _ in module.named_non_persistent_buffers():
        module.get_submodule(name.rpartition(".")[0])._is_hf_initialized = False
    module.initialize_weights()


def _check_stored(model: Mapping[str, Any], config: Any) -> None:
    """Raise Unavailable for weights that are stored quantized: a model with random weights would not have them."""
    method = checkpoints.is_prequantized({"quantization_config": getattr(config, "quantization_config", None)})
    if method is not None:
        name = f"model.path={model['path']}" if "path" in model else f"model={model['name']}"
        cure = "name the checkpoint in 16 bits, with quantize="
        raise Unavailable(f"{name}: its weights are stored quantized ({method}), which is not calculated; {cure}")


def class_and_config(model: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class and the configuration of a model, without building it. Raises ValueError for unknown names."""
    if "path" in model:
        import transformers

        config = transformers.AutoConfig.from_pretrained(checkpoints.folder_of(model), local_files_only=True)
        named = model.get("architecture") or next(iter(config.architectures or ()), None)
        return _class(importlib.import_module(_modelling(config)), config.model_type, named), config
    model_class = _class(_module(model["model_type"]), model["model_type"], model.get("architecture"))
    # A copy: the library modifies the rope parameters in place.
    return model_class, model_class.config_class(**copy.deepcopy(dict(model["config"])))


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
OTHER_PARTS = ("vision_config", "audio_config", "encoder_config")  # of a prompt's images and sound


def weights_of_a_step(module: Any) -> int | None:
    """Bytes of the weights that every decoding step reads. None for a model whose steps read a part of the weights:
    one with experts, of which each token has its own, or one that reads images or sound."""
    config = getattr(module, "config", None)
    if any(getattr(config, name, None) is not None for name in OTHER_PARTS):
        return None
    text = config.get_text_config(decoder=True) if config is not None else None
    if any((getattr(text, name, None) or 0) > 1 for name in EXPERTS):
        return None
    return torch_weights.read_by_a_step(module)


# --- the class --------------------------------------------------------------------------------------------------------


def _class(module: ModuleType, model_type: str, named: str | None) -> Any:
    """The class `named`, by default the one with a language modelling head: LlamaForCausalLM, GPT2LMHeadModel."""
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
    """The modelling module of a model type, usually of the same name. Raises ValueError for an unknown type."""
    model_class = model_type.replace("-", "_")
    try:
        return importlib.import_module(f"transformers.models.{model_class}.modeling_{model_class}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(f"transformers.models.{model_class}"):
            raise  # the modelling code imports something that is missing
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, CONFIG_MAPPING, 1)
        known = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"model.model_type={model_type}: transformers has no such type{known}")
    return importlib.import_module(_modelling(CONFIG_MAPPING[model_type]()))


def _modelling(config: Any) -> str:
    """Name of the modelling module that belongs to a configuration."""
    return type(config).__module__.replace(".configuration_", ".modeling_")


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and its nested ones. The first use of each would import its modelling code."""
    yield config
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def _import_modelling(config: Any) -> None:
    """Import the modelling module of a configuration, if it has one."""
    try:
        importlib.import_module(_modelling(config))
    except ModuleNotFoundError as error:
        if error.name != _modelling(config):
            raise


# --- the forward pass -------------------------------------------------------------------------------------------------


def _options(model_class: Any, config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of the forward pass other than its inputs."""
    workload, options = values.get("workload") or {}, dict[str, Any]()
    if _takes(model_class, "use_cache") or _takes(
        model_class, "logits_to_keep"
    ):  # the second alone where a decoder is a part: llava
        options["use_cache"] = False
    if workload.get("name") == "forward" and workload.get("logits") == "last":
        options["logits_to_keep"] = 1
    if _takes(model_class, "interpolate_pos_encoding"):
        own = transformers_inputs.own_resolution(config)
        if transformers_inputs.resolution(config, values) != own:
            options["interpolate_pos_encoding"] = True
    return options


def _trains_on(model_class: Any) -> str | None:
    """Targets of a class: tokens, classes or pairs. None if its loss is unknown."""
    if model_class.__name__.endswith(TOKEN_HEADS):
        return "tokens"
    if model_class.__name__.endswith(CLASSIFICATION):
        return "classes"
    return "pairs" if _takes(model_class, "return_loss") and _pair_loss(model_class) is not None else None


def _pair_loss(model_class: Any) -> Any:
    module = sys.modules[model_class.__module__]
    return next((getattr(module, name) for name in PAIR_LOSSES if hasattr(module, name)), None)


def _takes(model_class: Any, argument: str) -> bool:
    return argument in transformers_inputs.arguments(model_class)


def _calls_loss_function(model_class: Any) -> bool:
    """Whether the class uses the library's `loss_function` (in float32). Older classes use a plain cross entropy."""
    return "loss_function" in inspect.unwrap(model_class.forward).__code__.co_names


# --- attention --------------------------------------------------------------------------------------------------------


def _attention(values: Mapping[str, Any]) -> dict[str, Any]:
    """The attention argument of the constructor. Empty: the library chooses."""
    requested = values.get("attention")
    return {} if requested is None else {"attn_implementation": requested}


def _check_attention(model_class: Any, config: Any, values: Mapping[str, Any], device: str) -> None:
    requested, name = values["attention"], values["model"]["name"]
    if _attention_used(_on_meta(model_class, config, {**values, "attention": None})) is None:
        raise ValueError(f"attention={requested}: {name} has no attention")
    if requested == "flash_attention_2":
        computes_in = (values.get("workload") or {}).get("precision") or values["dtype"]
        if torch_models.is_calculated(device):
            raise Unavailable(f"attention={requested}: kernels of another library cannot be traced; sdpa uses torch's")
        if not device.startswith("cuda"):
            raise Unavailable(f"attention={requested}: its kernels need a CUDA device, not {device}")
        if computes_in not in ("float16", "bfloat16"):
            raise Unavailable(
                f"attention={requested}: its kernels compute in float16 and bfloat16, not in {computes_in}"
            )
    try:
        _on_meta(model_class, config, values)
    except (ImportError, ValueError) as error:  # not installed, or not supported by this class
        raise Unavailable(f"attention={requested}: {str(error).partition('. ')[0]}") from error


def _attention_used(module: Any) -> str | None:
    """The attention implementation of the layers, joined by + if they differ. None without attention."""
    used = {
        getattr(layer, "config", module.config)._attn_implementation
        for layer in module.modules()
        if "Attention" in type(layer).__name__
    }
    return "+".join(sorted(used)) or None


# --- positions --------------------------------------------------------------------------------------------------------


def _check_positions(
    model_class: Any, config: Any, inputs: Mapping[str, transformers_inputs.InputSpec], values: Mapping[str, Any]
) -> None:
    """Raise ValueError for a text longer than the model's position table. On a GPU it would be a device-side assert."""
    new = (values.get("workload") or {}).get("new_tokens") or 0
    for name in transformers_inputs.TEXT:
        if name not in inputs:
            continue
        (length,), positions = inputs[name].shape, _positions(config)
        if positions is None or length + new <= positions:
            continue
        # A configured number may also be a training length. Only a model with a position table has a limit.
        rows = list(_position_tables(_on_meta(model_class, config, values)))
        if any(row >= positions for row in rows):
            with_images = "" if length == values["context"] else f" and the images make {length}"
            and_new = f" and workload.new_tokens={new}" if new else ""
            requested, model = f"context={values['context']}{with_images}{and_new}", values["model"]["name"]
            raise ValueError(f"{requested}: {model} has {positions} positions")


def _positions(config: Any) -> int | None:
    text = config.get_text_config()
    names = ("max_target_positions", "n_positions", "max_position_embeddings")
    return next((getattr(text, name) for name in names if isinstance(getattr(text, name, None), int)), None)


def _position_tables(module: nn.Module) -> Iterator[int]:
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding) and re.search("position|wpe", name) and not re.search("vision|visual", name):
            yield part.num_embeddings


def _on_meta(model_class: Any, config: Any, values: Mapping[str, Any]) -> Any:
    with torch.device("meta"):
        return model_class._from_config(copy.deepcopy(config), dtype=dtype_named(values["dtype"]), **_attention(values))
