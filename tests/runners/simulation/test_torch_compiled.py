"""Compiled code is calculated as eager, and the row says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runners.simulation.torch_compiled import NOTE
from tests.programs import H100, HOST, MIB, Calculated, calculated

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own, when its compiler is imported

Compile = Callable[[Any], Any]


def as_it_is(function: Any) -> Any:
    return function


def in_place(module: nn.Module) -> nn.Module:
    module.compile()
    return module


def training(compiled: Compile) -> Callable[[str], None]:
    def program(device: str) -> None:
        model = compiled(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(64, 256, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


COMPILED: dict[str, Compile] = {
    "torch.compile": torch.compile,
    "the whole graph": lambda function: torch.compile(function, fullgraph=True, mode="max-autotune"),
    "Module.compile": in_place,
}


@pytest.mark.parametrize("card", [H100, HOST])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_is_calculated_as_eager_and_noted(name: str, card: Any) -> None:
    found, eager = calculated(training(COMPILED[name]), card), calculated(training(as_it_is), card)
    assert found.error is eager.error is None
    assert found.peaks == eager.peaks
    assert (found.notes, eager.notes) == ([NOTE], [])


def test_a_function_that_was_compiled_before_the_program_began_is_noted_too() -> None:
    double = torch.compile(lambda x: x * 2)

    def program(device: str) -> dict[str, bool]:
        return {"on the card": double(torch.ones(MIB, device=device)).is_cuda}

    found = calculated(program)
    assert (found.returned, found.notes) == ({"on the card": True}, [NOTE])
    assert found.peaks["allocated"] == 8 * MIB


def attending(compiled: Compile, trains: bool) -> Calculated:
    """Two heads of 64 for 512 positions in bfloat16, of which only the lower half of the scores counts."""

    def program(device: str) -> dict[str, int]:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device=device)
        given = torch.randn(1, 2, 512, 64, device=device, dtype=torch.bfloat16, requires_grad=trains)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = compiled(flex_attention)(given, given, given, block_mask=mask)
        kept = torch.cuda.memory_allocated() - before
        if trains:
            out.sum().backward()
        return {"kept": kept, "peak": torch.cuda.max_memory_allocated() - before}

    return calculated(program)


def test_compiled_flex_attention_keeps_its_output_and_two_numbers_a_row() -> None:
    out, rows = 512 * 2 * 64 * 2, 512 * 2 * 4
    found = attending(torch.compile, trains=True).returned
    assert found["kept"] == out + 2 * rows
    # the sum and its gradient, then a number a row, and the gradients of query, key and value
    assert found["peak"] == found["kept"] + 2 * 512 + rows + 3 * out


def test_eager_flex_attention_holds_all_scores() -> None:
    scores = 512 * 512 * 2 * 4
    found = attending(as_it_is, trains=False)
    assert found.returned["peak"] > 2 * scores
    assert found.notes == []


def test_eager_flex_attention_with_gradients_is_refused_by_name() -> None:
    error = attending(as_it_is, trains=True).error
    assert error is not None
    assert error.startswith("runners.phases.Unavailable: flex_attention outside torch.compile")


@pytest.mark.parametrize("card", [H100, HOST])
def test_an_export_is_refused_by_name(card: Any) -> None:
    def program(device: str) -> None:
        torch.export.export(nn.Linear(8, 8).to(device), (torch.ones(2, 8, device=device),))

    error = calculated(program, card).error
    assert error is not None
    assert error.startswith("runners.phases.Unavailable: torch.export.export cannot be traced")
