"""`fit qwen2.5-7b rtx-4090`: the words become the overrides of a sweep, and the points at which it begins.

A bare word is a model or a card. Imports neither Hydra nor pandas.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.device import HOST, SIM, Card
from sweeper.cards import ALL, CONF, card_named
from sweeper.effects.levers import Q_AND_V, computes_in_bfloat16
from sweeper.errors import Mistake, did_you_mean
from sweeper.fit_cells import LARGEST_BATCH, SETTINGS, Setting
from sweeper.planning.suggestions import no_such_card
from sweeper.serving import NEW_TOKENS, serving_setting

EXAMPLE = "sweeper fit model=qwen2.5-7b card=rtx-4090"
PROGRAMS = ("custom", "command")  # workloads that have no settings of ours
WORKLOADS = ("train", "generate", "forward")  # those that have settings of ours
MOST_CONTEXTS = 5
USUAL_CONTEXT = 4096  # of a comparison of cards
SMALLEST_CONTEXT = 64
WITHOUT_POSITIONS = 8192  # the longest context of a model whose configuration has no number of positions
# Keys that fit chooses itself, with the reason.
REFUSED = {
    "devices": "fit takes a card, as in card=rtx-4090; a sweep takes devices=",
    "batch": "fit finds the largest batch itself; leave it out",
    "design": "fit has a design of its own; leave it out",
    "experiment": "fit has points of its own; a sweep takes experiments",
    **dict.fromkeys(("grid", "points"), "is for experiment files"),
    **dict.fromkeys(
        ("objective", "edge", "confirm", "resolution", "margin", "repeat_points", "parallel"),
        "has no effect on fit, which calculates each point once; leave it out",
    ),
}
# Keys in which the training rows differ: a value leaves those rows alone.
OF_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "workload.method": {"full": "full", "lora": "lora"},
    "workload.checkpointing": {"true": True, "false": False},
}
SEVERAL = ("context", "card")  # keys that may have several values
OTHER_NAMES = ("gpu", "device", "cards", "gpus")  # of card=


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """The request that a line of `fit` makes. `overrides`: those of the sweep, its devices included."""

    model: str | None
    cards: tuple[str, ...]
    workload: str | None  # the only one, if one was typed
    overrides: tuple[str, ...]
    rows: Mapping[str, Any] = field(default_factory=dict)  # the values of OF_TRAINING that the rows have
    concurrency: int | None = None  # the number of requests of a server
    own_file: Path | None = None  # of the model, in the user's own YAML

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Those to calculate; none of a program of the user's."""
        if self.workload in PROGRAMS:
            return ()
        if self.concurrency is not None:
            return (serving_setting([each.partition("=")[0] for each in self.overrides]),)
        of_workload = (each for each in SETTINGS if self.workload in (None, each.values["workload"]))
        return tuple(each for each in of_workload if self.rows.items() <= each.values.items())

    def chosen_contexts(self, contexts: Sequence[int]) -> Sequence[int]:
        """The columns of one card; of several cards, or of a server, one of the contexts of a model."""
        if (len(self.cards) == 1 and self.concurrency is None) or not contexts:
            return contexts
        # A server's positions are of a prompt and its answer.
        answer = 0 if self.concurrency is None else self._answer_tokens
        return (min(USUAL_CONTEXT, max(max(contexts) - answer, 1)),)

    @property
    def _answer_tokens(self) -> int:
        typed = [each.partition("=")[2] for each in self.overrides if each.startswith("workload.new_tokens=")]
        return int(typed[0]) if typed and typed[0].isdecimal() else NEW_TOKENS

    def points(self, contexts: Sequence[int], model_type: str | None = None) -> list[dict[str, Any]]:
        """The first point of each cell, in the order of the table. `contexts`: empty if they are typed or unused."""
        settings = [each.values for each in self.settings] or [{"workload": self.workload}]
        return [
            {**values, **_targets(values, model_type), **({} if context is None else {"context": context})}
            for values in settings
            for context in contexts or (None,)
        ]


def _targets(values: Mapping[str, Any], model_type: str | None) -> dict[str, Any]:
    """The modules that LoRA adapts where the model has not those of the default."""
    adapts = values.get("workload.method") == "lora"
    return {"workload.targets": "all-linear"} if adapts and model_type not in Q_AND_V else {}


def read_request(words: Sequence[str], folders: Sequence[Path] = (CONF,)) -> FitRequest:
    """`folders`: where options are. Raises Mistake."""
    models, cards = (_options(group, folders) for group in ("model", "card"))
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            key, value = _meaning(word, models, cards), word
            if key == "card" and key in given:
                value = f"{given.pop(key)},{value}"
        if key in given:
            raise Mistake(f"{key} is given twice, {given[key]} and {value}: write it once")
        if key in OTHER_NAMES:
            raise Mistake(f"{word}: fit takes a card; write card={value.removeprefix(SIM)}")
        why = REFUSED.get(key) or REFUSED.get(key.partition(".")[0])
        if why is not None:
            raise Mistake(f"{word}: {why}")
        if "," in value and value[:1] not in ("[", "{", "'", '"') and key not in SEVERAL and not Path(value).exists():
            raise Mistake(f"{word}: fit takes one {key}; only context and card take several")
        given[key] = value
    workload = given.get("workload")
    named = _cards_named(given.pop("card", ""), cards)
    if not named:
        raise Mistake(f"fit: name a card, as in {EXAMPLE}; sweeper --help card lists them")
    if "model" not in given and workload not in PROGRAMS:
        raise Mistake(f"fit: name a model, as in {EXAMPLE}; sweeper --help model lists them")
    of_rows = [] if workload in PROGRAMS else [key for key in OF_TRAINING if key in given]
    rows = {key: _row_value(key, given.pop(key), workload) for key in of_rows}
    concurrency = _concurrency(given.pop("concurrency", None), workload)
    model, own_file = given.get("model"), None
    if model is not None and model not in models:
        if re.search(r"\.ya?ml$", model):
            own_file = _own_file(model, models)
            given["model"] = own_file.stem
        elif _is_checkpoint(model):
            given |= {"model": "pretrained", "model.path": _quoted(model)}
    devices = f"devices=[{','.join(SIM + card for card in named)}]"
    is_setting = workload not in (None, *PROGRAMS)
    return FitRequest(
        model=model,
        cards=named,
        workload=workload,
        overrides=(*(f"{key}={value}" for key, value in given.items() if key != "workload" or not is_setting), devices),
        rows=rows,
        concurrency=concurrency,
        own_file=own_file,
    )


def _row_value(key: str, value: str, workload: str | None) -> Any:
    """The value of one of OF_TRAINING. Raises Mistake."""
    if workload not in (None, "train"):
        raise Mistake(f"{key}={value}: is a key of training; leave workload={workload} out")
    if value not in OF_TRAINING[key]:
        raise Mistake(f"{key}={value}: must be {' or '.join(OF_TRAINING[key])}")
    return OF_TRAINING[key][value]


@contextmanager
def options_with(file: Path | None, folder: str | None) -> Iterator[str | None]:
    """The folder of options (--config-dir) that has a model's own file; `folder`, the user's, without a file.

    Raises Mistake for both.
    """
    if file is None:
        yield folder
        return
    if folder is not None:
        raise Mistake(f"model={file}: with -cd {folder}, put the file into {folder}/model and write model={file.stem}")
    with tempfile.TemporaryDirectory(prefix="sweeper-") as made:
        Path(made, "model").mkdir()
        Path(made, "model", f"{file.stem}.yaml").symlink_to(file.resolve())
        yield made


def _options(group: str, folders: Sequence[Path]) -> list[str]:
    return sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})


def _meaning(word: str, models: Collection[str], cards: Collection[str]) -> str:
    """The key of a bare word. Raises Mistake."""
    card = word.removeprefix(SIM)
    if word in models:
        return "model"
    if card == ALL or card_named(card, cards) is not None:
        return "card"
    if _is_checkpoint(word) or re.search(r"\.ya?ml$", word):
        return "model"
    near = did_you_mean(word, [*models, *cards])
    raise Mistake(f"fit {word}: neither a model nor a card{near}; write {EXAMPLE}")


def _is_checkpoint(model: str) -> bool:
    """Whether a word is a folder, or a name on the hub."""
    return "/" in model or model.startswith(("~", ".")) or Path(model).is_dir()


def _own_file(text: str, models: Collection[str]) -> Path:
    file = Path(text).expanduser()
    if not file.is_file():
        raise Mistake(f"model={text}: no such file")
    if file.stem in models and file.resolve() != (CONF / "model" / file.name).resolve():
        raise Mistake(f"model={text}: there is a model {file.stem} already; give the file another name")
    return file


def _quoted(value: str) -> str:
    """A value as Hydra reads it."""
    if re.fullmatch(r"[\w./~-]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _cards_named(value: str, cards: Sequence[str]) -> tuple[str, ...]:
    """Each card once, in the order typed. Raises Mistake."""
    typed = [each.strip().removeprefix(SIM) for each in value.strip("[]").split(",") if each.strip()]
    if ALL in typed:
        return tuple(cards)
    found: dict[str, None] = {}
    for name in typed:
        card = name if name == HOST else card_named(name, cards)
        if card is None:
            raise Mistake(no_such_card(f"card={name}", name, cards, ""))
        if card == HOST:
            raise Mistake(
                "card=cpu: fit takes a card with memory of its own; a sweep with devices=cpu measures the cpu"
            )
        found[card] = None
    return tuple(found)


def _concurrency(value: str | None, workload: str | None) -> int | None:
    if value is None:
        return None
    if workload != "generate":
        line = f"workload=generate concurrency={value}"
        raise Mistake(f"concurrency={value}: is the number of requests that a server answers at once; write {line}")
    if not re.fullmatch("[1-9][0-9]{0,3}", value) or int(value) > LARGEST_BATCH:
        raise Mistake(f"concurrency={value}: must be a whole number from 1 to {LARGEST_BATCH}")
    return int(value)


def dtype_of(cards: Collection[Card]) -> str:
    """bfloat16 where every card computes in it, else float16."""
    return "bfloat16" if all(map(computes_in_bfloat16, cards)) else "float16"


def contexts_of(model: Mapping[str, Any], positions: int | None) -> tuple[int, ...]:
    """Powers of two up to the model's own positions, at most 5; the longest is the positions. None without text."""
    config = model.get("config") or {}
    reads_text = "vocab_size" in config and "conv_dim" not in config  # no images and no sound
    if positions is None and model.get("library") == "transformers" and "path" not in model and not reads_text:
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
