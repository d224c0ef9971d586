"""`fit qwen2.5-7b rtx-4090`: the words become the overrides of a sweep, and the points at which it begins.

A bare word is a model or a card. Imports neither Hydra nor pandas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.device import SIM, Card
from sweeper.cards import CONF
from sweeper.effects.levers import computes_in_bfloat16
from sweeper.errors import Mistake, did_you_mean
from sweeper.fit import SETTINGS, Setting
from sweeper.planning.suggestions import no_such_card

EXAMPLE = "sweeper fit model=qwen2.5-7b card=rtx-4090"
OWN = ("card",)  # keys that no sweep has
PROGRAMS = ("custom", "command")  # workloads that have no settings of ours
MOST_CONTEXTS = 5
SMALLEST_CONTEXT = 64
WITHOUT_POSITIONS = 8192  # the longest context of a model whose configuration has no number of positions
# Keys that fit chooses itself, with the reason.
REFUSED = {
    "devices": "fit takes a card, as in card=rtx-4090; a sweep takes devices=",
    "batch": "fit finds the largest batch itself; leave it out",
    "design": "fit has a design of its own; leave it out",
    "experiment": "fit has points of its own; a sweep takes experiments",
    "workload.method": "fit calculates full training and LoRA; leave it out",
    "workload.checkpointing": "fit calculates both with and without; leave it out",
    **dict.fromkeys(("grid", "points"), "is for experiment files"),
    **dict.fromkeys(
        ("objective", "edge", "confirm", "resolution", "margin", "repeat_points", "parallel"),
        "has no effect on fit, which calculates each point once; leave it out",
    ),
}
SEVERAL = ("context", "card")  # keys that may have several values
RUN_TRAINS = {"forward": "forward", "generate": "generate", "train": "train"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """What `fit` was asked for. `overrides`: those of the sweep, its devices included."""

    model: str | None
    cards: tuple[str, ...]
    workload: str | None  # the only one, if one was typed
    overrides: tuple[str, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Those to calculate; none of a program of the user's."""
        if self.workload in PROGRAMS:
            return ()
        return tuple(each for each in SETTINGS if self.workload in (None, each.values["workload"]))

    def points(self, contexts: Sequence[int]) -> list[dict[str, Any]]:
        """The first point of each cell, in the order of the table. `contexts`: empty if they are typed or unused."""
        settings = [each.values for each in self.settings] or [{"workload": self.workload}]
        return [
            {**values, **({} if context is None else {"context": context})}
            for values in settings
            for context in contexts or (None,)
        ]


def read_request(words: Sequence[str], folders: Sequence[Path] = (CONF,)) -> FitRequest:
    """`folders`: where options are. Raises Mistake."""
    models, cards = (_options(group, folders) for group in ("model", "card"))
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            key, value = _meaning(word, models, cards), word
        if key in given:
            raise Mistake(f"{key} is given twice, {given[key]} and {value}: write it once")
        why = REFUSED.get(key) or REFUSED.get(key.partition(".")[0])
        if why is not None:
            raise Mistake(f"{word}: {why}")
        if "," in value and value[:1] not in ("[", "{", "'", '"') and key not in SEVERAL:
            raise Mistake(f"{word}: fit takes one {key}; only context takes several")
        given[key] = value
    workload = given.get("workload")
    named = tuple(dict.fromkeys(_listed(given.pop("card", ""))))
    for card in named:
        if card not in cards:
            raise Mistake(no_such_card(f"card={card}", card, cards, ""))
    if not named:
        raise Mistake(f"fit: name a card, as in {EXAMPLE}; sweeper --help card lists them")
    if len(named) > 1:
        raise Mistake(f"card={','.join(named)}: fit takes one card")
    if "model" not in given and workload not in PROGRAMS:
        raise Mistake(f"fit: name a model, as in {EXAMPLE}; sweeper --help model lists them")
    devices = f"devices=[{','.join(SIM + card for card in named)}]"
    return FitRequest(
        model=given.get("model"),
        cards=named,
        workload=workload,
        overrides=(
            *(f"{key}={value}" for key, value in given.items() if workload is None or key != "workload"),
            *([f"workload={workload}"] if workload is not None else []),
            devices,
        ),
    )


def _options(group: str, folders: Sequence[Path]) -> list[str]:
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def _meaning(word: str, models: Collection[str], cards: Collection[str]) -> str:
    """The key of a bare word. Raises Mistake."""
    if word in models:
        return "model"
    if word in cards:
        return "card"
    near = did_you_mean(word, [*models, *cards])
    raise Mistake(f"fit {word}: neither a model nor a card{near}; write {EXAMPLE}")


def _listed(value: str) -> list[str]:
    return [each.strip().removeprefix(SIM) for each in value.strip("[]").split(",") if each.strip()]


def dtype_of(cards: Collection[Card]) -> str:
    """bfloat16 where every card computes in it, else float16."""
    return "bfloat16" if all(map(computes_in_bfloat16, cards)) else "float16"


def contexts_of(model: Mapping[str, Any], positions: int | None) -> tuple[int, ...]:
    """Powers of two up to the model's own positions, at most 5; the longest is the positions. None without text."""
    config = model.get("config") or {}
    if positions is None and model.get("library") == "transformers" and "path" not in model:
        if "vocab_size" not in config or "conv_dim" in config:  # images or sound
            return ()
    longest = positions or WITHOUT_POSITIONS
    ratio = 2 if longest <= 2**15 else 4
    found = [longest]
    power = 1 << (longest.bit_length() - 1)
    power = power if power < longest else longest // ratio
    while len(found) < MOST_CONTEXTS and power >= min(SMALLEST_CONTEXT, longest):
        found.append(power)
        power //= ratio
    return tuple(sorted(found))
