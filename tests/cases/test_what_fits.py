"""Cases of cases.md: the largest size that fits, found by a grid and by a search."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tests.cases.conftest import MIB, Ran, Sweep, run, workload


@pytest.fixture(scope="module")
def too_large(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A workload for which nothing fits, and one for which the last size fits."""
    words = [*workload("threshold,always_oom", limit=8), "context=1", "batch=16,32,64,128,256,8"]
    return run(tmp_path_factory.mktemp("too_large"), words)


def of_target(ran: Ran, target: str) -> pd.DataFrame:
    return ran.points[ran.points["workload.target"] == f"wl:{target}"]


def test_where_nothing_fits_the_largest_is_none(too_large: Ran) -> None:
    """Case 22 (Lightning#3103, accelerate#332, accelerate#1934, transformers#27830): not 0, not 1, no traceback."""
    assert set(of_target(too_large, "always_oom")["status"]) == {"oom"}
    frontier = too_large.table("frontier")
    frontier = frontier[frontier["workload.target"] == "wl:always_oom"]
    (fits,) = frontier[frontier["side"] == "fits"].to_dict("records")
    assert pd.isna(fits["point_id"])
    assert frontier[frontier["side"] == "fails"]["batch"].tolist() == [8]
    assert "none fits" in too_large.out
    assert (too_large.code, too_large.err) == (0, "")


def test_no_number_of_failures_ends_the_sweep_early(too_large: Ran) -> None:
    """Case 65 (wandb#4628, hydra#1377, hydra#1463): five sizes that do not fit, then one that does."""
    rows = of_target(too_large, "threshold")
    assert rows["batch"].tolist() == [16, 32, 64, 128, 256, 8]
    assert rows["started_at"].is_monotonic_increasing
    assert rows["status"].tolist() == ["oom"] * 5 + ["ok"]


def test_a_key_that_follows_the_searched_one_leaves_one_answer(sweep: Sweep) -> None:
    """A checkpoint of its own for each batch: three groups under one heading contradicted each other."""
    target = workload("threshold", limit=4, note="'/ckpt/fold_${batch}.pt'")
    ran = sweep(*target, "context=1", "batch=2,4,8")
    assert ran.out.count("largest that fits:   batch=4") == ran.out.count("largest that fits") == 1
    assert "workload.params.note=/ckpt/fold_${batch}.pt" in ran.out
    assert ran.points["workload.params.note"].tolist() == [f"/ckpt/fold_{batch}.pt" for batch in (2, 4, 8)]
    assert ran.table("frontier")["batch"].tolist() == [4, 8]
    assert ran.points["changed"].tolist()[1:] == ["batch", "batch"]


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    words = [*workload("threshold", limit="1,2,6,7,8,9"), "context=1", "batch=1,2,3,4,5,6,7,8"]
    return run(tmp_path_factory.mktemp("edges"), words)


@pytest.mark.parametrize(("limit", "largest"), [(1, 1), (6, 6), (7, 7), (8, 8), (9, 8)])
def test_a_grid_finds_the_edge_exactly(edges: Ran, limit: int, largest: int) -> None:
    """Case 24 (DeepSpeed#2160, heretic#362, Lightning#11299), by a grid. No batch reaches a limit of 9."""
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


def test_a_grid_also_measures_what_a_smaller_failure_implies(edges: Ran) -> None:
    """Case 26 (mlxcel#807, mlxcel#808): every row is measured, none is inferred."""
    rows = of_limit(edges, 2)
    assert sorted(rows["status"]) == ["ok"] * 2 + ["oom"] * 6
    assert rows["pid"].nunique() == 8
    assert rows["skipped_because"].isna().all()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Five searches that alternate; each measures its edge a second time."""
    words = [*workload("threshold", limit="1,6,7,8,9"), "context=1", "batch=1,2,3,4,5,6,7,8", "design=frontier"]
    return run(tmp_path_factory.mktemp("searched"), words)


@pytest.mark.parametrize(("limit", "largest"), [(1, 1), (6, 6), (7, 7), (8, 8), (9, 8)])
def test_a_search_finds_the_edge_exactly_and_confirms_it(searched: Ran, limit: int, largest: int) -> None:
    """Case 24 (DeepSpeed#2160, heretic#362, Lightning#11299), by a search."""
    points = of_limit(searched, limit)
    found = searched.table("frontier")
    found = found[found["point_id"].isin(points["point_id"])].set_index("side")
    assert found["batch"]["fits"] == largest
    assert found["confirmed"].all()
    status = points.set_index("batch")["status"]
    assert status[largest] == "ok"
    if largest < 8:
        assert (found["batch"]["fails"], status[largest + 1]) == (largest + 1, "oom")
    else:
        assert found["limit"].to_dict() == {"fits": "not_reached"}


def test_a_skipped_point_names_the_attempt_that_implies_its_answer(searched: Ran) -> None:
    """Case 26 (mlxcel#807, mlxcel#808), with pruning on."""
    points = of_limit(searched, 6).set_index("batch")
    skipped = points[points["status"] == "skipped"]
    assert len(skipped) >= 3
    assert skipped[["peak_resident_bytes", "attempt", "pid", "fits"]].isna().all(axis=None)
    batch_of = {point_id: batch for batch, point_id in points["point_id"].items()}
    for batch, because in skipped["skipped_because"].items():
        implying = batch_of[because.rpartition("/")[2].partition(".")[0]]
        assert points["status"][implying] == ("ok" if batch < 6 else "oom")
        assert (implying > batch) if batch < 6 else (implying < batch)
    assert searched.code == 0
    assert "skipped" in searched.out


def test_the_same_search_again_measures_nothing(searched: Ran) -> None:
    attempts = len(searched.table("attempts"))
    words = [*workload("threshold", limit="1,6,7,8,9"), "context=1", "batch=1,2,3,4,5,6,7,8", "design=frontier"]
    again = run(searched.folder.parents[1], words)
    assert again.code == 0
    assert len(again.table("attempts")) == attempts


def test_a_wider_interval_measures_only_the_values_that_the_narrower_one_did_not_have(sweep: Sweep) -> None:
    # Without confirmations, which need new templates and are the claim of another test.
    words = [*workload("threshold", limit=20), "context=1", "design=frontier", "confirm=none"]
    narrow = sweep(*words, "batch=interval(1,8)")
    assert narrow.table("frontier")["limit"].tolist() == ["not_reached"]
    attempts = len(narrow.table("attempts"))
    assert len(sweep(*words, "batch=interval(1,8)").table("attempts")) == attempts
    wide = sweep(*words, "batch=interval(1,64)")
    found = wide.table("frontier").set_index("side")
    assert found["batch"].to_dict() == {"fits": 20, "fails": 21}
    assert found["untested_between"].tolist() == [0, 0]
    assert (wide.table("attempts")["batch"][attempts:] > 8).all()


def test_a_gap_in_what_fits_is_shown_and_its_sides_imply_nothing(sweep: Sweep) -> None:
    """batch=6 fails and batch=16 fits: the search measures what either alone would have implied."""
    grid = sweep(*workload("hole"), "batch=6,16")
    assert grid.table("frontier")["monotone"].tolist() == [False, False]
    assert "not monotone:        batch=6 fails, and batch=16 fits" in grid.out
    ran = sweep(*workload("hole"), "batch=1,2,4,5,6,7,8,16", "design=frontier", "confirm=none")
    found = ran.table("frontier").set_index("side")
    assert found["batch"].to_dict() == {"fits": 16, "fails": 5}
    assert not found["monotone"].any()
    assert "not monotone:        batch=5; batch=6; batch=7 fail, and batch=16 fits" in ran.out
    status = ran.points.set_index("batch")["status"].to_dict()
    assert {batch: status[batch] for batch in (5, 6, 7, 8, 16)} == {5: "oom", 6: "oom", 7: "oom", 8: "ok", 16: "ok"}
    assert set(status.values()) == {"ok", "oom", "skipped"}
    skipped = ran.points[ran.points["status"] == "skipped"]
    assert (skipped["batch"] < 4).all()  # implied by 4, which nothing contradicts


def test_an_audit_finds_a_gap_that_a_search_cannot_see(sweep: Sweep) -> None:
    """batch=7 fails, and all larger ones fit. The search implies that 7 fits as 12 does."""
    words = [*workload("hole"), "batch=8,9,10,11,12,7", "design=frontier"]
    alone = sweep(*words, "confirm=none")
    assert alone.table("frontier")["monotone"].isna().all()
    assert "assumed:             memory never decreases along batch; no attempt tested this" in alone.out
    assert alone.points.set_index("batch")["status"][7] == "skipped"  # which is wrong
    audited = sweep(*words, "confirm=none+audit:5")
    assert not audited.table("frontier")["monotone"].any()
    assert audited.points.set_index("batch")["status"][7] == "oom"
    assert "not monotone:        batch=7 fails, and batch=12 fits" in audited.out


def test_the_largest_with_a_margin_is_shown_next_to_the_largest(sweep: Sweep) -> None:
    words = ["design=frontier", "batch=1,2,3,4,5,6,7,8", "budget=600MiB", "margin.next_release=100MiB"]
    ran = sweep(*workload("grows"), *words, "margin.spread=measured")
    found = ran.table("frontier").set_index("side")
    assert found["batch"]["with_margin"] < found["batch"]["fits"]
    assert found["margin_bytes"]["with_margin"] >= 100 * MIB
    assert found["headroom_bytes"]["with_margin"] >= found["margin_bytes"]["with_margin"]
    assert "next_release 100.00 MiB assumed" in ran.out


def test_a_point_measured_several_times_has_the_spread_of_its_peaks(sweep: Sweep) -> None:
    ran = sweep(*workload("grows"), "batch=1,2", "repeat_points=2")
    assert ran.points["attempts"].tolist() == [2, 2]
    assert ran.points["flaky"].tolist() == [False, False]
    for spreads in ran.points["spreads"]:
        assert 0 <= json.loads(spreads)["peak_resident_bytes"] < 16 * MIB
    assert ran.table("attempts")["pid"].nunique() == 4


def test_a_sweep_with_points_that_do_not_fit_exits_with_0(edges: Ran) -> None:
    """Case 66."""
    assert edges.code == 0


def test_a_true_refusal_on_the_cpu_is_the_edge(sweep: Sweep) -> None:
    """Case 27 (pytorch#16558, accelerate#1934): the allocator raises RuntimeError in a small address space."""
    ran = sweep(*workload("alloc64"), "batch=1,2,4,6,7,8")
    rows = ran.points.set_index("batch")
    assert rows["status"].to_dict() == {1: "ok", 2: "ok", 4: "ok", 6: "ok", 7: "oom", 8: "oom"}
    assert rows["error_type"][7] == "RuntimeError"
    assert rows["peak_is_partial"][7]
    assert 595 - 219 <= (rows["peak_resident_bytes"] - rows["process_baseline_bytes"])[7] / MIB <= 625 - 219
    frontier = ran.table("frontier").set_index("side")["batch"]
    assert frontier.to_dict() == {"fits": 6, "fails": 7}
