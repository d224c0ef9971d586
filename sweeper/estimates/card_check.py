"""The quick budget: a number of parameters, a width, and whether a card has room to run, to train, to adapt them.

`estimate parameters=8e9 bits=16 card=rtx-4090` works without a configuration, a model, Hydra or torch. Exact integers
of stated assumptions: what is not a term here stands under `not included`, and each verdict is about the terms alone.

    run      the weights
    train    weights, gradients and Adam's two moments, all in the width that was asked for; and with float32 weights
    adapter  frozen weights, and an adapter (LoRA) of a rank on every linear layer, with what training it takes
"""

from __future__ import annotations

from dataclasses import dataclass

from runners.device import Card
from sweeper.estimates.memory_terms import weights

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
