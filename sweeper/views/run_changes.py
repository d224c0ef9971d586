"""`compare A B`: what changed from one run to another, for a terminal, a pull request and a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from runners.device import CALCULATED
from sweeper import columns
from sweeper.comparing.changes import (
    COUNTERS,
    NO_LONGER_FITS,
    NOW_FITS,
    OTHER,
    CalculatedPair,
    EnvironmentChange,
    PeakDifference,
    RunChanges,
    RunRows,
    StatusChange,
    changes,
)
from sweeper.comparing.matching import differences
from sweeper.comparing.thresholds import Threshold
from sweeper.comparing.verdict import Verdict, counters_named
from sweeper.errors import Mistake
from sweeper.plan import typed_value
from sweeper.plan_lines import RunLine, read_plan
from sweeper.rows import Row
from sweeper.settled_keys import differing
from sweeper.units import format_bytes, format_count
from sweeper.views.frontier_text import why
from sweeper.views.layout import assignments, indent, more, signed_percent, table, wrapped
from sweeper.views.written_table import as_csv, as_markdown

USUAL = "1%"  # differences up to this are not listed unless another threshold is given
MOST_LISTED = 40  # entries below a heading, and rows of a table in Markdown
HEADS = {
    NO_LONGER_FITS: "NO LONGER FITS",
    NOW_FITS: "NOW FITS",
    OTHER: "OTHER CHANGES OF STATUS",
}
NEEDED = (
    *("point_id", "device", "kind", "attempt", "environment_id", "config", "settings", "order"),
    *("status", "fits", "flaky", "failed_phase", "error_type", "error_message", "handled_refusals"),
    *("handled_refusal_bytes", "needs_at_least_bytes", "unlimited_peak_bytes", "used_with_shared_bytes"),
    *("budget_bytes", "context_bytes", "used_by_others_bytes", "device_total_bytes"),
    *("peak_bytes", "peak_counter", "peak_is_partial", "peak_allocated_bytes", "peak_reserved_bytes"),
    *("peak_tensor_bytes", "peak_resident_bytes", "workload", "batch"),
)
IN_ONE_RUN = "sweep all the values in one run, and sweeper effects RUN shows what each key changes"
ALONE = "measured once in both runs, so that its spread is not known; repeat_points=3 measures it"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs, what changed, and what follows. `gate`: the threshold of --fail-above, None without it."""

    first: str
    second: str
    threshold: Threshold
    gate: Threshold | None
    found: RunChanges
    verdict: Verdict

    @property
    def is_one_run(self) -> bool:
        """Whether a run is compared with itself."""
        return self.first == self.second

    @property
    def exit_code(self) -> int:
        return 0 if self.gate is None else self.verdict.exit_code


def comparison(
    folders: tuple[Path, Path],
    tables: tuple[dict[str, pa.Table], dict[str, pa.Table]],
    fail_above: str | None = None,
    counters: str | None = None,
) -> Comparison:
    """`counters`: those that are judged, as in `reserved,allocated`; None: each point is judged by its own.

    Raises Mistake for two runs that share no point, for a threshold that is none, and for an unknown counter.
    """
    chosen = None if counters is None else counters_named(counters)
    gate = None if fail_above is None else Threshold.parse(fail_above, "--fail-above")
    threshold = gate or Threshold.parse(USUAL, "--fail-above")
    first, second = (_rows(folder, of_run) for folder, of_run in zip(folders, tables, strict=True))
    found = changes(first, second, threshold)
    _check(folders, found, gate is not None, differences(first.points, second.points))
    names = [folder.name for folder in folders]
    if names[0] == names[1] and folders[0] != folders[1]:
        names = [str(folder) for folder in folders]
    return Comparison(
        first=names[0],
        second=names[1],
        threshold=threshold,
        gate=gate,
        found=found,
        verdict=Verdict(found=found, chosen=chosen),
    )


def _check(folders: tuple[Path, Path], found: RunChanges, is_gate: bool, apart: Sequence[str]) -> None:
    """Raises Mistake if there is nothing to compare, or nothing that a gate could judge."""
    command = f"compare {folders[0]} {folders[1]}"
    if folders[0] == folders[1]:
        if is_gate:
            raise Mistake(f"compare {folders[0]} --fail-above: takes two runs, BEFORE and AFTER")
        if not found.calculated:
            raise Mistake(f"compare {folders[0]}: no point of this run was both calculated and measured")
    elif not found.points.pairs and (is_gate or not any(pair.across for pair in found.calculated)):
        why_not = f": they differ in {'; '.join(apart[:6])}" if apart else ""
        cure = "" if any(each.startswith("devices ") for each in apart) else f"; {IN_ONE_RUN}"
        raise Mistake(f"{command}: the runs share no point{why_not}{cure}")


def _rows(folder: Path, tables: dict[str, pa.Table]) -> RunRows:
    needed = [name for name in NEEDED if name in tables["points"].column_names]
    swept = [name for name in tables["points"].column_names if name not in columns.FIXED]
    return RunRows(
        name=folder.name,
        points=tables["points"].select([*needed, *swept]).to_pylist(),
        attempts=tables["attempts"].select(needed).to_pylist(),
        environment=tables["environment"].to_pylist(),
        sweeper=[line.version for line in read_plan(folder) if isinstance(line, RunLine) and line.version],
    )


class Names:
    """The points of a comparison by the keys in which they differ."""

    def __init__(self, found: RunChanges) -> None:
        points = found.points
        rows = [*(row for pair in points.pairs for row in pair), *points.only_in_first, *points.only_in_second]
        rows += [row for each in found.calculated for row in (each.calculated, each.measured)]
        left_out = {key.removesuffix(".name") for key in points.joined_without}
        self._apart = differing((row["config"] for row in rows), left_out)

    def of(self, row: Row) -> str:
        values = self._apart[row["config"]]
        if values:
            return assignments(values)
        return " ".join(f"{key}={typed_value(key, row[key])}" for key in ("batch",) if row[key] is not None) or "all"


def _on(row: Row) -> str:
    return f"{row['device']} (calculated)" if row["kind"] == CALCULATED else str(row["device"])


# --- text -------------------------------------------------------------------------------------------------------------


def as_text(compared: Comparison, width: int | None = None) -> str:
    found, names = compared.found, Names(compared.found)
    lines = [_summary(compared), ""]
    for how, head in HEADS.items():
        lines += _section(head, [_status_line(each, names) for each in found.statuses if each.how == how])
    lines += _section(f"PEAKS that differ by more than {compared.threshold}", _peak_lines(found, names, width))
    lines += _section("ENVIRONMENT of the points in both runs", _environment_lines(found))
    for run, rows in ((compared.first, found.points.only_in_first), (compared.second, found.points.only_in_second)):
        listed = [f"{_on(row)}  {names.of(row)}: {row['status']}" for row in rows]
        lines += _section(f"ONLY IN {run}", listed)
    lines += _section(
        "CALCULATED AGAINST MEASURED (the same point; never part of a change)", _pairs(found, names, width)
    )
    lines += _section("NOTES", _notes(compared))
    if not compared.is_one_run:
        lines.append(_verdict(compared))
    return "\n".join(wrapped(lines, width))


def _section(head: str, entries: Sequence[str]) -> list[str]:
    """At most 40 entries below a heading, each of one line or more; nothing without entries."""
    if not entries:
        return []
    lines = [line for entry in entries[:MOST_LISTED] for line in entry.splitlines()]
    return [head, *indent([*lines, *more(len(entries), MOST_LISTED)]), ""]


def _summary(compared: Comparison) -> str:
    points = compared.found.points
    if compared.is_one_run:
        return f"{compared.first}: its calculated points against its measured ones"
    only = [
        f"{len(rows):,} only in {run}"
        for run, rows in ((compared.first, points.only_in_first), (compared.second, points.only_in_second))
        if rows
    ]
    both = f"{format_count(len(points.pairs), 'point')} in both"
    apart = [
        f"{key.removesuffix('.name')}: {', '.join(typed_value(key, value) for value in values)}"
        for key, values in points.apart.items()
    ]
    differ = [f"the runs differ in {'; '.join(apart)}"] if apart else []
    return f"{compared.first} -> {compared.second}: {'; '.join([*differ, ', '.join([both, *only])])}"


def _status_line(each: StatusChange, names: Names) -> str:
    first, second = (_ended(row) for row in (each.first, each.second))
    return f"{_on(each.second)}  {names.of(each.second)}: {first} -> {second}"


def _ended(row: Row) -> str:
    if row["fits"] is True:
        return "fits only sometimes" if row.get("flaky") else "fits"
    return why(row) if row["status"] not in ("not_run", "skipped") else str(row["status"]).replace("_", " ")


PEAK_HEADS = ("device", "point", "counter", "before", "after", "difference", "", "spread")


def _peak_rows(found: RunChanges, names: Names) -> list[list[str]]:
    return [
        [
            _on(each.second),
            names.of(each.second),
            each.counter,
            format_bytes(each.first_bytes),
            format_bytes(each.second_bytes),
            _signed(each.bytes),
            _percent(each),
            "-" if each.spread_bytes is None else format_bytes(each.spread_bytes),
        ]
        for each in found.changed_peaks
    ]


def _peak_lines(found: RunChanges, names: Names, width: int | None) -> list[str]:
    rows = _peak_rows(found, names)
    lines = table([PEAK_HEADS, *rows], "<<<>>>>>") if rows else []
    if _fit(lines, width):
        return ["\n".join(lines[:2]), *lines[2:]] if rows else []  # the heads are no entry of their own
    return [
        f"{device}  {point}  {counter}:\n    {before} -> {after}  {by} {percent}"
        + ("" if spread == "-" else f", spread {spread}")
        for device, point, counter, before, after, by, percent, spread in rows
    ]


def _fit(lines: Sequence[str], width: int | None) -> bool:
    """Whether lines fit below a heading."""
    return width is None or max(map(len, lines), default=0) <= width - 2


def _signed(count: int) -> str:
    return ("+" if count > 0 else "") + format_bytes(count)


def _percent(each: PeakDifference) -> str:
    hundredths = each.hundredths_of_percent
    return "-" if hundredths is None else signed_percent(hundredths, each.bytes)


def _environment_lines(found: RunChanges) -> list[str]:
    return table([[each.name, _values(each.first), "->", _values(each.second)] for each in found.environment], "<<<<")


def _values(values: Sequence[str]) -> str:
    return ", ".join(values) or "-"


PAIR_HEADS = ("point", "counter", "calculated", "", "measured", "", "calculated less measured")


def _pair_rows(found: RunChanges, names: Names) -> list[list[str]]:
    return [
        [
            names.of(each.measured),
            each.counter,
            each.calculated["device"],
            format_bytes(each.calculated_bytes),
            each.measured["device"],
            format_bytes(each.measured_bytes),
            f"{_signed(each.bytes)} {_share(each)}".rstrip(),
        ]
        for each in found.calculated
    ]


def _share(each: CalculatedPair) -> str:
    return f"({100 * each.bytes / each.measured_bytes:+.2f} %)" if each.measured_bytes else ""


def _pairs(found: RunChanges, names: Names, width: int | None) -> list[str]:
    rows = _pair_rows(found, names)
    lines = table([PAIR_HEADS, *rows], "<<<><>>") if rows else []
    if _fit(lines, width):
        return ["\n".join(lines[:2]), *lines[2:]] if rows else []  # the heads are no entry of their own
    return [
        f"{point}  {counter}:\n    {device} {calculated}, {other} {measured}: {by}"
        for point, counter, device, calculated, other, measured, by in rows
    ]


def _notes(compared: Comparison) -> list[str]:
    found, notes = compared.found, []
    for key, values in found.points.lacking.items():
        shown = ", ".join(typed_value(key, value) for value in values)
        notes.append(f"joined without the key {key.removesuffix('.name')} ({shown}), which one of the runs lacks")
    for first, second in found.points.devices.items():
        notes.append(f"joined {first} of {compared.first} with {second} of {compared.second}")
    if found.partial:
        count = format_count(len(found.partial), "point")
        notes.append(
            f"no peaks of {count} are compared: in one of the runs a peak is partial or the point did not pass"
        )
    alone = sorted({each.counter for each in found.changed_peaks if each.spread_bytes is None})
    if "resident" in alone:
        notes.append(f"resident: {ALONE}")
    within = sum(not each.is_change and each.bytes != 0 for each in found.peaks)
    if within:
        notes.append(
            f"{format_count(within, 'peak')} differ{'s' * (within == 1)} by less than {compared.threshold}, or within"
            " the spread of repeats"
        )
    return notes


def _verdict(compared: Comparison) -> str:
    """What became worse, what stays open, and how much was compared."""
    verdict = compared.verdict
    by = f"by more than {compared.threshold}"
    worse = []
    if failing := len(verdict.no_longer_fit):
        worse.append(f"{format_count(failing, 'point')} no longer fit{'s' * (failing == 1)}")
    if verdict.grown:
        worse.append(f"{_peaks_of(verdict.grown)} grew {by}")
    still_open = _open(verdict)
    if not verdict.is_worse and verdict.peaks:
        counters = " or ".join(_counters_of(verdict.peaks))
        nothing = f"no point that fitted fails, and no peak of {counters} grew {by}"
        worse = [f"otherwise {nothing}" if still_open else nothing]
    facts = [", ".join(worse), *still_open] if verdict.is_worse else [*still_open, *worse]
    compared_peaks = _peaks_of(verdict.peaks) if verdict.peaks else "0 peaks"
    extent = f"{format_count(verdict.compared, 'point')} and {compared_peaks} were compared"
    if left := verdict.not_compared:
        extent += f", {format_count(left, 'point')} {_were(left)} not"
    facts.append(extent)
    if others := verdict.grown_unjudged:
        names = ",".join(_counters_of(others))
        facts.append(f"{_peaks_of(others)} grew and {_were(len(others))} not judged (--counter {names})")
    ended = "; ".join(facts)
    return ended if compared.gate is None else f"--fail-above {compared.gate}: {ended} (exit code {compared.exit_code})"


def _open(verdict: Verdict) -> list[str]:
    """What the second run leaves undecided."""
    lacking, undecided, unread = verdict.without_counterpart, verdict.not_decided, verdict.without_peaks
    found = []
    if lacking:
        has = "has" if len(lacking) == 1 else "have"
        found.append(f"{format_count(len(lacking), 'point')} that fitted {has} no counterpart")
    if undecided:
        found.append(f"{format_count(len(undecided), 'point')} that fitted {_were(len(undecided))} not decided")
    if unread:
        fit, has = ("fits", "has") if len(unread) == 1 else ("fit", "have")
        counters = " or ".join(verdict.counters)
        found.append(f"{format_count(len(unread), 'point')} that {fit} in both {has} no peak of {counters} in both")
    return found


def _peaks_of(peaks: Sequence[PeakDifference]) -> str:
    return f"{format_count(len(peaks), 'peak')} of {' and '.join(_counters_of(peaks))}"


def _counters_of(peaks: Sequence[PeakDifference]) -> list[str]:
    found = {each.counter for each in peaks}
    return [counter for counter in COUNTERS if counter in found]


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


# --- for programs -----------------------------------------------------------------------------------------------------

CSV_HEADS = (
    *("point_id", "device", "kind", "point", "counter", "before_bytes", "after_bytes", "difference_bytes", "percent"),
    *("spread_bytes", "is_change", "status_before", "status_after", "fits_before", "fits_after", "is_judged"),
)


def csv_of(compared: Comparison) -> str:
    """One row for each counter of each point in both runs; a point without a pair of whole peaks has one row."""
    names = Names(compared.found)
    peaks: dict[int, list[PeakDifference]] = {}
    for each in compared.found.peaks:
        peaks.setdefault(id(each.second), []).append(each)
    rows = []
    for first, second in compared.found.points.pairs:
        start = [second["point_id"], second["device"], second["kind"], names.of(second)]
        end = [first["status"], second["status"], first["fits"], second["fits"]]
        for each in peaks.get(id(second), ()):
            percent = None if each.hundredths_of_percent is None else each.hundredths_of_percent / 100
            figures = [each.counter, each.first_bytes, each.second_bytes, each.bytes, percent, each.spread_bytes]
            rows.append([*start, *figures, each.is_change, *end, compared.verdict.is_judged(each)])
        if id(second) not in peaks:
            rows.append([*start, *[None] * 7, *end, None])
    return as_csv(CSV_HEADS, rows)


def as_json(compared: Comparison) -> dict[str, Any]:
    found, names, verdict = compared.found, Names(compared.found), compared.verdict
    return {
        "before": compared.first,
        "after": compared.second,
        "threshold": str(compared.threshold),
        "fail_above": None if compared.gate is None else str(compared.gate),
        "exit_code": compared.exit_code,
        "verdict": {
            "counters": verdict.counters,
            "points_compared": verdict.compared,
            "points_not_compared": verdict.not_compared,
            "peaks_compared": len(verdict.peaks),
            "peaks_grown": len(verdict.grown),
            "no_longer_fit": len(verdict.no_longer_fit),
            "without_counterpart": len(verdict.without_counterpart),
            "not_decided": len(verdict.not_decided),
            "without_peaks": len(verdict.without_peaks),
        },
        "points": {
            "in_both": len(found.points.pairs),
            "only_before": [_point(row, names) for row in found.points.only_in_first],
            "only_after": [_point(row, names) for row in found.points.only_in_second],
            "joined_without": {key: list(values) for key, values in found.points.lacking.items()},
            "differ_in": {key: {"before": one, "after": other} for key, (one, other) in found.points.apart.items()},
            "joined_devices": dict(found.points.devices),
        },
        "statuses": [
            {
                **_point(each.second, names),
                "how": each.how,
                "before": _ended(each.first),
                "after": _ended(each.second),
                "status_before": each.first["status"],
                "status_after": each.second["status"],
            }
            for each in found.statuses
        ],
        "peaks": [{**_peak(each, names), "is_judged": verdict.is_judged(each)} for each in found.peaks],
        "environment": [
            {"name": each.name, "before": list(each.first), "after": list(each.second)} for each in found.environment
        ],
        "calculated_against_measured": [
            {
                "point_id": each.measured["point_id"],
                "point": names.of(each.measured),
                "counter": each.counter,
                "calculated": {"device": each.calculated["device"], "bytes": each.calculated_bytes},
                "measured": {"device": each.measured["device"], "bytes": each.measured_bytes},
                "calculated_less_measured_bytes": each.bytes,
            }
            for each in found.calculated
        ],
        "notes": _notes(compared),
    }


def _point(row: Row, names: Names) -> dict[str, Any]:
    what = ("point_id", "device", "kind", "status")
    return {**{name: row[name] for name in what}, "point": names.of(row)}


def _peak(each: PeakDifference, names: Names) -> dict[str, Any]:
    return {
        "point_id": each.second["point_id"],
        "device": each.second["device"],
        "kind": each.second["kind"],
        "point": names.of(each.second),
        "counter": each.counter,
        "before_bytes": each.first_bytes,
        "after_bytes": each.second_bytes,
        "difference_bytes": each.bytes,
        "spread_bytes": each.spread_bytes,
        "is_change": each.is_change,
    }


def markdown_of(compared: Comparison) -> str:
    """For a pull request: the verdict first, then what changed; the environment can be folded out."""
    return "\n\n".join(_markdown(compared))


def _markdown(compared: Comparison) -> Iterator[str]:
    found, names = compared.found, Names(compared.found)
    yield f"**Memory, {_summary(compared)}**"
    if not compared.is_one_run:
        yield _verdict(compared)
    rows = [
        [each.how, _on(each.second), names.of(each.second), _ended(each.first), _ended(each.second)]
        for each in found.statuses
    ]
    if rows:
        yield as_markdown(("status", "device", "point", "before", "after"), rows[:MOST_LISTED], "<<<<<")
        yield from more(len(rows), MOST_LISTED)
    peaks = _peak_rows(found, names)
    if peaks:
        yield as_markdown(PEAK_HEADS, peaks[:MOST_LISTED], "<<<>>>>>")
        yield from more(len(peaks), MOST_LISTED)
    pairs = _pair_rows(found, names)
    if pairs:
        yield "Calculated against measured, the same point; never part of a change:"
        yield as_markdown(PAIR_HEADS, pairs[:MOST_LISTED], "<<<><>>")
        yield from more(len(pairs), MOST_LISTED)
    if found.environment:
        yield "<details><summary>Environment</summary>"
        yield as_markdown(("", "before", "after"), [_environment_row(each) for each in found.environment], "<<<")
        yield "</details>"
    if notes := _notes(compared):
        yield "\n".join(f"- {note}" for note in notes)


def _environment_row(each: EnvironmentChange) -> list[str]:
    return [each.name, _values(each.first), _values(each.second)]
