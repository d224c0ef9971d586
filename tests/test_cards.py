"""The cards of conf/card, which simulated devices and budgets named after a card use."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

CARDS = {path.stem: path for path in sorted((Path(__file__).resolve().parents[1] / "conf" / "card").glob("*.yaml"))}
KINDS: dict[str, type] = {
    "name": str,
    "vendor": str,
    "architecture": str,
    "total_bytes": int,
    "context_bytes": int,
    "context_range_bytes": list,  # or null: one figure was found, or none
    "has_display": bool,
    "bandwidth_bytes_per_s": int,
    "price_per_hour": type(None),  # no price is assumed
    "sources": dict,
}
SOURCED = {"total_bytes", "context_bytes", "bandwidth_bytes_per_s"}
# What the makers call the cards whose file name has no size, in their GB.
COMMERCIAL = {
    "gtx-1080-ti": 11,
    "rtx-2000-ada": 16,
    "rtx-2080-ti": 11,
    "rtx-3070": 8,
    "rtx-3090": 24,
    "rtx-4000-ada": 20,
    "rtx-4080": 16,
    "rtx-4090": 24,
    "rtx-5090": 32,
    "rtx-6000-ada": 48,
    "rtx-a4000": 16,
    "rtx-a6000": 48,
    "rx-6900-xt": 16,
    "rx-7700-xt": 12,
    "rx-7900-xtx": 24,
    "titan-xp": 12,
}
MIB, GIB = 2**20, 2**30


def described(name: str) -> dict[str, Any]:
    card: dict[str, Any] = yaml.safe_load(CARDS[name].read_text())
    return card


def commercial(name: str) -> int:
    found = re.search(r"-(\d+)gb$", name)
    return int(found[1]) if found else COMMERCIAL[name]


def test_there_are_enough_cards_of_both_vendors() -> None:
    assert len(CARDS) >= 25
    assert {described(name)["vendor"] for name in CARDS} == {"nvidia", "amd"}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_has_every_field_and_no_other(name: str) -> None:
    assert CARDS[name].read_text().startswith("# ")
    card = described(name)
    assert list(card) == list(KINDS)
    assert {key: type(value) for key, value in card.items() if (key, value) != ("context_range_bytes", None)} == {
        key: kind for key, kind in KINDS.items() if key != "context_range_bytes" or card[key] is not None
    }
    assert re.fullmatch(r"sm_\d{2,3}" if card["vendor"] == "nvidia" else r"gfx[0-9a-f]{3,4}", card["architecture"])


@pytest.mark.parametrize("name", CARDS)
def test_the_total_is_what_a_driver_reports_and_not_what_is_sold(name: str) -> None:
    card = described(name)
    assert 0.85 * commercial(name) * GIB < card["total_bytes"] < commercial(name) * GIB


@pytest.mark.parametrize("name", CARDS)
def test_a_context_is_small_compared_with_its_card(name: str) -> None:
    card = described(name)
    assert 100 * MIB <= card["context_bytes"] <= 1024 * MIB
    assert card["context_bytes"] < 0.05 * card["total_bytes"]


@pytest.mark.parametrize("name", CARDS)
def test_a_context_lies_within_what_was_published(name: str) -> None:
    card = described(name)
    if card["context_range_bytes"] is None:
        assert re.search(r"one message|ASSUMED", card["sources"]["context_bytes"])
        return
    least, most = card["context_range_bytes"]
    assert least <= card["context_bytes"] <= most <= 2 * GIB


def test_the_cards_of_v100_and_a100_know_the_contexts_of_eager_loading() -> None:
    for name in ("a100-40gb", "a100-80gb"):
        assert described(name)["context_range_bytes"][1] > 1.7 * GIB
    for name in ("v100-16gb", "v100-32gb"):
        assert described(name)["context_range_bytes"][1] > 0.9 * GIB


def test_the_cards_that_people_have_at_home_or_under_a_desk_may_have_a_display() -> None:
    with_display = {name for name in CARDS if described(name)["has_display"]}
    assert with_display == {name for name in CARDS if name.startswith(("rtx", "gtx", "titan", "rx-"))}


@pytest.mark.parametrize("name", CARDS)
def test_a_bandwidth_is_in_bytes_per_second(name: str) -> None:
    assert 10**11 <= described(name)["bandwidth_bytes_per_s"] <= 10**13


@pytest.mark.parametrize("name", CARDS)
def test_every_figure_names_its_source(name: str) -> None:
    card = described(name)
    sources = card["sources"]
    assert set(sources) == SOURCED | ({"context_range_bytes"} if card["context_range_bytes"] else set())
    for line in sources.values():
        assert line.strip()
        assert "\n" not in line.strip()
        assert re.search(r"https://[^\s/]+\.[^\s/]+/\S", line) or "ASSUMED" in line


def test_cards_of_one_architecture_have_one_context() -> None:
    contexts: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for name in CARDS:
        card = described(name)
        figures = (card["context_bytes"], *(card["context_range_bytes"] or ()))
        sources = (card["sources"]["context_bytes"], card["sources"].get("context_range_bytes"))
        contexts[card["architecture"]].add((*figures, *sources))
    assert [architecture for architecture, found in contexts.items() if len(found) > 1] == []


def test_no_two_files_describe_one_card() -> None:
    names = [(described(name)["name"], described(name)["total_bytes"]) for name in CARDS]
    assert len(set(names)) == len(names)
