"""Calculated attempts of one user's program, which begin in copies of a process that has imported it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners import processes
from runners.outcome import Outcome, Status
from tests.measuring import MIB, SETTLED, Lab

CARD = {
    "name": "a card", "vendor": "nvidia", "architecture": "sm_90", "total_bytes": 2**31, "context_bytes": 2**30
}  # fmt: skip
COUNTING = """
import os
import torch
with open("imports", "a") as file:
    print(os.getpid(), torch.cuda.get_device_name() if torch.cuda.is_available() else None, file=file)
"""
TAKES = (
    COUNTING
    + """
taken = []

def take(batch, device):
    taken.append(torch.empty(batch, 2**20, dtype=torch.uint8, device=device))
    return {"taken": len(taken), "bytes": torch.cuda.max_memory_allocated(), "drawn": torch.rand(1).item()}

def retries(batch, device):
    try:
        return take(batch, device)
    except torch.OutOfMemoryError:
        return {**take(1, device), "refused": True}

def hangs(device):
    torch.empty(1, device=device)
    import time
    while True:
        time.sleep(1)

def crashes(device):
    os.abort()
"""
)
HOLDS = (
    COUNTING
    + """
held = torch.empty(2**20, device="cuda") if torch.cuda.is_available() else None

def holds(batch, device):
    return {"bytes": torch.cuda.memory_allocated()}
"""
)
THREAD = (
    COUNTING
    + """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()

def counts(batch):
    torch.empty(batch, device="cuda")
    return {"threads": threading.active_count()}
"""
)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    for name, text in (("takes", TAKES), ("holds", HOLDS), ("thread", THREAD)):
        (tmp_path / f"{name}.py").write_text(text)
    lab = Lab(tmp_path / "attempts", tmp_path)
    yield lab
    lab.engine.close()


def run(lab: Lab, target: str, card: Mapping[str, Any] = CARD, **settled: Any) -> Outcome:
    workload = {"name": "custom", "target": target, "params": {}}
    values = {**SETTLED, "model": None, "workload": workload, **settled}
    return lab.settle(lab.start_values(values, device="sim:card", card=card)).outcome


def imports(lab: Lab) -> list[str]:
    return [line.partition(" ")[2] for line in (lab.cwd / "imports").read_text().splitlines()]


def bytes_taken(outcome: Outcome) -> int:
    return max(phase.peak["allocated"] for phase in outcome.phases)


def test_points_of_one_program_import_its_module_once_within_the_card_and_each_runs_alone(lab: Lab) -> None:
    first, second, third = (run(lab, "takes:take", batch=batch) for batch in (8, 64, 8))
    assert imports(lab) == ["a card"]
    assert [bytes_taken(each) for each in (first, second, third)] == [8 * MIB, 64 * MIB, 8 * MIB]
    assert [each.metrics["taken"] for each in (first, second, third)] == [1, 1, 1]
    assert first.metrics == third.metrics  # its random numbers too
    assert first.environment == third.environment


def test_another_card_imports_the_module_for_itself(lab: Lab) -> None:
    other = {**CARD, "name": "another card"}
    for card in (CARD, other):
        assert run(lab, "takes:take", card).status is Status.OK
    assert imports(lab) == ["a card", "another card"]


def test_a_point_that_begins_in_a_copy_is_followed_again_with_the_cards_refusals(lab: Lab) -> None:
    assert "refused" not in run(lab, "takes:retries", batch=8).metrics
    before = imports(lab)
    refused = run(lab, "takes:retries", batch=2000)
    assert (refused.status, refused.metrics["refused"]) == (Status.OK, True)
    assert imports(lab) == before
    assert run(lab, "takes:take", batch=2000).status is Status.OOM


@pytest.mark.parametrize(("target", "expected"), [("holds:holds", {"bytes": 4 * MIB}), ("thread:counts", None)])
def test_a_module_that_takes_memory_or_starts_threads_is_imported_by_every_point(
    lab: Lab, target: str, expected: dict[str, int] | None
) -> None:
    outcomes = [run(lab, target, batch=batch) for batch in (1, 2)]
    assert len({line.split()[0] for line in (lab.cwd / "imports").read_text().splitlines()}) >= 2
    assert outcomes[0].status is outcomes[1].status is Status.OK
    assert outcomes[0].metrics == outcomes[1].metrics == (expected or {"threads": 2})


def test_the_copy_outlives_an_attempt_that_is_ended_or_crashes(lab: Lab) -> None:
    run(lab, "takes:take")
    copy = lab.left_over()
    assert run(lab, "takes:hangs", timeout=1).status is Status.TIMEOUT
    crashed = run(lab, "takes:crashes")
    assert (crashed.status, crashed.signal) == (Status.CRASHED, signal.SIGABRT)
    assert run(lab, "takes:take").status is Status.OK
    assert lab.left_over() == copy
    assert imports(lab) == ["a card"]


def test_without_its_copy_the_next_point_imports_the_module_again(lab: Lab) -> None:
    run(lab, "takes:take")
    (copy,) = lab.left_over()
    processes.kill(copy)
    assert run(lab, "takes:take").status is Status.OK
    assert len(imports(lab)) == 2


def test_the_copy_ends_with_its_supervisor(lab: Lab) -> None:
    run(lab, "takes:take")
    (copy,) = lab.left_over()
    lab.engine.close()
    assert not os.path.exists(f"/proc/{copy}")
