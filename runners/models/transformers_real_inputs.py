"""Inputs of the user's own: text through a tokenizer, images through an image processor, as their own loop would do it.

Both are the checkpoint's, or of the folder that `inputs.tokenizer` or `inputs.processor` names; no file but local ones.
A batch takes the first samples, in the order of the file (of the folder, by name), and begins again where they end:
what is in a batch of one is in every larger one.
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


class Read(NamedTuple):
    """What goes into the model, and what became of the samples on the way (metrics of the phase `inputs`)."""

    tensors: dict[str, torch.Tensor]  # on the CPU
    told: dict[str, Any]

    @property
    def lengths(self) -> list[int]:
        """Of a sample's texts, as they go in: of both sides where there are an encoder and a decoder."""
        return [self.tensors[name].shape[1] for name in transformers_inputs.TEXT if name in self.tensors]


def are_asked(values: Values) -> bool:
    return (values.get("inputs") or {}).get("name") in NEEDS


def prepare(values: Values, kind: type, config: Any) -> None:
    """Import the class of the tokenizer or processor. Raises where there is none, no file, or no use for either."""
    inputs, model = values["inputs"], values["model"]
    reads = {name for name in transformers_inputs.arguments(kind) if name in ("input_ids", *OTHERS)}
    alone = {"text": "input_ids", "images": "pixel_values"}[inputs["name"]]
    if reads != {alone}:
        others = f"{model['name']} ({kind.__name__}) reads {' and '.join(sorted(reads)) or 'something else'}"
        raise ValueError(f"inputs={inputs['name']}: is for models that read {alone} alone, and {others}")
    needed = NEEDS[inputs["name"]]
    folder = folder_of(needed, values, config)
    if folder is None:
        has = "has none in its folder" if "path" in model else "is built from a configuration, which has none"
        raise ValueError(f"inputs={inputs['name']}: {model['name']} {has}: inputs.{needed}=FOLDER names a {needed}")
    path = Path(inputs["file"]).expanduser()
    if not path.exists() or (inputs["name"] == "text" and path.is_dir()):
        raise FileNotFoundError(f"inputs.file={inputs['file']}: no such file")
    if needed == "processor":
        if not _images_in(path):
            raise FileNotFoundError(f"inputs.file={inputs['file']}: no images in it ({', '.join(IMAGES)})")
        from PIL import Image

        Image.init()  # the modules that read its formats
        processor(folder)  # its own; small, unlike a tokenizer's vocabulary
    else:
        _import_tokenizer(folder)


def folder_of(kind: str, values: Values, config: Any) -> Path | None:
    """Where the tokenizer or the processor of a point is, if there is one: its own, or beside the model's weights."""
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
    """The one that works with PIL: the faster one needs torchvision."""
    import transformers

    load = transformers.AutoImageProcessor.from_pretrained
    return load(folder, local_files_only=True, backend="pil")  # type: ignore[no-untyped-call]


def real_inputs(values: Values, config: Any) -> Read:
    """Read the file, and tokenise it or resize what is in it."""
    return (_text if values["inputs"]["name"] == "text" else _images)(values, config)


# --- text -------------------------------------------------------------------------------------------------------------


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"inputs.file={file}: is no text in UTF-8 ({error})") from None


def _text(values: Values, config: Any) -> Read:
    folder = folder_of("tokenizer", values, config)
    assert folder is not None  # prepare() has seen it
    words = tokenizer(folder)
    text = _read(values["inputs"]["file"])
    cut = _pieces if values["inputs"]["samples"] == "pieces" else _lines
    samples, there, whole = cut(text, words, values)
    tensors = _padded(samples, words, values)
    if config.is_encoder_decoder:  # the same text on both sides: something has to be learnt or gone on from
        tensors |= {f"decoder_{name}": tensor for name, tensor in tensors.items()}
    vocabulary, highest = transformers_inputs.vocabulary(config), int(tensors["input_ids"].max())
    if highest >= vocabulary:  # an embedding's row that is not there
        raise ValueError(f"{folder}: its tokens go up to {highest}, and the model has {vocabulary}")
    real = sum(map(len, samples))
    told = {
        "asked_tokens": values["batch"] * values["context"],
        "real_tokens": real,
        "padded_tokens": tensors["input_ids"].numel() - real,
        "truncated_tokens": sum(whole) - real,
        "truncated_samples": sum(full > len(kept) for full, kept in zip(whole, samples, strict=True)),
        "longest_sample_tokens": max(whole),
        "samples_in_file": there,
        "repeated_samples": max(0, values["batch"] - there),
    }
    return Read(tensors, told)


def _lines(text: str, words: Any, values: Values) -> tuple[list[list[int]], int, list[int]]:
    """Each line that is not blank: its tokens up to `context`, how many lines there are, how long each was uncut."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"inputs.file={values['inputs']['file']}: has no line with text in it")
    taken = lines[: values["batch"]]
    full = words(taken, verbose=False)["input_ids"]
    # Cut by the tokenizer, which keeps the tokens that it puts at a sample's end.
    kept = words(taken, truncation=True, max_length=values["context"])["input_ids"]
    lengths = [len(ids) for ids in full]
    return _first(kept, values), len(lines), _first(lengths, values)


def _pieces(text: str, words: Any, values: Values) -> tuple[list[list[int]], int, list[int]]:
    """The file as one row of tokens, cut into pieces of `context`: what is left at its end, only if that is all."""
    ids = words(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise ValueError(f"inputs.file={values['inputs']['file']}: has no text in it")
    context = values["context"]
    pieces = [ids[start : start + context] for start in range(0, max(1, len(ids) - context + 1), context)]
    taken = _first(pieces, values)
    return taken, len(pieces), [len(piece) for piece in taken]


def _first(samples: Sequence[Any], values: Values) -> list[Any]:
    return list(islice(cycle(samples), values["batch"]))


def _padded(samples: Sequence[Sequence[int]], words: Any, values: Values) -> dict[str, torch.Tensor]:
    """[batch, length], and which of it is text. A tokenizer without a token for padding takes its end of text."""
    if words.pad_token is None:
        words.pad_token = words.eos_token
    width = values["context"] if values["inputs"]["padding"] == "context" else max(map(len, samples))
    if words.pad_token is None and any(len(ids) < width for ids in samples):
        raise ValueError("the tokenizer has no token to pad with, nor for the end of a text: inputs.samples=pieces")
    if values["workload"]["name"] == "generate":
        words.padding_side = "left"  # new tokens come after the text, not after its padding
    rows = {"input_ids": [list(ids) for ids in samples]}
    padded = words.pad(rows, padding="max_length", max_length=width, return_attention_mask=True, return_tensors="pt")
    return {"input_ids": padded["input_ids"], "attention_mask": padded["attention_mask"]}


def _import_tokenizer(folder: Path) -> None:
    """The module of its class, by the name in its configuration: to build it would leave its memory behind."""
    from transformers.models.auto import tokenization_auto

    name = tokenization_auto.get_tokenizer_config(folder, local_files_only=True).get("tokenizer_class")
    kind = name and tokenization_auto.tokenizer_class_from_name(name)
    if kind is not None:
        importlib.import_module(kind.__module__)


# --- images -----------------------------------------------------------------------------------------------------------


def _images(values: Values, config: Any) -> Read:
    from PIL import Image

    folder = folder_of("processor", values, config)
    assert folder is not None  # prepare() has seen it
    files = _images_in(Path(values["inputs"]["file"]).expanduser())
    taken = _first(files, values)
    opened = [Image.open(file).convert("RGB") for file in taken]
    sizes = [[image.height, image.width] for image in opened]
    resolution = values["inputs"]["resolution"]
    size = {} if resolution is None else {"size": {"height": resolution, "width": resolution}, "crop_size": resolution}
    pixels = processor(folder)(images=opened, return_tensors="pt", **size)["pixel_values"]
    told = {
        "image_sizes": [list(size) for size in dict.fromkeys(map(tuple, sizes))],  # height and width, before resizing
        "samples_in_file": len(files),
        "repeated_samples": max(0, values["batch"] - len(files)),
    }
    return Read({"pixel_values": pixels.to(dtype_named(values["dtype"]))}, told)


def _images_in(path: Path) -> list[Path]:
    """An image, or those of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES)
