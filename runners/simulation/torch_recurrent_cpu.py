"""nn.LSTM on a CPU: oneDNN's kernel for one layer and direction, and the workspace that it keeps for backward.

GRU, RNN and packed sequences have no such kernel: PyTorch makes them of other operators on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from runners.phases import Unavailable
from runners.simulation.kernels.torch_sizes import FLOAT, ceil_divide, round_up
from runners.simulation.torch_composites import Functions, operators
from runners.simulation.torch_recurrent import ON_CPU, Hidden, Options, layers

aten = torch.ops.aten

LSTM = 2  # oneDNN's number of this cell
LINE, PAGE = 64, 4096  # bytes


def recurrent_on_cpu() -> Functions:
    """torch.lstm, gru, rnn_tanh and rnn_relu, each for tensors and for packed sequences."""
    return {
        operator: partial(function, name)
        for name in ON_CPU
        for function, overload in ((_of_tensors, "input"), (_of_packed, "data"))
        for operator in operators(f"{name}.{overload}")
    }


def _of_tensors(name: str, input: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
    options, batch_first = Options(*rest[:5]), rest[5]
    hidden = tuple(hx) if name == "lstm" else (hx,)
    turned = input.transpose(0, 1) if batch_first else input
    if name == "lstm" and _has_kernel(input, hidden):
        output, *last = _lstm_by_kernel(turned.contiguous(), hidden, params, options, batch_first)
    else:
        output, *last = layers(ON_CPU[name], turned, hidden, params, options)
    return output.transpose(0, 1) if batch_first else output, *last


def _of_packed(name: str, data: Tensor, batch_sizes: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
    hidden = tuple(hx) if name == "lstm" else (hx,)
    return layers(ON_CPU[name], data, hidden, params, Options(*rest), batch_sizes.tolist())


# aten/src/ATen/native/mkldnn/RNN.cpp, mkldnn_rnn
def _lstm_by_kernel(
    input: Tensor, hx: Hidden, params: Sequence[Tensor], options: Options, batch_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Each layer and direction in one kernel."""
    each, size = 4 if options.has_biases else 2, hx[1].size(2)
    hidden, cell = (state.contiguous() for state in hx)
    last_hidden, last_cell = [], []
    layer_input = input
    outputs: list[Any] = [None] * options.directions  # those of the layer before live until they are replaced
    for layer in range(options.num_layers):
        for direction in range(options.directions):
            index = layer * options.directions + direction
            weights = list(params[index * each : (index + 1) * each])
            weights += [] if options.has_biases else [torch.zeros_like(weight) for weight in weights]
            outputs[direction], hy, cy, _ = aten.mkldnn_rnn_layer(
                *(layer_input, *weights, hidden[index], cell[index], bool(direction), [], LSTM, size),
                *(options.num_layers, options.has_biases, options.bidirectional, batch_first, options.train),
            )
            last_hidden.append(hy)
            last_cell.append(cy)
            del weights, hy, cy, _
        layer_input = torch.cat(outputs, -1) if options.bidirectional else outputs[0]
        if options.dropout and options.train and layer < options.num_layers - 1:
            layer_input = torch.dropout(layer_input, options.dropout, True)
    return layer_input, torch.stack(last_hidden, 0), torch.stack(last_cell, 0)


def _has_kernel(input: Tensor, hx: Sequence[Tensor]) -> bool:
    """use_mkldnn in aten/src/ATen/native/RNN.cpp. A projected state is smaller than the cell's, and has no kernel."""
    if not torch.backends.mkldnn.enabled or not input.numel() or hx[0].size(2) != hx[1].size(2):
        return False
    supported = {
        torch.float32: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: not torch.is_grad_enabled() and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return bool(supported.get(input.dtype, False))


def lstm_layer(
    input: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx: Tensor,
    cx: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The results of aten.mkldnn_rnn_layer. There is a workspace while gradients are enabled, used or not."""
    length, batch, features = input.shape
    size = hx.size(1)
    state = input.new_empty(length, batch, size), torch.empty_like(hx), torch.empty_like(cx)
    if not torch.is_grad_enabled():
        return *state, None
    if not _keeps_this_workspace():
        raise Unavailable(
            f"nn.LSTM with gradients: what it keeps for the backward pass is not known of PyTorch {torch.__version__}"
        )
    workspace = lstm_workspace_bytes(length, batch, features, size, input.element_size())
    return *state, input.new_empty(workspace, dtype=torch.uint8)


@cache
def _keeps_this_workspace() -> bool:
    """Whether the kernel of this PyTorch keeps what lstm_workspace_bytes gives: that of 2.4 and 2.5 keeps more."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return True
    size = 8
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
        weights = [torch.zeros(4 * size, size), torch.zeros(4 * size, size), *(torch.zeros(4 * size) for _ in "ih")]
        state = torch.zeros(2, size)
        options: Any = (False, [], LSTM, size, 1, True, False, False, True)
        *_, workspace = aten.mkldnn_rnn_layer(torch.zeros(2, 2, size), *weights, state, state, *options)
        made: int = workspace.numel()
    return made == lstm_workspace_bytes(2, 2, size, size, 4)


def lstm_workspace_bytes(length: int, batch: int, features: int, size: int, one: int) -> int:
    """The workspace of a layer in elements of `one` bytes: gates, states and cells before and after, and gradients.

    oneDNN, src/cpu/rnn/rnn_utils.hpp (get_good_ld, set_offsets): rows begin at multiples of a cache line and avoid
    multiples of 256 elements, and each part begins at a page. Which parts there are was found on an AVX-512 CPU with
    torch 2.13: equal to the byte for 13 shapes in float32 and 4 in bfloat16.
    """
    widest, states = max(features, size), 2 * (length + 1) * batch
    parts = [
        length * batch * _row(4 * size, one),
        states * _row(widest, one),
        states * _row(widest, FLOAT),
        states * _row(widest, FLOAT),
        states * size * FLOAT,
        states * size * one,
        length * batch * _row(size, one),
    ]
    return sum(round_up(part, PAGE) for part in parts)


def _row(elements: int, one: int) -> int:
    """The bytes from one row to the next."""
    line = LINE // one
    row = ceil_divide(elements, line) * line
    return (row + line if row % 256 == 0 else row) * one
