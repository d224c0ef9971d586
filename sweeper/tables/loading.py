"""A run's finished tables, read back. If they are missing or older than the journals, they are built in memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from runners.device import device_named
from runners.point import Attempt, AttemptFolder, Point
from sweeper.columns import TABLES, VERSION
from sweeper.errors import Mistake
from sweeper.plan_lines import PLAN, read_plan
from sweeper.run_folder import POINTS
from sweeper.tables.packed_rows import warn
from sweeper.tables.run_tables import PLAN_BYTES, Tables, attempt_folders, file_size, table_file

if TYPE_CHECKING:
    import pandas as pd


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
        found = {name: pq.read_table(table_file(folder, name), partitioning=None) for name in TABLES}
        behind = _behind(folder, found)
    except (OSError, pa.ArrowException) as error:
        behind = f"cannot be read ({' '.join(str(error).split())})"
    if behind is None:
        return found
    warn(f"the tables of {folder} {behind}: rebuilt from its journals")
    return Tables(folder, unsettled=False).arrow()


def run_folder(run: str | Path) -> Path:
    """The folder of a run. Raises Mistake if there is none, or if it is not a run."""
    folder = Path(run)
    if not folder.is_dir():
        nearby = Path("outputs") / folder
        hint = f"; did you mean {nearby}?" if nearby.is_dir() else ""
        raise Mistake(f"{run}: no such folder{hint}")
    if not (folder / PLAN).exists() and not (folder / POINTS).is_dir():
        raise Mistake(f"{run}: not a run, it has neither {PLAN} nor {POINTS}/")
    if next(read_plan(folder), None) is None and not (folder / POINTS).is_dir():
        raise Mistake(f"{run}: not a run, no line of its {PLAN} can be read")
    return folder


def _behind(folder: Path, found: Mapping[str, pa.Table]) -> str | None:
    """Why the tables lack something that is in the folder, or None if they are up to date."""
    for name, table in found.items():
        version = (table.schema.metadata or {}).get(b"sweeper.schema", b"?").decode()
        if version != str(VERSION):
            return f"are of another version ({name}.parquet: {version}, now {VERSION})"
    written_from = (found["points"].schema.metadata or {}).get(PLAN_BYTES.encode(), b"0")
    if int(written_from) != file_size(folder / PLAN):
        return "are behind its plan"
    attempts = found["attempts"].select(["point_id", "device", "attempt"]).to_pydict()
    known = {(id, _on_disk(device), number) for id, device, number in zip(*attempts.values(), strict=True)}
    for path in attempt_folders(folder / POINTS):
        id, _, rest = path.name.partition(".")
        device, _, number = rest.rpartition(".")
        if (id, device, int(number) if number.isdigit() else None) not in known and AttemptFolder(path).exit.exists():
            return "are behind its attempts"
    return None


@cache
def _on_disk(device: str) -> str:
    """A device's name in the name of an attempt's folder."""
    return Attempt(point=Point(values={}), device=device_named(device)).name.partition(".")[2].rpartition(".")[0]
