"""A run's plan and journals as Parquet. The files hold no facts of their own: delete them and they are built again.

    python -c "from sweeper.tables.run_tables import Tables; Tables('outputs/bill').write()"

Rows are kept as packed Arrow columns: 100,000 attempts take some hundred MiB. Values that a later attempt can change
(which attempt counts, the number of attempts) are joined to the rows when the files are written.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runners import files
from runners.device import device_named
from runners.outcome import Outcome, Status
from runners.point import Attempt, AttemptFolder, Point, canonical
from runners.record import attempt_in, outcome_in
from runners.stored_json import Damaged
from sweeper import columns, quality, run_folder
from sweeper.columns import Column
from sweeper.frontier.edges import HEADROOM_NEEDS, NEEDS, frontier, headroom, limit_bytes
from sweeper.frontier.open_values import SearchedValues, searched_in
from sweeper.objective import TOKENS
from sweeper.plan import dotted
from sweeper.plan_lines import (
    PLAN,
    DeviceLine,
    NeighbourLine,
    PlanLine,
    PlannedLine,
    RunLine,
    SearchedLine,
    SkippedLine,
    damage_in,
    read_plan,
)
from sweeper.rows import EstimatedTerm, MeasuredPhase, PlannedRow, Row, SettledAttempt
from sweeper.screen import warn
from sweeper.tables import other_core
from sweeper.tables.loss_check import Trained, compared, trained
from sweeper.tables.packed_rows import SLICE, PackedRows, as_array, table_of
from sweeper.units import format_count

PENDING_ATTEMPTS = 64  # attempts that wait to be packed: each holds its whole outcome
PENDING_BYTES = 2**24  # of the journals of attempts that wait: as objects they take six times as much
WORTH_A_FORK = 250  # attempts: read in 0.2 s
ALLOCATORS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes")  # these repeat exactly
REST = 9  # pause between writes, in durations of the last one: a small run grows by a tenth with every attempt
# Keys in the metadata of every file: the writing it belongs to, the size of plan.jsonl that it was written from, and
# when the first sweep of that plan started.
GENERATION, PLAN_BYTES, STARTED = "sweeper.generation", "sweeper.plan_bytes", "sweeper.started_at"

# malloc, because Arrow's own pools keep freed memory: after 2,000 attempts the orchestrator was 58 MiB larger than
# after 200, and 18 MiB larger with malloc.
pa.set_memory_pool(pa.system_memory_pool())


class Tables:
    """A run's plan and attempts so far: read from its folder first, then extended during the sweep."""

    def __init__(self, folder: str | Path, unsettled: bool = True) -> None:
        """`unsettled`: give an attempt without exit.json a row as `lost`; otherwise leave it out, it may be running."""
        self.folder = Path(folder).absolute()
        self.objective = TOKENS
        self.quality: Mapping[str, Any] | None = None  # how quality is compared, as the folder's first run fixed it
        self.margin: Mapping[str, int | str] = {}
        self.started_at: str | None = None  # the folder's first run
        self.searched: list[SearchedValues] = []
        self._plan, self._results = PackedRows(columns.PLAN), PackedRows(columns.RESULT, PENDING_ATTEMPTS)
        self._phases, self._estimates = PackedRows(columns.PHASES), PackedRows(columns.ESTIMATES)
        self._pending_bytes = 0
        self._plan_rows: dict[tuple[str, str | None], int] = {}  # point and device (None: all devices) -> row of _plan
        self._set: dict[str, list[Any]] = {}  # key without a column of its own -> its value in each row of _plan
        self._devices: dict[str, DeviceLine] = {}
        self._skipped: dict[tuple[str, str | None], str] = {}
        self._neighbours: dict[tuple[str, str], NeighbourLine] = {}  # recorded when the point was started
        self._attempts: dict[tuple[str, str], list[AttemptRow]] = defaultdict(list)
        self._losses: dict[int, Trained] = {}  # row of _results -> its losses
        self._plain: dict[str, Trained] = {}  # Trained.alike -> the losses that the others are compared with
        self._environments: dict[str, Mapping[str, Any]] = {}
        self._estimated: set[str] = set()
        self._written = 0  # _size() when the files were last written
        self._rested = 0.0  # the monotonic time before which write_if_grown does not write
        with _no_garbage_collector():
            for line in read_plan(self.folder):
                self.planned(line)
            planned = len(self._plan)
            self._read_all(list(attempt_folders(self.folder / run_folder.POINTS)), unsettled)
        _report_damage(Path(folder), len(self._plan) - planned)

    def planned(self, line: PlanLine) -> None:
        """Add a line of plan.jsonl."""
        match line:
            case RunLine():
                self.objective = line.objective or self.objective
                self.quality = self.quality or line.quality
                self.started_at = self.started_at or line.started_at
                self.margin = line.margin or self.margin
                for dimension in line.dimensions:
                    self._add_key(dimension.key)
            case DeviceLine():
                self._devices[line.name] = line
            case PlannedLine():
                self._plan_point(line)
            case NeighbourLine():
                self._neighbours.setdefault((line.id, line.device), line)  # the first of a continued run
            case SearchedLine():
                searched = searched_in(line)
                if searched not in self.searched:
                    self.searched.append(searched)
            case SkippedLine():
                self._skipped[line.id, line.device] = line.because

    def settled(self, attempt: Attempt, outcome: Outcome) -> None:
        """Add an attempt that ended. An attempt that was added before is ignored."""
        id = attempt.point.id
        key = (id, attempt.device.name)
        attempts = self._attempts[key]
        if any(known.number == attempt.number for known in attempts):
            return
        if self._plan_row(*key) is None:
            self._plan_point(PlannedLine(id=id, device=attempt.device.name, values=attempt.point.values))
        environment = self._environment(outcome.environment)
        attempts.append(AttemptRow(attempt.number, len(self._results), outcome.fits, environment))
        self._keep_losses(trained(attempt.device.name, attempt.point, outcome), len(self._results))
        self._results.add(SettledAttempt(attempt, outcome, environment))
        for position, phase in enumerate(outcome.phases):
            self._phases.add(MeasuredPhase(id, attempt, position, phase))
        self._pending_bytes += outcome.record_bytes
        if self._pending_bytes > PENDING_BYTES:
            self._results.pack()
            self._phases.pack()
            self._pending_bytes = 0

    def write_if_grown(self) -> None:
        """Write the files if a tenth was added since the last time. Writing takes a tenth of the time at most."""
        grown = self._size() > self._written and self._size() * 10 >= self._written * 11
        if grown and time.monotonic() >= self._rested:
            self.write()

    def write(self) -> None:
        """Write every file aside, then rename them all: readers see an old file or a new one, never a part.

        The files of one writing have the same generation: after a kill between two renames, they differ.
        """
        began = time.monotonic()
        metadata = {
            GENERATION: uuid.uuid4().hex,
            PLAN_BYTES: str(file_size(self.folder / PLAN)),
            STARTED: self.started_at or "",
        }
        asides: dict[Path, Path] = {}
        try:
            with _no_garbage_collector():
                for name, declared, slices in self._tables():
                    file = table_file(self.folder, name)
                    aside = asides[file] = file.with_name(f".{file.name}.tmp")  # no match for *.parquet
                    _write(aside, columns.schema_of(declared, metadata), slices)
            for file, aside in asides.items():
                files.replace(aside, file)
        finally:
            for aside in asides.values():
                files.remove(aside)
        self._written = self._size()
        ended = time.monotonic()
        self._rested = ended + REST * (ended - began)

    def arrow(self) -> dict[str, pa.Table]:
        """The tables by name, as they would be read from the files."""
        return {
            name: pa.Table.from_batches([batch for table in slices for batch in table.to_batches()], as_schema)
            for name, declared, slices in self._tables()
            for as_schema in [columns.schema_of(declared)]
        }

    def rows(self) -> list[Row]:
        """The rows of points.parquet, with the columns that a frontier needs."""
        swept = self._swept_columns()
        kept = [*NEEDS, *(column.name for column in swept)]
        slices = self._joined(columns.POINTS, self._points(), swept)
        return [row for table in slices for row in table.select(kept).to_pylist()]

    def pairs(self) -> set[tuple[str, str]]:
        """The id of every planned point with the name of each device that it is planned on."""
        return {(row.point, row.device) for row in self._points()}

    def tried(self, device: str) -> list[Point]:
        """The points with at least one attempt on a device."""
        places = [self._plan_row(point, on) for point, on in self._attempts if on == device]
        configs = self._plan.table()["config"].take(pa.array(places, pa.int64())).to_pylist() if places else []
        return [Point(values=json.loads(config)) for config in configs]

    def _size(self) -> int:
        return len(self._plan) + len(self._results) + len(self._skipped) + len(self._devices)

    # Adding

    def _read_all(self, paths: Sequence[Path], unsettled: bool) -> None:
        """Add the attempts on disk, the later half of many on another core."""
        half = len(paths) // 2
        if half < WORTH_A_FORK or not other_core.is_free():
            self._read_each(paths, unsettled)
            return
        try:
            with other_core.computing(lambda: self._read_apart(paths[half:], unsettled)) as later:
                self._read_each(paths[:half], unsettled)
                found = later.result()
        except OSError:  # no process; what was added stays
            found = None
        if found is None:
            self._read_each(paths, unsettled)
        else:
            self._add(found)

    def _read_each(self, paths: Iterable[Path], unsettled: bool) -> None:
        for path in paths:
            found = AttemptFolder(path)
            if found.began() if unsettled else found.is_settled:
                self._read(found)

    def _read_apart(self, paths: Sequence[Path], unsettled: bool) -> ReadApart:
        """What these attempts add, in a process that has added no other."""
        planned = set(self._plan_rows)
        self._read_each(paths, unsettled)
        configs = self._plan.table()["config"] if len(self._plan_rows) > len(planned) else ()
        return ReadApart(
            results=self._results.packed(),
            phases=self._phases.packed(),
            phase_count=len(self._phases),
            attempts=dict(self._attempts),
            losses=self._losses,
            environments=self._environments,
            unplanned=[
                (*key, json.loads(configs[row].as_py())) for key, row in self._plan_rows.items() if key not in planned
            ],
        )

    def _add(self, read: ReadApart) -> None:
        """Add attempts that were read in another process, as `settled` adds each."""
        for id, device, values in read.unplanned:
            self._plan_point(PlannedLine(id=id, device=device, values=values))
        first = len(self._results)
        for key, attempts in read.attempts.items():
            self._attempts[key] += [each._replace(row=first + each.row) for each in attempts]
        for row, losses in read.losses.items():
            self._keep_losses(losses, first + row)
        for environment, record in read.environments.items():
            self._environments.setdefault(environment, record)
        self._results.extend(read.results, sum(map(len, read.attempts.values())))
        self._phases.extend(read.phases, read.phase_count)

    def _read(self, folder: AttemptFolder) -> None:
        """Add an attempt on disk. One without a request that can be read is known by its name, if it was planned."""
        try:
            attempt = attempt_in(folder)
        except Damaged as damaged:
            found = self._named_after(folder.path)
            if found is None:
                warn(f"{folder.path}: left out, its {damaged}")
                return
            why = f"its record is damaged: {damaged}"
            lost = Outcome(status=Status.LOST, void=True, device=found.device, attempt=found.number, error_message=why)
            self.settled(found, lost)
        else:
            self.settled(attempt, outcome_in(folder, attempt))

    def _named_after(self, path: Path) -> Attempt | None:
        """The planned attempt whose folder has this name."""
        id, number = path.name.partition(".")[0], path.name.rpartition(".")[2]
        for name in self._devices:
            planned = self._plan_row(id, name)
            if planned is not None and re.fullmatch("[1-9][0-9]{0,8}", number):
                point = Point(values=json.loads(self._plan.table()["config"][planned].as_py()))
                attempt = Attempt(point=point, device=device_named(name), number=int(number))
                if path.parent.parent / attempt.name == path:
                    return attempt
        return None

    def _plan_point(self, line: PlannedLine) -> None:
        key, id, point = (line.id, line.device), line.id, line.point
        if key in self._plan_rows:
            return
        self._plan_rows[key] = len(self._plan)
        self._plan.add(PlannedRow(point, line))
        for each, values in self._set.items():
            values.append(_shared(point.get(each)))
        for each in (*line.settings, *(f"workload.{name}" for name, _ in dotted(_workload(point)))):
            self._add_key(each)
        if id not in self._estimated:
            self._estimated.add(id)
            for term in _terms(point.values):
                self._estimates.add(EstimatedTerm(id, term))

    def _add_key(self, key: str) -> None:
        """Give a key its column, also for the points that were planned before it was set."""
        if key in self._set or key in columns.USUAL or key == "workload.name":
            return
        configs = (config for table in self._plan.slices() for config in table["config"].to_pylist())
        self._set[key] = [_shared(Point(values=json.loads(config)).get(key)) for config in configs]

    def _keep_losses(self, losses: Trained | None, row: int) -> None:
        """Keep the losses of the attempt that has a row of results."""
        if losses is None:
            return
        self._losses[row] = losses
        if losses.is_plain:  # the smallest id, so that the order in which attempts are added does not matter
            self._plain[losses.alike] = min(self._plain.get(losses.alike, losses), losses, key=attrgetter("point_id"))

    def _environment(self, record: Mapping[str, Any]) -> str | None:
        """The id of an environment; None for an empty record."""
        if not record:
            return None
        last = next(reversed(self._environments), None)
        if last is not None and self._environments[last] == record:  # saves the hash for most attempts of a run
            return last
        environment = hashlib.sha256(canonical(record).encode()).hexdigest()[:16]
        self._environments.setdefault(environment, record)
        return environment

    # Joining

    def _tables(self) -> Iterator[tuple[str, Sequence[Column], Iterable[pa.Table]]]:
        """Each table's name, its columns, and its rows in slices."""
        swept = self._swept_columns()
        edges: list[dict[str, Any]] = []
        points = self._points()
        # Writing the points also collects the edges, which the last table needs.
        yield "points", columns.with_swept(columns.POINTS, swept), self._points_and_edges(points, swept, edges)
        attempts = [row.with_attempt(attempt) for row in points for attempt in self._attempts_of(row)]
        yield "attempts", columns.with_swept(columns.ATTEMPTS, swept), self._joined(columns.ATTEMPTS, attempts, swept)
        yield "phases", columns.PHASES, (self._named(table, columns.PHASES) for table in self._phases.slices())
        yield "environment", columns.ENVIRONMENT, self._environment_rows().slices()
        terms = (self._named(table, columns.ESTIMATES) for table in self._estimates.slices())
        yield "estimates", columns.ESTIMATES, terms
        declared = columns.with_swept(columns.FRONTIER, swept)
        yield "frontier", declared, [table_of(declared, edges)]

    def _points_and_edges(
        self, points: list[PointRow], swept: Sequence[Column], edges: list[dict[str, Any]]
    ) -> Iterator[pa.Table]:
        kept = [*NEEDS, *(column.name for column in swept)]
        rows: list[Row] = []
        for table in self._joined(columns.POINTS, points, swept):
            rows += table.select(kept).to_pylist()
            yield table
        edges += frontier(rows, self.objective, margin=self.margin, searched=self.searched)

    def _points(self) -> list[PointRow]:
        """Every planned point on every device it is planned on, in the plan's order, with the attempt that counts."""
        unlisted = {device: None for _, device in self._attempts if device not in self._devices}
        devices = [*self._devices, *unlisted]
        seen: set[tuple[str, str]] = set()
        rows = []
        for (point, planned_on), planned in self._plan_rows.items():
            for device in devices if planned_on is None else [planned_on]:
                if (point, device) not in seen:
                    seen.add((point, device))
                    rows.append(self._row(point, device, planned))
        return rows

    def _row(self, point: str, device: str, planned: int) -> PointRow:
        attempts = self._attempts.get((point, device), [])
        decided = [attempt for attempt in attempts if attempt.fits is not None]
        counting = max(decided or attempts, key=attrgetter("number"), default=None)
        alike = [each.fits for each in decided if each.environment == counting.environment] if counting else []
        flaky = len(set(alike)) > 1 if len(alike) > 1 else None
        row = PointRow(point, device, planned, counting, True, len(attempts), flaky)
        return row if attempts else self._without_attempt(row)

    def _without_attempt(self, row: PointRow) -> PointRow:
        """The row with the reason why there was no attempt."""
        device = self._devices.get(row.device)
        because = self._skipped.get((row.point, row.device)) or self._skipped.get((row.point, None))
        if device is not None and device.unavailable:
            return row._replace(status=Status.UNAVAILABLE, reason=device.unavailable)
        if because:
            return row._replace(status=Status.SKIPPED, skipped_because=because)
        return row._replace(status=Status.NOT_RUN)

    def _attempts_of(self, row: PointRow) -> list[AttemptRow]:
        return sorted(self._attempts.get((row.point, row.device), []), key=attrgetter("number"))

    def _plan_row(self, point: str, device: str) -> int | None:
        return self._plan_rows.get((point, device), self._plan_rows.get((point, None)))

    def _swept_columns(self) -> list[Column]:
        return [columns.swept_column(key, values) for key, values in self._set.items()]

    def _joined(
        self, declared: Sequence[Column], rows: Sequence[PointRow], swept: Sequence[Column]
    ) -> Iterator[pa.Table]:
        """The rows, a slice at a time, each joined from its plan row, its result and values computed here."""
        plan, results = self._plan.table(), self._results.table()
        for key, column in zip(self._set, swept, strict=True):
            values = columns.swept_values(self._set[key], column.type)
            plan = plan.append_column(column.name, as_array(values, column.type, column.name))
        declared = columns.with_swept(declared, swept)
        for start in range(0, len(rows), SLICE):
            part = rows[start : start + SLICE]
            planned = plan.take(pa.array([row.planned for row in part], pa.int64()))
            settled = results.take(pa.array([row.result for row in part], pa.int64()))
            computed = self._computed(part) | self._verdicts(part, planned, settled, results)
            computed |= self._spreads(part, results)
            computed |= _limits(part, settled, computed)
            found = dict(zip(settled.column_names, settled.columns, strict=True))
            found |= zip(planned.column_names, planned.columns, strict=True)
            arrays = [_joined_column(column, found, computed) for column in declared]
            yield pa.Table.from_arrays(arrays, schema=columns.schema_of(declared))

    def _loss_check(self, result: int | None) -> str | None:
        losses = None if result is None else self._losses.get(result)
        return None if losses is None else compared(losses, self._plain.get(losses.alike))

    def _computed(self, rows: Sequence[PointRow]) -> dict[str, list[Any]]:
        """Columns that neither plan nor attempt has, and values for those where the plan's or the attempt's is null."""
        devices = [self._devices.get(row.device) for row in rows]
        neighbours = [self._neighbours.get((row.point, row.device)) for row in rows]
        return {
            "run": [self.folder.name] * len(rows),
            "changed": [(line and ",".join(line.changed)) or None for line in neighbours],
            "changed_from": [line and line.changed_from for line in neighbours],
            "device": [row.device for row in rows],
            "kind": [device_named(row.device).kind for row in rows],
            "attempts": [row.attempts for row in rows],
            "flaky": [row.flaky for row in rows],
            "counts": [row.counts for row in rows],
            "loss_check": [self._loss_check(row.result) for row in rows],
            "status": [None if row.status is None else row.status.value for row in rows],
            "error_message": [row.reason for row in rows],
            "skipped_because": [row.skipped_because for row in rows],
            "device_total_bytes": [device and device.total_bytes for device in devices],
            "device_uuid": [device and device.uuid for device in devices],
        }

    def _verdicts(
        self, rows: Sequence[PointRow], planned: pa.Table, settled: pa.Table, results: pa.Table
    ) -> dict[str, list[Any]]:
        """The quality columns: each row compared with the attempt that counts at its reference."""
        sources = [planned[name].to_pylist() for name in ("weights", "quality_target", "quality_reference")]
        sources += [settled[name].to_pylist() for name in ("status", "quality")]
        found = []
        for row, weights, target, reference, status, number in zip(rows, *sources, strict=True):
            status = status or (None if row.status is None else row.status.value)
            assessed = quality.Assessed(status, number, weights, target, reference)
            found.append(quality.verdict(assessed, self._assessed(reference, row.device, results), self.quality))
        return {
            "quality_verdict": [each.verdict for each in found],
            "quality_worse_by": [each.worse_by for each in found],
            "quality_because": [each.because for each in found],
        }

    def _assessed(self, point: str | None, device: str, results: pa.Table) -> quality.Assessed | None:
        planned = None if point is None else self._plan_row(point, device)
        if point is None or planned is None:
            return None
        row = self._row(point, device, planned)
        if row.result is None:
            return quality.Assessed(None if row.status is None else row.status.value, None)
        status, number = (results[name][row.result].as_py() for name in ("status", "quality"))
        return quality.Assessed(status, number)

    def _passed_alike(self, row: PointRow) -> list[int]:
        """The result rows of the attempts that passed in the same environment as the newest decided one."""
        attempts = self._attempts_of(row)
        newest = max(attempts, key=lambda each: (each.fits is not None, each.number), default=None)
        return [each.row for each in attempts if each.fits and newest and each.environment == newest.environment]

    def _spreads(self, rows: Sequence[PointRow], results: pa.Table) -> dict[str, list[Any]]:
        """The spread of each peak, for every point that passed at least twice in the same environment."""
        passed = [self._passed_alike(row) for row in rows]
        peaks = [each.name for each in columns.PEAKS if each.name.startswith("peak_") and each.type == columns.INT]
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
            "spreads": [columns.as_text(spread) for spread in spreads],
            "allocator_peaks_differ": [any(apart) if apart else None for apart in differ],
        }

    def _named(self, table: pa.Table, declared: Sequence[Column]) -> pa.Table:
        """The rows with the run's name, in the schema's order."""
        run = pa.array([self.folder.name] * len(table), columns.TEXT)
        return table.append_column("run", run).select([column.name for column in declared])

    def _environment_rows(self) -> PackedRows:
        rows = PackedRows(columns.ENVIRONMENT)
        for environment, record in self._environments.items():
            rows.add({**record, "environment_id": environment, "record": record})
        return rows


class AttemptRow(NamedTuple):
    """An attempt, by its place in the results."""

    number: int
    row: int
    fits: bool | None
    environment: str | None  # attempts in different environments do not contradict each other


class ReadApart(NamedTuple):
    """Attempts that another process has read, with everything that they add to the tables."""

    results: list[bytes]
    phases: list[bytes]
    phase_count: int
    attempts: Mapping[tuple[str, str], list[AttemptRow]]
    losses: Mapping[int, Trained]
    environments: Mapping[str, Mapping[str, Any]]
    unplanned: list[tuple[str, str | None, Mapping[str, Any]]]  # points that the plan does not have


class PointRow(NamedTuple):
    """A row of points.parquet or attempts.parquet before it is joined: places of its sources."""

    point: str
    device: str
    planned: int
    attempt: AttemptRow | None
    counts: bool
    attempts: int
    flaky: bool | None
    status: Status | None = None  # set if there was no attempt, like reason and skipped_because
    reason: str | None = None
    skipped_because: str | None = None

    @property
    def result(self) -> int | None:
        return None if self.attempt is None else self.attempt.row

    def with_attempt(self, attempt: AttemptRow) -> PointRow:
        return self._replace(attempt=attempt, counts=attempt == self.attempt)


def _report_damage(run: Path, unplanned: int) -> None:
    """Print a line for what is damaged of a run's plan, and for attempts at points that the plan does not have."""
    damage = damage_in(run)
    if damage is not None:
        warn(f"{run}: {damage}")
    if unplanned:
        points = format_count(unplanned, "point")
        warn(f"{run}: {PLAN} does not have {points} with attempts in {run_folder.POINTS}/; they are kept")


def _limits(
    rows: Sequence[PointRow], settled: pa.Table, computed: Mapping[str, list[Any]]
) -> dict[str, list[int | str | None]]:
    """The limit of each row; for a point that fits, the bytes left of it and the column that they are left of."""
    found = {name: settled[name].to_pylist() for name in HEADROOM_NEEDS if name in settled.column_names}
    found |= {name: computed[name] for name in HEADROOM_NEEDS if name not in found}
    limits = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    left = [
        headroom(limit) if row.attempt is not None and row.attempt.fits else (None, None)
        for row, limit in zip(rows, limits, strict=True)
    ]
    return {
        "limit_bytes": [limit_bytes(limit) for limit in limits],
        "headroom_bytes": [free for free, _ in left],
        "headroom_counter": [counter for _, counter in left],
    }


def _workload(point: Point) -> Mapping[str, Any]:
    workload = point.values.get("workload")
    return workload if isinstance(workload, Mapping) else {}


def _joined_column(column: Column, found: Mapping[str, pa.Array], computed: Mapping[str, list[Any]]) -> pa.Array:
    if column.name not in computed:
        return found[column.name]
    values = as_array(computed[column.name], column.type, column.name)
    return pc.coalesce(found[column.name], values) if column.name in found else values


def _write(file: Path, file_schema: pa.Schema, slices: Iterable[pa.Table]) -> None:
    # Without a checksum a page with a flipped bit was read as other numbers, 61 times of 844.
    with (
        os.fdopen(files.create(file), "wb") as opened,
        pq.ParquetWriter(opened, file_schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for table in slices:
            writer.write_table(table, row_group_size=SLICE)


@contextmanager
def _no_garbage_collector() -> Iterator[None]:
    """Journals and rows hold no reference cycles, and searching millions of objects took two fifths of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def attempt_folders(points: Path) -> Iterator[Path]:
    for group in _folders(points):
        yield from _folders(group)


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
            return [Path(name) for name in names]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _terms(values: Mapping[str, Any]) -> Sequence[Any]:
    from sweeper.estimates import estimate  # imported late: readers of finished tables do not need it

    return estimate.terms(values)


def _shared(value: Any) -> Any:
    """The value, with equal strings of many points sharing one object."""
    return sys.intern(value) if isinstance(value, str) else value


def table_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def file_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
