"""The results of operators that PyTorch does not compute on `meta`, or with other storages than on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from runners.phases import Unavailable
from runners.simulation import torch_sparse
from runners.simulation.kernels.torch_sizes import Estimate
from runners.simulation.torch_composites import Functions, decomposed, operators

aten = torch.ops.aten


# aten/src/ATen/native/Im2Col.cpp, Col2Im.cpp and their CUDA kernels
def _col2im(input: Tensor, output_size: Sequence[int], *window: Any) -> Tensor:
    """An image as a part of a storage as large as its columns, which the kernel makes and then shrinks."""
    made: Tensor = aten.col2im.default(input, output_size, *window)
    return made if made.nbytes >= input.nbytes else _resized(made, input.numel())


# aten/src/ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format and mkldnn_conv_use_channels_last
def _convolution(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The channels are last if they are in the input or in the weight: PyTorch's own on `meta` does not say so."""
    made: Tensor = aten.convolution.default(input, weight, *args, **kwargs)
    if torch.float64 in (input.dtype, weight.dtype):
        return made
    formats = {suggest_memory_format(each) for each in (input, weight)} - {torch.contiguous_format}
    return made.contiguous(memory_format=formats.pop()) if len(formats) == 1 else made


def _resized(tensor: Tensor, elements: int) -> Tensor:
    """A tensor like this in a larger storage."""
    return tensor.new_empty(elements).as_strided(tensor.shape, tensor.stride())


# aten/src/ATen/native/LossCTC.cpp, cuda/LossCTC.cu
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The losses, and a number for each sequence, step and state of its target: twice its length and one more.

    Lengths that are not known are at most that of the targets.
    """
    steps, batch = (log_probs.size(0), log_probs.size(1)) if log_probs.dim() == 3 else (log_probs.size(0), 1)
    known = not isinstance(target_lengths, Tensor) or not target_lengths.is_meta
    most = targets.size(1) if targets.dim() == 2 else targets.numel()
    longest = int(max(target_lengths, default=0)) if known else most
    alpha = log_probs.new_empty(batch, steps, 2 * longest + 1)
    if not known:
        alpha.estimate = Estimate(alpha.nbytes, alpha.nbytes // (2 * longest + 1) * 3, alpha.nbytes)  # type: ignore[attr-defined]
    return log_probs.new_empty(batch), alpha


# aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_lstsq
def _lstsq(
    matrix: Tensor, right: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The solution as a part of what it was computed in place of, and residuals of a system with more rows."""
    rows, columns = matrix.shape[-2:]
    is_vector = right.dim() == 1 or (right.dim() == matrix.dim() - 1 and right.shape == matrix.shape[:-1])
    sides = 1 if is_vector else right.size(-1)
    batch = matrix.shape[:-2]
    solution = matrix.new_empty(*batch, sides, max(rows, columns)).mT[..., :columns, :]
    residuals = matrix.new_empty(*batch, sides) if rows > columns and driver != "gelsy" else matrix.new_empty(0)
    return (
        solution.squeeze(-1) if is_vector else solution,
        residuals,
        matrix.new_empty(batch if driver != "gels" else 0, dtype=torch.int64),
        matrix.new_empty(0),
    )


# aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cpp
def _padded_to_jagged(dense: Tensor, offsets: Sequence[Tensor], total: int | None = None) -> Tensor:
    """The rows without padding. `total` is their number."""
    if total is None:
        raise NotImplementedError("the number of rows without padding depends on numbers that are not computed")
    return dense.new_empty(total, *dense.shape[1 + len(offsets) :])


def _like_input(at: int) -> Any:
    """A gradient of the shape of the argument in this place."""

    def gradient(*args: Any, **_: Any) -> Tensor:
        return torch.empty_like(args[at], memory_format=torch.contiguous_format)

    return gradient


def _in_place(*_: Any, **__: Any) -> None:
    """Changes its arguments, and returns nothing."""


def _with_mask(input: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)


def _geqrf(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(matrix), matrix.new_empty(*matrix.shape[:-2], min(matrix.shape[-2:]))


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """torch's own on `meta` accepts bfloat16 only, and devices accept more."""
    groups = () if (a.ndim == 2) != (b.ndim == 2) else (len(offs),) if a.ndim == 2 else (len(a),)
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]), dtype=out_dtype)


def _loss_of_elements(operator: Any) -> Any:
    """The mean of some losses keeps the storage of all their elements, on any device (aten/src/ATen/native/Loss.cpp):
    that of a mean squared error is as large as the input."""

    def loss(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        mean: torch.Tensor = operator(input, target, *args, **kwargs)
        shape: Any = torch.broadcast_shapes(input.shape, target.shape)  # type: ignore[no-untyped-call]
        return mean if mean.ndim else mean.new_empty(shape).as_strided((), ())

    return loss


def _int4_product(input: torch.Tensor, packed: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
    """torch's own on `meta` asks for an attribute that only fake tensors have. Tiles have 8 rows of the weight
    (aten/src/ATen/native/cuda/int4mm.cu)."""
    return input.new_empty(len(input), len(packed) * 8)


LOSSES = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
RESULTS: Functions = {
    **{loss: _loss_of_elements(loss) for loss in operators(*LOSSES)},
    **dict.fromkeys(operators("_weight_int4pack_mm"), _int4_product),
    **dict.fromkeys(operators("_embedding_bag_backward"), torch_sparse.embedding_bag_backward),
    **dict.fromkeys(operators("_grouped_mm"), _grouped_mm),
    **dict.fromkeys(operators("convolution"), _convolution),
    **dict.fromkeys(operators("col2im"), _col2im),
    **dict.fromkeys(operators("_padded_dense_to_jagged_forward"), _padded_to_jagged),
    **dict.fromkeys(operators("_ctc_loss", "_ctc_loss.Tensor"), _ctc_loss),
    **dict.fromkeys(operators("_ctc_loss_backward", "_ctc_loss_backward.Tensor"), _like_input(1)),
    **dict.fromkeys(operators("linalg_lstsq"), _lstsq),
    **dict.fromkeys(operators("geqrf"), _geqrf),
    **dict.fromkeys(
        operators("_masked_softmax", "_sample_dirichlet", "binomial", "_standard_gamma_grad"), _like_input(0)
    ),
    **dict.fromkeys(operators("_masked_softmax_backward", "_dirichlet_grad"), _like_input(0)),
    **dict.fromkeys(operators("multi_margin_loss_backward", "multilabel_margin_loss_backward"), _like_input(1)),
    **dict.fromkeys(operators("fractional_max_pool3d_backward"), _like_input(1)),
    **dict.fromkeys(
        operators(
            *("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr"),
            *("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr", "_cummax_helper", "_cummin_helper"),
        ),
        _in_place,
    ),
    **dict.fromkeys(
        operators(
            *("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask"),
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        ),
        _with_mask,
    ),
}


# aten/src/ATen/native/Onehot.cpp
def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Zeros, and a one for each index. A CPU looks first whether all are in range."""
    if not input.numel() or not input.is_meta:
        made: Tensor = decomposed(aten.one_hot.default, input, num_classes)
        return made
    if num_classes == -1:
        num_classes = int(input.max().item()) + 1
    zeros = torch.zeros(*input.shape, num_classes, dtype=input.dtype, device=input.device)
    return zeros.scatter_(-1, input.unsqueeze(-1), 1)


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *args: Any) -> Any:
    """PyTorch's own kernel, which targets of int64 take on any card. Raises Unavailable where the card's library has
    another, whose workspace is not known."""
    given = log_probs, targets, input_lengths, target_lengths, *args
    if _is_of_library(*given):
        raise Unavailable(
            "aten.ctc_loss cannot be traced without data: for targets of int32 it runs in cuDNN or MIOpen, whose "
            "workspace is not known; targets of int64, or torch.backends.cudnn.flags(enabled=False), take PyTorch's "
            "own kernel"
        )
    if not isinstance(target_lengths, Tensor):
        return decomposed(aten.ctc_loss.IntList, *given)
    if input_lengths.is_meta or target_lengths.is_meta:
        return decomposed(aten.ctc_loss.Tensor, *given)
    return ctc_loss(log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), *args)


# aten/src/ATen/native/cudnn/LossCTC.cpp, _use_cudnn_ctc_loss and _use_cudnn_ctc_loss_tensor
def _is_of_library(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, *_: Any
) -> bool:
    joined = targets.dim() == 1 and targets.dtype == torch.int32
    if not (torch.backends.cudnn.enabled and joined and blank == 0 and log_probs.dim() == 3):
        return False
    if log_probs.dtype != torch.float32:
        return False
    if isinstance(target_lengths, Tensor):
        return bool(input_lengths.dtype == target_lengths.dtype == torch.int32)
    all_steps = all(length == log_probs.size(0) for length in input_lengths)
    return not targets.is_meta and all_steps and max(target_lengths, default=0) < 256
