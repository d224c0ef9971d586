"""LoRA adapters of the peft library: small trained matrices next to frozen weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import peft
import torch


def add_lora(module: torch.nn.Module, workload: Mapping[str, Any]) -> torch.nn.Module:
    """Add adapters of `rank` to the modules in `targets` and freeze all other parameters.

    peft stores adapters in float32 when the model is in 16 bits; storage_dtype then names both dtypes. Raises
    ValueError if no module has a name in `targets`.
    """
    targets = workload["targets"]
    config = peft.LoraConfig(
        r=workload["rank"],
        lora_alpha=workload["alpha"],
        target_modules=targets if targets is None or isinstance(targets, str) else list(targets),
        lora_dropout=workload["dropout"],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPT-2 stores its matrices transposed; peft warns and adapts
        adapted: torch.nn.Module = peft.get_peft_model(module, config)
    return adapted


def reload(module: torch.nn.Module, folder: str) -> None:
    """Load adapters that save_pretrained wrote to `folder` into the adapted model."""
    peft.set_peft_model_state_dict(module, peft.load_peft_weights(folder, device="cpu"))
