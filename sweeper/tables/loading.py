"""A run's finished tables, read back. If they are missing or older than the journals, they are built in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from runners.device import device_named
from runners.point import Attempt, AttemptFolder, Point
from sweeper.columns import TABLES, VERSION
from sweeper.errors import Mistake, did_you_mean
from sweeper.plan_lines import PLAN, read_plan
from sweeper.run_folder import POINTS
from sweeper.tables.packed_rows import warn
from sweeper.tables.run_tables import GENERATION, PLAN_BYTES, Tables, attempt_folders, file_size, table_file
from sweeper.units import format_count

if TYPE_CHECKING:
    import pandas as pd

OUTPUTS = "outputs"  # where runs go unless the user names another folder
READS = 3  # times that the files are opened, until all are of one writing


class Frames(NamedTuple):
    """A run's tables as pandas data frames. Integers are Int64: they stay exact in columns with nulls."""

    points: pd.DataFrame
    attempts: pd.DataFrame
    phases: pd.DataFrame
    environment: pd.DataFrame
    estimates: pd.DataFrame
    frontier: pd.DataFrame


def load(run: str | Path) -> Frames:
    """The tables of a run, given its folder. Raises Mistake if that is not a run.

    If a table is missing, torn or behind the journals, all are built again, in memory only.
    """
    return Frames(**{name: table.to_pandas() for name, table in read(run).items()})


def read(run: str | Path) -> dict[str, pa.Table]:
    """The tables of a run by name, as Arrow tables. Raises Mistake as `load` does."""
    folder = run_folder(run)
    try:
        found = _files(folder)
        behind = _behind(folder, found)
    except (OSError, pa.ArrowException) as error:
        behind = f"cannot be read ({' '.join(str(error).split())})"
    if behind is None:
        return found
    lost = _attempts_without_a_journal(folder)
    if lost:
        missing = f"the journals of {format_count(lost, 'attempt')} in {POINTS}/ are missing, so they cannot be rebuilt"
        raise Mistake(f"{run}: the tables {behind}, and {missing}")
    warn(f"the tables of {folder} {behind}: rebuilt from its journals")
    return Tables(folder, unsettled=False).arrow()


def _files(folder: Path) -> dict[str, pa.Table]:
    """The tables as they are on disk, all of one writing if possible: a sweep may be renaming its files meanwhile."""
    found: dict[str, pa.Table] = {}
    for _ in range(READS):
        with contextlib.ExitStack() as opened:  # all of them before any is read, which takes longer
            files = {name: opened.enter_context(table_file(folder, name).open("rb")) for name in TABLES}
            found = {name: _table(file.read()) for name, file in files.items()}
        if len(_generations(found)) == 1:
            break
    return found


def _table(content: bytes) -> pa.Table:
    """One table, from a file that was opened once: pyarrow opens a path twice, and it may be replaced in between."""
    return pq.ParquetFile(pa.BufferReader(content)).read()


def _generations(found: Mapping[str, pa.Table]) -> set[str | None]:
    return {_metadata(table, GENERATION) for table in found.values()}


def _metadata(table: pa.Table, key: str) -> str | None:
    value: bytes | None = (table.schema.metadata or {}).get(key.encode())
    return None if value is None else value.decode()


def run_folder(run: str | Path) -> Path:
    """The folder of a run. Raises Mistake if there is none, or if it is not a run."""
    folder = Path(run)
    if not folder.is_dir():
        raise Mistake(f"{run}: no such folder{did_you_mean(folder.name, _runs(), f'{OUTPUTS}/')}")
    if not (folder / PLAN).exists() and not (folder / POINTS).is_dir():
        raise Mistake(f"{run}: not a run, it has neither {PLAN} nor {POINTS}/")
    if next(read_plan(folder), None) is None and not (folder / POINTS).is_dir():
        raise Mistake(f"{run}: not a run, no line of its {PLAN} can be read")
    return folder


def newest_run() -> Path:
    """The run in the folder `outputs` whose plan was written last. Raises Mistake if there is none."""
    found = max(((path.stat().st_mtime_ns, name) for name, path in _runs().items()), default=None)
    if found is None:
        raise Mistake(
            f"there is no run in {OUTPUTS}; name the folder of one, or measure one, as in sweeper batch=1,2,4"
        )
    return Path(OUTPUTS) / found[1]


def _runs() -> dict[str, Path]:
    """The plan of each run in the folder `outputs`, by the run's name."""
    return {path.parent.name: path for path in sorted(Path(OUTPUTS).glob(f"*/{PLAN}"))}


def _behind(folder: Path, found: Mapping[str, pa.Table]) -> str | None:
    """Why the tables lack something that is in the folder, or None if they are up to date."""
    for name, table in found.items():
        version = _metadata(table, "sweeper.schema")
        if version != str(VERSION):
            return f"are of another version ({name}.parquet: {version or '?'}, now {VERSION})"
    if len(_generations(found)) > 1:
        return "are of several writings"
    if int(_metadata(found["points"], PLAN_BYTES) or 0) != file_size(folder / PLAN):
        return "are behind its plan"
    known = _attempts_in(found["attempts"])
    for path in attempt_folders(folder / POINTS):
        if path.name not in known and AttemptFolder(path).exit.exists():
            return "are behind its attempts"
    return None


def _attempts_in(attempts: pa.Table) -> set[str]:
    """The names of the folders of the attempts in a table."""
    columns = attempts.select(["point_id", "device", "attempt"]).to_pydict().values()
    return {f"{id}.{_on_disk(device)}.{number}" for id, device, number in zip(*columns, strict=True)}


def _attempts_without_a_journal(folder: Path) -> int:
    """The number of attempts in attempts.parquet whose folders are missing; 0 if the table cannot be read either."""
    try:
        known = _attempts_in(_table(table_file(folder, "attempts").read_bytes()))
    except (OSError, pa.ArrowException, KeyError):
        return 0
    return len(known - {path.name for path in attempt_folders(folder / POINTS)})


@cache
def _on_disk(device: str) -> str:
    """A device's name in the name of an attempt's folder."""
    return Attempt(point=Point(values={}), device=device_named(device)).name.partition(".")[2].rpartition(".")[0]
