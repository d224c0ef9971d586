"""Units that are taken: `4k` in numbers of tokens, `5m` in seconds. Everywhere else they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.planning import typed_numbers
from sweeper.planning.overrides import parse
from tests.sweeper.planning.test_planner import plan


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("context=4k", 4096),
        ("context=4K", 4096),
        ("+workload.params.context=4k", "4k"),
        ("workload.new_tokens=1k", 1024),
        ("workload.prefill_chunk=2k", 2048),
        ("workload.evaluation.context=8k", 8192),
        ("resolution.context=1k", 1024),
        ("timeout=90s", 90),
        ("timeout=5m", 300),
        ("timeout=5min", 300),
        ("timeout=1h", 3600),
        ("timeout=1.5h", 5400),
        ("timeout=300", 300),
        ("heartbeat=200ms", 0.2),
        ("heartbeat=1s", 1),
        ("name=4k", "4k"),
        ("env.SIZE=4k", "4k"),
        ("context='${oc.env:SIZE}4k'", "${oc.env:SIZE}4k"),
    ],
)
def test_a_unit_with_one_meaning_is_taken(word: str, value: Any) -> None:
    assert list(parse([word]).fixed.values()) == [value]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("context=4k,8k,128k", (4096, 8192, 131072)),
        ("context=512,1k", (512, 1024)),
        ("context='1k, 2k'", (1024, 2048)),
        ("context=range(1k,4k,1k)", (1024, 2048, 3072)),
        ("context=interval(1k,8k)", Interval(1024, 8192)),
        ("timeout=null,30s,1m", (None, 30, 60)),
    ],
)
def test_units_are_taken_in_lists_ranges_and_intervals(word: str, values: Any) -> None:
    (found,) = parse([word.replace("'", "")]).several.values()
    assert found == values


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("batch=1k", "batch=1000 or batch=1024"),
        ("seed=2K", "seed=2000 or seed=2048"),
        ("context=1.5k", "context=1536"),
        ("context=1m", "context=1048576"),
        ("context=4ki", "context=4096"),
        ("timeout=1h30m", "timeout=5400"),
        ("timeout=5 minutes", "timeout=300"),
        ("timeout=1:30", "timeout=90"),
    ],
)
def test_a_unit_with_two_meanings_is_refused_with_the_numbers(word: str, instead: str) -> None:
    with pytest.raises(Mistake, match=rf"^{word}: must be a .*number.*; write {instead}$"):
        parse([word])


@pytest.mark.parametrize(("typed", "joined"), [("4,096", "4096"), ("16,000", "16000"), ("1,000,000", "1000000")])
def test_a_comma_inside_a_number_is_not_read_as_two_values(typed: str, joined: str) -> None:
    with pytest.raises(Mistake, match=f"^context={typed}: a comma separates values; write context={joined}$"):
        parse([f"context={typed}"])


def test_numbers_that_only_look_like_one_with_a_comma_are_a_list() -> None:
    assert parse(["context=128,256"]).several["context"] == (128, 256)


def test_a_duration_is_the_same_point_as_its_seconds() -> None:
    assert plan("timeout=5m", "context=4k").points == plan("timeout=300", "context=4096").points


EXPERIMENT = """\
# @package _global_
defaults: [override /workload: generate]
context: 4k
timeout: 5m
heartbeat: 200ms
name: 4k
workload: {new_tokens: 1k}
grid: {workload.prefill_chunk: [null, 1k], batch: "1,2"}
"""


def test_units_are_taken_in_experiment_files(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(EXPERIMENT)
    (tmp_path / "experiment" / "listed.yaml").write_text(
        "# @package _global_\npoints: [{context: 1k}, {context: 2k}]\n"
    )
    sweep = plan("-cd", str(tmp_path), "experiment=mine")
    assert sweep.run.name == "4k"
    assert sweep.run.heartbeat == 0.2
    keys = ("context", "timeout", "workload.new_tokens")
    assert {tuple(point[key] for key in keys) for point in sweep.points} == {(4096, 300.0, 1024)}
    assert {point.get("workload.prefill_chunk") for point in sweep.points} == {None, 1024}
    assert [point["context"] for point in plan("-cd", str(tmp_path), "experiment=listed").points] == [1024, 2048]


def test_every_key_in_tokens_or_seconds_takes_its_unit() -> None:
    assert {typed_numbers.in_units(key, "2k") for key in typed_numbers.TOKENS} == {"2048"}
    assert {typed_numbers.in_units(key, "2m") for key in typed_numbers.SECONDS} == {"120"}
    assert {typed_numbers.in_units(key, "2k") for key in ("batch", "seed", "name", "timeout")} == {"2k"}
