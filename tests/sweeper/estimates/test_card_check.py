"""`estimate parameters=N bits=B`, against figures made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runners.device import Card
from sweeper import cards, cli
from sweeper.errors import Mistake
from sweeper.estimates import card_check
from sweeper.estimates.card_check import CardCheck, check_card
from sweeper.planning.card_request import parse_card_request

ROOT = Path(__file__).resolve().parents[3]
CARD = Card(name="a card", vendor="nvidia", architecture="sm_89", total_bytes=24_500_000_000, context_bytes=500_000_000)


def verdicts(found: CardCheck) -> dict[str, str]:
    return {way.way: way.verdict for way in found.ways}


def test_eight_billion_parameters_at_16_bits_run_on_24_gb_and_train_only_with_an_adapter() -> None:
    found = check_card(8_000_000_000, 16, CARD)
    assert found.usable_bytes == 24_000_000_000
    assert verdicts(found) == {
        "run": "fits to run",
        "train": "does not fit to train",
        "train in float32": "does not fit to train",
        "adapter": "may fit with an adapter",
    }
    of = {way.way: way.bytes for way in found.ways}
    assert (of["run"], of["train"], of["train in float32"]) == (16_000_000_000, 64_000_000_000, 128_000_000_000)


def test_one_byte_can_decide_the_verdict() -> None:
    """With 0 bytes left beyond the weights there is no room for anything else."""
    at, below = (replace(CARD, total_bytes=14_500_000_000 + byte) for byte in (0, 1))
    assert verdicts(check_card(7_000_000_000, 16, at))["run"] == "does not fit to run"
    assert verdicts(check_card(7_000_000_000, 16, below))["run"] == "fits to run"
    assert check_card(7_000_000_000, 16, below).ways[0].left_bytes == 1


def test_a_model_may_train_in_16_bits_and_not_in_float32() -> None:
    found = verdicts(check_card(2_900_000_000, 16, CARD))
    assert (found["train"], found["train in float32"]) == ("may fit to train", "does not fit to train")


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_fewer_bits_have_no_full_training_and_a_reason(bits: int) -> None:
    found = check_card(7_000_000_000, bits, CARD)
    assert list(verdicts(found)) == ["run", "adapter"]
    assert "weights of" in found.not_estimated[0]


def test_an_adapter_has_the_given_rank_on_the_seven_products_of_each_layer() -> None:
    """By hand for a decoder of 32 layers of width 4096 with an mlp of 8/3: (8 + 3 + 8) x rank x width for each."""
    assert card_check.shape(12 * 32 * 4096**2) == (32, 4096)
    for rank in (8, 16):
        way = check_card(12 * 32 * 4096**2, 4, CARD, rank=rank).ways[-1]
        assert way.bytes == 12 * 32 * 4096**2 // 2 + 4 * 4 * (32 * 19 * rank * 4096)
        assert f"rank {rank} in float32 on every linear layer; 32 layers of width 4,096" in way.assumption


def test_the_assumed_adapter_is_within_a_tenth_of_pefts_for_llama_3_1_8b() -> None:
    """41,943,040 at rank 16 on all linear layers: 32 x 16 x (2 x 8192 + 2 x 5120 + 3 x 18432)."""
    peft = 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    way = check_card(8_030_261_248, 16, CARD, rank=16).ways[-1]
    assumed = (way.bytes - 16_060_522_496) // 16
    assert peft == 41_943_040
    assert abs(assumed - peft) < peft / 10


def test_a_reserve_is_added_to_every_use() -> None:
    without, with_reserve = (check_card(7_000_000_000, 16, CARD, reserved=reserved) for reserved in (0, 2**32))
    assert [way.bytes - 2**32 for way in with_reserve.ways] == [way.bytes for way in without.ways]


def test_the_default_card_has_24_gb() -> None:
    card = cards.of_sweeper()[card_check.CARD]
    assert 24 * 10**9 < card.usable_bytes < 25 * 10**9


@pytest.mark.parametrize("typed", ["8000000000", "8e9", "8E9", "0.8e+10", "8.0e9"])
def test_a_number_of_parameters_can_be_written_short(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["estimate", f"parameters={typed}", "bits=16", "--json"])
    assert json.loads(capsys.readouterr().out)["terms"][0]["bytes"] == 16_000_000_000


def test_the_output_names_its_assumptions_and_what_is_not_included(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["estimate", "parameters=8e9", "bits=16", "card=rtx-3090"])
    printed = capsys.readouterr().out
    for said in ("fits to run", "does not fit to train", "may fit with an adapter", "card=rtx-3090", "assumed: LoRA"):
        assert said in printed
    for missing in ("activations", "cache", "fragmentation"):
        assert missing in printed.splitlines()[-1]


def test_the_bare_form_adds_an_assumed_reserve(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["estimate", "parameters=7000000000", "bits=16", "reserve_gib=4"]) == 0
    printed = capsys.readouterr().out
    assert "14,000,000,000 bytes = 14.00 GB = 13.04 GiB" in printed
    assert "18,294,967,296 bytes = 18.29 GB = 17.04 GiB" in printed
    assert "assumed" in printed


def test_the_bare_form_as_json_has_whole_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["estimate", "parameters=300001", "bits=4", "reserve_gib=0.1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {term["term"]: term["bytes"] for term in found["terms"]} == {"weights": 150_001, "reserve": 107_374_183}
    assert found["total_bytes"] == 107_524_184


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("parameters=7e-9 bits=16", "parameters=7e-9"),
        ("parameters=7.25e1 bits=16", "parameters=7.25e1"),
        ("parameters=7e99 bits=16", "parameters=7e99"),
        ("parameters=7e9 bits=16 card=rtx-4091", "did you mean rtx-4090?"),
        ("parameters=7e9 bits=16 rank=0", "rank=0"),
        ("parameters=7.5 bits=16", "parameters=7.5"),
        ("parameters=7 bits=16 card=rtx-4090", "parameters=7: that is 7, and not 7B; write parameters=7e9"),
        ("parameters=1.5 bits=16", "write parameters=1.5e9"),
        ("parameters=99999 bits=16", "must be a whole number, 100000 or more"),
        ("parameters=9e4 bits=16", "must be a whole number, 100000 or more"),
        ("parameters=0 bits=16", "parameters=0"),
        ("parameters=-1 bits=16", "parameters=-1"),
        ("parameters=\u0667 bits=16", "parameters=\u0667"),
        (f"parameters={'9' * 5000} bits=16", "parameters=9"),
        ("parameters=7e9 bits=12", "bits=12"),
        ("parameters=7e9 bits=16.0", "bits=16.0"),
        ("parameters=7e9", "bits is missing"),
        ("bits=16", "parameters is missing"),
        ("parameters=7e9 bits=16 reserve_gib=-1", "reserve_gib=-1"),
        ("parameters=7e9 bits=16 reserve_gib=nan", "reserve_gib=nan"),
        ("parameters=7e9 bits=16 reserve_gib=inf", "reserve_gib=inf"),
        ("parameters=7e9 bits=16 reserve_gib=1e999999999", "reserve_gib=1e999999999"),
        ("parameters=7e9 bits=16 bits=8", "bits is given twice"),
        ("parameters=7e9 bits=16 reserve_gb=4", "did you mean reserve_gib?"),
        ("parameters=7e9 bits=16 model=gpt2", "model=gpt2"),
        ("parameters=7e9 bits", "'bits'"),
        ("card=rtx-4090", "write sweeper estimate parameters=7e9 bits=16 card=rtx-4090"),
        ("parameters=7e9 bits=16 devices=sim:rtx-4090", "write card=rtx-4090"),
        ("parameters=7e9 dtype=bf16", "write bits=16"),
        ("parameters=7e9 quantize=nf4", "write bits=4"),
        ("parameters=7e9 bits=16 reserve=4GiB", "write reserve_gib=4"),
    ],
)
def test_the_bare_form_refuses_a_mistake_in_one_line(typed: str, named: str) -> None:
    with pytest.raises(Mistake) as refused:
        parse_card_request(typed.split())
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_bare_form_needs_neither_torch_nor_hydra() -> None:
    code = (
        "import sys\n"
        "from sweeper.cli import run\n"
        "run(['estimate', 'parameters=7000000000', 'bits=16', 'reserve_gib=4'])\n"
        "sys.exit(bool({'torch', 'hydra', 'omegaconf', 'pandas', 'pyarrow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
