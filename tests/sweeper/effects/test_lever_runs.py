"""What a run with design=levers found, from its rows, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from runners.device import CALCULATED, MEASURED
from sweeper.effects.lever_runs import lever_runs
from sweeper.plan import Dimension
from sweeper.rows import Row
from sweeper.views import levers_text

GIB = 2**30
KEYS = (
    Dimension(key="batch", values=(2, 1)),
    Dimension(key="workload.checkpointing", values=(False, True)),
    Dimension(key="workload.accumulate", values=(1, 3)),
    Dimension(key="workload.method", values=("full", "lora")),
)


def row(
    fits: bool | None, gib: int | None, device: str = "sim:rtx-4090", status: str = "", **at: Any
) -> dict[str, Any]:
    """`gib`: the complete peak. `at`: the values that differ from the run's."""
    seed, batch = at.pop("seed", 0), at.pop("batch", 2)
    workload = {"name": "train", "checkpointing": False, "accumulate": 1, "method": "full", "rank": None} | at
    workload["rank"] = 8 if workload["method"] == "lora" else None
    deciding = "peak_resident_bytes" if device == "cpu" else "peak_allocated_bytes"
    peak = None if gib is None else gib * GIB
    return {
        **{"device": device, "kind": MEASURED if device == "cpu" else CALCULATED, "point_id": "", "model": "llama"},
        **{"workload": "train", "dtype": "bfloat16", "batch": batch, "context": 64, "fits": fits},
        "status": status or {True: "ok", False: "oom", None: "error"}[fits],
        "error_message": None if fits is not None else "no\nsuch thing",
        "config": json.dumps({"batch": batch, "seed": seed, "workload": workload}),
        "unlimited_peak_bytes": peak if fits is False else None,
        deciding: peak if fits else GIB,
    }


def shown(rows: Sequence[Row]) -> str:
    return levers_text.as_text(levers_text.as_json(levers_text.runs_of(rows, KEYS)))


def test_a_run_is_shown_with_each_change_what_it_saves_and_what_was_left_out() -> None:
    rows = [
        row(False, 90),
        row(False, 40, checkpointing=True),
        row(False, 30, checkpointing=True, method="lora"),
        row(True, 20, checkpointing=True, method="lora", batch=1),
        row(False, 35, checkpointing=True, batch=1),
        row(False, 60, method="lora", batch=1),
    ]
    assert shown(rows).splitlines() == [
        "LEVERS, ADDED UP UNTIL IT FITS: sim:rtx-4090  llama  train  bfloat16  batch=2 context=64"
        "  (calculated, not measured)",
        "       as it is                     does not fit  would take 90.00 GiB allocated",
        "  and  workload.checkpointing=true  does not fit  would take 40.00 GiB allocated  -50.00 GiB",
        "  and  workload.method=lora         does not fit  would take 30.00 GiB allocated  -10.00 GiB",
        "  and  batch=1                      fits                     20.00 GiB allocated  -10.00 GiB",
        "  it fits with workload.checkpointing=true workload.method=lora batch=1;"
        " if any one of these goes back, it does not",
        "  left out: workload.accumulate=3: batch=2 cannot be split into 3 equal parts",
    ]  # fmt: skip


def test_a_real_device_that_refuses_has_no_complete_peak() -> None:
    found = shown([row(False, None, "cpu"), row(True, 20, "cpu", checkpointing=True)])
    assert "its complete peak is not known" in found
    assert "it fits with workload.checkpointing=true" in found
    assert "(measured)" in found


def test_a_run_that_was_stopped_is_undecided() -> None:
    stopped = [row(False, 90), row(None, None, checkpointing=True, status="interrupted")]
    for rows in (stopped, stopped[:1]):
        (run,) = lever_runs(rows, KEYS, {})
        assert (run.found.fits, run.found.changes) == (None, {})
        assert "undecided: not every point was run" in shown(rows)


def test_a_run_that_failed_for_another_reason_gets_no_levers() -> None:
    assert "undecided: error: no such thing" in shown([row(None, None)])
    assert "the run itself is undecided, so nothing was added" in shown([row(None, None)])


def test_two_runs_in_one_folder_and_two_devices_are_never_mixed() -> None:
    rows = [row(False, 90), row(True, 30, seed=1), row(True, 10, "cpu"), row(True, 20, seed=0, checkpointing=True)]
    found = [(run.row["device"], run.found.fits, run.found.changes) for run in lever_runs(rows, KEYS, {})]
    assert found == [
        ("sim:rtx-4090", True, {"workload.checkpointing": True}),
        ("sim:rtx-4090", True, {}),
        ("cpu", True, {}),
    ]


def test_without_a_sweep_that_adds_levers_up_there_are_none() -> None:
    assert levers_text.runs_of([row(False, 90)], levers_text.dimensions_of([])) == []
