"""The output of a sweep on a terminal: below what has ended, a part that is redrawn with what runs and what is left.

The sweep's loop redraws it: there is no thread. The lines of calculated devices are a table in that part, because their
attempts take a second or less.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from runners.journal import phase_under_way
from runners.outcome import Outcome, Status
from runners.point import AttemptFolder, Point, canonical
from sweeper.frontier.open_values import SearchedValues
from sweeper.interval import Interval
from sweeper.plan import Plan
from sweeper.screen import in_one_line, printable, wrapped
from sweeper.units import format_bytes, format_seconds
from sweeper.views.layout import assignments
from sweeper.views.marks import OPEN, SIGNS, Grid, Sign, grid_lines
from sweeper.views.progress import ENDINGS, Show, assumed_text, notes_of, outcome_text
from sweeper.views.time_left import TimeLeft

FEW = 3  # calculated devices up to which each has a column in a table of points; more have a line each
MOST_ROWS = 60  # of the table of points that stays on the screen at the end
REDRAWN_WITHIN = 0.1  # seconds in which it is not drawn again
STARTS = "start"  # the phase before the first: the interpreter and the imports
WAITS = "waits"  # for its device, which another sweep uses
ORDER = (True, False, None)  # of what fits, in the counts
INDENT = "  "
CUT = " ..."
Key = tuple[str, str]  # a device and the id of a point


@dataclass
class Running:
    """An attempt under way."""

    words: str
    since: float
    phase: str
    folder: AttemptFolder | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A point on a calculated device."""

    sign: Sign = OPEN
    text: str = ""


class LiveShow(Show):
    """What runs, how much is left and what fits so far, drawn below the lines of what has ended. To be closed."""

    def __init__(self, plan: Plan, folder: Path | None = None) -> None:
        super().__init__(plan, folder)
        self._console = Console(highlight=False, emoji=False)
        # Messages on stderr would be written into the redrawn part. Where stderr is a file, they belong into it.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._drawn = 0.0
        self._time_left = TimeLeft(plan)
        self._running: dict[Key, Running] = {}
        self._found: Counter[tuple[bool | None, str]] = Counter()  # what fits, by its word
        self._calculated = [device.name for device in plan.devices if device.is_calculated]
        self._cells: dict[str, dict[str, Cell]] = {name: {} for name in self._calculated}  # by device and point
        self._points: dict[str, str] = {}  # words of each point that is calculated, in the order of the plan
        self._places: dict[str, int] = {}  # of these points in that order
        self._furthest = 0  # of the places whose points are known
        # What a drawing needs of all calculated points, since there can be thousands.
        self._signs: dict[str, Counter[Sign]] = {name: Counter() for name in self._calculated}
        self._widths = {name: len(name) for name in self._calculated}
        self._reasons: set[str] = set()  # why calculated points are undecided: a table has no room for them
        self._assumed: set[object] = set()  # what was shown of assumed values
        self._numbers = [each.key for each in plan.dimensions if _is_numeric(each.values)]
        self._measured: dict[str, dict[tuple[Any, ...], Sign]] = {}  # by device: signs by the values of all dimensions
        self._latest: tuple[str, Point] | None = None  # of a measured device

    # -- events -------------------------------------------------------------------------------------------------------

    def planned(self, device: str, point: Point) -> None:
        super().planned(device, point)
        self._time_left.planned(device, point.id)
        if device in self._cells:
            self._points.setdefault(point.id, self._words(point))
            self._places.setdefault(point.id, len(self._places))
            if point.id not in self._cells[device]:
                self._set(device, point.id, Cell())
        else:
            self._measured.setdefault(device, {}).setdefault(self._values(point), OPEN)

    def began(self, device: str, point: Point) -> None:
        now = time.monotonic()
        self._time_left.began(device, point.id, now)
        phase = "" if device in self._cells else STARTS  # a calculated attempt writes its phases at its end
        self._running[device, point.id] = Running(self._words(point), now, phase)
        if device not in self._cells or now - self._drawn >= REDRAWN_WITHIN:
            self._draw()

    def follow(self, device: str, point: Point, attempt: AttemptFolder) -> None:
        if device not in self._cells and (running := self._running.get((device, point.id))) is not None:
            running.folder = attempt

    def waiting(self, device: str, point: Point, holder: str) -> None:
        if (running := self._running.get((device, point.id))) is not None:
            running.phase = WAITS
        super().waiting(device, point, holder)

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        self._running.pop((device, point.id), None)
        self._time_left.settled(device, point.id, time.monotonic(), recalled)
        self._found[outcome.fits, _word(outcome)] += 1
        if device not in self._cells:
            self._latest = device, point
            self._measured.setdefault(device, {})[self._values(point)] = SIGNS[outcome.fits]
            super().settled(device, point, outcome, recalled)
            return
        self._set(device, point.id, Cell(SIGNS[outcome.fits], _cell_text(outcome)))
        if outcome.fits is None and (reason := outcome_text(outcome)) not in self._reasons:
            self._reasons.add(reason)
            super().settled(device, point, outcome, recalled)
            return
        self._done += 1
        for note in notes_of(outcome):
            self._note(note)
        self._assumption(device, point, outcome)

    def unfinished(self, command: Sequence[str]) -> None:
        self.close()
        super().unfinished(command)

    def gave_up(self, device: str, why: str) -> None:
        self._total -= self._time_left.gave_up(device)
        super().gave_up(device, why)

    def tick(self) -> None:
        if self._running and time.monotonic() - self._drawn >= REDRAWN_WITHIN:
            self._draw()  # between two attempts the last state stays, so that no line flickers

    def close(self) -> None:
        """Remove the redrawn part, so that the terminal is as any command leaves it."""
        try:
            self._live.stop()
        except OSError as error:
            self._continue_without_output(error)

    def ended(
        self,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        context: Sequence[Mapping[str, Any]] | None = None,
        searched: Sequence[SearchedValues] = (),
    ) -> None:
        self.close()
        if 0 < len(self._calculated) <= FEW:
            for line in self._table_of_points(list(self._points)[:MOST_ROWS]):
                self._print(line)
            if (left := len(self._points) - MOST_ROWS) > 0:
                self._line(f"{INDENT}... and {left:,} more, in points.parquet")
        super().ended(rows, folder, context, searched)

    # -- what is drawn ------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        try:
            if not self._live.is_started:
                self._live.start()
            self._live.update(Group(*self._lines()), refresh=True)
        except OSError as error:
            self._continue_without_output(error)

    def _lines(self) -> list[Text]:
        """What is redrawn: at most the height of the terminal."""
        room = self._console.height - 1
        lines = [self._state(), *self._running_lines()][:room]
        lines += self._table(room - len(lines))
        return lines + self._grid(room - len(lines))

    def _state(self) -> Text:
        """How much is done, how long the rest takes, and how many points fit."""
        left = self._time_left.left(time.monotonic())
        total = f"at least {self._total}" if self._time_left.searches else f"{self._total}"
        words = [f"{self._done} of {total}"]
        if left is not None and left.seconds >= 0.5:
            words.append(f"{'at least' if left.is_least else 'about'} {format_seconds(left.seconds)} left")
        line = Text(" · ".join(words), style="bold")
        for (fits, word), count in sorted(self._found.items(), key=lambda each: ORDER.index(each[0][0])):
            line.append("   ")
            line.append(f"{SIGNS[fits]} {count} {word}", style=SIGNS[fits].style)
        return self._cut([line])

    def _running_lines(self) -> list[Text]:
        """A line for each attempt that runs: its device, phase and seconds, then its point."""
        now = time.monotonic()
        for running in self._running.values():
            if running.folder is not None:
                running.phase = phase_under_way(running.folder.journal) or running.phase
        rows = [
            (device, format_seconds(now - running.since), running.phase, running.words)
            for (device, _), running in self._running.items()
        ]
        widths = [max((cell_len(in_one_line(row[at])) for row in rows), default=0) for at in range(3)]
        return [
            self._cut(
                [
                    (f"{INDENT}{in_one_line(device):{widths[0]}}  {seconds:>{widths[1]}}  ", ""),
                    (f"{in_one_line(phase):{widths[2]}}  " if widths[2] else "", "bold"),
                    (in_one_line(words), ""),
                ]
            )
            for device, seconds, phase, words in rows
        ]

    def _table(self, room: int) -> list[Text]:
        """Calculated points, as far as there is room."""
        if not self._calculated or room < 2 or not self._points:
            return []
        if self._latest is not None and not any(found[OPEN] for found in self._signs.values()):
            return self._complete(room)  # the measured devices go on; the end shows the whole table again
        return self._table_of_devices(room) if len(self._calculated) > FEW else self._table_of_last_points(room)

    def _complete(self, room: int) -> list[Text]:
        """A line for each calculated device whose points are all known: how many fit."""
        names = self._calculated[: min(FEW, room)]
        width = max(map(len, names), default=0)
        lines = []
        for name in names:
            pieces = [(f"{INDENT}{name:{width}}  ", "")]
            pieces += [
                (f"{sign} {count}  ", sign.style) for sign in SIGNS.values() if (count := self._signs[name][sign])
            ]
            lines.append(self._cut([*pieces, ("calculated", "dim")]))
        hidden = len(self._calculated) - len(names)
        if hidden and len(lines) < room:
            lines.append(self._cut([(f"{INDENT}... and {hidden} more, complete", "dim")]))
        return lines

    def _table_of_last_points(self, room: int) -> list[Text]:
        ids = list(self._points)
        if len(ids) + 1 > room:  # the last that are known, and the next one
            end = min(len(ids), max(self._furthest + 2, room - 1))
            ids = ids[max(0, end - room + 1) : end]
        return self._table_of_points(ids)

    def _table_of_points(self, ids: Sequence[str]) -> list[Text]:
        """A line for each point, with a column for each device."""
        widths = [self._widths[name] for name in self._calculated]
        left = max((cell_len(in_one_line(self._points[id])) for id in ids), default=0)
        left = min(left, max(10, self._console.width - len(INDENT) - sum(widths) - 2 * len(widths)))
        heads = (f"  {name:<{width}}" for name, width in zip(self._calculated, widths, strict=True))
        lines = [self._cut([(f"{INDENT}{'':{left}}{''.join(heads)}", "dim")])]
        for id in ids:
            words = fitted(in_one_line(self._points[id]), left)
            pieces = [(f"{INDENT}{words}{' ' * (left - cell_len(words))}", "")]
            for name, width in zip(self._calculated, widths, strict=True):
                cell = self._cell(name, id)
                pieces += [(f"  {cell.sign}", cell.sign.style), (f" {cell.text:<{width - 2}}", "")]
            lines.append(self._cut(pieces))
        return lines

    def _table_of_devices(self, room: int) -> list[Text]:
        """A line for each device, with a sign for each point. Those that are complete make room for the others."""
        names = self._calculated
        if len(names) > room:
            done = [name for name in names if all(cell.sign != OPEN for cell in self._cells[name].values())]
            names = [name for name in names if name not in done]
            shown = names[: room - 1]
            hidden = len(self._calculated) - len(shown)
            return [
                *self._device_lines(shown),
                self._cut([(f"{INDENT}... and {hidden} more, {len(done)} of them complete", "dim")]),
            ]
        return self._device_lines(names)

    def _device_lines(self, names: Sequence[str]) -> list[Text]:
        width = max(map(len, names), default=0)
        lines = []
        for name in names:
            cells, found = self._cells[name].values(), self._signs[name]
            pieces = [(f"{INDENT}{name:{width}}  ", "")]
            if len(cells) <= self._console.width - width - 2 * len(INDENT):
                pieces += [(str(cell.sign), cell.sign.style) for cell in cells]
            else:
                pieces += [(f"{sign} {found[sign]}  ", sign.style) for sign in (*SIGNS.values(), OPEN) if found[sign]]
            lines.append(self._cut(pieces))
        return lines

    def _grid(self, room: int) -> list[Text]:
        """Signs over two numeric dimensions, of the device and the other values that were measured last."""
        if self._latest is None or len(self._numbers) < 2:
            return []
        device, point = self._latest
        across, down = _two_of(self._numbers)
        others = [at for at, key in enumerate(self._keys) if key not in (across, down)]
        here = self._values(point)
        at_across, at_down = self._keys.index(across), self._keys.index(down)
        signs = {
            (values[at_across], values[at_down]): sign
            for values, sign in self._measured[device].items()
            if all(values[at] == here[at] for at in others) and None not in (values[at_across], values[at_down])
        }
        columns, rows = (sorted({each[at] for each in signs}) for at in (0, 1))
        if len(columns) < 2 or len(rows) < 2:
            return []
        fixed = assignments({self._keys[at]: point.get(self._keys[at]) for at in others})
        title = [(f"what fits on {device}{f' with {printable(fixed)}' if fixed else ''}", "dim")]
        grid = grid_lines(Grid(across, down, columns, rows, signs))
        lines = [self._cut(pieces) for pieces in (title, *grid)]
        widest = max(sum(len(text) for text, _ in pieces) for pieces in grid)  # the title may be cut
        return lines if len(lines) <= room and widest < self._console.width else []

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _set(self, device: str, id: str, cell: Cell) -> None:
        if (before := self._cells[device].get(id)) is not None:
            self._signs[device][before.sign] -= 1
        self._cells[device][id] = cell
        self._signs[device][cell.sign] += 1
        self._widths[device] = max(self._widths[device], len(cell.text) + 2)
        if cell.sign != OPEN:
            self._furthest = max(self._furthest, self._places.get(id, 0))

    def _cell(self, device: str, id: str) -> Cell:
        return self._cells[device].get(id, Cell())

    def _values(self, point: Point) -> tuple[Any, ...]:
        """The values of the swept keys; of lists and mappings their text, which can be a key."""
        values = (point.get(key) for key in self._keys)
        return tuple(canonical(value) if isinstance(value, (list, dict)) else value for value in values)

    def _assumption(self, device: str, point: Point, outcome: Outcome) -> None:
        """A line for what a calculation assumes, once for each place in the code."""
        places = [(each["file"], each["line"]) for each in (*outcome.assumed_places, *outcome.assumed_bounds)]
        text = assumed_text(outcome.assumed_values, outcome.assumed_places, outcome.assumed_bounds)
        if text and (key := tuple(places)) not in self._assumed:
            self._assumed.add(key)
            self._line(f"{self._named(device, point)}  {text.removeprefix(', ')}")

    def _ended_line(self, device: str, point: Point, outcome: Outcome, text: str) -> None:
        sign = SIGNS[outcome.fits]
        for at, line in enumerate(self._wrapped(f"{sign} {self._named(device, point)}  {text}")):
            self._print(Text.assemble((line[:1], sign.style), line[1:]) if at == 0 else Text(line))

    def _line(self, text: str) -> None:
        for line in self._wrapped(text):
            self._print(Text(line))

    def _wrapped(self, text: str) -> list[str]:
        """Lines within the terminal's width, so that no word is cut."""
        return [part for line in printable(text).split("\n") for part in wrapped(line, self._console.width)]

    def _print(self, line: Text) -> None:
        try:
            self._console.print(line, soft_wrap=True)
        except OSError as error:
            self._continue_without_output(error)

    def _cut(self, pieces: Sequence[str | Text | tuple[str, str]]) -> Text:
        """Pieces with their styles as one line within the terminal's width."""
        line = Text.assemble(*pieces, no_wrap=True)
        line.rstrip()
        shown = fitted(line.plain, self._console.width)
        if shown != line.plain:
            line.truncate(cell_len(shown.removesuffix(CUT)))
            line.append(CUT)
        return line


def fitted(text: str, width: int) -> str:
    """At most `width` columns of a text, cut between two words."""
    if cell_len(text) <= width:
        return text
    kept = set_cell_size(text, max(0, width - len(CUT)) + 1)  # the cut may be right after a word
    words = kept.rpartition(" ")[0].rstrip()
    return (words or kept[:-1]) + CUT


def _is_numeric(values: Sequence[Any]) -> bool:
    if isinstance(values, Interval):
        return True
    return len(set(map(str, values))) > 1 and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def _two_of(keys: Sequence[str]) -> tuple[str, str]:
    """Across and down: batch and context where both vary."""
    return ("batch", "context") if {"batch", "context"} <= set(keys) else (keys[0], keys[1])


def _word(outcome: Outcome) -> str:
    """What is counted: an undecided point by its status, unless that is `ok`."""
    if outcome.fits is None:
        return "undecided" if outcome.status is Status.OK else str(outcome.status)
    return "fit" if outcome.fits else "too large"


def _cell_text(outcome: Outcome) -> str:
    """The peak of a calculated point, also of one that does not fit; else how it ended."""
    peak = outcome.unlimited_peak_bytes
    if outcome.fits is False and peak is None:
        return ENDINGS[Status.OOM]
    return ENDINGS[outcome.status] if outcome.fits is None or peak is None else format_bytes(peak)
