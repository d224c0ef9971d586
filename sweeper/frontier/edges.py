"""What fits: rows of points.parquet in, the edge between what fits and what does not out. Pure, but for `main`.

The points that differ only in keys of which more is known to take more memory are one search; every other difference,
also one in a key whose direction is not known, makes another. In a search the edge is the points that fit and have
nothing larger that fits, and the points that fail and have nothing smaller that fails. Only `fits` counts: an error or
a timeout is no limit of memory, and a point that passes sometimes does not fit.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from runners.device import CALCULATED, device_named
from runners.outcome import Status
from sweeper import columns as schema
from sweeper.designs.search import GROWING
from sweeper.frontier.margins import Margin, MarginTerm, RunContext, as_json, outside, without
from sweeper.frontier.open_values import OpenValues, SearchedValues, Values
from sweeper.objective import TOKENS, Objective
from sweeper.units import format_bytes

ALWAYS = ("batch", "context")

# An attempt that ended like this says something of its point; the others were stopped, lost or never made.
TRIED = frozenset(
    status.value
    for status in (
        *(Status.OK, Status.OOM, Status.OOM_KILLED),
        *(Status.KILLED, Status.CRASHED, Status.TIMEOUT, Status.ERROR),
    )
)
NO_MEMORY = (Status.OOM.value, Status.OOM_KILLED.value)

FROM_ROW = (
    *("run", "device", "kind"),
    *(column.name for column in schema.DIMENSIONS),
    *("budget_bytes", "budget_kind", "point_id", "attempt"),
)
NEEDS = (
    *FROM_ROW,
    *("config", "status", "fits", "flaky", "oom_scope", "failed_phase", "error_type", "error_message"),
    *("needs_at_least_bytes", "unlimited_peak_bytes", "skipped_because", "device_total_bytes", "budget_used_bytes"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes", "peak_tensor_bytes", "peak_resident_bytes"),
    *("peak_phase", "spreads", "beyond_training", "used_by_others_bytes"),
)

Row = Mapping[str, Any]
At = tuple[float, ...]


def frontier(
    rows: Iterable[Row],
    objective: Objective = TOKENS,
    along: Sequence[str] | None = None,
    margin: Mapping[str, int | str] | None = None,
    searched: Iterable[SearchedValues] = (),
) -> list[dict[str, Any]]:
    """The rows of frontier.parquet. `along`: the keys that are searched, if not the ones that grow and vary. `margin`:
    what is to be left, by name (sweeper.frontier.margins). `searched`: what was asked for and has no row, in intervals.

    A search in which nothing told has no row. One in which nothing fits has one whose point is null, and its failures.
    """
    rows = list(rows)
    beside = RunContext(rows)
    told = (search for search in groups_of(rows, along, searched) if search.told)
    return [edge for search in told for edge in search.edges(objective, Margin(margin or {}, search.rows, beside))]


def groups_of(
    rows: Iterable[Row], along: Sequence[str] | None = None, searched: Iterable[SearchedValues] = ()
) -> list[FrontierGroup]:
    """The rows, by what they have in common, in the order they come in."""
    rows, searched = list(rows), list(searched)
    asked = {key for each in searched for key in each.dimensions}
    keys = _growing(rows, asked) if along is None else tuple(along)
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        mine = tuple(key for key in keys if row.get(schema.column_of(key)) is not None)
        found[row["device"], row["kind"], ",".join(mine), rest_of(row, mine)].append(row)
    asked_of: dict[str, dict[str, list[SearchedValues]]] = defaultdict(lambda: defaultdict(list))
    for names in {key[2] for key in found} if searched else ():
        for each in searched:
            asked_of[names][each.rest(names.split(","))].append(each)
    return [
        FrontierGroup(tuple(names.split(",")) if names else (), group, asked_of[names][rest] if searched else ())
        for (_, _, names, rest), group in found.items()
    ]


def _growing(rows: Sequence[Row], asked: Collection[str]) -> tuple[str, ...]:
    """The keys to search along: batch, context and swept ones that grow, as far as they vary or were asked to."""
    swept = [name for name in (rows[0] if rows else {}) if name not in schema.FIXED and not name.startswith("dim.")]
    growing = (key for key in (*ALWAYS, *swept) if key.rpartition(".")[2] in GROWING)
    varying = [key for key in growing if key in asked or _numbers_vary(row.get(key) for row in rows)]
    return tuple(varying) or ALWAYS


def _numbers_vary(values: Iterable[Any]) -> bool:
    different = {value for value in values if value is not None}
    return len(different) > 1 and all(isinstance(value, int | float) and value is not True for value in different)


def rest_of(row: Row, along: Sequence[str]) -> str:
    """Everything settled but the keys that are searched, as one text."""
    return without(row["config"], along)


@dataclass(frozen=True)
class FrontierGroup:
    """Points on one device that differ in nothing but the keys along which memory grows."""

    along: tuple[str, ...]
    rows: Sequence[Row]
    searched: Sequence[SearchedValues] = ()

    def at(self, row: Row) -> At:
        return tuple(row[schema.column_of(key)] for key in self.along)

    @property
    def told(self) -> bool:
        return bool(self.fitting or self.failing)

    @cached_property
    def fitting(self) -> dict[At, Row]:
        return {self.at(row): row for row in self.rows if row["fits"] is True and not row.get("flaky")}

    @cached_property
    def failing(self) -> dict[At, Row]:
        return {self.at(row): row for row in self.rows if row["fits"] is False}

    @cached_property
    def sometimes(self) -> dict[At, Row]:
        """What passed at last and failed before: neither side of an edge."""
        return {self.at(row): row for row in self.rows if row["fits"] is True and row.get("flaky")}

    @cached_property
    def silent(self) -> dict[At, Row]:
        """What was asked for and did not tell."""
        told = self.fitting.keys() | self.failing.keys() | self.sometimes.keys()
        return {self.at(row): row for row in self.rows if self.at(row) not in told}

    @cached_property
    def largest_fitting(self) -> list[At]:
        return _maximal(self.fitting)

    @cached_property
    def smallest_failing(self) -> list[At]:
        return [_negative(at) for at in _maximal(map(_negative, self.failing))]

    @cached_property
    def untested(self) -> OpenValues:
        """What did not tell, and is not implied by what did: by nothing that is contradicted, or told both ways."""
        largest, smallest = self.largest_fitting, self.smallest_failing
        fits = _maximal(at for at in self.fitting if not any(_at_least(at, fails) for fails in smallest))
        fails = [
            at
            for at, row in self.failing.items()
            if not row.get("flaky") and not any(_at_least(fits, at) for fits in largest)
        ]
        minimal = [_negative(at) for at in _maximal(map(_negative, fails))]
        told = [*self.fitting, *self.failing, *self.sometimes]
        return OpenValues(self._lattices, fits, minimal, told, list(self.silent))

    @property
    def _lattices(self) -> list[tuple[Values, ...]]:
        found = (each.lattice(self.along) for each in self.searched)
        return [lattice for lattice in found if lattice is not None]

    @cached_property
    def contradictions(self) -> list[At]:
        """What fails although something larger fits."""
        return [at for at in self.failing if any(_at_least(larger, at) for larger in self.largest_fitting)]

    @property
    def monotone(self) -> bool:
        return not any(_at_least(fits, fails) for fits in self.largest_fitting for fails in self.smallest_failing)

    def largest(self, objective: Objective) -> At | None:
        return self._best(self.largest_fitting, objective)

    def _best(self, points: Iterable[At], objective: Objective) -> At | None:
        rank = objective.ranking(self.along)
        return max(points, key=lambda at: rank(dict(zip(self.along, at, strict=True))), default=None)

    def next_larger(self, at: At | None) -> Row | None:
        """What stands in the way of anything larger than a point that fits (of anything at all, with None).

        Of the nearest larger ones that were tried or are implied to fail: one that memory stopped, if there is one.
        """
        larger = (other for other in self._standing if at is None or _at_least(other, at))
        nearest = [self._standing[_negative(other)] for other in _maximal(map(_negative, larger))]
        return min(nearest, key=lambda row: LIMITS.index(limit_of(row)), default=None)

    @cached_property
    def _standing(self) -> dict[At, Row]:
        """What was tried and does not fit, or is implied not to, each with the row that says why."""
        rows = (self.failing | self.silent | self.sometimes).items()
        return {at: evidence for at, row in rows if (evidence := self._evidence(row)) is not None}

    def _evidence(self, row: Row) -> Row | None:
        """The row that says why this one does not fit: itself if it was tried, if it was skipped what implies it."""
        if row["status"] in TRIED:
            return row
        implied_by = (row.get("skipped_because") or "").rpartition("/")[2].partition(".")[0]
        return self._failing_ids.get(implied_by)

    @cached_property
    def _failing_ids(self) -> dict[str, Row]:
        return {row["point_id"]: row for row in self.failing.values()}

    def say(self, at: At) -> str:
        return " ".join(f"{key}={value}" for key, value in zip(self.along, at, strict=True))

    def edges(self, objective: Objective, margin: Margin) -> list[dict[str, Any]]:
        largest = self.largest(objective)
        fits = [self._fits(at, at == largest) for at in sorted(self.largest_fitting)] or [self._none_fits()]
        fails = [self._fails(at) for at in sorted(self.smallest_failing)]
        return fits + fails + ([self._with_margin(objective, margin)] if margin.asked and self.headrooms else [])

    def _fits(self, at: At, largest: bool) -> dict[str, Any]:
        row = self.fitting[at]
        left, counter = headroom(row)
        return self._edge(row, "fits", self.next_larger(at)) | {
            "largest": largest,
            "headroom_bytes": left,
            "headroom_counter": counter,
            "untested_between": self.untested.count(above=at),
        }

    @cached_property
    def headrooms(self) -> dict[At, int]:
        """What each point that fits left of its limit, where that is known."""
        left = ((at, headroom(row)[0]) for at, row in self.fitting.items())
        return {at: free for at, free in left if free is not None}

    def largest_with(self, margin: Margin, objective: Objective) -> MarginResult:
        """The largest point that was measured and leaves the margin."""
        rank = objective.ranking(self.along)
        largest_first = sorted(
            self.headrooms, key=lambda at: rank(dict(zip(self.along, at, strict=True))), reverse=True
        )
        silent: list[tuple[At, list[MarginTerm]]] = []
        terms: list[MarginTerm] = []
        for at in largest_first:
            terms = margin.at(self.fitting[at], headroom(self.fitting[at])[1])
            if any(term.fails for term in terms) or self.headrooms[at] < sum(term.to_leave for term in terms):
                continue
            if all(term.told for term in terms):
                return MarginResult(at, terms, silent)
            silent.append((at, terms))
        return MarginResult(None, silent[0][1] if silent else terms, silent)

    def _with_margin(self, objective: Objective, margin: Margin) -> dict[str, Any]:
        left = self.largest_with(margin, objective)
        edge = self._none_fits() if left.at is None else self._fits(left.at, False)
        limit = {"limit": "unknown"} if left.at is None and left.silent else {}
        known = {"margin_bytes": left.bytes, "margin_terms": as_json(left.terms)}
        return edge | limit | {"side": "with_margin", "largest": None} | known

    def _none_fits(self) -> dict[str, Any]:
        nothing = dict.fromkeys((*map(schema.column_of, self.along), "point_id", "attempt", "budget_bytes"))
        edge = self._edge(self.rows[0], "fits", self.next_larger(None)) | nothing
        return edge | {"largest": True, "untested_between": len(self.untested)}

    def _fails(self, at: At) -> dict[str, Any]:
        row = self.failing[at]
        return self._edge(row, "fails", row) | {"untested_between": self.untested.count(below=at)}

    def _edge(self, row: Row, side: str, in_the_way: Row | None) -> dict[str, Any]:
        swept = [name for name in row if name not in schema.FIXED]
        return {name: row.get(name) for name in (*FROM_ROW, *swept)} | {
            "along": ",".join(self.along),
            "side": side,
            "confirmed": None if row.get("flaky") is None else not row["flaky"],
            "limit": self._open_end(row) if in_the_way is None else limit_of(in_the_way),
            "limiting_phase": None if in_the_way is None else in_the_way.get("failed_phase"),
            "monotone": self.monotone,
            **dict.fromkeys(("largest", "headroom_bytes", "headroom_counter", "margin_bytes", "margin_terms")),
        }

    def _open_end(self, row: Row) -> str:
        """Where nothing stands in the way: whether that is because nothing told."""
        return "unknown" if self.untested.count(above=self.at(row)) else "not_reached"


class MarginResult(NamedTuple):
    """The largest point that leaves a margin, its terms there, and the larger ones of which a term was not told."""

    at: At | None
    terms: Sequence[MarginTerm]  # without a point, of the largest that could still be it, else of the smallest there is
    silent: Sequence[tuple[At, Sequence[MarginTerm]]]

    @property
    def bytes(self) -> int:
        return sum(term.to_leave for term in self.terms)


LIMITS = ("memory", "host_memory", "other")


def limit_of(row: Row) -> str:
    """What stopped an attempt that did not fit, or did not tell, or fits only sometimes."""
    if row["fits"] is not None:
        return "memory"
    if row["status"] in NO_MEMORY:
        return "host_memory"
    return "other"


def headroom(row: Row) -> tuple[int | None, str | None]:
    """What was left of the limit at the peak, and the column of what took it; nothing where either is not known."""
    if row.get("budget_bytes") is not None:
        return _left(row["budget_bytes"], row, ("budget_used_bytes",))
    if device_named(row["device"]).is_cpu:
        return _left(row.get("device_total_bytes"), row, ("peak_resident_bytes",))
    if row["kind"] == CALCULATED:
        return _left(row.get("device_total_bytes"), row, ("peak_used_bytes",))
    # What is used has no high-water mark, and can be read too late: what was reserved at the peak was used then.
    return _left(row.get("device_total_bytes"), row, ("peak_used_bytes", "peak_reserved_bytes"))


def _left(limit: int | None, row: Row, columns: Sequence[str]) -> tuple[int | None, str | None]:
    taken = [(row[column], column) for column in columns if row.get(column) is not None]
    if limit is None or not taken:
        return None, None
    most, column = max(taken)
    return limit - most, column


def _maximal(points: Iterable[At]) -> list[At]:
    """The points that no other one is at least as large as in every direction."""
    found: list[At] = []
    for at in sorted(set(points), reverse=True):  # whatever is larger than a point comes before it
        # In two directions the last one found has the largest second one of all before it.
        rivals = found[-1:] if len(at) <= 2 else found
        if not any(_at_least(other, at) for other in rivals):
            found.append(at)
    return found


def _at_least(one: At, other: At) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True))


def _negative(at: At) -> At:
    return tuple(-value for value in at)


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
NAMED = ("model", "workload", "dtype")
VARYING = tuple(column.name for column in schema.DIMENSIONS if column.name not in NAMED)


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
