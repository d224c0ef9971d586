"""Time and memory to turn a large sweep's journals into Parquet and a frontier. The sweep is synthetic.

    python benchmarks/tables.py [--attempts 100000] [--folder /tmp]

Writes plan.jsonl and an attempt folder for each point, as a cpu run leaves them (8 phases and a `between` before each,
30 lines of journal). Then measures, each in its own process: journals to Parquet, the frontier alone, and pandas
reading the tables. Figures include the forks of that process, and pages that both share count twice. The files have
just been written, so the disk's cache holds as many as fit in it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from runners.device import device_named  # noqa: E402
from runners.point import Attempt, AttemptFolder, Point  # noqa: E402 (works from a checkout that is not installed)
from runners.stored_json import checksum, sealed  # noqa: E402

MIB, GIB = 2**20, 2**30
PHASES = ("model_load", "optimizer", "inputs", "forward", "loss", "backward", "step", "zero_grad")
MODELS = ("tiny-llama", "small-llama", "gpt2", "smollm2-135m", "smollm2-360m")
DTYPES = ("float32", "bfloat16")
LIMIT = 5000  # batch x context units that still fit
TARGETS = {"journals to Parquet, frontier included": (60.0, 2 * GIB), "points.parquet read by pandas": (1.0, None)}

MEASURE = """
import json, resource, sys, time
sys.path.insert(0, {root!r})
folder = {folder!r}
{prepare}
began, busy = time.perf_counter(), time.process_time()
{work}
seconds, busy = time.perf_counter() - began, time.process_time() - busy
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
forked = resource.getrusage(resource.RUSAGE_CHILDREN)
busy, peak = busy + forked.ru_utime + forked.ru_stime, peak + forked.ru_maxrss * 1024
print(json.dumps({{"seconds": seconds, "busy": busy, "peak": peak}}))
"""
STEPS = {
    "journals to Parquet, frontier included": (
        "from sweeper.tables.run_tables import Tables",
        "Tables(folder).write()",
    ),
    "the frontier alone, from points.parquet": (
        "import pyarrow.parquet as pq\nfrom sweeper.frontier.edges import NEEDS, frontier\n"
        "rows = pq.read_table(folder + '/points.parquet', columns=list(NEEDS)).to_pylist()",
        "frontier(rows)",
    ),
    "points.parquet read by pandas": (
        "import pandas as pd",
        "pd.read_parquet(folder + '/points.parquet')",
    ),
    "phases.parquet read by pandas": (
        "import pandas as pd",
        "pd.read_parquet(folder + '/phases.parquet')",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument(
        "--folder", type=Path, help="folder in which the synthetic run is created, and removed at the end"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tables-", dir=options.folder)) / "synthetic"
    try:
        began = time.perf_counter()
        written = write_run(folder, options.attempts)
        made = time.perf_counter() - began
        print(f"{options.attempts:,} attempts x {len(PHASES)} phases: {written / GIB:.2f} GiB, written in {made:.0f} s")
        missed = [name for name in STEPS if not report(name, folder)]
        files = {path.name: path.stat().st_size for path in sorted(folder.glob("*.parquet"))}
        print("  ".join(f"{name} {size / MIB:.1f} MiB" for name, size in files.items()))
    finally:
        shutil.rmtree(folder.parent)
    return 1 if missed else 0


def report(name: str, folder: Path) -> bool:
    """Measure one step, print its line, and return whether it met its target."""
    prepare, work = STEPS[name]
    code = MEASURE.format(root=str(ROOT), folder=str(folder), prepare=prepare, work=work)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    seconds, peak = TARGETS.get(name, (None, None))
    met = (seconds is None or found["seconds"] <= seconds) and (peak is None or found["peak"] <= peak)
    target = "" if seconds is None else f"  target {seconds:g} s" + ("" if peak is None else f", {peak / GIB:g} GiB")
    taken = f"{found['seconds']:8.2f} s ({found['busy']:.2f} s of a core)  {found['peak'] / MIB:7.0f} MiB"
    print(f"{name:<42}{taken}{target}{'' if met else '  MISSED'}")
    return met


def write_run(folder: Path, attempts: int) -> int:
    """Write the plan and the attempt folders of a grid. Returns the bytes written."""
    folder.mkdir(parents=True)
    written = 0
    with (folder / "plan.jsonl").open("wb") as plan:
        for line in plan_head():
            plan.write(sealed(line))
        for order, values in enumerate(grid(attempts)):
            point = Point(values=values)
            line = {"kind": "asked", "id": point.id, "order": order, "device": None}
            plan.write(sealed({**line, "changed_from": None, "changed": [], "values": values}))
            attempt = Attempt(point=point, device=device_named("cpu"))
            place = AttemptFolder(folder / "points" / attempt.name)
            place.path.mkdir(parents=True)
            request, journal = sealed(attempt.to_json()), journal_of(values).encode()
            checksums = {place.request.name: checksum(request), place.journal.name: checksum(journal)}
            exit = sealed({**exit_of(order), "journal_bytes": len(journal), "checksums": checksums})
            for path, content in ((place.request, request), (place.journal, journal), (place.exit, exit)):
                path.write_bytes(content)
                written += len(content)
    return written


def plan_head() -> Iterator[dict[str, Any]]:
    swept: list[dict[str, Any]] = [
        {"key": key, "values": []} for key in ("model", "dtype", "batch", "context", "workload.checkpointing")
    ]
    yield {"kind": "run", "format": 1, "design": "grid", "dimensions": swept, "keys": {"objective": "tokens"}}
    yield {"kind": "device", "name": "cpu", "device_kind": "cpu", "uuid": None, "total_bytes": 64 * GIB}


def grid(count: int) -> Iterator[dict[str, Any]]:
    searches = len(MODELS) * len(DTYPES)
    wide = max(1, int((count / searches) ** 0.5))
    for number in range(count):
        search, cell = number % searches, number // searches
        config = {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4, "vocab_size": 1000}
        yield {
            "model": {"name": MODELS[search // 2], "library": "transformers", "model_type": "llama", "config": config},
            "workload": {"name": "train", "optimizer": "adamw", "checkpointing": False, "set_to_none": True},
            "dtype": DTYPES[search % 2],
            "batch": 1 + cell % wide,
            "context": 64 * (1 + cell // wide),
            **{"warmup": 0, "repeats": 1, "seed": 0, "start": "warm", "allocator": "system", "phases": "each"},
            **{"cache": "keep", "tensors": True, "timeout": None, "budget": None},
        }


def journal_of(values: dict[str, Any]) -> str:
    size = values["batch"] * values["context"] // 64
    held = (300 + size) * MIB
    lines: list[dict[str, Any]] = [
        {"kind": "environment", "pid": 4242, "at": "2026-11-29T12:00:00+00:00", "record": RECORD},
        {"kind": "baseline", "counters": counters(250 * MIB), "available_memory_bytes": 60 * GIB, "instrumented": True},
        {"kind": "budget", "budget_kind": "guard", "budget_bytes": 58 * GIB},
        {
            "kind": "model",
            "facts": {"parameters": 6_840_576, "parameter_bytes": 27_362_304, "storage_dtype": "float32"},
        },
    ]
    fails = size > LIMIT
    for number, name in enumerate(PHASES):
        held += size * 64 * 1024 + number
        lines += [ended("between", None, held), {"kind": "began", "phase": name, "run_index": 0, **readings(held)}]
        if fails and name == "backward":
            lines += [ended(name, 0, held, completed=False), FAILED]
            break
        lines.append(ended(name, 0, held))
    else:
        finished = {"kind": "finished", "metrics": {"loss": 6.9}, "steps": 1, "tokens": size * 64}
        lines += [ended("between", None, held), finished]
    return "".join(json.dumps({"t": 1000.0 + place, **line}) + "\n" for place, line in enumerate(lines))


def ended(name: str, run_index: int | None, held: int, completed: bool = True) -> dict[str, Any]:
    of_device = {"baseline": counters(held), "end": counters(held), "peak": counters(held + 7 * MIB)}
    return {
        "kind": "ended",
        "phase": name,
        "run_index": run_index,
        "elapsed_s": 0.0123,
        "iterations": None if run_index is None else 1,
        "completed": completed,
        "counters": {"cpu": of_device | {"alloc_retries": None, "num_ooms": None}},
        "shapes": {"input_ids": [4, 512]} if name == "forward" else {},
        "metrics": {"loss": 6.9} if name == "loss" else {},
    }


def readings(held: int) -> dict[str, Any]:
    return {"counters": {"cpu": {"baseline": counters(held)}}}


def counters(held: int) -> dict[str, int]:
    return {
        "resident": held,
        "resident_anon": held - 90 * MIB,
        "resident_file": 90 * MIB,
        "address": held + 400 * MIB,
        "tensor": held - 250 * MIB,
    }


def exit_of(order: int) -> dict[str, Any]:
    outside = [{"t": 1000.0 + second, "resident": 300 * MIB} for second in range(5)]
    at = f"2026-11-29T{order // 3600 % 24:02}:{order // 60 % 60:02}:{order % 60:02}.5+00:00"
    return {
        "format": 1,
        "pid": 4242,
        "code": 0,
        "signal": None,
        "started_at": at,
        "duration_s": 1.5,
        "outside": outside,
    }


RECORD = {
    "host": "node1",
    "system": "Linux 6.1 x86_64",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "backend": "cpu",
    "libraries": {"numpy": "2.3.0", "transformers": "5.24.0"},
    "threads": 2,
    "variables": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "device_name": "a processor",
    "device_total_bytes": 64 * GIB,
    "allocator_backend": "malloc",
}
FAILED = {
    "kind": "failed",
    "chain": [
        {
            "type": "RuntimeError",
            "bases": ["Exception", "BaseException"],
            "message": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes.",
        }
    ],
    "traceback": "Traceback (most recent call last):\n" + '  File "train.py", line 1, in step\n' * 20,
}

if __name__ == "__main__":
    sys.exit(main())
