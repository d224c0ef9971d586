"""Nothing is lost and nothing is left: many warm attempts that end badly at random, while the sweep itself is killed
(SIGKILL) at random moments and resumed by the same command until it is done.

    python benchmarks/soak.py              # 2,000 points, the sweep killed 20 times
    python benchmarks/soak.py --quick      # 60 points, 3 times
    python benchmarks/soak.py --points 300 --seed 7

Every fault is real: the workload is a file that is written here, in which each batch has its own. Which batch has
which, and when the sweep is to be killed, hangs on the seed alone. Processes are told by a variable in their
environment, so that one which left its session or its parent is still found. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
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
TIMEOUT = 5  # seconds; an attempt that does not hang takes some tens of milliseconds
GONE_WITHIN = 5.0  # seconds that everything below a killed sweep may take to end
GROWTH = 32 * MIB  # of the orchestrator's peak, from one that begins to one that has all attempts before it
LOOK_EVERY = 0.05
KNOWN_FILES = {"point.json", "journal.jsonl", "exit.json", "output.log"}

# What a batch does, how many of a thousand do it, and how such a point must end.
FAULTS: Mapping[str, tuple[int, str]] = {
    "nothing": (530, "ok"),  # and what is left over by rounding
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
class Life:
    """One sweep, from its start to its end or its SIGKILL, as it was seen from outside."""

    measured: int = 0  # attempts that it said had ended
    code: int | None = None  # None: killed
    peak_bytes: int = 0
    descriptors: list[int] = field(default_factory=list)  # of it and its supervisor, after its first attempt

    @property
    def descriptors_more(self) -> int:
        """How many more are open later than before: the most of many readings, since an attempt holds some."""
        third = len(self.descriptors) // 3
        # Not the least: one attempt that hangs through the last third would count with its three.
        return max(self.descriptors[-third:]) - max(self.descriptors[:third]) if third >= 5 else 0


@dataclass(frozen=True)
class Found:
    name: str
    told: str
    right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--kills", type=int, help="how often the sweep is killed; by default once in 100 points")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="60 points and 3 kills")
    asked = parser.parse_args(arguments)
    points = 60 if asked.quick else asked.points
    if points < 2 * len(FAULTS):
        parser.error(f"--points {points}: {2 * len(FAULTS)} or more, so that every fault is among them")
    kills = asked.kills if asked.kills is not None else max(3, points // 100)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), points, kills, random.Random(asked.seed))
        began = time.perf_counter()
        soak.run()
        seconds = time.perf_counter() - began
        print(f"{points} points, seed {asked.seed}, {seconds:.0f} s, the resuming in it")
        found = list(soak.found())
        for each in found:
            print(f"  {each.name:<46}{each.told}{'' if each.right else '  <- wrong'}")
    return 0 if all(each.right for each in found) else 1


class Soak:
    def __init__(self, folder: Path, points: int, kills: int, chance: random.Random) -> None:
        self.folder, self.points, self.kills, self.chance = folder, points, kills, chance
        self.faults = schedule(points, chance)
        self.run_folder = folder / "outputs" / "soak"
        self.temporary = folder / "tmp"
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        self.lives: list[Life] = []
        self.slowest_end = 0.0  # seconds until everything below a killed sweep had ended
        self.outlived: set[int] = set()  # processes that took longer than they may

    def run(self) -> None:
        self.temporary.mkdir()
        (self.folder / "soaked.py").write_text(WORKLOAD)
        (self.folder / "faults.json").write_text(json.dumps(self.faults))
        while not self.lives or self.lives[-1].code is None:
            self.lives.append(self._live(may_be_killed=len(self.lives) < self.kills))
            if self.lives[-1].code is None:
                self._await_the_end()
        self._await_the_end()

    def _live(self, may_be_killed: bool) -> Life:
        """One sweep. It is killed after so many attempts and a little, or, one in four, wherever it is by then."""
        attempts = self.chance.randint(1, max(2, 2 * self.points // (self.kills + 1)))
        moment = self.chance.uniform(0, 0.2)
        while_it_starts = self.chance.random() < 0.25
        deadline = time.monotonic() + self.chance.uniform(0.1, 6)
        life = Life()
        output = self.folder / f"output-{len(self.lives)}"
        with output.open("wb") as written, output.open("rb") as read:
            with subprocess.Popen(self._command(), cwd=self.folder, env=self._environ(), stdout=written) as process:
                while process.poll() is None:
                    life.measured += measured_in(read.read())
                    look_at(process.pid, life)
                    due = time.monotonic() >= deadline if while_it_starts else life.measured >= attempts
                    if may_be_killed and due:
                        time.sleep(moment)
                        process.kill()
                        break
                    time.sleep(LOOK_EVERY)
            life.measured += measured_in(read.read())
        life.code = None if process.returncode == -signal.SIGKILL else process.returncode
        return life

    def _command(self) -> list[str]:
        asked = ["workload=custom", "workload.target=soaked:run", f"batch=range(1,{self.points + 1})", "devices=[cpu]"]
        return [sys.executable, "-m", "sweeper", *asked, "start=warm", f"timeout={TIMEOUT}", "name=soak"]

    def _environ(self) -> dict[str, str]:
        # TMPDIR: what is left there is ours, and the lock of the cpu is not that of sweeps beside this one.
        ours = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), MARK: self.mark}
        return {"PATH": "/usr/bin:/bin", **ours}

    def _await_the_end(self) -> None:
        began = time.monotonic()
        left = set(marked(self.mark))
        while left and time.monotonic() < began + GONE_WITHIN:
            time.sleep(LOOK_EVERY)
            left = set(marked(self.mark))
        self.outlived |= left
        self.slowest_end = max(self.slowest_end, time.monotonic() - began)

    # -- what is found afterwards -------------------------------------------------------------------------------------

    def found(self) -> Iterator[Found]:
        killed = sum(life.code is None for life in self.lives)
        yield Found("sweeps killed, and resumed", f"{killed}", killed > 0)
        yield Found("exit code of the last", f"{self.lives[-1].code} (3: some points did not tell)", self._ended_well)
        yield from self._tables()
        told = f"{len(self.outlived)} after {GONE_WITHIN:g} s, the slowest end {self.slowest_end:.2f} s"
        yield Found("processes left by a sweep", told, not self.outlived)
        more = max(life.descriptors_more for life in self.lives)
        most = max((max(life.descriptors) for life in self.lives if life.descriptors), default=0)
        yield Found("descriptors more at the end of a sweep", f"{more}, at most {most} open at once", more <= 0)
        strays = list(self._strays())
        yield Found("files and folders left", f"{len(strays)} {' '.join(strays[:3])}".rstrip(), not strays)
        yield from self._memory()

    @property
    def _ended_well(self) -> bool:
        return self.lives[-1].code == 3

    def _tables(self) -> Iterator[Found]:
        import pandas as pd

        points = pd.read_parquet(self.run_folder / "points.parquet", columns=["batch", "status", "attempt"])
        attempts = pd.read_parquet(self.run_folder / "attempts.parquet", columns=["batch", "status", "attempt"])
        once = sorted(points["batch"]) == list(range(1, self.points + 1))
        yield Found("points in points.parquet", f"{len(points)}, {'each once' if once else 'not each once'}", once)
        counts = ", ".join(f"{count} {status}" for status, count in Counter(points["status"]).most_common())
        wrong = [
            (batch, status)
            for batch, status in zip(points["batch"], points["status"], strict=True)
            if status != FAULTS[self.faults[batch - 1]][1]
        ]
        yield Found("  with the status of their fault", f"{len(points) - len(wrong)}: {counts}", not wrong)
        again = attempts.merge(points, on=["batch", "attempt"], how="left", indicator=True, suffixes=("", "_of_point"))
        before: Mapping[str, int] = Counter(again.loc[again["_merge"] == "left_only", "status"])
        told = ", ".join(f"{count} {status}" for status, count in before.items()) or "none"
        right = set(before) <= {"interrupted", "lost"} and len(attempts) == len(points) + sum(before.values())
        yield Found("attempts", f"{len(attempts)}; measured again: {told}", right)

    def _strays(self) -> Iterator[str]:
        """What is neither a lock, nor a table, nor a file of an attempt."""
        for path in self.temporary.rglob("*"):
            if path.is_file() and path.suffix != ".lock":
                yield str(path.relative_to(self.folder))
        for path in self.run_folder.iterdir():
            if path.name.endswith(".tmp"):
                yield path.name
        for path in self.run_folder.glob("points/*/*/*"):
            if path.name not in KNOWN_FILES:
                yield str(path.relative_to(self.run_folder))

    def _memory(self) -> Iterator[Found]:
        """The orchestrator's peak where it began to measure, beside that of a later one with all of it behind it."""
        peaks = [life.peak_bytes for life in self.lives if life.measured]
        growth = max(peaks) - peaks[0]
        told = f"{peaks[0] / MIB:.1f} MiB the first, {peaks[-1] / MIB:.1f} the last, {max(peaks) / MIB:.1f} the most"
        yield Found("the orchestrator's peak, resident", f"{told} (at most {GROWTH // MIB} more)", growth <= GROWTH)


def schedule(points: int, chance: random.Random) -> list[str]:
    """The fault of each point, in a random order: in the shares of FAULTS, and each of them at least once."""
    shares = {name: max(1, points * share // 1000) for name, (share, _) in FAULTS.items() if name != "nothing"}
    faults = [name for name, share in shares.items() for _ in range(share)]
    faults += ["nothing"] * (points - len(faults))
    chance.shuffle(faults)
    return faults


def measured_in(output: bytes) -> int:
    """Attempts that the lines say have ended, those that are recalled left out."""
    lines = output.splitlines()
    return sum(line.startswith(b"cpu  batch=") and b"(measured before)" not in line for line in lines)


def look_at(pid: int, life: Life) -> None:
    """Read the orchestrator's memory, and what it and its supervisor have open once attempts have ended."""
    try:
        life.peak_bytes = max(life.peak_bytes, peak_resident(pid))
        if life.measured:
            (supervisor, *_) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            life.descriptors.append(sum(len(os.listdir(f"/proc/{each}/fd")) for each in (pid, supervisor)))
    except (OSError, ValueError):
        pass  # it has just ended, or its supervisor has


def peak_resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def marked(mark: str) -> Iterator[int]:
    """Living processes with our variable in their environment, wherever they hang by now."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


if __name__ == "__main__":
    sys.exit(main())
