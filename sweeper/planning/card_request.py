"""`estimate parameters=7e9 bits=16 reserve_gib=4 card=rtx-4090 rank=8`: numbers to check against a card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from runners.device import Card
from sweeper import cards
from sweeper.errors import Mistake, did_you_mean
from sweeper.estimates.card_check import CARD, RANK
from sweeper.planning.suggestions import no_such_card

BITS = (4, 8, 16, 32)
SMALLEST, LARGEST = 10**5, 10**18  # parameters; 7 was probably meant as 7B
KEYS = {
    "parameters": "a whole number, 100000 or more, as in parameters=7000000000 or 7e9",
    "bits": "one of 4, 8, 16, 32",
    "reserve_gib": "a number of GiB, 0 or more, as in reserve_gib=4 or 0.5",
    "card": f"a card of conf/card, as in card={CARD}",
    "rank": "a whole number above 0, as in rank=8",
}
BITS_OF = {
    "dtype": {
        **dict.fromkeys(("float32", "fp32"), 32),
        **dict.fromkeys(("float16", "fp16", "half", "bfloat16", "bf16"), 16),
        "int8": 8,
    },
    "quantize": {"int8": 8, "int4": 4, "nf4": 4},
}
OWN_KEYS = ("parameters", "bits", "reserve_gib")  # keys that no configuration has


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRequest:
    parameters: int
    bits: int
    reserve_gib: Decimal | None
    card_name: str
    card: Card
    rank: int


def is_card_request(words: Iterable[str]) -> bool:
    """Whether `estimate` was given numbers instead of a configuration."""
    keys = [word.partition("=")[0] for word in words]
    return any(key in OWN_KEYS for key in keys) or (bool(keys) and all(key in KEYS for key in keys))


def parse_card_request(words: Iterable[str]) -> CardRequest:
    """Raises Mistake."""
    given = _keys(words)
    known, typed = cards.of_sweeper(), given.get("card", CARD)
    parameters, bits = _parameters(given["parameters"]), _bits(given["bits"])
    reserve = _reserve(given["reserve_gib"]) if "reserve_gib" in given else None
    name = cards.card_named(typed, known)
    if name is None:
        raise Mistake(no_such_card(f"card={typed}", typed, list(known), ""))
    return CardRequest(
        parameters=parameters,
        bits=bits,
        reserve_gib=reserve,
        card_name=name,
        card=known[name],
        rank=_rank(given.get("rank", str(RANK))),
    )


def _keys(words: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Mistake(f"cannot read {word!r}: write key=value, as in parameters=7000000000 bits=16")
        if key not in KEYS and (instead := _instead(key, value)):
            raise Mistake(f"{key}={value}: no such key beside parameters; write {instead}")
        if key not in KEYS:
            raise Mistake(f"{key}={value}: no such key{did_you_mean(key, KEYS)}; the keys are {', '.join(KEYS)}")
        if key in given:
            raise Mistake(f"{key} is given twice, {given[key]} and {value}: it takes one value")
        given[key] = value
    for key in ("parameters", "bits"):
        if key not in given:
            example = {"parameters": "7e9", "bits": "16", **given}
            line = " ".join(f"{name}={value}" for name, value in example.items())
            raise Mistake(f"{key} is missing: {KEYS[key]}; write sweeper estimate {line}")
    return given


def _instead(key: str, value: str) -> str | None:
    """The key of a card request for one of a sweep: `card=rtx-4090` for `devices=sim:rtx-4090`."""
    if key in ("devices", "device", "gpu", "budget"):
        return f"card={re.sub(r'^(sim|card):', '', value)}"
    if key in BITS_OF and value.lower() in BITS_OF[key]:
        return f"bits={BITS_OF[key][value.lower()]}"
    return f"reserve_gib={re.sub('GiB$', '', value)}" if key in ("reserve", "used_by_others") else None


def _parameters(value: str) -> int:
    """7000000000 and 7e9 are the same number; 7.5 is refused, 7.5e9 is not."""
    if re.fullmatch(r"[0-9]{1,18}|[0-9]{1,9}(\.[0-9]{1,9})?[eE]\+?[0-9]{1,2}", value):
        count = Decimal(value)
        if SMALLEST <= count < LARGEST and count == count.to_integral_value():
            return int(count)
    if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,2})?", value) and Decimal(value) > 0:
        raise Mistake(f"parameters={value}: that is {value}, and not {value}B; write parameters={value}e9")
    short = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmbgt])", value.lower())  # 7B, as in the names of models
    power = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
    instead = f"; write parameters={short[1]}e{power[short[2]]}" if short else ""
    raise Mistake(f"parameters={value}: must be {KEYS['parameters']}{instead}")


def _bits(value: str) -> int:
    if value not in map(str, BITS):
        raise Mistake(f"bits={value}: must be {KEYS['bits']}")
    return int(value)


def _reserve(value: str) -> Decimal:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        raise Mistake(f"reserve_gib={value}: must be {KEYS['reserve_gib']}")
    return Decimal(value)


def _rank(value: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", value) or int(value) == 0:
        raise Mistake(f"rank={value}: must be {KEYS['rank']}")
    return int(value)
