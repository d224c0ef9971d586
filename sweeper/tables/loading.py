"""A run's finished tables, read back. If they are missing or older than the journals, they are built in memory."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from runners import files, stored_json
from runners.point import AttemptFolder
from runners.stored_json import Damaged
from sweeper.columns import (
    DECLARED,
    FLOAT,
    INT,
    PANDAS,
    SCHEMA,
    TABLES,
    TEXT,
    VERSION,
    WITH_SWEPT,
    Column,
    schema_of,
    with_swept,
)
from sweeper.errors import Mistake, did_you_mean
from sweeper.plan_lines import PLAN, RunLine, check_format, damage_in, read_plan
from sweeper.run_folder import POINTS
from sweeper.screen import warn
from sweeper.tables.records import on_disk
from sweeper.tables.run_tables import GENERATION, PLAN_BYTES, STARTED, Tables, attempt_folders, file_size, table_file
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


def load(run: str | Path | Iterable[str | Path]) -> Frames:
    """The tables of a run, given its folder; of several runs, given their folders, in one set of frames.

    The column `run` tells several runs apart. A key that only some of them have a column for is null in the others.
    Raises Mistake if one is not a run, or if one is given twice.

    If a table is missing, torn or behind the journals, all of its run are built again, in memory only.
    """
    found = read(run) if isinstance(run, (str, Path)) else read_several(run)
    return Frames(**{name: table.to_pandas() for name, table in found.items()})


def read_several(runs: Iterable[str | Path]) -> dict[str, pa.Table]:
    """The tables of several runs as one table each, as Arrow tables. Raises Mistake as `load` does."""
    given = list(runs)
    if not given:
        raise Mistake("load needs at least one run, the folder of a sweep")
    folders = [run_folder(run) for run in given]
    names = _told_apart(folders)
    tables = [read(folder) for folder in folders]
    return {name: united(name, [of_run[name] for of_run in tables], names) for name in TABLES}


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """The name of each run: that of its folder, with as many folders above it as are needed. Raises Mistake."""
    paths = [folder.resolve() for folder in folders]
    for path in paths:
        if paths.count(path) > 1:
            raise Mistake(f"load: {path} is given twice")
    names = [path.name for path in paths]
    above = 1
    while len(set(names)) < len(names):
        above += 1
        names = [
            "/".join(path.parts[-above:]) if names.count(name) > 1 else name
            for path, name in zip(paths, names, strict=True)
        ]
    return names


def united(name: str, tables: Sequence[pa.Table], runs: Sequence[str]) -> pa.Table:
    """One table of several runs. `runs`: the value of the column `run` for each of them.

    A swept key whose columns have different types becomes a number or a text, as in a run that swept such values.
    """
    declared = DECLARED[name]
    fixed = {column.name for column in declared}
    types: dict[str, set[pa.DataType]] = {}
    for table in tables:
        for field in table.schema:
            if field.name not in fixed:
                types.setdefault(field.name, set()).add(field.type)
    swept = [Column(key, _one_type(found), f"value of the key {key}") for key, found in types.items()]
    wanted = with_swept(declared, swept) if swept else declared
    schema = schema_of(wanted)
    parts = []
    for table, run in zip(tables, runs, strict=True):
        columns = {
            column.name: _of_type(table[column.name], column.type, types.get(column.name))
            if column.name in table.column_names
            else pa.nulls(len(table), column.type)
            for column in wanted
        }
        if "run" in columns:
            columns["run"] = pa.array([run] * len(table), pa.string())
        parts.append(pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema))
    whole = pa.concat_tables(parts)
    return whole if "run" in fixed else _each_once(whole)


def _each_once(environments: pa.Table) -> pa.Table:
    """Two runs can have one environment, which has one row: a join with it would double every point otherwise."""
    first: dict[str, int] = {}
    for place, id in enumerate(environments["environment_id"].to_pylist()):
        first.setdefault(id, place)
    return environments.take(list(first.values()))


def _one_type(found: set[pa.DataType]) -> pa.DataType:
    if len(found) == 1:
        return next(iter(found))
    return FLOAT if found == {INT, FLOAT} else TEXT


def _of_type(values: pa.ChunkedArray, type: pa.DataType, found: set[pa.DataType] | None) -> Any:
    """A column as the united one has it: of mixed types each value is JSON, which keeps 1 and "1" apart."""
    if found is None or len(found) == 1 or values.type == type == FLOAT:
        return values
    if type == FLOAT:
        return values.cast(FLOAT)
    return pa.array([None if value is None else json.dumps(value) for value in values.to_pylist()], TEXT)


def read(run: str | Path) -> dict[str, pa.Table]:
    """The tables of a run by name, as Arrow tables. Raises Mistake as `load` does.

    Nothing in the run's folder is written. A line on stderr reports what is rebuilt, and what of the plan is damaged.
    """
    with _permitted(run):
        folder = run_folder(run)
        try:
            found = _files(folder)
            behind = _behind(folder, found)
        except FileNotFoundError as error:
            behind = f"are missing ({Path(error.filename).name})"
        except Damaged as damaged:
            behind = str(damaged)
        if behind is None:
            damage = damage_in(folder)
            if damage is not None:
                warn(f"{folder}: {damage}")
            return {name: stored.table for name, stored in found.items()}
        kind = files.kind_of(folder / POINTS)
        if kind not in (None, files.FOLDER):
            raise Mistake(f"{run}: the tables {behind}, and {POINTS} is {kind}, so they cannot be rebuilt")
        lost = _attempts_without_a_journal(folder)
        if lost:
            attempts = format_count(lost, "attempt")
            missing = f"the journals of {attempts} in {POINTS}/ are missing, so they cannot be rebuilt"
            raise Mistake(f"{run}: the tables {behind}, and {missing}")
        warn(f"the tables of {folder} {behind}: rebuilt from its journals")
        return Tables(folder, unsettled=False).arrow()


@contextlib.contextmanager
def _permitted(run: str | Path) -> Iterator[None]:
    """Raises Mistake for what may not be read: it belongs to another user."""
    try:
        yield
    except PermissionError as error:
        raise Mistake(f"{run}: {error.filename} cannot be read: {files.why(error)}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise Mistake(f"{str(run)[:60]}...: no such folder: {error.strerror}") from None


class Stored(NamedTuple):
    """A table from a file, and the metadata that the file had."""

    table: pa.Table
    swept: Sequence[tuple[str, pa.DataType]]  # the columns of the swept keys
    metadata: Mapping[str, str]


def _files(folder: Path) -> dict[str, Stored]:
    """The tables as they are on disk, all of one writing if possible: a sweep may be renaming its files meanwhile.

    Raises FileNotFoundError or Damaged.
    """
    found: dict[str, Stored] = {}
    for _ in range(READS):
        with contextlib.ExitStack() as opened:  # all of them before any is read, which takes longer
            tables = {name: opened.enter_context(_opened(folder, name)) for name in TABLES}
            found = {name: _stored(name, file) for name, file in tables.items()}
        if len(_of_each(found, GENERATION)) == 1:
            break
    return found


def _opened(folder: Path, name: str) -> IO[bytes]:
    path = table_file(folder, name)
    try:
        return files.open_to_read(path)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise Damaged(f"cannot be used: {path.name} cannot be read ({stored_json.why(error)})") from None


def _stored(name: str, file: IO[bytes]) -> Stored:
    """One table, from a file that was opened once: pyarrow opens a path twice, and it may be replaced in between.

    Raises Damaged, also if its columns are not those of the table.
    """
    try:
        file_in_memory = pq.ParquetFile(pa.BufferReader(file.read()), page_checksum_verification=True)
        # In a fork, a process that ended soon after a read with threads was aborted by them in 1 of 20 runs.
        table = file_in_memory.read(use_threads=False)
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        raise Damaged(f"cannot be used: {name}.parquet cannot be read ({' '.join(str(error).split())})") from None
    metadata = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (table.schema.metadata or {}).items()
    }
    if metadata.get(SCHEMA) != str(VERSION):
        found = metadata.get(SCHEMA, "?")
        raise Damaged(f"are of another version ({name}.parquet: {found}, now {VERSION})")
    declared, fixed = DECLARED[name], {column.name for column in DECLARED[name]}
    swept = [(field.name, field.type) for field in table.schema if field.name not in fixed]
    if name in WITH_SWEPT:
        declared = with_swept(declared, [Column(key, type, f"value of the key {key}") for key, type in swept])
    types = [(column.name, column.type) for column in declared]
    has_types = list(zip(table.schema.names, table.schema.types, strict=True))
    if has_types != types or any(type not in PANDAS for _, type in swept):
        raise Damaged(f"cannot be used: {name}.parquet has other columns than that table")
    # With the schema as it is declared: the file's own metadata may be damaged, and pandas obeys it.
    return Stored(pa.Table.from_arrays(table.columns, schema=schema_of(declared)), swept, metadata)


def _of_each(found: Mapping[str, Stored], key: str) -> set[str | None]:
    """The values of a key in the metadata of the files."""
    return {stored.metadata.get(key) for stored in found.values()}


def run_folder(run: str | Path) -> Path:
    """The folder of a run. Raises Mistake if there is none, if it may not be read, or if it is not a run."""
    folder = Path(run)
    if "\0" in str(run):
        raise Mistake(f"{str(run)!r}: holds a null character, which no name of a folder can hold")
    with _permitted(run):
        if folder.is_symlink():  # what is in a run is opened without following links
            folder = folder.resolve()
        if not folder.is_dir():
            raise Mistake(f"{run}: no such folder{did_you_mean(folder.name, _runs(), f'{OUTPUTS}/')}")
        if files.kind_of(folder / PLAN) == files.FILE:
            files.open_to_read(folder / PLAN).close()
        if not (folder / PLAN).exists() and not (folder / POINTS).is_dir():
            raise Mistake(f"{run}: not a run, it has neither {PLAN} nor {POINTS}/")
        if next(read_plan(folder), None) is None and not (folder / POINTS).is_dir():
            raise Mistake(f"{run}: not a run, no line of its {PLAN} can be read")
        check_format(run, folder)
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
    plans = sorted(Path(OUTPUTS).glob(f"*/{PLAN}"))
    return {path.parent.name: path for path in plans if files.kind_of(path) == files.FILE}


def _behind(folder: Path, found: Mapping[str, Stored]) -> str | None:
    """Why the tables lack something that is in the folder, or are not its own; None if they are up to date."""
    if len(_of_each(found, GENERATION)) > 1:
        return "are of several writings"
    if len({tuple(found[name].swept) for name in WITH_SWEPT}) > 1:
        return "do not have the same keys"
    metadata = found["points"].metadata
    if metadata.get(PLAN_BYTES) != str(file_size(folder / PLAN)):
        return "are behind its plan"
    first = next((line for line in read_plan(folder) if isinstance(line, RunLine)), None)
    if first is not None and metadata.get(STARTED, first.started_at) != (first.started_at or ""):
        return "are of another run"
    known = _attempts_in(found["attempts"].table)
    for path in attempt_folders(folder / POINTS):
        if path.name not in known and AttemptFolder(path).is_settled:
            return "are behind its attempts"
    return None


def _attempts_in(attempts: pa.Table) -> set[str]:
    """The names of the folders of the attempts in a table."""
    columns = attempts.select(["point_id", "device", "attempt"]).to_pydict().values()
    return {f"{id}.{on_disk(device)}.{number}" for id, device, number in zip(*columns, strict=True)}


def _attempts_without_a_journal(folder: Path) -> int:
    """The number of attempts in attempts.parquet whose folders are missing; 0 if the table cannot be read either."""
    try:
        with _opened(folder, "attempts") as file:
            known = _attempts_in(_stored("attempts", file).table)
    except (FileNotFoundError, Damaged):
        return 0
    return len(known - {path.name for path in attempt_folders(folder / POINTS)})
