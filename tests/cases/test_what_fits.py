"""Cases of cases.md: what is said of the largest that fits, and that nothing is said that was not measured."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.cases.conftest import MIB, Ran, Sweep, run, workload


def test_where_nothing_fits_none_is_the_answer(sweep: Sweep) -> None:
    """Case 22 (Lightning#3103, accelerate#332, accelerate#1934, transformers#27830): not 0, not 1, no traceback."""
    ran = sweep(*workload("always_oom"), "batch=1,2,4")
    assert set(ran.points["status"]) == {"oom"}
    frontier = ran.table("frontier")
    (fits,) = frontier[frontier["side"] == "fits"].to_dict("records")
    assert pd.isna(fits["point_id"])
    assert frontier[frontier["side"] == "fails"]["batch"].tolist() == [1]
    assert "none fits" in ran.out
    assert (ran.code, ran.err) == (0, "")


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    words = [*workload("threshold", limit="1,2,6,7,8,9"), "context=1", "batch=1,2,3,4,5,6,7,8"]
    return run(tmp_path_factory.mktemp("edges"), words)


@pytest.mark.parametrize(("limit", "largest"), [(1, 1), (6, 6), (7, 7), (8, 8), (9, 8)])
def test_the_edge_is_exact(edges: Ran, limit: int, largest: int) -> None:
    """Case 24 (DeepSpeed#2160, heretic#362, Lightning#11299), by the grid: a limit of 9 is not reached."""
    points = of_limit(edges, limit)
    found = edges.table("frontier")
    found = found[found["point_id"].isin(points["point_id"])].set_index("side")
    status = points.set_index("batch")["status"]
    assert found["batch"]["fits"] == largest
    assert status[largest] == "ok"
    if largest == 8:
        assert found["limit"].to_dict() == {"fits": "not_reached"}
    else:
        assert found["limit"]["fits"] == "memory"
        assert found["batch"]["fails"] == largest + 1
        assert status[largest + 1] == "oom"


def of_limit(edges: Ran, limit: int) -> pd.DataFrame:
    return edges.points[edges.points["workload.params.limit"] == limit]


def test_the_grid_measures_also_what_a_smaller_failure_implies(edges: Ran) -> None:
    """Case 26 (mlxcel#807, mlxcel#808): every row was measured, and none of them inferred."""
    rows = of_limit(edges, 2)
    assert sorted(rows["status"]) == ["ok"] * 2 + ["oom"] * 6
    assert rows["pid"].nunique() == 8
    assert rows["skipped_because"].isna().all()


def test_not_to_fit_is_an_answer(edges: Ran) -> None:
    """Case 66: some points are out of memory, and the exit code is 0."""
    assert edges.code == 0


def test_no_number_of_failures_ends_the_sweep_early(sweep: Sweep) -> None:
    """Case 65 (wandb#4628, hydra#1377, hydra#1463): five that do not fit, then one that does."""
    rows = sweep(*workload("threshold", limit=8), "context=1", "batch=16,32,64,128,256,8").points
    assert rows["batch"].tolist() == [16, 32, 64, 128, 256, 8]
    assert rows["started_at"].is_monotonic_increasing
    assert rows["status"].tolist() == ["oom"] * 5 + ["ok"]


def test_a_true_refusal_on_the_cpu_is_the_edge(sweep: Sweep) -> None:
    """Case 27 (pytorch#16558, accelerate#1934): a RuntimeError of the allocator, in a small address space."""
    ran = sweep(*workload("alloc64"), "batch=1,2,4,6,7,8")
    rows = ran.points.set_index("batch")
    assert rows["status"].to_dict() == {1: "ok", 2: "ok", 4: "ok", 6: "ok", 7: "oom", 8: "oom"}
    assert rows["error_type"][7] == "RuntimeError"
    assert rows["peak_is_partial"][7]
    assert 595 - 219 <= (rows["peak_resident_bytes"] - rows["process_baseline_bytes"])[7] / MIB <= 625 - 219
    frontier = ran.table("frontier").set_index("side")["batch"]
    assert frontier.to_dict() == {"fits": 6, "fails": 7}
