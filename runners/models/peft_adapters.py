"""Adapters of the peft library: small matrices that are trained beside a model that is not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import peft
import torch


def add_lora(module: torch.nn.Module, workload: Mapping[str, Any]) -> torch.nn.Module:
    """The model with adapters of `rank` on its `targets`; only they are trained.

    peft keeps them in float32 where the model is in 16 bits, as in a run of one's own: storage_dtype says both. Raises
    ValueError if the model has no module of such a name.
    """
    targets = workload["targets"]
    config = peft.LoraConfig(
        r=workload["rank"],
        lora_alpha=workload["alpha"],
        target_modules=targets if targets is None or isinstance(targets, str) else list(targets),
        lora_dropout=workload["dropout"],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that GPT-2 keeps its matrices the other way round, which peft then heeds
        adapted: torch.nn.Module = peft.get_peft_model(module, config)
    return adapted


def reload(module: torch.nn.Module, folder: str) -> None:
    """Load what save_pretrained wrote of the adapters into the model they belong to."""
    peft.set_peft_model_state_dict(module, peft.load_peft_weights(folder, device="cpu"))
