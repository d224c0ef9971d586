"""The output of a sweep: a line for each attempt, a summary at the end and, on a terminal, what is running now."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.effects.lever_runs import DESIGN
from sweeper.frontier.open_values import SearchedValues
from sweeper.plan import Plan
from sweeper.screen import discard, printable, show, warn
from sweeper.units import format_bytes, format_count, format_seconds
from sweeper.views.layout import assignments, counts, error_text, handled, other_processes, over_budget
from sweeper.views.prefill_text import GENERATE, least_in_chunks, prefill

ENDINGS = {
    Status.OK: "fits",
    Status.OOM: "out of memory",
    Status.OOM_KILLED: "out of memory, killed by the kernel",
    Status.KILLED: "killed",
    Status.CRASHED: "crashed",
    Status.TIMEOUT: "timed out",
    Status.ERROR: "error",
    Status.UNAVAILABLE: "unavailable",
    Status.INTERRUPTED: "interrupted",
    Status.LOST: "lost",
}


class Show:
    """One plain line for each finished attempt: for files, pipes and logs."""

    def __init__(self, plan: Plan) -> None:
        self._keys = [dimension.key for dimension in plan.dimensions]
        self._design, self._dimensions = plan.design, plan.dimensions
        self._objective, self._margin = plan.run.objective, plan.run.margin
        self._unavailable: set[str] = set()  # what was shown of calculated attempts
        self._total = 0
        self._done = 0

    def planned(self, device: str, point: Point) -> None:
        self._total += 1

    def began(self, device: str, point: Point) -> None:
        pass

    def waiting(self, device: str, point: Point, holder: str) -> None:
        self._line(f"{self._named(device, point)}  waits for {device}, which is in use by {holder}")

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        self._done += 1
        text = outcome_text(outcome)
        if outcome.status is Status.UNAVAILABLE and outcome.device.is_calculated:
            if text in self._unavailable:  # as on each of many cards; the summary names them
                return
            self._unavailable.add(text)
        if outcome.fits is False and point.get("workload") == GENERATE:
            least = least_in_chunks(point.values, outcome.failed_phase)
            text += "" if least is None else f"; {prefill(point.values)}; {least}"
        before = f"  ({outcome.device.kind} before)" if recalled else ""
        self._line(f"{self._named(device, point)}  {text}{before}")

    def remark(self, device: str, text: str) -> None:
        self._line(f"{device}  {text}")

    def gave_up(self, device: str, why: str) -> None:
        self._line(f"{device}  stops here: {why}")

    def tick(self) -> None:
        pass

    def stopped(self, why: str) -> None:
        warn(why)

    def ended(
        self,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        context: Sequence[Mapping[str, Any]] | None = None,
        searched: Sequence[SearchedValues] = (),
    ) -> None:
        """Print the number of points with each status, the frontier or the levers, and the place of the tables.

        `rows`: the points that this sweep planned. `context`: all rows of the run. `searched`: its intervals.
        """
        from sweeper.views import levers_text
        from sweeper.views.frontier_text import frontier_text

        statuses = Counter(str(row["status"]) for row in rows)
        tables = f"{_short(folder)}/points.parquet, attempts, phases, environment, estimates, frontier"
        if self._design == DESIGN:
            found = levers_text.as_text(levers_text.as_json(levers_text.runs_of(rows, self._dimensions)))
        else:
            found = frontier_text(rows, self._objective, self._margin, context, searched)
        points, devices = (len({row[name] for row in rows}) for name in ("point_id", "device"))
        total = format_count(points, "point")
        if devices > 1:  # a search measures other points on each
            total += f" {'x' if len(rows) == points * devices else 'on'} {devices} devices"
        for text in ("", f"{total}: {counts(statuses)}", "", found, "", f"tables: {tables}"):
            self._line(text)

    def _named(self, device: str, point: Point) -> str:
        words = assignments({key: point.get(key) for key in self._keys}) or str(point.get("workload"))
        return f"{device}  {words}"

    def _line(self, text: str) -> None:
        try:
            show(text)
        except OSError as error:
            self._continue_without_output(error)

    def _continue_without_output(self, error: OSError) -> None:
        """The reader closed the pipe (`| head`), the disk is full or the terminal was closed: results go to files."""
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            self.stopped(f"the output cannot be written; the sweep continues without it: {error.strerror}")


class TerminalShow(Show):
    """The same lines, above one with what is running now. The sweep's loop redraws it: there is no thread."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._running: dict[tuple[str, str], tuple[str, float]] = {}
        self._seconds: list[float] = []

    def began(self, device: str, point: Point) -> None:
        self._running[device, point.id] = self._named(device, point), time.monotonic()
        self.tick()

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        self._running.pop((device, point.id), None)
        if not recalled and outcome.duration_s is not None:
            self._seconds.append(outcome.duration_s)
        super().settled(device, point, outcome, recalled)

    def tick(self) -> None:
        from rich.text import Text

        now = time.monotonic()
        words = [f"{self._done} of {self._total}"]
        words += [f"{name}, {format_seconds(now - since)}" for name, since in self._running.values()]
        left = self._total - self._done
        if self._seconds and left:
            words.append(f"about {format_seconds(left * sum(self._seconds) / len(self._seconds))} left")
        line = Text(printable(" · ".join(words)), style="dim", overflow="ellipsis", no_wrap=True)
        try:
            self._live.update(line, refresh=True)
        except OSError as error:
            self._continue_without_output(error)

    def ended(
        self,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        context: Sequence[Mapping[str, Any]] | None = None,
        searched: Sequence[SearchedValues] = (),
    ) -> None:
        try:
            self._live.stop()
        except OSError as error:
            self._continue_without_output(error)
        super().ended(rows, folder, context, searched)

    def _line(self, text: str) -> None:
        try:
            self._console.print(printable(text), markup=False, soft_wrap=True)
        except OSError as error:
            self._continue_without_output(error)


@contextlib.contextmanager
def show_for(plan: Plan, folder: Path) -> Iterator[Show]:
    """Progress for a terminal, or plain lines where the output goes elsewhere."""
    if not sys.stdout.isatty():
        yield Show(plan)
        return
    show = TerminalShow(plan)
    with show._live:
        yield show


def outcome_text(outcome: Outcome) -> str:
    """The result of an attempt in one line: the failed phase, the peak with its counter, and the error."""
    text = ENDINGS.get(outcome.status, str(outcome.status))
    if outcome.status is Status.OK and outcome.handled_refusals:
        text = handled(outcome.handled_refusals, outcome.handled_refusal_bytes)
    elif outcome.exceeds_budget:
        text = over_budget(outcome.used_with_shared_bytes or 0, outcome.budget_bytes or 0)
    if outcome.failed_phase is not None and outcome.phases:
        text += f" in {outcome.failed_phase}"
    counter = outcome.device.deciding_counter
    peak = outcome.peak(counter)
    if peak is not None:
        text += f", {format_bytes(peak)} {counter}{' so far' if outcome.peak_is_partial else ''}"
    reserved, in_pools = outcome.peak("reserved"), outcome.peak("graph_pools")
    if reserved is not None and in_pools:
        text += f", {format_bytes(reserved)} reserved, {format_bytes(in_pools)} of it for CUDA graphs"
    if outcome.other_processes and outcome.other_processes_resident_bytes:
        text += f", and {other_processes(outcome.other_processes, outcome.other_processes_resident_bytes)}"
    if outcome.fits is False and outcome.unlimited_peak_bytes is not None:
        text += f"; it would take {format_bytes(outcome.unlimited_peak_bytes)}"
    text += assumed_text(outcome.assumed_values, outcome.assumed_places, outcome.assumed_bounds)
    if outcome.fits is None and outcome.error_message:
        text += f": {error_text(outcome.error_type, outcome.error_message)}"
    if outcome.notes:
        text += f"; {'; '.join(outcome.notes)}"
    if outcome.started_cold_because is not None:
        text += f"  (started cold: {outcome.started_cold_because})"
    return text


def assumed_text(values: int | None, places: Sequence[Mapping[str, Any]], bounds: Sequence[Mapping[str, Any]]) -> str:
    """In a few words, what a calculated result assumes; empty if it assumes nothing."""
    text = ""
    if bounds:
        at = _at(bounds)
        text += f", {bounds[0]['bound']}{at and f' at {at}'} ({bounds[0]['operator']})"
    if values:
        at = _at(places)
        text += f", {values} assumed value{'s' if values > 1 else ''}{f', {at}' if at else ' in the built-in workload'}"
    return text


def _at(places: Sequence[Mapping[str, Any]]) -> str:
    """Where it was, in the program's or a library's code; empty if a workload of sweeper's own asked."""
    places = [each for each in places if each["line"]]
    if not places:
        return ""
    more = f" and {len(places) - 1} more place{'s' if len(places) > 2 else ''}" if len(places) > 1 else ""
    return f"{places[0]['file']}:{places[0]['line']}{more}"


def _short(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
