"""The operators in which CUDA runs a layer of nn.MultiheadAttention or nn.TransformerEncoder without gradients.

Sources: aten/src/ATen/native/transformers/cuda/attention.cu and transformer.cpp. What an operator holds until it
returns is held here, by names of variables.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from runners.phases import Unavailable
from runners.simulation.kernels.torch_attention import attention_kernel
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.torch_composites import Functions, operators

LONGEST_ROW = 1024  # of scores in the kernel that masks them as it takes their softmax
PADDING_MASK = 1  # mask_type


def fused_layers_on_cuda(architecture: GpuArchitecture) -> Functions:
    return {
        **dict.fromkeys(operators("_native_multi_head_attention"), partial(_attention, architecture)),
        **dict.fromkeys(operators("_transformer_encoder_layer_fwd"), partial(_encoder_layer, architecture)),
    }


def nested_refused() -> Functions:
    """What makes tensors of layout strided that are nested."""
    of_masks = operators("_nested_tensor_from_mask", "_nested_tensor_from_mask_left_aligned")
    of_tensors = operators("_nested_tensor_from_tensor_list", "_nested_view_from_buffer", "_nested_from_padded")
    return {each: partial(_refuse_nested, each) for each in (*of_masks, *of_tensors)}


def _refuse_nested(operator: Any, *_: Any, **__: Any) -> Any:
    raise Unavailable(
        f"{operator} cannot be traced without data: nested tensors of layout strided are not followed; "
        "nn.TransformerEncoder makes none with enable_nested_tensor=False, and torch.nested has layout=torch.jagged"
    )


def _attention(
    architecture: GpuArchitecture,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The output, of query's shape (batch, length, embed_dim), and the weights if they are needed."""
    size = embed_dim // num_head
    is_self = query is key is value
    if is_self and not size % 8 and not need_weights and mask is None:
        heads = _in_heads(query, num_head)
        if attention_kernel(architecture, heads, heads, heads, None, 0.0, False, False) != "math":
            projected = functional.linear(query, qkv_weight, qkv_bias)
            of_query, of_key, of_value = (_in_heads(each, num_head) for each in projected.chunk(3, -1))
            attended = functional.scaled_dot_product_attention(of_query, of_key, of_value)
            rows = attended.transpose(1, 2).reshape(query.size(0), -1, embed_dim)
            return functional.linear(rows, proj_weight, proj_bias), None
    projected = _projected(query, key, value, embed_dim, qkv_weight)
    batch, length = projected.shape[:2]
    parts = projected.new_empty(3, batch * num_head, length, size)  # with the bias, and the query scaled
    del projected
    scores = torch.bmm(parts[0], parts[1].mT).view(batch, num_head, length, length)
    if mask is not None:
        scores = _masked(scores, mask, mask_type)
    attended = parts[0].view(batch, num_head, length, size)  # the product is written over the query
    if not need_weights:
        del scores
    rows = attended.transpose(1, 2).contiguous().view(batch, length, embed_dim)
    output = functional.linear(rows, proj_weight, proj_bias)
    if not need_weights:
        return output, None
    if average_attn_weights:
        scores = scores.sum(1)
    return output, scores


def _in_heads(tensor: Tensor, heads: int) -> Tensor:
    return tensor.view(tensor.size(0), -1, heads, tensor.size(-1) // heads).transpose(1, 2)


def _projected(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, weight: Tensor) -> Tensor:
    if query is key is value:
        return torch.matmul(query, weight.t())
    if key is value:
        of_query, of_both = torch.split(weight, [embed_dim, 2 * embed_dim])
        return torch.cat([torch.matmul(query, of_query.t()), torch.matmul(key, of_both.t())], 2)
    weights = weight.chunk(3)
    given = zip((query, key, value), weights, strict=True)
    return torch.cat([torch.matmul(each, of_each.t()) for each, of_each in given], 2)


# aten/src/ATen/native/transformers/attention.cpp, masked_softmax, and cuda/SoftMax.cu, masked_softmax_cuda
def _masked(scores: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    mask = mask if mask.dtype == torch.bool else mask.to(torch.bool)
    if scores.size(-1) <= LONGEST_ROW and scores.size(-1) * scores.element_size() <= 4096:
        return torch.empty_like(scores)
    if mask_type == PADDING_MASK:
        mask = mask.view(mask.size(0), 1, 1, -1)
    return scores.masked_fill(mask, -torch.inf).softmax(-1)


def _encoder_layer(
    architecture: GpuArchitecture,
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """The output, of src's shape (batch, length, embed_dim)."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    projections = qkv_weight, qkv_bias, proj_weight, proj_bias
    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    x = _attention(architecture, x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]
    x.add_(src)
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    before = x
    if norm_first:
        x = norm(x, norm_weight_2, norm_bias_2)
    hidden = torch.addmm(ffn_bias_1, x.view(-1, x.size(-1)), ffn_weight_1.t())  # with the activation
    x = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view_as(src)
    del hidden
    x.add_(before)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)
