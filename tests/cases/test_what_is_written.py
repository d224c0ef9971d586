"""Cases of cases.md: the tables hold what was measured and read back unchanged."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow.parquet as pq

from tests.cases.conftest import Ran, Sweep, workload


def test_bytes_and_counts_are_integers_in_the_file_even_with_failures_among_them(every_end: Ran) -> None:
    """Case 12 (pandas#56678, pipelinewise-target-snowflake#404, lsdb#27)."""
    schema = pq.read_schema(every_end.folder / "points.parquet")
    for column in ("peak_resident_bytes", "process_baseline_bytes", "batch", "context", "warmup"):
        assert str(schema.field(column).type) == "int64"
    peaks = every_end.points["peak_resident_bytes"]
    assert str(peaks.dtype) == "Int64"
    assert (peaks % 1024 == 0).all()


def test_names_and_nulls_read_back_as_they_were(missing: Ran) -> None:
    """Case 39 (pandas#55400, arrow#11027, arrow#14646, arrow#34905, delta-rs#1446): one file, and no partitions."""
    assert (missing.folder / "points.parquet").is_file()
    rows = pd.read_parquet(missing.folder / "points.parquet")
    assert set(rows["device"]) == {"cpu", "cuda:0"}
    assert set(rows["model"]) == {"mlp"}
    assert set(rows["dtype"]) == {"float32", "bfloat16"}
    absent = rows[rows["device"] == "cuda:0"]
    assert len(absent) == 2
    assert absent["peak_resident_bytes"].isna().all()


def test_a_returned_value_keeps_its_type_at_every_point(sweep: Sweep) -> None:
    """Case 40 (pandas#21228, arrow#43298, arrow#9886): 1, then "1", then nothing; half the timeouts are null."""
    rows = sweep(*workload("answers"), "timeout=null,5", "batch=1,2,3").points.sort_values(["timeout", "batch"])
    assert rows["timeout"].isna().tolist() == [False] * 3 + [True] * 3
    assert rows["timeout"].tolist()[:3] == [5, 5, 5]
    answers = [{} if pd.isna(text) else json.loads(text) for text in rows["metrics"]]
    assert answers == [{"answer": 1}, {"answer": "1"}, {}] * 2


def test_values_of_a_swept_key_keep_their_types_and_stay_apart(sweep: Sweep) -> None:
    """Case 40: 1 and "1" are two points; the column holds them as JSON text."""
    rows = sweep(*workload("echo", value="1,'1',true")).points
    assert list(rows["status"]) == ["ok", "ok", "ok"]
    assert [json.loads(text) for text in rows["workload.params.value"]] == [1, "1", True]
    assert [json.loads(text)["value"] for text in rows["metrics"]] == [1, "1", True]


def test_a_glob_for_parquet_finds_the_tables_alone(every_end: Ran) -> None:
    """Case 71 (stray files next to Parquet): nothing half-written, nothing of another kind."""
    names = {"points", "attempts", "phases", "environment", "estimates", "frontier"}
    files = list(every_end.folder.rglob("*.parquet"))
    assert {file.stem for file in files} == names
    assert {file.parent for file in files} == {every_end.folder}
    assert len(pd.read_parquet(every_end.folder / "points.parquet")) == len(every_end.points)
    for file in files:
        pq.read_table(file)
