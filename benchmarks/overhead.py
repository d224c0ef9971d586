"""The overhead of a sweep: 50 points of a workload that does nothing, cold and warm, compared with a bare loop that
starts an interpreter and imports torch. The three alternate within one run, since a machine's speed drifts.

    python benchmarks/overhead.py [--points 50] [--rounds 2] [--only measured|calculated|planning]

The figures are the wall time of the whole command, with its start, plan and tables, divided by its points. For warm
attempts the time of the measured processes themselves, from fork to exit, is subtracted in a figure of its own.

Then what calculated attempts cost: a command with one point, and each further point, which is forked from a template
that has imported its libraries. These and planning are seconds of a core, since other programs do not change them.
"""

from __future__ import annotations

import argparse
import json
import resource
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
PROGRAM = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

def train(batch):
    config = LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4)
    model = LlamaForCausalLM(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        ids = torch.randint(0, 1000, (batch, 64), device="cuda")
        model(ids, labels=ids).loss.backward()
        optimizer.step()
"""
# Of each: the most seconds of a core for a further point, and its words.
CALCULATED = {
    "training an 8B decoder": (1.2, ["model=llama-3.1-8b", "workload=train", "dtype=bfloat16", "context=2048"]),
    "a forward pass of a small model": (0.5, ["model=mlp", "workload=forward"]),
    "a user's program with transformers": (1.2, ["workload=custom", "workload.target=program:train"]),
}
MOST_FIRST = 8.0  # seconds until a command with one calculated point has ended
MOST_COLD = 4.0  # seconds of a cold attempt of a small model of transformers
MOST_PLANNED = 0.3  # milliseconds of a core for each point
PLANNED = ["model=tiny-llama", "workload=train", "devices=[sim:h100-80gb]", "context=64,128"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["measured", "calculated", "planning"])
    options = parser.parse_args(arguments)
    met = []
    if options.only in (None, "measured"):
        met += [attempts_meet_their_targets(options), cold_attempts_meet_their_target(options.rounds)]
    if options.only in (None, "calculated"):
        met += [calculations_meet_their_targets(options.rounds)]
    if options.only in (None, "planning"):
        met += [planning_meets_its_target(options.rounds)]
    return 0 if all(met) else 1


def attempts_meet_their_targets(options: argparse.Namespace) -> bool:
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
    return cold <= 1.15 * bare and overhead <= 0.080 and resident <= 150 * MIB


def cold_attempts_meet_their_target(points: int) -> bool:
    words = ["model=tiny-llama", "workload=train", "context=64", "devices=[cpu]", "start=cold"]
    with tempfile.TemporaryDirectory() as folder:
        run_sweep(Path(folder), "cold", [*words, f"batch=range(1,{points + 1})"])
        durations = [
            float(json.loads(file.read_text())["duration_s"])
            for file in Path(folder, "outputs", "cold").glob("points/*/*/exit.json")
        ]
    cold = statistics.median(durations)
    print(f"  {'a cold attempt of tiny-llama':<42}{cold:.2f} s (at most {MOST_COLD:g})")
    return cold <= MOST_COLD


def calculations_meet_their_targets(rounds: int, further: int = 6) -> bool:
    met = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(PROGRAM)
        for name, (most, words) in CALCULATED.items():
            alone, together = [], []
            for turn in range(rounds):
                words_of = [*words, "devices=[sim:h100-80gb]"]
                alone.append(run_sweep(Path(folder), f"{name[2:5]}-one-{turn}", [*words_of, "batch=1"]))
                batches = f"batch=range(1,{further + 2})"
                together.append(run_sweep(Path(folder), f"{name[2:5]}-all-{turn}", [*words_of, batches]))
            wall, busy = (statistics.median(each) for each in zip(*alone, strict=True))
            each = (statistics.median(busy for _, busy in together) - busy) / further
            print(
                f"  {name:<42}first {wall:.1f} s, {busy:.1f} s of a core; each further {each:.2f} s (at most {most:g})"
            )
            met.append(each <= most and wall <= MOST_FIRST)
    return all(met)


def planning_meets_its_target(rounds: int, points: int = 2000) -> bool:
    sys.path.insert(0, str(ROOT))
    from sweeper.planning.command_line import read
    from sweeper.planning.planner import plan_of
    from sweeper.planning.probes import Probes

    def planned(batches: int) -> float:
        began = time.process_time()
        with Probes() as probes:
            plan_of(read([*PLANNED, f"batch=range(1,{batches + 1})"]), probes, lambda message: None)
        return time.process_time() - began

    planned(1)
    found = [(planned(points // 2) - planned(1)) / points * 1000 for _ in range(rounds)]
    each = statistics.median(found)
    print(f"  {'planning':<42}{each:.2f} ms a point (at most {MOST_PLANNED:g})")
    return each <= MOST_PLANNED


def run_sweep(folder: Path, name: str, words: Sequence[str]) -> tuple[float, float]:
    """The seconds of a command, and the seconds of a core that it and its processes took."""
    command = [sys.executable, "-m", "sweeper", *words, f"name={name.replace(' ', '-')}"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, busy


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
