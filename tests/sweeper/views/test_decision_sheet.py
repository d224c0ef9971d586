"""The decision sheet: the answer first, and calculated, observed and assumed never in one list."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from sweeper.tables import loading
from sweeper.tables.run_tables import Tables
from sweeper.views.decision_sheet import decision_sheet
from sweeper.views.decision_text import as_text
from tests.sweeper.conftest import MIB, WrittenRun

Written = Callable[..., WrittenRun]


def sheet_of(run: WrittenRun) -> dict[str, Any]:
    Tables(run.folder).write()
    return decision_sheet(run.folder, loading.read(run.folder))


@pytest.fixture
def run(written: Written) -> WrittenRun:
    """Measured and calculated: batch 1 and 2 pass, 4 is refused."""
    run = written({"batch": [1, 2, 4]}, devices=("cpu", "sim:cpu"))
    for batch in (1, 2, 4):
        point = run.ask(batch=batch)
        for device in ("cpu", "sim:cpu"):
            if batch == 4:
                run.is_refused(point, device=device)
            else:
                run.passes(point, (300 + batch) * MIB, device=device)
    return run


def test_the_answer_and_the_choice_are_on_the_first_screen(run: WrittenRun) -> None:
    first = as_text(sheet_of(run), 80).splitlines()[:24]
    assert any("largest that fits:   batch=2" in line for line in first)
    assert any("smallest that fails: batch=4" in line for line in first)
    assert any("choice:              batch=2" in line for line in first)


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_is_never_overrun_but_by_what_is_copied(run: WrittenRun, width: int) -> None:
    text = as_text(sheet_of(run), width)
    shown, _, _ = text.partition("RUN AGAIN")
    assert max(map(len, shown.splitlines())) <= width


def test_a_wide_terminal_has_three_columns_and_a_narrow_one_sections(run: WrittenRun) -> None:
    sheet = sheet_of(run)
    heads = ("CALCULATED", "OBSERVED", "ASSUMED")
    wide = [line for line in as_text(sheet, 160).splitlines() if all(head in line for head in heads)]
    narrow = [line for line in as_text(sheet, 80).splitlines() if line.startswith(heads)]
    assert len(wide) == 1
    assert [line.split()[0] for line in narrow] == list(heads)


def test_a_figure_is_in_the_list_of_its_kind_only(run: WrittenRun) -> None:
    sheet = sheet_of(run)
    assert {load["device"] for load in sheet["observed"]["loads"]} == {"cpu"}
    assert {load["device"] for load in sheet["calculated"]["loads"]} == {"sim:cpu"}
    assert all(isinstance(sentence, str) for sentence in sheet["assumed"])
    assert [(answer["kind"], answer["device"]) for answer in sheet["answer"]] == [
        ("measured", "cpu"),
        ("calculated", "sim:cpu"),
    ]


def test_a_partial_peak_is_marked_where_it_stands(run: WrittenRun) -> None:
    lines = as_text(sheet_of(run)).splitlines()
    resident = [line for line in lines if "peak_resident_bytes" in line]
    assert any("302.00 MiB" in line and "partial" not in line for line in resident)
    assert any("251.00 MiB" in line and "partial" in line for line in resident)


def test_every_key_off_its_default_is_named_once_for_all_points(written: Written) -> None:
    run = written({"batch": [1, 2]})
    for batch in (1, 2):
        point = run.ask(batch=batch, seed=3)
        run.passes(point)
    plan = (run.folder / "plan.jsonl").read_text().splitlines()
    settled = [line.replace('"changed": []', '"changed": [], "settings": {"seed": 3, "batch": 1}') for line in plan]
    (run.folder / "plan.jsonl").write_text("\n".join(settled) + "\n")
    ran = sheet_of(run)["ran"]
    assert ran["settings"] == {"model": "mlp", "workload": "forward", "dtype": "float32", "seed": 3}
    assert ran["varied"] == {"batch": ["1", "2"]}


def test_the_choice_leaves_the_margin(written: Written) -> None:
    run = written({"batch": [1, 2]}, margin={"reserve": 11 * 2**30})
    small, large = run.ask(batch=1), run.ask(batch=2)
    run.passes(small, 900 * MIB)
    run.passes(large, 4 * 2**30)
    sheet = sheet_of(run)
    (answer,) = sheet["answer"]
    assert (answer["fits"]["at"], answer["choice"]["at"]) == ({"batch": 2}, {"batch": 1})
    assert answer["choice"]["point_id"] == small.id
    assert any("margin.reserve" in sentence for sentence in sheet["assumed"])


def test_the_command_that_runs_the_choice_again_names_its_point(run: WrittenRun) -> None:
    (answer, _) = sheet_of(run)["answer"]
    words = shlex.split(answer["choice"]["command"])
    assert words[0] == "sweeper"
    assert {"devices=[cpu]", "model=mlp", "workload=forward", "batch=2", "context=64"} <= set(words)


def test_a_run_in_which_nothing_was_decided_has_a_reason_for_an_answer(written: Written) -> None:
    run = written({"batch": [1]})
    run.raises(run.ask(), "no such layer")
    (answer,) = sheet_of(run)["answer"]
    assert "IndexError: no such layer" in answer["lines"][0]
    assert answer["choice"] is None


def test_many_searches_have_a_line_for_each_card_on_the_first_screen(written: Written) -> None:
    names = "rtx-4090 h100-80gb a100-40gb l4 t4 a10 l40s rtx-3090 v100-16gb"
    cards = tuple(f"sim:{name}" for name in names.split())
    run = written({"batch": [1, 2]}, devices=cards)
    for batch in (1, 2):
        point = run.ask(batch=batch)
        for card in cards:
            run.passes(point, device=card)
    text = as_text(sheet_of(run), 80)
    answer = text[text.index("ANSWER") : text.index("WHAT WAS RUN")]
    assert all(f"  {card} " in answer for card in cards)
    assert len(answer.splitlines()) < 24


def test_an_interval_that_was_searched_is_named_as_varied(written: Written) -> None:
    run = written({})
    dimensions = [{"key": "batch", "interval": [1, 64], "resolution": 2}]
    run.plan(kind="run", format=2, design="frontier", dimensions=dimensions, keys={}, started_at=None)
    run.passes(run.ask(batch=2))
    assert sheet_of(run)["ran"]["varied"] == {"batch": ["interval(1,64) in steps of 2"]}
