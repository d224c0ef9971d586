"""Reads the user's tariffs: a YAML file with a price an hour for each device."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from runners import files
from sweeper.costs import UNITS, Tariff, Tariffs
from sweeper.errors import Mistake, did_you_mean

KEYS = ("currency", "unit", "amount", "devices")
OF_A_DEVICE = ("price_per_hour", "minimum_minutes", "fixed_fee")
EXAMPLE = """\
currency: EUR
unit: tokens        # useful units: tokens, samples or passes; chosen before the costs are seen
amount: 1000000     # useful units in one package
devices:
  cuda:0: {price_per_hour: 2.49, minimum_minutes: 10, fixed_fee: 0.50}
"""


def read_tariffs(file: str) -> Tariffs:
    """Raises Mistake for a file that cannot be read, an unknown key, and a value that is not right."""
    import yaml  # type: ignore[import-untyped]

    try:
        with open(file, encoding="utf-8") as opened:
            found = yaml.safe_load(opened)
    except OSError as error:
        raise Mistake(f"--tariffs {file}: cannot be read: {files.why(error)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Mistake(f"--tariffs {file}: is not YAML: {' '.join(str(error).split())}") from None
    return _tariffs(file, found)


def _tariffs(file: str, found: Any) -> Tariffs:
    content = _mapping(file, "the file", found, KEYS)
    for key in KEYS:
        if content.get(key) is None:
            raise Mistake(f"--tariffs {file}: {key} is missing; {' '.join(_example(key).split())} is an example")
    unit, amount = content["unit"], content["amount"]
    if unit not in UNITS:
        raise Mistake(f"--tariffs {file}: unit={unit}: must be {', '.join(UNITS)}{did_you_mean(unit, UNITS)}")
    if type(amount) is not int or amount < 1:
        raise Mistake(f"--tariffs {file}: amount={amount}: must be a whole number of {unit}, as in 1000000")
    if not isinstance(content["devices"], Mapping):
        raise Mistake(f"--tariffs {file}: devices={content['devices']}: must map devices to prices, as in cuda:0")
    by_device = {str(name): _tariff(file, str(name), each) for name, each in content["devices"].items()}
    return Tariffs(currency=str(content["currency"]), unit=unit, amount=amount, by_device=by_device)


def _tariff(file: str, device: str, found: Any) -> Tariff:
    content = _mapping(file, device, found, OF_A_DEVICE)
    if content.get("price_per_hour") is None:
        raise Mistake(f"--tariffs {file}: {device}: price_per_hour is missing, as in {{price_per_hour: 2.49}}")
    price, minutes, fee = (_amount(file, device, key, content.get(key, 0)) for key in OF_A_DEVICE)
    return Tariff(price_per_hour=price, minimum_seconds=minutes * 60, fixed_fee=fee)


def _amount(file: str, device: str, key: str, value: Any) -> Decimal:
    try:
        amount = Decimal(str(value)) if not isinstance(value, bool) else Decimal("nan")
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite() or amount < 0:
        raise Mistake(f"--tariffs {file}: {device}: {key}={value}: must be a number, 0 or more")
    return amount


def _mapping(file: str, what: str, found: Any, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise Mistake(f"--tariffs {file}: {what} must be a mapping with the keys {', '.join(keys)}")
    for key in found:
        if key not in keys:
            raise Mistake(
                f"--tariffs {file}: {what}: {key} is no key{did_you_mean(key, keys)}; they are {', '.join(keys)}"
            )
    return found


def _example(key: str) -> str:
    line = next(line for line in EXAMPLE.splitlines() if line.startswith(key))
    return line.partition("#")[0] if key != "devices" else "devices: {cuda:0: {price_per_hour: 2.49}}"
