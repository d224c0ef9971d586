"""Rows of a table in memory as packed Arrow columns, and the conversion of values to Arrow arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from sweeper.columns import INT, TEXT, Column, schema_of
from sweeper.screen import warn


class _WithoutPandas:
    """A finder that does not find pandas.

    pyarrow imports it with the first array that it makes, to recognise arrays of pandas: 0.2 s and 34 MiB for a sweep,
    which has none. Where a table becomes a data frame, pyarrow imports it all the same (pandas-shim.pxi).
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError(name)


if "pandas" not in sys.modules:
    sys.meta_path.insert(0, _WithoutPandas)
    pa.array([])
    sys.meta_path.remove(_WithoutPandas)

PENDING = 512  # rows that wait as Python objects until they are packed
SLICE = 8192  # rows of a row group, which are unpacked together when the files are written


class PackedRows:
    """Rows of one table in memory. The newest wait as source objects, all others are packed Arrow columns."""

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
            self.pack()

    def slices(self) -> Iterator[pa.Table]:
        """All rows, about a row group at a time."""
        self.pack()
        together = SLICE // self._most_pending
        for start in range(0, len(self._packed), together):
            batches = [batch for buffer in self._packed[start : start + together] for batch in _unpacked(buffer)]
            yield pa.Table.from_batches(batches, self._schema).combine_chunks()

    def table(self) -> pa.Table:
        """All rows at once."""
        return pa.concat_tables([self._schema.empty_table(), *self.slices()]).combine_chunks()

    def pack(self) -> None:
        """Pack the rows that wait."""
        if not self._pending:
            return
        arrays = [
            as_array(values, column.type, column.name)
            for column, values in zip(self._columns, self._taken(self._pending), strict=True)
        ]
        self._pending = []
        sink = pa.BufferOutputStream()
        # Most counters of a device are null in every row and the others change little: lz4 leaves a tenth.
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(sink, self._schema, options=options) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._packed.append(sink.getvalue())

    def packed(self) -> list[bytes]:
        """All rows, for `extend` of the same table in another process."""
        self.pack()
        return [buffer.to_pybytes() for buffer in self._packed]

    def extend(self, packed: Sequence[bytes], count: int) -> None:
        """Add the rows that another table of the same columns has packed."""
        self.pack()
        self._packed += map(pa.py_buffer, packed)
        self._count += count

    def _taken(self, sources: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The values, column by column."""
        for together, columns in groupby(self._columns, attrgetter("together")):
            if together is not None:
                yield from together(sources)
                continue
            for of in (column.of for column in columns if column.of is not None):
                yield list(map(of, sources))


def _unpacked(buffer: pa.Buffer) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(buffer) as stream:
        return list(stream)


def table_of(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    arrays = [as_array([row.get(column.name) for row in rows], column.type, column.name) for column in columns]
    return pa.Table.from_arrays(arrays, schema=schema_of(columns))


def as_array(values: Sequence[Any], type: pa.DataType, name: str) -> pa.Array:
    """The values as a column. A value that does not fit the type becomes null, with a warning, and the others stay."""
    try:
        return pa.array(values, type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    kept = [_fitting(value, type) for value in values]
    lost = [value for value, fitting in zip(values, kept, strict=True) if value is not None and fitting is None]
    if lost:
        warn(f"{name}: {len(lost)} values are not of type {type} and are left out, the first {lost[0]!r:.60}")
    return pa.array(kept, type)


def _fitting(value: Any, type: pa.DataType) -> Any:
    """The value as this type holds it (lone surrogates of text replaced, 2.0 as 2), or None if it cannot."""
    if value is None:
        return None
    if type == TEXT:
        return str(value).encode("utf-8", "replace").decode()
    try:
        if type == INT and not isinstance(value, int):
            whole = int(value)
            return whole if whole == float(value) and -(2**63) <= whole < 2**63 else None
        return pa.scalar(value, type).as_py()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
