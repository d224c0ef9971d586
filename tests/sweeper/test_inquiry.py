"""Questions to the measured interpreter whose answer needs a module that hangs, prints, forks or starts processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runners import processes
from runners.point import Point
from sweeper.errors import Mistake
from sweeper.planning.probes import Probes
from sweeper.sweeping.recall import current_fingerprint

ROOT = Path(__file__).parents[2]
# Starts a process in a session of its own and writes the pids of the importing process and of that one.
STARTS = """
import os, subprocess
child = subprocess.Popen(["sleep", "3600"], start_new_session=True, {streams})
with open("pids.new", "w") as file: file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename("pids.new", "pids")
"""
HOLDS_THE_PIPES = STARTS.format(streams="")
QUIET = STARTS.format(streams="stdin=-3, stdout=-3, stderr=-3")
HANGS = "import time\nwhile True: time.sleep(3600)\n"
RUN = "def run(*, batch, context, dtype, device, phase, **params): return {}\n"
IN_A_PACKAGE = Point(values={"workload": {"name": "custom", "target": "package.work:run"}})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wait_until(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not true() and time.monotonic() < until:
        time.sleep(0.005)
    return true()


def started(folder: Path) -> list[int]:
    assert wait_until((folder / "pids").exists)
    return [int(word) for word in (folder / "pids").read_text().split()]


def ended(*pids: int) -> bool:
    return wait_until(lambda: all(processes._state(pid) in (None, "Z") for pid in pids))


@pytest.mark.parametrize("starts", [HOLDS_THE_PIPES, QUIET])
def test_what_a_module_starts_as_it_is_imported_delays_no_answer_and_ends_with_it(here: Path, starts: str) -> None:
    (here / "daemons.py").write_text(starts + RUN)
    began = time.monotonic()
    with Probes() as probes:
        assert probes.signature(sys.executable, "workload.target", "daemons:run").takes("batch")
    assert time.monotonic() - began < 20
    assert all(processes._state(pid) in (None, "Z") for pid in started(here))


def test_a_fork_that_leaves_the_import_of_a_module_gives_no_second_answer(here: Path) -> None:
    (here / "forks.py").write_text("import os\nos.fork()\n" + RUN)
    with Probes() as probes:
        assert probes.signature(sys.executable, "workload.target", "forks:run").takes("batch")
    children = processes.descendants_of(os.getpid())
    assert not [pid for pid in children if b"forks:run" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_module_whose_import_does_not_end_is_named_after_a_while(here: Path, stopped: bool) -> None:
    (here / "hangs.py").write_text(HOLDS_THE_PIPES + HANGS)
    with Probes() as probes:
        probes.foresee([f"python={sys.executable}", "workload.target=hangs:run", "devices=cpu"])
        importing, child = started(here)
        if stopped:
            os.kill(importing, signal.SIGSTOP)
        probes._started[0].inquiry._until = time.monotonic()
        with pytest.raises(Mistake, match=r"^workload.target=hangs:run: hangs was not imported within 120 seconds$"):
            probes.signature(sys.executable, "workload.target", "hangs:run")
    assert all(processes._state(pid) in (None, "Z") for pid in (importing, child))


def test_an_interpreter_of_which_every_process_is_stopped_ends_with_its_question(here: Path) -> None:
    (here / "hangs.py").write_text(QUIET + HANGS)
    with Probes() as probes:
        probes.foresee([f"python={sys.executable}", "workload.target=hangs:run", "devices=cpu"])
        importing, child = started(here)
        os.kill(importing, signal.SIGSTOP)
        os.kill(probes._started[0].inquiry._process.pid, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert all(processes._state(pid) in (None, "Z") for pid in (importing, child))


def test_a_package_that_prints_and_starts_a_process_leaves_the_fingerprint_as_it_is(here: Path) -> None:
    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text("print('hello')\n" + HOLDS_THE_PIPES)
    (here / "package" / "work.py").write_text(RUN)
    found = current_fingerprint(sys.executable, [IN_A_PACKAGE])
    assert None not in found.code.values()
    assert all(processes._state(pid) in (None, "Z") for pid in started(here))


def test_a_package_that_fails_as_its_code_is_looked_for_is_reported_in_one_line(here: Path) -> None:
    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text("raise SystemExit('no licence')\n")
    with pytest.raises(Mistake, match=r"its versions cannot be determined: SystemExit: no licence$"):
        current_fingerprint(sys.executable, [IN_A_PACKAGE])


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
)
@pytest.mark.parametrize("asks", ["a probe", "a fingerprint"])
def test_a_sweep_that_is_stopped_while_it_plans_leaves_no_process(
    here: Path, number: signal.Signals, code: int, asks: str
) -> None:
    (here / "package").mkdir()
    # The probe imports it first, the process of the fingerprint after it.
    again = "" if asks == "a probe" else "import os\nif os.path.exists('imported'):\n"
    lines = HOLDS_THE_PIPES + HANGS
    indented = lines if not again else "".join(f"    {line}\n" for line in lines.splitlines())
    (here / "package" / "__init__.py").write_text(again + indented + "open('imported', 'w').close()\n")
    (here / "package" / "work.py").write_text(RUN)
    words = ["workload=custom", "workload.target=package.work:run", "devices=cpu", "batch=1", "name=planned"]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "sweeper", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with sweep:
        importing, child = started(here)
        began = time.monotonic()
        sweep.send_signal(number)
        # Python ends itself by SIGINT if that arrived within an `exec`, as of a dataclass; a shell shows 130 for both.
        assert sweep.wait(20) in (code, -number)
        assert time.monotonic() - began < 2
        assert ended(importing, child)
        assert sweep.stderr is not None
        assert sweep.stderr.read() == ""
    assert not (here / "outputs" / "planned").exists()
