"""What goes into a model of the transformers library, drawn from the seed: tokens, images, sound.

Which tensors those are, the arguments of its forward pass tell; how large they are, its configuration, `context` and
`inputs`. They are drawn sample by sample, so that a batch has the content of a smaller one, and more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runners.models.torch_models import dtype_named, generator

TEXT = ("input_ids", "decoder_input_ids")
SOUND = ("input_features", "input_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor that a model takes: the part of it that is a sample's, and what draws that."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    draw: Callable[[torch.Tensor, torch.Generator], object]
    joined: bool = False  # the samples' parts follow one another along the first dimension, which is no batch's

    def of(self, batch: int, device: str) -> torch.Tensor:
        """On the CPU, where it is drawn; but numbers that only a calculated device would have are not there at all.
        Tokens are: what is made of them (a mask, a length) can decide what happens."""
        without_data = device == "meta" and self.dtype.is_floating_point
        return torch.empty((batch, *self.shape), dtype=self.dtype, device="meta" if without_data else "cpu")


def drawn(inputs: Mapping[str, Input], batch: int, seed: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """A batch, to be moved to that device."""
    numbers = generator(seed)
    tensors = {name: each.of(batch, device) for name, each in inputs.items()}
    for sample in range(batch):
        for name, each in inputs.items():
            if not tensors[name].is_meta:
                each.draw(tensors[name][sample], numbers)
    return {name: tensor.flatten(0, 1) if inputs[name].joined else tensor for name, tensor in tensors.items()}


def described(kind: type, config: Any, values: Mapping[str, Any]) -> dict[str, Input]:
    """The inputs of a class of models by the names of its arguments. ValueError for sizes that it cannot have."""
    takes = arguments(kind)
    asked = values.get("inputs") or {}
    _refuse_what_is_not_read(takes, config, values["model"]["name"], asked)
    dtype = dtype_named(values["dtype"])
    inputs: dict[str, Input] = {}
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
        raise ValueError(f"{kind.__name__} reads none of text, images and sound: it takes {', '.join(takes)}")
    return inputs


def arguments(kind: type) -> tuple[str, ...]:
    """Of the forward pass."""
    return tuple(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


def image_token(config: Any) -> int | None:
    """Stands in a text where the features of an image go, one for each; None of a model that has no such."""
    token: int | None = getattr(config, "image_token_id", None)
    return getattr(config, "image_token_index", None) if token is None else token


def resolution(config: Any, values: Mapping[str, Any]) -> int:
    """The side of an image in pixels: as asked for, or the configuration's own."""
    asked: int | None = (values.get("inputs") or {}).get("resolution")
    side = own_resolution(config) if asked is None else asked
    if side is None:
        name = values["model"]["name"]
        raise ValueError(f"inputs.resolution=null: {name} has none of its own; try inputs.resolution=224")
    return side


def own_resolution(config: Any) -> int | None:
    return _side(getattr(_vision(config), "image_size", None))


def _refuse_what_is_not_read(takes: tuple[str, ...], config: Any, name: str, asked: Mapping[str, Any]) -> None:
    """A size of an input that a model does not have would be a dimension along which nothing happens."""
    reads = {
        "resolution": ("no images", "pixel_values" in takes),
        "images": ("no images beside text", "pixel_values" in takes and image_token(config) is not None),
        "frames": ("no sound", any(each in takes for each in SOUND)),
    }
    for key, (nothing, is_read) in reads.items():
        size = asked.get(key)
        if size is None:
            continue
        if not is_read:
            of_a_batch = "; batch is their number" if key == "images" and "pixel_values" in takes else ""
            raise ValueError(f"inputs.{key}={size}: {name} reads {nothing}{of_a_batch}")
        least = 0 if key == "images" else 1
        if not isinstance(size, int) or size < least:
            raise ValueError(f"inputs.{key}={size}: must be a whole number, {least} or more")


# --- text -------------------------------------------------------------------------------------------------------------


def _tokens(length: int, config: Any) -> Input:
    return Input(shape=(length,), dtype=torch.int64, draw=partial(_draw_tokens, vocabulary=vocabulary(config)))


def vocabulary(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


def _draw_tokens(part: torch.Tensor, numbers: torch.Generator, vocabulary: int) -> None:
    part.random_(0, vocabulary, generator=numbers)


# --- text with images in it -------------------------------------------------------------------------------------------


def _text_and_images(
    takes: tuple[str, ...], config: Any, values: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Input]:
    """`context` tokens of text, and for each image as many more as it has features."""
    context, count = values["context"], (values.get("inputs") or {}).get("images")
    count = 1 if count is None else count
    if count == 0:
        return {"input_ids": _tokens(context, config)}
    if context < count:
        raise ValueError(f"context={context}: each of inputs.images={count} stands behind a token of text at least")
    in_patches = "image_grid_thw" in takes
    patch = _patch(config)
    merged = int(getattr(_vision(config), "spatial_merge_size", 1)) if in_patches else 1
    image = _image(config, values, patch * merged)
    grid = image[-1] // patch
    features = (grid // merged) ** 2 if in_patches else _features(config, grid**2)
    places = torch.zeros(context + count * features, dtype=torch.bool)
    for index in range(count):  # a token of text before each: side by side, two images would be taken for one
        places[1 + index * (1 + features) :][:features] = True
    text = partial(_draw_text, vocabulary=vocabulary(config), special=_special_tokens(config), places=places)
    text = partial(text, token=image_token(config))
    inputs = {"input_ids": Input(shape=tuple(places.shape), dtype=torch.int64, draw=text)}
    if in_patches:  # flattened by the processor: patches of all images in one row, and how each was cut
        vision = _vision(config)
        volume = image[0] * vision.temporal_patch_size * patch**2
        inputs["pixel_values"] = _noise((count * grid**2, volume), dtype, joined=True)
        inputs["image_grid_thw"] = _always(torch.tensor([[1, grid, grid]] * count), joined=True)
        if "mm_token_type_ids" in takes:
            inputs["mm_token_type_ids"] = _always(places.long())
    else:
        padded = "pixel_attention_mask" in takes  # the images of a sample then have a dimension of their own
        own = own_resolution(config)
        if not padded and image[-1] != own:
            asked, key = f"inputs.resolution={image[-1]}", "model.config.vision_config.image_size"
            raise ValueError(f"{asked}: {values['model']['name']} sees {own} pixels; {key} changes the model")
        inputs["pixel_values"] = _noise((count, *image), dtype, joined=not padded)
    return inputs


def _draw_text(
    part: torch.Tensor,
    numbers: torch.Generator,
    vocabulary: int,
    special: tuple[int, ...],
    places: torch.Tensor,
    token: int,
) -> None:
    _draw_tokens(part, numbers, vocabulary)
    plain = next(each for each in range(vocabulary) if each not in special)
    for each in special:
        part[part == each] = plain
    part[places] = token


def _special_tokens(config: Any) -> tuple[int, ...]:
    """Those that stand for something else than text, where none is."""
    names = [f"{what}_token_{which}" for what in ("image", "video", "audio") for which in ("id", "index")]
    found = (getattr(config, name, None) for name in names)
    return tuple(token for token in found if isinstance(token, int))


def _features(config: Any, patches: int) -> int:
    """Of one image, as they reach the text. A count that is not the model's own, its forward pass refuses."""
    vision = _vision(config)
    for fixed in ("mm_tokens_per_image", "num_query_tokens"):  # pooled, or asked for by so many queries
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
    """Channels, height, width; of a model of films their number first."""
    vision, side = _vision(config), resolution(config, values)
    if side % divisor:
        name, up = values["model"]["name"], (side // divisor + 1) * divisor
        raise ValueError(f"inputs.resolution={side}: {name} cuts images into squares of {divisor} pixels; try {up}")
    named = (getattr(vision, name, None) for name in ("num_channels", "in_channels", "in_chans"))
    channels = next((int(count) for count in named if count), 3)
    pictures = getattr(config, "num_frames", None) if image_token(config) is None else None
    return (channels, side, side) if pictures is None else (pictures, channels, side, side)


def _patch(config: Any) -> int:
    """The side of a square that becomes one position; 1 where the whole image is convolved."""
    return _side(getattr(_vision(config), "patch_size", None)) or 1


def _vision(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _side(size: Any) -> int | None:
    """Of a square that is written as one number or as two; a film's patch has the depth first."""
    side: int | None = size[-1] if isinstance(size, list | tuple) else size
    return side


# --- sound ------------------------------------------------------------------------------------------------------------


def _sound(name: str, config: Any, values: Mapping[str, Any]) -> tuple[int, ...]:
    """`frames` of a spectrum, or of the waveform itself."""
    model, asked = values["model"]["name"], (values.get("inputs") or {}).get("frames")
    if hasattr(config, "conv_kernel"):  # wav2vec2 and its kin read the waveform, of any length
        if asked is None:
            raise ValueError(f"inputs.frames=null: {model} has no length of its own; try inputs.frames=16000, a second")
        return (asked,)
    if name == "input_features" and hasattr(config, "input_feat_per_channel"):  # speech_to_text: of any length
        return (asked or config.max_source_positions, config.input_feat_per_channel)
    own, key = None, ""
    if name == "input_features" and hasattr(config, "max_source_positions"):  # whisper halves them once
        own, key = 2 * config.max_source_positions, "model.config.max_source_positions, half of them,"
    elif name == "input_values" and hasattr(config, "max_length"):
        own, key = config.max_length, "model.config.max_length"
    if own is None or not hasattr(config, "num_mel_bins"):
        raise ValueError(f"{model}: nothing is known of the sound that its {name} are")
    if asked not in (None, own):
        raise ValueError(f"inputs.frames={asked}: {model} hears {own}; {key} changes the model")
    return (config.num_mel_bins, own) if name == "input_features" else (own, config.num_mel_bins)


def _noise(shape: tuple[int, ...], dtype: torch.dtype, joined: bool = False) -> Input:
    return Input(shape=shape, dtype=dtype, draw=_draw_noise, joined=joined)


def _draw_noise(part: torch.Tensor, numbers: torch.Generator) -> None:
    part.normal_(generator=numbers)


def _always(content: torch.Tensor, joined: bool = False) -> Input:
    """The same of every sample."""
    return Input(
        shape=tuple(content.shape), dtype=content.dtype, draw=lambda part, numbers: part.copy_(content), joined=joined
    )
