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
    monkeypatch.setattr(cpu, "machine_available_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(cpu, "cgroup_available_bytes", lambda: None)


@pytest.fixture
def inherited(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The soft limits that the process was started with, by resource."""
    limits: dict[int, int] = {}
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits.get(which, infinite), infinite))
    return limits


def test_on_cpu_a_budget_is_added_to_what_is_held(available: None, inherited: dict[int, int]) -> None:
    assert Budget(attempt(5 * GIB)).decide(held=GIB) == [facts.Budget("data_limit", 5 * GIB)]


def test_on_cpu_an_attempt_without_a_budget_runs_under_a_guard(available: None, inherited: dict[int, int]) -> None:
    reserve = cpu.guard_reserve_bytes(64 * GIB)
    assert Budget(attempt(None)).decide(held=GIB) == [facts.Budget("guard", 64 * GIB - reserve)]


def test_less_than_the_reserve_leaves_a_guard_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "machine_available_bytes", lambda: MIB)
    monkeypatch.setattr(cpu, "cgroup_available_bytes", lambda: None)
    assert Budget(attempt(None)).decide(held=GIB) == [facts.Budget("guard", 0)]


def test_every_limit_that_holds_counts_and_the_least_is_the_one_reported(
    available: None, inherited: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(budget: int | None) -> facts.Budget:
        (found,) = Budget(attempt(budget)).decide(held=GIB, address_space=3 * GIB)
        return found

    guard = 64 * GIB - cpu.guard_reserve_bytes(64 * GIB)
    assert limit(100 * GIB) == facts.Budget("guard", guard), "the machine has no 100 GiB"
    inherited[resource.RLIMIT_DATA] = 11 * GIB
    assert limit(20 * GIB) == facts.Budget("inherited_data_limit", 10 * GIB)
    assert limit(5 * GIB) == facts.Budget("data_limit", 5 * GIB)
    inherited[resource.RLIMIT_AS] = 16 * GIB
    assert limit(None) == facts.Budget("inherited_data_limit", 10 * GIB)
    inherited[resource.RLIMIT_AS] = 12 * GIB
    assert limit(None) == facts.Budget("address_limit", 9 * GIB)
    monkeypatch.setattr(cpu, "cgroup_available_bytes", lambda: 4 * GIB)
    assert limit(20 * GIB) == facts.Budget("cgroup", 4 * GIB - 512 * MIB)
    inherited[resource.RLIMIT_AS] = 2 * GIB
    assert limit(20 * GIB) == facts.Budget("address_limit", 0), "it is used up"


def test_without_known_memory_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "machine_available_bytes", lambda: None)
    monkeypatch.setattr(cpu, "cgroup_available_bytes", lambda: None)
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


def test_a_limit_that_the_workload_lowers_is_lifted_as_far_as_it_can_be_and_kept() -> None:
    printed = run(
        "budget.impose()\n"
        "for each in (resource.RLIMIT_DATA, resource.RLIMIT_AS):\n"
        "    for lowered in ((32 * MIB, 8192 * MIB), (8192 * MIB, 8192 * MIB)):\n"
        "        resource.setrlimit(each, lowered)\n"
        "        with budget.lifted(): print(resource.getrlimit(each)[0] // MIB)\n"
        "        print(resource.getrlimit(each) == lowered)\n"
    )
    assert printed == ["8192", "True"] * 4


def test_a_hard_limit_below_the_budget_is_the_budget_that_is_reported() -> None:
    printed = run(
        "held = cpu.status_lines()['VmData']\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (held + 64 * MIB, held + 64 * MIB))\n"
        "print(budget.impose()[0].budget_bytes <= 64 * MIB, fits(128))\n"
    )
    assert printed == ["True False"]


def test_a_soft_limit_of_the_user_is_not_raised() -> None:
    printed = run(
        "held = cpu.status_lines()['VmData']\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (held + 64 * MIB, hard))\n"
        "print(budget.impose()[0].budget_kind, fits(128))\n"
    )
    assert printed == ["inherited_data_limit False"]


def test_a_limit_of_the_address_space_is_reported_with_what_it_leaves() -> None:
    printed = run(
        "held = cpu.status_lines()['VmSize']\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_AS)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (held + 64 * MIB, hard))\n"
        "limit = budget.impose()[0]\n"
        "print(limit.budget_kind, 60 < limit.budget_bytes / MIB <= 64, fits(60), fits(70))\n"
    )
    assert printed == ["address_limit True True False"]


def test_a_decided_limit_can_be_imposed_on_a_process_that_has_just_started() -> None:
    budget = Budget(attempt(256 * MIB))
    budget.decide(held=0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        budget.impose_on(program.pid)
        soft, _ = resource.prlimit(program.pid, resource.RLIMIT_DATA)
        program.communicate()
    assert soft == 256 * MIB
    budget.impose_on(program.pid)  # it has ended already
