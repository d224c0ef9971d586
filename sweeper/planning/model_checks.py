"""What a point's model cannot do, as far as its option or its checkpoint's folder shows it without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from runners.models.checkpoints import CONFIG
from sweeper.errors import Mistake, NotTogether

Configuration = Callable[[str, str | None], Mapping[str, Any]]
LEARNED = {"gpt2": "n_positions"}  # types of a model with a table of learned positions, and the key of its length


def configuration_of(model: Mapping[str, Any], of_checkpoint: Configuration) -> Mapping[str, Any]:
    """The model's own configuration, from its option or its checkpoint; empty if it has none. Raises Mistake."""
    if "path" in model:
        return of_checkpoint(str(model["path"]), model.get("revision"))
    return model.get("config") or {}


def configuration_in(folder: str, revision: str | None = None) -> Mapping[str, Any]:
    """The configuration of a checkpoint's folder. Raises Mistake."""
    return read_configuration(Path(folder).expanduser() / CONFIG, folder)


def read_configuration(file: Path, path: str) -> Mapping[str, Any]:
    """`path`: of the checkpoint, as it was typed. Raises Mistake."""
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise Mistake(f"model.path={path}: its {CONFIG} cannot be read: {error}") from error
    return config if isinstance(config, dict) else {}


def refuse_model(values: Mapping[str, Any], varied: Collection[str]) -> None:
    """Raises NotTogether for what no point of the sweep can do.

    A combination of which a part has several values is left to its row: a search for the largest context ends there.
    """
    for keys, why in _obstacles(values):
        if not any(key == each or each.startswith(f"{key}.") for key in keys for each in varied):
            raise NotTogether(why)


def _obstacles(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The keys that make each, and a message."""
    model, workload = values.get("model"), values["workload"]
    if not model:
        return
    name, inputs = model.get("name"), (values.get("inputs") or {}).get("name")
    if model.get("library") == "torch":
        if values.get("attention") is not None:
            why = f"attention={values['attention']}: {name} has no attention; leave it out or choose another model"
            yield ("attention", "model"), why
        if workload["name"] == "generate":
            why = f"workload=generate: {name} generates no tokens; choose a decoder, as in model=tiny-llama"
            yield ("workload", "model"), why
        if inputs in ("text", "images"):
            why = f"inputs={inputs}: {name} reads random numbers; choose a transformers model"
            yield ("inputs", "model"), why
    elif "path" in model:
        if why_not := _why_no_checkpoint(str(model["path"])):
            yield ("model",), f"model.path={model['path']}: {why_not}"
    elif model.get("model_type") in LEARNED and values.get("context") is not None:
        positions = (model.get("config") or {}).get(LEARNED[model["model_type"]])
        new = workload.get("new_tokens") or 0
        if isinstance(positions, int) and values["context"] + new > positions:
            and_new = f" and workload.new_tokens={new}" if new else ""
            why = (
                f"context={values['context']}{and_new}: {name} has {positions} positions; at most {positions - new} fit"
            )
            yield ("context", "model", "workload"), why


def _why_no_checkpoint(path: str) -> str | None:
    """Why a folder has no model. None for a name on the hub, which the runner looks up."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        has_none = not (folder / CONFIG).is_file()
        return f"the folder has no {CONFIG}; name the one of a checkpoint" if has_none else None
    if folder.exists():
        return f"is a file; name its folder, {folder.parent}"
    return "no such folder" if path.startswith(("/", "~", ".")) else None
