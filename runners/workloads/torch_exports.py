"""Saves a trained model into a temporary file and loads it again, as the end of a training does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from runners.models.torch_models import Network


def export(network: Network, form: str) -> dict[str, Any]:
    """Gives the bytes that were written. TMPDIR says where: a folder in memory counts as the machine's."""
    return {"file_bytes": FORMS[form](network)}


def _state_dict(network: Network) -> int:
    """Loaded as torch.load does it unless told otherwise: each tensor to the device that it was saved from."""
    with tempfile.TemporaryFile() as file:  # without a name: a killed process leaves nothing behind
        torch.save(network.module.state_dict(), file)
        size = file.tell()
        file.seek(0)
        network.module.load_state_dict(torch.load(file, weights_only=True))
    return size


def _save_pretrained(network: Network) -> int:
    """Loaded as a second model beside the first; of adapters, into the model that has them."""
    module: Any = network.module
    with tempfile.TemporaryDirectory(prefix="sweeper-") as folder:
        if hasattr(module, "peft_config"):
            from runners.models import peft_adapters

            # Not "auto", which would ask the hub how large the model's vocabulary was.
            module.save_pretrained(folder, save_embedding_layers=False)
            peft_adapters.reload(module, folder)
        else:
            module.save_pretrained(folder)
            type(module).from_pretrained(folder, dtype=network.dtype, local_files_only=True).to(network.device)
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


FORMS: Mapping[str, Callable[[Network], int]] = {"state_dict": _state_dict, "save_pretrained": _save_pretrained}
