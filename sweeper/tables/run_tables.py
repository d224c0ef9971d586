"""A run's plan and journals as Parquet: projections, thrown away and made again from plan.jsonl and points/ at will.

    python -c "from sweeper.tables.run_tables import Tables; Tables('outputs/bill').write()"

Rows are kept as packed Arrow columns, so that a hundred thousand attempts take some hundred MiB. What can still change
when a later attempt settles (which attempt counts, how many there were) is joined to them when the files are written.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runners import journal
from runners.device import device_named
from runners.outcome import Outcome, Status, outcome_of
from runners.point import Attempt, AttemptFolder, Point, canonical
from sweeper import columns as schema
from sweeper import quality
from sweeper.columns import Column, EstimatedTerm, MeasuredPhase, PlannedRow, SettledAttempt
from sweeper.errors import Mistake
from sweeper.frontier.edges import NEEDS, frontier
from sweeper.frontier.open_values import SearchedValues, searched_in
from sweeper.objective import TOKENS, Objective
from sweeper.tables.loss_check import Trained, compared, trained

if TYPE_CHECKING:
    import pandas as pd

PENDING = 512  # rows that wait as Python objects until they become Arrow columns
PENDING_ATTEMPTS = 64  # of those that hold all of an attempt
SLICE = 8192  # rows of a row group: what is unpacked at once when the files are written
ALLOCATORS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes")  # repeat exactly, or say something
REST = 9  # times as long as the last writing took: a small run grows by a tenth with every attempt
PLAN_BYTES = "sweeper.plan_bytes"  # in the metadata of points.parquet: how much of plan.jsonl it tells of

# Arrow's own pools keep what was freed: an orchestrator with 2,000 attempts behind it stood 58 MiB above one with 200,
# and 18 with malloc, which gives it back.
pa.set_memory_pool(pa.system_memory_pool())


class Frames(NamedTuple):
    """A run's tables as pandas data frames; integers are Int64, so that they stay exact beside what is missing."""

    points: pd.DataFrame
    attempts: pd.DataFrame
    phases: pd.DataFrame
    environment: pd.DataFrame
    estimates: pd.DataFrame
    frontier: pd.DataFrame


def load(run: str | Path) -> Frames:
    """The tables of a run. If one is missing, torn or behind the journals, they are made again, in memory alone."""
    return Frames(**{name: table.to_pandas() for name, table in read(run).items()})


def read(run: str | Path) -> dict[str, pa.Table]:
    """The tables of a run by name, as Arrow tables."""
    folder = run_folder(run)
    try:
        found = {name: pq.read_table(_file(folder, name), partitioning=None) for name in schema.TABLES}
        behind = _behind(folder, found)
    except (OSError, pa.ArrowException) as error:
        behind = f"cannot be read ({' '.join(str(error).split())})"
    if behind is None:
        return found
    _say(f"the tables of {folder} {behind}: made again from its journals")
    return Tables(folder, unsettled=False).arrow()


def run_folder(run: str | Path) -> Path:
    """The folder of a run, or a Mistake that says what is wrong with what was given."""
    folder = Path(run)
    if not folder.is_dir():
        nearby = Path("outputs") / folder
        hint = f"; did you mean {nearby}?" if nearby.is_dir() else ""
        raise Mistake(f"{run}: no such folder{hint}")
    if not (folder / "plan.jsonl").exists() and not (folder / "points").is_dir():
        raise Mistake(f"{run}: not a run, it has neither plan.jsonl nor points/")
    if not journal.read_lines(folder / "plan.jsonl") and not (folder / "points").is_dir():
        raise Mistake(f"{run}: not a run, no line of its plan.jsonl can be read")
    return folder


class Tables:
    """Everything known of a run so far: read from its folder at first, then told as it happens."""

    def __init__(self, folder: str | Path, unsettled: bool = True) -> None:
        """`unsettled`: an attempt without its supervisor's last word is `lost`; else left out, it may be running."""
        self.folder = Path(folder).absolute()
        self.objective = TOKENS
        self.quality: Mapping[str, Any] | None = None  # how it is compared, as the first run here that did fixed it
        self.margin: Mapping[str, int | str] = {}
        self.searched: list[SearchedValues] = []  # in intervals
        self._plan, self._results = PackedRows(schema.PLAN), PackedRows(schema.RESULT, PENDING_ATTEMPTS)
        self._phases, self._estimates = PackedRows(schema.PHASES), PackedRows(schema.ESTIMATES)
        self._asked: dict[tuple[str, str | None], int] = {}  # point and device (None: each) -> row of the plan
        self._swept: dict[str, list[Any]] = {}  # key -> its value in each row of the plan
        self._devices: dict[str, Mapping[str, Any]] = {}
        self._skipped: dict[tuple[str, str | None], str] = {}
        self._neighbours: dict[tuple[str, str], Mapping[str, Any]] = {}  # of points whose turn came later
        self._made: dict[tuple[str, str], list[AttemptRow]] = defaultdict(list)
        self._trained: dict[int, Trained] = {}  # row of the results -> its losses
        self._plain: dict[str, Trained] = {}  # by what is alike: the losses that the others' should be
        self._environments: dict[str, Mapping[str, Any]] = {}
        self._estimated: set[str] = set()
        self._written = 0  # what was told when the files were last written
        self._rested = 0.0  # not before this are they written again while attempts run
        with _no_garbage_collector():
            for line in journal.read_lines(self.folder / "plan.jsonl"):
                self.planned(line)
            for attempt, outcome in _settled_in(self.folder / "points", unsettled):
                self.settled(attempt, outcome)

    def planned(self, line: Mapping[str, Any]) -> None:
        """A line of plan.jsonl."""
        kind = line["kind"]
        if kind == "run":
            keys = line.get("keys") or {}
            if keys.get("objective"):
                self.objective = Objective.parse(keys["objective"])
            self.quality = self.quality or keys.get("quality")
            self.margin = keys.get("margin") or self.margin
            for dimension in line.get("dimensions") or ():
                self._sweep(dimension["key"])
        elif kind == "device":
            self._devices[line["name"]] = line
        elif kind == "asked":
            self._ask(line["id"], Point(values=line["values"]), line.get("device"), line)
        elif kind == "neighbour":
            self._neighbours.setdefault((line["id"], line["device"]), line)  # of a run that goes on, the first
        elif kind == "searched":
            searched = searched_in(line)
            if searched not in self.searched:
                self.searched.append(searched)
        elif kind == "skipped":
            self._skipped[line["id"], line.get("device")] = line["because"]

    def settled(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt that ended. One that is known already is not counted twice."""
        id = attempt.point.id
        key = (id, attempt.device.name)
        made = self._made[key]
        if any(known.number == attempt.number for known in made):
            return
        if self._row_of(*key) is None:
            self._ask(id, attempt.point, attempt.device.name, {})
        environment = self._environment(outcome.environment)
        made.append(AttemptRow(attempt.number, len(self._results), outcome.fits, environment))
        self._learnt(trained(attempt.device.name, attempt.point, outcome))
        self._results.add(SettledAttempt(attempt, outcome, environment))
        for position, phase in enumerate(outcome.phases):
            self._phases.add(MeasuredPhase(id, attempt, position, phase))

    def write_if_grown(self) -> None:
        """Write the files again if there is a tenth more to tell; writing takes a tenth of the time at most."""
        grown = self._size() > self._written and self._size() * 10 >= self._written * 11
        if grown and time.monotonic() >= self._rested:
            self.write()

    def write(self) -> None:
        """Write every file aside, then rename it: a reader sees the old one or the new one, whole."""
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with _no_garbage_collector():
            for name, columns, slices in self._tables():
                metadata = {PLAN_BYTES: str(_size(self.folder / "plan.jsonl"))} if name == "points" else None
                _write(_file(self.folder, name), schema.schema_of(columns, metadata), slices)
        self._written = self._size()
        ended = time.monotonic()
        self._rested = ended + REST * (ended - began)

    def arrow(self) -> dict[str, pa.Table]:
        """The tables by name, as they would be read from the files."""
        return {
            name: pa.Table.from_batches([batch for table in slices for batch in table.to_batches()], as_schema)
            for name, columns, slices in self._tables()
            for as_schema in [schema.schema_of(columns)]
        }

    def rows(self) -> list[dict[str, Any]]:
        """points.parquet as dictionaries, with the columns that a frontier needs."""
        swept = self._swept_columns()
        kept = [*NEEDS, *(column.name for column in swept)]
        slices = self._joined(schema.POINTS, self._points(), swept)
        return [row for table in slices for row in table.select(kept).to_pylist()]

    def pairs(self) -> set[tuple[str, str]]:
        """Every planned point with every device that it is planned on."""
        return {(row.point, row.device) for row in self._points()}

    def tried(self, device: str) -> list[Point]:
        """The points that there are attempts at on a device."""
        places = [self._row_of(point, on) for point, on in self._made if on == device]
        configs = self._plan.table()["config"].take(pa.array(places, pa.int64())).to_pylist() if places else []
        return [Point(values=json.loads(config)) for config in configs]

    def _size(self) -> int:
        return len(self._plan) + len(self._results) + len(self._skipped) + len(self._devices)

    # What is told, as it is told.

    def _ask(self, id: str, point: Point, device: str | None, line: Mapping[str, Any]) -> None:
        key = (id, device)
        if key in self._asked:
            return
        self._asked[key] = len(self._plan)
        self._plan.add(PlannedRow(id, point, line))
        for swept, values in self._swept.items():
            values.append(_shared(point.get(swept)))
        if id not in self._estimated:
            self._estimated.add(id)
            for term in _terms(point.values):
                self._estimates.add(EstimatedTerm(id, term))

    def _sweep(self, key: str) -> None:
        """Give a swept key its column, also for the points of an earlier run that it was fixed in."""
        if key in self._swept or key in schema.USUAL:
            return
        configs = (config for table in self._plan.slices() for config in table["config"].to_pylist())
        self._swept[key] = [_shared(Point(values=json.loads(config)).get(key)) for config in configs]

    def _learnt(self, losses: Trained | None) -> None:
        """The losses of the attempt that is the next row."""
        if losses is None:
            return
        self._trained[len(self._results)] = losses
        if losses.is_plain:  # of several the one with the smallest id, in whatever order they are told
            self._plain[losses.alike] = min(self._plain.get(losses.alike, losses), losses, key=attrgetter("point_id"))

    def _environment(self, record: Mapping[str, Any]) -> str | None:
        if not record:
            return None
        last = next(reversed(self._environments), None)
        if last is not None and self._environments[last] == record:  # most of a run is in the same surroundings
            return last
        environment = hashlib.sha256(canonical(record).encode()).hexdigest()[:16]
        self._environments.setdefault(environment, record)
        return environment

    # What is written, joined.

    def _tables(self) -> Iterator[tuple[str, Sequence[Column], Iterable[pa.Table]]]:
        swept = self._swept_columns()
        edges: list[dict[str, Any]] = []
        points = self._points()
        told = self._points_and_edges(points, swept, edges)  # the frontier is found on the way
        yield "points", schema.with_swept(schema.POINTS, swept), told
        attempts = [row.by(made) for row in points for made in self._made_of(row)]
        yield "attempts", schema.with_swept(schema.ATTEMPTS, swept), self._joined(schema.ATTEMPTS, attempts, swept)
        yield "phases", schema.PHASES, (self._named(table, schema.PHASES) for table in self._phases.slices())
        yield "environment", schema.ENVIRONMENT, self._environment_rows().slices()
        terms = (self._named(table, schema.ESTIMATES) for table in self._estimates.slices())
        yield "estimates", schema.ESTIMATES, terms
        columns = schema.with_swept(schema.FRONTIER, swept)
        yield "frontier", columns, [_table_of(columns, edges)]

    def _points_and_edges(
        self, points: list[PointRow], swept: Sequence[Column], edges: list[dict[str, Any]]
    ) -> Iterator[pa.Table]:
        kept = [*NEEDS, *(column.name for column in swept)]
        rows: list[dict[str, Any]] = []
        for table in self._joined(schema.POINTS, points, swept):
            rows += table.select(kept).to_pylist()
            yield table
        edges += frontier(rows, self.objective, margin=self.margin, searched=self.searched)

    def _points(self) -> list[PointRow]:
        """Every planned point on every device of the run, in the plan's order, with the attempt that counts."""
        unlisted = {device: None for _, device in self._made if device not in self._devices}
        devices = [*self._devices, *unlisted]
        seen: set[tuple[str, str]] = set()
        rows = []
        for (point, asked), planned in self._asked.items():
            for device in devices if asked is None else [asked]:
                if (point, device) not in seen:
                    seen.add((point, device))
                    rows.append(self._row(point, device, planned))
        return rows

    def _row(self, point: str, device: str, planned: int) -> PointRow:
        made = self._made.get((point, device), [])
        told = [one for one in made if one.fits is not None]
        counting = max(told or made, key=lambda one: one.number, default=None)
        alike = [one.fits for one in told if one.environment == counting.environment] if counting else []
        flaky = len(set(alike)) > 1 if len(alike) > 1 else None
        row = PointRow(point, device, planned, counting, True, len(made), flaky)
        return row if made else self._not_made(row)

    def _not_made(self, row: PointRow) -> PointRow:
        """Why there was no attempt: a row all the same."""
        unavailable = self._devices.get(row.device, {}).get("unavailable")
        because = self._skipped.get((row.point, row.device)) or self._skipped.get((row.point, None))
        if unavailable:
            return row._replace(status=Status.UNAVAILABLE, reason=str(unavailable))
        if because:
            return row._replace(status=Status.SKIPPED, skipped_because=because)
        return row._replace(status=Status.NOT_RUN)

    def _made_of(self, row: PointRow) -> list[AttemptRow]:
        return sorted(self._made.get((row.point, row.device), []), key=lambda one: one.number)

    def _row_of(self, point: str, device: str) -> int | None:
        return self._asked.get((point, device), self._asked.get((point, None)))

    def _swept_columns(self) -> list[Column]:
        return [schema.swept_column(key, values) for key, values in self._swept.items()]

    def _joined(
        self, columns: Sequence[Column], rows: Sequence[PointRow], swept: Sequence[Column]
    ) -> Iterator[pa.Table]:
        """The rows, a slice at a time: what was planned, what came of it, and what is known only now."""
        plan, results = self._plan.table(), self._results.table()
        for key, column in zip(self._swept, swept, strict=True):
            values = schema.swept_values(self._swept[key], column.type)
            plan = plan.append_column(column.name, _array(values, column.type, column.name))
        columns = schema.with_swept(columns, swept)
        for start in range(0, len(rows), SLICE):
            part = rows[start : start + SLICE]
            asked = plan.take(pa.array([row.planned for row in part], pa.int64()))
            came = results.take(pa.array([row.result for row in part], pa.int64()))
            known = self._known(part) | self._verdicts(part, asked, came, results) | self._spreads(part, results)
            arrays = [_joined_column(column, asked, came, known) for column in columns]
            yield pa.Table.from_arrays(arrays, schema=schema.schema_of(columns))

    def _loss_check(self, result: int | None) -> str | None:
        losses = None if result is None else self._trained.get(result)
        return None if losses is None else compared(losses, self._plain.get(losses.alike))

    def _known(self, rows: Sequence[PointRow]) -> dict[str, list[Any]]:
        """What neither the plan nor the attempt says; under an attempt's column, what stands where that is null."""
        devices = [self._devices.get(row.device, {}) for row in rows]
        neighbours = [self._neighbours.get((row.point, row.device), {}) for row in rows]
        return {
            "run": [self.folder.name] * len(rows),
            "changed": [",".join(line.get("changed", ())) or None for line in neighbours],
            "changed_from": [line.get("changed_from") for line in neighbours],
            "device": [row.device for row in rows],
            "kind": [schema.kind_of(row.device) for row in rows],
            "attempts": [row.attempts for row in rows],
            "flaky": [row.flaky for row in rows],
            "counts": [row.counts for row in rows],
            "loss_check": [self._loss_check(row.result) for row in rows],
            "status": [None if row.status is None else row.status.value for row in rows],
            "error_message": [row.reason for row in rows],
            "skipped_because": [row.skipped_because for row in rows],
            "device_total_bytes": [device.get("total_bytes") for device in devices],
            "device_uuid": [device.get("uuid") for device in devices],
        }

    def _verdicts(
        self, rows: Sequence[PointRow], asked: pa.Table, came: pa.Table, results: pa.Table
    ) -> dict[str, list[Any]]:
        """The quality of each row, beside that of the attempt that counts at its reference."""
        columns = [asked[name].to_pylist() for name in ("weights", "quality_target", "quality_reference")]
        columns += [came[name].to_pylist() for name in ("status", "quality")]
        found = []
        for row, weights, target, reference, status, number in zip(rows, *columns, strict=True):
            status = status or (None if row.status is None else row.status.value)
            assessed = quality.Assessed(status, number, weights, target, reference)
            found.append(quality.verdict(assessed, self._assessed(reference, row.device, results), self.quality))
        return {
            "quality_verdict": [each.verdict for each in found],
            "quality_worse_by": [each.worse_by for each in found],
            "quality_because": [each.because for each in found],
        }

    def _assessed(self, point: str | None, device: str, results: pa.Table) -> quality.Assessed | None:
        planned = None if point is None else self._row_of(point, device)
        if point is None or planned is None:
            return None
        row = self._row(point, device, planned)
        if row.result is None:
            return quality.Assessed(None if row.status is None else row.status.value, None)
        status, number = (results[name][row.result].as_py() for name in ("status", "quality"))
        return quality.Assessed(status, number)

    def _alike(self, row: PointRow) -> list[int]:
        """The places of the attempts that passed in the surroundings of the one that counts."""
        made = self._made_of(row)
        counting = max(made, key=lambda one: (one.fits is not None, one.number), default=None)
        return [one.row for one in made if one.fits and counting and one.environment == counting.environment]

    def _spreads(self, rows: Sequence[PointRow], results: pa.Table) -> dict[str, list[Any]]:
        """How far the peaks of the attempts lie apart that passed in the same surroundings, of every point with two."""
        passed = [self._alike(row) for row in rows]
        peaks = [each.name for each in schema.PEAKS if each.name.startswith("peak_") and each.type == schema.INT]
        names = [*peaks, "budget_used_bytes"]
        spreads: list[dict[str, int]] = []
        for places in passed:
            found = {}
            for name in names if len(places) > 1 else ():
                values = [value for place in places if (value := results[name][place].as_py()) is not None]
                if len(values) == len(places):
                    found[name] = max(values) - min(values)
            spreads.append(found)
        differ = [[spread[name] for name in ALLOCATORS if name in spread] for spread in spreads]
        return {
            "spreads": [schema.as_text(spread) for spread in spreads],
            "allocator_peaks_differ": [any(apart) if apart else None for apart in differ],
        }

    def _named(self, table: pa.Table, columns: Sequence[Column]) -> pa.Table:
        """The rows with the run's name, in the schema's order."""
        run = pa.array([self.folder.name] * len(table), schema.TEXT)
        return table.append_column("run", run).select([column.name for column in columns])

    def _environment_rows(self) -> PackedRows:
        rows = PackedRows(schema.ENVIRONMENT)
        for environment, record in self._environments.items():
            rows.add({**record, "environment_id": environment, "record": record})
        return rows


class AttemptRow(NamedTuple):
    """An attempt that was made: its number, its row, and whether it told."""

    number: int
    row: int
    fits: bool | None
    environment: str | None  # other surroundings tell of another device, and contradict nothing


class PointRow(NamedTuple):
    """A row of points.parquet or attempts.parquet, as places of what it is joined from."""

    point: str
    device: str
    planned: int
    made: AttemptRow | None
    counts: bool
    attempts: int
    flaky: bool | None
    status: Status | None = None
    reason: str | None = None
    skipped_because: str | None = None

    @property
    def result(self) -> int | None:
        return None if self.made is None else self.made.row

    def by(self, made: AttemptRow) -> PointRow:
        return self._replace(made=made, counts=made == self.made)


class PackedRows:
    """Rows of one table, in memory: the last as what they are made of, the rest as packed Arrow columns. Only grows."""

    def __init__(self, columns: Sequence[Column], pending: int = PENDING) -> None:
        self._columns = [column for column in columns if column.is_kept]
        self._schema = pa.schema([(column.name, column.type) for column in self._columns])
        self._most_pending = pending
        self._pending: list[Any] = []
        self._packed: list[pa.Buffer] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, source: Any) -> None:
        self._pending.append(source)
        self._count += 1
        if len(self._pending) >= self._most_pending:
            self._pack()

    def slices(self) -> Iterator[pa.Table]:
        """All rows, about a row group at a time."""
        self._pack()
        together = SLICE // self._most_pending
        for start in range(0, len(self._packed), together):
            batches = [batch for buffer in self._packed[start : start + together] for batch in _unpacked(buffer)]
            yield pa.Table.from_batches(batches, self._schema).combine_chunks()

    def table(self) -> pa.Table:
        """All rows at once."""
        return pa.concat_tables([self._schema.empty_table(), *self.slices()]).combine_chunks()

    def _pack(self) -> None:
        if not self._pending:
            return
        arrays = [
            _array(values, column.type, column.name)
            for column, values in zip(self._columns, self._taken(self._pending), strict=True)
        ]
        self._pending = []
        sink = pa.BufferOutputStream()
        # Most counters of a device are null throughout, and the others change little: a tenth is left of them.
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, self._schema, options=options) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._packed.append(sink.getvalue())

    def _taken(self, sources: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The values of each column."""
        for together, columns in groupby(self._columns, attrgetter("together")):
            if together is not None:
                yield from together(sources)
                continue
            for of in (column.of for column in columns if column.of is not None):
                yield list(map(of, sources))


def _unpacked(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(buffer) as stream:
        return list(stream)


def _joined_column(column: Column, asked: pa.Table, came: pa.Table, known: Mapping[str, list[Any]]) -> pa.Array:
    found = next((table[column.name] for table in (asked, came) if column.name in table.column_names), None)
    if column.name not in known:
        return found
    told = _array(known[column.name], column.type, column.name)
    return told if found is None else pc.coalesce(found, told)


def _table_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    arrays = [_array([row.get(column.name) for row in rows], column.type, column.name) for column in columns]
    return pa.Table.from_arrays(arrays, schema=schema.schema_of(columns))


def _array(values: Sequence[Any], type: pa.DataType, name: str) -> pa.Array:
    """The values as a column. What does not fit its type is null, and said: nothing that is measured is lost for it."""
    try:
        return pa.array(values, type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    kept = [_fitting(value, type) for value in values]
    lost = [value for value, fitting in zip(values, kept, strict=True) if value is not None and fitting is None]
    if lost:
        _say(f"{name}: {len(lost)} values are not of type {type} and are left out, the first {lost[0]!r:.60}")
    return pa.array(kept, type)


def _fitting(value: Any, type: pa.DataType) -> Any:
    """The value if a column of this type can hold it; text without what UTF-8 cannot say, a whole number as one."""
    if value is None:
        return None
    if type == schema.TEXT:
        return str(value).encode("utf-8", "replace").decode()
    try:
        if type == schema.INT and not isinstance(value, int):
            whole = int(value)
            return whole if whole == float(value) and -(2**63) <= whole < 2**63 else None
        return pa.scalar(value, type).as_py()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _write(file: Path, file_schema: pa.Schema, slices: Iterable[pa.Table]) -> None:
    aside = file.with_name(f".{file.name}.tmp")  # not *.parquet: nobody's pattern takes it for a table
    try:
        with pq.ParquetWriter(aside, file_schema, compression="zstd") as writer:
            for table in slices:
                writer.write_table(table, row_group_size=SLICE)
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _no_garbage_collector() -> Iterator[None]:
    """Journals and rows are values without cycles: looking for some among millions took two fifths of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _settled_in(points: Path, unsettled: bool) -> Iterator[tuple[Attempt, Outcome]]:
    """The attempts on disk, in a fixed order; one whose request cannot be read is skipped, and said."""
    for path in _attempt_folders(points):
        folder = AttemptFolder(path)
        exit = folder.settled()
        if exit is None and not unsettled:
            continue
        try:
            attempt = folder.attempt()
        except (OSError, ValueError, KeyError, TypeError) as error:
            _say(f"{path}: skipped, its point.json cannot be read ({type(error).__name__}: {error})")
            continue
        yield attempt, outcome_of(attempt, journal.read(folder.journal), exit)


def _attempt_folders(points: Path) -> Iterator[Path]:
    for group in _folders(points):
        yield from _folders(group)


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(name) for name in sorted(entry.path for entry in entries if entry.is_dir())]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _behind(folder: Path, found: Mapping[str, pa.Table]) -> str | None:
    """Why the tables do not tell of everything that is in the folder, or None if they do."""
    for name, table in found.items():
        version = (table.schema.metadata or {}).get(b"sweeper.schema", b"?").decode()
        if version != str(schema.VERSION):
            return f"are of another version ({name}.parquet: {version}, now {schema.VERSION})"
    told = (found["points"].schema.metadata or {}).get(PLAN_BYTES.encode(), b"0")
    if int(told) != _size(folder / "plan.jsonl"):
        return "are behind its plan"
    attempts = found["attempts"].select(["point_id", "device", "attempt"]).to_pydict()
    known = {(id, _on_disk(device), number) for id, device, number in zip(*attempts.values(), strict=True)}
    for path in _attempt_folders(folder / "points"):
        id, _, rest = path.name.partition(".")
        device, _, number = rest.rpartition(".")
        if (id, device, int(number) if number.isdigit() else None) not in known and AttemptFolder(path).exit.exists():
            return "are behind its attempts"
    return None


@cache
def _on_disk(device: str) -> str:
    """A device's name as it stands in the name of an attempt's folder."""
    return Attempt(point=Point(values={}), device=device_named(device)).name.partition(".")[2].rpartition(".")[0]


def _terms(values: Mapping[str, Any]) -> Sequence[Any]:
    from sweeper.estimates import estimate  # arithmetic that a reader of finished tables does not need

    return estimate.terms(values)


def _shared(value: Any) -> Any:
    """Equal texts of many points kept once."""
    return sys.intern(value) if isinstance(value, str) else value


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _say(line: str) -> None:
    print(f"sweeper: {line}", file=sys.stderr)
