"""Compare what is calculated for the programs of the zoo with what is measured on this machine's processor.

    python benchmarks/programs/check.py                        # all programs
    python benchmarks/programs/check.py speech vision/timm_vit # a kind, and one program
    python benchmarks/programs/check.py --python OTHER/bin/python --keep FOLDER

Each program runs on cpu, where its live tensors are counted, and is calculated for cpu and for one card. What was
measured is kept in FOLDER/measured under the hash of the program's code, so that a second check only calculates.
Programs whose libraries the measured interpreter lacks are listed and skipped.

The targets: 90 % of the programs are answered on the card; each calculated peak on cpu is within 0.5 % of the measured
one, or above it where the row has a bound (`assumed_bounds`) as its reason; none is wrong without saying so.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from catalogue import PROGRAMS, Program  # noqa: E402

CARD = "sim:h100-80gb"
MIB = 2**20
CLOSE, ANSWERED = 0.005, 0.9
WORKSPACES = 2 * 32 * MIB  # that matrix products of the program's thread and of autograd's take of this card
OWN_COUNT = re.compile(r"(?:max|peak)[\w ]*mem[\w ]*?[:=]? *([\d.]+) *(MiB|MB|GiB|GB)", re.IGNORECASE)
UNITS = {"mib": 2**20, "mb": 2**20, "gib": 2**30, "gb": 2**30}  # programs write MB for what they divided by 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What one device said of one program."""

    status: str = "not run"
    peak: int | None = None  # bytes: live tensors on cpu, allocated on a card
    own_count: float | None = None  # bytes that the program printed itself
    reason: str = ""
    bounds: tuple[str, ...] = ()  # where a size is at most what it was taken as


@dataclass(frozen=True, slots=True)
class Checked:
    program: Program
    measured: Answer
    on_cpu: Answer
    on_card: Answer

    @property
    def difference(self) -> float | None:
        """The calculated peak on cpu, relative to the measured one."""
        if not (self.measured.status == self.on_cpu.status == "ok" and self.measured.peak and self.on_cpu.peak):
            return None
        return self.on_cpu.peak / self.measured.peak - 1

    @property
    def ratio(self) -> float | None:
        """The card's peak over that of cpu."""
        if not (self.on_card.status == "ok" and self._peak_of_cpu):
            return None
        return (self.on_card.peak or 0) / self._peak_of_cpu

    @property
    def _peak_of_cpu(self) -> int | None:
        """The measured peak; the calculated one where both devices have bounds."""
        answer = self.on_cpu if self.is_bounded and self.on_card.bounds else self.measured
        return answer.peak if answer.status == "ok" else None

    @property
    def is_close(self) -> bool:
        return self.difference is not None and abs(self.difference) <= CLOSE

    @property
    def is_bounded(self) -> bool:
        """Whether the peak on cpu is larger than the measured one, and its row says where sizes are at most so large.

        A bound is none for a peak that is smaller.
        """
        return self.difference is not None and self.difference > CLOSE and bool(self.on_cpu.bounds)

    @property
    def wrong(self) -> str:
        """Why an answer of this program is wrong, or looks so; empty if none is."""
        found = []
        if self.difference is not None and not self.is_close and not self.is_bounded:
            found.append(f"sim:cpu is {self.difference:+.2%} off")
        least, most = self.program.ratio
        allowed = most + WORKSPACES / (self._peak_of_cpu or 1)
        if self.ratio is not None and not least <= self.ratio <= allowed:
            found.append(f"the card's peak is {self.ratio:.2f} of cpu's, expected {least:g} to {allowed:.2f}")
        own, peak = self.on_card.own_count, self.on_card.peak
        if self.on_card.status == "ok" and own is not None and abs(own - (peak or 0)) > 0.01 * MIB:
            found.append(f"the program itself counted {own / MIB:.2f} MiB on the card")
        return "; ".join(found)

    def __str__(self) -> str:
        difference = "" if self.difference is None else f"{self.difference:+.3%}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        reasons = [f"{device}: {answer.status}: {answer.reason}" for device, answer in self.failures()]
        line = (
            f"{self.program.name:34}{_mib(self.measured)}{_mib(self.on_cpu)}{difference:>10}"
            f"{_mib(self.on_card)}{ratio:>6}  {'; '.join(dict.fromkeys(reasons))}"
        )
        if self.is_bounded:
            line = f"{line.rstrip()}  bounded: {self.on_cpu.bounds[0]}"
        return line.rstrip() + (f"  <- SUSPECT: {self.wrong}" if self.wrong else "")

    def failures(self) -> Iterable[tuple[str, Answer]]:
        named = {"cpu": self.measured, "sim:cpu": self.on_cpu, CARD: self.on_card}
        return [(device, answer) for device, answer in named.items() if answer.status != "ok"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="a kind, or a program such as speech/ctc_lstm")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the programs' libraries")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "sweeper-programs", metavar="FOLDER")
    parser.add_argument("--processes", type=int, default=2, help="calculating sweeps at the same time")
    given = parser.parse_args(arguments)
    chosen = [each for each in PROGRAMS if not given.words or {each.name, each.kind} & set(given.words)]
    missing = missing_libraries(given.python, chosen)
    present = [each for each in chosen if not missing[each.name]]
    for each in chosen:
        if missing[each.name]:
            print(f"{each.name:34}skipped: {given.python} has no {', '.join(missing[each.name])}")

    began = time.perf_counter()
    check = Check(given.python, given.keep)
    measured = {each.name: check.measured(each) for each in present}
    began_to_calculate = time.perf_counter()
    print(f"{'MiB':34}{'cpu':>10}{'sim:cpu':>10}{'':>10}{CARD[4:]:>10}{'/cpu':>6}", flush=True)
    together = [list(group) for _, group in groupby(present, key=lambda each: (each.kind, each.is_script))]
    checked: list[Checked] = []
    with ThreadPoolExecutor(given.processes) as several:
        for programs, answers in zip(together, several.map(check.calculated, together), strict=True):
            for each in programs:
                checked.append(Checked(each, measured[each.name], *answers[each.name]))
                print(checked[-1], flush=True)
    return summary(checked, began_to_calculate - began, time.perf_counter() - began_to_calculate)


def summary(checked: Sequence[Checked], measuring: float, calculating: float) -> int:
    answered = sum(each.on_card.status == "ok" for each in checked)
    answered_on_cpu = sum(each.on_cpu.status == "ok" for each in checked)
    compared = [each for each in checked if each.difference is not None]
    close = [each for each in compared if each.is_close]
    bounded = [each for each in compared if each.is_bounded]
    wrong = [each for each in checked if each.wrong]
    print(
        f"\nanswered on {CARD[4:]}: {answered} of {len(checked)} (at least {ANSWERED:.0%}), "
        f"on sim:cpu: {answered_on_cpu}\n"
        f"sim:cpu within {CLOSE:.1%} of what was measured: {len(close)} of {len(compared)}, "
        f"above it by a bound that the row names: {len(bounded)}\n"
        f"wrong without saying so, or suspect: {len(wrong)} (none)\n"
        f"measured in {measuring:.0f} s, calculated in {calculating:.0f} s"
    )
    return 0 if answered >= ANSWERED * len(checked) and not wrong else 1


@dataclass(frozen=True, slots=True)
class Check:
    python: str
    folder: Path

    def measured(self, program: Program) -> Answer:
        """The program on cpu, from an earlier check if its code is the same."""
        code = ast.dump(ast.parse((HERE / f"{program.name}.py").read_bytes())) + repr(program.arguments)
        name = f"{program.name.replace('/', '-')}-{hashlib.sha256(code.encode()).hexdigest()[:10]}"
        outputs = self.folder / "measured"
        words = [f"workload.target={program.calculated_as}"]
        if program.is_script:
            words = [
                "workload.target=script:run",
                f"workload.params.path={program.name}.py",
                f"workload.params.arguments=[{','.join(map(_quoted, program.arguments))}]",
            ]
        earlier = list(self._rows(outputs / name).values())
        if not earlier or earlier[0].status != "ok":
            self._sweep("devices=cpu", "workload=custom", *words, "timeout=180", f"outputs={outputs}", f"name={name}")
        return next(iter(self._rows(outputs / name).values()), Answer(reason="no row"))

    def calculated(self, programs: Sequence[Program]) -> dict[str, tuple[Answer, Answer]]:
        """Each program for cpu and for the card, in one sweep."""
        script = programs[0].is_script
        outputs, name = self.folder / "calculated", f"{programs[0].kind}-{'command' if script else 'custom'}"
        shutil.rmtree(outputs / name, ignore_errors=True)
        key = "argv" if script else "target"
        output = self._sweep(
            f"devices=[sim:cpu,{CARD}]",
            f"workload={'command' if script else 'custom'}",
            f"workload.{key}={','.join(each.calculated_as for each in programs)}",
            *(("workload.steps=null",) if script else ()),  # to its own end, as it is measured
            "start=warm",
            "timeout=120",
            f"outputs={outputs}",
            f"name={name}",
        )
        rows = self._rows(outputs / name)
        absent = Answer(reason=output.strip().splitlines()[-1] if output.strip() else "no row")
        return {
            each.name: (rows.get(("sim:cpu", _key(each)), absent), rows.get((CARD, _key(each)), absent))
            for each in programs
        }

    def _sweep(self, *words: str) -> str:
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", *words, f"python={self.python}"],
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": path, **quiet},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def _rows(self, run: Path) -> dict[tuple[str, str], Answer]:
        """Answers by device and by the target, or the argv as JSON."""
        if not (run / "points.parquet").exists():
            return {}
        rows = {}
        for row in pd.read_parquet(run / "points.parquet").to_dict("records"):
            what = row["workload.target"] if isinstance(row["workload.target"], str) else row["workload.argv"]
            rows[row["device"], what] = _answer(row, run)
        return rows


def _key(program: Program) -> str:
    if not program.is_script:
        return program.calculated_as
    return json.dumps(["python", f"{program.name}.py", *program.arguments])


def _answer(row: Mapping[Any, Any], run: Path) -> Answer:
    on_card = str(row["device"]) == CARD
    peak = row["peak_allocated_bytes" if on_card else "peak_tensor_bytes"]
    phase = f"{row['error_type']}: " if isinstance(row["error_type"], str) and row["status"] == "error" else ""
    reason = f"{phase}{row['error_message']}" if isinstance(row["error_message"], str) else ""
    return Answer(
        status=str(row["status"]),
        peak=None if pd.isna(peak) else int(peak),
        own_count=_own_count(run, row),
        reason=" ".join(reason.split())[:300],
        bounds=_bounds(row["assumed_bounds"]),
    )


def _bounds(given: Any) -> tuple[str, ...]:
    """The bounds of a row, the one that was met most often first."""
    found = json.loads(given) if isinstance(given, str) else []
    often = sorted(found, key=lambda each: -int(each["times"]))
    return tuple(f"{each['operator']} {each['bound']} at {each['file']}:{each['line']}" for each in often)


def _own_count(run: Path, row: Mapping[Any, Any]) -> float | None:
    """The last peak that the program printed, in bytes."""
    point, device = str(row["point_id"]), str(row["device"]).replace(":", "-")
    for log in sorted(run.glob(f"points/{point[:2]}/{point}.{device}.*/output.log"), reverse=True):
        for found in reversed(OWN_COUNT.findall(log.read_text(errors="replace"))):
            return float(found[0]) * UNITS[found[1].lower()]
    return None


def missing_libraries(python: str, programs: Sequence[Program]) -> dict[str, list[str]]:
    """The libraries that the interpreter lacks, by program. Nothing is imported."""
    wanted = sorted({library for each in programs for library in each.libraries})
    looked = subprocess.run(
        [
            python,
            "-c",
            "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if not u.find_spec(m)])",
            *wanted,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    absent = set(looked.stdout.split())
    return {each.name: [library for library in each.libraries if library in absent] for each in programs}


def _quoted(word: str) -> str:
    return f'"{word}"'


def _mib(answer: Answer) -> str:
    if answer.status != "ok" or answer.peak is None:
        return f"{answer.status[:9] if answer.status != 'ok' else 'null':>10}"
    return f"{answer.peak / MIB:10.2f}"


if __name__ == "__main__":
    sys.exit(main())
