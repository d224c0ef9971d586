"""Reading a damaged run: no traceback, no other row changed, and nothing in its folder touched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sweeper
from runners.engines.local import Event
from runners.facts import Exit
from runners.point import Attempt, AttemptFolder, Point
from sweeper import cli
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.run_folder import open_run
from sweeper.sweeping.signals import Signals
from sweeper.sweeping.sweep import Sweep
from sweeper.tables import loading
from sweeper.views.progress import Show
from tests.sweeper.conftest import BASELINE, MIB, OUT_OF_MEMORY, VALUES, failed, phase, started
from tests.sweeper.damages import TABLES, Damage, damage
from tests.sweeper.sweeping.conftest import FINGERPRINT, Settler, plan_of

Rows = dict[tuple[str, str], dict[str, Any]]
Fault = tuple[str, str]  # the command, and what is wrong


class Settles(Settler):
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def settle(self, choice: Mapping[str, Any]) -> Point:
        width = choice.get("model.width", 64)
        values = VALUES | {"model": VALUES["model"] | {"width": width}}
        point = Point(values=values | {key: value for key, value in choice.items() if "." not in key})
        self.settings[point.id] = {"model.width": width} if width != 64 else {}
        return point


def ends(attempt: Attempt) -> list[dict[str, Any]]:
    """The journal of an attempt: out of memory from batch 4 on, an error at one point, else a pass."""
    batch, width = attempt.point["batch"], attempt.point["model.width"]
    heartbeat = {
        "kind": "heartbeat",
        "phase": "cold_forward",
        "run_index": 0,
        "counters": {"cpu": {"peak": {"resident": BASELINE + 9 * MIB}}},
    }
    begun = [*started(), *phase("inputs", BASELINE + MIB)]
    run = phase("cold_forward", BASELINE + batch * 64 * MIB, completed=batch < 4)
    if batch >= 4:
        return [*begun, *run[:2], heartbeat, run[2], failed(OUT_OF_MEMORY)]
    if (batch, width) == (2, 128):
        return [*begun, *run[:2], heartbeat, failed({"type": "IndexError", "bases": [], "message": "out of range"})]
    warm = phase("warm_forward", BASELINE + batch * 60 * MIB)
    return [*begun, *run, *warm, {"kind": "finished", "metrics": {"loss": 0.5 * batch}, "steps": None, "tokens": 64}]


class Engine:
    """Measures nothing: writes what an attempt leaves."""

    def __init__(self) -> None:
        self.settled: list[Event] = []

    def start(self, attempt: Attempt, folder: AttemptFolder, lane: str) -> None:
        lines = [json.dumps({"t": 100.0 + second} | line) for second, line in enumerate(ends(attempt))]
        folder.journal.write_text("".join(line + "\n" for line in lines))
        size = folder.journal.stat().st_size
        folder.settle(Exit(code=0, pid=7, started_at="2026-11-29T12:00:01+00:00", duration_s=1.25, journal_bytes=size))
        self.settled.append(Event("settled", folder, lane))

    def wait(self, timeout: float | None) -> Sequence[Event]:
        settled, self.settled = self.settled, []
        return settled

    def renew(self, lane: str) -> None: ...

    def cancel(self, reason: str) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


PLANS = {
    "grid": lambda: plan_of(**{"batch": (1, 2, 4), "model.width": (64, 128)}),
    "frontier": lambda: plan_of(design="frontier", batch=Interval(1, 8, 1), **{"model.width": (64, 128)}),
}


def sweep(outputs: Path, design: str) -> int:
    plan = PLANS[design]()
    object.__setattr__(plan, "settler", Settles())
    run = open_run(str(outputs), "run", "slug")
    try:
        return Sweep(plan, FINGERPRINT, run, Show(plan), Signals(descriptor=-1), lambda lanes: Engine()).run()
    finally:
        run.close()


@dataclass
class Ended:
    code: int | str  # the exit code, or the traceback
    out: str = ""
    err: str = ""


def command(call: Any, *arguments: Any) -> Ended:
    """What a command line does, in this process."""
    out, err = io.StringIO(), io.StringIO()

    def late(*_: Any) -> None:
        raise TimeoutError("the command hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    code: int | str
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = call(*arguments)
            except Mistake as mistake:
                cli.print_message(str(mistake))
                code = 2
            except Exception:
                code = traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Ended(code, out.getvalue(), err.getvalue())


def rows_of(run: Path) -> Rows:
    return {(row["point_id"], row["device"]): row for row in loading.read(run)["points"].to_pylist()}


def signature(folder: Path) -> list[Any]:
    """Names, sizes and times of everything in a folder."""
    found = []
    for path, _, files in os.walk(folder):
        for name in (".", *files):
            seen = os.lstat(os.path.join(path, name))
            found.append((path, name, seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ino))
    return sorted(found)


def loaded(run: Path) -> int:
    assert len(sweeper.load(run).points.columns) > 100
    return 0


def read(run: Path, found: list[Rows]) -> int:
    found.append(rows_of(run))
    return 0


COMMANDS = ("frontier", "effects", "estimate")


def tried(run: Path, design: str, what: Damage, whole: Rows, commands: Sequence[Sequence[str]]) -> Iterator[Fault]:
    """Each of the commands over a damaged run, the last one `sweep` if at all, and the rows that they read."""
    before = signature(run)
    found: list[Rows] = []
    ended = {"read": command(read, run, found)}
    err = ended["read"].err
    for name, *flags in commands:
        if name == "sweep":
            if signature(run) != before:
                yield "reading", "changed the folder"
            ended[name] = command(sweep, run.parent, design)
            if ended[name].code in (0, 3):
                command(read, run, found)
            continue
        ended[" ".join([name, *flags])] = end = (
            command(loaded, run) if name == "load" else command(cli.run, [name, str(run), *flags])
        )
        if flags and end.code == 0:
            json.loads(end.out)
    if "sweep" not in ended and signature(run) != before:
        yield "reading", "changed the folder"
    for rows, reader in zip(found, ("read", "sweep"), strict=False):
        yield from ((reader, why) for why in compared(rows, whole, what, err))
    for name, end in ended.items():
        if end.code not in (0, 2, 3):
            yield name, str(end.code)
        lines = end.err.splitlines()
        if any(not line.startswith("sweeper: ") for line in lines) or (end.code == 2 and len(lines) != 1):
            yield name, f"printed {end.err}"


FROM_PLAN = (
    "order",
    "changed",
    "changed_from",
    "settings",
    "attempts",
    "flaky",
    "spreads",
    "quality_reference",
    "quality_because",
)


def compared(rows: Rows, whole: Rows, what: Damage, err: str) -> Iterator[str]:
    ids = {name.split(".")[0] for name in what.attempts}
    for key, was in whole.items():
        now = rows.get(key)
        if now is None:
            if not what.plan and not what.forged:
                yield f"the row of {key} is gone"
            continue
        changed = {name: (was[name], now.get(name)) for name in was if was[name] != now.get(name)}
        if not changed or (what.forged and (key[0] in ids or what.plan)):
            continue
        if key[0] in ids and now["status"] in ("lost", "not_run") and now["fits"] is None:
            continue
        if key[0] in ids and set(changed) <= {"attempts", "attempt", "flaky", "spreads"}:
            continue
        if what.plan and ((err and all(new is None for _, new in changed.values())) or set(changed) <= set(FROM_PLAN)):
            continue
        yield f"the row of {key} changed: {changed}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], tuple[Path, Rows]]:
    """Whole runs by design, with tables and without, and their rows."""
    found = {}
    for design in PLANS:
        outputs = tmp_path_factory.mktemp(design)
        with contextlib.redirect_stdout(io.StringIO()):
            assert sweep(outputs, design) in (0, 3)
        rows = rows_of(outputs / "run")
        bare = tmp_path_factory.mktemp(f"{design}-bare") / "run"
        shutil.copytree(outputs / "run", bare)
        for name in TABLES:
            (bare / f"{name}.parquet").unlink()
        found[design, True], found[design, False] = (outputs / "run", rows), (bare, rows)
    return found


def fuzz(runs: Any, folder: Path, count: int, seed: int, every_command: bool) -> list[tuple[Damage, str, str]]:
    """The faults of a number of damages: the damage, the command, and the seed with what is wrong."""
    faults = []
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        design, tables = chance.choice(["grid", "grid", "frontier"]), chance.choice([True, False, False])
        source, rows = runs[design, tables]
        other = runs["frontier" if design == "grid" else "grid", True][0]
        run = folder / str(number) / "run"
        shutil.copytree(source, run)
        what = damage(chance, run, other)
        commands = [["load"], *([name, *chance.choice([[], ["--json"]])] for name in COMMANDS), ["sweep"]]
        found = tried(run, design, what, rows, commands if every_command else [chance.choice(commands)])
        faults += [(what, name, f"seed {seed}-{number}: {why}") for name, why in found]
        shutil.rmtree(run.parent)
    return faults


def report(faults: list[tuple[Damage, str, str]]) -> str:
    first = [f"{what.kind}: {what.what}\n  {name}: {why[-1500:]}" for what, name, why in faults[:20]]
    return "\n\n".join([*first, str(Counter((what.kind, name) for what, name, _ in faults))])


def test_no_damage_gives_a_traceback_or_changes_another_row(runs: Any, tmp_path: Path) -> None:
    faults = fuzz(runs, tmp_path, 150, seed=13, every_command=False)
    assert not faults, report(faults)


@pytest.mark.slow
def test_no_damage_of_two_thousand_gives_a_traceback_or_changes_another_row_in_any_command(
    runs: Any, tmp_path: Path
) -> None:
    faults = fuzz(runs, tmp_path, 2000, seed=int(os.environ.get("SEED", "13")), every_command=True)
    assert not faults, report(faults)
