"""The cards of conf/card: what a calculated device has, and what a budget named after one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.errors import Mistake

HERE = Path(__file__).resolve().parent
# In a wheel conf/ is inside the package, in a checkout beside it. Absolute, so that a conf/ where the command is typed
# is never taken for it.
CONF = next(folder for folder in (HERE / "conf", HERE.parent / "conf") if (folder / "config.yaml").is_file())
WHOLE = ("total_bytes", "context_bytes")
CPU = "cpu"  # sim:cpu, which has no file: what the tensors take on a host
ALL = "all"


class Cards(Mapping[str, Mapping[str, Any]]):
    """By name; each is read when it is asked for. Raises Mistake for one that lacks a figure."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Mapping[str, Any]]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name == CPU:
            return {"name": "tensors on a CPU", "vendor": "", "architecture": CPU, "total_bytes": None}
        if name not in self._names:
            raise KeyError(name)
        card = self._read(name)
        for key in ("name", "vendor", "architecture"):
            if not isinstance(card.get(key), str):
                raise Mistake(f"card/{name}.yaml: {key}={card.get(key)}: must be a name")
        for key in WHOLE:
            if not isinstance(card.get(key), int) or card[key] <= 0:
                raise Mistake(f"card/{name}.yaml: {key}={card.get(key)}: must be a whole number of bytes")
        others = card.get("used_by_others_bytes", 0)
        if not isinstance(others, int) or not 0 <= others < usable_bytes(card):
            raise Mistake(f"card/{name}.yaml: used_by_others_bytes={others}: must be a whole number of bytes")
        return card

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def usable_bytes(card: Mapping[str, Any]) -> int:
    """What an allocator can reserve on a card that nobody else uses: the total less the context and the libraries."""
    return int(card["total_bytes"]) - int(card["context_bytes"])


def of_sweeper() -> Cards:
    """Those that come with it, read without Hydra."""
    import yaml  # type: ignore[import-untyped]

    folder = CONF / "card"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    return Cards(names, lambda name: yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")))
