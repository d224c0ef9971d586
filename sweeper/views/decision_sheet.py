"""`frontier RUN`: the decision sheet, with what was measured, calculated and assumed in separate sections."""

from __future__ import annotations

import json
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
from sweeper.frontier.edges import NEEDS, NO_MEMORY, TRIED, groups_of
from sweeper.frontier.open_values import searched_in
from sweeper.objective import TOKENS, Objective
from sweeper.plan_lines import PLAN, RunLine, SearchedLine, read_plan
from sweeper.quality import SAME
from sweeper.requested import settings_of
from sweeper.rows import Row
from sweeper.settled_keys import differing
from sweeper.units import format_bytes, format_count, format_exact
from sweeper.views.frontier_text import frontier_text, why
from sweeper.views.layout import assignments, counts, indent, more, table

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
MOST_LISTED = 12  # lines of a kind on the screen; --json has them all


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
    return {
        "run": folder.name,
        "raw_results": str((folder / "points").absolute()),
        "plan": str((folder / PLAN).absolute()),
        "tables": [str((folder / f"{name}.parquet").absolute()) for name in columns.TABLES],
        "observed": {
            "points": _statuses(measured),
            "frontier": [edge for edge in edges if edge["kind"] == MEASURED],
            "frontier_text": frontier_text(measured, objective, margin, rows, searched),
            "loads": list(_loads(measured, objective, tables)),
            "smaller_peaks": list(_smaller_peaks(points, swept)),
        },
        "calculated": {
            "estimates": _estimates(tables["estimates"], points),
            "points": _statuses(calculated),
            "frontier": [edge for edge in edges if edge["kind"] == CALCULATED],
            "frontier_text": frontier_text(calculated, objective, margin, rows, searched),
        },
        "assumed": [*_assumed(tables["estimates"], rows), *_not_assessed(points)],
        "environment": [_without_run(row) for row in tables["environment"].to_pylist()],
    }


def _without_run(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "run"}


def _statuses(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """The number of points with each status, by device."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["device"], Counter())[row["status"]] += 1
    return {device: dict(count) for device, count in counts.items()}


def _loads(rows: Sequence[Row], objective: Objective, tables: Mapping[str, pa.Table]) -> Iterator[dict[str, Any]]:
    """For each search: the largest point that fits, the next larger one that does not, and the largest one tried."""
    searches = groups_of(rows)
    along = {key for search in searches for key in search.along}
    apart = differing((search.rows[0]["config"] for search in searches), (*NAMED, *along))
    for search in searches:
        largest = search.largest(objective)
        tried = [row for row in search.rows if row["status"] in TRIED]
        chosen = [
            ("largest that fits", None if largest is None else search.fitting[largest]),
            ("next larger", search.next_larger(largest)),
            ("largest tried", max(tried, key=lambda row: _size(search.at(row)), default=None)),
        ]
        roles: dict[str, tuple[list[str], Row]] = {}  # by point id: one point can have several
        for role, row in chosen:
            if row is not None:
                roles.setdefault(row["point_id"], ([], row))[0].append(role)
        for names, row in roles.values():
            at = apart[search.rows[0]["config"]] | dict(zip(search.along, search.at(row), strict=True))
            yield {"is": ", ".join(names), **_load(row, at, tables)}


def _size(at: Sequence[float]) -> tuple[float, Sequence[float]]:
    size = 1.0
    for value in at:
        size *= value
    return size, at


def _load(row: Row, at: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """One point with its counters, the phases it passed and the one in which it failed."""
    point = _only(tables["points"], row).to_pylist()[0]
    phases = _only(tables["phases"], row).select(["attempt", "phase", "completed"]).to_pylist()
    own = [phase for phase in phases if phase["attempt"] == row["attempt"] and phase["phase"] != BETWEEN]
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
        "peak_phase": point["peak_phase"],
        "peak_is_partial": point["peak_is_partial"],
    }


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


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(sheet: Mapping[str, Any]) -> str:
    """The sheet, for a person."""
    observed, calculated = sheet["observed"], sheet["calculated"]
    loads, smaller = observed["loads"], observed["smaller_peaks"]
    sections = {
        f"Decision sheet of {sheet['run']}": [],
        "OBSERVED (measured, each point in a process of its own)": [
            *(_status_lines(observed["points"]) or ["nothing"]),
            *observed["frontier_text"].splitlines(),
            *(line for load in loads[:MOST_LISTED] for line in _load_lines(load)),
            *more(len(loads), MOST_LISTED, "points"),
            *map(_smaller_peak_line, smaller[:MOST_LISTED]),
            *more(len(smaller), MOST_LISTED, "smaller peaks"),
        ],
        "CALCULATED (arithmetic and simulation; nothing here was measured)": [
            *([*_term_lines(calculated["estimates"]), *_status_lines(calculated["points"])] or ["nothing"]),
            *calculated["frontier_text"].splitlines(),
        ],
        "ASSUMED": sheet["assumed"],
        "ENVIRONMENT": [environment_line(record) for record in sheet["environment"]],
        "RAW RESULTS": [sheet["raw_results"], sheet["plan"], f"{sheet['tables'][0]}, ..."],
    }
    return "\n\n".join("\n".join([heading, *indent(lines)]) for heading, lines in sections.items())


def _status_lines(statuses: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{device}  {format_count(sum(of_device.values()), 'point')}: {counts(of_device)}"
        for device, of_device in statuses.items()
    ]


def _load_lines(load: Mapping[str, Any]) -> list[str]:
    settings = {key: value for key, value in load["settings"].items() if key not in columns.NAMED}
    what = " ".join(str(load[name]) for name in ("device", *columns.NAMED) if load[name] is not None)
    what = f"{what} {assignments(settings)}".rstrip()
    details = [load["why"]] if load["why"] and load["status"] not in NO_MEMORY else []
    details.append(f"phases passed: {', '.join(load['passed']) or 'none'}; failed: {load['failed'] or 'none'}")
    counters = [[name, format_bytes(count), f"({count:,} bytes)"] for name, count in load["counters"].items()]
    details += table(counters, "<><")
    if load["peak_phase"]:
        partial = (
            " (a partial peak: a phase did not complete, or was not read whole)" if load["peak_is_partial"] else ""
        )
        details.append(f"peak in {load['peak_phase']}{partial}")
    return [f"{load['is']}: {what} {assignments(load['at'])}: {load['status']}", *indent(details, 4)]


def _smaller_peak_line(smaller: Mapping[str, Any]) -> str:
    peaks = " against ".join(map(format_bytes, smaller["peak_bytes"]))
    verdict = smaller["quality_verdict"]
    if smaller["quality_because"]:
        quality = f"{verdict}: {smaller['quality_because']}"
    else:
        by = f" by {abs(smaller['quality_worse_by']):g}" if verdict != SAME else ""
        quality = f"{verdict}{by} ({smaller['quality'][0]:g} against {smaller['quality'][1]:g})"
    than, at = assignments(smaller["reference"]["at"]), assignments(smaller["at"])
    return f"smaller than {than}: {smaller['device']} {at}: {smaller['counter']} {peaks}; quality {quality}"


def _term_lines(terms: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [
        f"{term['term']} of {term['model']} ({term['workload']}, {term['dtype']}): {format_exact(term['bytes'])}"
        f" = {term['formula']}"
        for term in terms[:MOST_LISTED]
    ]
    return [*shown, *more(len(terms), MOST_LISTED, "terms")]


def environment_line(record: Mapping[str, Any]) -> str:
    """One row of environment.parquet in words."""
    words = [str(record[name]) for name in ("host", "system", "device_name", "device_uuid") if record.get(name)]
    named = ("torch", "python", "driver", "backend", "backend_version", "allocator_backend")
    if record.get("allocator_backend") == "calculated":  # torch's backend traced it; the card is another
        record = {**record, "backend": None, "backend_version": None}
    words += [f"{name} {record[name]}" for name in named if record.get(name)]
    if record.get("device_total_bytes"):
        words.append(f"device memory {format_bytes(record['device_total_bytes'])}")
    words += [
        f"{name} {version or ''}".rstrip() for name, version in json.loads(record.get("libraries") or "{}").items()
    ]
    words += [f"{name}={value}" for name, value in json.loads(record.get("variables") or "{}").items()]
    return ", ".join(words)
