"""Saves a trained model to a temporary file and loads it again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from runners.models.torch_models import Network


def export(network: Network, form: str) -> dict[str, Any]:
    """Write and reload the model; returns the bytes written. TMPDIR sets the folder: one in memory uses host memory."""
    return {"file_bytes": FORMS[form](network)}


def _state_dict(network: Network) -> int:
    """Reload with torch.load's defaults: each tensor goes to the device it was saved from. Returns bytes."""
    with tempfile.TemporaryFile() as file:  # unnamed: a killed process leaves no file
        torch.save(network.module.state_dict(), file)
        size = file.tell()
        file.seek(0)
        network.module.load_state_dict(torch.load(file, weights_only=True))
    return size


def _save_pretrained(network: Network) -> int:
    """Reload as a second model, or adapters into the adapted model. Returns bytes."""
    module: Any = network.module
    with tempfile.TemporaryDirectory(prefix="sweeper-") as folder:
        if hasattr(module, "peft_config"):
            from runners.models import peft_adapters

            # "auto" would query the hub for the original size of the vocabulary.
            module.save_pretrained(folder, save_embedding_layers=False)
            peft_adapters.reload(module, folder)
        else:
            module.save_pretrained(folder)
            type(module).from_pretrained(folder, dtype=network.dtype, local_files_only=True).to(network.device)
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


FORMS: Mapping[str, Callable[[Network], int]] = {"state_dict": _state_dict, "save_pretrained": _save_pretrained}
