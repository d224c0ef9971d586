"""torch.compile on tensors without data: what is compiled runs eager, and the row says so.

Compiled code fuses operators, keeps other tensors for the backward pass and holds its buffers in another order. That
plan is made for a device, by a compiler that is not here, and is not read. Attention by flex_attention is the
exception: compiled, it is one kernel whose buffers are known (torch/_inductor/kernel/flex/flex_attention.py), and eager
it would hold all scores.

What torch.export makes is a program of tensors that have neither data nor memory, in a mode of its own: it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from runners.simulation.late_imports import Adaptation
from runners.simulation.torch_replaced import replaced
from runners.simulation.torch_tracer import MetaTracer

NOTE = "torch.compile: calculated as eager; compiled code fuses operators and keeps other tensors, so its peak differs"
CALLED_EAGER = (
    "flex_attention outside torch.compile cannot be traced without data where it has gradients: its backward pass runs "
    "a graph of score_mod that PyTorch makes of tensors with data; torch.compile(flex_attention) is one kernel"
)
RUN_ONLY = False  # what Dynamo calls back in code that is compiled: it compiles nothing more


def compiled_as_eager(tracer: MetaTracer) -> Mapping[str, Adaptation]:
    """What changes in PyTorch's compiler, by module."""

    def eager(callback: Any) -> Any:
        if callback in (None, RUN_ONLY):
            return callback
        tracer.notes[NOTE] = None
        return RUN_ONLY

    def dynamo(module: ModuleType) -> AbstractContextManager[Any]:
        if hasattr(module, "_callback_from_stance"):
            stance = module.DynamoStance("force_eager")  # with fullgraph=True others ask whether anything was compiled
            return replaced(module, _callback_from_stance=eager, _stance=stance)
        # before PyTorch 2.6: the first in 2.5, the second in 2.4
        name = "_maybe_set_eval_frame" if hasattr(module, "_maybe_set_eval_frame") else "set_eval_frame"
        set_callback = getattr(module, name)
        return replaced(module, **{name: lambda callback: set_callback(eager(callback))})

    def attention(module: ModuleType) -> AbstractContextManager[Any]:
        names = {"flex_attention_hop": _attention_of(tracer)}
        if hasattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"):
            names["_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"] = True  # call it in place of compiling its call
        return replaced(module, **names)

    return {
        "torch._dynamo.eval_frame": Adaptation(nullcontext, dynamo),
        "torch.nn.attention.flex_attention": Adaptation(nullcontext, attention),
    }


def _attention_of(tracer: MetaTracer) -> Any:
    """In place of flex_attention's operator, with its arguments."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        if not hasattr(torch.compiler, "set_stance"):  # since PyTorch 2.6
            raise tracer.unavailable(f"flex_attention of PyTorch {torch.__version__}: its operator keeps other tensors")
        if _callback() is RUN_ONLY:
            compiled: tuple[Tensor, Tensor, Tensor] = CompiledAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
            return compiled
        if torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value)):
            raise tracer.unavailable(CALLED_EAGER)
        from torch._higher_order_ops.flex_attention import sdpa_dense

        in_parts: tuple[Tensor, Tensor, Tensor] = sdpa_dense(query, key, value, *args)
        return in_parts

    return attention


def _callback() -> Any:
    """What Dynamo calls back in the code that runs now."""
    eval_frame: Any = torch._C._dynamo.eval_frame
    if hasattr(eval_frame, "get_eval_frame_callback"):
        return eval_frame.get_eval_frame_callback()
    callback = eval_frame.set_eval_frame(None)  # PyTorch 2.5 only returns it when another is set
    eval_frame.set_eval_frame(callback)
    return callback


class CompiledAttention(torch.autograd.Function):
    """The buffers of the kernels that torch.compile makes of flex_attention.

    query is (batch, heads, length, head size), key and value likewise with their own length and maybe fewer heads.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output, whose dimensions have the query's order, and two numbers in float32 for each of its rows."""
        ctx.set_materialize_grads(False)
        rows = query.shape[:-1]
        out = _like(query, value.size(-1))
        logsumexp, most = (query.new_empty(rows, dtype=torch.float32) for _ in range(2))
        ctx.save_for_backward(query, key, value, out, logsumexp, most)
        ctx.mark_non_differentiable(most)
        return out, logsumexp, most

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, _out, logsumexp, _most = ctx.saved_tensors
        delta = torch.empty_like(logsumexp)  # the sum of output times gradient for each row
        grads = [torch.empty_like(query)]
        for each in (value, key):  # a key for all of a batch has a gradient for each first
            whole = each.new_empty(query.size(0), *each.shape[1:])
            grads.append(whole if each.size(0) == query.size(0) else whole.sum(0, keepdim=True))
        del delta
        return grads[0], grads[2], grads[1]


def _like(query: Tensor, head_size: int) -> Tensor:
    """A tensor with the query's shape except for its last dimension, and the order of its dimensions in memory."""
    order = sorted(range(query.ndim), key=query.stride, reverse=True)
    sizes = [*query.shape[:-1], head_size]
    made = query.new_empty([sizes[each] for each in order])
    return made.permute([order.index(each) for each in range(query.ndim)])
