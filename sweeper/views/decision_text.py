"""`frontier RUN`: the decision sheet for a person, the answer first.

Calculated, observed and assumed stand next to each other where the terminal has room for three columns, and else below
one another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from sweeper import columns
from sweeper.frontier.edges import NO_MEMORY
from sweeper.quality import SAME
from sweeper.units import format_bytes, format_count
from sweeper.views.layout import assignments, counts, indent, more, shortened, table, wrapped

MOST_LISTED = 12  # entries of a kind on the screen; --json has them all
MOST_ANSWERS = 8  # searches whose answer is shown in full
WIDE = 120  # columns of a terminal from which on three lists stand next to each other
BETWEEN = 3  # blanks between them
LONGEST_FORMULA = 72
HEADS = {
    "calculated": "CALCULATED (arithmetic and simulation, not measured)",
    "observed": "OBSERVED (measured, each point in a process of its own)",
    "assumed": "ASSUMED",
}

Lines = Sequence[str]


def as_text(sheet: Mapping[str, Any], width: int | None = None) -> str:
    """The sheet, wrapped to `width` columns. None: one line for each fact, however long."""
    is_wide = width is not None and width >= WIDE
    lists = {
        "calculated": _calculated(sheet, not is_wide),
        "observed": _observed(sheet, not is_wide),
        "assumed": sheet["assumed"],
    }
    if width is not None and is_wide:
        three = [_next_to_each_other(lists, width)]
    else:
        three = [_section(HEADS[name], lines, width) for name, lines in lists.items()]
    sections = [
        f"Decision sheet of {sheet['run']}",
        _section("ANSWER", _answer_lines(sheet), width),
        _section("WHAT WAS RUN", _ran_lines(sheet["ran"]), width),
        *three,
        _section("ENVIRONMENT", [environment_line(record) for record in sheet["environment"]], width),
        _section(
            "RUN AGAIN",
            list(dict.fromkeys(each["choice"]["command"] for each in sheet["answer"] if each["choice"]))[:MOST_ANSWERS],
            None,  # to be copied whole
        ),
        _section("RAW RESULTS", [sheet["raw_results"], sheet["plan"], f"{sheet['tables'][0]}, ..."], None),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(heading: str, lines: Lines, width: int | None) -> str:
    """An empty text if there are no lines."""
    return "\n".join([heading, *wrapped(indent(lines), width)]) if lines else ""


def _next_to_each_other(lists: Mapping[str, Lines], width: int) -> str:
    """Three columns of equal width, each with its heading."""
    each = (width - 2 * BETWEEN) // 3
    cells = [list(wrapped([HEADS[name], *indent(lines)], each)) for name, lines in lists.items()]
    rows = zip_longest(*cells, fillvalue="")
    return "\n".join((" " * BETWEEN).join(f"{cell:<{each}}" for cell in row).rstrip() for row in rows)


def _answer_lines(sheet: Mapping[str, Any]) -> list[str]:
    answers = sheet["answer"]
    if len(answers) > MOST_ANSWERS:  # a line for each card, and no choice for each of many searches
        return [*sheet["observed"]["frontier_text"].splitlines(), *sheet["calculated"]["frontier_text"].splitlines()]
    lines = []
    for answer in answers:
        lines += answer["lines"]
        if answer["choice"] is not None:
            how = "" if sheet["margin"] else f"  (by the objective {sheet['objective']}; no margin was set)"
            lines.append(f"  {'choice:':<20} {assignments(answer['choice']['at'])}{how}")
    return lines or ["no point was tried"]


def _ran_lines(ran: Mapping[str, Any]) -> list[str]:
    lines = [
        ", ".join(filter(None, [sweep["command"], f"design {sweep['design']}", _when(sweep["started_at"])]))
        for sweep in ran["sweeps"]
    ]
    varied = [f"{key}={','.join(values)}" for key, values in ran["varied"].items()]
    varied += [f"{key}={','.join(values)}" for key, values in ran["differ_between_sweeps"].items()]
    lines += [f"varied: {'  '.join(varied)}"] if varied else []
    lines += [f"every point: {assignments(ran['settings'])}; every other key at its default"]
    return [*lines, *_status_lines(ran["points"])]


def _when(started_at: str | None) -> str:
    return "" if started_at is None else f"started {started_at[:16].replace('T', ' ')} UTC"


def _calculated(sheet: Mapping[str, Any], exact: bool) -> list[str]:
    calculated, observed = sheet["calculated"], sheet["observed"]
    loads = calculated["loads"]
    lines = [line for load in loads[:MOST_LISTED] for line in _load_lines(load, exact)]
    lines += more(len(loads), MOST_LISTED, "points")
    shown: dict[str, Mapping[str, Any]] = {}  # by point: an estimate does not depend on the device
    for load in (*observed["loads"], *loads):
        if load["estimate"]:
            shown.setdefault(load["point_id"], load)
    for load in list(shown.values())[:MOST_LISTED]:
        lines.append(f"estimate of {_what(load)} {assignments(load['at'])}".rstrip())
        lines += indent(_term_lines(load["estimate"]))
    left = len(calculated["estimates"]) - sum(len(load["estimate"]) for load in shown.values())
    lines += [f"... and {left:,} more terms of other points: --json lists all"] if left > 0 else []
    return lines or ["nothing"]


def _observed(sheet: Mapping[str, Any], exact: bool) -> list[str]:
    observed = sheet["observed"]
    loads, smaller = observed["loads"], observed["smaller_peaks"]
    lines = [
        *(line for load in loads[:MOST_LISTED] for line in _load_lines(load, exact)),
        *more(len(loads), MOST_LISTED, "points"),
        *map(_smaller_peak_line, smaller[:MOST_LISTED]),
        *more(len(smaller), MOST_LISTED, "smaller peaks"),
    ]
    return lines or ["nothing was measured"]


def _status_lines(statuses: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{device}  {format_count(sum(of_device.values()), 'point')}: {counts(of_device)}"
        for device, of_device in statuses.items()
    ]


def _what(load: Mapping[str, Any]) -> str:
    return " ".join(str(load[name]) for name in columns.NAMED if load[name] is not None)


def _load_lines(load: Mapping[str, Any], exact: bool) -> list[str]:
    """`exact`: with whole bytes, for which a column of three has no room."""
    settings = {key: value for key, value in load["settings"].items() if key not in columns.NAMED}
    what = f"{load['device']} {_what(load)} {assignments(settings)}".rstrip()
    details = [load["why"]] if load["why"] and load["status"] not in NO_MEMORY else []
    details.append(f"phases passed: {', '.join(load['passed']) or 'none'}; failed: {load['failed'] or 'none'}")
    counters = [
        [name, format_bytes(count), " ".join([*([f"({count:,} bytes)"] if exact else []), *partial])]
        for name, count in load["counters"].items()
        for partial in [["partial"] if _is_partial(load, name) else []]
    ]
    counters += [[name, "-", "not read"] for name in load["not_read"]]
    details += table(counters, "<><")
    if load["peak_phase"]:
        partial = (
            " (partial: a phase did not complete, or was not read whole, so the true peak may be higher)"
            if load["peak_is_partial"]
            else ""
        )
        details.append(f"peak in {load['peak_phase']}{partial}")
    details += [f"note: {shortened(note, 160)}" for note in load["notes"]]
    return [f"{load['is']}: {what} {assignments(load['at'])}: {load['status']}", *indent(details, 4)]


def _is_partial(load: Mapping[str, Any], name: str) -> bool:
    """Whether the true peak may be higher."""
    return bool(load["peak_is_partial"]) and (name.startswith("peak_") or name == "budget_used_bytes")


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
    """One line for each term; formulas that would fill several are shortened."""
    rows = [
        [term["term"], format_bytes(term["bytes"]), f"= {shortened(term['formula'], LONGEST_FORMULA)}"]
        for term in terms
        if term["bytes"] is not None
    ]
    return table(rows, "<><")


def environment_line(record: Mapping[str, Any]) -> str:
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
