"""nn.LSTM, GRU and RNN as PyTorch makes them of other operators, step by step, where no library has a kernel for them.

aten/src/ATen/native/RNN.cpp, written for tensors without data: PyTorch's own would take the way of no device. A CPU
multiplies the inputs of all steps by the weights at once, which CUDA leaves to its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

Hidden = tuple[Tensor, ...]  # the state, and of an LSTM the cell


class Weights(NamedTuple):
    """Those of one layer and direction, as nn.LSTM names them. A projection is an LSTM's only."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    projection: Tensor | None


Cell = Callable[[Tensor, Hidden, Weights], Hidden]  # one step


class Options(NamedTuple):
    """The arguments of torch.lstm, gru, rnn_tanh and rnn_relu that follow the tensors."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1


class Network(NamedTuple):
    """How a device computes the layers: `cell` makes a step, of the input times its weights if `multiplied_before`."""

    cell: Cell
    multiplied_before: bool


def layers(
    network: Network,
    input: Tensor,
    hidden: Hidden,
    params: Sequence[Tensor],
    options: Options,
    batch_sizes: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """The outputs of the last layer, and the last state of each layer (of an LSTM also the cell).

    `input` is (length, batch, features), or that of a packed sequence with the sizes of its batches.
    """
    weights = weights_of(
        params, options.has_biases, projects=len(hidden) == 2 and hidden[0].size(2) != hidden[1].size(2)
    )
    before = list(zip(*(state.unbind(0) for state in hidden), strict=True))
    directions, after = options.directions, []
    for layer in range(options.num_layers):
        outputs, steps, multiplied, each = [], [], None, None
        for direction in range(directions):
            index = layer * directions + direction
            if batch_sizes:
                made, last = _packed(network, input, before[index], weights[index], bool(direction), batch_sizes)
            else:
                multiplied = _multiplied(network, input, weights[index])
                each, last = _steps(network, multiplied, before[index], weights[index], bool(direction))
                made = torch.stack(each, 0)
                steps.append(each)  # those of both directions live until the layer ends
            outputs.append(made)
            after.append(last)
        input = outputs[0] if directions == 1 else torch.cat(outputs, outputs[0].dim() - 1)
        del outputs, made, multiplied, steps, each
        if options.dropout and options.train and layer < options.num_layers - 1:
            input = torch.dropout(input, options.dropout, True)
    return input, *(torch.stack(states, 0) for states in zip(*after, strict=True))


def weights_of(params: Sequence[Tensor], has_biases: bool, projects: bool) -> list[Weights]:
    """The parameters by layer and direction."""

    def grouped() -> Iterator[Weights]:
        each = (4 if has_biases else 2) + projects
        for at in range(0, len(params), each):
            group = params[at : at + each]
            bias_ih, bias_hh = (group[2], group[3]) if has_biases else (None, None)
            yield Weights(group[0], group[1], bias_ih, bias_hh, group[-1] if projects else None)

    return list(grouped())


def _multiplied(network: Network, input: Tensor, weights: Weights) -> Tensor:
    return torch.nn.functional.linear(input, weights.ih, weights.bias_ih) if network.multiplied_before else input


def _steps(
    network: Network, input: Tensor, hidden: Hidden, weights: Weights, reverse: bool
) -> tuple[list[Tensor], Hidden]:
    steps = list(input.unbind(0))
    outputs = []
    for step in reversed(steps) if reverse else steps:
        hidden = network.cell(step, hidden, weights)
        outputs.append(hidden[0])
    return outputs[::-1] if reverse else outputs, hidden


def _packed(
    network: Network, data: Tensor, hidden: Hidden, weights: Weights, reverse: bool, sizes: Sequence[int]
) -> tuple[Tensor, Hidden]:
    """Sequences that have ended drop out of the state; from the end, those that begin join it."""
    multiplied = _multiplied(network, data, weights)
    outputs, ended, initial = [], [], hidden
    steps = [(end - size, size) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    last = sizes[-1] if reverse else sizes[0]
    hidden = _slice(initial, 0, last)
    for first, size in reversed(steps) if reverse else steps:
        step = multiplied.narrow(0, first, size)
        if size < last:
            ended.append(_slice(hidden, size, last))
            hidden = _slice(hidden, 0, size)
        elif size > last:
            hidden = _joined([hidden, _slice(initial, last, size)])
        last = size
        hidden = network.cell(step, hidden, weights)
        outputs.append(hidden[0])
    if not reverse:
        hidden = _joined([hidden, *reversed(ended)])
    return torch.cat(outputs[::-1] if reverse else outputs, 0), hidden


def _slice(hidden: Hidden, first: int, end: int) -> Hidden:
    return tuple(state.narrow(0, first, end - first) for state in hidden)


def _joined(parts: Sequence[Hidden]) -> Hidden:
    return tuple(torch.cat(states, 0) for states in zip(*parts, strict=True))


# --- the cells of a CPU, whose input is multiplied before -------------------------------------------------------------


def _of_state(state: Tensor, weights: Weights) -> Tensor:
    return torch.nn.functional.linear(state, weights.hh, weights.bias_hh)


def _simple_cell(nonlinearity: Callable[[Tensor], Tensor]) -> Cell:
    def cell(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
        return (nonlinearity(_of_state(hidden[0], weights).add_(input)),)

    return cell


def _lstm_cell(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    gates = _of_state(hidden[0], weights).add_(input).unsafe_chunk(4, 1)
    into, forget, new, out = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[2].tanh_(), gates[3].sigmoid_()
    cell = (forget * hidden[1]).add_(into * new)
    state = out * cell.tanh()
    return state if weights.projection is None else state.matmul(weights.projection.t()), cell


def _gru_cell(input: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    of_input = input.unsafe_chunk(3, 1)
    of_state = _of_state(hidden[0], weights).unsafe_chunk(3, 1)
    reset = of_state[0].add_(of_input[0]).sigmoid_()
    update = of_state[1].add_(of_input[1]).sigmoid_()
    new = of_input[2].add(of_state[2].mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


ON_CPU = {
    "lstm": Network(_lstm_cell, multiplied_before=True),
    "gru": Network(_gru_cell, multiplied_before=True),
    "rnn_tanh": Network(_simple_cell(torch.tanh), multiplied_before=True),
    "rnn_relu": Network(_simple_cell(torch.relu), multiplied_before=True),
}
