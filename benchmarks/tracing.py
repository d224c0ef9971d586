"""The time and memory of calculating: points on one core, without imports, and a grid on three cards.

python benchmarks/tracing.py            # points and the grid
python benchmarks/tracing.py --points   # points only
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runners.failure import failure_facts  # noqa: E402
from runners.point import Attempt  # noqa: E402
from runners.simulation.card_memory import memory_of  # noqa: E402
from runners.simulation.replay import replay  # noqa: E402
from runners.simulation.trace import card_of, rules_of, trace_workload  # noqa: E402

LLAMA = ["model=llama-3.1-8b", "dtype=bfloat16", "context=2048", "batch=1"]
ONCE = ["repeats=1"]
# Each with its target, seconds of one core.
POINTS = {
    "training, 135 million": (2.5, ["model=smollm2-135m", "workload=train", "batch=8", "context=256"]),
    "training, 8 billion": (8.0, [*LLAMA, "workload=train"]),
    "training, 8 billion, checkpointing": (8.0, [*LLAMA, "workload=train", "workload.checkpointing=true"]),
    "forward passes, 8 billion": (2.0, [*LLAMA, "workload=forward"]),
    "16 tokens twice, 8 billion": (8.0, [*LLAMA, "workload=generate", "workload.new_tokens=16", "warmup=0", *ONCE]),
}
MOST_MEMORY, MOST_GRID = 2**30, 240
GRID = [
    *("model=llama-3.1-8b", "workload=train", "dtype=bfloat16"),
    *("batch=1,2,3,4,6,8", "context=256,512,1024,2048,3072,4096"),
]
CARDS = "devices=[sim:h100-80gb,sim:a100-80gb,sim:rtx-4090]"


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        return one(Path(arguments[1]))
    missed = []
    print(f"{'':36}{'trace':>8}{'replay':>8}{'at most':>9}{'events':>9}{'memory':>10}")
    for name, (most, words) in POINTS.items():
        with tempfile.TemporaryDirectory() as folder:
            run = sweep(folder, [*words, "devices=[sim:h100-80gb]"])
            (request,) = run.glob("points/*/*/point.json")
            done = subprocess.run([sys.executable, __file__, "--one", str(request)], capture_output=True, check=True)
            row = json.loads(done.stdout)
        print(
            f"{name:36}{row['trace']:6.2f} s{row['replay']:6.2f} s{most:7.1f} s{row['events']:9}"
            f"{row['memory'] / 2**20:6.0f} MiB",
            flush=True,
        )
        missed += [name] if row["trace"] + row["replay"] > most or row["memory"] > MOST_MEMORY else []
    if "--points" in arguments:
        sys.exit(1 if missed else 0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sweep(folder, [*GRID, CARDS])
    took = time.monotonic() - began
    on = f"on {os.cpu_count()} cores (at most {MOST_GRID} s)"
    print(f"6 x 6 training points of 8 billion on three cards: {took:.0f} s {on}")
    sys.exit(1 if missed or took > MOST_GRID else 0)


def sweep(folder: str, words: list[str]) -> Path:
    command = [sys.executable, "-m", "sweeper", *words, f"outputs={folder}", "name=run"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return Path(folder, "run")


def one(request: Path) -> None:
    """Trace and replay one point on one core, and print what that took as JSON."""
    import torch

    torch.set_num_threads(1)
    attempt = Attempt.from_json({**json.loads(request.read_bytes()), "followed": None})
    workload = importlib.import_module(f"runners.workloads.{attempt.point['workload']}")
    for module in workload.imports(attempt.point.values):
        importlib.import_module(module)
    card = card_of(attempt)
    rules_of(card)  # imports torch
    began = time.process_time()
    trace = trace_workload(attempt, workload, failure_facts)
    middle = time.process_time()
    lines = list(replay(trace, attempt.device.name, memory_of(card, None, unlimited=True)))
    ended = time.process_time()
    assert lines[-1]["kind"] == "finished", lines[-1]
    print(json.dumps({
        "trace": middle - began, "replay": ended - middle, "events": len(trace.events),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
