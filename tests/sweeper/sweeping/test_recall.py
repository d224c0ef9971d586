"""Which outcomes of earlier attempts are reused for a planned point, and what has to be unchanged for that."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.device import Card, Device
from runners.fingerprint import code_names
from runners.outcome import Outcome, Status
from runners.point import Attempt, Point, canonical, write_aside
from sweeper.errors import Mistake
from sweeper.plan import PlannedPoint
from sweeper.run_folder import RunFolder, open_run
from sweeper.sweeping.recall import Fingerprint, current_fingerprint, difference, recall
from tests.sweeper.sweeping.conftest import CPU, FINGERPRINT, OOM, PASSES, leave, plan_of, raises

POINT = Point(values={"workload": {"name": "forward"}, "batch": 1})
CARD = Card(name="H100", vendor="nvidia", architecture="sm_90", total_bytes=2**36, price_per_hour=2.0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    folder = open_run(str(tmp_path), "run", "slug")
    yield folder
    folder.close()


def attempted(run: RunFolder, last: dict[str, Any] | None, number: int = 1, torch: str = "2.13") -> None:
    attempt = Attempt(point=POINT, device=CPU, number=number, identity={"torch": torch})
    folder = run.attempt_folder(attempt)
    folder.create(attempt)
    if last is not None:
        leave(folder, last)


def recalled(run: RunFolder, nth: int = 1, **keys: Any) -> tuple[int, Status | None]:
    planned = PlannedPoint(point=POINT, nth=nth)
    number, outcome = recall(run, planned, CPU, plan_of(run=keys).run, FINGERPRINT)
    return number, None if outcome is None else outcome.status


def test_a_point_without_attempts_is_measured_first(run: RunFolder) -> None:
    assert recalled(run) == (1, None)


def test_a_settled_attempt_is_recalled(run: RunFolder) -> None:
    attempted(run, PASSES)
    assert recalled(run) == (2, Status.OK)


def test_an_attempt_that_never_settled_is_not_recalled(run: RunFolder) -> None:
    attempted(run, None)
    assert recalled(run) == (1, None), "nothing began"
    attempted(run, None)
    run.attempt_folder(Attempt(point=POINT, device=CPU)).journal.write_text(json.dumps({"t": 1.0, **PASSES}) + "\n")
    assert recalled(run) == (2, None)


@pytest.mark.parametrize(
    "exit",
    [{"lost": True, "reason": "its supervisor died"}, {"code": 74, "signal": None, "last_output": "a full disk"}],
)
def test_an_attempt_that_never_began_or_was_never_recorded_is_measured_again(
    run: RunFolder, exit: dict[str, Any]
) -> None:
    attempt = Attempt(point=POINT, device=CPU, identity={"torch": "2.13"})
    folder = run.attempt_folder(attempt)
    folder.create(attempt)
    write_aside(folder.exit, {"format": 1, **exit})
    assert recalled(run) == (2, None)
    folder.journal.write_text(json.dumps({"t": 1.0, "kind": "baseline", "counters": {}}) + "\n")
    lost = "lost" in exit
    assert recalled(run) == (2, Status.LOST if lost else None), "what began and was lost is an answer"


def test_a_status_in_retry_is_measured_again(run: RunFolder) -> None:
    attempted(run, OOM)
    assert recalled(run) == (2, Status.OOM)
    assert recalled(run, retry=("oom",)) == (2, None)


def test_an_outcome_that_decided_is_recalled_before_one_that_did_not(run: RunFolder) -> None:
    attempted(run, raises("KeyError"))
    attempted(run, PASSES, number=2)
    assert recalled(run) == (3, Status.OK)
    assert recalled(run, nth=2) == (3, None)


def test_each_planned_attempt_recalls_its_own_outcome(run: RunFolder) -> None:
    attempted(run, PASSES)
    attempted(run, OOM, number=2)
    assert [recalled(run, nth) for nth in (1, 2, 3)] == [(3, Status.OK), (3, Status.OOM), (3, None)]


def test_another_fingerprint_is_refused_or_measured_as_a_further_attempt(run: RunFolder) -> None:
    attempted(run, PASSES, torch="2.12")
    with pytest.raises(Mistake, match=r"name=run: torch was 2\.12 when it was measured, and is 2\.13 now; resume=anew"):
        recalled(run)
    assert recalled(run, resume="anew") == (2, None)
    attempted(run, PASSES, number=2)
    assert recalled(run) == (3, Status.OK)


def changed(then: Attempt, now: Fingerprint, device: Device = CPU, code: str | None = None) -> str | None:
    environment = {} if code is None else {"workload_code": code}
    return difference(then, Outcome(status=Status.OK, device=device, environment=environment), now, device)


def test_another_device_behind_the_same_name_is_a_difference() -> None:
    then = Attempt(point=POINT, device=Device(name="cuda:0", uuids=("GPU-1",)))
    now = Device(name="cuda:0", uuids=("GPU-2",))
    found = changed(then, Fingerprint({}, {}), now)
    assert found == "the device's UUID was GPU-1 when it was measured, and is GPU-2 now"


def test_edited_code_is_a_difference_only_if_the_attempt_loaded_it() -> None:
    then = Attempt(point=POINT, device=CPU)
    now = Fingerprint({}, {canonical(code_names(POINT)): "new"})
    assert changed(then, now, code="old") == "the code of forward was old when it was measured, and is new now"
    assert changed(then, now, code="new") is None
    assert changed(then, now) is None


def test_fields_of_a_card_that_do_not_affect_memory_are_not_compared() -> None:
    then = Attempt(point=POINT, device=Device(name="sim:h100", card=CARD))
    cheaper = Device(name="sim:h100", card=replace(CARD, price_per_hour=1.0))
    assert changed(then, Fingerprint({}, {}), cheaper) is None
    smaller = Device(name="sim:h100", card=replace(CARD, total_bytes=2**35))
    assert "the card's total_bytes was" in (changed(then, Fingerprint({}, {}), smaller) or "")


def test_a_variable_that_was_unset_is_reported_as_absent() -> None:
    then = Attempt(point=POINT, device=CPU, identity={"MKL_CBWR": None})
    found = changed(then, Fingerprint({"MKL_CBWR": "AVX2"}, {}))
    assert found == "MKL_CBWR was absent when it was measured, and is AVX2 now"


def test_an_interpreter_without_a_fingerprint_is_refused_with_the_end_of_its_output(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(Mistake, match="its versions cannot be determined: no such luck"):
        current_fingerprint(str(python), [POINT])


def test_the_fingerprint_has_versions_and_the_code_of_each_workload() -> None:
    found = current_fingerprint(sys.executable, [POINT, POINT])
    assert any("torch" in name for name in found.identity)
    assert list(found.code) == [canonical(["forward"])]
