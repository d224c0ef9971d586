"""Random inputs of a transformers model, drawn from the seed: tokens, images, sound.

The arguments of the forward pass decide which tensors there are; the configuration, `context` and `inputs` decide their
shapes. They are drawn sample by sample: a batch begins with the samples of a smaller one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runners.models import torch_models
from runners.models.torch_models import dtype_named, generator

TEXT = ("input_ids", "decoder_input_ids")
SOUND = ("input_features", "input_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input tensor: the shape and dtype of a sample's part, and the function that fills it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    draw: Callable[[torch.Tensor, torch.Generator], object]
    joined: bool = False  # parts are concatenated along their first dimension: there is no batch dimension

    def of(self, batch: int, device: str) -> torch.Tensor:
        """An uninitialised tensor (batch, *shape) on the CPU.

        For a simulated device, floating-point inputs are on the meta device. Tokens have data even then: a mask or a
        length computed from them can change what the model does.
        """
        without_data = torch_models.is_calculated(device) and self.dtype.is_floating_point
        return torch.empty((batch, *self.shape), dtype=self.dtype, device="meta" if without_data else "cpu")


def draw_batch(inputs: Mapping[str, InputSpec], batch: int, seed: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Draw a batch on the CPU: tensors (batch, *shape), or (batch * shape[0], ...) for joined inputs."""
    numbers = generator(seed)
    with torch_models.real_numbers():
        tensors = {name: each.of(batch, device) for name, each in inputs.items()}
        for sample in range(batch):
            for name, each in inputs.items():
                if not tensors[name].is_meta:
                    each.draw(tensors[name][sample], numbers)
    return {name: tensor.flatten(0, 1) if inputs[name].joined else tensor for name, tensor in tensors.items()}


def input_specs(model_class: type, config: Any, values: Mapping[str, Any]) -> dict[str, InputSpec]:
    """The inputs of a class by argument name. Raises ValueError for sizes that the model does not support."""
    takes = arguments(model_class)
    requested = values.get("inputs") or {}
    _check_sizes(takes, config, values["model"]["name"], requested)
    dtype = dtype_named(values["dtype"])
    inputs: dict[str, InputSpec] = {}
    if "pixel_values" in takes and image_token(config) is not None:
        inputs |= _text_and_images(takes, config, values, dtype)
    elif "pixel_values" in takes:
        inputs["pixel_values"] = _noise(_image(config, values, _patch(config)), dtype)
    for name in SOUND:
        if name in takes:
            inputs[name] = _noise(_sound(name, config, values), dtype)
    if "input_ids" in takes and not inputs.keys() & {"input_ids", *SOUND}:
        inputs["input_ids"] = _tokens(values["context"], config)
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(values["context"], config)
    if not inputs:
        raise ValueError(f"{model_class.__name__} reads none of text, images and sound: it takes {', '.join(takes)}")
    return inputs


def arguments(model_class: type) -> tuple[str, ...]:
    """Argument names of the forward pass."""
    return tuple(inspect.signature(model_class.forward).parameters)  # type: ignore[attr-defined]


def image_token(config: Any) -> int | None:
    """The token that stands for one feature of an image in a text. None for models without one."""
    token: int | None = getattr(config, "image_token_id", None)
    return getattr(config, "image_token_index", None) if token is None else token


def resolution(config: Any, values: Mapping[str, Any]) -> int:
    """Side of an image in pixels: `inputs.resolution`, or the configuration's. Raises ValueError if neither is set."""
    requested: int | None = (values.get("inputs") or {}).get("resolution")
    side = own_resolution(config) if requested is None else requested
    if side is None:
        name = values["model"]["name"]
        raise ValueError(f"inputs.resolution=null: {name} has no default resolution; try inputs.resolution=224")
    return side


def own_resolution(config: Any) -> int | None:
    return _side(getattr(_vision(config), "image_size", None))


def _check_sizes(takes: tuple[str, ...], config: Any, name: str, requested: Mapping[str, Any]) -> None:
    """Raise ValueError for sizes of inputs that the model does not read, and for invalid sizes."""
    reads = {
        "resolution": ("no images", "pixel_values" in takes),
        "images": ("no images with text", "pixel_values" in takes and image_token(config) is not None),
        "frames": ("no sound", any(each in takes for each in SOUND)),
    }
    for key, (nothing, is_read) in reads.items():
        size = requested.get(key)
        if size is None:
            continue
        if not is_read:
            of_a_batch = "; batch is their number" if key == "images" and "pixel_values" in takes else ""
            raise ValueError(f"inputs.{key}={size}: {name} reads {nothing}{of_a_batch}")
        least = 0 if key == "images" else 1
        if not isinstance(size, int) or size < least:
            raise ValueError(f"inputs.{key}={size}: must be a whole number, {least} or more")


# --- text -------------------------------------------------------------------------------------------------------------


def _tokens(length: int, config: Any) -> InputSpec:
    return InputSpec(shape=(length,), dtype=torch.int64, draw=partial(_draw_tokens, vocabulary=vocabulary(config)))


def vocabulary(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


def _draw_tokens(part: torch.Tensor, numbers: torch.Generator, vocabulary: int) -> None:
    part.random_(0, vocabulary, generator=numbers)


# --- text with images in it -------------------------------------------------------------------------------------------


def _text_and_images(
    takes: tuple[str, ...], config: Any, values: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, InputSpec]:
    """Text and images: `context` tokens of text plus one token per image feature."""
    context, count = values["context"], (values.get("inputs") or {}).get("images")
    count = 1 if count is None else count
    if count == 0:
        return {"input_ids": _tokens(context, config)}
    if context < count:
        raise ValueError(f"context={context}: each of the inputs.images={count} needs a text token before it")
    in_patches = "image_grid_thw" in takes
    patch = _patch(config)
    merged = int(getattr(_vision(config), "spatial_merge_size", 1)) if in_patches else 1
    image = _image(config, values, patch * merged)
    grid = image[-1] // patch
    features = (grid // merged) ** 2 if in_patches else _features(config, grid**2)
    image_positions = torch.zeros(context + count * features, dtype=torch.bool)
    for index in range(count):  # a text token before each: adjacent images would count as one
        image_positions[1 + index * (1 + features) :][:features] = True
    text = partial(
        _draw_text, vocabulary=vocabulary(config), special=_special_tokens(config), image_positions=image_positions
    )
    text = partial(text, token=image_token(config))
    inputs = {"input_ids": InputSpec(shape=tuple(image_positions.shape), dtype=torch.int64, draw=text)}
    if in_patches:  # as the processor flattens them: the patches of all images, and each image's grid
        vision = _vision(config)
        volume = image[0] * vision.temporal_patch_size * patch**2
        inputs["pixel_values"] = _noise((count * grid**2, volume), dtype, joined=True)
        inputs["image_grid_thw"] = _constant(torch.tensor([[1, grid, grid]] * count), joined=True)
        if "mm_token_type_ids" in takes:
            inputs["mm_token_type_ids"] = _constant(image_positions.long())
    else:
        padded = "pixel_attention_mask" in takes  # then the images of a sample have their own dimension
        own = own_resolution(config)
        if not padded and image[-1] != own:
            requested, key = f"inputs.resolution={image[-1]}", "model.config.vision_config.image_size"
            raise ValueError(f"{requested}: {values['model']['name']} needs {own} pixels; {key} changes the model")
        inputs["pixel_values"] = _noise((count, *image), dtype, joined=not padded)
    return inputs


def _draw_text(
    part: torch.Tensor,
    numbers: torch.Generator,
    vocabulary: int,
    special: tuple[int, ...],
    image_positions: torch.Tensor,
    token: int,
) -> None:
    _draw_tokens(part, numbers, vocabulary)
    plain = next(each for each in range(vocabulary) if each not in special)
    for each in special:
        part[part == each] = plain
    part[image_positions] = token


def _special_tokens(config: Any) -> tuple[int, ...]:
    """Tokens that stand for images, video or audio."""
    names = [f"{what}_token_{which}" for what in ("image", "video", "audio") for which in ("id", "index")]
    found = (getattr(config, name, None) for name in names)
    return tuple(token for token in found if isinstance(token, int))


def _features(config: Any, patches: int) -> int:
    """Features of one image in the text. The forward pass fails if the number is not the model's."""
    vision = _vision(config)
    for fixed in ("mm_tokens_per_image", "num_query_tokens"):  # after pooling, or one per query
        if getattr(config, fixed, None) is not None:
            return int(getattr(config, fixed))
    if hasattr(config, "perceiver_config"):
        return int(config.perceiver_config.resampler_n_latents)
    if hasattr(config, "scale_factor"):  # pixels shuffled into channels: idefics3
        return patches // int(config.scale_factor) ** 2
    if hasattr(config, "downsample_ratio"):  # internvl
        return int(patches * config.downsample_ratio**2)
    whole = getattr(config, "vision_feature_select_strategy", "default") == "full"
    return patches + (1 if whole and getattr(vision, "model_type", "") == "clip_vision_model" else 0)


# --- images -----------------------------------------------------------------------------------------------------------


def _image(config: Any, values: Mapping[str, Any], divisor: int) -> tuple[int, ...]:
    """Shape of an image: (channels, height, width), or (frames, channels, height, width) for video models."""
    vision, side = _vision(config), resolution(config, values)
    if side % divisor:
        name, up = values["model"]["name"], (side // divisor + 1) * divisor
        raise ValueError(f"inputs.resolution={side}: {name} splits images into squares of {divisor} pixels; try {up}")
    named = (getattr(vision, name, None) for name in ("num_channels", "in_channels", "in_chans"))
    channels = next((int(count) for count in named if count), 3)
    pictures = getattr(config, "num_frames", None) if image_token(config) is None else None
    return (channels, side, side) if pictures is None else (pictures, channels, side, side)


def _patch(config: Any) -> int:
    """Side of a patch in pixels; 1 for convolutional models."""
    return _side(getattr(_vision(config), "patch_size", None)) or 1


def _vision(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _side(size: Any) -> int | None:
    """Side of a size given as one number or as a list, whose last element is the width."""
    side: int | None = size[-1] if isinstance(size, list | tuple) else size
    return side


# --- sound ------------------------------------------------------------------------------------------------------------


def _sound(name: str, config: Any, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of a sample of sound: a spectrum or a waveform. Raises ValueError for a length the model does not take."""
    model, requested = values["model"]["name"], (values.get("inputs") or {}).get("frames")
    if hasattr(config, "conv_kernel"):  # wav2vec2 and similar models read a waveform of any length
        if requested is None:
            raise ValueError(f"inputs.frames=null: {model} has no default length; try inputs.frames=16000, one second")
        return (requested,)
    if name == "input_features" and hasattr(config, "input_feat_per_channel"):  # speech_to_text: of any length
        return (requested or config.max_source_positions, config.input_feat_per_channel)
    own, key = None, ""
    if name == "input_features" and hasattr(config, "max_source_positions"):  # whisper halves them once
        own, key = 2 * config.max_source_positions, "model.config.max_source_positions, half of them,"
    elif name == "input_values" and hasattr(config, "max_length"):
        own, key = config.max_length, "model.config.max_length"
    if own is None or not hasattr(config, "num_mel_bins"):
        raise ValueError(f"{model}: the shape of its sound input {name} is unknown")
    if requested not in (None, own):
        raise ValueError(f"inputs.frames={requested}: {model} needs {own}; {key} changes the model")
    return (config.num_mel_bins, own) if name == "input_features" else (own, config.num_mel_bins)


def _noise(shape: tuple[int, ...], dtype: torch.dtype, joined: bool = False) -> InputSpec:
    return InputSpec(shape=shape, dtype=dtype, draw=_draw_noise, joined=joined)


def _draw_noise(part: torch.Tensor, numbers: torch.Generator) -> None:
    part.normal_(generator=numbers)


def _constant(content: torch.Tensor, joined: bool = False) -> InputSpec:
    """An input that is the same for every sample."""
    return InputSpec(
        shape=tuple(content.shape), dtype=content.dtype, draw=lambda part, numbers: part.copy_(content), joined=joined
    )
