"""Quantised weights for the key `quantize`: int8 and int4 by torchao, nf4 by bitsandbytes.

    int8    symmetric, one scale per row
    int4    one scale and zero point per group of 128 weights; groups of 64 or 32 if a row is not a multiple of 128
    nf4     one scale per block of 64 weights, itself quantised to 8 bits (QLoRA, arXiv:2305.14314)

Only weights are quantised; products are computed in the point's dtype. All linear layers are quantised except the
output layer (as in transformers; a tied output would no longer be shared) and layers that the model needs in float32.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from runners import libraries
from runners.phases import Unavailable

if TYPE_CHECKING:
    from torch import nn

Values = Mapping[str, Any]

MODULES = {
    "int8": ("torchao.quantization",),
    "int4": ("torchao.quantization", "torchao.prototype.quantization.int4"),
    "nf4": ("bitsandbytes",),
}
GROUPS = (128, 64, 32)  # group sizes of torchao's int4 kernels
ROWS = 16  # int4's kernel on the CPU needs a multiple of this many output features
NF4_BLOCK = 64  # input features that share a scale
NF4_ROWS = 32  # bitsandbytes repacks this many output features together on a CPU with AVX512-BF16
INT4_ON_CUDA_SINCE = (8, 0)  # compute capability that torchao's tiled layout requires


def requested_scheme(values: Values) -> str | None:
    scheme: str | None = values.get("quantize")
    return None if scheme == "none" else scheme


def prepare(values: Values, device: str) -> None:
    """Import the library and check that it has kernels for this point. Raises ValueError or Unavailable.

    Runs in the measured process before its baseline, not in the warm template: bitsandbytes queries each GPU when it is
    imported, and a CUDA context does not survive a fork.
    """
    scheme = requested_scheme(values)
    if scheme is None:
        return
    workload = values.get("workload") or {}
    if workload.get("name") == "train" and workload.get("method") != "lora":
        raise ValueError(f"quantize={scheme}: quantised weights cannot be trained; use workload.method=lora")
    if values["dtype"] == "float64":
        raise Unavailable(f"quantize={scheme} has no kernels for float64")
    for module in MODULES[scheme]:
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken installation counts as a missing one
            why_not = libraries.why_not_imported(module, error, f"{type(error).__name__}: {error}")
            raise Unavailable(f"quantize={scheme}: {why_not}") from error
    if scheme == "int4":
        _check_int4(values, device)


def apply(module: nn.Module, values: Values, device: str) -> None:
    """Quantise a model on the CPU layer by layer: each layer moves to `device` and is quantised there.

    The device thus holds at most one unquantised layer at a time. Raises ValueError if the model has no layer that can
    be quantised.
    """
    from runners.models import torch_models

    scheme = requested_scheme(values)
    assert scheme is not None
    quantise = {"int8": _int8, "int4": _int4, "nf4": _nf4}[scheme]
    # Names, not modules: a list of the layers would keep their weights alive.
    names = [name for name, layer in _linear_layers(module) if scheme != "int4" or _int4_group(layer, device)]
    for name in names:
        with torch_models.moved_to_device(module.get_submodule(name)):
            quantise(module, name, device)
    if not names:
        raise ValueError(f"quantize={scheme}: {values['model']['name']} has no linear layer that can be quantised")
    if scheme == "nf4":
        module.is_loaded_in_4bit = True  # type: ignore[assignment]  # peft checks this flag


def _check_int4(values: Values, device: str) -> None:
    if (values.get("workload") or {}).get("method") == "lora":
        raise Unavailable("quantize=int4: torchao's int4 kernels have no backward pass; int8 and nf4 have one")
    if device == "cpu":
        return
    import torch

    if values["dtype"] != "bfloat16":
        raise Unavailable(f"quantize=int4: on CUDA torchao needs dtype=bfloat16, not dtype={values['dtype']}")
    if torch.cuda.get_device_capability(device) < INT4_ON_CUDA_SINCE:
        raise Unavailable("quantize=int4: torchao's int4 kernels need a GPU of compute capability 8.0 or higher")


def _linear_layers(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    from torch import nn

    output = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None  # type: ignore[operator]
    in_float32 = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    for name, layer in module.named_modules():
        # Exactly this type: a subclass may use its weight differently (as in nn.MultiheadAttention).
        if type(layer) is nn.Linear and layer is not output and not in_float32 & set(name.split(".")):
            yield name, layer


def _int8(module: nn.Module, name: str, device: str) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    # set_inductor_config=True would change global settings, among them the precision of float32 products.
    quantize_(module.get_submodule(name), Int8WeightOnlyConfig(set_inductor_config=False), device=device)


def _int4_group(layer: nn.Linear, device: str) -> int | None:
    """The number of weights that share a scale; None if the layer cannot be quantised."""
    if device == "cpu" and layer.out_features % ROWS:
        return None
    return next((group for group in GROUPS if layer.in_features % group == 0), None)


def _int4(module: nn.Module, name: str, device: str) -> None:
    from torchao.quantization import Int4WeightOnlyConfig, quantize_

    layer: Any = module.get_submodule(name)
    group = _int4_group(layer, device)
    if device == "cpu":
        # None of torchao's stable layouts has a kernel for the CPU (0.18).
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        config = PrototypeInt4WeightOnlyConfig(group_size=group, set_inductor_config=False)
    else:
        # The only layout whose kernel is part of torch; the others need a further library.
        config = Int4WeightOnlyConfig(
            group_size=group, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
        )
    quantize_(layer, config, device=device)


def _nf4(module: nn.Module, name: str, device: str) -> None:
    nn: Any = importlib.import_module("bitsandbytes.nn")
    layer: Any = module.get_submodule(name)
    # Of one weight, since its own is replaced: one of the layer's size would count where all tensors are on `meta`.
    made = nn.Linear4bit(1, 1, bias=False, compute_dtype=layer.weight.dtype, quant_type="nf4", device="meta")
    made.in_features, made.out_features = layer.in_features, layer.out_features
    made.weight = nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=made)
    made.bias = layer.bias
    if layer.in_features % NF4_BLOCK or layer.out_features % NF4_ROWS:
        # On a CPU with AVX512-BF16 the first forward pass repacks the weights and fails for these shapes (0.50.2:
        # "shape '[32, 0]' is invalid for input of size 16"). Without repacking, the layer runs as on any other CPU.
        made.support_avx512bf16_for_cpu = False
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, made.train(layer.training).to(device))
