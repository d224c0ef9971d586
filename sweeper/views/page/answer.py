"""The answer of a run in sentences: the largest that fits for each setting, and what stops the next larger. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.device import CALCULATED, device_named
from runners.facts import GUARD
from runners.outcome import Status
from sweeper.columns import NAMED
from sweeper.frontier.edges import FrontierGroup, groups_of, headroom, limit_bytes
from sweeper.frontier.evidence import At
from sweeper.frontier.margins import Margin, RunContext
from sweeper.frontier.open_values import SearchedValues
from sweeper.objective import Objective
from sweeper.rows import Row
from sweeper.settled_keys import differing
from sweeper.units import format_bytes, format_count
from sweeper.views.frontier_text import LIMITS, why
from sweeper.views.layout import assignments, counts, error_text

UNDONE = (Status.NOT_RUN.value, Status.INTERRUPTED.value)
ONLY = "the workload"  # the one point of a group without such a key
MANY = 3  # devices, beyond which the answer counts them, in the order of their sizes
FEW_SETTINGS = 2  # of one device, of which one is the headline and the other stands below it
MOST_NAMED = 3  # settings with the same largest point that the headline names


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The edge of one search: points that differ only in keys along which memory grows.

    `largest` and `next`: rows of points.parquet; None where nothing fits, and where nothing larger was tried.
    """

    device: str
    kind: str
    setting: str  # the keys in which it differs from the other findings, as typed; empty if it is the only one
    along: Sequence[str]
    largest: Row | None
    largest_at: str | None
    next: Row | None
    next_at: str | None
    next_why: str | None
    margin: str | None  # that the choice has to leave free; None where none was set
    with_margin_at: str | None  # the largest that leaves it
    group: FrontierGroup

    @property
    def total_bytes(self) -> int | None:
        total: int | None = self.group.rows[0].get("device_total_bytes")
        return total

    @property
    def is_calculated(self) -> bool:
        return self.kind == CALCULATED

    @property
    def at(self) -> At | None:
        """The largest point, as values of the keys in `along`."""
        return None if self.largest is None else self.group.at(self.largest)

    @property
    def left_bytes(self) -> int | None:
        """Bytes left of the limit; None under a guard, which stands for the memory of the whole machine."""
        return headroom(self.largest)[0] if self.largest is not None and self._has_limit else None

    @property
    def limit_bytes(self) -> int | None:
        return limit_bytes(self.largest) if self.largest is not None and self._has_limit else None

    @property
    def used_bytes(self) -> int | None:
        """The bytes that are compared with the limit: on cpu they are fewer than the resident ones."""
        column = None if self.largest is None or not self._has_limit else headroom(self.largest)[1]
        used: int | None = None if self.largest is None or column is None else self.largest[column]
        return used

    @property
    def peak(self) -> str | None:
        """The peak of the counter that decides on the device, with its name."""
        return None if self.largest is None else _peak(self.largest)

    @property
    def _has_limit(self) -> bool:
        return self.largest is not None and self.largest.get("budget_kind") != GUARD

    @property
    def figures(self) -> str:
        """What the largest point takes: `it uses 2.00 GiB of the 4.00 GiB budget (of tensors), 1.90 GiB allocated`."""
        used, limit = self.used_bytes, self.limit_bytes
        if self.largest is None or used is None or limit is None:
            return f"it peaks at {self.peak}" if self.peak else ""
        counter = f"peak_{device_named(self.largest['device']).deciding_counter}_bytes"
        also = "" if not self.peak or self.largest.get(counter) == used else f", {self.peak}"
        return f"it uses {format_bytes(used)} of {_limit_text(self.largest, limit)}{also}"

    @property
    def sentence(self) -> str:
        where = f"on {self.device}" + (f" with {self.setting}" if self.setting else "")
        if self.largest is None:
            return f"Nothing that was tried fits {where}."
        text = f"{self.largest_at} is the largest that fits {where}"
        if self.largest_at == ONLY:
            text = f"The workload fits {where}"
        text += f": {self.figures}" if self.figures else ""
        if self.margin is None:
            return f"{text}."
        leaves = f"{self.with_margin_at} is the largest that leaves" if self.with_margin_at else "nothing leaves"
        return f"{text}; {leaves} the margin of {self.margin}."

    @property
    def next_sentence(self) -> str:
        """Why nothing larger fits."""
        if self.next_at == ONLY:
            return f"It was tried: {self.next_why}."
        if self.next_at is None and self.largest_at == ONLY:
            return ""
        if self.next_at is None:
            return "Nothing larger was tried." if self.largest is not None else ""
        which = "smallest" if self.largest is None else "next larger"
        return f"The {which} that was tried, {self.next_at}: {self.next_why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    headline: str
    detail: str  # why nothing larger fits, where there is one finding
    findings: Sequence[Finding]
    remarks: Sequence[str]  # what has to be known to read it


def answer_of(
    rows: Sequence[Row],
    objective: Objective,
    margin: Mapping[str, int | str] | None = None,
    searched: Iterable[SearchedValues] = (),
) -> Answer:
    """The findings of measured devices come first, each kind in the order of the plan.

    `margin`: what the choice has to leave free, as in sweeper.frontier.edges.
    """
    groups = [group for group in groups_of(rows, searched=searched) if group.decided]
    groups.sort(key=lambda group: group.rows[0]["kind"] == CALCULATED)
    along = {key for group in groups for key in group.along}
    apart = differing((group.rows[0]["config"] for group in groups), along) if groups else {}
    run = RunContext(rows)
    findings = [
        _finding(group, objective, Margin(margin or {}, group.rows, run), apart[group.rows[0]["config"]])
        for group in groups
    ]
    devices = {finding.device for finding in findings}
    if len(findings) == len(devices) > MANY:
        findings.sort(key=lambda finding: (finding.total_bytes or 0, finding.device))
    return Answer(
        headline=_headline(rows, findings, objective),
        detail=_detail(findings, objective),
        findings=findings,
        remarks=list(_remarks(rows, findings)),
    )


def _finding(group: FrontierGroup, objective: Objective, margin: Margin, setting: Mapping[str, Any]) -> Finding:
    largest = group.largest(objective)
    left = group.largest_with(margin, objective) if margin.requested and group.headrooms else None
    obstacle = group.next_larger(largest)
    row = group.rows[0]
    return Finding(
        device=row["device"],
        kind=row["kind"],
        setting=assignments(setting),
        along=group.along,
        largest=None if largest is None else group.fitting[largest],
        largest_at=None if largest is None else _text(group, largest),
        next=obstacle,
        next_at=None if obstacle is None else _text(group, group.at(obstacle)),
        next_why=None if obstacle is None else why(obstacle),
        margin=None if not margin.requested else format_bytes(left.bytes) if left is not None else "unknown",
        with_margin_at=None if left is None or left.at is None else _text(group, left.at),
        group=group,
    )


def _text(group: FrontierGroup, at: At) -> str:
    """A point as it is typed; a workload of the user's may have no key along which memory grows."""
    return group.text(at) or ONLY


def _peak(row: Row) -> str | None:
    counter = device_named(row["device"]).deciding_counter
    peak = row.get(f"peak_{counter}_bytes")
    return None if peak is None else f"{format_bytes(peak)} {counter}"


def _limit_text(row: Row, limit: int) -> str:
    """The limit that leaves least: a budget, with what it counts, or the memory of the device."""
    if headroom(row)[1] != "budget_used_bytes":
        return f"the {format_bytes(limit)} of {row['device']}"
    kind = str(row.get("budget_kind"))
    of = LIMITS.get(kind)
    return f"the {format_bytes(limit)} budget{f' ({of})' if of else ''}"


def _headline(rows: Sequence[Row], findings: Sequence[Finding], objective: Objective) -> str:
    if not rows:
        return "This run has no points."
    if not findings:
        reasons = (error_text(row["error_type"], row["error_message"]) for row in rows)
        reason = next(filter(None, reasons), None)
        statuses = counts(Counter(row["status"] for row in rows))
        return f"No attempt decided what fits: {statuses}{f' ({reason})' if reason else ''}."
    if len(findings) == len({finding.device for finding in findings}) > MANY:
        return _of_devices(findings)
    first = [finding for finding in findings if finding.device == findings[0].device]
    text = _of_settings(first, objective) if len(first) > 1 else first[0].sentence
    return f"Calculated, not measured: {_small(text)}" if first[0].is_calculated else text


def _small(text: str) -> str:
    """A sentence after a colon."""
    return f"{text[:1].lower()}{text[1:]}"


def _of_settings(findings: Sequence[Finding], objective: Objective) -> str:
    """The settings of one device: that with the largest point of all, and the others or their number."""
    fitting = [finding for finding in findings if finding.largest is not None]
    if not fitting:
        return f"Nothing that was tried fits on {findings[0].device} with any of {len(findings)} settings."
    best = _best(fitting, objective)
    if len(findings) <= FEW_SETTINGS and len(best) <= 1:
        return (best or fitting)[0].sentence
    number = f"{len(fitting)} of {len(findings)} settings fit on {findings[0].device}"
    if not best:
        return f"{number}."
    names = " and ".join(finding.setting for finding in best) if len(best) <= MOST_NAMED else f"{len(best)} of them"
    largest = f"the largest point, {best[0].largest_at}, fits with {names}"
    return f"{number}; {largest}{f': {best[0].figures}' if len(best) == 1 and best[0].figures else ''}."


def _detail(findings: Sequence[Finding], objective: Objective) -> str:
    """Why nothing larger fits; where the headline is of one of two settings, what fits in the other."""
    if len(findings) == 1:
        return findings[0].next_sentence
    first = [finding for finding in findings if finding.device == findings[0].device]
    fitting = [finding for finding in first if finding.largest is not None]
    best = _best(fitting, objective) if fitting else []
    if not 1 < len(first) <= FEW_SETTINGS or not fitting or len(best) > 1:
        return ""
    return " ".join(_other(each) for each in first if each is not (best or fitting)[0])


def _best(fitting: Sequence[Finding], objective: Objective) -> Sequence[Finding]:
    """The findings with the largest point by the objective; none where their points have different keys."""
    keys = fitting[0].along
    if any(finding.along != keys for finding in fitting) or fitting[0].largest_at == ONLY:
        return []
    rank = objective.ranking(keys)
    ranks = [rank(dict(zip(keys, finding.at or (), strict=True))) for finding in fitting]
    return [finding for finding, mine in zip(fitting, ranks, strict=True) if mine == max(ranks)]


def _other(finding: Finding) -> str:
    if finding.largest is None:
        return f"Nothing that was tried fits with {finding.setting}."
    if finding.largest_at == ONLY:
        return f"It also fits with {finding.setting}."
    return f"With {finding.setting}, {finding.largest_at} is the largest."


def _of_devices(findings: Sequence[Finding]) -> str:
    """On how many devices the largest point of all fits, and the smallest of them."""
    calculated = "Calculated, not measured: " if all(finding.is_calculated for finding in findings) else ""
    fitting = [finding for finding in findings if finding.largest is not None]
    if not fitting:
        nothing = "nothing" if calculated else "Nothing"
        return f"{calculated}{nothing} that was tried fits on any of {len(findings)} devices."
    best = fitting[-1]  # of the largest memory
    alike = [finding for finding in fitting if finding.largest_at == best.largest_at]
    size = "" if alike[0].total_bytes is None else f", {format_bytes(alike[0].total_bytes)}"
    return (
        f"{calculated}{best.largest_at} fits on {len(alike)} of {len(findings)} devices;"
        f" {alike[0].device} is the smallest of them{size}."
    )


def _remarks(rows: Sequence[Row], findings: Sequence[Finding]) -> Iterable[str]:
    undone = sum(row["status"] in UNDONE for row in rows)
    if undone:
        yield f"The sweep broke off: {undone} of {format_count(len(rows), 'point')} have no result."
    kinds = dict.fromkeys(row["kind"] for row in rows)
    if len(kinds) > 1:
        yield "Some devices were measured, others calculated. Each figure is marked, and the two are never added up."
    for finding in findings:
        group, where = finding.group, " ".join(filter(None, (finding.device, finding.setting)))
        if group.is_assumed:
            yield f"Assumed for {where}: memory never decreases along {', '.join(group.along)}; no attempt tested this."
        if not group.evidence.consistent:
            yield f"Not monotone on {where}: a point fails that is smaller than one that fits."
        if any(row.get("flaky") for row in group.rows):
            yield f"Flaky on {where}: a point passed and failed; it is not counted as fitting."
        if group.open_values:
            yield f"Open on {where}: {format_count(len(group.open_values), 'point')} neither decided nor implied."


def subject_of(rows: Sequence[Row]) -> str:
    """What all rows have in common of model, workload and dtype: `tiny-llama, train, float32`."""
    names = [{row[name] for row in rows} for name in NAMED]
    return ", ".join(str(next(iter(values))) for values in names if len(values) == 1 and values != {None})
