"""Reading a damaged run: no traceback, no other row changed, and nothing in its folder touched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sweeper
from runners.engines.local import Event
from runners.facts import Exit
from runners.point import Attempt, AttemptFolder, Point
from runners.stored_json import Damaged, sealed
from sweeper import cli, plan_lines
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.run_folder import open_run
from sweeper.screen import warn
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


class Hangs(BaseException):
    """Raised in a command that takes too long. No handler of the product takes it for an error of a file."""


def command(call: Any, *arguments: Any) -> Ended:
    """What a command line does, in this process."""
    out, err = io.StringIO(), io.StringIO()

    def late(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 20, 1)
    code: int | str
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = call(*arguments)
            except Mistake as mistake:
                warn(str(mistake))
                code = 2
            except (Exception, Hangs):
                code = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
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


COMMANDS = ("frontier", "effects", "estimate", "show")


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


@pytest.fixture
def copied(runs: Any, tmp_path: Path) -> Callable[..., tuple[Path, Rows]]:
    """`copied("grid", tables=False)`: a copy of a whole run, and its rows."""

    def copy(design: str = "grid", tables: bool = False) -> tuple[Path, Rows]:
        source, rows = runs[design, tables]
        shutil.copytree(source, tmp_path / design / "run")
        return tmp_path / design / "run", rows

    return copy


def row_of(rows: Rows, batch: int, width: int = 64) -> dict[str, Any]:
    return next(row for row in rows.values() if (row["batch"], row["model.width"]) == (batch, width))


def folder_of(run: Path, row: Mapping[str, Any]) -> Path:
    (found,) = run.glob(f"points/*/{row['point_id']}.cpu.1")
    return found


# --- one attempt ------------------------------------------------------------------------------------------------------


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("exit.json", content(lambda was: was.replace(b"2026", b"20\xff6")), "does not match its checksum"),
        ("exit.json", content(lambda was: was.replace(b"1.25", b"1.35")), "does not match its checksum"),
        ("exit.json", content(lambda was: b"[" * 100_000), "is nested too deeply"),
        ("exit.json", content(lambda was: b""), "is not valid JSON"),
        ("exit.json", pipe, "it is a pipe"),
        ("exit.json", link, "it is a symbolic link"),
        ("journal.jsonl", content(lambda was: was.replace(b"8192", b"8193")), "changed after the attempt had settled"),
        ("journal.jsonl", content(lambda was: was.replace(b"ended", b"endec", 1)), "changed after the attempt had"),
        ("journal.jsonl", content(lambda was: was + was.splitlines(keepends=True)[-1]), "changed after the attempt"),
        ("journal.jsonl", content(lambda was: was[: len(was) // 2]), "of its"),
        ("journal.jsonl", content(lambda was: b"[" * 100_000 + b"\n" + was), "is nested too deeply"),
        ("journal.jsonl", pipe, "it is a pipe"),
        ("journal.jsonl", Path.unlink, "has 0 of its"),
        ("point.json", content(lambda was: was.replace(b'"batch": 1', b'"batch": 3')), "does not match its checksum"),
        ("point.json", content(lambda was: b"\xef\xbb\xbf" + was), "does not match its checksum"),
        ("point.json", pipe, "it is a pipe"),
        ("point.json", Path.unlink, "is missing"),
    ],
)
def test_a_damaged_attempt_is_one_lost_row_that_names_the_file(
    copied: Any, name: str, change: Callable[[Path], object], why: str
) -> None:
    run, whole = copied()
    damaged = row_of(whole, 1)
    change(folder_of(run, damaged) / name)
    rows = rows_of(run)
    mine = rows.pop((damaged["point_id"], "cpu"))
    assert rows == {key: row for key, row in whole.items() if row is not damaged}
    assert (mine["status"], mine["fits"], mine["peak_resident_bytes"], mine["batch"]) == ("lost", None, None, 1)
    assert mine["error_message"].startswith(f"its record is damaged: {name} ")
    assert why in mine["error_message"]


def test_line_ends_of_windows_change_no_figure(copied: Any) -> None:
    """Only white space differs: that is not what a checksum is for."""
    run, whole = copied()
    for exit in run.glob("points/*/*/exit.json"):
        exit.write_bytes(exit.read_bytes().replace(b"\n", b"\r\n"))
    assert rows_of(run) == whole


@pytest.mark.parametrize("of", ["point", "run"])
def test_a_folder_of_another_point_or_run_under_this_name_is_noticed(copied: Any, of: str) -> None:
    run, whole = copied()
    damaged = row_of(whole, 1)
    source = folder_of(run, row_of(whole, 2)) if of == "point" else next(copied("frontier")[0].glob("points/*/*.cpu.1"))
    if source.name == f"{damaged['point_id']}.cpu.1":
        source = sorted(source.parents[1].glob("*/*.cpu.1"))[-1]
    place = folder_of(run, damaged)
    kept = source.parents[2] / "kept"
    shutil.copytree(source, kept)
    shutil.rmtree(place)
    kept.rename(place)
    rows = rows_of(run)
    mine = rows.pop((damaged["point_id"], "cpu"))
    assert rows == {key: row for key, row in whole.items() if row is not damaged}
    assert (mine["status"], mine["fits"]) == ("lost", None)
    assert "point.json is the request of another attempt, " in mine["error_message"]


def test_a_copy_of_an_attempt_under_another_number_is_no_second_attempt(copied: Any) -> None:
    run, whole = copied()
    first = row_of(whole, 1)
    place = folder_of(run, first)
    shutil.copytree(place, place.with_name(f"{first['point_id']}.cpu.2"))
    shutil.copytree(place, place.with_name(f"{first['point_id']}.cpu.01"))
    rows = rows_of(run)
    assert rows.pop((first["point_id"], "cpu")) == first | {"attempts": 2}
    assert rows == {key: row for key, row in whole.items() if row is not first}
    attempts = loading.read(run)["attempts"].to_pylist()
    assert [row["status"] for row in attempts if row["point_id"] == first["point_id"]] == ["ok", "lost"]


def test_attempts_at_points_that_are_not_in_the_plan_are_reported(copied: Any, capsys: Any) -> None:
    run, whole = copied()
    other, _ = copied("frontier")
    planned = {id for id, _ in whole}
    for folder in other.glob("points/*/*"):
        if folder.name.partition(".")[0] not in planned:
            shutil.copytree(folder, run / "points" / folder.parent.name / folder.name)
            break
    rows = rows_of(run)
    assert {key: rows[key] for key in whole} == whole
    assert len(rows) == len(whole) + 1
    assert "plan.jsonl does not have 1 point with attempts in points/; they are kept" in capsys.readouterr().err


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "kind"),
    [*(("grid", kind) for kind in ("run", "device", "asked", "skipped", "neighbour")), ("frontier", "searched")],
)
def test_a_damaged_line_of_the_plan_loses_that_line_only_and_one_line_reports_it(
    copied: Any, capsys: Any, design: str, kind: str
) -> None:
    run, whole = copied(design)
    id = next(iter(whole))[0]
    with (run / "plan.jsonl").open("ab") as plan:  # the kinds that this run does not have
        plan.write(sealed({"kind": "skipped", "id": id, "device": "cpu", "because": f"{id[:2]}/{id}.cpu.1"}))
        plan.write(sealed({"kind": "neighbour", "id": id, "device": "cpu", "changed_from": id, "changed": ["batch"]}))
    lines = (run / "plan.jsonl").read_bytes().splitlines(keepends=True)
    at = next(place for place, line in enumerate(lines) if f'{{"kind": "{kind}"'.encode() in line)
    before = list(plan_lines.read_plan(run))
    lines[at] = lines[at].replace(b'"kind"', b'"kinc"')
    (run / "plan.jsonl").write_bytes(b"".join(lines))
    assert list(plan_lines.read_plan(run)) == [*before[:at], *before[at + 1 :]]
    rows = rows_of(run)
    err = capsys.readouterr().err.splitlines()
    assert [line for line in err if "left out" in line] == [
        f"sweeper: {run}: line {at + 1} of plan.jsonl is left out: it does not match its checksum"
    ]
    for key, row in whole.items():
        if key in rows:
            assert {name for name in row if rows[key].get(name) not in (row[name], None)} <= {"changed", "changed_from"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"kind": 5}, "has no kind"),
        ({"kind": "asked", "id": "0" * 16, "values": {"batch": 1}}, "its id is not that of its values"),
        ({"kind": "asked", "values": {}}, "it has no 'id'"),
        ({"kind": "asked", "id": "a", "values": []}, "no sweep writes it so"),
        ({"kind": "skipped", "id": "a", "device": "gpu:9", "because": "b"}, "is not a valid DeviceType"),
        ({"kind": "skipped", "id": "a", "because": None}, "because has a value of another type"),
        ({"kind": "device", "name": "cpu", "total_bytes": -1}, "total_bytes has a value of another type"),
        ({"kind": "device", "name": "cpu", "total_bytes": 2**63}, "total_bytes has a value of another type"),
        ({"kind": "device", "name": "tpu:0"}, "is not a valid DeviceType"),
        ({"kind": "run", "keys": {"objective": 5}}, "objective has a value of another type"),
        ({"kind": "run", "keys": {"objective": "batch+context"}}, "must be tokens, a key, or a product"),
        ({"kind": "run", "keys": {"margin": {"spread": 0.5}}}, "margin has a value of another type"),
        ({"kind": "run", "command": [1]}, "command has a value of another type"),
        ({"kind": "run", "dimensions": [{"values": [1]}]}, "it has no 'key'"),
        ({"kind": "searched", "values": {}, "dimensions": [{"key": "batch", "values": [1, "a"]}]}, "no sweep writes"),
        (
            {"kind": "searched", "values": {}, "dimensions": [{"key": "batch", "interval": [1, 8.5], "resolution": 1}]},
            "its interval is not of whole numbers",
        ),
        (
            {
                "kind": "searched",
                "values": {},
                "dimensions": [{"key": "a", "interval": [0, 2**63 - 1], "resolution": 1}],
            },
            "no sweep writes it so",
        ),
    ],
)
def test_a_line_that_no_sweep_writes_is_left_out_with_the_reason(copied: Any, line: dict[str, Any], why: str) -> None:
    run, whole = copied()
    with (run / "plan.jsonl").open("a") as plan:
        plan.write(json.dumps(line) + "\n")
    assert why in (plan_lines.damage_in(run) or "")
    assert rows_of(run) == whole


@pytest.mark.parametrize("change", [pipe, link, Path.unlink, content(lambda was: b"\0" * len(was))])
def test_without_a_plan_that_can_be_read_every_attempt_keeps_its_figures(
    copied: Any, capsys: Any, change: Callable[[Path], object]
) -> None:
    run, whole = copied()
    change(run / "plan.jsonl")
    rows = rows_of(run)
    assert "plan.jsonl" in capsys.readouterr().err
    assert rows.keys() == whole.keys()
    kept = ("status", "fits", "batch", "peak_bytes", "error_message", "config")
    assert all(rows[key][name] == whole[key][name] for key in whole for name in kept)


# --- the tables -------------------------------------------------------------------------------------------------------


def pages_of(file: Path, column: str) -> range:
    """The bytes of a column's pages in a table's file."""
    metadata = pq.read_metadata(file)
    chunk = metadata.row_group(0).column(metadata.schema.names.index(column))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return range(start, start + chunk.total_compressed_size)


def flipped(file: Path) -> None:
    """One bit, in the last byte of the first column."""
    changed = bytearray(file.read_bytes())
    changed[pages_of(file, "run")[-1]] ^= 4
    file.write_bytes(changed)


def without_a_column(file: Path) -> None:
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(table.column_names[1]), file)


def of_another_type(file: Path) -> None:
    table = pq.read_table(file)
    pq.write_table(table.set_column(1, table.column_names[1], pa.array([1] * len(table), pa.int64())), file)


def foreign(file: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), file)


def another_table(file: Path) -> None:
    shutil.copy(file.with_name("environment.parquet" if file.stem == "estimates" else "estimates.parquet"), file)


@pytest.mark.parametrize("change", [flipped, without_a_column, of_another_type, foreign, another_table, pipe, link])
@pytest.mark.parametrize("name", ["points", "phases", "estimates"])
def test_a_damaged_or_foreign_table_is_made_again_in_memory(
    copied: Any, capsys: Any, name: str, change: Callable[[Path], object]
) -> None:
    run, _ = copied(tables=True)
    was = {table: sorted(map(str, each.to_pylist())) for table, each in loading.read(run).items()}
    capsys.readouterr()
    change(run / f"{name}.parquet")
    assert {table: sorted(map(str, each.to_pylist())) for table, each in loading.read(run).items()} == was
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sweeper: the tables of {run} ")
    assert f"{name}.parquet" in line
    assert line.endswith("rebuilt from its journals")


def test_no_flipped_bit_of_a_page_is_read_as_another_number(copied: Any) -> None:
    """Without checksums of pages every twelfth was."""
    run, _ = copied(tables=True)
    file = run / "phases.parquet"
    content, was = file.read_bytes(), loading.read(run)["phases"]
    noticed = 0
    for at in pages_of(file, "peak_resident_bytes"):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        try:
            assert loading._stored("phases", io.BytesIO(changed)).table.equals(was), at
        except Damaged:
            noticed += 1
    assert noticed > 30


def test_the_tables_of_another_run_are_not_taken_for_those_of_this_one(copied: Any, capsys: Any, runs: Any) -> None:
    run, whole = copied(tables=True)
    with contextlib.redirect_stdout(io.StringIO()):
        sweep(run.parent / "other", "grid")  # the same sweep, so the same points
    for name in TABLES:
        shutil.copy(run.parent / "other" / "run" / f"{name}.parquet", run / f"{name}.parquet")
    assert rows_of(run) == whole
    # The plans can have the same size, or differ by the digits of a checksum.
    assert re.search("are (of another run|behind its plan)", capsys.readouterr().err)


def test_a_table_that_cannot_be_made_again_ends_a_command_in_one_line(copied: Any) -> None:
    run, _ = copied(tables=True)
    foreign(run / "phases.parquet")
    shutil.rmtree(run / "points")
    for name in COMMANDS:
        ended = command(cli.run, [name, str(run)])
        assert (ended.code, ended.out) == (2, "")
        assert "phases.parquet" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize("kind", ["a file", "a pipe"])
def test_tables_that_something_in_place_of_the_attempts_keeps_from_being_made_again_end_in_one_line(
    copied: Any, kind: str
) -> None:
    run, _ = copied(tables=False)
    shutil.rmtree(run / "points")
    (run / "points").touch() if kind == "a file" else os.mkfifo(run / "points")
    for name in COMMANDS:
        ended = command(cli.run, [name, str(run)])
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.endswith(f", and points is {kind}, so they cannot be rebuilt\n")


def test_tables_are_read_although_the_plan_is_a_link_to_itself(copied: Any) -> None:
    run, _ = copied(tables=True)
    (run / "plan.jsonl").unlink()
    (run / "plan.jsonl").symlink_to("plan.jsonl")
    for name in COMMANDS:
        ended = command(cli.run, [name, str(run)])
        assert ended.code in (0, 2)
        assert "plan.jsonl" in ended.err


# --- reading is reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["whole", "without tables", "behind", "damaged"])
def test_no_reading_command_changes_or_adds_a_file(copied: Any, state: str) -> None:
    run, whole = copied(tables=state != "without tables")
    if state == "behind":
        shutil.rmtree(folder_of(run, row_of(whole, 2)))
        (run / "phases.parquet").unlink()
    elif state == "damaged":
        flipped(run / "points.parquet")
        (run / "plan.jsonl").write_bytes((run / "plan.jsonl").read_bytes().replace(b'"device"', b'"devicf"', 1))
    for path, folders, files in os.walk(run, topdown=False):
        for each in (*folders, *files):
            (Path(path) / each).chmod(0o555 if each in folders else 0o444)
    run.chmod(0o555)
    before = signature(run)
    try:
        for name, *flags in (*[(name,) for name in COMMANDS], *[(name, "--json") for name in COMMANDS]):
            assert command(cli.run, [name, str(run), *flags]).code in (0, 2)
        command(loaded, run)
        assert signature(run) == before
    finally:
        for path, _, _ in os.walk(run):
            Path(path).chmod(0o755)


# --- at random --------------------------------------------------------------------------------------------------------


def test_no_damage_gives_a_traceback_or_changes_another_row(runs: Any, tmp_path: Path) -> None:
    faults = fuzz(runs, tmp_path, 50, seed=13, every_command=False)
    assert not faults, report(faults)


@pytest.mark.slow
def test_no_damage_of_two_thousand_gives_a_traceback_or_changes_another_row_in_any_command(
    runs: Any, tmp_path: Path
) -> None:
    faults = fuzz(runs, tmp_path, 2000, seed=14, every_command=True)
    assert not faults, report(faults)
