"""nn.LSTM, GRU and RNN on a GPU: one kernel of cuDNN for all layers, else cells of two products and one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from runners.phases import Unavailable
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_recurrent_kernels import (
    MODES,
    buffer_elements,
    cudnn_rnn,
    cudnn_rnn_backward,
    views_of,
)
from runners.simulation.kernels.torch_sizes import MIB, Estimate
from runners.simulation.torch_autocast import AUTOCAST
from runners.simulation.torch_composites import Functions, operators
from runners.simulation.torch_recurrent import Hidden, Network, Options, Weights, layers

aten = torch.ops.aten

CURAND_STATE, THREADS = 48, 2048  # bytes of a generator's state, and generators of a multiprocessor at most


class CudnnRecurrent:
    """The recurrent operators of cards of one architecture."""

    def __init__(self, arch: GpuArchitecture) -> None:
        self._arch = arch
        self._dropout_state: Tensor | None = None  # made at the first use, and never freed
        self.composites: Functions = {
            operator: partial(function, name)
            for name in MODES
            for function, overload in ((self._of_tensors, "input"), (self._of_packed, "data"))
            for operator in operators(f"{name}.{overload}")
        } | {aten.lstm_cell.default: lstm_cell, aten.gru_cell.default: gru_cell}
        self.replacements: Functions = {
            aten._cudnn_rnn.default: cudnn_rnn,
            aten._cudnn_rnn_backward.default: cudnn_rnn_backward,
            aten._cudnn_init_dropout_state.default: self._new_dropout_state,
            aten._thnn_fused_lstm_cell.default: _fused_lstm_cell,
            aten._thnn_fused_gru_cell.default: _fused_gru_cell,
            aten._thnn_fused_gru_cell_backward.default: _fused_gru_cell_backward,
        }

    def _of_tensors(self, name: str, input: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
        options, batch_first = Options(*rest[:5]), rest[5]
        hidden = tuple(hx) if name == "lstm" else (hx,)
        if self._has_kernel(name, input):
            return self._by_kernel(name, input, hidden, params, options, batch_first, ())
        turned = input.transpose(0, 1) if batch_first else input
        output, *last = layers(WITHOUT_KERNEL[name], turned, hidden, params, options)
        return output.transpose(0, 1) if batch_first else output, *last

    def _of_packed(
        self, name: str, data: Tensor, batch_sizes: Tensor, hx: Any, params: Any, *rest: Any
    ) -> tuple[Tensor, ...]:
        options, sizes = Options(*rest), batch_sizes.tolist()
        hidden = tuple(hx) if name == "lstm" else (hx,)
        if self._has_kernel(name, data):
            return self._by_kernel(name, data, hidden, params, options, False, sizes)
        return layers(WITHOUT_KERNEL[name], data, hidden, params, options, sizes)

    def _has_kernel(self, name: str, input: Tensor) -> bool:
        """use_cudnn and use_miopen in aten/src/ATen/native/RNN.cpp. Raises Unavailable for AMD's library."""
        if not torch.backends.cudnn.enabled:
            return False
        dtype = torch.float16 if torch.is_autocast_enabled("cuda") and input.dtype != torch.float64 else input.dtype
        if self._arch.vendor == "amd":
            if dtype in (torch.float32, torch.float16):
                raise Unavailable(
                    f"aten.{name} cannot be traced for an AMD card: what MIOpen reserves and works with is not known; "
                    "torch.backends.cudnn.enabled = False computes it without MIOpen"
                )
            return False
        if dtype is torch.bfloat16:
            return self._arch.capability is not None and self._arch.capability >= (8, 0)
        return dtype in (torch.float32, torch.float16, torch.float64)

    def _by_kernel(
        self,
        name: str,
        input: Tensor,
        hidden: Hidden,
        params: Sequence[Tensor],
        options: Options,
        batch_first: bool,
        batch_sizes: Sequence[int],
    ) -> tuple[Tensor, ...]:
        """_cudnn_impl in aten/src/ATen/native/cudnn/RNN.cpp."""
        has_biases, num_layers, dropout, train, bidirectional = options
        mode, size = MODES[name], hidden[-1].size(2)
        projection = hidden[0].size(2) if hidden[0].size(2) != size else 0
        elements = buffer_elements(params, has_biases, mode, size, hidden[0].size(0))
        weights = _shared_buffer(params, elements)
        state = self._state_of_dropout(input) if train and dropout else None
        if torch.is_autocast_enabled("cuda"):
            params, weights = _in_half(params, weights, elements)
            input, hidden = input.to(torch.float16), tuple(each.to(torch.float16) for each in hidden)
        hx, cx = hidden if len(hidden) == 2 else (hidden[0], None)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
            made = aten._cudnn_rnn(
                *(input, params, (4 if has_biases else 2) + bool(projection), weights, hx, cx, mode, size, projection),
                *(num_layers, batch_first, dropout, train, bidirectional, batch_sizes, state),
            )
        output, hy, cy = made[:3]
        return (output, hy) if cx is None else (output, hy, cy)

    def _state_of_dropout(self, input: Tensor) -> Tensor:
        if self._dropout_state is None:
            self._dropout_state = aten._cudnn_init_dropout_state(0.5, True, 0, dtype=torch.uint8, device=input.device)
        return self._dropout_state

    def _new_dropout_state(self, *_: Any, **options: Any) -> Tensor:
        """Slightly over 2 MB, says get_dropout_state in RNN.cpp. It depends on the number of multiprocessors."""
        estimate = Estimate(2 * MIB, MIB, max(2 * MIB, self._arch.processors * THREADS * CURAND_STATE))
        state = torch.empty(estimate, dtype=torch.uint8, device="meta")
        state.estimate = estimate  # type: ignore[attr-defined]
        return state


def _shared_buffer(params: Sequence[Tensor], elements: int) -> Tensor | None:
    """The buffer whose parts the parameters are; None if they are no longer, as those that another module computes."""
    storages = {each.untyped_storage()._cdata for each in params}
    storage, one = params[0].untyped_storage(), params[0].element_size()
    if len(storages) != 1 or storage.nbytes() < elements * one:
        return None
    return torch.empty(0, dtype=params[0].dtype, device=params[0].device).set_(storage, 0, (elements,), (1,))


# aten/src/ATen/cudnn/AutocastRNN.cpp
def _in_half(params: Sequence[Tensor], weights: Tensor | None, elements: int) -> tuple[Sequence[Tensor], Any]:
    """The weights in a new buffer of float16, whatever dtype autocast has."""
    if params[0].dtype is torch.float16:
        return params, weights
    buffer = torch.zeros(elements, dtype=torch.float16, device=params[0].device)
    views = views_of(buffer, params)
    for view, each in zip(views, params, strict=True):
        view.copy_(each)
    return views, buffer


def flatten_parameters(module: nn.RNNBase) -> None:
    """In place of the module's method: on a GPU its parameters become parts of one buffer, as cuDNN wants them."""
    params: list[Any] = list(module._flat_weights)
    if len(params) != len(module._flat_weights_names) or not all(isinstance(each, Tensor) for each in params):
        return
    first = params[0]
    if any(each.dtype != first.dtype or not _is_meta(each) for each in params) or not torch.backends.cudnn.enabled:
        return
    if len({id(each) for each in params}) != len(params):
        return
    states = module.num_layers * (2 if module.bidirectional else 1)
    mode = MODES[module.mode.lower()]
    with torch.no_grad():
        buffer = torch.zeros(
            buffer_elements(params, module.bias, mode, module.hidden_size, states),
            dtype=first.dtype,
            device=first.device,
        )
        for each, view in zip(params, views_of(buffer, params), strict=True):
            each.set_(view)


def _is_meta(tensor: Tensor) -> bool:
    """Whether it has no data, also for a program that is told another device."""
    answer: bool = torch._C.TensorBase.is_meta.__get__(tensor)  # type: ignore[attr-defined]
    return answer


# --- cells, aten/src/ATen/native/RNN.cpp ------------------------------------------------------------------------------


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """On CUDA two products and one kernel for the gates."""
    of_input, of_state = input.matmul(w_ih.t()), hx[0].matmul(w_hh.t())
    hidden, cell, _ = aten._thnn_fused_lstm_cell(of_input, of_state, hx[1], b_ih, b_hh)
    return hidden, cell


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """As an LSTM's cell."""
    of_input, of_state = input.matmul(w_ih.t()), hx.matmul(w_hh.t())
    state: Tensor = aten._thnn_fused_gru_cell(of_input, of_state, hx, b_ih, b_hh)[0]
    return state


# aten/src/ATen/native/cuda/RNN.cu


def _fused_lstm_cell(
    of_input: Tensor, of_state: Tensor, cell: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The state, the cell and the gates. PyTorch's own on `meta` fails without biases."""
    new = torch.empty_like(cell, memory_format=torch.contiguous_format)
    return new, torch.empty_like(new), torch.empty_like(of_input, memory_format=torch.contiguous_format)


def _fused_gru_cell(of_input: Tensor, of_state: Tensor, state: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    """The state, and five numbers for each of its elements."""
    new = torch.empty_like(state, memory_format=torch.contiguous_format)
    return new, state.new_empty(state.size(0), 5 * state.size(1))


def _fused_gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """The gradients of both products, of the state and of both biases."""
    rows, gates = workspace.size(0), workspace.size(1) * 3 // 5
    products = [workspace.new_empty(rows, gates) for _ in range(2)]
    biases = [workspace.new_empty(gates) if has_bias else None for _ in range(2)]
    return *products, torch.empty_like(grad, memory_format=torch.contiguous_format), *biases


def _lstm_step(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    state, cell = lstm_cell(input, hidden, weights.ih, weights.hh, weights.bias_ih, weights.bias_hh)
    return state if weights.projection is None else state.matmul(weights.projection.t()), cell


def _gru_step(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    return (gru_cell(input, hidden[0], weights.ih, weights.hh, weights.bias_ih, weights.bias_hh),)


def _simple_step(nonlinearity: Any, input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    of_input = nn.functional.linear(input, weights.ih, weights.bias_ih)
    return (nonlinearity(nn.functional.linear(hidden[0], weights.hh, weights.bias_hh).add_(of_input)),)


WITHOUT_KERNEL = {
    "lstm": Network(_lstm_step, multiplied_before=False),
    "gru": Network(_gru_step, multiplied_before=False),
    "rnn_tanh": Network(partial(_simple_step, torch.tanh), multiplied_before=False),
    "rnn_relu": Network(partial(_simple_step, torch.relu), multiplied_before=False),
}
