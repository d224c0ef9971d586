"""The overhead of a sweep: 50 points of a workload that does nothing, cold and warm, compared with a bare loop that
starts an interpreter and imports torch. The three alternate within one run, since a machine's speed drifts.

    python benchmarks/overhead.py [--points 50] [--rounds 2]

The figures are the wall time of the whole command, with its start, plan and tables, divided by its points. For warm
attempts the time of the measured processes themselves, from fork to exit, is subtracted in a figure of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
NOTHING = "def run(batch=1, **_):\n    pass\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {"bare": [], "cold": [], "warm": [], "overhead": []}
    resident = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "nothing.py").write_text(NOTHING)
        for turn in range(options.rounds):
            seconds["bare"].append(bare_loop(options.points))
            for start in ("cold", "warm"):
                took, peak = sweep(Path(folder), start, options.points, turn)
                seconds[start].append(took)
                if start == "warm":
                    seconds["overhead"].append(took - own_seconds(Path(folder, "outputs", f"{start}-{turn}")))
                resident = max(resident, peak)
    per_point = {name: statistics.median(values) / options.points for name, values in seconds.items()}
    bare, cold, warm, overhead = (per_point[name] for name in ("bare", "cold", "warm", "overhead"))
    print(f"{options.points} points, {options.rounds} rounds, medians of the wall time per point")
    rows = (
        ("a bare loop of python -c 'import torch'", f"{bare * 1000:.1f} ms"),
        ("start=cold", f"{cold * 1000:.1f} ms, {cold / bare:.3f} x the bare loop (at most 1.15)"),
        ("start=warm", f"{warm * 1000:.1f} ms, {overhead * 1000:.1f} ms without the child's own time (at most 80 ms)"),
        ("the orchestrator's peak", f"{resident / MIB:.1f} MiB resident (at most 150)"),
    )
    for name, figure in rows:
        print(f"  {name:<42}{figure}")
    return 0 if cold <= 1.15 * bare and overhead <= 0.080 and resident <= 150 * MIB else 1


def bare_loop(points: int) -> float:
    began = time.perf_counter()
    for _ in range(points):
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def sweep(folder: Path, start: str, points: int, turn: int) -> tuple[float, int]:
    """The seconds of the command, and the peak resident bytes of its own process."""
    command = [sys.executable, "-m", "sweeper", "workload=custom", "workload.target=nothing:run", "devices=[cpu]"]
    command += [f"start={start}", f"name={start}-{turn}", f"batch=range(1,{points + 1})", "parallel=true"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_resident(process.pid))
            time.sleep(0.02)
    took = time.perf_counter() - began
    assert process.returncode == 0, f"{start}: exit code {process.returncode}"
    return took, peak


def own_seconds(run: Path) -> float:
    """The seconds of all measured processes of a run."""
    return sum(float(json.loads(file.read_text())["duration_s"]) for file in run.glob("points/*/*/exit.json"))


def peak_resident(pid: int) -> int:
    """VmHWM in bytes; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    sys.exit(main())
