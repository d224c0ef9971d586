"""The frontier as lines of text: the largest that fits, the smallest that does not, and why."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from runners.device import CALCULATED, device_named
from runners.facts import (
    ADDRESS_LIMIT,
    ALLOCATOR,
    CGROUP,
    DATA_LIMIT,
    EXPANDABLE,
    FITS_IF_EXPANDABLE,
    GUARD,
    INHERITED_DATA_LIMIT,
    TENSORS,
    WORKLOAD_LIMIT,
)
from runners.outcome import Status
from sweeper import columns as schema
from sweeper.columns import NAMED
from sweeper.frontier.edges import NO_MEMORY, FrontierGroup, groups_of, headroom
from sweeper.frontier.evidence import At, covers
from sweeper.frontier.margins import Margin, MarginTerm, RunContext, outside
from sweeper.frontier.open_values import SearchedValues
from sweeper.objective import TOKENS, Objective
from sweeper.plan import typed_value
from sweeper.requested import follows_in, settings_text, value_in
from sweeper.rows import Row
from sweeper.screen import in_lines
from sweeper.settled_keys import has_key, without_followers
from sweeper.units import format_bytes, format_count
from sweeper.views.layout import counts, error_text, handled, other_processes, over_budget
from sweeper.views.prefill_text import GENERATE, least_in_chunks, prefill_of

LONGEST = 20  # groups on the screen; frontier.parquet has all of them
# How budget_kind is shown: what the limit is on.
LIMITS = {
    ALLOCATOR: "of PyTorch's allocator",
    DATA_LIMIT: "of data, not counting the imports",
    TENSORS: "of tensors",
    CGROUP: "of the cgroup",
    INHERITED_DATA_LIMIT: "of data, by ulimit -d",
    ADDRESS_LIMIT: "of addresses, by ulimit -v",
    WORKLOAD_LIMIT: "that the workload set itself",
}
PREFILL_CHUNK = "workload.prefill_chunk"
MOST_NAMED = 3  # undecided groups of a device
MANY = 4  # calculated devices from which on each has one line, so that they can be compared


def frontier_text(
    rows: Iterable[Row],
    objective: Objective = TOKENS,
    margin: Mapping[str, int | str] | None = None,
    context: Iterable[Row] | None = None,
    searched: Iterable[SearchedValues] = (),
) -> str:
    """For each group of points: the largest that fits, the smallest that fails, and why.

    `context`: all rows of the run, if `rows` are only some of them, since terms of a margin may come from the others.
    `searched`: the intervals of the sweep, whose values have no rows.
    """
    rows = [in_lines(row) for row in rows]
    found = groups_of(rows, searched=searched)
    decided = [group for group in found if group.decided]
    names = _names(found)
    run = RunContext(rows if context is None else context)
    lines = _card_lines([group for group in decided if group.rows[0]["kind"] == CALCULATED], names, objective)
    if lines:
        decided = [group for group in decided if group.rows[0]["kind"] != CALCULATED]
    for group in decided[:LONGEST]:
        lines += _lines(group, names, objective, Margin(margin or {}, group.rows, run))
    if len(decided) > LONGEST:
        lines.append(f"... and {len(decided) - LONGEST} more, in frontier.parquet")
    undecided = _undecided_lines(found, names)
    return "\n".join([*lines, *undecided, *_how_to_go_on(found, objective)])


FURTHER = 256  # times the largest value tried; a search doubles from there, and ends soon where memory is small


def _how_to_go_on(found: Sequence[FrontierGroup], objective: Objective) -> list[str]:
    """What to type to find an edge, if everything that was tried fits."""
    if any(not row["fits"] for group in found for row in group.rows):
        return []
    for group in found:
        largest = group.largest(objective)
        for key, value in zip(group.along, largest or (), strict=False):
            if isinstance(value, int):
                search = f"design=frontier '{key}=interval({value},{value * FURTHER})'"
                return [f"to find an edge: {search}, or budget=SIZE, which stands for a smaller device"]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one search decided. `fits` and `fails`: the rows; `chosen`: of the largest that leaves the margin.

    Without a margin `chosen` is the largest that fits. None where there is no such point.
    """

    heading: str
    group: FrontierGroup
    fits: Row | None
    fails: Row | None
    chosen: Row | None
    lines: Sequence[str]  # for a person, the heading first

    def at(self, row: Row) -> str:
        return self.group.text(self.group.at(row))


def answers(
    rows: Iterable[Row],
    objective: Objective = TOKENS,
    margin: Mapping[str, int | str] | None = None,
    context: Iterable[Row] | None = None,
    searched: Iterable[SearchedValues] = (),
) -> list[Answer]:
    """The answer of each search in which something was decided; the arguments are those of `frontier_text`."""
    rows = list(rows)
    found = [group for group in groups_of(rows, searched=searched) if group.decided]
    names = _names(found)
    run = RunContext(rows if context is None else context)
    return [_answer(group, names, objective, Margin(margin or {}, group.rows, run)) for group in found]


def _answer(group: FrontierGroup, names: Sequence[str], objective: Objective, margin: Margin) -> Answer:
    largest, smallest = group.largest(objective), _smallest(group, objective)
    chosen = largest
    if margin.requested:
        chosen = group.largest_with(margin, objective).at if group.headrooms else None
    heading, *lines = _lines(group, names, objective, margin)
    return Answer(
        heading=heading,
        group=group,
        fits=None if largest is None else group.fitting[largest],
        fails=None if smallest is None else group.failing[smallest],
        chosen=None if chosen is None else group.fitting[chosen],
        lines=(heading, *lines),
    )


def undecided_text(rows: Iterable[Row], searched: Iterable[SearchedValues] = ()) -> list[str]:
    """A line for the devices on which no attempt decided what fits, with the reason."""
    found = groups_of(rows, searched=searched)
    return _undecided_lines(found, _names(found))


def _names(found: Sequence[FrontierGroup]) -> tuple[str, ...]:
    """The keys in which groups differ, apart from those that every heading names."""
    columns = found[0].rows[0] if found else {}
    keys = [name.removeprefix("dim.") for name in columns if schema.is_key(name) and name not in NAMED]
    searched = {key for group in found for key in group.along}
    apart = [k for k in keys if k not in searched and len({str(value_in(g.rows[0], k)) for g in found}) > 1]
    return tuple(without_followers(apart, (group.rows[0]["config"] for group in found)) if apart else ())


def _title(group: FrontierGroup, names: Sequence[str]) -> list[str]:
    """The model, workload and dtype of a group, the values in which it differs from others, and its other settings."""
    row = group.rows[0]
    named = [*(["allocator"] if device_named(row["device"]).is_cpu and "allocator" not in names else []), *names]
    title = [str(row[name]) for name in NAMED if row.get(name) is not None]
    named = [name for name in named if has_key(row["config"], name)]
    title += [f"{name}={typed_value(name, value_in(row, name))}" for name in named if name != PREFILL_CHUNK]
    title += settings_text(row, (*named, *group.along, "budget", PREFILL_CHUNK))
    read = prefill_of(row)
    return title if read is None or PREFILL_CHUNK in group.along else [*title, read]


def _card_lines(found: Sequence[FrontierGroup], names: Sequence[str], objective: Objective) -> list[str]:
    """One line for each of many calculated cards, in the order of their sizes."""
    cards = {group.rows[0]["device"] for group in found}
    if len(cards) < MANY:
        return []
    alike: dict[str, list[FrontierGroup]] = defaultdict(list)
    for group in found:
        alike["  ".join(_title(group, names))].append(group)
    lines = []
    for name, groups in alike.items():
        groups.sort(key=lambda group: (group.rows[0].get("device_total_bytes") or 0, group.rows[0]["device"]))
        lines.append(f"{name}  (calculated, not measured)")
        for group in groups:
            total, largest = group.rows[0].get("device_total_bytes"), _largest_line(group, objective)
            size = "" if total is None else format_bytes(total)
            smallest = _smallest(group, objective)
            if group.largest(objective) is None and smallest is not None:
                largest += f"; the smallest, {group.text(smallest)}: {why(group.failing[smallest])}"
            lines.append(f"  {group.rows[0]['device']:{max(map(len, cards))}}  {size:>10}  {largest}")
    return lines


def _lines(group: FrontierGroup, names: Sequence[str], objective: Objective, margin: Margin) -> list[str]:
    row = group.rows[0]
    title = [row["device"], *_title(group, names)]
    largest = group.largest(objective)
    shown = group.rows if largest is None else [group.fitting[largest], *group.rows]  # a limit can differ by attempt
    title += _budget(next((each for each in shown if each.get("budget_bytes") is not None), row))
    if row["kind"] == CALCULATED:
        title.append("(calculated, not measured)")
    lines = ["  ".join(title), f"  largest that fits:   {_largest_line(group, objective)}"]
    smallest = _smallest(group, objective)
    if smallest is not None:
        lines.append(f"  smallest that fails: {group.text(smallest)}  {why(group.failing[smallest])}")
    lines += [f"  {line}" for line in _margin_lines(group, objective, margin)]
    return [*lines, *(f"  {remark}" for remark in _remarks(group, objective))]


def _margin_lines(group: FrontierGroup, objective: Objective, margin: Margin) -> list[str]:
    """The largest point that leaves the margin, the terms of the margin, and what they do not cover."""
    if not margin.requested or not group.fitting:
        return []
    if not group.headrooms:
        return ["with a margin:       unknown, since the headroom of no point is known"]
    found = group.largest_with(margin, objective)
    terms = ", ".join(map(str, found.terms))
    if found.at is None and found.unknown:
        return [f"with a margin:       unknown  ({terms})"]
    largest = "none is known to fit" if found.at is None else group.text(found.at)
    lines = [f"with {format_bytes(found.bytes)} left:  {largest}  ({terms})"]
    larger = [f"{group.text(at)} ({', '.join(_unknown(terms))})" for at, terms in found.unknown[:4]]
    lines += [f"  unknown for:       {'; '.join(larger)}"] if larger else []
    beyond = outside(group.rows[0] if found.at is None else group.fitting[found.at], found.terms)
    return lines + ([f"  not included:      {'; '.join(beyond)}"] if beyond else [])


def _unknown(terms: Iterable[MarginTerm]) -> list[str]:
    return [term.name for term in terms if not term.known]


def _budget(row: Row) -> list[str]:
    if row.get("budget_bytes") is None or row.get("budget_kind") == GUARD:
        return []
    what = "budget" if row.get("budget_kind") in (ALLOCATOR, DATA_LIMIT, TENSORS) else "limit"
    of = LIMITS.get(str(row.get("budget_kind")), "").strip()
    if what == "budget" and follows_in(row, what):
        return [f"{what}={value_in(row, what)} {of}".rstrip()]
    return [f"{what} {format_bytes(row['budget_bytes'])} {of}".rstrip()]


def _largest_line(group: FrontierGroup, objective: Objective) -> str:
    largest = group.largest(objective)
    obstacle = group.next_larger(largest)
    if largest is None:
        undecided = obstacle is not None and obstacle["fits"] is not False
        return f"none fits; the smallest: {why(obstacle)}" if obstacle and undecided else "none fits"
    row = group.fitting[largest]
    text = group.text(largest)
    counter = device_named(row["device"]).deciding_counter
    peak = row.get(f"peak_{counter}_bytes")
    if peak is not None:
        text += f"  peak {_tensors(row)}{format_bytes(peak)} {counter}"
        if row.get("peak_phase") is not None:  # it is the phase of this counter alone
            in_phase = f"in {row['peak_phase']}"
            text += f" ({in_phase})" if _tensors(row) else f" {in_phase}"
    text += _beside(row)
    text += _left(row, f"peak_{counter}_bytes")
    text += _within_context(row)
    if obstacle is None:
        return f"{text}; nothing larger was tried"
    if obstacle["fits"] is not False or obstacle.get("flaky"):
        return f"{text}; the next, {group.text(group.at(obstacle))}: {why(obstacle)}"
    return text


def _tensors(row: Row) -> str:
    """The peak of tensors where the resident one decides, which includes Python and every library."""
    tensors = row.get("peak_tensor_bytes") if device_named(row["device"]).is_cpu else None
    return "" if tensors is None else f"{format_bytes(tensors)} tensors, "


RELEVANT = 0.05  # share of the peak from which the memory of other processes is named


def _beside(row: Row) -> str:
    """The memory of processes that the workload started on cpu, which is in no peak, if it is a relevant share."""
    others, peak = row.get("other_processes_resident_bytes"), row.get("peak_resident_bytes")
    if not device_named(row["device"]).is_cpu or not others or (peak is not None and others < RELEVANT * peak):
        return ""
    return f", and {other_processes(row['other_processes'], others)}"


def _left(row: Row, peak: str) -> str:
    """What the limit leaves, with the counter that it is compared with if that is not the printed peak's."""
    free, counter = headroom(row)
    if free is None or counter is None or row.get("budget_kind") == GUARD:
        return ""
    if counter == peak or (counter == "budget_used_bytes" and row["budget_used_bytes"] == row.get(peak)):
        return f", {format_bytes(free)} left"
    if counter == "budget_used_bytes":
        return f"; {format_bytes(row[counter])} of {format_bytes(row['budget_bytes'])} used, {format_bytes(free)} left"
    name = counter.removeprefix("peak_").removesuffix("_bytes")
    return f"; {format_bytes(row[counter])} {name}, {format_bytes(free)} left"


def _within_context(row: Row) -> str:
    """A calculated point that fits only because the context is assumed to be smaller than the largest published one."""
    free, most, assumed = headroom(row)[0], row.get("context_most_bytes"), row.get("context_bytes")
    if free is None or most is None or assumed is None or free >= most - assumed:
        return ""
    return f", less than the context may take: {format_bytes(assumed)} is assumed, up to {format_bytes(most)} published"


def _smallest(group: FrontierGroup, objective: Objective) -> At | None:
    """The smallest failing point above the largest that fits, or else the smallest of all."""
    largest, failing = group.largest(objective), group.evidence.smallest_failing
    above = [at for at in failing if largest is not None and covers(at, largest)]
    return min(above or failing, key=lambda at: (prod(at), at), default=None)


def _remarks(group: FrontierGroup, objective: Objective) -> list[str]:
    largest, remarks = group.largest(objective), []
    others = [at for at in sorted(group.evidence.largest_fitting) if at != largest]
    if others:
        remarks.append(f"also at the edge:    {_listed(group, others)}")
    if group.is_assumed:
        remarks.append(
            f"assumed:             memory never decreases along {', '.join(group.along)}; no attempt tested this"
            " (confirm=audit:8 does)"
        )
    if not group.evidence.consistent:
        below = sorted(group.evidence.contradicted_fails)
        larger = next(at for at in group.evidence.largest_fitting if covers(at, below[0]))
        verb = "fail" if below[1:] else "fails"
        remarks.append(f"not monotone:        {_listed(group, below)} {verb}, and {group.text(larger)} fits")
    flaky = sorted({group.at(row) for row in group.rows if row.get("flaky")})
    if flaky:
        remarks.append(f"flaky:               {_listed(group, flaky)} passed and failed; not counted as fitting")
    if group.open_values:
        remarks.append(
            f"open:                {format_count(len(group.open_values), 'point')} neither decided nor implied"
        )
    return remarks


def _listed(group: FrontierGroup, points: Sequence[At]) -> str:
    return "; ".join(map(group.text, points[:4])) + ("; ..." if len(points) > 4 else "")


def _undecided_lines(found: Sequence[FrontierGroup], names: Sequence[str]) -> list[str]:
    """A line for the devices with groups in which no attempt decided anything, one for all with the same reason.

    A device that decided other groups has its undecided ones named.
    """
    by_device: dict[str, list[Row]] = defaultdict(list)
    for group in found:
        if not group.decided:
            by_device[group.rows[0]["device"]] += group.rows
    which = {device: _which(device, found, names) for device in by_device}
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)  # devices by what is shown of them
    for device, rows in by_device.items():
        reasons = (_message(row) or (_undecided(row) if row["status"] == Status.OK.value else "") for row in rows)
        reason = next(filter(None, reasons), "")
        statuses = counts(Counter(row["status"] for row in rows))
        alike[statuses, f" ({reason})" if reason else ""].append(f"{device}{which[device]}")
    return [
        f"{', '.join(devices)}  no attempt decided what fits: {statuses}{' on each' if devices[1:] else ''}{reason}"
        for (statuses, reason), devices in alike.items()
    ]


def _which(device: str, found: Sequence[FrontierGroup], names: Sequence[str]) -> str:
    """The values in which a device's undecided groups differ from its decided ones; empty if it decided none."""
    groups = [group for group in found if group.rows[0]["device"] == device]
    if not any(group.decided for group in groups):
        return ""
    titles = [_title(group, names) for group in groups]
    alike = set.intersection(*map(set, titles))
    pairs = zip(groups, titles, strict=True)
    open_ones = [" ".join(word for word in title if word not in alike) for group, title in pairs if not group.decided]
    left = len(open_ones) - MOST_NAMED
    return f"  {'; '.join(open_ones[:MOST_NAMED])}{f' and {left} more' if left > 0 else ''}:"


def why(row: Row) -> str:
    """Why a point failed, is undecided or fits only sometimes, in one line."""
    if row["fits"] is True:
        return "fits only sometimes"
    if row["status"] == Status.OK.value:
        return _undecided(row)
    phase = f" in {row['failed_phase']}" if row.get("failed_phase") else ""
    if row["status"] not in NO_MEMORY:
        message = _message(row)
        return f"{row['status']}{phase}" + (f": {message}" if message else "")
    text = f"out of {'host memory' if row['fits'] is None else 'memory'}{phase}"
    needs = row.get("needs_at_least_bytes")
    unlimited = row.get("unlimited_peak_bytes") if row["kind"] == CALCULATED else None
    if unlimited is not None:
        text += f", would take {format_bytes(unlimited)} {device_named(row['device']).deciding_counter}"
        limit = _room(row)
        if limit is not None and unlimited < limit:
            text += ", but fragmentation leaves no room for its segments"
            if (row.get("error_message") or "").endswith(FITS_IF_EXPANDABLE):
                text += f"; with {EXPANDABLE} in the shell it fits (calculated)"
    elif needs is not None:
        held = "in tensors and scratch memory" if device_named(row["device"]).is_host else "allocated"
        text += f", needs at least {format_bytes(needs)} {held}"
    if _is_of_any_batch(row) and row.get("batch") != 1:
        return f"{text}; a smaller batch would not help"
    if row["workload"] != GENERATE:
        return text
    least = least_in_chunks(json.loads(row["config"]), row.get("failed_phase"))
    return text if least is None else f"{text}; {least}"


def _room(row: Row) -> int | None:
    """The memory that a calculated allocator could reserve; None if it is not known."""
    total = row.get("device_total_bytes")
    if total is not None:
        total -= (row.get("context_bytes") or 0) + (row.get("used_by_others_bytes") or 0)
    return min((each for each in (row.get("budget_bytes"), total) if each is not None), default=None)


# Phases of sweeper's own workloads in which no activations are alive. The optimizer's step holds weights, gradients and
# its state: with a large model it can be the peak at any batch.
OWN = ("forward", "train", "generate")
OF_ANY_BATCH = ("model_load", "optimizer", "cold_step", "warm_step", "export")


def _is_of_any_batch(row: Row) -> bool:
    """Whether the failed phase takes the same memory with any batch."""
    if row["workload"] not in OWN:
        return False  # the contents of its phases are unknown
    if row.get("failed_phase") == "evaluation":
        evaluation = json.loads(row["config"])["workload"].get("evaluation") or {}
        return evaluation.get("batch") is not None
    return row.get("failed_phase") in OF_ANY_BATCH


def _undecided(row: Row) -> str:
    """Why a pass decides nothing."""
    refusals = row.get("handled_refusals")
    if refusals:
        return handled(refusals, row["handled_refusal_bytes"])
    return over_budget(row["used_with_shared_bytes"], row["budget_bytes"])


def _message(row: Row) -> str:
    return error_text(row.get("error_type"), row.get("error_message"))
