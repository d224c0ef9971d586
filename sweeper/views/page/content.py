"""What the page of a run shows, from its rows. Pure: no files, no HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from runners.device import MEASURED, Card, device_named
from sweeper.costs import PackageCost, Tariffs, cheapest, package_costs
from sweeper.effects.families import NEEDS_OF_PHASES, warm_repeat, warm_repeats
from sweeper.frontier.open_values import searched_in
from sweeper.objective import TOKENS
from sweeper.plan_lines import PlanLine, RunLine, SearchedLine
from sweeper.rerun import commands
from sweeper.rows import Row
from sweeper.views.page.answer import Answer, answer_of, subject_of
from sweeper.views.page.card_room import CardRooms, card_rooms
from sweeper.views.page.compared import Compared, compared
from sweeper.views.page.dimensions import dimensions_of
from sweeper.views.page.failures import Failures, failures_of
from sweeper.views.page.fitted_memory import FittedMemories, fitted_memories
from sweeper.views.page.frontier_grid import FrontierGrid, dimensions_text, frontier_grid
from sweeper.views.page.marks import Mark, counts_of
from sweeper.views.page.phase_bars import PhaseBars, phase_bars
from sweeper.views.page.points_table import PointsTable, point_texts, points_table
from sweeper.views.page.timeline import Timeline, timeline

MOST_BARS = 6  # attempts whose phases are drawn
MOST_CARDS = 3  # points that are compared with every card

OF_ATTEMPTS = (
    *("point_id", "device", "kind", "attempt", "status", "fits", "flaky", "failed_phase", "error_type"),
    *("error_message", "signal", "exit_code", "requested_bytes", "needs_at_least_bytes", "unlimited_peak_bytes"),
    *("peak_bytes", "peak_counter", "peak_is_partial", "started_at", "duration_s"),
)
OF_PHASES = tuple(
    dict.fromkeys(
        (
            *NEEDS_OF_PHASES,
            *("completed", "position"),
            *(f"peak_{name}_bytes" for name in ("allocated", "reserved", "tensor", "resident")),
        )
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    tariffs: Tariffs
    packages: Sequence[PackageCost]
    cheapest: Mapping[str, PackageCost]
    spreads: Mapping[tuple[str, str], tuple[float, float]]  # by point and device, the fastest and slowest repeat

    @property
    def priced(self) -> Sequence[PackageCost]:
        return [each for each in self.packages if each.cost is not None]

    @property
    def has_single_repeats(self) -> bool:
        return any(each.repeats == 1 for each in self.priced)

    def pace(self, package: PackageCost) -> str:
        """What the pace is the mean of: `3 repeats of 1.20 to 1.35 s`."""
        fastest, slowest = self.spreads[package.point_id, package.device]
        if package.repeats == 1:
            return "one repeat"
        return f"{package.repeats} repeats of {fastest:.3g} to {slowest:.3g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    run: str
    subject: str
    version: str | None
    commands: Sequence[Sequence[str]]  # of each sweep into the folder, as typed
    dimensions: Sequence[str]
    counts: Mapping[Mark, int]
    kinds: Sequence[str]
    answer: Answer
    grid: FrontierGrid
    bars: Sequence[PhaseBars]
    bars_hidden: int
    fitted: FittedMemories
    compared: Compared
    at: Mapping[str, str]  # by point id
    timeline: Timeline
    failures: Failures
    cards: Sequence[CardRooms]
    costs: Costs | None
    points: PointsTable
    environment: Sequence[Row]


def page_content(
    run: str,
    points: Sequence[Row],
    attempts: Sequence[Row],
    phases: Sequence[Row],
    environment: Sequence[Row],
    plan: Iterable[PlanLine],
    cards: Mapping[str, Card],
    axes: Sequence[str] = (),
    tariffs: Tariffs | None = None,
) -> PageContent:
    """The rows are those of the run's tables. Raises Mistake if a key of `axes` did not vary."""
    lines = list(plan)
    sweeps = [line for line in lines if isinstance(line, RunLine)]
    objective = next((line.objective for line in reversed(sweeps) if line.objective), TOKENS)
    dimensions = dimensions_of(points)
    grid = frontier_grid(points, dimensions, axes)
    searched = [searched_in(line) for line in lines if isinstance(line, SearchedLine)]
    answer = answer_of(points, objective, sweeps[-1].margin if sweeps else {}, searched)
    phases_of = _phases_of(points, phases)
    chosen = _chosen(answer)
    bars = (phase_bars(title, row, phases_of.get(_key(row), ())) for title, row in chosen)
    shown = list(islice(filter(None, bars), MOST_BARS))
    at = point_texts(points, dimensions)
    last = sweeps[-1] if sweeps else None
    return PageContent(
        run=run,
        subject=subject_of(points),
        version=None if last is None else last.version,
        commands=[line.command for line in sweeps],
        dimensions=list(dimensions_text(points, dimensions)),
        counts=counts_of(points),
        kinds=list(dict.fromkeys(row["kind"] for row in points)),
        answer=answer,
        grid=grid,
        bars=shown,
        bars_hidden=max(0, len(chosen) - MOST_BARS),
        fitted=fitted_memories(points, phases),
        compared=compared(points, at, {row["point_id"] for _, row in chosen}),
        at=at,
        timeline=timeline(attempts),
        failures=failures_of(attempts, at),
        cards=_cards(answer, cards, points),
        costs=None if tariffs is None else _costs(points, attempts, phases_of, tariffs),
        points=points_table(points, dimensions, commands(lines)),
        environment=environment,
    )


def _key(row: Row) -> tuple[str, str]:
    return row["point_id"], row["device"]


def _phases_of(points: Iterable[Row], phases: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The phases of the attempts that count."""
    counting = {_key(row): row["attempt"] for row in points}
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for phase in phases:
        if counting.get(_key(phase), -1) == phase["attempt"]:
            found[_key(phase)].append(phase)
    return found


def _chosen(answer: Answer) -> list[tuple[str, Row]]:
    """The largest point that fits of each finding, and the next larger one that does not, with their titles."""
    found: dict[tuple[str, str], tuple[str, Row]] = {}
    for finding in answer.findings:
        for row, at, what in (
            (finding.largest, finding.largest_at, "the largest that fits"),
            (finding.next, finding.next_at, "the next larger"),
        ):
            if row is not None:
                setting = f" {finding.setting}" if finding.setting else ""
                found.setdefault(_key(row), (f"{finding.device}{setting} {at}, {what}", row))
    return list(found.values())


def _cards(answer: Answer, cards: Mapping[str, Card], points: Sequence[Row]) -> list[CardRooms]:
    """The room that cards have for the largest points that fit, each point once, in the order of the findings.

    A point on a host gives a lower bound only: one of them is enough, where there is nothing better.
    """
    largest = [finding for finding in answer.findings if finding.largest is not None]
    largest.sort(key=lambda finding: device_named(finding.device).is_host)
    found: dict[str, CardRooms] = {}
    for finding in largest:
        row = finding.largest
        if row is None or row["point_id"] in found:
            continue
        if len(found) == MOST_CARDS or (found and device_named(finding.device).is_host):
            break
        rooms = card_rooms(f"{finding.largest_at} {finding.setting}".strip(), row, cards, points)
        if rooms is not None:
            found[row["point_id"]] = rooms
    return list(found.values())


def _costs(
    points: Sequence[Row],
    attempts: Sequence[Row],
    phases_of: Mapping[tuple[str, str], Sequence[Row]],
    tariffs: Tariffs,
) -> Costs:
    repeats, spreads = {}, {}
    for row in points:
        phases = phases_of.get(_key(row), ())
        found = warm_repeat(row, phases) if row["kind"] == MEASURED else ""
        if not isinstance(found, str):
            seconds = warm_repeats(phases)
            repeats[_key(row)] = found[0], len(seconds)
            spreads[_key(row)] = min(seconds), max(seconds)
    packages = package_costs(points, attempts, repeats, tariffs)
    return Costs(tariffs=tariffs, packages=packages, cheapest=cheapest(packages), spreads=spreads)
