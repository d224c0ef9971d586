"""Several cards next to each other: their order, the smallest for each setting, and what fits into 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from sweeper import cards
from sweeper.cards_compared import MEMORY, PRICE, SmallestCard, ordered, orders_of, smallest_cards
from sweeper.fit_cells import SETTINGS, Cell, FitDevice, FitTable
from sweeper.views import cards_table, fit_table
from tests import command_line

GIB = 2**30


def device(name: str, gib: float, price: float | None = None) -> FitDevice:
    usable = int(gib * GIB)
    return FitDevice(
        name=f"sim:{name}", kind="calculated", card=name, total_bytes=usable, context_bytes=0, context_range_bytes=None,
        used_by_others_bytes=None, usable_bytes=usable, price_per_hour=price,
    )  # fmt: skip


def cell(name: str, largest: int | None, setting: str = "LoRA", **more: Any) -> Cell:
    """`largest`: the largest batch, 0 if none fits, None if it is not known."""
    fits = None if largest is None else largest > 0
    known: dict[str, Any] = {"fits": fits, "largest_batch": largest or None, "failing_batch": (largest or 0) + 1}
    status = None if largest is None else "ok" if fits else "oom"
    known |= {"status": status, **more}
    return Cell(
        device=f"sim:{name}", kind="calculated", setting=setting, values={}, context=4096, counter="allocated", **known
    )


def table(devices: list[FitDevice], cells: list[Cell]) -> FitTable:
    settings = tuple(dict.fromkeys(each.setting for each in cells))
    return FitTable(
        model="mine", parameters=None, dtype="bfloat16", devices=tuple(devices), settings=settings, contexts=(4096,),
        cells=tuple(cells),
    )  # fmt: skip


DEVICES = [device("large", 80, 3.0), device("small", 12), device("middle", 24, 0.5), device("dear", 24.5, 9.0)]


def test_cards_are_in_the_order_of_their_memory_or_of_their_price() -> None:
    assert [each.card for each in ordered(DEVICES, MEMORY)] == ["small", "middle", "dear", "large"]
    assert [each.card for each in ordered(DEVICES, PRICE)] == ["middle", "large", "dear", "small"]
    assert orders_of(table(DEVICES, [])) == (PRICE, MEMORY)
    assert orders_of(table(DEVICES[:2], [])) == (MEMORY,)


def test_the_smallest_card_is_the_first_on_which_a_setting_fits() -> None:
    cells = [cell("large", 9), cell("small", 0), cell("middle", 2), cell("dear", 2)]
    found = {each.by: each for each in smallest_cards(table(DEVICES, cells))}
    assert (found[MEMORY].device, found[MEMORY].largest_batch) == ("sim:middle", 2)
    cells[2] = cell("middle", 0)
    found = {each.by: each for each in smallest_cards(table(DEVICES, cells))}
    assert (found[MEMORY].device, found[PRICE].device) == ("sim:dear", "sim:large")


def test_a_smaller_card_that_is_undecided_is_named() -> None:
    cells = [cell("large", 9), cell("small", None), cell("middle", 0), cell("dear", 0)]
    smallest = smallest_cards(table(DEVICES, cells))[-1]
    assert smallest == SmallestCard(
        by=MEMORY, setting="LoRA", context=4096, device="sim:large", largest_batch=9, undecided=("sim:small",)
    )
    text = " ".join(cards_table.summary(table(DEVICES, cells)))
    assert "smallest card that takes LoRA at 4,096 tokens is large (80.0 GiB usable), up to batch 9" in text
    assert "smaller and undecided: small" in text


def test_no_card_is_named_where_none_takes_the_setting() -> None:
    cells = [cell("large", 0), cell("small", 0)]
    text = cards_table.summary(table(DEVICES[:2], cells))
    assert text == ["No card here takes LoRA at 4,096 tokens."]


def test_all_cards_with_all_settings_have_a_line_of_80_columns_each() -> None:
    known = cards.of_sweeper()
    devices = [device(name, known[name].usable_bytes / GIB) for name in known]
    cells = [
        cell(name, 1024, setting.name, failing_batch=None)
        for name in known
        for setting in SETTINGS
    ]  # fmt: skip
    lines = cards_table.grid(table(devices, cells))
    assert len(lines) == 2 + len(known)
    assert max(map(len, lines)) <= 80
    assert all(line.count(">=1024") == len(SETTINGS) for line in lines[2:])


def test_the_table_of_several_cards_is_printed_in_each_form() -> None:
    cells = [cell("large", 9), cell("small", 0)]
    both = table(DEVICES[:2], cells)
    text = fit_table.as_text(both)
    assert [line.split() for line in text.splitlines() if line.startswith(("small ", "large "))] == [
        ["small", "12.0", "no"],
        ["large", "80.0", "9"],
    ]
    assert "| small | 12.0 | no |" in fit_table.as_markdown(both)
    assert fit_table.as_json(both)["smallest_cards"][0]["device"] == "sim:large"


def test_a_name_without_its_size_means_the_one_card_that_has_it() -> None:
    known = list(cards.of_sweeper())
    assert cards.card_named("l40s", known) == cards.card_named("L40S", known) == "l40s-48gb"
    assert cards.card_named("rtx4090", known) == cards.card_named("rtx-4090", known) == "rtx-4090"
    assert cards.card_named("v100", known) is None  # of 16 GB and of 32 GB
    assert cards.card_named("h100", known) is None  # also h100-nvl-94gb and h100-pcie-80gb
    assert cards.card_named("rtx-6000", known) is None  # is rtx-6000-ada and an older card


def test_fit_compares_cards_with_a_model_of_the_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nlibrary: torch\nwidth: 4096\n")
    words = ["fit", "mine.yaml", "rtx-4090", "l40s", "workload=forward", "context=4096", "--json", "name=run"]
    done = command_line.run([*words, f"outputs={tmp_path}"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert [each["device"] for each in answer["smallest_cards"]] == ["sim:rtx-4090"]
    small, large = answer["cells"]
    assert small["largest_batch"] < large["largest_batch"]
    points = pd.read_parquet(tmp_path / "run" / "points.parquet").set_index(["device", "batch"])
    for each in (small, large):
        largest = each["largest_batch"]
        assert list(points.fits[each["device"]][[largest, largest + 1]]) == [True, False]
        assert points.peak_allocated_bytes[each["device"], largest] == each["largest_peak_bytes"]
