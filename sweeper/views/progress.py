"""The output of a sweep where nothing can be redrawn: a line for each attempt, and what fits at the end."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.files import POINTS
from runners.outcome import Outcome, Status
from runners.point import Attempt, AttemptFolder, Point
from sweeper.effects.lever_runs import DESIGN
from sweeper.frontier.open_values import SearchedValues
from sweeper.plan import Plan
from sweeper.screen import discard, in_lines, in_one_line, print_command, show, warn, wrapped
from sweeper.screen import width as screen_width
from sweeper.units import format_bytes, format_count
from sweeper.views.code_place import place_in, shown
from sweeper.views.continuation import as_typed
from sweeper.views.layout import assignments, counts, error_text, handled, other_processes, over_budget, shortened
from sweeper.views.prefill_text import GENERATE, least_in_chunks, prefill

LONGEST_REPEATED = 120  # characters of a message that was shown whole before
# Statuses whose cause may be in what the workload printed.
HAS_A_CAUSE = (Status.ERROR, Status.CRASHED, Status.KILLED, Status.TIMEOUT, Status.LOST)
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
    """One plain line for each finished attempt: for files, pipes, notebooks and logs.

    The sweep calls it from its loop. Several attempts of one device can run at once, so that their events interleave.
    `folder`: the run's.
    """

    def __init__(self, plan: Plan, folder: Path | None = None) -> None:
        self._keys = [dimension.key for dimension in plan.dimensions]
        self._design, self._dimensions = plan.design, plan.dimensions
        self._objective, self._margin = plan.run.objective, plan.run.margin
        self._folder = folder
        self._unavailable: set[str] = set()  # what was shown of calculated attempts
        self._notes: dict[str, int] = {}  # number of each note that was shown
        self._messages: set[str] = set()  # of errors that were shown whole
        self._waited: set[tuple[str, str]] = set()  # devices, and who held them
        self._total = 0
        self._done = 0

    def planned(self, device: str, point: Point) -> None:
        self._total += 1

    def began(self, device: str, point: Point) -> None:
        pass

    def follow(self, device: str, point: Point, attempt: AttemptFolder) -> None:
        """The folder of the attempt that has just begun."""

    def waiting(self, device: str, point: Point, holder: str) -> None:
        sweep = _sweep_of(holder)
        if (device, sweep) not in self._waited:  # it may hold the device at every point
            self._waited.add((device, sweep))
            self._line(f"{device}  waits: in use by {sweep}")

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        self._done += 1
        outcome = in_lines(outcome)
        text = self._text(point, outcome, recalled)
        if text is not None:
            self._ended_line(device, point, outcome, text)

    def remark(self, device: str, text: str) -> None:
        self._line(f"{device}  {in_one_line(text)}")

    def gave_up(self, device: str, why: str) -> None:
        self._line(f"{device}  stops here: {in_one_line(why)}")

    def tick(self) -> None:
        pass

    def stopping(self, running: int) -> None:
        """The sweep was stopped while this many attempts run."""
        waits = (
            f"{format_count(running, 'attempt')} may end in order; a second signal kills" if running else "nothing runs"
        )
        warn(f"stopping: {waits}")

    def stopped(self, why: str) -> None:
        warn(why)

    def unfinished(self, command: Sequence[str]) -> None:
        """The words of the command that goes on with the sweep."""
        print_command("to go on", lambda width: as_typed(command, width))

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

        tables = f"{in_one_line(str(shown(folder)))}/points.parquet, attempts, phases, environment, estimates, frontier"
        if self._design == DESIGN:
            found = levers_text.as_text(levers_text.as_json(levers_text.runs_of(in_lines(rows), self._dimensions)))
        else:
            found = frontier_text(rows, self._objective, self._margin, context, searched)
        for text in ("", summary(rows), "", found, "", f"tables: {tables}"):
            self._line(text)

    def _text(self, point: Point, outcome: Outcome, recalled: bool) -> str | None:
        """How an attempt ended, in one line. None for a calculated device that lacks what another one lacked."""
        text = outcome_text(outcome)
        if outcome.status is Status.UNAVAILABLE and outcome.device.is_calculated:
            if text in self._unavailable:  # as on each of many cards; the summary names them
                return None
            self._unavailable.add(text)
        if len(text) > LONGEST_REPEATED and outcome.fits is None:
            if text in self._messages:
                text = f"{shortened(text, LONGEST_REPEATED)} (as before)"
            self._messages.add(text)
        if outcome.fits is False and point.get("workload") == GENERATE:
            least = least_in_chunks(point.values, outcome.failed_phase)
            text += "" if least is None else f"; {prefill(point.values)}; {least}"
        if numbers := [self._note(note) for note in notes_of(outcome)]:
            text += f"; note {', '.join(map(str, numbers))}"
        if outcome.status in HAS_A_CAUSE and (log := self._log(point, outcome)) is not None:
            text += f"; output: {shown(log)}"
        return text + (f"  ({outcome.device.kind} before)" if recalled else "")

    def _note(self, note: str) -> int:
        """The number of a note, which is printed the first time."""
        if note not in self._notes:
            self._notes[note] = len(self._notes) + 1
            self._line(f"note {self._notes[note]}: {note}")
        return self._notes[note]

    def _log(self, point: Point, outcome: Outcome) -> Path | None:
        """The file with what an attempt printed, if it printed anything."""
        if self._folder is None or outcome.attempt is None:
            return None
        attempt = Attempt(point=point, device=outcome.device, number=outcome.attempt)
        log = AttemptFolder(self._folder / POINTS / attempt.name).output
        try:
            return log if log.stat().st_size else None
        except OSError:
            return None

    def _ended_line(self, device: str, point: Point, outcome: Outcome, text: str) -> None:
        self._line(f"{self._named(device, point)}  {text}")

    def _named(self, device: str, point: Point) -> str:
        return f"{device}  {self._words(point)}"

    def _words(self, point: Point) -> str:
        """The swept keys of a point."""
        return assignments({key: point.get(key) for key in self._keys}) or str(point.get("workload"))

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


class QuietShow(Show):
    """The end alone: what fits, the frontier and the tables. Messages go to stderr as ever."""

    def _line(self, text: str) -> None:
        """On a terminal no word is cut."""
        width = screen_width() if sys.stdout.isatty() else None
        lines = text.split("\n")
        super()._line("\n".join(lines if width is None else (part for line in lines for part in wrapped(line, width))))

    def waiting(self, device: str, point: Point, holder: str) -> None:
        pass

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        pass

    def remark(self, device: str, text: str) -> None:
        pass

    def gave_up(self, device: str, why: str) -> None:
        pass


def _sweep_of(holder: str) -> str:
    """Who holds a device, in short: `the sweep run1 (pid 7)` of the path of its attempt, else what it wrote itself."""
    found = re.fullmatch(rf".*?([^/]+)/{POINTS}/[^/]+( \(pid [0-9]+\))", holder)
    return holder if found is None else f"the sweep {found[1]}{found[2]}"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """`4 points: 2 ok, 1 oom, 1 not_run; 2 fit, 1 does not, 1 undecided`."""
    points, devices = (len({row[name] for row in rows}) for name in ("point_id", "device"))
    total = format_count(points, "point")
    if devices > 1:  # a search measures other points on each
        total += f" {'x' if len(rows) == points * devices else 'on'} {devices} devices"
    return f"{total}: {counts(Counter(str(row['status']) for row in rows))}{_decided(rows)}"


def _decided(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many fit, do not fit and are undecided: a pass after a refused allocation is `ok`, and decides nothing."""
    skipped = Status.SKIPPED.value
    found = Counter("implied" if row["status"] == skipped else row["fits"] for row in rows)
    if set(found) == {True}:
        return "; all fit" if len(rows) > 1 else "; it fits"
    words = {
        "fits" if found[True] == 1 else "fit": found[True],
        "does not fit" if found[False] == 1 else "do not fit": found[False],
        "undecided": found[None],
        "implied": found["implied"],
    }
    return "".join(f"{'; ' if at == 0 else ', '}{text}" for at, text in enumerate(_counted(words)))


def _counted(found: Mapping[str, int]) -> list[str]:
    return [f"{count} {name}" for name, count in found.items() if count]


def outcome_text(outcome: Outcome) -> str:
    """The result of an attempt in one line: the failed phase, the peak with its counter, the error and its place."""
    text = ENDINGS.get(outcome.status, str(outcome.status))
    if outcome.status is Status.OK and outcome.handled_refusals:
        text = handled(outcome.handled_refusals, outcome.handled_refusal_bytes)
    elif outcome.exceeds_budget:
        text = over_budget(outcome.used_with_shared_bytes or 0, outcome.budget_bytes or 0)
    if outcome.failed_phase is not None and outcome.phases:
        text += f" in {outcome.failed_phase}"
    if peak := peak_text(outcome):
        text += f", {peak}"
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
        place = place_in(outcome.traceback)
        text += "" if place is None else f"; at {place}"
    return text


def peak_text(outcome: Outcome) -> str:
    """`34.50 MiB allocated`; on cpu the tensors first: some 350 MiB of what is resident are Python and torch."""
    counter = outcome.device.deciding_counter
    peaks = [(outcome.peak("tensor"), "tensors")] if outcome.device.is_cpu else []
    shown = [
        f"{format_bytes(peak)} {name}" for peak, name in (*peaks, (outcome.peak(counter), counter)) if peak is not None
    ]
    return ", ".join(shown) + (" so far" if shown and outcome.peak_is_partial else "")


def notes_of(outcome: Outcome) -> tuple[str, ...]:
    """What has to be known to read the figures of an attempt, each a clause."""
    cold = outcome.started_cold_because
    return (*outcome.notes, *([] if cold is None else [f"started cold: {cold}"]))


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
