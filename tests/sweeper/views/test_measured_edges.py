"""The second table of `fit`: what a GPU of the card's kind measured, next to what was calculated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sweeper.fit_cells import Cell, FitDevice, FitTable
from sweeper.views import fit_table, measured_edges

GIB = 2**30
SETTINGS, CONTEXTS = ("LoRA", "full training"), (512, 2048)


def device(name: str, kind: str) -> FitDevice:
    return FitDevice(
        name=name, kind=kind, card="A card", total_bytes=24 * GIB, context_bytes=GIB, context_range_bytes=None,
        used_by_others_bytes=None, usable_bytes=23 * GIB,
    )  # fmt: skip


def cell(name: str, setting: str, context: int, largest: int | None, failing: int | None, **more: Any) -> Cell:
    kind = "measured" if name.startswith("cuda") else "calculated"
    peak = None if largest is None else (largest + 8) * GIB
    return Cell(
        device=name, kind=kind, setting=setting, values={}, context=context, counter="allocated",
        fits=largest is not None, peak_bytes=9 * GIB, largest_batch=largest, largest_peak_bytes=peak,
        failing_batch=failing, **more,
    )  # fmt: skip


@pytest.fixture
def table() -> FitTable:
    return FitTable(
        model="a-model", parameters=7_000_000_000, dtype="bfloat16", settings=SETTINGS, contexts=CONTEXTS,
        devices=(device("sim:a-card", "calculated"), device("cuda:0", "measured")),
        cells=(
            cell("sim:a-card", "LoRA", 512, 9, 10), cell("sim:a-card", "LoRA", 2048, 2, 3),
            cell("sim:a-card", "full training", 512, None, 1), cell("sim:a-card", "full training", 2048, None, 1),
            cell("cuda:0", "LoRA", 512, 8, 9), cell("cuda:0", "LoRA", 2048, 2, 3),
            cell("cuda:0", "full training", 512, None, 1),
            cell("cuda:0", "full training", 2048, None, None, because="the process was killed"),
        ),
    )  # fmt: skip


def test_the_measured_edges_have_a_table_of_their_own_that_names_their_device_and_counter(table: FitTable) -> None:
    assert [line.split() for line in measured_edges.grid(table, table.devices[1])] == [
        ["context", "512", "2,048"],
        ["LoRA", "x8", "x2"],
        ["16.00", "10.00"],
        ["full", "training", "no", "-"],
        [],
    ]
    text = fit_table.as_text(table)
    assert "Measured on cuda:0" in text
    assert text.index("x9") < text.index("Measured on cuda:0")


def test_an_edge_that_was_measured_elsewhere_than_calculated_is_named_and_the_undecided_is_not_compared(
    table: FitTable,
) -> None:
    assert measured_edges.legend(table, table.devices[1])[1:] == [
        "LoRA at 512 tokens: the largest batch is 8 measured, 9 calculated.",
        "3 edges were measured and calculated.",
    ]


def test_markdown_and_csv_never_mix_measured_cells_with_calculated_ones(table: FitTable) -> None:
    calculated, measured = fit_table.as_markdown(table).split("Measured on cuda:0:")
    assert "| 9.00 x9 |" in calculated
    assert "x8" not in calculated
    assert "x8" in measured
    kinds = {line.split(",")[1] for line in fit_table.as_csv(table).splitlines()[1:]}
    assert kinds == {"calculated", "measured"}


def test_cells_in_which_only_fragmentation_ends_the_batches_are_counted_in_a_sentence(table: FitTable) -> None:
    ended = tuple(replace(each, fits_if_expandable=True) for each in table.cells[:4])
    found = replace(table, cells=(*ended, *table.cells[4:]))
    sentence = "In 4 of 8 cells only fragmentation keeps the next larger batch from fitting."
    assert sentence in fit_table.as_text(found, 200)
    assert "only fragmentation" not in fit_table.as_text(table, 200)
