"""Inputs from the user's files: text through a tokenizer, images through an image processor.

The tokenizer or processor is the checkpoint's, or is in the local folder `inputs.tokenizer` or `inputs.processor`. A
batch takes the first samples in the order of the file (in a folder: by name) and starts over at the end, so that a
batch begins with the samples of a smaller one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from runners.models import transformers_inputs
from runners.models.torch_models import dtype_named

Values = Mapping[str, Any]

FILES = {
    "tokenizer": ("tokenizer.json", "tokenizer_config.json", "spiece.model", "tokenizer.model", "vocab.txt"),
    "processor": ("preprocessor_config.json", "processor_config.json"),
}
OTHERS = ("pixel_values", *transformers_inputs.SOUND)
NEEDS = {"text": "tokenizer", "images": "processor"}
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")


class RealInputs(NamedTuple):
    """Inputs of the model, and metrics of the phase `inputs` on how the samples were cut and padded."""

    tensors: dict[str, torch.Tensor]  # on the CPU
    metrics: dict[str, Any]

    @property
    def lengths(self) -> list[int]:
        """Lengths of a row in tokens, after padding; encoder and decoder each have one."""
        return [self.tensors[name].shape[1] for name in transformers_inputs.TEXT if name in self.tensors]


def are_requested(values: Values) -> bool:
    return (values.get("inputs") or {}).get("name") in NEEDS


def prepare(values: Values, model_class: type, config: Any) -> None:
    """Import the tokenizer's or processor's class.

    Raises ValueError if the model does not read such inputs or has no tokenizer or processor, and FileNotFoundError for
    a missing file.
    """
    inputs, model = values["inputs"], values["model"]
    reads = {name for name in transformers_inputs.arguments(model_class) if name in ("input_ids", *OTHERS)}
    alone = {"text": "input_ids", "images": "pixel_values"}[inputs["name"]]
    if reads != {alone}:
        others = f"{model['name']} ({model_class.__name__}) reads {' and '.join(sorted(reads)) or 'something else'}"
        raise ValueError(f"inputs={inputs['name']}: needs a model that reads only {alone}; {others}")
    needed = NEEDS[inputs["name"]]
    folder = folder_of(needed, values, config)
    if folder is None:
        has = "has none in its folder" if "path" in model else "is built from a configuration without one"
        raise ValueError(f"inputs={inputs['name']}: {model['name']} {has}: set inputs.{needed}=FOLDER")
    path = Path(inputs["file"]).expanduser()
    if not path.exists() or (inputs["name"] == "text" and path.is_dir()):
        raise FileNotFoundError(f"inputs.file={inputs['file']}: no such file")
    if needed == "processor":
        if not _images_in(path):
            raise FileNotFoundError(f"inputs.file={inputs['file']}: no images in it ({', '.join(IMAGES)})")
        from PIL import Image

        Image.init()  # imports the modules of the image formats
        processor(folder)  # imports its class; unlike a tokenizer it holds little memory
    else:
        _import_tokenizer(folder)


def folder_of(kind: str, values: Values, config: Any) -> Path | None:
    """Folder of a point's tokenizer or processor: the configured one, or the checkpoint's. None if there is none.

    Raises FileNotFoundError if the configured folder has none.
    """
    named = (values.get("inputs") or {}).get(kind)
    if named is not None:
        folder = Path(named).expanduser()
        if not any((folder / name).exists() for name in FILES[kind]):
            raise FileNotFoundError(f"inputs.{kind}={named}: no folder with a {kind} ({', '.join(FILES[kind])})")
        return folder
    if "path" not in values["model"]:
        return None
    folder = Path(config.name_or_path)
    return folder if any((folder / name).exists() for name in FILES[kind]) else None


def tokenizer(folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def processor(folder: Path) -> Any:
    """The image processor that uses PIL; the faster variant needs torchvision."""
    import transformers

    load = transformers.AutoImageProcessor.from_pretrained
    return load(folder, local_files_only=True, backend="pil")  # type: ignore[no-untyped-call]


def real_inputs(values: Values, config: Any) -> RealInputs:
    """Read the file and tokenise the text or resize the images. Raises ValueError for unusable content."""
    return (_text if values["inputs"]["name"] == "text" else _images)(values, config)


# --- text -------------------------------------------------------------------------------------------------------------


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"inputs.file={file}: is not UTF-8 text ({error})") from None


def _text(values: Values, config: Any) -> RealInputs:
    folder = folder_of("tokenizer", values, config)
    assert folder is not None  # checked in prepare()
    loaded_tokenizer = tokenizer(folder)
    text = _read(values["inputs"]["file"])
    cut = _pieces if values["inputs"]["samples"] == "pieces" else _lines
    samples, available, full_lengths = cut(text, loaded_tokenizer, values)
    tensors = _padded(samples, loaded_tokenizer, values)
    if config.is_encoder_decoder:  # encoder and decoder read the same text
        tensors |= {f"decoder_{name}": tensor for name, tensor in tensors.items()}
    vocabulary, highest = transformers_inputs.vocabulary(config), int(tensors["input_ids"].max())
    if highest >= vocabulary:  # would index past the embedding
        raise ValueError(f"{folder}: its tokens go up to {highest}, and the model has {vocabulary}")
    real = sum(map(len, samples))
    metrics = {
        "asked_tokens": values["batch"] * values["context"],
        "real_tokens": real,
        "padded_tokens": tensors["input_ids"].numel() - real,
        "truncated_tokens": sum(full_lengths) - real,
        "truncated_samples": sum(full > len(cut) for full, cut in zip(full_lengths, samples, strict=True)),
        "longest_sample_tokens": max(full_lengths),
        "samples_in_file": available,
        "repeated_samples": max(0, values["batch"] - available),
    }
    return RealInputs(tensors, metrics)


def _lines(text: str, loaded_tokenizer: Any, values: Values) -> tuple[list[list[int]], int, list[int]]:
    """Non-blank lines as samples: tokens cut to `context`, number of lines, and uncut lengths in tokens."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"inputs.file={values['inputs']['file']}: has no line with text in it")
    taken = lines[: values["batch"]]
    full = loaded_tokenizer(taken, verbose=False)["input_ids"]
    # The tokenizer truncates: it keeps the special tokens at the end of a sample.
    cut = loaded_tokenizer(taken, truncation=True, max_length=values["context"])["input_ids"]
    lengths = [len(ids) for ids in full]
    return _first(cut, values), len(lines), _first(lengths, values)


def _pieces(text: str, loaded_tokenizer: Any, values: Values) -> tuple[list[list[int]], int, list[int]]:
    """The file as one row of tokens, in pieces of `context`. A shorter rest counts only if it is the whole file."""
    ids = loaded_tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise ValueError(f"inputs.file={values['inputs']['file']}: has no text in it")
    context = values["context"]
    pieces = [ids[start : start + context] for start in range(0, max(1, len(ids) - context + 1), context)]
    taken = _first(pieces, values)
    return taken, len(pieces), [len(piece) for piece in taken]


def _first(samples: Sequence[Any], values: Values) -> list[Any]:
    return list(islice(cycle(samples), values["batch"]))


def _padded(samples: Sequence[Sequence[int]], loaded_tokenizer: Any, values: Values) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask, both (batch, length). Without a padding token, the end-of-text token pads.

    Raises ValueError if the tokenizer has neither.
    """
    if loaded_tokenizer.pad_token is None:
        loaded_tokenizer.pad_token = loaded_tokenizer.eos_token
    width = values["context"] if values["inputs"]["padding"] == "context" else max(map(len, samples))
    if loaded_tokenizer.pad_token is None and any(len(ids) < width for ids in samples):
        raise ValueError("the tokenizer has no padding or end-of-text token; use inputs.samples=pieces")
    if values["workload"]["name"] == "generate":
        loaded_tokenizer.padding_side = "left"  # new tokens follow the text, not the padding
    rows = {"input_ids": [list(ids) for ids in samples]}
    padded = loaded_tokenizer.pad(
        rows, padding="max_length", max_length=width, return_attention_mask=True, return_tensors="pt"
    )
    return {"input_ids": padded["input_ids"], "attention_mask": padded["attention_mask"]}


def _import_tokenizer(folder: Path) -> None:
    """Import the module of the tokenizer's class without building it, which would change the memory baseline."""
    from transformers.models.auto import tokenization_auto

    name = tokenization_auto.get_tokenizer_config(folder, local_files_only=True).get("tokenizer_class")
    kind = name and tokenization_auto.tokenizer_class_from_name(name)
    if kind is not None:
        importlib.import_module(kind.__module__)


# --- images -----------------------------------------------------------------------------------------------------------


def _images(values: Values, config: Any) -> RealInputs:
    from PIL import Image

    folder = folder_of("processor", values, config)
    assert folder is not None  # checked in prepare()
    files = _images_in(Path(values["inputs"]["file"]).expanduser())
    taken = _first(files, values)
    opened = [Image.open(file).convert("RGB") for file in taken]
    sizes = [[image.height, image.width] for image in opened]
    resolution = values["inputs"]["resolution"]
    size = {} if resolution is None else {"size": {"height": resolution, "width": resolution}, "crop_size": resolution}
    pixels = processor(folder)(images=opened, return_tensors="pt", **size)["pixel_values"]
    metrics = {
        "image_sizes": [list(size) for size in dict.fromkeys(map(tuple, sizes))],  # height and width, before resizing
        "samples_in_file": len(files),
        "repeated_samples": max(0, values["batch"] - len(files)),
    }
    return RealInputs({"pixel_values": pixels.to(dtype_named(values["dtype"]))}, metrics)


def _images_in(path: Path) -> list[Path]:
    """The image `path`, or the images of a folder sorted by name."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES)
