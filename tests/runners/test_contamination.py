"""Other processes on a device, under real supervisors, to which an attempt with a device's UUID is one on a GPU.

A stand-in of the driver's library reads the device from a file that the tests and the workloads rewrite.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runners.device
from runners import contamination, processes
from runners.contamination import LONGEST_WAIT, Lane, Reading, Watch
from runners.engines.local import Local
from runners.facts import DeviceUse, Exit
from runners.meters.nvml import Other
from runners.outcome import Outcome, Status, outcome_of
from runners.point import Attempt, AttemptFolder, Point, write_aside
from tests.measuring import MIB, SETTLED, Lab, Measured

UUID = "GPU-00000000-1111-2222-3333-444444444444"
OTHER = 3_999_999  # no process here has that pid
GIB = 2**30

NVML = """\
import json, os, types
HERE = os.path.dirname(__file__)
class NVMLError(Exception): pass
def nvmlInit():
    with open(os.path.join(HERE, "sessions"), "a") as file:
        file.write(f"{os.getpid()}\\n")
def nvmlShutdown(): pass
def _device():
    with open(os.path.join(HERE, "device.json")) as file:
        return json.load(file)
def nvmlDeviceGetHandleByUUID(uuid):
    if uuid != "GPU-00000000-1111-2222-3333-444444444444":
        raise NVMLError(uuid)
    return uuid
def nvmlDeviceGetComputeRunningProcesses(handle):
    found = [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _device()["processes"]]
    with open(os.path.join(HERE, "looks"), "a") as file:
        file.write("|")
    return found
def nvmlDeviceGetGraphicsRunningProcesses(handle): return []
def nvmlDeviceGetMemoryInfo(handle): return types.SimpleNamespace(used=_device()["used"])
def nvmlSystemGetProcessName(pid): return b"/opt/other/bin/trainer --token=secret"
"""
WORKLOADS = """\
import json, os, subprocess, sys
from pathlib import Path

HERE = Path(__file__).parent

def put(used, *processes):
    (HERE / "device.tmp").write_text(json.dumps({"used": used, "processes": processes}))
    os.replace(HERE / "device.tmp", HERE / "device.json")

def until_looked_at(times=2):
    import select
    seen = (HERE / "looks").stat().st_size + times
    while (HERE / "looks").stat().st_size < seen:
        select.select([], [], [], 0.02)

def alone(*, phase, **_):
    with phase("work"):
        put(2**30, (os.getpid(), 2**30))
        until_looked_at()
    put(0)

def visited(*, phase, other, **_):
    with phase("work"):
        put(2**30, (os.getpid(), 2**29), (other, 2**29))
        until_looked_at()
    put(0)

def under_another_pid(*, phase, mine, **_):
    with phase("work"):
        put(2**30, (mine, 2**30))
        until_looked_at()
    put(0)

def with_a_child(*, phase, **_):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with phase("work"):
        put(2**30, (os.getpid(), 2**29), (child.pid, 2**29))
        until_looked_at()
    put(0)

def leaves(*, phase, used, by=(), **_):
    with phase("work"):
        put(used, *by)

def quick(*, phase, **_):
    with phase("work"):
        pass

def with_memory_elsewhere(*, phase, **_):
    code = "import sys; kept = bytearray(64 * 2**20); print(1, flush=True); sys.stdin.read()"
    with phase("work"):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.read(1)
        import select
        select.select([], [], [], 0.6)
    child.stdin.close()
    child.wait()

def who_is_killed_first(*, phase, **_):
    with phase("work"):
        return {"oom_score_adj": int(Path("/proc/self/oom_score_adj").read_text())}
"""


class Gpu(Lab):
    """A lane whose device is a file."""

    def __init__(self, root: Path, lane: str = "gpu", engine: Local | None = None) -> None:
        self.lane = lane
        self.home = root / "home"
        self.home.mkdir()
        (self.home / "pynvml.py").write_text(NVML)
        (self.home / "visits.py").write_text(WORKLOADS)
        (self.home / "looks").touch()
        super().__init__(root / "attempts", self.home)
        self.engine = engine or self.engine  # shared: an engine that is closed ends all processes below this one
        self.put(0)

    def put(self, used: int, *processes: tuple[int, int | None]) -> None:
        write_aside(self.home / "device.json", {"used": used, "processes": processes})

    def start_values(self, values: Any, environ: Any = None, device: str = "cpu", uuid: str | None = UUID) -> Attempt:
        self.number += 1
        attempt = Attempt(
            point=Point(values=values),
            device=runners.device.Device(name=device, uuids=tuple(uuid.split("+")) if uuid else ()),
            number=self.number,
            cwd=str(self.home),
            environ=environ or {"PYTHONPATH": str(self.home)},
            heartbeat=0.1,
        )
        folder = self.folder(attempt)
        folder.create(attempt)
        self.engine.start(attempt, folder, self.lane)
        return attempt

    def begin(self, target: str, params: Any = None, start: str = "warm", **how: Any) -> Attempt:
        workload = {
            "name": "custom",
            "target": target if ":" in target else f"visits:{target}",
            "params": dict(params or {}),
        }
        settled = {**SETTLED, "start": start, "tensors": False}
        return self.start_values({**settled, "model": None, "workload": workload}, **how)

    def measured(self, target: str, params: Any = None, start: str = "warm", **how: Any) -> Measured:
        return self.settle(self.begin(target, params, start, **how))

    @property
    def supervisor(self) -> int:
        return processes.descendants_of(self.engine._lanes[self.lane].process.pid)[0]

    def go_away(self) -> None:
        """Close the supervisor's stdin, as an orchestrator that dies does, and wait until it has ended."""
        if self.lane in self.engine._lanes:
            self.engine._dismiss(self.lane)


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    gpu = Gpu(tmp_path_factory.mktemp("gpu"))
    yield gpu
    gpu.engine.close()


@pytest.fixture
def gpu(lane: Gpu) -> Gpu:
    """A lane that earlier attempts ran in, with an empty device."""
    lane.put(0)
    return lane


@pytest.fixture
def new(lane: Gpu, tmp_path: Path) -> Iterator[Gpu]:
    """A lane with a new supervisor."""
    new = Gpu(tmp_path, "new", lane.engine)
    yield new
    new.go_away()


# -- an attempt, under a real supervisor ------------------------------------------------------------------------------


def test_an_attempt_alone_on_its_device_is_not_contaminated_as_its_processes_show(new: Gpu) -> None:
    measured = new.measured("alone")
    assert measured.outcome.status is Status.OK
    assert measured.outcome.contaminated is False
    assert measured.outcome.contaminated_by is None
    assert measured.outcome.contamination_told_by == "processes"
    assert measured.exit["devices"] == [{"uuid": UUID, "used_bytes_before": 0, "used_bytes_end": 0}]


def test_processes_that_a_workload_starts_are_no_contamination(gpu: Gpu) -> None:
    measured = gpu.measured("with_a_child")
    assert measured.outcome.contaminated is False
    assert measured.exit["leftover_processes"] == 1


def test_a_process_that_comes_while_it_runs_is_named_by_its_program_without_arguments(gpu: Gpu) -> None:
    measured = gpu.measured("visited", {"other": OTHER})
    assert measured.outcome.status is Status.OK
    assert measured.outcome.contaminated is True
    assert measured.outcome.contaminated_by is not None
    assert measured.outcome.contaminated_by.startswith(f"trainer (pid {OTHER}, {2**29} bytes) ")
    assert measured.outcome.contaminated_by.endswith(" s after the start")
    assert "secret" not in (measured.folder.path / "exit.json").read_text()


def test_with_pids_of_another_namespace_only_bytes_are_compared_and_the_outcome_records_it(new: Gpu) -> None:
    measured = new.measured("under_another_pid", {"mine": OTHER})
    assert measured.outcome.contaminated is False
    assert measured.outcome.contamination_told_by == "used_bytes"


def test_an_attempt_waits_for_others_to_leave_and_then_starts(gpu: Gpu) -> None:
    gpu.put(GIB, (OTHER, GIB))
    attempt = gpu.begin("quick")
    assert gpu.wait_for("waiting").detail == f"trainer (pid {OTHER}, {GIB} bytes)"
    gpu.put(0)
    measured = gpu.settle(attempt)
    assert measured.outcome.status is Status.OK
    assert measured.outcome.contaminated is False
    assert 0 < measured.exit["contamination_waited_s"]["before"] < LONGEST_WAIT


def test_an_attempt_cancelled_while_it_waits_for_others_has_not_run(gpu: Gpu) -> None:
    gpu.put(GIB, (OTHER, GIB))
    attempt = gpu.begin("quick")
    gpu.wait_for("waiting")
    gpu.engine.cancel("the person stopped it")
    measured = gpu.settle(attempt)
    assert measured.outcome.status is Status.INTERRUPTED
    assert measured.outcome.contaminated is None
    assert measured.journal == []


def test_a_supervisor_that_waits_for_others_still_ends_with_the_orchestrator(new: Gpu) -> None:
    new.put(GIB, (OTHER, GIB))
    new.begin("quick")
    new.wait_for("waiting")
    began = time.monotonic()
    new.go_away()
    assert time.monotonic() - began < 1


def test_an_attempt_settles_only_after_its_memory_is_freed(gpu: Gpu) -> None:
    attempt = gpu.begin("leaves", {"used": GIB})
    assert gpu.wait_for("waiting").detail == (
        f"memory not freed ({GIB} bytes more than before the start, used by no process that the driver lists)"
    )
    assert gpu.folder(attempt).settled() is None
    gpu.put(0)
    measured = gpu.settle(attempt)
    assert measured.outcome.status is Status.OK
    assert measured.outcome.contaminated is False
    assert measured.exit["contamination_waited_s"]["after"] > 0
    assert measured.exit["duration_s"] < LONGEST_WAIT  # of the attempt, not of the waiting


def test_an_attempt_cancelled_after_its_end_keeps_its_status(gpu: Gpu) -> None:
    attempt = gpu.begin("leaves", {"used": GIB})
    gpu.wait_for("waiting")
    gpu.engine.cancel("the person stopped it")
    measured = gpu.settle(attempt)
    assert measured.outcome.status is Status.OK


def test_an_attempt_whose_orchestrator_ends_while_it_waits_for_memory_settles(new: Gpu) -> None:
    attempt = new.begin("leaves", {"used": GIB})
    new.wait_for("waiting")
    began = time.monotonic()
    new.go_away()
    assert time.monotonic() - began < 1
    exit = new.folder(attempt).settled()
    assert exit is not None
    assert (exit.code, exit.interrupted) == (0, None)


def test_a_few_mib_that_the_driver_keeps_are_no_contamination(gpu: Gpu) -> None:
    measured = gpu.measured("leaves", {"used": 16 * MIB})
    assert measured.outcome.contaminated is False


@pytest.mark.slow
def test_processes_that_stay_as_they_are_are_waited_for_once_and_are_no_contamination(new: Gpu) -> None:
    new.put(GIB, (OTHER, GIB))
    first = new.measured("quick", start="warm")
    assert first.exit["contamination_waited_s"]["before"] >= LONGEST_WAIT
    second = new.measured("quick", start="warm")
    assert second.exit["contamination_waited_s"]["before"] == 0
    for measured in (first, second):
        assert measured.outcome.status is Status.OK
        assert measured.outcome.contaminated is False
        assert measured.outcome.used_before_bytes == GIB


@pytest.mark.slow
def test_memory_that_is_never_freed_is_recorded_with_its_process_and_the_lane_continues(new: Gpu) -> None:
    attempt = new.begin("leaves", {"used": GIB, "by": [[OTHER, GIB - 1]]})
    following = new.settle(attempt)
    assert following.outcome.contaminated is True
    assert following.outcome.contaminated_by == (
        f"memory not freed 10 s after the end ({GIB} bytes more than before the start, "
        f"used by trainer (pid {OTHER}, {GIB - 1} bytes))"
    )
    new.put(GIB)
    assert new.measured("quick").outcome.contaminated is False  # it found it so


def test_an_unavailable_device_is_still_read_before_and_after(gpu: Gpu) -> None:
    attempt = gpu.begin("quick", device="cuda:0")
    measured = gpu.settle(attempt)
    assert measured.outcome.status is Status.UNAVAILABLE
    assert measured.outcome.contaminated is False
    assert measured.exit["devices"] == [{"uuid": UUID, "used_bytes_before": 0, "used_bytes_end": 0}]


@pytest.mark.parametrize(
    "library",
    [
        "raise ImportError('no such library')",
        "def nvmlInit(): raise RuntimeError('half a library')",
        "class NVMLError(Exception): pass",
    ],
)
def test_without_a_working_nvml_contaminated_is_null_and_not_false(new: Gpu, library: str) -> None:
    (new.home / "pynvml.py").write_text(library)
    measured = new.measured("quick")
    assert measured.outcome.status is Status.OK
    assert measured.outcome.contaminated is None
    assert measured.outcome.contamination_told_by is None


def test_a_process_opens_one_session_of_nvml_for_all_its_readings(new: Gpu) -> None:
    for start in ("warm", "warm", "cold"):
        assert new.measured("quick", start=start).outcome.contaminated is False
    looks = (new.home / "looks").stat().st_size
    sessions = (new.home / "sessions").read_text().split()
    assert looks >= 6, "before and after each attempt"
    assert sessions.count(str(new.supervisor)) == 1
    assert len(sessions) == len(set(sessions)), "one for each process"


def test_contamination_is_null_on_a_device_that_the_driver_does_not_know(gpu: Gpu) -> None:
    measured = gpu.measured("quick", uuid=f"{UUID}+GPU-unknown")
    assert measured.outcome.contaminated is None


# -- cpu --------------------------------------------------------------------------------------------------------------


def test_a_cpu_attempt_records_available_memory_and_pressure_at_its_start_and_end(gpu: Gpu) -> None:
    measured = gpu.measured("quick", uuid=None)
    outcome, exit = measured.outcome, measured.exit
    assert outcome.contaminated is None
    assert "devices" not in exit
    for available in (outcome.available_memory_bytes, outcome.available_memory_end_bytes):
        assert available is not None
        assert available > 0
    assert exit["available_memory_bytes_start"] > 0
    if contamination.memory_pressure() is None:
        assert outcome.memory_pressure_start_us is None
        assert outcome.memory_pressure_end_us is None
    else:
        assert outcome.memory_pressure_start_us is not None
        assert outcome.memory_pressure_end_us is not None
        assert outcome.memory_pressure_start_us <= outcome.memory_pressure_end_us
        assert 0 <= exit["memory_pressure_end_avg10_percent"] <= 100


def test_an_attempt_that_never_reached_its_baseline_has_the_memory_available_at_its_start(gpu: Gpu) -> None:
    (gpu.home / "gone.py").write_text("import os; os._exit(3)")
    measured = gpu.measured("gone:run", uuid=None)
    assert measured.outcome.status is Status.CRASHED
    assert measured.outcome.available_memory_bytes == measured.exit["available_memory_bytes_start"]


def test_the_memory_of_a_workloads_own_processes_is_recorded(gpu: Gpu) -> None:
    outcome = gpu.measured("with_memory_elsewhere", uuid=None).outcome
    assert outcome.status is Status.OK
    assert outcome.other_processes == 1
    assert outcome.other_processes_resident_bytes is not None
    assert 64 * MIB <= outcome.other_processes_resident_bytes < 128 * MIB


def test_the_oom_killer_prefers_the_measured_process_to_supervisor_and_orchestrator(gpu: Gpu) -> None:
    def adjusted(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    before = adjusted(os.getpid())
    for start in ("cold", "warm"):
        outcome = gpu.measured("who_is_killed_first", uuid=None, start=start).outcome
        assert outcome.metrics == {"oom_score_adj": 1000}
        assert adjusted(os.getpid()) == adjusted(gpu.supervisor) == before


# -- the watch, driven by hand ----------------------------------------------------------------------------------------


class Device:
    """A device that holds what is put on it."""

    def __init__(self) -> None:
        self.now: Reading | None = Reading((), 0)

    def put(self, used: int | None, *processes: tuple[int, int | None]) -> None:
        self.now = Reading([Other(*process) for process in processes], used)

    def watch(self, lane: Lane | None = None) -> Watch:
        return Watch([UUID], lane or Lane(), lambda _: self.now, lambda pid: f"program-{pid}")


def ours(*pids: int) -> Callable[[], tuple[int, ...]]:
    return lambda: pids


def test_other_processes_are_waited_for_up_to_the_limit() -> None:
    device = Device()
    device.put(5, (7, 5))
    watch = device.watch()
    assert watch.before(100.0) == "program-7 (pid 7, 5 bytes)"
    assert watch.before(100.0 + LONGEST_WAIT - 0.1) is not None
    assert watch.before(100.0 + LONGEST_WAIT) is None


def test_a_process_that_outlasted_a_wait_is_not_waited_for_again_but_another_is() -> None:
    device, lane = Device(), Lane()
    device.put(5, (7, 5))
    first = device.watch(lane)
    first.before(0.0)
    assert first.before(LONGEST_WAIT) is None
    assert device.watch(lane).before(20.0) is None
    device.put(9, (7, 5), (8, 4))
    assert device.watch(lane).before(30.0) is not None


def stayed(device: Device, lane: Lane | None = None) -> Watch:
    """A watch that has waited for what is on the device."""
    watch = device.watch(lane)
    watch.before(0.0)
    watch.before(LONGEST_WAIT)
    return watch


def test_a_process_whose_memory_changes_is_recorded_with_its_highest_bytes_and_its_times() -> None:
    device = Device()
    device.put(GIB, (7, GIB))
    watch = stayed(device)
    device.put(3 * GIB, (7, 2 * GIB), (42, GIB))
    watch.during(1.0, ours(42))
    device.put(2 * GIB, (7, GIB), (42, GIB))
    watch.during(3.0, ours(42))
    assert watch.facts()["contaminated"] == (
        f"program-7 (pid 7, {2 * GIB} bytes) before the start and 1.0 to 3.0 s after the start"
    )


@pytest.mark.parametrize("has_our_pids", [True, False])
@pytest.mark.parametrize("used", [GIB, None], ids=["with bytes", "without bytes"])
def test_a_process_that_stays_and_keeps_its_memory_is_no_contamination(has_our_pids: bool, used: int | None) -> None:
    device = Device()
    device.put(GIB, (7, used))
    watch = stayed(device)
    for moment in (1.0, 2.0):
        device.put(2 * GIB, (7, None if used is None else used + 8 * MIB), *([(42, GIB)] if has_our_pids else []))
        watch.during(moment, ours(42))
    device.put(GIB, (7, used))
    assert watch.after(30.0) is None
    facts = watch.facts()
    assert facts["contaminated"] is False
    assert facts["devices"][0].used_bytes_before == GIB


@pytest.mark.parametrize("at", ["while it runs", "at its end"])
def test_a_process_that_leaves_changes_what_the_attempt_had(at: str) -> None:
    device = Device()
    device.put(GIB, (7, GIB))
    watch = stayed(device)
    if at == "while it runs":
        device.put(GIB, (42, GIB))
        watch.during(1.0, ours(42))
    device.put(0)
    watch.after(30.0)
    assert watch.facts()["contaminated"] == f"program-7 (pid 7, {GIB} bytes) before the start"


def test_a_process_that_leaves_after_the_attempt_has_ended_took_nothing_from_it() -> None:
    device = Device()
    device.put(GIB, (7, GIB))
    watch = stayed(device)
    device.put(2 * GIB, (7, GIB))
    assert watch.after(30.0) is not None
    device.put(0)
    assert watch.after(31.0) is None
    assert watch.facts()["contaminated"] is False


def test_who_belongs_on_a_device_is_not_waited_for() -> None:
    device = Device()
    display = Other(7, 500 * MIB, only_graphics=True)
    device.now = Reading([display], 500 * MIB)
    assert device.watch().before(0.0) is None
    device.now = Reading([Other(9, 30 * MIB)], 30 * MIB)
    mps = Watch([UUID], Lane(), lambda _: device.now, lambda pid: "nvidia-cuda-mps-server")
    assert mps.before(0.0) is None
    device.now = Reading([Other(9, GIB)], GIB)  # with what its clients hold
    mps.during(1.0, ours(42))
    assert mps.facts()["contaminated"] is False
    assert device.watch().before(0.0) is not None, "any other process may be about to leave"


def test_an_own_process_that_ends_during_a_reading_is_no_contamination() -> None:
    device = Device()
    watch = device.watch()
    watch.before(0.0)
    answers = iter([(42, 43), (42,)])
    device.put(8, (42, 4), (43, 4))
    watch.during(1.0, lambda: next(answers))
    watch.during(2.0, ours(42))  # its entry lingers in the driver
    assert watch.facts()["contaminated"] is False


def test_a_pid_namespace_once_known_holds_for_the_lanes_later_attempts() -> None:
    device, lane = Device(), Lane()
    for on_it in (42, 9):
        device.put(0)
        watch = device.watch(lane)
        watch.before(0.0)
        device.put(1, (on_it, 1))
        watch.during(1.0, ours(42))
    assert watch.facts()["contaminated"] == "program-9 (pid 9, 1 bytes) 1.0 to 1.0 s after the start"


def test_an_own_pid_seen_before_the_start_belongs_to_the_host_and_proves_nothing() -> None:
    device, lane = Device(), Lane()
    device.put(5, (42, 5))
    watch = stayed(device, lane)
    device.put(GIB + 4, (42, GIB), (99, 4))
    watch.during(1.0, ours(42))
    assert not lane.has_our_pids
    assert watch.facts()["contaminated"] == (
        f"program-42 (pid 42, {GIB} bytes) before the start and 1.0 to 1.0 s after the start; "
        "others while it ran are not known: the driver does not list the attempt under its own pid"
    )


def test_a_driver_without_bytes_still_names_processes() -> None:
    device, lane = Device(), Lane(has_our_pids=True)
    device.put(None)
    watch = device.watch(lane)
    assert watch.before(0.0) is None
    device.put(None, (9, None))
    watch.during(1.0, ours(42))
    assert watch.after(2.0) is None
    assert watch.facts()["contaminated"] == "program-9 (pid 9, bytes unknown) 1.0 to 1.0 s after the start"


def test_a_driver_that_stops_answering_is_no_contamination() -> None:
    device = Device()
    watch = device.watch()
    watch.before(0.0)
    device.now = None
    watch.during(1.0, ours(42))
    assert watch.after(2.0) is None
    assert watch.facts()["contaminated"] is False
    assert watch.facts()["devices"] == [DeviceUse(UUID, used_bytes_before=0, used_bytes_end=None)]


def test_memory_that_others_free_meanwhile_is_not_waited_for() -> None:
    device = Device()
    device.put(GIB, (7, GIB))
    watch = device.watch()
    watch.before(0.0)
    watch.before(LONGEST_WAIT)
    device.put(0)
    assert watch.after(20.0) is None


# -- outcomes and tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exit", "row"), [("who", (True, "who")), (False, (False, None)), (None, (None, None))])
def test_an_outcome_has_the_contamination_and_its_source_or_null(exit: Any, row: tuple[Any, Any]) -> None:
    attempt = Attempt(point=Point(values={}), device=runners.device.device_named("cuda:0"))
    outcome: Outcome = outcome_of(attempt, [], Exit(code=1, contaminated=exit))
    assert (outcome.contaminated, outcome.contaminated_by) == row


def test_the_tables_have_what_was_recorded(gpu: Gpu, tmp_path: Path) -> None:
    from sweeper.tables.loading import load

    measured = gpu.measured("visited", {"other": OTHER})
    run = tmp_path / "run"
    moved = AttemptFolder(run / "points" / measured.folder.path.relative_to(gpu.root))
    moved.path.parent.mkdir(parents=True)
    measured.folder.path.rename(moved.path)
    (row,) = load(run).attempts.to_dict("records")
    assert row["contaminated"] is True
    assert row["contaminated_by"] == measured.outcome.contaminated_by
    assert row["contamination_told_by"] == "processes"
    assert row["available_memory_end_bytes"] == measured.exit["available_memory_bytes_end"]
