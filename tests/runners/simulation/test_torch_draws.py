from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.measuring import MIB
from tests.programs import HOST, calculated


def next_drawn(draws: Callable[[], Any]) -> list[int]:
    torch.manual_seed(11)
    draws()
    return torch.randint(2**30, (4,)).tolist()  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, 2, dropout=0.5)
        self.output = nn.Linear(8, 3)

    def forward(self, steps: Any) -> Any:
        return F.dropout(self.output(self.rnn(steps)[0]), 0.1)


DRAWS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: torch.rand(300, 301),
    "uniform of doubles": lambda: torch.empty(1001, dtype=torch.float64).uniform_(-1, 1),
    "normal": lambda: torch.randn(3, 70_003),
    "few normal": lambda: torch.randn(7),
    "normal about means": lambda: torch.normal(torch.zeros(501), 2.0),
    "half precision": lambda: torch.randn(4099, dtype=torch.bfloat16),
    "masks": lambda: torch.empty(70_001).bernoulli_(0.3),
    "masks of probabilities": lambda: torch.bernoulli(torch.full((2000,), 0.5)),
    "exponential": lambda: torch.empty(1000).exponential_(),
    "multinomial": lambda: torch.multinomial(torch.ones(4, 50), 3),
    "multinomial with replacement": lambda: torch.multinomial(torch.ones(4, 50), 30, replacement=True),
    "many whole numbers": lambda: torch.randint(5, 90, (40_001,)),
    "a permutation": lambda: torch.randperm(1_100_000),
    "like another": lambda: (torch.rand_like(torch.zeros(99)), torch.randn_like(torch.zeros(99))),
    "weights": lambda: nn.TransformerEncoderLayer(32, 4),
    "truncated normal": lambda: nn.init.trunc_normal_(torch.empty(200, 7)),
    "truncated normal of its tail": lambda: nn.init.trunc_normal_(torch.empty(200, 7), a=1.0, b=3.0),
    "dropout": lambda: F.dropout(torch.ones(5000, requires_grad=True), 0.2),
    "attention with dropout": lambda: F.scaled_dot_product_attention(*[torch.ones(2, 2, 9, 8)] * 3, dropout_p=0.3),
    "a network": lambda: Recurrent()(torch.ones(5, 2, 8)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_calculated_host_draws_what_a_run_with_the_seed_draws(name: str) -> None:
    expected = next_drawn(DRAWS[name])
    assert calculated(lambda device: next_drawn(DRAWS[name]), HOST).returned == {"result": expected}


def test_a_generator_of_the_programs_has_its_own_numbers() -> None:
    def program(**_: Any) -> list[Any]:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(5)
        torch.randn(1000, generator=generator)
        nn.init.normal_(torch.empty(100), generator=generator)
        drawn = torch.randint(1000, (3,), generator=generator).tolist()
        return [drawn, torch.randperm(4, generator=generator).tolist(), torch.randint(1000, (3,)).tolist()]

    expected = program()
    assert calculated(program, HOST).returned == {"result": expected}


def test_a_tensor_on_no_device_draws_nothing() -> None:
    def program(**_: Any) -> list[int]:
        torch.manual_seed(2)
        with torch.device("meta"):
            nn.Linear(50, 50)
        torch.empty(8, device="meta").normal_()
        return torch.randint(1000, (3,)).tolist()  # type: ignore[no-any-return]

    expected = program()
    assert calculated(program, HOST).returned == {"result": expected}


def test_batches_of_shuffled_data_are_as_large_as_in_a_run_with_the_seed() -> None:
    """Padding to the longest of a batch: what is held at once depends on which examples meet."""

    def collate(examples: list[Any]) -> Any:
        return nn.utils.rnn.pad_sequence([torch.ones(int(length)) for (length,) in examples])

    def program(**_: Any) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        lengths = torch.randint(1, MIB // 16, (40,))
        sizes = []
        for batch in DataLoader(TensorDataset(lengths), batch_size=4, shuffle=True, collate_fn=collate):
            F.dropout(model(torch.ones(2, 64)))
            sizes.append(list(batch.shape))
        return sizes

    expected = program()
    assert calculated(program, HOST).returned == {"result": expected}


def test_numbers_beyond_the_first_are_not_drawn_and_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.simulation.torch_draws.MOST", 1000)

    def program(**_: Any) -> int:
        return len([torch.randn(600), torch.randn(600)])

    assert any("random numbers that are drawn" in note for note in calculated(program, HOST).notes)


def test_the_number_of_draws_that_depends_on_numbers_is_noted() -> None:
    assert any("aten.poisson" in note for note in calculated(lambda device: torch.poisson(torch.ones(3)), HOST).notes)
