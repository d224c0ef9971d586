"""What people train with takes the tensors on a calculated host that it takes on this one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call, grad, grad_and_value, jacrev, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.programs import HOST, MIB, calculated
from tests.tracing import real_peak

Program = Callable[[str], None]
WIDTH = 128


def layers(device: str, count: int = 2) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(count))
    ).to(device)


def rows(device: str) -> torch.Tensor:
    return torch.randn(16, WIDTH, device=device)


def training(make: Callable[[Any], Any], steps: int = 2) -> Program:
    def program(device: str) -> None:
        model = layers(device)
        optimizer = make(model.parameters())
        for _ in range(steps):

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(rows(device)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)

    return program


def by_name(name: str, **options: Any) -> Program:
    return training(lambda parameters: getattr(torch.optim, name)(parameters, **options))


OPTIMIZERS = {
    **{name: by_name(name) for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam")},
    **{name: by_name(name) for name in ("RMSprop", "Rprop", "SGD", "Adafactor") if hasattr(torch.optim, name)},
    "foreach": by_name("AdamW", foreach=True),
    "fused": by_name("Adam", fused=True, amsgrad=True),
    "LBFGS": by_name("LBFGS", max_iter=3),
}


def steps_in_backward(device: str) -> None:
    model = layers(device)
    optimizers = {each: torch.optim.AdamW([each]) for each in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(rows(device)).sum().backward()


def averages(device: str) -> None:
    model = layers(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    by_hand = copy.deepcopy(model)
    for _ in range(2):
        average.update_parameters(model)
    with torch.no_grad():
        for mean, each in zip(by_hand.parameters(), model.parameters(), strict=True):
            mean.mul_(0.99).add_(each, alpha=0.01)


def recomputing(reentrant: bool) -> Program:
    def program(device: str) -> None:
        hidden = rows(device).requires_grad_()
        for layer in layers(device, 4):
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        hidden.sum().backward()

    return program


def recomputing_segments(device: str) -> None:
    checkpoint_sequential(layers(device, 4), 2, rows(device).requires_grad_(), use_reentrant=False).sum().backward()  # type: ignore[no-untyped-call]


def packing(hooks: Callable[[], Any]) -> Program:
    def program(device: str) -> None:
        model = layers(device)
        with hooks():
            output = model(rows(device))
        output.sum().backward()

    return program


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return given @ weight.t(), x.t() @ given


class Exponential(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return given * ctx.saved_tensors[0]


def own_functions(device: str) -> None:
    x = rows(device).requires_grad_()
    weight = torch.randn(WIDTH, WIDTH, device=device, requires_grad=True)
    made = Exponential.apply(Product.apply(x, weight))  # type: ignore[no-untyped-call]
    (made.sum() + vmap(Exponential.apply)(x).sum()).backward()


def gradients_of_each_row(device: str) -> None:
    model = layers(device)
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(parameters: Any, row: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = functional_call(model, parameters, (row[None],))
        return output.square().mean()

    grad_and_value(loss)(parameters, rows(device)[0])
    vmap(grad(loss), in_dims=(None, 0))(parameters, rows(device)[:4])
    jacrev(lambda row: loss(parameters, row))(rows(device)[0])


def penalised_gradient(device: str) -> None:
    x = rows(device).requires_grad_()
    (slope,) = torch.autograd.grad(layers(device)(x).sum(), x, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()


CODE = {
    "steps in the backward pass": steps_in_backward,
    "averages of weights": averages,
    "reentrant checkpoints": recomputing(True),
    "checkpoints": recomputing(False),
    "checkpoints of segments": recomputing_segments,
    "activations on the host": packing(save_on_cpu),
    "activations in float16": packing(lambda: saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float)),
    "functions with a gradient of their own": own_functions,
    "gradients of each row": gradients_of_each_row,
    "a penalty on a gradient": penalised_gradient,
}


def calculated_peak(program: Program) -> int:
    found = calculated(program, HOST)
    assert found.error is None
    return found.peaks["tensor"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_the_tensors_of_a_measured_one(name: str) -> None:
    assert calculated_peak(OPTIMIZERS[name]) == pytest.approx(real_peak(OPTIMIZERS[name]), rel=0.0005)


@pytest.mark.parametrize("name", CODE)
def test_training_code_takes_the_tensors_of_a_measured_run(name: str) -> None:
    assert calculated_peak(CODE[name]) == pytest.approx(real_peak(CODE[name]), rel=0.0005)


def test_a_line_search_of_unknown_length_is_bounded_and_the_row_says_so() -> None:
    program = by_name("LBFGS", max_iter=3, line_search_fn="strong_wolfe")
    found = calculated(program, HOST)
    assert found.error is None
    assert real_peak(program) <= found.peaks["tensor"] <= 1.25 * real_peak(program)
    last = [line for line in found.lines if line["kind"] == "assumed"][-1]
    bounds = [(each["operator"], each["bound"]) for each in last["bounds"]]
    assert ("torch.optim.LBFGS", "at most max_iter=3 iterations") in bounds


@pytest.mark.parametrize("pin_memory", [False, True])
def test_offloaded_activations_take_none_of_the_cards_memory_and_are_noted(pin_memory: bool) -> None:
    def program(device: str) -> dict[str, int]:
        x = torch.ones(MIB // 4, device=device, requires_grad=True)
        with save_on_cpu(pin_memory):
            y = x.exp().exp()
        held = torch.cuda.memory_allocated()
        y.sum().backward()
        return {"held": held}

    found = calculated(program)
    assert found.returned["held"] == 2 * MIB  # x and y: the result in between is on the host only
    assert found.notes == [f"torch.autograd.graph.save_on_cpu kept up to {2 * MIB} bytes on the host"]
    assert not [line for line in found.lines if line["kind"] == "assumed"]
