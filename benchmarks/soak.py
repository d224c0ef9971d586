"""A soak test: many warm attempts that fail at random, while the sweep itself is killed (SIGKILL) at random moments and
resumed by the same command until it is done. No point may be lost, and no process or file may be left.

    python benchmarks/soak.py              # 2,000 points and 20 kills of the sweep
    python benchmarks/soak.py --quick      # 60 points and 3 kills
    python benchmarks/soak.py --points 300 --seed 7

The faults are real: this script writes the workload, which has one fault for each batch. The seed alone decides the
fault of each batch and the moments of the kills. Processes are recognised by a variable in their environment, which
also finds those that left their session or parent. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
MARK = "SWEEPER_SOAK"
TIMEOUT = 5  # seconds; an attempt that does not hang takes tens of milliseconds
GONE_WITHIN = 5.0  # seconds in which all processes of a killed sweep must end
GROWTH = 32 * MIB  # most that the orchestrator's peak may grow from the first sweep to one that recalls all attempts
LOOK_EVERY = 0.05
KNOWN_FILES = {"point.json", "journal.jsonl", "exit.json", "output.log"}

# What a batch does, the number of such batches in a thousand, and the status that such a point must have.
FAULTS: Mapping[str, tuple[int, str]] = {
    "nothing": (530, "ok"),  # and the remainder of rounding
    "raises": (120, "error"),
    "leaves": (90, "crashed"),
    "kills_itself": (90, "killed"),
    "segfaults": (60, "crashed"),
    "out_of_memory": (60, "oom"),
    "leaves_children": (45, "ok"),
    "hangs": (5, "timeout"),
}
WORKLOAD = """\
import json, os, pathlib, signal, subprocess, sys, time
import ctypes

FAULT_OF = json.loads(pathlib.Path(__file__).with_name("faults.json").read_text())

def run(*, batch, phase):
    with phase("work"):
        globals()[FAULT_OF[batch - 1]]()

def nothing():
    pass

def raises():
    raise ValueError("a bug")

def leaves():
    os._exit(0)

def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)

def segfaults():
    ctypes.string_at(0)

def out_of_memory():
    raise MemoryError

def leaves_children():
    for _ in range(2):
        subprocess.Popen(["sleep", "3600"], start_new_session=True)

def hangs():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
"""


@dataclass
class SweepRun:
    """One process of the sweep, from its start to its end or SIGKILL, as observed from outside."""

    measured: int = 0  # attempts that it reported as ended
    code: int | None = None  # None: killed
    peak_bytes: int = 0
    descriptors: list[int] = field(default_factory=list)  # open ones, with its supervisor's, while an attempt runs

    @property
    def descriptor_growth(self) -> int:
        """The growth in open descriptors while an attempt runs, from the first third of the readings to the last.

        Between medians: a reading while an attempt starts or settles has a few more or less.
        """
        third = len(self.descriptors) // 3
        if third < 5:
            return 0
        return statistics.median_high(self.descriptors[-third:]) - statistics.median_high(self.descriptors[:third])


@dataclass(frozen=True)
class Check:
    name: str
    result: str
    passed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--kills", type=int, help="number of kills; by default one for 100 points")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="60 points and 3 kills")
    options = parser.parse_args(arguments)
    points = 60 if options.quick else options.points
    if points < 2 * len(FAULTS):
        parser.error(f"--points {points}: must be at least {2 * len(FAULTS)}, so that every fault occurs")
    kills = options.kills if options.kills is not None else max(3, points // 100)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), points, kills, random.Random(options.seed))
        began = time.perf_counter()
        soak.run()
        seconds = time.perf_counter() - began
        print(f"{points} points, seed {options.seed}, {seconds:.0f} s with all resumed sweeps")
        checks = list(soak.checks())
        for check in checks:
            print(f"  {check.name:<46}{check.result}{'' if check.passed else '  <- wrong'}")
    return 0 if all(check.passed for check in checks) else 1


class Soak:
    def __init__(self, folder: Path, points: int, kills: int, chance: random.Random) -> None:
        self.folder, self.points, self.kills, self.chance = folder, points, kills, chance
        self.faults = schedule(points, chance)
        self.run_folder = folder / "outputs" / "soak"
        self.temporary = folder / "tmp"
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        self.runs: list[SweepRun] = []
        self.slowest_end = 0.0  # seconds until all processes of a killed sweep had ended
        self.survivors: set[int] = set()  # processes that took longer than GONE_WITHIN

    def run(self) -> None:
        self.temporary.mkdir()
        (self.folder / "soaked.py").write_text(WORKLOAD)
        (self.folder / "faults.json").write_text(json.dumps(self.faults))
        while not self.runs or self.runs[-1].code is None:
            self.runs.append(self._run_once(may_be_killed=len(self.runs) < self.kills))
            if self.runs[-1].code is None:
                self._await_processes()
        self._await_processes()

    def _run_once(self, may_be_killed: bool) -> SweepRun:
        """One process of the sweep, killed after a random number of attempts or, one in four, at a random time."""
        attempts = self.chance.randint(1, max(2, 2 * self.points // (self.kills + 1)))
        moment = self.chance.uniform(0, 0.2)
        while_it_starts = self.chance.random() < 0.25
        deadline = time.monotonic() + self.chance.uniform(0.1, 6)
        run = SweepRun()
        output = self.folder / f"output-{len(self.runs)}"
        with output.open("wb") as written, output.open("rb") as read:
            with subprocess.Popen(self._command(), cwd=self.folder, env=self._environ(), stdout=written) as process:
                while process.poll() is None:
                    run.measured += measured_in(read.read())
                    look_at(process.pid, run)
                    due = time.monotonic() >= deadline if while_it_starts else run.measured >= attempts
                    if may_be_killed and due:
                        time.sleep(moment)
                        process.kill()
                        break
                    time.sleep(LOOK_EVERY)
            run.measured += measured_in(read.read())
        run.code = None if process.returncode == -signal.SIGKILL else process.returncode
        return run

    def _command(self) -> list[str]:
        words = ["workload=custom", "workload.target=soaked:run", f"batch=range(1,{self.points + 1})", "devices=[cpu]"]
        return [sys.executable, "-m", "sweeper", *words, "start=warm", f"timeout={TIMEOUT}", "name=soak"]

    def _environ(self) -> dict[str, str]:
        # TMPDIR: files left there are ours, and the lock of the cpu is not shared with other sweeps.
        ours = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), MARK: self.mark}
        return {"PATH": "/usr/bin:/bin", **ours}

    def _await_processes(self) -> None:
        began = time.monotonic()
        left = set(marked(self.mark))
        while left and time.monotonic() < began + GONE_WITHIN:
            time.sleep(LOOK_EVERY)
            left = set(marked(self.mark))
        self.survivors |= left
        self.slowest_end = max(self.slowest_end, time.monotonic() - began)

    # --- checks ---

    def checks(self) -> Iterator[Check]:
        killed = sum(run.code is None for run in self.runs)
        yield Check("sweeps killed and resumed", f"{killed}", killed > 0)
        yield Check(
            "exit code of the last sweep", f"{self.runs[-1].code} (3: some points are undecided)", self._ended_well
        )
        yield from self._tables()
        result = f"{len(self.survivors)} after {GONE_WITHIN:g} s, the last ended within {self.slowest_end:.2f} s"
        yield Check("processes left by a sweep", result, not self.survivors)
        growth = max(run.descriptor_growth for run in self.runs)
        most = max((max(run.descriptors) for run in self.runs if run.descriptors), default=0)
        yield Check("growth of open descriptors", f"{growth}, at most {most} open at once", growth <= 0)
        strays = list(self._strays())
        yield Check("files and folders left", f"{len(strays)} {' '.join(strays[:3])}".rstrip(), not strays)
        yield from self._memory()

    @property
    def _ended_well(self) -> bool:
        return self.runs[-1].code == 3

    def _tables(self) -> Iterator[Check]:
        import sweeper

        tables = sweeper.load(self.run_folder)
        points, attempts = (table[["batch", "status", "attempt"]] for table in (tables.points, tables.attempts))
        once = sorted(points["batch"]) == list(range(1, self.points + 1))
        yield Check("points in points.parquet", f"{len(points)}, {'each once' if once else 'not each once'}", once)
        counts = ", ".join(f"{count} {status}" for status, count in Counter(points["status"]).most_common())
        wrong = [
            (batch, status)
            for batch, status in zip(points["batch"], points["status"], strict=True)
            if status != FAULTS[self.faults[batch - 1]][1]
        ]
        yield Check("  with the status of their fault", f"{len(points) - len(wrong)}: {counts}", not wrong)
        again = attempts.merge(points, on=["batch", "attempt"], how="left", indicator=True, suffixes=("", "_of_point"))
        before: Mapping[str, int] = Counter(again.loc[again["_merge"] == "left_only", "status"])
        result = ", ".join(f"{count} {status}" for status, count in before.items()) or "none"
        right = set(before) <= {"interrupted", "lost"} and len(attempts) == len(points) + sum(before.values())
        yield Check("attempts", f"{len(attempts)}; measured again: {result}", right)

    def _strays(self) -> Iterator[str]:
        """Files that are no locks, no tables and no files of an attempt."""
        for path in self.temporary.rglob("*"):
            if path.is_file() and path.suffix != ".lock":
                yield str(path.relative_to(self.folder))
        for path in self.run_folder.iterdir():
            if path.name.endswith(".tmp"):
                yield path.name
        for path in self.run_folder.glob("points/*/*/*"):
            if path.name not in KNOWN_FILES:
                yield str(path.relative_to(self.run_folder))

    def _memory(self) -> Iterator[Check]:
        """The growth of the orchestrator's peak from its first sweep to later ones, which recall more attempts."""
        peaks = [run.peak_bytes for run in self.runs if run.measured]
        growth = max(peaks) - peaks[0]
        result = f"{peaks[0] / MIB:.1f} MiB first, {peaks[-1] / MIB:.1f} last, {max(peaks) / MIB:.1f} highest"
        yield Check(
            "the orchestrator's resident peak", f"{result} (at most {GROWTH // MIB} more than first)", growth <= GROWTH
        )


def schedule(points: int, chance: random.Random) -> list[str]:
    """The fault of each point in random order, by the shares of FAULTS, with each fault at least once."""
    shares = {name: max(1, points * share // 1000) for name, (share, _) in FAULTS.items() if name != "nothing"}
    faults = [name for name, share in shares.items() for _ in range(share)]
    faults += ["nothing"] * (points - len(faults))
    chance.shuffle(faults)
    return faults


def measured_in(output: bytes) -> int:
    """The number of attempts that the output reports as ended, without recalled ones."""
    lines = output.splitlines()
    return sum(line.startswith(b"cpu  batch=") and b"(measured before)" not in line for line in lines)


def look_at(pid: int, run: SweepRun) -> None:
    """Read the orchestrator's peak and, if an attempt runs, its own and its supervisor's open descriptors.

    An attempt has three of its own, so readings with and without one cannot be compared.
    """
    try:
        run.peak_bytes = max(run.peak_bytes, peak_resident(pid))
        if run.measured:
            watcher = children(pid)[0]
            supervisor = children(watcher)[0]
            measured = children(supervisor)[:1]
            opened = sum(len(os.listdir(f"/proc/{each}/fd")) for each in (pid, supervisor))
            if measured and children(supervisor)[:1] == measured:
                run.descriptors.append(opened)
    except (OSError, IndexError):
        pass  # one of them has just ended


def children(pid: int) -> list[int]:
    """The pids of a process's children, oldest first. Raises OSError if it has ended."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def peak_resident(pid: int) -> int:
    """VmHWM in bytes. Raises OSError if the process has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def marked(mark: str) -> Iterator[int]:
    """Living processes with the variable in their environment, even if their parent has changed."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


if __name__ == "__main__":
    sys.exit(main())
