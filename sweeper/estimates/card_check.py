"""Whether a card has room to run, to train or to adapt a model, given its number of parameters and their width.

`estimate parameters=8e9 bits=16 card=rtx-4090` needs no configuration, model, Hydra or torch. The figures are exact
integers of stated assumptions. A verdict covers its terms only; everything else is listed under `not included`.

    run      the weights
    train    weights, gradients and Adam's two moments, all of the requested width, and also with float32 weights
    adapter  frozen weights, and a LoRA adapter on every linear layer with its gradients and moments
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from runners.device import Card
from sweeper.estimates.memory_terms import weights

TRAINED = (16, 32)  # widths of weights that torch trains
CARD = "rtx-4090"  # the default: a card of 24 GB
RANK = 8  # as in conf/workload/train.yaml
ADAM = 4  # tensors of a parameter's size: the parameter, its gradient, two moments
FLOAT32 = 4
NOT_INCLUDED = (
    "activations and logits",
    "the key-value cache",
    "the allocator's rounding and fragmentation",
    "temporaries, workspaces and other processes on the card",
)

# Assumed proportions of a decoder: 12 x layers x width^2 parameters, and a width of 128 x layers (4,096 for 32 layers).
PARAMETERS_OF_A_LAYER = 12
WIDTH_OF_A_LAYER = 128
# Parameters of an adapter per layer, in units of rank x width: two matrices for each of the four square products of
# attention, and 1 + 8/3 for each of the three products of an mlp that is 8/3 as wide.
ADAPTER_OF_A_LAYER = 4 * 2 + 3 + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCase:
    """One use of a model: the bytes of its terms, and whether they fit on the card."""

    way: str
    bytes: int
    fits: bool
    verdict: str
    left_bytes: int  # negative: the bytes that are missing
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
    """The uses that a card has room for. `reserved`: bytes assumed for everything else, added to each use."""
    held = weights(parameters, bits).bytes
    needs = [_run(held), *_train(parameters, bits), _adapter(parameters, held, rank)]
    cannot_train = f"train: not estimated, weights of {bits} bits cannot be trained: use bits=16 or bits=32"
    return CardCheck(
        card=name,
        usable_bytes=card.usable_bytes,
        usable=f"{card.total_bytes:,} in total less {card.context_bytes:,} for context and libraries",
        ways=tuple(_use_case(need, card.usable_bytes, reserved) for need in needs),
        not_estimated=() if bits in TRAINED else (cannot_train,),
    )


class Need(NamedTuple):
    """The bytes that a use takes, and its verdicts if they fit and if they do not."""

    use: str
    bytes: int
    fits: str
    does_not_fit: str
    formula: str
    assumption: str


def _run(held: int) -> Need:
    return Need("run", held, "fits to run", "does not fit to run", f"weights {held:,}", "all weights are on the card")


def _train(parameters: int, bits: int) -> Iterator[Need]:
    verdicts = "may fit to train", "does not fit to train"
    tensors = f"{ADAM} (weight, gradient, two moments) x {parameters:,} parameters"
    if bits in TRAINED:
        size = bits // 8
        assumption = f"every parameter is trained with Adam, and all four tensors have {bits} bits"
        yield Need("train", ADAM * parameters * size, *verdicts, f"{tensors} x {size} bytes", assumption)
    if bits == 16:
        assumption = (
            "weights, gradients and moments are float32; only matrix products are computed in 16 bits (autocast)"
        )
        formula = f"{tensors} x {FLOAT32} bytes"
        yield Need("train in float32", ADAM * parameters * FLOAT32, *verdicts, formula, assumption)


def _adapter(parameters: int, held: int, rank: int) -> Need:
    layers, width = shape(parameters)
    adapter = ADAPTER_OF_A_LAYER * rank * width * layers
    return Need(
        "adapter",
        held + ADAM * adapter * FLOAT32,
        "may fit with an adapter",
        "does not fit with an adapter",
        f"weights {held:,} + {ADAM} (weight, gradient, two moments) x {adapter:,} parameters x {FLOAT32} bytes",
        f"LoRA of rank {rank} in float32 on every linear layer; {layers} layers of width {width:,}. These are the"
        f" proportions of a decoder of {PARAMETERS_OF_A_LAYER} x layers x width^2 parameters with a width of"
        f" {WIDTH_OF_A_LAYER} x layers, not the model's own",
    )


def _use_case(need: Need, usable: int, reserved: int) -> UseCase:
    left = usable - need.bytes - reserved
    fits = left > 0  # with 0 bytes left there is no room for anything else
    return UseCase(
        way=need.use,
        bytes=need.bytes + reserved,
        fits=fits,
        verdict=need.fits if fits else need.does_not_fit,
        left_bytes=left,
        formula=need.formula + (f" + reserve {reserved:,}" if reserved else ""),
        assumption=need.assumption,
    )


def shape(parameters: int) -> tuple[int, int]:
    """Layers and width of the largest decoder of the assumed proportions with at most this many parameters."""
    layers = 1
    while PARAMETERS_OF_A_LAYER * (layers + 1) * (WIDTH_OF_A_LAYER * (layers + 1)) ** 2 <= parameters:
        layers += 1
    return layers, WIDTH_OF_A_LAYER * layers
