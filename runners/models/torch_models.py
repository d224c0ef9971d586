"""The interface between a workload and its model, and the built-in model that needs only torch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from runners.metrics import as_json
from runners.models import torch_weights

CHECKED = 64  # elements of an output in its checksum: few enough not to change the peak


class Network(ABC):
    """A model on its device, with its inputs, forward pass, targets and loss."""

    def __init__(self, module: nn.Module, values: Mapping[str, Any], device: str) -> None:
        self.module = module.to(device)
        self.device = device
        self.dtype = dtype_named(values["dtype"])
        self.compute_dtype = dtype_name(self.dtype)
        self.input_metrics: dict[str, Any] = {}  # how the user's samples were cut and padded; empty for random inputs
        self._values = values

    @abstractmethod
    def inputs(self) -> dict[str, torch.Tensor]:
        """Keyword arguments of one forward pass, each (batch, ...): the same numbers on every device."""

    @abstractmethod
    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor: ...

    @abstractmethod
    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor: ...

    @abstractmethod
    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor: ...

    def at(self, **sizes: int) -> Network:
        """The same module with another `batch` or `context` for its inputs."""
        other = copy.copy(self)
        other._values = {**self._values, **sizes}
        return other

    def positions(self) -> int | None:
        """Positions read by one forward pass (sequences times length). None for a model that reads no sequences."""
        return int(self._values["batch"]) * int(self._values["context"])

    def facts(self) -> dict[str, Any]:
        """Parameter counts, bytes and dtypes, counted on the module itself, not on its configuration."""
        return torch_weights.facts(self.module) | {
            "compute_dtype": self.compute_dtype,
            **torch_weights.quantised(self.module),
        }


class TwoLayers(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.into = nn.Linear(width, width, dtype=dtype, device=device)
        self.activation = nn.GELU()
        self.out = nn.Linear(width, width, dtype=dtype, device=device)
        for layer in (self.into, self.out):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.activation(self.into(x)))
        return y


class Mlp(Network):
    """Linear, GELU, Linear of one width. Input, output and random targets are (batch, context, width)."""

    def inputs(self) -> dict[str, torch.Tensor]:
        return {"x": self._random(self._values["seed"])}

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.module(**inputs)
        return output

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        # An offset that no seed in use reaches; the generator uses 32 bits of a seed.
        return self._random(self._values["seed"] + 2**30)

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, targets)

    def _random(self, seed: int) -> torch.Tensor:
        """Normal numbers (batch, context, width). Drawn by sample: a batch begins with the samples of a smaller one."""
        drawn = generator(seed)
        shape = (self._values["batch"], self._values["context"], self._values["model"]["width"])
        numbers = torch.empty(shape, dtype=self.dtype, device=first_device(self.device))
        for sample in numbers if not numbers.is_meta else ():
            sample.normal_(generator=drawn)
        return numbers.to(self.device)


def prepare(values: Mapping[str, Any]) -> None:
    """Raise ValueError for keys that do not apply to a model without attention, tokens, images or sound."""
    name = values["model"]["name"]
    if values.get("attention") is not None:
        raise ValueError(f"attention={values['attention']}: {name} has no attention")
    if (read := (values.get("inputs") or {}).get("name")) in ("text", "images"):
        raise ValueError(f"inputs={read}: {name} reads random numbers; choose a transformers model")
    for key in ("resolution", "images", "frames"):
        if (size := (values.get("inputs") or {}).get(key)) is not None:
            raise ValueError(f"inputs.{key}={size}: {name} reads random numbers, neither images nor sound")
    workload = values.get("workload") or {}
    if workload.get("name") == "forward" and workload.get("logits") == "last":
        raise ValueError(f"workload.logits=last: {name} has no logits")


def build(values: Mapping[str, Any], device: str) -> Network:
    torch.manual_seed(weights_seed(values["seed"]))
    module = TwoLayers(values["model"]["width"], dtype_named(values["dtype"]), first_device(device))
    return Mlp(module, values, device)


def first_device(device: str) -> str:
    """The device on which weights are initialised: the CPU, so that a seed gives the same weights on every device."""
    return "meta" if device == "meta" else "cpu"


def weights_seed(seed: int) -> int:
    """The seed of the weights is even, that of the inputs odd: the two never share a random stream."""
    return 2 * seed % 2**63


def generator(seed: int) -> torch.Generator:
    """The random generator of a point's inputs. It is independent of the weights' generator."""
    return torch.Generator().manual_seed((2 * seed + 1) % 2**63)


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ValueError(f"dtype={name}: weights can be float32, bfloat16, float16 or float64")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shapes(inputs: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in inputs.items()}


def checksum(output: torch.Tensor) -> Any:
    """The sum of the last elements of an output (..., n), to compare two runs. None on the meta device."""
    while output.ndim > 1:
        output = output[-1]
    return number(output[-CHECKED:].double().sum())


def number(tensor: torch.Tensor) -> Any:
    """The value of a one-element tensor as JSON; None on the meta device."""
    return None if tensor.is_meta else as_json(tensor.item())


def made_on_host() -> AbstractContextManager[None]:
    """Context in which a model is built and moved. A simulation replaces it: host and device are both meta there."""
    return nullcontext()


def moved_to_device(module: nn.Module) -> AbstractContextManager[None]:
    """Context in which a library moves a module that was made on the host, and quantises it. Replaced likewise."""
    return nullcontext()


def empty_cache(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
