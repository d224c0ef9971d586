"""The quick budget: a number of parameters, a width, and whether a card has room to run, to train, to adapt them.

`estimate parameters=8e9 bits=16 card=rtx-4090` works without a configuration, a model, Hydra or torch. Exact integers
of stated assumptions: what is not a term here stands under `not included`, and each verdict is about the terms alone.

    run      the weights
    train    weights, gradients and Adam's two moments, all in the width that was asked for; and with float32 weights
    adapter  frozen weights, and an adapter (LoRA) of a rank on every linear layer, with what training it takes
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from json import dumps
from typing import Any

from runners.device import Card
from sweeper import cards
from sweeper.errors import Mistake
from sweeper.estimates.memory_terms import MemoryTerm, reserve, weights
from sweeper.plan import did_you_mean
from sweeper.units import GB, format_both, hundredths

BITS = (4, 8, 16, 32)
TRAINED = (16, 32)  # widths that torch trains weights in
CARD = "rtx-4090"  # one of 24 GB
RANK = 8  # as in conf/workload/train.yaml
ADAM = 4  # tensors of a parameter's size: itself, its gradient, two moments
FLOAT32 = 4
NOT_INCLUDED = (
    "activations and logits",
    "the cache of keys and values",
    "the allocator's rounding and fragmentation",
    "temporaries, workspaces and others on the card",
)

# A decoder's proportions where only its size is known: 12 x layers x width^2 parameters, 128 of width for each layer
# (a width of 4,096 with 32 layers).
PARAMETERS_OF_A_LAYER = 12
WIDTH_OF_A_LAYER = 128
# Of an adapter in a layer, in units of rank x width: four square products of attention have two matrices each, and
# three of an mlp that is 8/3 as wide have 1 + 8/3.
ADAPTER_OF_A_LAYER = 4 * 2 + 3 + 8

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCase:
    """One thing to do with a model: what its terms take, and what that means on the card."""

    way: str
    bytes: int
    fits: bool
    verdict: str
    left_bytes: int  # below 0: what is missing
    formula: str
    assumption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCheck:
    card: str
    usable_bytes: int
    usable: str
    ways: tuple[UseCase, ...]
    not_estimated: tuple[str, ...]
    not_included: tuple[str, ...] = NOT_INCLUDED


def check_card(
    parameters: int, bits: int, card: Card, name: str = CARD, rank: int = RANK, reserved: int = 0
) -> CardCheck:
    """What a card has room for. Pure. `reserved`: bytes that somebody assumes for everything else."""
    usable = card.usable_bytes
    also = f" + reserve {reserved:,}" if reserved else ""

    def way(name: str, count: int, verdicts: tuple[str, str], formula: str, assumption: str) -> UseCase:
        left = usable - count - reserved
        return UseCase(
            way=name,
            bytes=count + reserved,
            fits=left > 0,  # with nothing left there is no room for anything else
            verdict=verdicts[0 if left > 0 else 1],
            left_bytes=left,
            formula=formula + also,
            assumption=assumption,
        )

    held = weights(parameters, bits).bytes
    ways = [
        way(
            "run",
            held,
            ("fits to run", "does not fit to run"),
            f"weights {held:,}",
            "all of the weights are on the card",
        )
    ]
    missing = []
    to_train = ("may fit to train", "does not fit to train")
    if bits in TRAINED:
        size = bits // 8
        ways.append(
            way(
                "train",
                ADAM * parameters * size,
                to_train,
                f"{ADAM} (weight, gradient, two moments) x {parameters:,} parameters x {size} bytes",
                f"every parameter is trained with Adam, and all four are of {bits} bits",
            )
        )
    else:
        missing.append(
            f"train: not estimated, weights of {bits} bits are not trained: bits=16 or 32 says what would be"
        )
    if bits == 16:
        ways.append(
            way(
                "train in float32",
                ADAM * parameters * FLOAT32,
                to_train,
                f"{ADAM} (weight, gradient, two moments) x {parameters:,} parameters x {FLOAT32} bytes",
                "weights, gradients and moments are float32, and only products are computed in 16 bits (autocast)",
            )
        )
    layers, width = shape(parameters)
    adapter = ADAPTER_OF_A_LAYER * rank * width * layers
    ways.append(
        way(
            "adapter",
            held + ADAM * adapter * FLOAT32,
            ("may fit with an adapter", "does not fit with an adapter"),
            f"weights {held:,} + {ADAM} (weight, gradient, two moments) x {adapter:,} parameters x {FLOAT32} bytes",
            f"LoRA of rank {rank} in float32 on every linear layer; {layers} layers of width {width:,}, as a decoder of"
            f" {PARAMETERS_OF_A_LAYER} x layers x width^2 parameters with a width of {WIDTH_OF_A_LAYER} x layers has:"
            " proportions that are assumed, not the model's",
        )
    )
    return CardCheck(
        card=name,
        usable_bytes=usable,
        usable=f"{card.total_bytes:,} in total less {card.context_bytes:,} of context and libraries",
        ways=tuple(ways),
        not_estimated=tuple(missing),
    )


def shape(parameters: int) -> tuple[int, int]:
    """Layers and width of the largest decoder of the assumed proportions that has no more parameters."""
    layers = 1
    while PARAMETERS_OF_A_LAYER * (layers + 1) * (WIDTH_OF_A_LAYER * (layers + 1)) ** 2 <= parameters:
        layers += 1
    return layers, WIDTH_OF_A_LAYER * layers


# --- the command ------------------------------------------------------------------------------------------------------


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
