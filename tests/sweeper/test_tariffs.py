from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from sweeper.costs import Tariff
from sweeper.errors import Mistake
from sweeper.tariffs import EXAMPLE, read_tariffs


def test_the_example_is_read_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(EXAMPLE)
    found = read_tariffs(str(tmp_path / "t.yaml"))
    assert (found.currency, found.unit, found.amount) == ("EUR", "tokens", 1_000_000)
    tariff = Tariff(price_per_hour=Decimal("2.49"), minimum_seconds=Decimal(600), fixed_fee=Decimal("0.50"))
    assert found.by_device == {"cuda:0": tariff}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "the file must be a mapping"),
        ("a: [", "is not YAML"),
        (EXAMPLE.replace("currency: EUR", ""), "currency is missing"),
        (
            EXAMPLE.replace("tokens   ", "token    "),
            "unit=token: must be tokens, samples, passes (did you mean tokens?)",
        ),
        (EXAMPLE.replace("1000000", "-1"), "amount=-1: must be a whole number of tokens"),
        (EXAMPLE.replace("1000000", "1e6"), "amount=1e6: must be a whole number"),
        (EXAMPLE.replace("price_per_hour", "price_an_hour"), "price_an_hour is no key (did you mean price_per_hour?)"),
        (EXAMPLE.replace("2.49", ".nan"), "cuda:0: price_per_hour=nan: must be a number, 0 or more"),
        (EXAMPLE.replace("10,", "ten,"), "cuda:0: minimum_minutes=ten: must be a number"),
        (EXAMPLE.replace("0.50", "true"), "fixed_fee=True: must be a number"),
        (EXAMPLE.partition("devices")[0] + "devices: cheap", "devices=cheap: must map devices to prices"),
    ],
)
def test_a_mistake_in_a_file_of_tariffs_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(Mistake, match=r"^--tariffs ") as raised:
        read_tariffs(str(tmp_path / "t.yaml"))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(Mistake, match=r"--tariffs there\.yaml: cannot be read"):
        read_tariffs("there.yaml")
