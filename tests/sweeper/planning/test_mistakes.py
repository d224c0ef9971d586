"""What each mistake on a command line shows: mistakes.txt has the words that were typed, and below them the message."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sweeper.errors import Mistake, did_you_mean, nearest
from sweeper.plan import Plan
from sweeper.planning import planner, suggestions, synonyms
from sweeper.planning.command_line import read
from sweeper.planning.composer import Composer
from sweeper.planning.hydra_sweeper import composer_of
from sweeper.planning.probes import Probes
from sweeper.planning.schema import CHOICES

HERE = Path(__file__).parent
PLACEHOLDERS = r"key=value|parameters|VALUE|RUN|NAME|FOLDER|SIZE|\bN\b| or | to |[;:,] | with | for |, which"


def _sections() -> dict[str, dict[str, str]]:
    """The mistakes of each section, with their messages."""
    found: dict[str, dict[str, str]] = {}
    for section in (HERE / "mistakes.txt").read_text().split("\n# ")[1:]:
        name, *lines = (line for line in section.splitlines() if line)
        found[name] = dict(zip(lines[::2], (line.strip() for line in lines[1::2]), strict=True))
    return found


SECTIONS = _sections()
TABLE = {line: message for section in SECTIONS.values() for line, message in section.items()}


@functools.cache
def _composer(words: tuple[str, ...]) -> Composer:
    return composer_of(words)


def plan(line: str) -> Plan:
    found = read(shlex.split(line))
    with (
        mock.patch.object(planner, "composer_of", lambda words: _composer(tuple(words))),
        Probes() as probes,
    ):
        return planner.plan_of(found, probes, lambda message: None)


@pytest.fixture(scope="module", autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        yield


def refusal(line: str) -> str:
    try:
        plan(line)
    except Mistake as mistake:
        return " ".join(str(mistake).split())
    return ""


@pytest.mark.parametrize("section", SECTIONS)
def test_a_mistake_shows_in_one_line_what_to_type(section: str) -> None:
    """A section at a time: pytest takes longer for a test of its own than for planning a line."""
    assert {line: refusal(line) for line in SECTIONS[section]} == SECTIONS[section]


def _advised(message: str) -> str | None:
    """The words that a message says to write, if they are complete."""
    advice = message.rpartition("write ")[2] if "write " in message else None
    complete = advice and not re.search(PLACEHOLDERS, advice) and "=" in advice
    return advice.removeprefix("sweeper ") if advice and complete else None


@pytest.mark.slow
def test_what_a_message_says_to_write_is_taken() -> None:
    """With the workload that the line has, and with devices of this machine."""
    advices = set(filter(None, map(_advised, TABLE.values())))
    advices = {
        each for each in advices if not re.search(r"(target|argv|file|path)=|-cd ", each)
    }  # of files that must exist
    assert len(advices) > 90
    beside = (
        "workload=train batch=4",
        "workload=generate",
        "workload=train workload.method=lora",
        "model=mlp",
        "model=gpt2",
    )
    expected = {"devices": "no GPU", "design": "nothing to search", "used_by_others": "no effect on"}
    expected |= dict.fromkeys(("confirm", "edge"), "only with design=frontier")
    for advice in sorted(advices):
        words = advice if re.search("devices=|^estimate", advice) else f"devices=cpu {advice}"
        why = refusal(words)
        if why and re.match(r"workload\.|model\.", advice):
            why = next((found for each in beside if not (found := refusal(f"{words} {each}"))), why)
        assert not why or expected.get(advice.partition("=")[0], "not expected") in why, (advice, why)


def test_a_synonym_is_no_key_and_names_keys_that_there_are() -> None:
    for name, text in synonyms.KEYS.items():
        assert name not in suggestions.ROOTS
        for key in re.findall(r"(?<![\w.])([a-z][\w.]*)=", text):
            root, _, rest = key.partition(".")
            assert root in (*suggestions.ROOTS, "parameters", "bits"), key
            if root in ("workload", "inputs") and rest:
                assert rest in suggestions._keys_of_options(), key


def test_a_synonym_of_a_value_is_one_of_the_values() -> None:
    for key in synonyms.VALUES.keys() & CHOICES.keys():
        for typed, meant in synonyms.VALUES[key].items():
            assert typed not in CHOICES[key]
            assert "=" in meant or meant in (*CHOICES[key], "null"), (typed, meant)


CARDS = suggestions.options("card")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("a100", ["a100-40gb", "a100-80gb"]),
        ("h100", ["h100-80gb", "h100-nvl-94gb", "h100-pcie-80gb"]),
        ("l4", ["l4-24gb"]),
        ("l40", ["l40-48gb"]),
        ("a10", ["a10-24gb"]),
        ("rtx4090", ["rtx-4090"]),
        ("RTX-4090", ["rtx-4090"]),
        ("4090", ["rtx-4090"]),
        ("H100 SXM", ["h100-80gb", "h100-nvl-94gb", "h100-pcie-80gb"]),
        ("NVIDIA GeForce RTX 4090", ["rtx-4090"]),
        ("NVIDIA A100 80GB", ["a100-80gb"]),
        ("tesla-t4", ["t4-16gb"]),
        ("nosuch", []),
        ("", []),
    ],
)
def test_the_nearest_cards_are_those_that_a_name_begins(word: str, near: list[str]) -> None:
    assert suggestions.near_cards(word, CARDS) == near


def test_a_message_never_lists_more_than_a_few_names() -> None:
    many = [f"tiny-{number}" for number in range(48)]
    assert nearest("tiny", many) == many[:5]
    assert did_you_mean("tiny", many) == " (did you mean tiny-0, tiny-1, tiny-2, tiny-3 or tiny-4?)"
    for message in TABLE.values():
        assert len(re.findall(r"tiny-\w+", message)) <= 5
        assert len(message) < 240
