"""The edge between what fits and what does not: rows of points.parquet in, rows of frontier.parquet out. Pure.

Points that differ only in keys whose larger values never take less memory form a group; any other difference starts
another group. The edge of a group is the points that fit and have no larger one that fits, and the points that fail and
have no smaller one that fails. Only `fits` counts: an error or a timeout is not a limit of memory, and a point that
passes only sometimes does not fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from runners.device import CALCULATED, device_named
from runners.outcome import Status
from sweeper import columns as schema
from sweeper.frontier.evidence import GROWING, At, Columns, Evidence, could_contradict
from sweeper.frontier.margins import Margin, MarginTerm, RunContext, as_json
from sweeper.frontier.open_values import OpenValues, SearchedValues
from sweeper.objective import TOKENS, Objective, Rank
from sweeper.requested import follows_in, rest_of, value_in
from sweeper.rows import Row

ALWAYS = ("batch", "context")

# Statuses of attempts that ran to an end of their own. All others were stopped, lost or never started.
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
    *(
        "handled_refusals",
        "handled_refusal_bytes",
        "needs_at_least_bytes",
        "unlimited_peak_bytes",
        "skipped_because",
        "device_total_bytes",
        "budget_used_bytes",
        "used_with_shared_bytes",
    ),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes", "peak_tensor_bytes", "peak_resident_bytes"),
    *("other_processes", "other_processes_resident_bytes"),
    *("peak_phase", "settings", "spreads", "beyond_training", "started_at"),
    *("used_by_others_bytes", "context_bytes", "context_most_bytes"),
)


def frontier(
    rows: Iterable[Row],
    objective: Objective = TOKENS,
    along: Sequence[str] | None = None,
    margin: Mapping[str, int | str] | None = None,
    searched: Iterable[SearchedValues] = (),
) -> list[dict[str, Any]]:
    """The rows of frontier.parquet.

    `along`: the keys to search along; by default the growing ones that vary. `margin`: bytes to leave free, by the name
    of the term (sweeper.frontier.margins). `searched`: the intervals of the sweep, whose values have no rows.

    A group in which no attempt decided has no row. A group in which nothing fits has a row without a point, and its
    failures.
    """
    rows = list(rows)
    context = RunContext(rows)
    decided = (group for group in groups_of(rows, along, searched) if group.decided)
    return [edge for group in decided for edge in group.edges(objective, Margin(margin or {}, group.rows, context))]


def groups_of(
    rows: Iterable[Row], along: Sequence[str] | None = None, searched: Iterable[SearchedValues] = ()
) -> list[FrontierGroup]:
    """The rows in groups of what they have in common, in the order of their first rows."""
    rows, searched = list(rows), list(searched)
    dimensions = {key for each in searched for key in each.dimensions}
    keys = _growing(rows, dimensions) if along is None else tuple(along)
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        mine = tuple(key for key in keys if row.get(schema.column_of(key)) is not None and not follows_in(row, key))
        found[row["device"], row["kind"], ",".join(mine), rest_of(row, mine)].append(row)
    searched_in: dict[tuple[str, str], list[SearchedValues]] = defaultdict(list)
    for names in {key[2] for key in found} if searched else ():
        for each in searched:
            searched_in[names, each.rest(names.split(","))].append(each)
    return [
        FrontierGroup(tuple(names.split(",")) if names else (), group, searched_in.get((names, rest), ()))
        for (_, _, names, rest), group in found.items()
    ]


def _growing(rows: Sequence[Row], dimensions: Collection[str]) -> tuple[str, ...]:
    """The keys to search along: the growing ones that vary, apart from those that follow others, or are searched."""
    keys = [name for name in (rows[0] if rows else {}) if schema.is_key(name) and not name.startswith("dim.")]
    growing = (key for key in dict.fromkeys((*ALWAYS, *keys)) if key.rpartition(".")[2] in GROWING)
    varying = [key for key in growing if key in dimensions or _numbers_vary(value_in(row, key) for row in rows)]
    return tuple(varying) or ALWAYS


def _numbers_vary(values: Iterable[Any]) -> bool:
    different = {value for value in values if value is not None}
    return len(different) > 1 and all(isinstance(value, int | float) and value is not True for value in different)


@dataclass(frozen=True)
class FrontierGroup:
    """Points on one device that differ only in keys along which memory grows."""

    along: tuple[str, ...]
    rows: Sequence[Row]
    searched: Sequence[SearchedValues] = ()

    def at(self, row: Row) -> At:
        return tuple(row[schema.column_of(key)] for key in self.along)

    @property
    def decided(self) -> bool:
        """Whether an attempt decided that a point fits or fails."""
        return bool(self.fitting or self.failing)

    @cached_property
    def fitting(self) -> dict[At, Row]:
        return {self.at(row): row for row in self.rows if row["fits"] is True and not row.get("flaky")}

    @cached_property
    def failing(self) -> dict[At, Row]:
        return {self.at(row): row for row in self.rows if row["fits"] is False}

    @cached_property
    def flaky(self) -> dict[At, Row]:
        """Points that failed before they passed: on neither side of the edge."""
        return {self.at(row): row for row in self.rows if row["fits"] is True and row.get("flaky")}

    @cached_property
    def undecided(self) -> dict[At, Row]:
        decided = self.fitting.keys() | self.failing.keys() | self.flaky.keys()
        return {self.at(row): row for row in self.rows if self.at(row) not in decided}

    @cached_property
    def evidence(self) -> Evidence:
        flaky = {at for at, row in self.failing.items() if row.get("flaky")}
        decided = (self.fitting | self.failing).items()
        in_order = sorted(decided, key=lambda each: str(each[1].get("started_at") or ""))
        tested = could_contradict((at, at in self.fitting) for at, _ in in_order)
        return Evidence(self.fitting, self.failing, flaky, tested)

    @property
    def is_assumed(self) -> bool:
        """Whether results are implied by an assumption that no attempt of this group tested."""
        implied = self.searched or any(row["status"] == Status.SKIPPED for row in self.rows)
        return bool(implied) and self.evidence.monotone is None

    @cached_property
    def open_values(self) -> OpenValues:
        """The planned values that no attempt decided and no other point implies."""
        lattices = [lattice for each in self.searched if (lattice := each.lattice(self.along)) is not None]
        decided = [*self.fitting, *self.failing, *self.flaky]
        return OpenValues(lattices, self.evidence, decided, list(self.undecided))

    def largest(self, objective: Objective) -> At | None:
        """The largest point that fits, or None if nothing fits."""
        return max(self.evidence.largest_fitting, key=self._rank(objective), default=None)

    def _rank(self, objective: Objective) -> Callable[[At], Rank]:
        rank = objective.ranking(self.along)
        return lambda at: rank(dict(zip(self.along, at, strict=True)))

    def next_larger(self, at: At | None) -> Row | None:
        """The row that says why nothing larger than a point fits (with None: why nothing fits).

        It is one of the nearest larger points that were tried or are implied to fail, if possible limited by memory.
        """
        nearest = (self._obstacles[each] for each in self._columns.smallest_above(at))
        return min(nearest, key=lambda row: LIMITS.index(limit_of(row)), default=None)

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self._obstacles)

    @cached_property
    def _obstacles(self) -> dict[At, Row]:
        """The points that were tried and do not fit, or are implied not to, each with the row that says why."""
        rows = (self.failing | self.undecided | self.flaky).items()
        return {at: reason for at, row in rows if (reason := self._reason(row)) is not None}

    def _reason(self, row: Row) -> Row | None:
        """The row with the reason why this one does not fit: itself if it was tried, or the failure that implies it."""
        if row["status"] in TRIED:
            return row
        implied_by = (row.get("skipped_because") or "").rpartition("/")[2].partition(".")[0]
        return self._failing_ids.get(implied_by)

    @cached_property
    def _failing_ids(self) -> dict[str, Row]:
        return {row["point_id"]: row for row in self.failing.values()}

    def text(self, at: At) -> str:
        """A point as it is typed: `batch=4 context=128`."""
        return " ".join(f"{key}={value}" for key, value in zip(self.along, at, strict=True))

    def edges(self, objective: Objective, margin: Margin) -> list[dict[str, Any]]:
        largest = self.largest(objective)
        fits = [self._fits(at, at == largest) for at in sorted(self.evidence.largest_fitting)] or [self._none_fits()]
        fails = [self._fails(at) for at in self.evidence.smallest_failing]
        return fits + fails + ([self._with_margin(objective, margin)] if margin.requested and self.headrooms else [])

    def _fits(self, at: At, largest: bool) -> dict[str, Any]:
        row = self.fitting[at]
        free, counter = headroom(row)
        return self._edge(row, "fits", self.next_larger(at)) | {
            "largest": largest,
            "headroom_bytes": free,
            "headroom_counter": counter,
            "untested_between": self.open_values.count(above=at),
        }

    @cached_property
    def headrooms(self) -> dict[At, int]:
        """Bytes that each fitting point left of its limit, where both are known."""
        found = ((at, headroom(row)[0]) for at, row in self.fitting.items())
        return {at: free for at, free in found if free is not None}

    def largest_with(self, margin: Margin, objective: Objective) -> MarginResult:
        """The largest point that was measured and leaves the margin."""
        unknown: list[tuple[At, list[MarginTerm]]] = []
        terms: list[MarginTerm] = []
        for at in sorted(self.headrooms, key=self._rank(objective), reverse=True):
            terms = margin.at(self.fitting[at], headroom(self.fitting[at])[1])
            if any(term.fails for term in terms) or self.headrooms[at] < sum(term.to_leave for term in terms):
                continue
            if all(term.known for term in terms):
                return MarginResult(at, terms, unknown)
            unknown.append((at, terms))
        return MarginResult(None, unknown[0][1] if unknown else terms, unknown)

    def _with_margin(self, objective: Objective, margin: Margin) -> dict[str, Any]:
        found = self.largest_with(margin, objective)
        edge = self._none_fits() if found.at is None else self._fits(found.at, False)
        limit = {"limit": "unknown"} if found.at is None and found.unknown else {}
        columns = {"margin_bytes": found.bytes, "margin_terms": as_json(found.terms)}
        return edge | limit | {"side": "with_margin", "largest": None} | columns

    def _none_fits(self) -> dict[str, Any]:
        nothing = dict.fromkeys((*map(schema.column_of, self.along), "point_id", "attempt", "budget_bytes"))
        edge = self._edge(self.rows[0], "fits", self.next_larger(None)) | nothing
        return edge | {"largest": True, "untested_between": len(self.open_values)}

    def _fails(self, at: At) -> dict[str, Any]:
        row = self.failing[at]
        return self._edge(row, "fails", row) | {"untested_between": self.open_values.count(below=at)}

    def _edge(self, row: Row, side: str, obstacle: Row | None) -> dict[str, Any]:
        swept = [name for name in row if name not in schema.FIXED]
        return {name: row.get(name) for name in (*FROM_ROW, *swept)} | {
            "along": ",".join(self.along),
            "side": side,
            "confirmed": None if row.get("flaky") is None else not row["flaky"],
            "limit": self._open_end(row) if obstacle is None else limit_of(obstacle),
            "limiting_phase": None if obstacle is None else obstacle.get("failed_phase"),
            "monotone": self.evidence.monotone,
            **dict.fromkeys(("largest", "headroom_bytes", "headroom_counter", "margin_bytes", "margin_terms")),
        }

    def _open_end(self, row: Row) -> str:
        """The limit of a point without an obstacle: unknown if a larger value is open."""
        return "unknown" if self.open_values.count(above=self.at(row)) else "not_reached"


class MarginResult(NamedTuple):
    """The largest point that leaves a margin, its terms there, and the larger points at which a term is unknown."""

    at: At | None
    terms: Sequence[MarginTerm]  # without a point: of the largest candidate, or else of the smallest point
    unknown: Sequence[tuple[At, Sequence[MarginTerm]]]

    @property
    def bytes(self) -> int:
        return sum(term.to_leave for term in self.terms)


LIMITS = ("memory", "host_memory", "other")


def limit_of(row: Row) -> str:
    """The limit that stopped an attempt which failed, was undecided or fits only sometimes."""
    if row["fits"] is not None or row["status"] == Status.OK.value:
        return "memory"
    if row["status"] in NO_MEMORY:
        return "host_memory"
    return "other"


# The columns that `limit_bytes` and `headroom` read.
HEADROOM_NEEDS = (
    *("device", "kind", "budget_bytes", "device_total_bytes", "budget_used_bytes"),
    *("peak_reserved_bytes", "peak_used_bytes", "peak_resident_bytes"),
)


def limit_bytes(row: Row) -> int | None:
    """The memory that the peak of `headroom`'s column may reach; None if it is not known."""
    limit, _, _ = _limit(row)
    return limit


def headroom(row: Row) -> tuple[int | None, str | None]:
    """Bytes left of the limit at the peak, and the column with the peak; None where either is unknown."""
    _, left, column = _limit(row)
    return left, column


def _limit(row: Row) -> tuple[int | None, int | None, str | None]:
    """The limit of a point, the bytes left of it at the peak, and the column with the peak.

    With a budget and a device's total it is the one that leaves less.
    """
    budget = _of_limit(row.get("budget_bytes"), row, ("budget_used_bytes",))
    if device_named(row["device"]).is_host:
        limited = row.get("budget_bytes") is not None
        return budget if limited else _of_limit(row.get("device_total_bytes"), row, ("peak_resident_bytes",))
    if row.get("budget_bytes") is not None and budget[1] is None:
        return budget
    # Used memory has no high-water mark and can be read too late; what was reserved at the peak was used then.
    columns = ("peak_used_bytes",) if row["kind"] == CALCULATED else ("peak_used_bytes", "peak_reserved_bytes")
    of_device = _of_limit(row.get("device_total_bytes"), row, columns)
    known = [each for each in (budget, of_device) if each[1] is not None]
    return min(known, key=lambda each: each[1] or 0, default=of_device)


def _of_limit(limit: int | None, row: Row, columns: Sequence[str]) -> tuple[int | None, int | None, str | None]:
    taken = [(row[column], column) for column in columns if row.get(column) is not None]
    if limit is None or not taken:
        return limit, None, None
    most, column = max(taken)
    return limit, limit - most, column
