"""The rules of all kernel families in one table, by operator."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runners.simulation.kernels.torch_attention_memory import (
    cudnn_backward,
    efficient_backward,
    efficient_forward,
    flash_backward,
    flash_forward,
)
from runners.simulation.kernels.torch_foreach import foreach_norm
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_indexing import embedding_backward, index_put, masked_scatter, multinomial, sort
from runners.simulation.kernels.torch_normalisation import (
    log_softmax_backward,
    norm_backward,
    safe_softmax,
    softmax_backward,
)
from runners.simulation.kernels.torch_recurrent_kernels import backward_temporaries, forward_temporaries
from runners.simulation.kernels.torch_reductions import argmax, sum_or_mean, vector_norm
from runners.simulation.kernels.torch_sizes import Rule
from runners.simulation.kernels.torch_sparse_kernels import add_to_dense, coalesce, product

aten = torch.ops.aten


def temporaries(arch: GpuArchitecture) -> Mapping[torch._ops.OpOverload, Rule]:
    """The rule of each operator whose kernel allocates memory in addition to its results and frees it when it ends."""
    rules: dict[str, Rule] = {
        "_safe_softmax": safe_softmax,
        "_softmax_backward_data": softmax_backward,
        "_log_softmax_backward_data": log_softmax_backward,
        "embedding_dense_backward": embedding_backward,
        "index_put": index_put,
        "index_put_": index_put,
        "_index_put_impl_": index_put,
        "sort": sort,
        "sort.stable": sort,
        "multinomial": multinomial,
        "masked_scatter": masked_scatter,
        "masked_scatter_": masked_scatter,
        "_foreach_norm.Scalar": foreach_norm,
        "_coalesce": coalesce,
        "add_.Tensor": add_to_dense,
        "mm": product,
        "_sparse_addmm": product,
    }
    if arch.vendor == "nvidia":
        rules |= {
            "_scaled_dot_product_flash_attention": flash_forward(arch),
            "_scaled_dot_product_flash_attention_backward": flash_backward,
            "_scaled_dot_product_efficient_attention": efficient_forward,
            "_scaled_dot_product_efficient_attention_backward": efficient_backward(arch),
            "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
            "native_layer_norm_backward": norm_backward(arch, lambda args: args[5:7]),
            "_fused_rms_norm_backward": norm_backward(arch, lambda args: args[4:5]),
            "sum": sum_or_mean(arch, has_dim=False),
            "sum.dim_IntList": sum_or_mean(arch, has_dim=True),
            "mean": sum_or_mean(arch, has_dim=False),
            "mean.dim": sum_or_mean(arch, has_dim=True),
            "_cudnn_rnn": forward_temporaries,
            "_cudnn_rnn_backward": backward_temporaries,
            "linalg_vector_norm": vector_norm(arch),
            "argmax": argmax(arch),
        }
    return {op: rule for name, rule in rules.items() if (op := _operator(name))}


def _operator(name: str) -> torch._ops.OpOverload | None:
    """None if this release of PyTorch has no such operator."""
    packet, _, overload = name.partition(".")
    op: torch._ops.OpOverload | None = getattr(getattr(aten, packet, None), overload or "default", None)
    return op
