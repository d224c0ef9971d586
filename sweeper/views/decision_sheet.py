"""The decision sheet of a run as data: the answer, what was run, and what was calculated, observed and assumed.

The three are separate lists: a figure is in one of them only. sweeper/views/decision_text.py shows them to a person.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runners.device import CALCULATED, MEASURED, device_named
from runners.journal import BETWEEN
from sweeper import columns
from sweeper.columns import NAMED
from sweeper.frontier.edges import NEEDS, TRIED, FrontierGroup, groups_of
from sweeper.frontier.open_values import searched_in
from sweeper.interval import Interval
from sweeper.objective import TOKENS, Objective
from sweeper.plan import Dimension, typed_value
from sweeper.plan_lines import PLAN, PlanLine, RunLine, SearchedLine, read_plan
from sweeper.requested import settings_of
from sweeper.rerun import commands, rerun
from sweeper.rows import Row
from sweeper.settled_keys import differing
from sweeper.units import format_bytes, format_count
from sweeper.views.frontier_text import Answer, answers, frontier_text, undecided_text, why

COUNTERS = (
    *("process_baseline_bytes", "peak_resident_bytes", "peak_tensor_bytes"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes", "peak_graph_pools_bytes"),
    "peak_used_bytes",
    *("budget_bytes", "budget_used_bytes", "device_total_bytes"),
)
ASSESSED = (
    *("point_id", "device", "status", "peak_resident_bytes", "peak_allocated_bytes"),
    *("quality", "quality_verdict", "quality_worse_by", "quality_because", "quality_reference"),
)
# The counters that a reader looks for on each type of device: a dash says that one was not read.
LOOKED_FOR = {
    "cuda": ("peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes", "peak_resident_bytes"),
    "sim": ("peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes"),
    "cpu": ("peak_tensor_bytes", "peak_resident_bytes", "process_baseline_bytes"),
}
CHOICE, CHOICE_WITH_MARGIN = "the choice: the largest that fits", "the choice: the largest that leaves the margin"


def decision_sheet(folder: Path, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """The value for JSON of a run's folder and its tables: whole bytes, null for what is not known."""
    lines = list(read_plan(folder))
    last = [line for line in lines if isinstance(line, RunLine)][-1:]  # the run keys of the last sweep count
    objective = next((line.objective for line in last if line.objective), TOKENS)
    margin = next((line.margin for line in last), {})
    points = tables["points"]
    swept = [name for name in points.column_names if name not in columns.FIXED]
    searched = [searched_in(line) for line in lines if isinstance(line, SearchedLine)]
    rows = points.select([*NEEDS, *swept]).to_pylist()
    measured = [row for row in rows if row["kind"] == MEASURED]
    calculated = [row for row in rows if row["kind"] == CALCULATED]
    edges = [_without_run(edge) for edge in tables["frontier"].to_pylist()]
    decided = {
        kind: answers(of_kind, objective, margin, rows, searched)
        for kind, of_kind in ((MEASURED, measured), (CALCULATED, calculated))
    }
    typed = commands(lines)
    return {
        "run": folder.name,
        "raw_results": str((folder / "points").absolute()),
        "plan": str((folder / PLAN).absolute()),
        "tables": [str((folder / f"{name}.parquet").absolute()) for name in columns.TABLES],
        "objective": str(objective),
        "margin": dict(margin),
        "answer": [
            *(_answer(each, bool(margin), typed) for kind in (MEASURED, CALCULATED) for each in decided[kind]),
            *_no_answer(rows, searched),
        ],
        "ran": _ran(lines, rows),
        "observed": {
            "points": _statuses(measured),
            "frontier": [edge for edge in edges if edge["kind"] == MEASURED],
            "frontier_text": frontier_text(measured, objective, margin, rows, searched),
            "loads": list(_loads(measured, objective, tables, decided[MEASURED], typed)),
            "smaller_peaks": list(_smaller_peaks(points, swept)),
        },
        "calculated": {
            "estimates": _estimates(tables["estimates"], points),
            "points": _statuses(calculated),
            "frontier": [edge for edge in edges if edge["kind"] == CALCULATED],
            "frontier_text": frontier_text(calculated, objective, margin, rows, searched),
            "loads": list(_loads(calculated, objective, tables, decided[CALCULATED], typed)),
        },
        "assumed": [*_assumed(tables["estimates"], rows), *_margins_assumed(margin), *_not_assessed(points)],
        "environment": [_without_run(row) for row in tables["environment"].to_pylist()],
    }


def _answer(answer: Answer, has_margin: bool, typed: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What one search decided, in words and as points."""
    group, first = answer.group, answer.group.rows[0]

    def point(row: Row | None) -> dict[str, Any] | None:
        if row is None:
            return None
        at = dict(zip(group.along, group.at(row), strict=True))
        return {"point_id": row["point_id"], "at": at, "command": rerun(row, typed.get(row["point_id"], ()))}

    return {
        "kind": first["kind"],
        "device": first["device"],
        "heading": answer.heading,
        "along": list(group.along),
        "fits": point(answer.fits),
        "fails": point(answer.fails),
        "why_it_fails": None if answer.fails is None else why(answer.fails),
        "choice": point(answer.chosen),
        "choice_because": None if answer.chosen is None else CHOICE_WITH_MARGIN if has_margin else CHOICE,
        "lines": list(answer.lines),
    }


def _no_answer(rows: Sequence[Row], searched: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The devices on which nothing was decided, each kind apart."""
    for kind in (MEASURED, CALCULATED):
        for line in undecided_text([row for row in rows if row["kind"] == kind], searched):
            empty = dict.fromkeys(("device", "fits", "fails", "why_it_fails", "choice", "choice_because"))
            yield {"kind": kind, "heading": line, "along": [], **empty, "lines": [line]}


def _ran(lines: Sequence[PlanLine], rows: Sequence[Row]) -> dict[str, Any]:
    """The sweeps into the run, the keys that they varied, and every key off its default that no point varies."""
    sweeps = [line for line in lines if isinstance(line, RunLine)]
    varied: dict[str, list[str]] = {}
    for dimension in (each for sweep in sweeps for each in sweep.dimensions):
        found = varied.setdefault(dimension.key, [])
        found += [value for value in _values_of(dimension) if value not in found]
    searched = {each.key for sweep in sweeps for each in sweep.dimensions if isinstance(each.values, Interval)}
    settings = [{**_named(row), **settings_of(row)} for row in rows]
    shared = {
        key: value
        for key, value in (settings[0] if settings else {}).items()
        if key not in varied and all(key in each and each[key] == value for each in settings)
    }
    differ = dict.fromkeys(key for each in settings for key in each if key not in shared and key not in varied)
    return {
        "sweeps": [
            {
                "command": shlex.join(["sweeper", *sweep.command]),
                "design": sweep.design,
                "started_at": sweep.started_at,
                "sweeper": sweep.version,
            }
            for sweep in sweeps
        ],
        "varied": {key: values for key, values in varied.items() if len(values) > 1 or key in searched},
        "settings": shared,
        "differ_between_sweeps": {
            key: list(dict.fromkeys(typed_value(key, each.get(key)) for each in settings)) for key in differ
        },
        "points": _statuses(rows),
    }


def _named(row: Row) -> dict[str, Any]:
    return {key: row[key] for key in columns.NAMED if row[key] is not None}


def _values_of(dimension: Dimension) -> list[str]:
    values = dimension.values
    if isinstance(values, Interval):
        step = "" if values.resolution == 1 else f" in steps of {values.resolution}"
        return [f"interval({values.low},{values.high}){step}"]
    return [typed_value(dimension.key, value) for value in values]


def _margins_assumed(margin: Mapping[str, int | str]) -> list[str]:
    return [
        f"margin.{name}: {format_bytes(value)} have to stay free"
        for name, value in margin.items()
        if not isinstance(value, str)
    ]


def _without_run(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "run"}


def _statuses(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """The number of points with each status, by device."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["device"], Counter())[row["status"]] += 1
    return {device: dict(count) for device, count in counts.items()}


def _loads(
    rows: Sequence[Row],
    objective: Objective,
    tables: Mapping[str, pa.Table],
    decided: Sequence[Answer],
    typed: Mapping[str, Sequence[str]],
) -> Iterator[dict[str, Any]]:
    """For each search: the choice, the largest point that fits, the next larger one, and the largest one tried."""
    searches = groups_of(rows)
    along = {key for search in searches for key in search.along}
    apart = differing((search.rows[0]["config"] for search in searches), (*NAMED, *along))
    chosen = {(answer.chosen["device"], answer.chosen["point_id"]) for answer in decided if answer.chosen is not None}
    for search in searches:
        largest = search.largest(objective)
        tried = [row for row in search.rows if row["status"] in TRIED]
        choice = (row for row in search.rows if (row["device"], row["point_id"]) in chosen)
        roles: dict[str, tuple[list[str], Row]] = {}  # by point id: one point can have several
        for role, row in (
            ("the choice", next(choice, None)),
            ("largest that fits", None if largest is None else search.fitting[largest]),
            ("next larger", search.next_larger(largest)),
            ("largest tried", max(tried, key=lambda row: _size(search.at(row)), default=None)),
        ):
            if row is not None:
                roles.setdefault(row["point_id"], ([], row))[0].append(role)
        for names, row in roles.values():
            yield {"is": ", ".join(names), **_load(row, apart[search.rows[0]["config"]], search, tables, typed)}


def _size(at: Sequence[float]) -> tuple[float, Sequence[float]]:
    size = 1.0
    for value in at:
        size *= value
    return size, at


def _load(
    row: Row,
    apart: Mapping[str, Any],
    search: FrontierGroup,
    tables: Mapping[str, pa.Table],
    typed: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """One point with its counters, the phases it passed and the one in which it failed, and its estimate."""
    at = {**apart, **dict(zip(search.along, search.at(row), strict=True))}
    point = _only(tables["points"], row).to_pylist()[0]
    phases = _only(tables["phases"], row).select(["attempt", "phase", "completed"]).to_pylist()
    own = [phase for phase in phases if phase["attempt"] == row["attempt"] and phase["phase"] != BETWEEN]
    device = device_named(row["device"])
    looked_for = LOOKED_FOR["cpu" if device.is_cpu else device.type.value] if not _is_host(row) else ()
    return {
        "point_id": row["point_id"],
        "device": row["device"],
        **{name: row[name] for name in ("model", "workload", "dtype", "allocator")},
        "settings": {key: value for key, value in settings_of(row).items() if key not in at},
        "at": at,
        "status": row["status"],
        "why": None if row["fits"] else why(row),
        "passed": list(dict.fromkeys(phase["phase"] for phase in own if phase["completed"])),
        "failed": row["failed_phase"],
        "counters": {name: point[name] for name in COUNTERS if point[name] is not None},
        "not_read": [name for name in looked_for if point[name] is None],
        "peak_phase": point["peak_phase"],
        "peak_is_partial": point["peak_is_partial"],
        "notes": json.loads(point["notes"] or "[]"),
        "estimate": _estimate_of(tables["estimates"], row["point_id"]),
        "command": rerun(row, typed.get(row["point_id"], ())),
    }


def _is_host(row: Row) -> bool:
    """Whether it is a calculated cpu: only tensors are known of it."""
    device = device_named(row["device"])
    return device.is_calculated and device.is_host


def _estimate_of(estimates: pa.Table, point_id: str) -> list[dict[str, Any]]:
    """The terms of one point's estimate."""
    found = estimates.filter(pc.equal(estimates["point_id"], point_id))
    terms: list[dict[str, Any]] = found.select(
        ["term", "bytes", "alive", "formula", "assumption", "source"]
    ).to_pylist()
    return terms


def _smaller_peaks(points: pa.Table, swept: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Points with a smaller peak than the point their quality is compared with: both peaks, and the verdict."""
    keys = [*(column.name for column in columns.DIMENSIONS), *swept]
    rows = points.select([*ASSESSED, *keys]).to_pylist()
    known = {(row["point_id"], row["device"]): row for row in rows}
    for row in rows:
        reference = known.get((row["quality_reference"], row["device"]))
        counter = f"peak_{device_named(row['device']).deciding_counter}_bytes"
        if reference is None or {row["status"], reference["status"]} != {"ok"}:
            continue
        if row[counter] is None or reference[counter] is None or row[counter] >= reference[counter]:
            continue
        yield {
            "point_id": row["point_id"],
            "device": row["device"],
            "at": {key: row[key] for key in keys if row[key] != reference[key] or key in ("batch", "context")},
            "reference": {
                "point_id": reference["point_id"],
                "at": {key: reference[key] for key in keys if row[key] != reference[key]},
            },
            "counter": counter,
            "peak_bytes": [row[counter], reference[counter]],
            "quality": [row["quality"], reference["quality"]],
            **{name: row[name] for name in ("quality_verdict", "quality_worse_by", "quality_because")},
        }


def _not_assessed(points: pa.Table) -> list[str]:
    """The number of points whose quality has no verdict, by reason."""
    rows = points.select(["status", "quality_because"]).to_pylist()
    reasons = Counter(row["quality_because"] for row in rows if row["status"] == "ok" and row["quality_because"])
    return [
        f"quality: no verdict for {format_count(count, 'point')} that passed: {because}"
        for because, count in reasons.items()
    ]


def _only(table: pa.Table, row: Row) -> pa.Table:
    of_point = pc.and_(pc.equal(table["point_id"], row["point_id"]), pc.equal(table["device"], row["device"]))
    return table.filter(of_point)


def _estimates(estimates: pa.Table, points: pa.Table) -> list[dict[str, Any]]:
    """Each different term once, with the model, workload and dtype of its first point; alike ones by their size."""
    names = ["point_id", "model", "workload", "dtype"]
    of_point = {row["point_id"]: row for row in points.select(names).to_pylist()}
    found: dict[str, dict[str, Any]] = {}
    for term in estimates.to_pylist():
        point = of_point.get(term.pop("point_id"), {})
        term.pop("run")
        shown = {name: point.get(name) for name in names[1:]} | term
        found.setdefault(json.dumps(shown), shown)
    order = list(dict.fromkeys(map(_kind_of_term, found.values())))
    return sorted(found.values(), key=lambda term: (order.index(_kind_of_term(term)), term["bytes"] or 0))


def _kind_of_term(term: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(term[name] for name in ("term", "model", "workload", "dtype"))


def _assumed(estimates: pa.Table, rows: Sequence[Row]) -> list[str]:
    """The assumptions, as sentences."""
    sentences = [text for text in dict.fromkeys(estimates["assumption"].to_pylist()) if text]
    skipped = sum(row["status"] == "skipped" for row in rows)
    if skipped:
        sentences.append(
            f"{format_count(skipped, 'point')} {'was' if skipped == 1 else 'were'} not run: a larger one passed or a"
            " smaller one failed (column skipped_because)"
        )
    kinds = {row["budget_kind"] for row in rows}
    if "data_limit" in kinds:
        sentences.append(
            "a limit of the data segment (RLIMIT_DATA) stands for a smaller memory: file pages are not in it"
        )
    if "allocator" in kinds:
        sentences.append(
            "a limit of the caching allocator stands for a smaller device: context and libraries are not in it"
        )
    if any(row["kind"] == CALCULATED for row in rows):
        sentences.append(
            "calculated devices trace the workload without data: the simulated allocator decides what fits"
        )
    sentences.append("only the recorded inputs, library versions and conditions on the device were tried, no others")
    return sentences
