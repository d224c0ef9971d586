"""Kills the processes of a sweep at random moments while it measures, runs the sweep again, and checks what is left.

    python tests/faults/random_kills.py [--kills 300] [--seed 0]

Each round is a sweep of a few short programs, each with a child in its own session. At a random moment one or two of
its processes are killed, or one is stopped and another killed. Afterwards no process may be left, and the same command
must complete the run: each point with one attempt that counts, nothing settled lost or measured twice. Processes are
recognised by a variable in their environment, so that those which left their session or parent are found. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import command_line  # noqa: E402

MARK = "SWEEPER_RANDOM_KILLS"
POINTS = 5
# Takes some 0.15 s; its child stays until it is ended.
PROGRAM = "echo $1 >> measured; setsid sleep 3600 <&- >&- 2>&- & sleep 0.15"
COMMAND = ["workload=command", f"workload.argv=[sh,-c,'{PROGRAM}',sh,'{{batch}}']", f"batch=range(1,{POINTS + 1})"]
COMMAND += [
    "devices=[cpu]",
    "parallel=true",
    "start=warm",
    "timeout=30",
    "name=run",
    "retry=[lost,killed,crashed,timeout]",
]
ENDS_WITHIN = 5.0  # seconds for every process of a sweep whose orchestrator is gone
LONGEST = 60.0  # seconds of a sweep

ROLES = ORCHESTRATOR, WATCHER, SUPERVISOR, MEASURED = "orchestrator", "watcher", "supervisor", "measured process"
KINDS: list[tuple[str | None, tuple[str, ...]]] = [
    *((None, killed) for number in (1, 2) for killed in itertools.combinations(ROLES, number)),
    *((stopped, (killed,)) for stopped, killed in itertools.permutations(ROLES, 2)),
]


class Round:
    """One sweep, its kill, and the same sweep again."""

    def __init__(self, folder: Path, number: int, stopped: str | None, killed: Sequence[str], chance: random.Random):
        self.folder, self.mark = folder, f"{os.getpid()}-{number}"
        self.stopped, self.killed, self.chance = stopped, killed, chance
        self.found: list[str] = []  # what is wrong
        folder.mkdir()

    @property
    def kind(self) -> str:
        return (f"stop {self.stopped}, " if self.stopped else "") + "kill " + " and ".join(self.killed)

    def run(self) -> bool:
        """Returns False if the sweep ended before its turn to be killed."""
        orchestrator = self._start()
        if not self._await_a_moment(orchestrator):
            self._wait(orchestrator)
            return False
        self._strike(orchestrator)
        ended = self._wait(orchestrator) if ORCHESTRATOR not in self.killed else True
        if not ended:
            self.found.append("the sweep does not end")
            os.kill(orchestrator, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(orchestrator, 0)
        left = self._left_after(ENDS_WITHIN)
        if left:
            self.found.append("processes left")
        settled = self._settled()
        self._again()
        if left:  # what was stopped goes on after the run was resumed
            for pid in left:
                signalled(pid, signal.SIGCONT)
            time.sleep(1.0)
            for pid in self._marked():
                signalled(pid, signal.SIGKILL)
            self._again()
        self._check(settled)
        return True

    def _start(self) -> int:
        """Start the sweep as a fork of this process, which has imported everything."""
        environ = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT)}
        output = str(self.folder / f"output-{len(list(self.folder.glob('output-*')))}")
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setsid()
                request = {"words": COMMAND, "cwd": str(self.folder), "env": environ, "out": output, "err": output}
                command_line.become(request)
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            finally:
                sys.stdout.flush()
                os._exit(code)
        return pid

    def _await_a_moment(self, orchestrator: int) -> bool:
        """Wait until the first attempt has begun, then for a random time within the measuring."""
        until = time.monotonic() + LONGEST
        while not (self.folder / "measured").exists():
            if os.waitid(os.P_PID, orchestrator, os.WEXITED | os.WNOHANG | os.WNOWAIT) or time.monotonic() > until:
                return False
            time.sleep(0.005)
        time.sleep(self.chance.uniform(0.0, 0.25 * POINTS))
        # Between two attempts there is no measured process: wait for the next one, if there is one.
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            if set(self._processes(orchestrator)) >= {*self.killed, *filter(None, [self.stopped])}:
                return True
            time.sleep(0.002)
        return False

    def _processes(self, orchestrator: int) -> dict[str, int]:
        chain = {ORCHESTRATOR: orchestrator}
        pid = orchestrator
        for role in ROLES[1:]:
            pid = next((child for child in children(pid) if b"supervise" in command_of(child)), 0)
            if not pid:
                break
            chain[role] = pid
        return chain

    def _strike(self, orchestrator: int) -> None:
        victims = self._processes(orchestrator)
        if self.stopped and self.stopped in victims:
            signalled(victims[self.stopped], signal.SIGSTOP)
            time.sleep(self.chance.uniform(0, 0.05))
        for each in self.killed:
            if each in victims:
                signalled(victims[each], signal.SIGKILL)
        if self.stopped in (ORCHESTRATOR, SUPERVISOR, WATCHER) and ORCHESTRATOR not in self.killed:
            time.sleep(self.chance.uniform(0, 1))
            signalled(victims[self.stopped], signal.SIGCONT)

    def _wait(self, orchestrator: int) -> bool:
        until = time.monotonic() + LONGEST
        while time.monotonic() < until:
            if os.waitid(os.P_PID, orchestrator, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return True
            time.sleep(0.01)
        return False

    def _again(self) -> None:
        again = self._start()
        if not self._wait(again):
            self.found.append("the sweep that resumes does not end")
            os.kill(again, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(again, 0)[1])
        if code != 0:
            self.found.append(f"the sweep that resumes ends with {code}")

    def _left_after(self, seconds: float) -> list[int]:
        until = time.monotonic() + seconds
        while (left := list(self._marked())) and time.monotonic() < until:
            time.sleep(0.02)
        return left

    def _marked(self) -> Iterator[int]:
        wanted = f"{MARK}={self.mark}\0".encode()
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and wanted in Path("/proc", name, "environ").read_bytes() + b"\0":
                    yield int(name)

    def _settled(self) -> dict[str, str]:
        """The attempts that have settled, each with the text of its exit.json."""
        return {path.parent.name: path.read_text() for path in self.folder.glob("outputs/run/points/*/*/exit.json")}

    def _check(self, settled: dict[str, str]) -> None:
        import pandas as pd

        try:
            points = pd.read_parquet(self.folder / "outputs" / "run" / "points.parquet")
            attempts = pd.read_parquet(self.folder / "outputs" / "run" / "attempts.parquet")
        except (OSError, ValueError) as error:
            self.found.append(f"no tables: {error}")
            return
        if sorted(points["batch"]) != list(range(1, POINTS + 1)) or set(points["status"]) != {"ok"}:
            self.found.append(f"points: {dict(zip(points['batch'], points['status'], strict=True))}")
        if sorted(attempts.query("counts")["batch"]) != list(range(1, POINTS + 1)):
            self.found.append("not one attempt that counts for each point")
        if attempts.query("status == 'ok'")["batch"].duplicated().any():
            self.found.append("measured twice")
        now = self._settled()
        if any(now.get(name) != text for name, text in settled.items()):
            self.found.append("a settled attempt is lost or changed")
        rows = {f"{row.point_id}.{row.device}.{row.attempt}" for row in attempts.itertuples()}
        if set(now) - rows:
            self.found.append("a settled attempt has no row")


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def signalled(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    command_line.import_everything()
    chance = random.Random(options.seed)
    tried: Counter[str] = Counter()
    wrong: dict[str, Counter[str]] = {}
    rounds = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while sum(tried.values()) < options.kills:
            stopped, killed = KINDS[sum(tried.values()) % len(KINDS)]
            each = Round(Path(folder, str(rounds)), rounds, stopped, killed, chance)
            rounds += 1
            if not each.run():
                continue
            tried[each.kind] += 1
            for what in each.found:
                wrong.setdefault(each.kind, Counter())[what] += 1
    for kind, count in tried.items():
        faults = ", ".join(f"{what}: {number}" for what, number in wrong.get(kind, {}).items())
        print(f"{count:4} x {kind:45} {faults or 'nothing wrong'}")
    print(
        f"{sum(tried.values())} kills in {time.monotonic() - began:.0f} s, {rounds - sum(tried.values())} rounds missed"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
