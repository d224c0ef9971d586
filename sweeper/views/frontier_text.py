"""The frontier as lines of text: the largest that fits, the smallest that does not, and why."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from runners.device import CALCULATED, device_named
from sweeper import columns as schema
from sweeper.columns import NAMED, VARYING
from sweeper.frontier.edges import NO_MEMORY, At, FrontierGroup, _at_least, groups_of, headroom
from sweeper.frontier.margins import Margin, MarginTerm, RunContext, outside
from sweeper.frontier.open_values import SearchedValues
from sweeper.objective import TOKENS, Objective
from sweeper.rows import Row
from sweeper.units import format_bytes


def frontier_text(
    rows: Iterable[Row],
    objective: Objective = TOKENS,
    margin: Mapping[str, int | str] | None = None,
    beside: Iterable[Row] | None = None,
    searched: Iterable[SearchedValues] = (),
) -> str:
    """Plain lines for a person: for each search the largest that fits, the smallest that fails, and why.

    `beside`: all rows of the run, where these are some of them: a margin can be made of the others. `searched`: as of
    frontier.
    """
    rows = list(rows)
    found = groups_of(rows, searched=searched)
    told = [search for search in found if search.told]
    names = _names(told)
    others = RunContext(rows if beside is None else beside)
    lines = _card_lines([search for search in told if search.rows[0]["kind"] == CALCULATED], names, objective)
    if lines:
        told = [search for search in told if search.rows[0]["kind"] != CALCULATED]
    for search in told[:LONGEST]:
        lines += _lines(search, names, objective, Margin(margin or {}, search.rows, others))
    if len(told) > LONGEST:
        lines.append(f"... and {len(told) - LONGEST} more, in frontier.parquet")
    return "\n".join([*lines, *_silent_lines([search for search in found if not search.told])])


LONGEST = 20  # searches on the screen; frontier.parquet has them all
MANY = 4  # calculated devices, from which on each has a line, so that they can be held against each other


def _names(found: Sequence[FrontierGroup]) -> tuple[str, ...]:
    """The columns, beside the usual ones, that tell one search from another."""
    columns = [*VARYING, *(name for name in (found[0].rows[0] if found else {}) if name not in schema.FIXED)]
    searched = {schema.column_of(key) for search in found for key in search.along}
    return tuple(c for c in columns if c not in searched and len({str(s.rows[0].get(c)) for s in found}) > 1)


def _card_lines(found: Sequence[FrontierGroup], names: Sequence[str], objective: Objective) -> list[str]:
    """A line for each of many cards, by their size: on which of them it fits, and what is the largest that does."""
    cards = {search.rows[0]["device"] for search in found}
    if len(cards) < MANY:
        return []
    alike: dict[str, list[FrontierGroup]] = defaultdict(list)
    for search in found:
        row = search.rows[0]
        said = [str(row[name]) for name in NAMED if row.get(name) is not None]
        alike["  ".join([*said, *(f"{name}={row.get(name)}" for name in names)])].append(search)
    lines = []
    for name, searched in alike.items():
        searched.sort(key=lambda search: (search.rows[0].get("device_total_bytes") or 0, search.rows[0]["device"]))
        lines.append(f"{name}  (calculated, not measured)")
        for search in searched:
            total, told = search.rows[0].get("device_total_bytes"), _largest_line(search, objective)
            size = "" if total is None else format_bytes(total)
            smallest = _smallest(search, objective)
            if search.largest(objective) is None and smallest is not None:
                told += f"; the smallest, {search.say(smallest)}: {why(search.failing[smallest])}"
            lines.append(f"  {search.rows[0]['device']:{max(map(len, cards))}}  {size:>10}  {told}")
    return lines


def _lines(search: FrontierGroup, names: Sequence[str], objective: Objective, margin: Margin) -> list[str]:
    row = search.rows[0]
    said = [row["device"], *(str(row[name]) for name in NAMED if row.get(name) is not None)]
    if device_named(row["device"]).is_cpu and "allocator" not in names:
        said.append(f"allocator={row.get('allocator')}")
    said += [f"{name}={row.get(name)}" for name in names]
    said += _budget(next((each for each in search.rows if each.get("budget_bytes") is not None), row))
    if row["kind"] == CALCULATED:
        said.append("(calculated, not measured)")
    lines = ["  ".join(said), f"  largest that fits:   {_largest_line(search, objective)}"]
    smallest = _smallest(search, objective)
    if smallest is not None:
        lines.append(f"  smallest that fails: {search.say(smallest)}  {why(search.failing[smallest])}")
    lines += [f"  {line}" for line in _margin_lines(search, objective, margin)]
    return [*lines, *(f"  {remark}" for remark in _remarks(search, objective))]


def _margin_lines(search: FrontierGroup, objective: Objective, margin: Margin) -> list[str]:
    """What fits with what is to be left, what that is made of, and what it does not cover."""
    if not margin.asked or not search.fitting:
        return []
    if not search.headrooms:
        return ["with a margin:       not known, nothing here says how much of a limit was left"]
    left = search.largest_with(margin, objective)
    made_of = ", ".join(map(str, left.terms))
    if left.at is None and left.silent:
        return [f"with a margin:       not known  ({made_of})"]
    said = search.say(left.at) if left.at else "none is known to fit"
    lines = [f"with {format_bytes(left.bytes)} left:  {said}  ({made_of})"]
    larger = [f"{search.say(at)} ({', '.join(_not_told(terms))})" for at, terms in left.silent[:4]]
    lines += [f"  not told of:       {'; '.join(larger)}"] if larger else []
    beyond = outside(search.rows[0] if left.at is None else search.fitting[left.at], left.terms)
    return lines + ([f"  not in it:         {'; '.join(beyond)}"] if beyond else [])


def _not_told(terms: Iterable[MarginTerm]) -> list[str]:
    return [term.name for term in terms if not term.told]


def _budget(row: Row) -> list[str]:
    if row.get("budget_bytes") is None or row.get("budget_kind") == "guard":
        return []
    return [f"budget {format_bytes(row['budget_bytes'])} ({row['budget_kind']})"]


def _largest_line(search: FrontierGroup, objective: Objective) -> str:
    largest = search.largest(objective)
    in_the_way = search.next_larger(largest)
    if largest is None:
        smaller = in_the_way is not None and in_the_way["fits"] is not False
        return f"none fits; the smallest: {why(in_the_way)}" if in_the_way and smaller else "none fits"
    row = search.fitting[largest]
    said = search.say(largest)
    counter = device_named(row["device"]).deciding_counter
    peak = row.get(f"peak_{counter}_bytes")
    if peak is not None:
        said += f"  peak {format_bytes(peak)} {counter}"
        said += "" if row.get("peak_phase") is None else f" in {row['peak_phase']}"
    left, _ = headroom(row)
    if left is not None and row.get("budget_kind") != "guard":
        said += f", {format_bytes(left)} left"
    if in_the_way is None:
        return f"{said}; nothing larger was tried"
    if in_the_way["fits"] is not False or in_the_way.get("flaky"):
        return f"{said}; the next, {search.say(search.at(in_the_way))}: {why(in_the_way)}"
    return said


def _smallest(search: FrontierGroup, objective: Objective) -> At | None:
    """Of the points at the failing edge the one next to the largest that fits, else the smallest."""
    largest = search.largest(objective)
    beyond = [at for at in search.smallest_failing if largest is not None and _at_least(at, largest)]
    return min(beyond or search.smallest_failing, key=lambda at: (prod(at), at), default=None)


def _remarks(search: FrontierGroup, objective: Objective) -> list[str]:
    largest, remarks = search.largest(objective), []
    others = [at for at in sorted(search.largest_fitting) if at != largest]
    if others:
        listed = "; ".join(map(search.say, others[:4])) + ("; ..." if len(others) > 4 else "")
        remarks.append(f"also at the edge:    {listed}")
    if not search.monotone:
        below = sorted(search.contradictions)
        larger = next(at for at in search.largest_fitting if _at_least(at, below[0]))
        said = "; ".join(map(search.say, below[:4])) + ("; ..." if len(below) > 4 else "")
        remarks.append(f"not monotone:        {said} {'fail' if below[1:] else 'fails'}, and {search.say(larger)} fits")
    flaky = sum(bool(row.get("flaky")) for row in search.rows)
    if flaky:
        remarks.append(f"flaky:               {flaky} passed once and failed once, and do not count as fitting")
    if search.untested:
        remarks.append(f"asked, not told:     {len(search.untested)} that nothing else implies")
    return remarks


def _silent_lines(found: Sequence[FrontierGroup]) -> list[str]:
    """One line for each device on which some searches told nothing."""
    by_device: dict[str, list[Row]] = defaultdict(list)
    for search in found:
        by_device[search.rows[0]["device"]] += search.rows
    lines = []
    for device, rows in by_device.items():
        counts = Counter(row["status"] for row in rows)
        reason = next((_message(row) for row in rows if _message(row)), None)
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        lines.append(f"{device}  nothing told whether it fits: {told}" + (f" ({reason})" if reason else ""))
    return lines


def why(row: Row) -> str:
    """Why a row did not fit or did not tell, in a line."""
    if row["fits"] is True:
        return "fits only sometimes"
    phase = f" in {row['failed_phase']}" if row.get("failed_phase") else ""
    if row["status"] in NO_MEMORY:
        whose = "host memory" if row["fits"] is None else "memory"
        said = f"out of {whose}{phase}"
        needs = row.get("needs_at_least_bytes")
        wants = row.get("unlimited_peak_bytes") if row["kind"] == CALCULATED else None
        if wants is not None:
            said += f", would take {format_bytes(wants)} {device_named(row['device']).deciding_counter}"
            room = row.get("budget_bytes") or row.get("device_total_bytes")
            said += ", in segments for which there is no room" if room is not None and wants < room else ""
        elif needs is not None:
            said += f", needs at least {format_bytes(needs)}"
        return f"{said}; a smaller batch would not help" if _is_of_any_batch(row) else said
    message = _message(row)
    return f"{row['status']}{phase}" + (f": {message}" if message else "")


# Phases of sweeper's own workloads in which no activations are alive. In the optimizer's step there are weights,
# gradients and its state: for a large model it can be the peak, whatever the batch.
OWN = ("forward", "train", "generate")
OF_ANY_BATCH = ("model_load", "optimizer", "cold_step", "warm_step", "export")


def _is_of_any_batch(row: Row) -> bool:
    """Whether the phase in which a row failed holds the same with any batch."""
    if row["workload"] not in OWN:
        return False  # what its phases hold only its author knows
    if row.get("failed_phase") == "evaluation":
        evaluation = json.loads(row["config"])["workload"].get("evaluation") or {}
        return evaluation.get("batch") is not None
    return row.get("failed_phase") in OF_ANY_BATCH


def _message(row: Row) -> str:
    parts = (row.get("error_type"), " ".join(str(row.get("error_message") or "").split()))
    return f"{': '.join(part for part in parts if part):.120}"
