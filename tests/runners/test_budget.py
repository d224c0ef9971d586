"""The limit that an attempt runs under: decided by hand-built attempts, imposed on real processes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import runners.meters
from runners import facts
from runners.budget import Budget
from runners.device import Device, device_named
from runners.meters import cpu
from runners.point import Attempt, Point

MIB, GIB = 2**20, 2**30
ROOT = Path(__file__).parents[2]


def attempt(budget: int | None, device: Device | None = None) -> Attempt:
    return Attempt(point=Point(values={"batch": 1, "budget": budget}), device=device or device_named("cpu"))


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_memory_bytes", lambda: 64 * GIB)


def test_on_cpu_a_budget_is_added_to_what_is_held() -> None:
    assert Budget(attempt(5 * GIB)).decide(held=GIB) == [facts.Budget("data_limit", 5 * GIB)]


def test_on_cpu_an_attempt_without_a_budget_runs_under_a_guard(available: None) -> None:
    reserve = cpu.guard_reserve_bytes(64 * GIB)
    assert Budget(attempt(None)).decide(held=GIB) == [facts.Budget("guard", 64 * GIB - reserve)]


def test_less_than_the_reserve_leaves_a_guard_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_memory_bytes", lambda: MIB)
    assert Budget(attempt(None)).decide(held=GIB) == [facts.Budget("guard", 0)]


def test_without_known_memory_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_memory_bytes", lambda: None)
    unknown = Budget(attempt(None))
    assert unknown.decide(held=GIB) == []
    with unknown.lifted():
        pass
    assert Budget(attempt(5 * GIB)).decide(held=None) == []


def test_on_cuda_it_limits_the_allocator_of_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[str, int, int]] = []
    cuda = SimpleNamespace(limit=lambda *limit: limits.append(limit))
    monkeypatch.setitem(sys.modules, "runners.meters.cuda", cuda)  # type: ignore[misc]
    monkeypatch.setattr(runners.meters, "cuda", cuda, raising=False)
    both = device_named("cuda:0+cuda:1")
    assert Budget(attempt(GIB, both)).impose() == [facts.Budget("allocator", GIB)]
    assert limits == [("cuda:0", 0, GIB), ("cuda:1", 1, GIB)]
    assert Budget(attempt(None, both)).impose() == []


# -- real limits -------------------------------------------------------------------------------------------------------

MEASURED = """
import resource
from runners.budget import Budget
from runners.device import device_named
from runners.meters import cpu
from runners.point import Attempt, Point

MIB = 2**20
budget = Budget(Attempt(point=Point(values={"budget": 256 * MIB}), device=device_named("cpu")))


def fits(mib):
    try:
        bytearray(mib * MIB)
    except MemoryError:
        return False
    return True

"""


def run(code: str) -> list[str]:
    command = [sys.executable, "-c", MEASURED + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_memory_above_the_budget_is_refused_until_the_budget_is_lifted() -> None:
    printed = run(
        "print(budget.impose()[0].budget_bytes // MIB)\n"
        "print(fits(128), fits(512))\n"
        "with budget.lifted(): print(fits(512))\n"
        "print(fits(512))\n"
    )
    assert printed == ["256", "True False", "True", "False"]


def test_a_hard_limit_below_the_budget_is_the_budget_that_is_reported() -> None:
    printed = run(
        "held = cpu.status_lines()['VmData']\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (held + 64 * MIB, held + 64 * MIB))\n"
        "print(budget.impose()[0].budget_bytes <= 64 * MIB, fits(128))\n"
    )
    assert printed == ["True False"]


def test_a_decided_limit_can_be_imposed_on_a_process_that_has_just_started() -> None:
    budget = Budget(attempt(256 * MIB))
    budget.decide(held=0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        budget.impose_on(program.pid)
        soft, _ = resource.prlimit(program.pid, resource.RLIMIT_DATA)
        program.communicate()
    assert soft == 256 * MIB
    budget.impose_on(program.pid)  # it has ended already
