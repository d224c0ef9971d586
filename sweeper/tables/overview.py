"""The runs in a folder, each in a few words: what it measured, when, and how it ended.

Little of a run is read, however large it is: both ends of its plan, and a dozen columns of its table of points. Nothing
is rebuilt from journals; where the plan or the table is missing, damaged or behind, the overview says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runners import files, locks
from runners.outcome import Status
from runners.stored_json import Damaged
from sweeper import columns
from sweeper.columns import DIMENSIONS, NAMED
from sweeper.errors import Mistake, did_you_mean
from sweeper.plan import typed_value
from sweeper.plan_lines import FORMAT, PLAN, DeviceLine, End, EndedLine, PlanLine, RunLine, parsed, written_by_newer
from sweeper.run_folder import LOCK, POINTS
from sweeper.tables.run_tables import PLAN_BYTES, file_size, table_file

PIECE = 2**16  # bytes read from either end of a plan; a run line has a few thousand, a point's line as many
RUNNING = "running"
UNKNOWN = "unknown"
DAMAGED = "damaged"
MISSING = "missing"  # of tables
MOST_VALUES = 6  # of a dimension that are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensioned:
    """A key that varies between the points of a run: how many values it has, and the first few."""

    key: str
    count: int
    values: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A run in a few words.

    `points`: for each kind of row, measured and calculated, the points by status, as the table of points has them; None
    if there is no such table.
    """

    name: str
    path: Path
    command: Sequence[str] = ()  # of the first sweep into the run
    started_at: str | None = None  # the first sweep; ISO 8601, UTC
    ended_at: str | None = None  # the last one
    # finished, interrupted, broke off, running; damaged: its plan cannot be read; unknown: nothing tells
    ended: str = UNKNOWN
    why: str | None = None
    models: Sequence[str] = ()
    workloads: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    devices: Sequence[str] = ()
    dimensions: Sequence[Dimensioned] = ()
    points: Mapping[str, Mapping[str, int]] | None = None
    tables: str | None = None  # missing or damaged; `show` rebuilds them
    behind: bool = False  # whether the plan has grown since the table was written
    written_ns: int = field(default=0, repr=False)  # when the plan was last written to


def runs_in(outputs: str | Path) -> list[RunOverview]:
    """The runs in a folder, the one whose plan was written last first. Raises Mistake if there is no such folder."""
    folder = Path(outputs).expanduser()
    try:
        runs = sorted(filter(_is_run, folder.iterdir()))
    except NotADirectoryError:
        raise Mistake(f"outputs={outputs}: is a file; name the folder with the runs") from None
    except FileNotFoundError:
        parent = folder.parent
        near = did_you_mean(folder.name, [each.name for each in parent.iterdir()] if parent.is_dir() else [])
        raise Mistake(f"outputs={outputs}: no such folder{near}; a sweep creates it") from None
    except PermissionError as error:
        raise Mistake(f"outputs={outputs}: cannot be read: {files.why(error)}") from None
    return sorted(map(overview, runs), key=lambda run: (run.written_ns, run.name), reverse=True)


def _is_run(folder: Path) -> bool:
    """Whether a folder has a plan, or has lost it and still has its attempts."""
    try:
        return files.kind_of(folder / PLAN) == files.FILE or files.kind_of(folder / POINTS) == files.FOLDER
    except PermissionError:  # of another user; `show` names the owner
        return False


def overview(folder: Path) -> RunOverview:
    """One run. What cannot be read of it is left out."""
    lines, written_ns = _ends_of_plan(folder)
    first = next((line for line in lines if isinstance(line, RunLine)), None)
    points, metadata = _points(folder)
    behind = metadata is not None and metadata.get(PLAN_BYTES) != str(file_size(folder / PLAN))
    statuses = None if points is None else _statuses(points)
    ended, why, ended_at = _end(folder, lines, statuses, behind)
    if (damage := _damage(folder, lines)) is not None and ended != RUNNING:
        ended, why = DAMAGED, damage
    if (newer := max((line.format for line in lines if isinstance(line, RunLine)), default=0)) > FORMAT:
        ended, why = UNKNOWN, written_by_newer(newer)
    found: dict[str, Any] = {"devices": [line.name for line in lines if isinstance(line, DeviceLine)]}
    if points is not None:
        found = {f"{name}s": _texts(points, name) for name in (*NAMED, "device")}
        found["dimensions"] = list(_dimensions(points))
    elif first is not None:
        found["dimensions"] = [
            Dimensioned(key=each.key, count=len(each.values), values=()) for each in first.dimensions
        ]
    return RunOverview(
        name=folder.name,
        path=folder,
        command=() if first is None else first.command,
        started_at=None if first is None else first.started_at,
        ended_at=ended_at,
        ended=ended,
        why=why,
        points=statuses,
        tables=_why_no_table(folder) if points is None else None,
        behind=behind,
        written_ns=written_ns,
        **found,
    )


def _damage(folder: Path, lines: Sequence[PlanLine]) -> str | None:
    """Why a run's plan cannot be read at all."""
    if lines:
        return None
    kind = files.kind_of(folder / PLAN)
    if kind == files.FILE:
        return f"no line of its {PLAN} can be read"
    return f"its {PLAN} is missing" if kind is None else f"its {PLAN} is {kind}"


def _why_no_table(folder: Path) -> str:
    return MISSING if files.kind_of(table_file(folder, "points")) is None else DAMAGED


def _statuses(points: pa.Table) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for kind, status in zip(points["kind"].to_pylist(), points["status"].to_pylist(), strict=True):
        found.setdefault(kind, Counter())[status] += 1
    return {kind: dict(of_kind.most_common()) for kind, of_kind in sorted(found.items(), reverse=True)}


def _end(
    folder: Path, lines: Sequence[PlanLine], statuses: Mapping[str, Mapping[str, int]] | None, behind: bool
) -> tuple[str, str | None, str | None]:
    """How the last sweep into a run ended, why, and when."""
    if locks.is_held(folder / LOCK):
        return RUNNING, None, None
    last = next((line for line in reversed(lines) if isinstance(line, (EndedLine, RunLine))), None)
    if isinstance(last, EndedLine):
        return str(last.how), last.why, last.ended_at
    writes_its_end = any(isinstance(line, RunLine) and line.format > 1 for line in lines)
    if writes_its_end and (host := _other_host(folder / LOCK)) is not None:
        return UNKNOWN, f"it has no end, and began on {host}: it may be running there", None
    if writes_its_end:
        return End.BROKE_OFF.value, "it was killed, or the machine went down", None
    if statuses is None:
        return UNKNOWN, None, None
    found = {status for of_kind in statuses.values() for status in of_kind}
    if Status.INTERRUPTED.value in found:
        return End.INTERRUPTED.value, None, None
    if behind or Status.NOT_RUN.value in found:
        return End.BROKE_OFF.value, "points had no turn", None
    return End.FINISHED.value, None, None


def _other_host(lock: Path) -> str | None:
    """The other machine on which the last sweep into a run began, whose locks are not seen here."""
    found = re.search(r" on (\S+), since ", locks.holder(lock))
    return found[1] if found is not None and found[1] != socket.gethostname() else None


def _ends_of_plan(folder: Path) -> tuple[list[PlanLine], int]:
    """The lines at both ends of a plan that can be read, and when it was last written to."""
    try:
        with files.open_to_read(folder / PLAN) as file:
            found = os.fstat(file.fileno())
            pieces = list(_pieces(file, found.st_size))
    except (OSError, Damaged):
        return [], 0
    return [line for piece in pieces for line in _parsed(piece)], found.st_mtime_ns


def _pieces(file: IO[bytes], size: int) -> Iterator[list[bytes]]:
    """The whole lines at the start of a file, and those at its end. All of them if it is small."""
    if size <= 2 * PIECE:
        yield file.read().split(b"\n")
        return
    yield file.read(PIECE).split(b"\n")[:-1]
    file.seek(size - PIECE)
    yield file.read(PIECE).split(b"\n")[1:]


def _parsed(lines: Iterable[bytes]) -> Iterator[PlanLine]:
    for text in lines:
        # The lines of points are most of a plan, and the overview needs none of them.
        if text.strip() and b'"kind": "asked"' not in text[:64]:
            with contextlib.suppress(Damaged):
                line = parsed(text)
                if line is not None:
                    yield line


def _points(folder: Path) -> tuple[pa.Table | None, Mapping[str, str] | None]:
    """The columns of points.parquet that the overview shows, and the file's metadata. None if it cannot be read."""
    try:
        with files.open_to_read(table_file(folder, "points")) as file:
            stored = pq.ParquetFile(file)
            names = stored.schema_arrow.names
            wanted = [name for name in names if name in ("device", "kind", "status") or columns.is_key(name)]
            table = stored.read(columns=wanted, use_threads=False)
            metadata = {
                key.decode(errors="replace"): value.decode(errors="replace")
                for key, value in (stored.schema_arrow.metadata or {}).items()
            }
    except (OSError, pa.ArrowException, ValueError, MemoryError, Damaged):
        return None, None
    if not {"device", "kind", "status", *NAMED} <= set(table.column_names):
        return None, None
    return table, metadata


def _texts(points: pa.Table, name: str) -> list[str]:
    return [str(value) for value in pc.unique(points[name]).to_pylist() if value is not None]


def _dimensions(points: pa.Table) -> Iterator[Dimensioned]:
    usual = [column.name for column in DIMENSIONS]
    keys = [name for name in points.column_names if name not in ("device", "kind", "status", *NAMED)]
    for key in sorted(keys, key=lambda key: usual.index(key) if key in usual else len(usual)):
        values = pc.unique(points[key]).to_pylist()
        if len(values) > 1:
            shown = [typed_value(key, value) for value in values[:MOST_VALUES]]
            yield Dimensioned(key=key, count=len(values), values=shown)


def local_time(iso: str | None) -> str | None:
    """`2026-12-01 13:05` in the machine's time zone."""
    if iso is None:
        return None
    with contextlib.suppress(ValueError):
        return f"{datetime.fromisoformat(iso.replace('Z', '+00:00')).astimezone():%Y-%m-%d %H:%M}"
    return iso
