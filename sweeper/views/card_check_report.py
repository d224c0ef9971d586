"""The command `estimate parameters=7e9 bits=16 card=rtx-4090`, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from decimal import Decimal
from json import dumps
from typing import Any

from sweeper import cards
from sweeper.errors import Mistake, did_you_mean
from sweeper.estimates.card_check import CARD, RANK, CardCheck, check_card
from sweeper.estimates.memory_terms import MemoryTerm, reserve, weights
from sweeper.units import GB, format_both, hundredths

BITS = (4, 8, 16, 32)


PARAMETERS = re.compile(r"(?P<digits>[0-9]{1,18})|[0-9]{1,9}(\.[0-9]{1,9})?[eE]\+?[0-9]{1,2}")
RESERVE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
LARGEST = 10**18
ASKS = ("parameters", "bits", "reserve_gib")  # any of them alone makes a command line one of these
KEYS = {
    "parameters": "a whole number above 0, as in parameters=7000000000 or 7e9",
    "bits": "one of 4, 8, 16, 32",
    "reserve_gib": "a number of GiB, 0 or more, as in reserve_gib=4 or 0.5",
    "card": f"a card of conf/card, as in card={CARD}",
    "rank": "a whole number above 0, as in rank=8",
}


def is_asked(arguments: Sequence[str]) -> bool:
    """Whether `estimate` was given numbers of its own and no configuration."""
    return any(argument.partition("=")[0] in ASKS for argument in arguments)


def main(arguments: Sequence[str], json: bool = False) -> int:
    """`estimate parameters=7e9 bits=16 reserve_gib=4 card=rtx-4090 rank=8`."""
    given = _keys(arguments)
    parameters, bits = _count(given["parameters"]), _width(given["bits"])
    found = [weights(parameters, bits)]
    if "reserve_gib" in given:
        found.append(reserve(_reserve(given["reserve_gib"])))
    known, name = cards.of_sweeper(), given.get("card", CARD)
    if name not in known:
        raise Mistake(f"card={name}: no such card{did_you_mean(name, known) or '; it must be ' + KEYS['card']}")
    reserved = sum(term.bytes for term in found[1:])
    whole = check_card(parameters, bits, known[name], name, _rank(given.get("rank", str(RANK))), reserved)
    print(dumps(_as_json(found, whole)) if json else "\n".join(_lines(found, whole)))
    return 0


def _keys(arguments: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise Mistake(f"cannot read {argument!r}: write key=value, as in parameters=7000000000 bits=16")
        if key not in KEYS:
            near = did_you_mean(key, KEYS)
            raise Mistake(f"{key}={value}: beside {', '.join(KEYS)} nothing is taken{near}")
        if key in given:
            raise Mistake(f"{key} is given twice, {given[key]} and {value}: it is one")
        given[key] = value
    for key in ("parameters", "bits"):
        if key not in given:
            raise Mistake(f"{key} is missing: {KEYS[key]}")
    return given


def _count(value: str) -> int:
    """7000000000 and 7e9 are one number; 7.5 is none of parameters, and 7.5e9 is."""
    if PARAMETERS.fullmatch(value):
        count = Decimal(value)
        if 0 < count < LARGEST and count == count.to_integral_value():
            return int(count)
    raise Mistake(f"parameters={value}: must be {KEYS['parameters']}")


def _width(value: str) -> int:
    if value not in map(str, BITS):
        raise Mistake(f"bits={value}: must be {KEYS['bits']}")
    return int(value)


def _reserve(value: str) -> Decimal:
    if not RESERVE.fullmatch(value):
        raise Mistake(f"reserve_gib={value}: must be {KEYS['reserve_gib']}")
    return Decimal(value)


def _rank(value: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", value) or int(value) == 0:
        raise Mistake(f"rank={value}: must be {KEYS['rank']}")
    return int(value)


def _lines(found: Sequence[MemoryTerm], whole: CardCheck) -> Iterator[str]:
    for term in found:
        yield f"{term.term:<10} {format_both(term.bytes)}"
        yield f"{'':<10} = {term.formula}"
        yield f"{'':<10} assumed: {term.assumption}"
        yield f"{'':<10} source: {term.source}"
    if len(found) > 1:
        yield f"{'total':<10} {format_both(sum(term.bytes for term in found))}"
    yield ""
    yield f"on card={whole.card}, of which an allocator can have {format_both(whole.usable_bytes)}"
    yield f"  ({whole.usable}):"
    for way in whole.ways:
        rest = f"{hundredths(abs(way.left_bytes), GB)} GB {'are left' if way.fits else 'are missing'}"
        yield f"{way.way}: {way.verdict}, {rest}"
        yield f"{'':<10} {format_both(way.bytes)}"
        yield f"{'':<10} = {way.formula}"
        yield f"{'':<10} assumed: {way.assumption}"
    yield from whole.not_estimated
    yield f"not included: {'; '.join(whole.not_included)}"


def _as_json(found: Sequence[MemoryTerm], whole: CardCheck) -> dict[str, Any]:
    return {
        "terms": [
            {key: getattr(term, key) for key in ("term", "bytes", "formula", "assumption", "source")} for term in found
        ],
        "total_bytes": sum(term.bytes for term in found),
        "budget": asdict(whole),
    }
