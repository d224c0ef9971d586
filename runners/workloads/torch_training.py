"""Parts of a training step: optimizers by name, autocast precision, microbatches."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from runners import libraries
from runners.models import torch_models
from runners.phases import Unavailable

# Class of torch.optim and its options. Without options torch chooses the implementation: foreach on CUDA, which holds a
# further copy of the parameters during the step, and a loop over the parameters on the CPU.
OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adamw-forloop": ("AdamW", {"foreach": False, "fused": False}),
    "adamw-foreach": ("AdamW", {"foreach": True}),
    "adamw-fused": ("AdamW", {"fused": True}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {}),
    "adafactor": ("Adafactor", {}),
}
ADAMW_8BIT = "adamw-8bit"  # from bitsandbytes
PRECISIONS = (None, "bfloat16", "float16")

Batch = tuple[Mapping[str, torch.Tensor], torch.Tensor]  # inputs and targets


def prepare(values: Mapping[str, Any], device: str) -> None:
    """Check optimizer, precision, microbatches and compiler. Raises ValueError or Unavailable."""
    workload = values["workload"]
    name, precision = workload["optimizer"], workload["precision"]
    if name not in (*OPTIMIZERS, ADAMW_8BIT):
        raise ValueError(f"workload.optimizer={name}: it can be {', '.join(OPTIMIZERS)} or {ADAMW_8BIT}")
    if name in OPTIMIZERS and not hasattr(torch.optim, OPTIMIZERS[name][0]):
        raise Unavailable(f"workload.optimizer={name}: torch {torch.__version__} has no {OPTIMIZERS[name][0]}")
    if name == ADAMW_8BIT:
        _bitsandbytes()
    if precision not in PRECISIONS:
        raise ValueError(f"workload.precision={precision}: it can be null, bfloat16 or float16")
    if precision == "float16" and values["dtype"] == "float16" and workload["method"] == "full":
        raise ValueError("workload.precision=float16 scales the gradients, which does not work with dtype=float16")
    if values["batch"] % workload["accumulate"]:
        raise ValueError(
            f"workload.accumulate={workload['accumulate']}: batch={values['batch']} cannot be split into equal parts"
        )
    if workload["compile"]:
        _check_compiler(device)


def optimizer(name: str, parameters: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
    if name == ADAMW_8BIT:
        kind, options = _bitsandbytes().optim.AdamW8bit, {}
    else:
        kind, options = getattr(torch.optim, OPTIMIZERS[name][0]), dict(OPTIMIZERS[name][1])
    made: torch.optim.Optimizer = kind(parameters, lr=lr, **options)
    return made


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state between steps: the storages of its tensors, each once."""
    storages = {}
    for tensor in tree_iter(list(optimizer.state.values())):
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def autocast(precision: str | None, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Factory of autocast contexts: weights keep their dtype, products are computed in `precision`."""
    if precision is None:
        return nullcontext
    return partial(torch.autocast, _kind(device), dtype=getattr(torch, precision))


def scaler(precision: str | None, device: str) -> torch.amp.GradScaler:
    """Gradient scaler against float16 underflow; disabled for other precisions."""
    return torch.amp.GradScaler(
        "cpu" if torch_models.is_calculated(device) else _kind(device), enabled=precision == "float16"
    )


def microbatches(inputs: Mapping[str, torch.Tensor], targets: torch.Tensor, count: int) -> list[Batch]:
    """Split inputs and targets, each (batch, ...), into `count` equal parts (batch / count, ...). The parts are views.

    Raises ValueError if a tensor cannot be split.
    """
    if count == 1:
        return [(inputs, targets)]
    for name, tensor in inputs.items():
        if len(tensor) % count:
            raise ValueError(
                f"workload.accumulate={count}: {name} has {len(tensor)} rows, which cannot be split into equal parts"
            )
    parts = {name: tensor.tensor_split(count) for name, tensor in inputs.items()}
    return [
        ({name: parts[name][index] for name in parts}, part) for index, part in enumerate(targets.tensor_split(count))
    ]


def _bitsandbytes() -> Any:
    """Import bitsandbytes in the measured process, not in the warm template: it queries each GPU when it is imported,
    and a CUDA context does not survive a fork."""
    try:
        return importlib.import_module("bitsandbytes")
    except Exception as error:  # a broken installation counts as a missing one
        why_not = libraries.why_not_imported("bitsandbytes", error, f"{type(error).__name__}: {error}")
        raise Unavailable(f"workload.optimizer={ADAMW_8BIT}: {why_not}") from error


def draws_numbers(module: torch.nn.Module) -> bool:
    """Whether training draws random numbers: a Dropout module, or a nonzero attribute named like a dropout rate."""
    for each in module.modules():
        rates = {name: value for name, value in vars(each).items() if isinstance(value, float) and 0 < value <= 1}
        if any("drop" in name or (name == "p" and "Dropout" in type(each).__name__) for name in rates):
            return True
    return False


def _check_compiler(device: str) -> None:
    """Raise Unavailable if torch.compile lacks a C++ compiler (CPU) or triton (CUDA)."""
    if torch_models.is_calculated(device):  # as eager, which the row's notes say
        return
    if device == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:  # InvalidCxxCompiler in one version, RuntimeError in another
            raise Unavailable(f"workload.compile=true: torch.compile finds no C++ compiler: {error}") from error
    else:
        from torch.utils._triton import has_triton

        if not has_triton():
            raise Unavailable("workload.compile=true: torch.compile needs triton, which does not work here")


def _kind(device: str) -> str:
    return device.partition(":")[0]
