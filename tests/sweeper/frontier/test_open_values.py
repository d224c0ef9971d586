"""What was asked for and nobody knows: counted to the last value of an interval, at any moment of a search."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.point import Point
from sweeper.designs.expectation import Verdict
from sweeper.designs.search import LatticeSearch
from sweeper.frontier.edges import frontier
from sweeper.frontier.open_values import SearchedValues, searched_in
from sweeper.interval import Interval
from sweeper.plan_lines import SearchedLine
from sweeper.tables.run_tables import Tables
from sweeper.views.frontier_text import frontier_text
from tests.sweeper.frontier.test_edges import row

At = tuple[int, ...]
KEYS = ("batch", "context")


def searched(**dimensions: Any) -> SearchedValues:
    values = {"model": {"name": "mlp"}, "batch": 1, "context": 64}
    return SearchedValues(Point(values=values | {key: each[0] for key, each in dimensions.items()}), dimensions)


def tried(told: Mapping[At, str]) -> list[dict[str, Any]]:
    """Rows of points by batch, or by batch and context."""
    rows = []
    for at, status in told.items():
        values = {"batch": 1, "context": 64} | dict(zip(KEYS, at, strict=False))
        rows.append(row(status, **values) | {"config": json.dumps({"model": {"name": "mlp"}, **values})})
    return rows


def between(told: Mapping[At, str], *asked: SearchedValues) -> list[tuple[str, int]]:
    return [(edge["side"], edge["untested_between"]) for edge in frontier(tried(told), searched=asked)]


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({(1,): "ok", (512,): "oom"}, [("fits", 510), ("fails", 510)]),
        ({(300,): "ok", (301,): "oom"}, [("fits", 0), ("fails", 0)]),
        ({(300,): "ok", (302,): "error", (304,): "oom"}, [("fits", 3), ("fails", 3)]),
        ({(300,): "ok"}, [("fits", 212)]),
        ({(512,): "ok"}, [("fits", 0)]),
        ({(300,): "oom"}, [("fits", 299), ("fails", 299)]),
    ],
)
def test_the_values_of_an_interval_between_the_two_sides_are_counted(told: dict[At, str], answer: Any) -> None:
    assert between(told, searched(batch=Interval(1, 512))) == answer


def test_an_interval_is_counted_at_its_resolution() -> None:
    assert between({(1,): "ok", (100,): "oom"}, searched(batch=Interval(1, 10**12, 10))) == [("fits", 9), ("fails", 9)]


def test_beside_an_interval_a_listed_value_counts_in_which_nothing_was_measured() -> None:
    asked = searched(batch=Interval(1, 8), context=(64, 128))
    assert between({(4, 64): "ok", (8, 64): "oom"}, asked) == [("fits", 3 + 4), ("fails", 3)]


def test_a_wider_interval_counts_with_the_one_before_it_and_each_value_once() -> None:
    told = {(4,): "ok", (8,): "oom", (6,): "not_run"}
    narrow, wide, other = Interval(1, 8), Interval(1, 512), Interval(3, 9, 3)
    for asked in ([narrow], [narrow, wide], [wide, narrow, other]):
        assert between(told, *(searched(batch=each) for each in asked)) == [("fits", 3), ("fails", 3)]
    assert between({(8,): "ok"}, searched(batch=narrow), searched(batch=Interval(6, 12, 3))) == [("fits", 2)]


def test_an_interval_of_another_search_counts_nothing_in_this_one() -> None:
    asked = searched(batch=Interval(1, 512))
    other = SearchedValues(Point(values={"model": {"name": "gpt2"}, "batch": 1, "context": 64}), asked.dimensions)
    assert between({(1,): "ok", (2,): "oom"}, other) == [("fits", 0), ("fails", 0)]


def test_what_only_a_contradicted_attempt_implies_is_untested() -> None:
    told = {(1,): "ok", (3,): "oom", (5,): "ok", (8,): "oom"}
    assert between(told, searched(batch=Interval(1, 8))) == [("fits", 2), ("fails", 1)]
    assert "open:                4 that" in frontier_text(tried(told), searched=[searched(batch=Interval(1, 8))])


heights = st.lists(st.integers(0, 9), min_size=1, max_size=5).map(lambda each: sorted(each, reverse=True))


@settings(max_examples=60, deadline=None)
@given(heights, st.integers(0, 30), st.integers(1, 3))
def test_of_any_monotone_set_the_table_leaves_open_what_the_search_leaves_open(
    edge: list[int], most: int, resolution: int
) -> None:
    """However early the search is stopped, and at its end nothing. Of each batch the contexts up to its height fit."""
    dimensions = {"batch": Interval(1, len(edge)), "context": Interval(1, 9, resolution)}
    search = LatticeSearch(dimensions, confirm="none")
    told: dict[At, str] = {}
    while len(told) < most + 1 and (attempt := search.next_attempt()) is not None:
        batch, context = int(attempt.point["batch"]), int(attempt.point["context"])
        told[batch, context] = "ok" if context <= edge[batch - 1] else "oom"
        search.record(Verdict(told[batch, context] == "ok"))
    edges = frontier(tried(told), searched=[searched(**dimensions)])
    every = list(itertools.product(*dimensions.values()))

    def covers(one: At, other: At) -> bool:
        return all(a >= b for a, b in zip(one, other, strict=True))

    unknown = [
        at
        for at in every
        if not any(covers(one, at) if status == "ok" else covers(at, one) for one, status in told.items())
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
        assert told[at] == ("ok" if each["side"] == "fits" else "oom") if at else True
    if search.next_attempt() is None:
        assert not unknown


def test_the_plan_tells_what_was_searched(written: Any) -> None:
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
