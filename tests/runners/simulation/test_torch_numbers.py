"""Numbers that follow from the program alone are known although its tensors have no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.measuring import MIB
from tests.programs import H100, HOST, Calculated, calculated

CARDS = pytest.mark.parametrize("card", [H100, HOST], ids=["card", "host"])


def unknown(device: str, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, device=device).softmax(-1)


def number(read: Callable[[str], Any], card: Any = H100) -> tuple[Any, Calculated]:
    found = calculated(lambda device: {"number": read(device)}, card)
    return found.returned["number"], found


# --- known ---

KNOWN: dict[str, tuple[Callable[[str], Any], Any]] = {
    "ones are one": (lambda d: bool(torch.all(torch.ones(4, 7, device=d) == 1)), True),
    "a mask of ones is full": (lambda d: torch.ones(4, 7, device=d).bool().all().item(), True),
    "a mask that was filled": (lambda d: torch.zeros(4, 7, device=d).fill_(1).sum().item(), 28.0),
    "a bias of a mask": (lambda d: ((1.0 - torch.ones(2, 5, device=d)) * -1e4).max().item(), 0.0),
    "a product with a scale": (lambda d: (torch.full((300, 300), 2.0, device=d) * 3).mean().item(), 6.0),
    "a new tensor's zeros": (lambda d: unknown(d, 8).new_zeros(3).sum().item(), 0.0),
    "positions": (lambda d: int(torch.arange(5, device=d)[-1]), 4),
    "a causal mask": (lambda d: torch.ones(6, 6, device=d).tril().sum().item(), 21.0),
    "a single number's arithmetic": (lambda d: (torch.tensor(2.0, device=d) ** 10 / 4).item(), 256.0),
    "a list": (lambda d: torch.tensor([[1, 2], [3, 4]], device=d).T.tolist(), [[1, 3], [2, 4]]),
    "moved data": (lambda d: torch.tensor([3, 1, 2]).to(d).sort().values.tolist(), [1, 2, 3]),
    "a length": (lambda d: int(torch.tensor([3, 5, 4]).to(d).max()), 5),
    "a padding token in made ids": (lambda d: 0 in torch.ones(2, 9, dtype=torch.long, device=d), False),
    "the distinct numbers": (lambda d: torch.tensor([2, 1, 2], device=d).unique().tolist(), [1, 2]),
    "a bit mask that a known part decides": (
        lambda d: bool((torch.ones(9, dtype=torch.bool, device=d) | (unknown(d, 9) > 1)).all()),
        True,
    ),
}


@CARDS
@pytest.mark.parametrize("case", KNOWN)
def test_what_depends_on_known_numbers_is_known_and_not_assumed(card: Any, case: str) -> None:
    read, value = KNOWN[case]
    found, program = number(read, card)
    assert found == value
    assert program.assumed == {}


@CARDS
def test_the_scale_of_a_loss_is_known_and_its_gradients_are_assumed_to_be_finite(card: Any) -> None:
    def program(device: str) -> dict[str, Any]:
        model = nn.Linear(8, 8, device=device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=1)
        scales = []
        for _ in range(2):
            scaler.scale(model(unknown(device, 2, 8)).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return {"scales": scales}

    assert calculated(program, card).returned == {"scales": [2048.0, 4096.0]}


def test_what_is_written_over_known_numbers_is_no_longer_known() -> None:
    def program(device: str) -> dict[str, Any]:
        x = torch.zeros(4, device=device)
        before = x.sum().item()
        x.copy_(unknown(device, 4))
        return {"before": before, "after": x.sum().item()}

    found = calculated(program)
    assert found.returned["before"] == 0.0
    assert [place["operator"] for place in found.assumed["places"]] == ["Tensor.item"]


@CARDS
def test_a_buffer_that_counts_batches_is_known(card: Any) -> None:
    def program(device: str) -> dict[str, Any]:
        norm = nn.BatchNorm1d(4, device=device)
        for _ in range(3):
            norm(unknown(device, 8, 4))
        return {"batches": int(norm.num_batches_tracked)}

    assert calculated(program, card).returned == {"batches": 3}


# --- drawn ---


def test_what_is_drawn_on_the_host_is_drawn() -> None:
    def program(device: str) -> dict[str, Any]:
        torch.manual_seed(7)
        held = torch.zeros(8, device=device)
        drawn = [torch.randint(0, 1000, (3,)).tolist(), torch.randperm(5).tolist(), torch.rand(1).item()]
        return {"drawn": drawn, "held": len(held)}

    torch.manual_seed(7)
    expected = [torch.randint(0, 1000, (3,)).tolist(), torch.randperm(5).tolist(), torch.rand(1).item()]
    assert calculated(program, H100).returned["drawn"] == expected
    on_host = calculated(program, HOST)
    assert on_host.returned["drawn"] == expected
    assert on_host.assumed["values"] > 0  # another run without a seed draws others


def test_a_size_that_is_drawn_on_the_host_is_a_size() -> None:
    def program(device: str) -> dict[str, Any]:
        torch.manual_seed(3)
        rows = torch.randint(1, 9, (1,)).item()
        held = torch.zeros(rows, 2**20, dtype=torch.uint8, device=device)
        return {"rows": len(held)}

    for card in (H100, HOST):
        found = calculated(program, card)
        assert found.peaks["requested" if card is H100 else "tensor"] == found.returned["rows"] * MIB


def test_what_is_drawn_on_the_card_is_assumed_within_its_range() -> None:
    def program(device: str) -> dict[str, Any]:
        low = torch.randint(5, 9, (4,), device=device)
        chosen = unknown(device, 1, 1).argmax(-1)
        return {"low": low[0].item(), "one": chosen.item(), "drawn": torch.multinomial(unknown(device, 6), 1).item()}

    found = calculated(program)
    assert found.returned == {"low": 5, "one": 0, "drawn": 1}
    assert found.assumed["values"] == 3


def test_arguments_of_a_distribution_are_assumed_to_be_valid() -> None:
    def program(device: str) -> dict[str, Any]:
        policy = torch.distributions.Categorical(logits=unknown(device, 3, 2))
        action = policy.sample()
        normal = torch.distributions.Normal(unknown(device, 3), unknown(device, 3))
        return {"shape": list(policy.log_prob(action).shape), "drawn": list(normal.rsample().shape)}

    assert calculated(program).returned == {"shape": [3], "drawn": [3]}


# --- sizes ---


@CARDS
@pytest.mark.parametrize(
    "select",
    [
        lambda x: x[x > 0.5],
        lambda x: x.masked_select(x > 0.5),
        lambda x: x[torch.where(x > 0.5)[0]],
        lambda x: (x > 0.5).nonzero(),
        lambda x: x[(x > 0.5) & (x < 0.9)],
        lambda x: x[x.isfinite() & (x != 3)],
    ],
)
def test_what_a_mask_selects_is_at_most_all(card: Any, select: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = calculated(lambda device: {"rows": len(select(unknown(device, 50)))}, card)
    assert found.returned == {"rows": 50}
    assert {each["bound"] for each in found.assumed["bounds"]} == {"at most all"}


@CARDS
def test_a_mask_that_keeps_the_shape_needs_no_number(card: Any) -> None:
    def program(device: str) -> dict[str, Any]:
        x, y = unknown(device, 50), unknown(device, 50)
        x[x > 0.5] = 0
        x[x > 0.5] = y[0]
        x.masked_fill_(y > 0.5, 1.0)
        made = torch.where(x > y, x, 0.0)
        return {"shape": list(made.shape)}

    found = calculated(program, card)
    assert found.returned == {"shape": [50]}
    assert found.assumed == {}


@CARDS
@pytest.mark.parametrize(
    ("select", "operator"),
    [
        (lambda x: torch.zeros(9, device=x.device)[: x.argmax()], "_local_scalar_dense"),
        (lambda x: x.repeat_interleave(x.argsort()), "repeat_interleave"),
        (lambda x: torch.bincount(x.argsort()), "bincount"),
    ],
)
def test_a_result_without_a_bound_is_unavailable_with_file_line_and_operator(
    card: Any, select: Callable[[torch.Tensor], Any], operator: str
) -> None:
    error = calculated(lambda device: select(unknown(device, 9)), card).error or ""
    assert f"tests/runners/simulation/test_torch_numbers.py:{select.__code__.co_firstlineno} (<lambda>), " in error
    assert f"aten.{operator}" in error


# --- copies on the host ---


@pytest.mark.parametrize(
    ("work", "result"),
    [
        (lambda x: x[x > 0.5], (50, "at most all")),
        (lambda x: (x > 0.5).nonzero(), (50, "at most all")),
        (lambda x: torch.zeros(50)[x > 0.5], (50, "at most all")),
    ],
)
def test_what_a_mask_selects_on_the_host_is_at_most_all_and_stays_there(work: Any, result: tuple[int, str]) -> None:
    def program(device: str) -> dict[str, Any]:
        made = work(unknown(device, 50).cpu())
        return {"rows": len(made), "device": str(made.device)}

    found = calculated(program)
    assert found.returned == {"rows": result[0], "device": "cpu"}
    assert {each["bound"] for each in found.assumed["bounds"]} == {result[1]}


def test_a_size_by_a_number_of_a_copy_on_the_host_is_unavailable() -> None:
    def program(device: str) -> None:
        copied = unknown(device, 50).cpu()
        torch.zeros((copied * 3).argmax().item(), device=device)

    assert "decides a size" in (calculated(program).error or "")


def test_data_on_the_host_stay_what_they_are() -> None:
    def program(device: str) -> dict[str, Any]:
        torch.zeros(1, device=device)
        data = torch.tensor([1, 0, 2, 2])
        found = data.nonzero(), data[data > 0], data.masked_select(data > 1), data.unique(), torch.bincount(data)
        return {"device": {str(each.device) for each in found} == {"cpu"}, "numbers": [each.tolist() for each in found]}

    expected = [[[0], [2], [3]], [1, 2, 2], [2, 2], [0, 1, 2], [1, 1, 2]]
    assert calculated(program).returned == {"device": True, "numbers": expected}
