"""What fits: rows of points.parquet in, the edge between what fits and what does not out. Pure, but for `main`.

The points that differ only in keys of which more is known to take more memory are one search; every other difference,
also one in a key whose direction is not known, makes another. In a search the edge is the points that fit and have
nothing larger that fits, and the points that fail and have nothing smaller that fails. Only `fits` counts: an error or
a timeout is no limit of memory, and a point that passes sometimes does not fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from runners.device import CALCULATED, device_named
from runners.outcome import Status
from sweeper import columns as schema
from sweeper.designs.search import GROWING
from sweeper.frontier.margins import Margin, MarginTerm, RunContext, as_json, without
from sweeper.frontier.open_values import OpenValues, SearchedValues, Values
from sweeper.objective import TOKENS, Objective
from sweeper.rows import Row

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
