"""The cards described in conf/card, for calculated devices and for budgets named after a card."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.device import CPU_CARD, HOST, Card
from sweeper.errors import Mistake

HERE = Path(__file__).resolve().parent
# Inside the package in a wheel, next to it in a checkout. Absolute: a conf/ in the current folder is never used.
CONF = next(folder for folder in (HERE / "conf", HERE.parent / "conf") if (folder / "config.yaml").is_file())
SIZES = ("total_bytes", "context_bytes")
TEXT_KEYS = {  # pattern, and a description of valid values
    "name": (r".+", "what the driver calls it"),
    "vendor": ("nvidia|amd", "nvidia or amd"),
    "architecture": (r"sm_\d{2,3}|gfx[0-9a-f]+", "as in sm_90 or gfx942"),
}
KEYS = (
    *TEXT_KEYS, *SIZES, "context_range_bytes", "has_display", "used_by_others_bytes", "bandwidth_bytes_per_s",
    "price_per_hour", "sources",
)  # fmt: skip
ALL = "all"


class Cards(Mapping[str, Card]):
    """Cards by name, each read on access, which raises Mistake if its file is not valid."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Mapping[str, Any]]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Card:
        if name == HOST:  # sim:cpu, which has no file
            return CPU_CARD
        if name not in self._names:
            raise KeyError(name)
        card = self._read(name)
        if not isinstance(card, Mapping):
            raise Mistake(f"card/{name}.yaml: must be a mapping, as in card/h100-80gb.yaml")
        for key in card:
            if key not in KEYS:
                raise Mistake(f"card/{name}.yaml: {key}: is not a key of a card; they are {', '.join(KEYS)}")
        for key in (*TEXT_KEYS, *SIZES):
            if card.get(key) is None:
                example = TEXT_KEYS[key][1] if key in TEXT_KEYS else "a whole number of bytes"
                raise Mistake(f"card/{name}.yaml: {key} is missing: {example}")
        for key, (form, right) in TEXT_KEYS.items():
            if not isinstance(card.get(key), str) or not re.fullmatch(form, card[key]):
                raise Mistake(f"card/{name}.yaml: {key}={card.get(key)}: must be {right}")
        for key in SIZES:
            if type(card.get(key)) is not int or not 0 < card[key] < 2**63:
                raise Mistake(f"card/{name}.yaml: {key}={card.get(key)}: must be a whole number of bytes")
        if card["context_bytes"] >= card["total_bytes"]:
            raise Mistake(f"card/{name}.yaml: context_bytes={card['context_bytes']}: must be less than total_bytes")
        published = card.get("context_range_bytes")
        if published is not None and not _is_range(published, card["context_bytes"]):
            right = f"must be null, or two numbers of bytes with context_bytes={card['context_bytes']} between them"
            raise Mistake(f"card/{name}.yaml: context_range_bytes={published}: {right}")
        if not isinstance(card.get("has_display", False), bool):
            raise Mistake(f"card/{name}.yaml: has_display={card['has_display']}: must be true or false")
        for key, right in (("bandwidth_bytes_per_s", "a whole number of bytes"), ("price_per_hour", "a number")):
            value = card.get(key)
            types = (int,) if key == "bandwidth_bytes_per_s" else (int, float)
            if value is not None and (type(value) not in types or not 0 < value < 2**63):
                raise Mistake(f"card/{name}.yaml: {key}={value}: must be null, or {right} above 0")
        others = card.get("used_by_others_bytes", 0)
        if type(others) is not int or not 0 <= others < card["total_bytes"] - card["context_bytes"]:
            raise Mistake(f"card/{name}.yaml: used_by_others_bytes={others}: must be a whole number of bytes")
        return Card.from_json(card)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def card_named(name: str, known: Iterable[str]) -> str | None:
    """The one card that a name means: in full, without dashes as in `rtx4090`, or without its size as in `l40s`.

    None if there is no such card or several: `v100` has 16 GB and 32 GB, and there are three kinds of `h100`.
    """
    typed, names = _squeezed(name), list(known)
    if name in names:
        return name
    whole = [card for card in names if _squeezed(card) == typed]
    begun = [card for card in names if re.match(rf"{re.escape(name.lower())}-", card)]
    sized = [card for card in names if _squeezed(re.sub(r"-\d+gb$", "", card)) == typed]
    found = whole or sized
    return found[0] if len(found) == 1 and len(begun) <= 1 else None


def _squeezed(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _is_range(value: Any, inside: int) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or any(type(each) is not int for each in value):
        return False
    least, most = value
    return bool(0 <= least <= inside <= most)


def of_sweeper() -> Cards:
    """The cards that come with sweeper, read without Hydra."""
    import yaml  # type: ignore[import-untyped]

    folder = CONF / "card"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    return Cards(names, lambda name: yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")))
