"""Bytes that the parameters of a module store. A quantised weight consists of several tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def facts(module: nn.Module) -> dict[str, Any]:
    """Parameter counts, bytes and dtypes of a module. Tied parameters count once.

    Bytes include the scales of quantised weights. `parameters` counts weights: two 4-bit weights in one byte are two.
    """
    parameters = list(module.parameters())
    stored = [tensor for parameter in parameters for tensor in (_values(parameter), *_scales(parameter))]
    return {
        "parameters": sum(map(_count, parameters)),
        "parameter_bytes": sum(bytes_by_dtype(module).values()),
        "trainable_parameters": sum(_count(parameter) for parameter in parameters if parameter.requires_grad),
        "storage_dtype": "+".join(sorted({_name(tensor.dtype) for tensor in stored})),
    }


def bytes_by_dtype(module: nn.Module) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for parameter in module.parameters():
        values = _values(parameter)
        counted[_name(values.dtype)] += values.nbytes
    for scale in _all_scales(module):
        counted[_name(scale.dtype)] += scale.nbytes
    return dict(counted)


def read_by_a_step(module: nn.Module) -> int:
    """Bytes of the weights that a decoding step reads: all but the tables of which it looks up single rows.

    A table that is the output layer's weight too is read as a whole.
    """
    read: dict[int, torch.Tensor] = {}
    for each in module.modules():
        if not isinstance(each, nn.Embedding):
            read |= {id(parameter): parameter for parameter in each.parameters(recurse=False)}
    stored = [tensor for parameter in read.values() for tensor in (_values(parameter), *_scales(parameter))]
    return sum({tensor.untyped_storage()._cdata: tensor.nbytes for tensor in stored}.values())


def quantised(module: nn.Module) -> dict[str, Any]:
    """Numbers of quantised modules and of other modules by dtype, and the bytes of the scales.

    Empty if no weight is quantised.
    """
    other: Counter[str] = Counter()
    count = 0
    for each in module.modules():
        own = list(each.parameters(recurse=False))
        if any(_is_quantised(parameter) for parameter in own):
            count += 1
        elif own:
            other["+".join(sorted({_name(parameter.dtype) for parameter in own}))] += 1
    if not count:
        return {}
    scale_bytes = sum(scale.nbytes for scale in _all_scales(module))
    return {"quantized_modules": count, "kept_modules": dict(other), "scale_bytes": scale_bytes}


def _is_quantised(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "__tensor_flatten__") or getattr(parameter, "quant_state", None) is not None


def _count(parameter: torch.Tensor) -> int:
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def _values(parameter: torch.Tensor) -> torch.Tensor:
    """The tensor that stores the weights. In torchao's tensor subclasses it is the first inner tensor."""
    if not hasattr(parameter, "__tensor_flatten__"):
        return parameter
    values: torch.Tensor = getattr(parameter, parameter.__tensor_flatten__()[0][0])
    return values


def _scales(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Tensors needed to dequantise a parameter: scales, zero points, and the lookup table of bitsandbytes."""
    if hasattr(parameter, "__tensor_flatten__"):
        return [getattr(parameter, name) for name in parameter.__tensor_flatten__()[0][1:]]
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return []
    of_scales = [] if state.state2 is None else [state.offset, state.state2.absmax, state.state2.code]
    return [state.absmax, state.code, *of_scales]


def _all_scales(module: nn.Module) -> Iterable[torch.Tensor]:
    """All scales, each storage once: weights can share a lookup table."""
    scales = (scale for parameter in module.parameters() for scale in _scales(parameter))
    return {scale.untyped_storage()._cdata: scale for scale in scales}.values()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
