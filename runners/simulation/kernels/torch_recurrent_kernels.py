"""cuDNN's kernel for nn.LSTM, GRU and RNN: its weights in one buffer, what it keeps for backward, and its workspace.

Operators and their order: aten/src/ATen/native/cudnn/RNN.cpp, and ATen/cudnn/AutocastRNN.cpp under autocast. What
cuDNN requests depends on its version and algorithm and is not published. The sizes here are formulas that fit the
readings which NVIDIA's people gave, and each comes with bounds:

    reserve    github.com/pytorch/pytorch/issues/2895: 736,000,000 bytes for an LSTM and 864,000,000 for a GRU of 4
               layers with 320 units, in float32. That is 23 and 27 times a tensor of 25,000 x 320: five for each LSTM's
               layer and six for each GRU's, and the outputs of the three inner layers.
    workspace  github.com/tensorflow/tensorflow/pull/30889: 9,961,472 bytes for an RNN of 2 layers with 512 units on 20
               steps of 64 sequences, and 21,496,576 if inputs may be padded, as PyTorch lets them be. The issue above:
               17,730,560 for the LSTM and 13,169,920 for the GRU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from runners.simulation.kernels.torch_sizes import FLOAT, Estimate

aten = torch.ops.aten

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by mode
KEPT = {0: 2, 1: 2, 2: 5, 3: 6}  # tensors as large as a layer's output in the reserve; for RNN no reading is known
LSTM = MODES["lstm"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the sizes of a call depend on."""

    mode: int
    positions: int  # of all sequences
    length: int
    batch: int
    features: int
    hidden: int
    projection: int  # 0: none
    layers: int
    directions: int
    one: int  # bytes of an element
    packed: bool

    @classmethod
    def of(cls, args: Sequence[Any], backward: bool) -> Shape:
        """Of the arguments of aten._cudnn_rnn or its backward."""
        input = args[0]
        mode, hidden, projection, layers, batch_first = args[10:15] if backward else args[6:11]
        bidirectional, sizes = (args[17], args[18]) if backward else (args[13], args[14])
        if sizes:
            positions, length, batch = input.size(0), len(sizes), sizes[0]
        else:
            batch, length = input.shape[:2] if batch_first else (input.size(1), input.size(0))
            positions = batch * length
        return cls(
            *(mode, positions, length, batch, input.size(-1), hidden, projection, layers),
            *(2 if bidirectional else 1, input.element_size(), bool(sizes)),
        )

    @property
    def state(self) -> int:
        """Elements of the state of one sequence."""
        return self.projection or self.hidden

    def weights(self) -> int:
        """Elements of all matrices, without biases."""
        inputs = self.features + (self.layers - 1) * self.state * self.directions
        each = GATES[self.mode] * self.hidden
        count = self.directions * each * (inputs + self.layers * self.state)
        return count + self.directions * self.layers * self.projection * self.hidden

    def biases(self) -> int:
        """cuDNN has both biases of every gate, also for layers without them."""
        return 2 * GATES[self.mode] * self.hidden * self.layers * self.directions


def reserve_bytes(shape: Shape) -> Estimate:
    """What a training pass keeps for backward. Between: gates alone, and everything in float32 with a mask of dropout
    and, for persistent kernels, as much again as a layer's output."""
    unit = shape.positions * shape.directions * shape.hidden
    between = shape.positions * shape.directions * shape.state * (shape.layers - 1)
    used = (unit * shape.layers * KEPT[shape.mode] + between) * shape.one
    low = unit * shape.layers * (GATES[shape.mode] + (shape.mode == LSTM)) * shape.one
    high = (unit * shape.layers * (KEPT[shape.mode] + 1) + 2 * between) * max(shape.one, FLOAT)
    return Estimate(used, low, high)


def workspace_bytes(shape: Shape, train: bool) -> Estimate:
    """The weights, a row for each step and some for each gate, and copies of inputs that may be padded, of outputs and
    of their gradients. In inference also the gates of a layer, which are in the reserve otherwise."""
    weights = shape.weights() * shape.one
    row = shape.directions * shape.batch * shape.hidden * shape.one
    gates = GATES[shape.mode]
    states = shape.layers * row * (3 * gates - 1)
    outputs = shape.positions * shape.directions * shape.state
    copies = 0
    if not shape.packed:
        sides = 2 if train else 1
        copies = sides * (shape.positions * shape.features + outputs) * shape.one
        copies += 2 * sides * shape.layers * row * (2 if shape.mode == LSTM else 1) + 3 * FLOAT * shape.batch
    steps = shape.layers * row * shape.length
    of_inference = 0 if train else shape.positions * shape.directions * shape.hidden * gates * shape.one
    used = weights + states + steps + copies + of_inference
    high = 2 * weights + states + gates * steps + 2 * copies + of_inference
    return Estimate(used, weights, max(high, used))


# --- the operators ---


def cudnn_rnn(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The results of aten._cudnn_rnn: outputs, states, cells, reserve, weights."""
    input, _, _, weights, hx, cx = args[:6]
    batch_first, train = args[10], args[12]
    shape = Shape.of(args, backward=False)
    states = shape.layers * shape.directions
    width = shape.state * shape.directions
    if shape.packed:
        output = input.new_empty(shape.positions, width)
    else:
        output = input.new_empty(shape.length, shape.batch, width)
        output = output.transpose(0, 1) if batch_first else output
    hy = hx.new_empty(states, shape.batch, shape.state)
    cy = hx.new_empty(0) if cx is None else cx.new_empty(states, shape.batch, shape.hidden)
    estimate = reserve_bytes(shape) if train else Estimate(0, 0, 0)
    reserve = input.new_empty(estimate, dtype=torch.uint8)
    reserve.estimate = estimate
    weights = input.new_empty(shape.weights() + shape.biases()) if weights is None else weights
    return output, hy, cy, reserve, weights


def forward_temporaries(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """The workspace, and the input if it is not contiguous in the order of steps."""
    shape, train = Shape.of(args, backward=False), args[12]
    return [workspace_bytes(shape, train), *_copies(shape, args[10], args[0])]


def cudnn_rnn_backward(*args: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor | None]]:
    """The gradients of input, state, cell and of all weights, which share one storage unless there are no biases."""
    input, params, stride, weights, hx, cx = args[:6]
    shape = Shape.of(args, backward=True)
    batch_first, output_mask = args[14], args[21]
    if all(grad is None for grad in args[7:10]):
        return None, None, None, [None] * len(params)
    if batch_first and not shape.packed:
        dx = torch.empty_like(input.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)
    else:
        dx = torch.empty_like(input, memory_format=torch.contiguous_format)
    dhx = torch.empty_like(hx)
    dcx = None if cx is None else torch.empty_like(cx)
    if not output_mask[3]:
        return dx, dhx, dcx, [None] * len(params)
    if _has_biases(stride):
        return dx, dhx, dcx, views_of(torch.empty_like(weights), params)
    return dx, dhx, dcx, [torch.empty_like(each) for each in params]


def backward_temporaries(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """In one call the gradients of inputs, in another those of weights: each with a workspace and a copy of the input,
    and the first with a copy of the outputs' gradient while those of weights do not exist yet."""
    input, _, stride, weights, hx, cx, output = args[:7]
    given, batch_first, output_mask = args[7:10], args[14], args[21]
    if all(grad is None for grad in given):
        return []
    shape = Shape.of(args, backward=True)
    zeros = [
        like.nbytes for like, grad in zip((output, hx, cx), given, strict=True) if grad is None and like is not None
    ]
    of_weights = weights.nbytes if output_mask[3] else 0
    of_outputs = sum(_copies(shape, batch_first, given[0])) if given[0] is not None else 0
    copies = [*_copies(shape, batch_first, input), max(of_outputs - of_weights, 0)]
    buffer = [] if _has_biases(stride) or not of_weights else [of_weights]
    return [each for each in [workspace_bytes(shape, True), *zeros, *copies, *buffer] if each]


def _copies(shape: Shape, batch_first: bool, tensor: Tensor) -> list[int]:
    ordered = tensor.transpose(0, 1) if batch_first and not shape.packed else tensor
    return [] if ordered.is_contiguous() else [tensor.numel() * tensor.element_size()]


def _has_biases(stride: int) -> bool:
    """From the number of parameters of a layer and direction."""
    return stride > 3


# --- the buffer of all weights ---


def buffer_elements(params: Sequence[Tensor], has_biases: bool, mode: int, hidden: int, states: int) -> int:
    """The elements of a buffer with all weights of a network of `states` layers and directions."""
    return sum(each.numel() for each in params) + (0 if has_biases else 2 * GATES[mode] * hidden * states)


def views_of(buffer: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the shapes of the parameters in the storage of the buffer, one behind the other."""
    views, at = [], 0
    for each in params:
        view = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
        stride = [prod(each.shape[dim + 1 :]) for dim in range(each.dim())]
        views.append(view.set_(buffer.untyped_storage(), at, each.shape, stride))
        at += each.numel()
    return views
