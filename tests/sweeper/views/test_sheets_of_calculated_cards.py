"""The texts of a run on a calculated card: what was not measured is not shown as if it were."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import command_line

WORDS = ["model=tiny-llama", "workload=generate", "workload.new_tokens=2", "context=8", "batch=8,2,4", "name=run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calculated")
    card = {"name": "Card", "vendor": "nvidia", "architecture": "sm_90", "total_bytes": 2**31, "context_bytes": 2**29}
    (folder / "mine" / "card").mkdir(parents=True)
    (folder / "mine" / "card" / "tiny.yaml").write_text(json.dumps(card))
    cards = ["devices=[sim:tiny]", "-cd", "mine", "quantize=none,int4", "budget=1000MB"]
    done = command_line.run([*WORDS, *cards], folder)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    (folder / "sweep.txt").write_text(done.stdout)
    return folder


def shown(folder: Path, command: str, *flags: str) -> str:
    done: subprocess.CompletedProcess[str] = command_line.run([command, "outputs/run", *flags], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_swept_key_is_in_the_heading_of_the_values_that_were_decided(folder: Path) -> None:
    assert "generate  float32  quantize=none  " in (folder / "sweep.txt").read_text()


def test_the_estimates_of_a_term_are_in_the_order_of_their_sizes(folder: Path) -> None:
    terms = json.loads(shown(folder, "frontier", "--json"))["calculated"]["estimates"]
    sizes = [term["bytes"] for term in terms if term["term"] == "kv_cache"]
    assert len(sizes) == 3
    assert sizes == sorted(sizes)


def test_a_calculated_card_has_no_backend_of_the_torch_that_traced_it(folder: Path) -> None:
    (line,) = [line for line in shown(folder, "frontier").splitlines() if "allocator_backend calculated" in line]
    assert ", Card, torch " in line
    assert ", backend " not in line


def test_nothing_measured_is_compared_with_nothing(folder: Path) -> None:
    text = shown(folder, "estimate")
    assert "above what was measured" not in text
    assert "budget=1GB" in text
    assert "quantize=int4\n  sim:tiny: unavailable" in text
