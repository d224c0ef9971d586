"""The decision sheet of a run: what was observed, what is calculated, what is assumed, each apart, and from where."""

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
from sweeper.errors import Mistake
from sweeper.frontier.edges import NEEDS, NO_MEMORY, TRIED, Row, groups_of
from sweeper.frontier.open_values import searched_in
from sweeper.objective import TOKENS, Objective
from sweeper.plan_lines import PLAN, RunLine, SearchedLine, read_plan
from sweeper.quality import SAME
from sweeper.tables import run_tables
from sweeper.units import format_bytes
from sweeper.views.frontier_text import frontier_text, why

COUNTERS = (
    *("process_baseline_bytes", "peak_resident_bytes", "peak_tensor_bytes"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes", "peak_used_bytes"),
    *("budget_bytes", "budget_used_bytes", "device_total_bytes"),
)
ASSESSED = (
    *("point_id", "device", "status", "peak_resident_bytes", "peak_allocated_bytes"),
    *("quality", "quality_verdict", "quality_worse_by", "quality_because", "quality_reference"),
)
MOST_LOADS = 12  # of the largest and smallest points, on the screen; --json has them all


def main(arguments: Sequence[str]) -> int:
    """`frontier RUN [--json]`: the largest that fit, and the decision sheet."""
    as_json = "--json" in arguments
    runs = [argument for argument in arguments if argument != "--json"]
    unknown = [argument for argument in runs if argument.startswith("-")]
    if unknown:
        raise Mistake(f"frontier: {unknown[0]} is not known; it takes RUN and --json")
    if len(runs) != 1:
        raise Mistake(f"frontier takes one run, the folder of a sweep, got {' '.join(runs) or 'none'}")
    found = decision_sheet(run_tables.run_folder(runs[0]))
    print(json.dumps(found, indent=2) if as_json else as_text(found))
    return 0


def decision_sheet(folder: Path) -> dict[str, Any]:
    """Everything on the sheet, as JSON has it: bytes are bytes, what is not known is null."""
    found = run_tables.read(folder)
    lines = list(read_plan(folder))
    last = next((line for line in reversed(lines) if isinstance(line, RunLine)), None)
    objective, margin = (last and last.objective) or TOKENS, last.margin if last else {}
    points = found["points"]
    swept = [name for name in points.column_names if name not in columns.FIXED]
    searched = [searched_in(line) for line in lines if isinstance(line, SearchedLine)]
    rows = points.select([*NEEDS, *swept]).to_pylist()
    measured = [row for row in rows if row["kind"] == MEASURED]
    calculated = [row for row in rows if row["kind"] == CALCULATED]
    edges = [_plain(edge) for edge in found["frontier"].to_pylist()]
    return {
        "run": folder.name,
        "raw_results": str((folder / "points").absolute()),
        "plan": str((folder / PLAN).absolute()),
        "tables": [str((folder / f"{name}.parquet").absolute()) for name in columns.TABLES],
        "observed": {
            "points": _statuses(measured),
            "frontier": [edge for edge in edges if edge["kind"] == MEASURED],
            "frontier_text": frontier_text(measured, objective, margin, rows, searched),
            "loads": [_load(chosen, found) for chosen in _loads(measured, objective)],
            "smaller_peaks": list(_smaller_peaks(points, swept)),
        },
        "calculated": {
            "estimates": _estimates(found["estimates"], points, swept),
            "points": _statuses(calculated),
            "frontier": [edge for edge in edges if edge["kind"] == CALCULATED],
            "frontier_text": frontier_text(calculated, objective, margin, rows, searched),
        },
        "assumed": [*_assumed(found["estimates"], rows), *_not_assessed(points)],
        "environment": [_plain(row) for row in found["environment"].to_pylist()],
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "run"}


def _statuses(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """How many points ended how, by device."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["device"], Counter())[row["status"]] += 1
    return {device: dict(count) for device, count in counts.items()}


def _loads(rows: Sequence[Row], objective: Objective) -> Iterator[dict[str, Any]]:
    """What a decision looks at, of each search: the largest that fits, the next that does not, the largest tried."""
    for search in groups_of(rows):
        seen: dict[str, tuple[str, Row]] = {}
        largest = search.largest(objective)
        tried = [row for row in search.rows if row["status"] in TRIED]
        chosen = [
            ("largest that fits", None if largest is None else search.fitting[largest]),
            ("next larger", search.next_larger(largest)),
            ("largest tried", max(tried, key=lambda row: _size(search.at(row)), default=None)),
        ]
        for name, row in chosen:
            if row is not None:
                before = seen.get(row["point_id"])
                seen[row["point_id"]] = (f"{before[0]}, {name}" if before else name, row)
        for name, row in seen.values():
            yield {"is": name, "at": dict(zip(search.along, search.at(row), strict=True)), "row": row}


def _size(at: Sequence[float]) -> tuple[float, Sequence[float]]:
    size = 1.0
    for value in at:
        size *= value
    return size, at


def _load(chosen: Mapping[str, Any], found: Mapping[str, pa.Table]) -> dict[str, Any]:
    """One point with its counters, and the phases it passed and failed."""
    row = chosen["row"]
    point = _only(found["points"], row).to_pylist()[0]
    phases = _only(found["phases"], row).select(["attempt", "phase", "completed"]).to_pylist()
    mine = [phase for phase in phases if phase["attempt"] == row["attempt"] and phase["phase"] != BETWEEN]
    return {
        "is": chosen["is"],
        "point_id": row["point_id"],
        "device": row["device"],
        **{name: row[name] for name in ("model", "workload", "dtype", "allocator")},
        "at": chosen["at"],
        "status": row["status"],
        "why": None if row["fits"] else why(row),
        "passed": list(dict.fromkeys(phase["phase"] for phase in mine if phase["completed"])),
        "failed": row["failed_phase"],
        "counters": {name: point[name] for name in COUNTERS if point[name] is not None},
        "peak_phase": point["peak_phase"],
        "peak_is_partial": point["peak_is_partial"],
    }


def _smaller_peaks(points: pa.Table, swept: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Where a peak is smaller than that of the point its quality is held against: both, and what became of it."""
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
    """How many points have no verdict of what they are worth, and why."""
    rows = points.select(["status", "quality_because"]).to_pylist()
    why_not = Counter(row["quality_because"] for row in rows if row["status"] == "ok" and row["quality_because"])
    return [
        f"that results are as good was not assessed in {count} of the points that passed: {because}"
        for because, count in why_not.items()
    ]


def _only(table: pa.Table, row: Row) -> pa.Table:
    of_point = pc.and_(pc.equal(table["point_id"], row["point_id"]), pc.equal(table["device"], row["device"]))
    return table.filter(of_point)


def _estimates(estimates: pa.Table, points: pa.Table, swept: Sequence[str]) -> list[dict[str, Any]]:
    """Each different term once, with the models and the keys it is of."""
    names = ["point_id", "model", "workload", "dtype"]
    of_point = {row["point_id"]: row for row in points.select(names).to_pylist()}
    found: dict[str, dict[str, Any]] = {}
    for term in estimates.to_pylist():
        point = of_point.get(term.pop("point_id"), {})
        term.pop("run")
        shown = {name: point.get(name) for name in names[1:]} | term
        found.setdefault(json.dumps(shown), shown)
    return list(found.values())


def _assumed(estimates: pa.Table, rows: Sequence[Row]) -> list[str]:
    """What nobody measured, as sentences."""
    said = [text for text in dict.fromkeys(estimates["assumption"].to_pylist()) if text]
    skipped = sum(row["status"] == "skipped" for row in rows)
    if skipped:
        said.append(f"{skipped} points were not run: a larger one passed or a smaller one failed, see skipped_because")
    kinds = {row["budget_kind"] for row in rows}
    if "data_limit" in kinds:
        said.append("a limit of the data segment (RLIMIT_DATA) stands for a smaller memory: file pages are not in it")
    if "allocator" in kinds:
        said.append("a limit of the caching allocator stands for a smaller device: context and libraries are not in it")
    if any(row["kind"] == CALCULATED for row in rows):
        said.append("calculated devices follow the workload without data: the imitated allocator decides what fits")
    said.append("other inputs, library versions and neighbours on the device than those recorded were not tried")
    return said


def as_text(found: Mapping[str, Any]) -> str:
    """The sheet as lines."""
    observed, calculated = found["observed"], found["calculated"]
    lines = [f"Decision sheet of {found['run']}", "", "OBSERVED (measured, each point in a process of its own)"]
    lines += _indented(_count_lines(observed["points"])) or ["  nothing"]
    lines += _indented(observed["frontier_text"].splitlines())
    loads = observed["loads"]
    lines += [line for load in loads[:MOST_LOADS] for line in _indented(_load_lines(load))]
    if len(loads) > MOST_LOADS:
        lines.append(f"  ... and {len(loads) - MOST_LOADS} more points, with --json")
    smaller = observed["smaller_peaks"]
    lines += _indented([_bought_line(each) for each in smaller[:MOST_LOADS]])
    if len(smaller) > MOST_LOADS:
        lines.append(f"  ... and {len(smaller) - MOST_LOADS} more smaller peaks, with --json")
    lines += ["", "CALCULATED (arithmetic and imitation, nothing of it measured)"]
    terms = _estimate_lines(calculated["estimates"])
    lines += _indented([*terms, *_count_lines(calculated["points"])]) or ["  nothing"]
    lines += _indented(calculated["frontier_text"].splitlines())
    lines += ["", "ASSUMED", *_indented(found["assumed"])]
    lines += ["", "ENVIRONMENT", *_indented([_environment_line(record) for record in found["environment"]])]
    lines += ["", "RAW RESULTS", f"  {found['raw_results']}", f"  {found['plan']}", f"  {found['tables'][0]}, ..."]
    return "\n".join(lines)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _count_lines(statuses: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{device}  {sum(counts.values())} points: {', '.join(f'{count} {status}' for status, count in counts.items())}"
        for device, counts in statuses.items()
    ]


def _load_lines(load: Mapping[str, Any]) -> list[str]:
    at = " ".join(f"{key}={value}" for key, value in load["at"].items())
    what = " ".join(str(load[name]) for name in ("device", "model", "workload", "dtype"))
    lines = [f"{load['is']}: {what} {at}: {load['status']}"]
    if load["why"] and load["status"] not in NO_MEMORY:
        lines.append(f"    {load['why']}")
    lines.append(f"    phases passed: {', '.join(load['passed']) or 'none'}; failed: {load['failed'] or 'none'}")
    partial = " (a partial peak: a phase did not complete)" if load["peak_is_partial"] else ""
    lines += [f"    {name:<24}{_exact(count)}" for name, count in load["counters"].items()]
    if load["peak_phase"]:
        lines.append(f"    peak in {load['peak_phase']}{partial}")
    return lines


def _bought_line(smaller: Mapping[str, Any]) -> str:
    at, than = (
        " ".join(f"{key}={value}" for key, value in each["at"].items()) for each in (smaller, smaller["reference"])
    )
    peaks = " against ".join(map(format_bytes, smaller["peak_bytes"]))
    verdict = smaller["quality_verdict"]
    if smaller["quality_because"]:
        said = f"{verdict}: {smaller['quality_because']}"
    else:
        by = f" by {abs(smaller['quality_worse_by']):g}" if verdict != SAME else ""
        said = f"{verdict}{by} ({smaller['quality'][0]:g} against {smaller['quality'][1]:g})"
    return f"smaller than {than}: {smaller['device']} {at}: {smaller['counter']} {peaks}; quality {said}"


def _exact(count: int) -> str:
    return f"{format_bytes(count):>12}  ({count:,} bytes)"


def _estimate_lines(estimates: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [
        f"{term['term']} of {term['model']} ({term['workload']}, {term['dtype']}): {format_bytes(term['bytes'])} "
        f"({term['bytes']:,} bytes) = {term['formula']}"
        for term in estimates[:MOST_LOADS]
    ]
    more = len(estimates) - MOST_LOADS
    return [*shown, f"... and {more} more terms, with --json"] if more > 0 else shown


def _environment_line(record: Mapping[str, Any]) -> str:
    named = ("torch", "python", "driver", "backend", "backend_version", "allocator_backend")
    said = [str(record[name]) for name in ("host", "system", "device_name", "device_uuid") if record.get(name)]
    said += [f"{name} {record[name]}" for name in named if record.get(name)]
    if record.get("device_total_bytes"):
        said.append(f"device memory {format_bytes(record['device_total_bytes'])}")
    said += [str(record[name]) for name in ("libraries", "variables") if record.get(name)]
    return ", ".join(said)
