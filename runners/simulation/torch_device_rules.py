"""The differences of devices from tensors without data: the kernels that they choose, and the casts of autocast.

Operators that a device computes otherwise are replaced at PyTorch's dispatcher (torch_composites.py). The other rules
are context managers that are entered while a workload is traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.utils.backend_registration
import torch.utils.checkpoint
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes

from runners.simulation.kernels.torch_attention import KERNEL_OF, attention, attention_in_parts, check_direct_call
from runners.simulation.kernels.torch_fused_layers import fused_layers_on_cuda, nested_refused
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_products import is_matmul
from runners.simulation.kernels.torch_sizes import HALVES
from runners.simulation.kernels.torch_temporaries import temporaries
from runners.simulation.torch_autocast import autocast_replaced
from runners.simulation.torch_composites import Functions, decomposed, operators
from runners.simulation.torch_extensions import ExtensionKernels
from runners.simulation.torch_recurrent_cpu import lstm_layer, recurrent_on_cpu
from runners.simulation.torch_recurrent_cuda import CudnnRecurrent, flatten_parameters
from runners.simulation.torch_replaced import intercepted, replaced
from runners.simulation.torch_results import ctc_loss, one_hot
from runners.simulation.torch_sparse import embedding_sparse_backward

aten = torch.ops.aten

META = torch._C.DispatchKey.Meta

# aten/src/ATen/native/cudnn/Conv_v8.cpp and cuda/SpectralOps.cpp: the workspaces come from PyTorch's allocator.
CONVOLUTIONS = frozenset(operators("convolution", "convolution_backward"))
TRANSFORMS = frozenset(operators("_fft_r2c", "_fft_c2r", "_fft_c2c"))


class CpuRules:
    """The rules of a CPU: one attention kernel, and optimizers that update one tensor at a time.

    There are no temporaries, since a measured `tensor` does not include them either (meters/torch_tensors.py).
    """

    host_counts = True

    def __init__(self) -> None:
        self.extensions = ExtensionKernels(None)
        self.kernels: Functions = dict.fromkeys(operators("mish_backward"), _like_the_input)
        self.composites: Functions = {
            aten.scaled_dot_product_attention.default: _attention_on_cpu,
            aten.embedding_sparse_backward.default: embedding_sparse_backward,
            aten.one_hot.default: one_hot,
            **recurrent_on_cpu(),
            **nested_refused(),
            aten._autocast_to_reduced_precision.default: partial(_scripted_cast_down, "cpu"),
            aten._autocast_to_full_precision.default: partial(_scripted_cast_up, "cpu"),
        }
        self.replacements: Functions = {aten.mkldnn_rnn_layer.default: lstm_layer}

    def applied(self) -> AbstractContextManager[Any]:
        return all_entered(autocast_replaced("cpu"), foreach_norms(), fused_optimizers(), fused_layers(), checkpoints())

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        return ()

    def uses_workspace(self, operator: Any) -> bool:
        return False

    def left_out(self, operator: Any) -> str | None:
        return None

    def check(self, operator: Any, args: Sequence[Any]) -> None:
        """Raise for an attention kernel of CUDA that is called directly."""
        name = operator._schema.name.removeprefix("aten::")
        if name in KERNEL_OF and not operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU):
            raise NotImplementedError(f"Could not run '{operator._schema.name}': it has no kernel for a CPU")


class CudaRules:
    """The rules of CUDA cards of one architecture."""

    host_counts = False

    def __init__(self, architecture: GpuArchitecture) -> None:
        self._architecture = architecture
        self._temporaries = temporaries(architecture)
        recurrent = CudnnRecurrent(architecture)
        self.extensions = ExtensionKernels(architecture)
        self.composites: Functions = {
            aten.scaled_dot_product_attention.default: partial(attention, architecture),
            aten._scaled_dot_product_attention_math.default: attention_in_parts,
            aten.softmax.int: partial(_softmax, aten.softmax.int, aten._softmax),
            aten.log_softmax.int: partial(_softmax, aten.log_softmax.int, aten._log_softmax),
            aten.dropout.default: _dropout,
            aten.embedding_sparse_backward.default: embedding_sparse_backward,
            aten.one_hot.default: one_hot,
            aten._euclidean_dist.default: _euclidean_dist,
            aten.affine_grid_generator.default: _affine_grid_generator,
            **dict.fromkeys(operators("ctc_loss.IntList", "ctc_loss.Tensor"), ctc_loss),
            **recurrent.composites,
            aten._autocast_to_reduced_precision.default: partial(_scripted_cast_down, "cuda"),
            aten._autocast_to_full_precision.default: partial(_scripted_cast_up, "cuda"),
            **fused_layers_on_cuda(architecture),
            **nested_refused(),
        }
        self.kernels: Functions = {
            **dict.fromkeys(operators("mish_backward"), _like_the_input),
            **{each: each.py_kernels[META] for each in operators("_fused_rms_norm") if META in each.py_kernels},
        }
        self.replacements: Functions = recurrent.replacements

    def applied(self) -> AbstractContextManager[Any]:
        return all_entered(
            autocast_replaced("cuda"),
            foreach_optimizers(),
            fused_layers(),
            checkpoints(),
            replaced(torch.nn.RNNBase, flatten_parameters=flatten_parameters),
        )

    def temporaries(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
        rule = self._temporaries.get(operator)
        return () if rule is None else rule(args, kwargs, result)

    def uses_workspace(self, operator: Any) -> bool:
        return is_matmul(operator)

    def left_out(self, operator: Any) -> str | None:
        """What a kernel takes and no rule knows: a library chooses an algorithm on the device, and it the workspace."""
        if operator in CONVOLUTIONS:
            return "workspaces of convolutions are not in the peak"
        return "workspaces of Fourier transforms are not in the peak" if operator in TRANSFORMS else None

    def check(self, operator: Any, args: Sequence[Any]) -> None:
        """Raise as CUDA would for a kernel that the card does not have."""
        first = next((each for each in args if isinstance(each, torch.Tensor)), None)
        if first is not None:
            check_direct_call(self._architecture, operator, first.dtype)


@contextmanager
def all_entered(*rules: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(rule)
        yield


# --- matrix products within other operators ---


# aten/src/ATen/native/Distance.cpp, _euclidean_dist
def _euclidean_dist(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The distances of torch.cdist by one product, of both sides with their norms and ones beside them."""
    first_norm, second_norm = (each.pow(2).sum(-1, True) for each in (first, second))
    first_ones, second_ones = torch.ones_like(first_norm), torch.ones_like(second_norm)
    left = torch.cat([first.mul(-2), first_norm, first_ones], -1)
    right = torch.cat([second, second_ones, second_norm], -1)
    return left.matmul(right.mT).clamp_min_(0).sqrt_()


# aten/src/ATen/native/AffineGridGenerator.cpp
def _affine_grid_generator(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    """The grid as a product of theta with all positions, which have one dimension more."""
    count, _, *places = size
    positions = theta.new_empty(count, *places, len(places) + 1)
    made = positions.view(count, -1, len(places) + 1).bmm(theta.mT)
    return made.view(count, *places, len(places))


# --- attention --------------------------------------------------------------------------------------------------------


def _attention_on_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention by the kernel that a CPU chooses for tensors of these shapes."""
    operator, mask = aten.scaled_dot_product_attention.default, attn_mask
    options: Any = {"scale": scale, **({"enable_gqa": True} if enable_gqa else {})}  # PyTorch 2.4 lacks the second
    with _disable_current_modes():
        q, k, v = (_without_memory(each) for each in (query, key, value))
        m = None if mask is None else _without_memory(mask)
        flash = torch._fused_sdp_choice(q, k, v, m, dropout_p, is_causal, **options)
    if not flash:
        return decomposed(operator, query, key, value, mask, dropout_p, is_causal, **options)
    if mask is not None and mask.dtype == torch.bool:  # as the composite operator before its kernel
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )[0]


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of this shape on the CPU with one row of data."""
    last = tensor.shape[-1] if tensor.ndim else 1
    return torch.empty(last, dtype=tensor.dtype).expand(tensor.shape).requires_grad_(tensor.requires_grad)


# --- optimizers and norms ---------------------------------------------------------------------------------------------


def foreach_optimizers() -> AbstractContextManager[None]:
    """On CUDA optimizers, averages of weights and the norm of all gradients use foreach kernels by default. Those of
    an optimizer hold a copy of the parameters."""
    kinds = _foreach_utils._get_foreach_kernels_supported_devices, _foreach_utils._get_fused_kernels_supported_devices
    return all_entered(*(intercepted(supported, lambda _: ["cuda", "meta"]) for supported in kinds))


def fused_optimizers() -> AbstractContextManager[None]:
    """A CPU has fused optimizers, and uses foreach kernels only on request."""
    return intercepted(_foreach_utils._get_fused_kernels_supported_devices, lambda _: ["cpu", "meta"])


def foreach_norms() -> AbstractContextManager[None]:
    """The norm of all gradients uses foreach kernels also on a CPU."""
    return intercepted(_foreach_utils._device_has_foreach_support, lambda _, device: True)


def _like_the_input(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(input)


# --- dropout and softmax ----------------------------------------------------------------------------------------------


def _dropout(input: torch.Tensor, p: float, train: bool) -> Any:
    """On CUDA dropout is one kernel that keeps a mask of one byte an element (aten/src/ATen/native/Dropout.cpp,
    is_fused_kernel_acceptable). Elsewhere it keeps the factors, in the input's dtype."""
    if train and 0 < p < 1 and input.numel():
        return torch.native_dropout(input, p, train)[0]
    return decomposed(aten.dropout.default, input, p, train)


def _softmax(operator: Any, kernel: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """On CUDA a softmax from float16 to float32, as in eager attention, converts within its kernel. Elsewhere it
    converts the scores first (aten/src/ATen/native/SoftMax.cpp, softmax with a dtype: float16 only)."""
    if input.dtype is torch.float16 and dtype is torch.float32:
        return kernel(input, dim, True)
    return decomposed(operator, input, dim, dtype)


# --- layers in one operator -------------------------------------------------------------------------------------------


def fused_layers() -> AbstractContextManager[None]:
    """Without gradients nn.MultiheadAttention and nn.TransformerEncoderLayer are one operator each on a CPU, on CUDA
    and on the device of an extension, whose name their modules read here."""
    return replaced(torch.utils.backend_registration, _privateuse1_backend_name="meta")


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoints() -> AbstractContextManager[None]:
    """torch.utils.checkpoint looks for the random state of a device in a module of its name. PyTorch 2.4 and 2.5 end
    with an error where that is `meta`, which has none."""
    module_of: Any = torch.utils.checkpoint._get_device_module
    fork: Any = torch.random.fork_rng

    def module(device: str = "cuda") -> Any:
        return torch.device("meta") if device == "meta" else module_of(device)

    def forked(*args: Any, **kwargs: Any) -> Any:
        return nullcontext() if kwargs.get("device_type") == "meta" else fork(*args, **kwargs)

    return all_entered(
        replaced(torch.utils.checkpoint, _get_device_module=module), replaced(torch.random, fork_rng=forked)
    )


# --- autocast in TorchScript ------------------------------------------------------------------------------------------
# TorchScript inserts these operators for `with torch.autocast` (aten/src/ATen/native/TensorConversions.cpp).


def _scripted_cast_down(
    device: str, input: torch.Tensor, on_cuda: bool, on_cpu: bool, cuda_dtype: torch.dtype, cpu_dtype: torch.dtype
) -> torch.Tensor:
    enabled, dtype = (on_cuda, cuda_dtype) if device == "cuda" else (on_cpu, cpu_dtype)
    return input.to(dtype) if enabled and input.dtype is torch.float32 else input


def _scripted_cast_up(device: str, input: torch.Tensor, on_cuda: bool, on_cpu: bool) -> torch.Tensor:
    enabled = on_cuda if device == "cuda" else on_cpu
    return input.float() if enabled and input.dtype in HALVES else input
