"""The time of `sweeper fit` for an 8B decoder on one card, with one core and with all of them, alternating in one run.

    python benchmarks/fit.py [--model llama-3.1-8b] [--card rtx-4090] [--rounds 1]

Of each: seconds until the first point has ended, seconds of the whole command, and seconds of a core. The ratio of both
is what the other cores bring. A table has to be complete within 60 seconds on two idle cores, and its first figure
within 10.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_SECONDS, MOST_FIRST = 60.0, 10.0


@dataclass(frozen=True)
class Timed:
    first: float  # seconds until the first point has ended
    whole: float
    core: float
    points: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--card", default="rtx-4090")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    every = sorted(os.sched_getaffinity(0))
    timed: dict[int, list[Timed]] = {1: [], len(every): []}
    for _ in range(options.rounds):
        for cores, found in timed.items():
            found.append(fit(options.model, options.card, every[:cores]))
    for cores, found in timed.items():
        first, whole, core = (
            statistics.median(getattr(each, of) for each in found) for of in ("first", "whole", "core")
        )
        name, points = f"{cores} core{'s' if cores > 1 else ''}", found[0].points
        print(f"{name:8} first point {first:5.1f} s, table {whole:6.1f} s, {core:6.1f} s of a core, {points} points")
    alone, together = (statistics.median(each.whole for each in timed[cores]) for cores in (1, len(every)))
    print(f"ratio    {alone / together:.2f}")
    first = statistics.median(each.first for each in timed[len(every)])
    return 0 if together <= MOST_SECONDS and first <= MOST_FIRST else 1


def fit(model: str, card: str, cores: Sequence[int]) -> Timed:
    """One command in a process of its own that may use these cores."""
    with tempfile.TemporaryDirectory() as outputs:
        began, before = time.monotonic(), _core_seconds()
        command = subprocess.Popen(
            [sys.executable, "-m", "sweeper", "fit", model, card, f"outputs={outputs}"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        first = None
        while command.poll() is None:
            if first is None and any(Path(outputs).rglob("exit.json")):
                first = time.monotonic() - began
            time.sleep(0.05)
        if command.returncode not in (0, 3) or first is None:
            raise SystemExit(f"sweeper fit {model} {card} ended with {command.returncode}")
        whole = time.monotonic() - began
        return Timed(first, whole, _core_seconds() - before, sum(1 for _ in Path(outputs).rglob("exit.json")))


def _core_seconds() -> float:
    """Of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
