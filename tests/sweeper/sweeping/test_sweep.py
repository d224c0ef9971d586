"""The loop over a plan, with an engine that measures nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.device import Card, Device
from runners.outcome import Status
from runners.point import Attempt
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake
from sweeper.plan import Plan, PlannedPoint
from sweeper.plan_lines import DeviceLine, PlannedLine, RunLine, SkippedLine, read_plan
from sweeper.sweeping.recall import Fingerprint
from sweeper.sweeping.sweep import _slug, is_worth_a_process
from sweeper.tables.run_tables import Tables
from tests.sweeper.sweeping.conftest import CPU, OOM, PASSES, plan_of, raises


def ran(engine: Any) -> list[tuple[str, int]]:
    return [(attempt.device.name, attempt.point["batch"]) for attempt in engine.started]


def statuses(folder: Path) -> list[str]:
    return Tables(folder / "outputs" / "run").arrow()["points"]["status"].to_pylist()


def sim(name: str, architecture: str = "sm_90") -> Device:
    card = Card(name=name, vendor="nvidia", architecture=architecture, total_bytes=2**36)
    return Device(name=f"sim:{name}", total_bytes=card.total_bytes, card=card)


# --- what is measured, and in which order -----------------------------------------------------------------------------


def test_every_point_is_measured_once_in_the_order_of_the_design(lab: Any, tmp_path: Path) -> None:
    code, engine = lab.run(plan_of(batch=(4, 1, 2)))
    assert code == 0
    assert ran(engine) == [("cpu", 4), ("cpu", 1), ("cpu", 2)]
    assert statuses(tmp_path) == ["ok"] * 3
    assert engine.calls == ["close"]


def test_a_folder_without_a_name_has_the_settings_that_are_no_defaults_in_safe_letters() -> None:
    settings = {
        "model.width": 64,
        "workload.method": "lora",
        "workload.params.ckpt": "/ckpt/fold_${batch}.pt",
        "workload.target": "a_module_with_a_long_name:and_a_long_function",
        "quantize": "nf4",
        "budget": 40 * 2**20,
        "workload.lr": 0.1,
        "batch": 2,
    }
    plan = plan_of(batch=(2,))
    plan.settler.settings = {plan.settle({}).id: settings}  # type: ignore[misc]
    slug = _slug(plan)
    assert slug == "forward-width-64-method-lora-ckpt-ckpt-fold_-batch-.pt-and-4-more"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", slug)


def test_a_folder_without_a_name_has_no_value_of_a_swept_key() -> None:
    assert _slug(plan_of(workload=({"name": "train"}, {"name": "forward"}))) == "grid"
    assert _slug(plan_of(batch=(1, 2))) == "forward"


def test_the_plan_is_on_disk_before_anything_starts(lab: Any, tmp_path: Path) -> None:
    seen: list[list[Any]] = []

    def look() -> None:
        seen.append(list(read_plan(tmp_path / "outputs" / "run")))

    lab.run(plan_of(batch=(1, 2)), while_waiting=look)
    run, device, *planned = seen[0]
    assert isinstance(run, RunLine)
    assert isinstance(device, DeviceLine)
    assert [(line.order, line.changed) for line in planned if isinstance(line, PlannedLine)] == [
        (0, ()),
        (1, ("batch",)),
    ]


def test_the_cpu_waits_for_every_other_device_unless_parallel_is_set(lab: Any) -> None:
    gpu = Device(name="cuda:0", total_bytes=2**34)
    _, engine = lab.run(plan_of(CPU, gpu, batch=(1, 2)))
    assert ran(engine) == [("cuda:0", 1), ("cuda:0", 2), ("cpu", 1), ("cpu", 2)]
    assert engine.most_running == 1
    _, engine = lab.run(plan_of(CPU, gpu, run={"name": "beside", "parallel": True}, batch=(1, 2)))
    assert engine.most_running == 2


def test_a_measured_device_waits_for_its_calculated_twin(lab: Any) -> None:
    gpu = Device(name="cuda:0", total_bytes=2**34)
    _, engine = lab.run(plan_of(gpu, sim("h100"), batch=(1, 2)))
    assert ran(engine) == [("sim:h100", 1), ("sim:h100", 2), ("cuda:0", 1), ("cuda:0", 2)]


def test_cards_of_one_architecture_share_a_trace_and_wait_for_it(lab: Any) -> None:
    _, engine = lab.run(plan_of(sim("h100"), sim("h200"), batch=(1,)))
    first, second = engine.started
    assert first.allocation_trace == second.allocation_trace
    assert engine.most_running == 1
    _, engine = lab.run(plan_of(sim("h100"), sim("a100", "sm_80"), run={"name": "apart"}, batch=(1,)))
    assert len({attempt.allocation_trace for attempt in engine.started}) == 2


def test_a_calculated_card_uses_every_core_and_answers_in_the_order_of_the_batch(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.sweeping.sweep.calculated_lanes", lambda: 3)
    sent: list[Any] = []

    def design(plan: Plan, *_: Any) -> Any:
        points = [PlannedPoint(point=plan.settle({"batch": batch})) for batch in (1, 2, 3, 4, 5, 3)]
        sent.extend((yield points))

    monkeypatch.setitem(DESIGNS, "grid", design)
    last_first: list[int] = []

    def ends(attempt: Attempt) -> Mapping[str, Any] | None:
        """The attempts under way end in the opposite order: batch 3 before 2, and 2 before 1."""
        batch = int(attempt.point["batch"])
        waits_for = {1: 2, 2: 3}.get(batch)
        if waits_for is not None and waits_for not in last_first:
            return None
        last_first.append(batch)
        return OOM if batch > 3 else PASSES

    _, engine = lab.run(plan_of(sim("h100"), batch=(1,)), ends)
    assert engine.most_running == 3
    assert last_first[:3] == [3, 2, 1]
    assert [each.fits for each in sent] == [True, True, True, None, None, True]
    assert len(engine.started) == 5, "a point that is listed twice is calculated once"


def test_another_process_is_started_only_for_calculations_that_take_longer_than_its_imports() -> None:
    assert not is_worth_a_process(100, [])
    assert not is_worth_a_process(20, [0.05, 0.1])
    assert is_worth_a_process(20, [0.5, 0.6])


def test_an_unavailable_device_has_rows_and_starts_nothing(lab: Any, tmp_path: Path) -> None:
    missing = Device(name="cuda:7", unavailable="there is no cuda:7 here")
    code, engine = lab.run(plan_of(missing, batch=(1, 2)))
    assert (code, engine.started) == (2, [])
    assert statuses(tmp_path) == ["unavailable"] * 2


def test_repeated_warm_attempts_of_a_point_get_another_template(lab: Any) -> None:
    _, engine = lab.run(plan_of(run={"repeat_points": 2}, batch=(1, 2), start=("warm",)))
    assert ran(engine) == [("cpu", 1), ("cpu", 2), ("cpu", 1), ("cpu", 2)]
    assert engine.calls == ["renew cpu", "close"]


def test_a_frontier_skips_what_an_attempt_implies(lab: Any, tmp_path: Path) -> None:
    plan = plan_of(design="frontier", run={"confirm": "none"}, batch=(1, 2, 4, 8))
    code, engine = lab.run(plan, lambda attempt: OOM if attempt.point["batch"] > 2 else PASSES)
    skipped = [line for line in read_plan(tmp_path / "outputs" / "run") if isinstance(line, SkippedLine)]
    assert code == 0
    assert len(engine.started) + len(skipped) == 4
    assert {line.because for line in skipped} <= {attempt.name for attempt in engine.started}


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_an_undecided_point_gives_exit_code_3_and_an_oom_does_not(lab: Any) -> None:
    assert lab.run(plan_of(batch=(1,)), lambda attempt: OOM)[0] == 0
    assert lab.run(plan_of(batch=(2,)), lambda attempt: raises("IndexError"))[0] == 3


def test_a_device_is_given_up_when_its_first_attempts_end_with_the_same_error(lab: Any, tmp_path: Path) -> None:
    plan = plan_of(run={"stop_after_same_error": 2}, batch=(1, 2, 4))
    code, engine = lab.run(plan, lambda attempt: raises("IndexError"))
    assert (code, len(engine.started)) == (3, 2)
    assert statuses(tmp_path) == ["error", "error", "not_run"]


@pytest.mark.parametrize("first", [PASSES, raises("KeyError")])
def test_a_device_is_not_given_up_after_anything_else(lab: Any, first: dict[str, Any]) -> None:
    plan = plan_of(run={"stop_after_same_error": 2}, batch=(1, 2, 4, 8))
    ends: Iterator[dict[str, Any]] = iter([first, *[raises("IndexError")] * 3])
    assert len(lab.run(plan, lambda attempt: next(ends))[1].started) == 4


def test_running_out_of_memory_never_gives_a_device_up(lab: Any) -> None:
    _, engine = lab.run(plan_of(run={"stop_after_same_error": 1}, batch=(1, 2)), lambda attempt: OOM)
    assert len(engine.started) == 2


def test_a_signal_interrupts_what_runs_and_starts_nothing_more(lab: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        if not lab.signals.caught:
            lab.signals.caught.append(signal.SIGINT)

    code, engine = lab.run(plan_of(batch=(1, 2)), lambda attempt: None, while_waiting=interrupt)
    assert code == 128 + signal.SIGINT
    assert len(engine.started) == 1
    assert engine.calls == ["cancel: the sweep was stopped by SIGINT", "close"]


def test_a_second_signal_kills_what_runs(lab: Any) -> None:
    code, engine = lab.run(
        plan_of(batch=(1, 2)),
        lambda attempt: None,
        while_waiting=lambda: lab.signals.caught.extend([signal.SIGTERM, signal.SIGTERM]),
    )
    assert code == 128 + signal.SIGTERM
    assert engine.calls[-2:] == ["kill", "close"]


def test_a_stopped_sweep_ends_with_the_command_that_goes_on(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plan = replace(plan_of(batch=(1, 2)), command=("batch=1,2", "name=other", "devices=[cpu]"))
    lab.run(plan, lambda attempt: None, while_waiting=lambda: lab.signals.caught.append(signal.SIGINT))
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("sweeper: to go on: ")
    assert last.endswith("batch=1,2 'devices=[cpu]' name=run")


def test_a_removed_folder_ends_the_sweep(lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def remove() -> None:
        (tmp_path / "outputs" / "run" / "plan.jsonl").unlink(missing_ok=True)

    code, engine = lab.run(plan_of(batch=(1, 2)), while_waiting=remove)
    assert (code, len(engine.started)) == (3, 1)
    message, continuation = capsys.readouterr().err.splitlines()
    assert "the run's folder was removed" in message
    assert continuation.startswith("sweeper: to go on: ")  # only its plan was: the attempts are there


# --- a run that is continued ------------------------------------------------------------------------------------------


def test_a_continued_run_measures_only_what_is_new(lab: Any, tmp_path: Path) -> None:
    lab.run(plan_of(batch=(1, 2)))
    code, engine = lab.run(plan_of(batch=(1, 2, 4)))
    assert (code, ran(engine)) == (0, [("cpu", 4)])
    planned = [line for line in read_plan(tmp_path / "outputs" / "run") if isinstance(line, PlannedLine)]
    assert len(planned) == 3


def test_another_fingerprint_is_refused_before_anything_is_written(lab: Any, tmp_path: Path) -> None:
    lab.run(plan_of(batch=(1,)))
    plan_file = tmp_path / "outputs" / "run" / "plan.jsonl"
    before = plan_file.read_text()
    with pytest.raises(Mistake, match=r"torch was 2\.13 when it was measured, and is 3\.0 now"):
        lab.run(plan_of(batch=(1, 2)), fingerprint=Fingerprint(identity={"torch": "3.0"}, code={}))
    assert plan_file.read_text() == before


def test_another_way_to_compare_quality_is_refused(lab: Any) -> None:
    comparison = {"reference": {"batch": 1}, "tolerance": 0.1, "better": "higher"}
    lab.run(plan_of(run={"quality": comparison}, batch=(1,)))
    with pytest.raises(Mistake, match="take another name to compare otherwise"):
        lab.run(plan_of(run={"quality": comparison | {"tolerance": 0.2}}, batch=(1,)))


def test_an_attempt_carries_the_fingerprint_and_the_run_keys(lab: Any) -> None:
    _, engine = lab.run(plan_of(run={"heartbeat": 1.5, "trace": "on_failure"}, batch=(1,)))
    attempt: Attempt = engine.started[0]
    assert (attempt.identity, attempt.heartbeat, attempt.trace) == ({"torch": "2.13"}, 1.5, True)
    assert attempt.locks
    _, engine = lab.run(plan_of(replace(CPU), run={"name": "other", "parallel": True}, batch=(1,)))
    assert engine.started[0].locks == ()


def test_an_interrupted_point_is_measured_again(lab: Any, tmp_path: Path) -> None:
    test_a_signal_interrupts_what_runs_and_starts_nothing_more(lab, tmp_path)
    lab.signals.caught.clear()
    code, engine = lab.run(plan_of(batch=(1, 2)))
    assert (code, [attempt.number for attempt in engine.started]) == (0, [2, 1])
    assert statuses(tmp_path) == [Status.OK] * 2
