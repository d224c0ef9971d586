"""The values that are still open, counted exactly at any moment of a search."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.point import Point
from sweeper.confirm import Confirm
from sweeper.designs.expectation import Verdict
from sweeper.designs.search import LatticeSearch
from sweeper.frontier.edges import frontier
from sweeper.frontier.open_values import SearchedValues, searched_in
from sweeper.interval import Interval
from sweeper.plan import Dimension
from sweeper.plan_lines import SearchedLine
from sweeper.tables.run_tables import Tables
from sweeper.views.frontier_text import frontier_text
from tests.sweeper.frontier.test_edges import row

At = tuple[int, ...]
KEYS = ("batch", "context")


def searched(**dimensions: Any) -> SearchedValues:
    values = {"model": {"name": "mlp"}, "batch": 1, "context": 64}
    return SearchedValues(Point(values=values | {key: each[0] for key, each in dimensions.items()}), dimensions)


def tried(ended: Mapping[At, str]) -> list[dict[str, Any]]:
    """Rows of points by batch, or by batch and context."""
    rows = []
    for at, status in ended.items():
        values = {"batch": 1, "context": 64} | dict(zip(KEYS, at, strict=False))
        rows.append(row(status, **values) | {"config": json.dumps({"model": {"name": "mlp"}, **values})})
    return rows


def between(ended: Mapping[At, str], *intervals: SearchedValues) -> list[tuple[str, int]]:
    return [(edge["side"], edge["untested_between"]) for edge in frontier(tried(ended), searched=intervals)]


def test_open_values_are_counted_in_a_search_that_another_key_follows() -> None:
    def settings(batch: int) -> dict[str, Any]:
        return {"batch": batch, "context": "${batch}"}

    values = {"model": {"name": "mlp"}, "batch": 1, "context": 1}
    line = SearchedLine(
        values=values, settings=settings(1), dimensions=(Dimension(key="batch", values=Interval(1, 512)),)
    )
    rows = [
        row(status, batch=batch, context=batch, settings=json.dumps(settings(batch)))
        | {"config": json.dumps(values | {"batch": batch, "context": batch})}
        for batch, status in ((300, "ok"), (304, "oom"))
    ]
    edges = frontier(rows, searched=[searched_in(line)])
    assert [(edge["side"], edge["batch"], edge["untested_between"]) for edge in edges] == [
        ("fits", 300, 3),
        ("fails", 304, 3),
    ]


@pytest.mark.parametrize(
    ("ended", "answer"),
    [
        ({(1,): "ok", (512,): "oom"}, [("fits", 510), ("fails", 510)]),
        ({(300,): "ok", (301,): "oom"}, [("fits", 0), ("fails", 0)]),
        ({(300,): "ok", (302,): "error", (304,): "oom"}, [("fits", 3), ("fails", 3)]),
        ({(300,): "ok"}, [("fits", 212)]),
        ({(512,): "ok"}, [("fits", 0)]),
        ({(300,): "oom"}, [("fits", 299), ("fails", 299)]),
    ],
)
def test_the_values_of_an_interval_between_the_two_sides_are_counted(ended: dict[At, str], answer: Any) -> None:
    assert between(ended, searched(batch=Interval(1, 512))) == answer


def test_an_interval_is_counted_at_its_resolution() -> None:
    assert between({(1,): "ok", (100,): "oom"}, searched(batch=Interval(1, 10**12, 10))) == [("fits", 9), ("fails", 9)]


def test_a_listed_value_counts_with_an_interval_although_nothing_was_measured_there() -> None:
    intervals = searched(batch=Interval(1, 8), context=(64, 128))
    assert between({(4, 64): "ok", (8, 64): "oom"}, intervals) == [("fits", 3 + 4), ("fails", 3)]


def test_several_intervals_count_each_value_once() -> None:
    ended = {(4,): "ok", (8,): "oom", (6,): "not_run"}
    narrow, wide, other = Interval(1, 8), Interval(1, 512), Interval(3, 9, 3)
    for intervals in ([narrow], [narrow, wide], [wide, narrow, other]):
        assert between(ended, *(searched(batch=each) for each in intervals)) == [("fits", 3), ("fails", 3)]
    assert between({(8,): "ok"}, searched(batch=narrow), searched(batch=Interval(6, 12, 3))) == [("fits", 2)]


def test_an_interval_of_another_search_does_not_count() -> None:
    intervals = searched(batch=Interval(1, 512))
    other = SearchedValues(Point(values={"model": {"name": "gpt2"}, "batch": 1, "context": 64}), intervals.dimensions)
    assert between({(1,): "ok", (2,): "oom"}, other) == [("fits", 0), ("fails", 0)]


def test_what_only_a_contradicted_attempt_implies_is_open() -> None:
    ended = {(1,): "ok", (3,): "oom", (5,): "ok", (8,): "oom"}
    assert between(ended, searched(batch=Interval(1, 8))) == [("fits", 2), ("fails", 1)]
    assert "open:                4 points" in frontier_text(tried(ended), searched=[searched(batch=Interval(1, 8))])


heights = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(lambda each: sorted(each, reverse=True))


@settings(max_examples=60, deadline=None)
@given(heights, st.integers(0, 30), st.integers(1, 3))
def test_for_any_monotone_set_the_table_and_the_search_leave_the_same_values_open(
    edge: list[int], most: int, resolution: int
) -> None:
    """Wherever the search is stopped. At each batch the contexts up to its height fit."""
    dimensions = {"batch": Interval(1, len(edge)), "context": Interval(1, 9, resolution)}
    search = LatticeSearch(dimensions, confirm=Confirm.parse("none"))
    ended: dict[At, str] = {}
    while len(ended) < most + 1 and (attempt := search.next_attempt()) is not None:
        batch, context = int(attempt.point["batch"]), int(attempt.point["context"])
        ended[batch, context] = "ok" if context <= edge[batch - 1] else "oom"
        search.record(Verdict(ended[batch, context] == "ok"))
    edges = frontier(tried(ended), searched=[searched(**dimensions)])
    every = list(itertools.product(*dimensions.values()))

    def covers(one: At, other: At) -> bool:
        return all(a >= b for a, b in zip(one, other, strict=True))

    unknown = [
        at
        for at in every
        if not any(covers(one, at) if status == "ok" else covers(at, one) for one, status in ended.items())
    ]
    lattice, evidence = search.lattice, search.evidence
    assert len(unknown) == sum(evidence.implied(lattice.place(cell)) is None for cell in lattice)
    for each in edges:
        at = None if each["point_id"] is None else (each["batch"], each["context"])
        if at is None:
            open_there = unknown
        elif each["side"] == "fits":
            open_there = [other for other in unknown if covers(other, at)]
        else:
            open_there = [other for other in unknown if covers(at, other)]
        assert each["untested_between"] == len(open_there)
        assert ended[at] == ("ok" if each["side"] == "fits" else "oom") if at else True
    if search.next_attempt() is None:
        assert not unknown


def test_the_searched_values_are_read_from_the_plan(written: Any) -> None:
    run = written({"batch": [1]})
    one, eight = run.ask(batch=1), run.ask(batch=8)
    run.passes(one)
    run.is_refused(eight)
    line = {"values": one.values, "dimensions": [{"key": "batch", "interval": [1, 8], "resolution": 1}]}
    run.plan(kind="searched", **line)
    run.plan(kind="searched", **line)
    tables = Tables(run.folder)
    assert tables.searched == [searched_in(SearchedLine.from_json(line))]
    assert tables.arrow()["frontier"].column("untested_between").to_pylist() == [6, 6]
