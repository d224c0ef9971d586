"""`list`: what each run measured, when and how it ended, from a small part of what the run has on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runners import locks
from sweeper import cli
from sweeper.errors import Mistake
from sweeper.tables.overview import Dimensioned, RunOverview, overview, runs_in
from sweeper.tables.run_tables import Tables
from sweeper.views import run_list
from tests import command_line
from tests.sweeper.conftest import WrittenRun

Written = Callable[..., WrittenRun]


def finished(written: Written, name: str = "bill", batches: tuple[int, ...] = (1, 2)) -> WrittenRun:
    run = written({"batch": list(batches)}, name=name)
    for batch in batches:
        run.passes(run.ask(batch=batch))
    Tables(run.folder).write()
    return run


def read_by_this_process() -> int:
    """Bytes that this process has read so far, from the disk or from what the kernel keeps of it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_a_run_is_listed_with_what_it_measured(written: Written) -> None:
    found = overview(finished(written).folder)
    assert (found.name, found.models, found.workloads, found.devices) == ("bill", ["mlp"], ["forward"], ["cpu"])
    assert [(each.key, each.count, each.values) for each in found.dimensions] == [("batch", 2, ["1", "2"])]
    assert found.points == {"measured": {"ok": 2}}


def test_two_runs_that_differ_in_one_setting_are_listed_with_it(written: Written) -> None:
    run = finished(written)
    plan = run.folder / "plan.jsonl"
    command = ["name=bill", "model=mlp", "batch=1,2", "budget=200MiB", "-cd", "mine"]
    plan.write_text(
        plan.read_text().replace('"design": "grid"', f'"design": "grid", "command": {json.dumps(command)}', 1)
    )
    assert "mlp forward float32 on cpu batch=1,2 budget=200MiB  " in run_list.as_text([overview(run.folder)], "outputs")


LONG = "2026-12-01_14-28-57-tiny-llama-train-checkpointing-{}-budget-6GiB-lora-rank-16"


def listed(name: str, *command: str, **more: Any) -> RunOverview:
    facts = {"models": ["tiny-llama"], "workloads": ["train"], "dtypes": ["float32"], "devices": ["cpu"]}
    batch = Dimensioned(key="batch", count=2, values=["1", "2"])
    given = {"dimensions": [batch], "ended": "finished", "points": {"measured": {"ok": 4}}, **facts, **more}
    return RunOverview(name=name, path=Path("outputs", name), command=["batch=1,2", *command], **given)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_name_is_never_shortened_and_what_was_measured_is_wrapped(width: int) -> None:
    names = [LONG.format("true"), LONG.format("false"), "short"]
    settings = [f"model.{letter * 12}=1" for letter in "abcdef"]
    lines = run_list.as_text([listed(name, *settings) for name in names], "outputs", width).splitlines()
    assert all(line in lines for line in names[:2])
    assert any(line.split()[:1] == ["short"] for line in lines)
    assert all(len(line) <= width for line in lines[:-1] if line not in names)
    assert sum(line.count(settings[-1]) for line in lines) == 3
    assert not any("..." in line for line in lines)


def test_keys_in_which_the_listed_runs_differ_come_first() -> None:
    shared = "model.layers=2"
    on = listed("on", shared, "workload.checkpointing=true")
    text = run_list.as_text([on, listed("off", shared)], "outputs")
    assert "workload.checkpointing=true tiny-llama train float32 on cpu batch=1,2 model.layers=2  " in text
    text = run_list.as_text([on, listed("eager", shared, models=["gpt2"])], "outputs")
    assert "tiny-llama train float32 on cpu workload.checkpointing=true batch=1,2 model.layers=2  " in text
    alone = run_list.as_text([on], "outputs")
    assert "tiny-llama train float32 on cpu batch=1,2 model.layers=2 workload.checkpointing=true  " in alone


def test_a_key_in_which_runs_differ_is_listed_among_many() -> None:
    def of(seeds: Sequence[str]) -> RunOverview:
        swept = [Dimensioned(key=f"model.k{number}", count=2, values=["1", "2"]) for number in range(7)]
        return listed("many", dimensions=[*swept, Dimensioned(key="seed", count=2, values=seeds)])

    text = run_list.as_text([of(["0", "1"]), of(["0", "2"])], "outputs")
    assert "seed=0,2 tiny-llama train float32 on cpu batch=1,2 and 7 other keys" in text


def test_the_newest_run_is_first(written: Written) -> None:
    for seconds, name in ((300, "older"), (100, "oldest"), (500, "newest")):
        plan = finished(written, name).folder / "plan.jsonl"
        os.utime(plan, (seconds, seconds))
    folder = plan.parents[1]
    assert [run.name for run in runs_in(folder)] == ["newest", "older", "oldest"]


def test_measured_and_calculated_points_are_counted_apart(written: Written) -> None:
    run = written({"batch": [1]}, devices=("cpu", "sim:cpu"))
    point = run.ask()
    run.passes(point)
    run.is_refused(point, device="sim:cpu")
    Tables(run.folder).write()
    found = overview(run.folder)
    assert found.points == {"measured": {"ok": 1}, "calculated": {"oom": 1}}
    assert "1 ok measured; 1 oom calculated" in run_list.as_text([found], "outputs")


@pytest.mark.parametrize(
    ("lines", "ended"),
    [
        ([], "broke off"),
        ([{"kind": "ended", "how": "finished", "ended_at": "2026-11-29T13:00:00+00:00"}], "finished"),
        ([{"kind": "ended", "how": "interrupted", "ended_at": None, "why": "SIGINT"}], "interrupted"),
        ([{"kind": "ended", "how": "finished"}, {"kind": "run", "format": 2}], "broke off"),
    ],
)
def test_the_last_line_of_the_plan_tells_how_the_last_sweep_ended(
    written: Written, lines: list[dict[str, object]], ended: str
) -> None:
    run = finished(written)
    plan = run.folder / "plan.jsonl"
    plan.write_text(plan.read_text().replace('"format": 1', '"format": 2'))
    for line in lines:
        run.plan(**line)
    assert overview(run.folder).ended == ended


def test_a_run_of_an_earlier_version_is_judged_by_its_points(written: Written) -> None:
    run = finished(written)
    assert overview(run.folder).ended == "finished"
    run.ask(batch=3)
    Tables(run.folder).write()
    assert overview(run.folder).ended == "broke off"


def test_a_sweep_that_runs_is_listed_as_running(written: Written) -> None:
    run = finished(written)
    with locks.take(run.folder / ".lock"):
        assert overview(run.folder).ended == "running"
    assert overview(run.folder).ended == "finished"


def test_a_run_that_began_on_another_machine_and_has_no_end_may_be_running_there(written: Written) -> None:
    run = finished(written)
    plan = run.folder / "plan.jsonl"
    plan.write_text(plan.read_text().replace('"format": 1', '"format": 2'))
    (run.folder / ".lock").write_text("pid 7 on elsewhere, since 2026-11-29T12:00:00+00:00\n")
    found = overview(run.folder)
    assert found.ended == "unknown"
    assert "began on elsewhere" in str(found.why)


def test_listing_changes_nothing_in_a_run(written: Written) -> None:
    run = finished(written)
    lock = run.folder / ".lock"
    lock.touch(0o666)

    def seen() -> list[tuple[Path, int, int, int]]:
        found = [(path, path.stat()) for path in sorted(run.folder.rglob("*"))]
        return [(path, each.st_mode, each.st_size, each.st_mtime_ns) for path, each in found]

    before = seen()
    overview(run.folder)
    assert seen() == before


def test_a_run_without_a_table_is_listed_without_counts(written: Written) -> None:
    run = written({"batch": [1, 2]})
    run.ask(batch=1)
    found = overview(run.folder)
    assert found.points is None
    assert [(each.key, each.count) for each in found.dimensions] == [("batch", 2)]
    assert "bill" in run_list.as_text([found], "outputs")


def test_a_table_that_is_torn_does_not_hide_the_other_runs(written: Written) -> None:
    folder = finished(written, "whole").folder
    (finished(written, "torn").folder / "points.parquet").write_bytes(b"PAR1")
    found = {run.name: run.points for run in runs_in(folder.parent)}
    assert found == {"whole": {"measured": {"ok": 2}}, "torn": None}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda plan: plan.unlink(), "its plan.jsonl is missing"),
        (lambda plan: (plan.unlink(), plan.mkdir()), "its plan.jsonl is a folder"),
        (lambda plan: plan.write_bytes(b"\0garbage\n"), "no line of its plan.jsonl can be read"),
    ],
)
def test_a_run_that_has_lost_its_plan_is_listed_as_damaged(
    written: Written, spoil: Callable[[Path], object], why: str
) -> None:
    run = finished(written)
    spoil(run.folder / "plan.jsonl")
    (found,) = runs_in(run.folder.parent)
    assert (found.name, found.ended, found.why) == ("bill", "damaged", why)
    assert f"bill: {why}" in run_list.as_text([found], "outputs").splitlines()


def test_a_run_whose_tables_are_damaged_or_missing_is_listed_with_the_command_that_rebuilds_them(
    written: Written,
) -> None:
    run = finished(written)
    for spoil, state in ((lambda file: file.write_bytes(b"PAR1"), "damaged"), (Path.unlink, "missing")):
        spoil(run.folder / "points.parquet")
        found = overview(run.folder)
        text = run_list.as_text([found], "outputs")
        assert (found.points, found.tables) == (None, state)
        assert f"tables {state}" in text.splitlines()[1]
        assert f"sweeper show {run.folder} rebuilds its tables" in text


def test_a_finished_run_with_tables_behind_its_plan_is_not_said_to_go_on(written: Written) -> None:
    run = finished(written)
    run.plan(kind="run", format=2, design="grid", dimensions=[], keys={}, started_at="2026-11-29T13:00:00+00:00")
    run.plan(kind="ended", how="finished", ended_at="2026-11-29T13:01:00+00:00")
    (line,) = (line for line in run_list.as_text([overview(run.folder)], "outputs").splitlines() if line[:4] == "bill")
    assert line.endswith("2 ok, tables behind")


def test_a_run_of_a_newer_version_is_listed_with_that_reason(written: Written) -> None:
    run = finished(written)
    run.plan(kind="run", format=99, design="grid", dimensions=[], keys={}, started_at="2026-11-29T13:00:00+00:00")
    found = overview(run.folder)
    assert found.ended == "unknown"
    assert "a newer version of sweeper wrote this run (format 99" in run_list.as_text([found], "outputs")


def test_a_large_plan_is_not_read_whole(written: Written) -> None:
    small, large = finished(written, "small"), finished(written, "large")
    for batch in range(3, 3000):
        large.ask(batch=batch)
    size = (large.folder / "plan.jsonl").stat().st_size
    assert size > 1_000_000
    before = read_by_this_process()
    overview(small.folder)
    between = read_by_this_process()
    overview(large.folder)
    of_small, of_large = between - before, read_by_this_process() - between
    assert of_large - of_small < size / 5


def test_a_folder_without_runs_and_one_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    assert "no run in outputs" in run_list.as_text(runs_in("outputs"), "outputs")
    with pytest.raises(Mistake, match=r"outputs=outptus: no such folder \(did you mean outputs\?\)"):
        cli.run(["list", "outputs=outptus"])


def test_the_command_lists_runs_within_eighty_columns_and_as_json(written: Written) -> None:
    run = finished(written, "a-name-that-is-rather-long-and-says-what-was-measured-on-which-machine-and-why")
    cwd = run.folder.parents[1]
    shown = command_line.run(["list"], cwd, env={**os.environ, "COLUMNS": "80"})
    lines = shown.stdout.splitlines()
    assert lines[2] == run.folder.name
    assert max(map(len, lines[:5])) <= 80
    assert "mlp forward float32 on cpu batch=1,2" in shown.stdout
    (found,) = json.loads(command_line.run(["list", "outputs=outputs", "--json"], cwd).stdout)
    assert (found["run"], found["ended"], found["points"]) == (run.folder.name, "finished", {"measured": {"ok": 2}})
