"""The output of `sweeper fit`: a table that fills while it is calculated, and the same table at the end."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.errors import Mistake
from sweeper.fit_cells import FitTable, Result, result_of
from sweeper.frontier.open_values import SearchedValues
from sweeper.plan import Plan
from sweeper.screen import discard, in_lines, printable
from sweeper.sweeping.fitting import table_of
from sweeper.units import format_seconds
from sweeper.views import fit_table
from sweeper.views.progress import Show
from sweeper.views.sweep_output import can_redraw

FORMS: Mapping[str, Callable[[FitTable], str]] = {
    "json": lambda table: json.dumps(fit_table.as_json(table), indent=2),
    "markdown": fit_table.as_markdown,
    "csv": fit_table.as_csv,
}
if TYPE_CHECKING:
    from rich.text import Text

REDRAW_EVERY = 0.2  # seconds


def form(flags: argparse.Namespace) -> str | None:
    """The form in which the table is printed; None for text. Raises Mistake for several."""
    chosen = [name for name in FORMS if getattr(flags, name)]
    if len(chosen) > 1:
        raise Mistake(f"{' '.join(f'--{name}' for name in chosen)}: choose one")
    return chosen[0] if chosen else None


class FitShow(Show):
    """The table once, at the end: for files, pipes and programs."""

    def __init__(self, plan: Plan, folder: Path, shown_as: str | None) -> None:
        super().__init__(plan)
        self._plan, self._folder, self._shown_as = plan, folder, shown_as
        self._results: dict[tuple[str, str], Result] = {}
        self._lost: OSError | None = None

    def table(self) -> FitTable:
        return table_of(self._plan, list(self._results.values()), self._folder)

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        self._done += 1
        if outcome.status is not Status.INTERRUPTED:  # the next command goes on there
            self._results[device, point.id] = result_of(point, outcome)

    def ended(
        self,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        context: Sequence[Mapping[str, Any]] | None = None,
        searched: Sequence[SearchedValues] = (),
    ) -> None:
        """Print the table. Raises OSError if it, or a line before it, cannot be written: the table is the answer."""
        table = self.table()
        for_people = self._shown_as in (None, "markdown")
        self._line(FORMS.get(self._shown_as or "", fit_table.as_text)(in_lines(table) if for_people else table))
        if self._lost is not None:
            raise self._lost

    def _continue_without_output(self, error: OSError) -> None:
        self._lost = error
        discard(sys.stdout)


class FitTerminalShow(FitShow):
    """The table that fills, and a line with what is done."""

    def __init__(self, plan: Plan, folder: Path, shown_as: str | None) -> None:
        super().__init__(plan, folder, shown_as)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False, emoji=False)
        self.live = Live(console=self._console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._began, self._drawn = time.monotonic(), 0.0

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        super().settled(device, point, outcome, recalled)
        self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._drawn < REDRAW_EVERY:
            return
        self._drawn = now
        table, width = in_lines(self.table()), min(self._console.width, fit_table.WIDTH)
        done = f"{self._done} of {self._total} points known so far, {format_seconds(now - self._began)}"
        heading = fit_table.filled(fit_table.heading(table), width)
        text = "\n".join([heading, "", *fit_table.grid(table), "", done])
        try:
            self.live.update(_coloured(text), refresh=True)
        except OSError as error:
            self._continue_without_output(error)

    def ended(
        self,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        context: Sequence[Mapping[str, Any]] | None = None,
        searched: Sequence[SearchedValues] = (),
    ) -> None:
        with contextlib.suppress(OSError):
            self.live.stop()
        super().ended(rows, folder, context, searched)

    def _line(self, text: str) -> None:
        try:
            self._console.print(_coloured(text), soft_wrap=True)
        except OSError as error:
            self._continue_without_output(error)


def _coloured(text: str) -> Text:
    """The text with the batches of a table in colour, which the words carry too."""
    from rich.text import Text

    coloured = Text(printable(text), no_wrap=True, overflow="ellipsis")
    coloured.highlight_regex(r"(?m)(?<=  )~?(x[0-9]+|>=[0-9]+|yes)(?=  |$)", "green")
    coloured.highlight_regex(r"(?m)(?<=  )no(?=  |$)", "red")
    coloured.highlight_regex(r"(?m)(?<=  )\.\.\.(?=  |$)", "dim")
    return coloured


@contextlib.contextmanager
def show_for(plan: Plan, folder: Path, shown_as: str | None) -> Iterator[Show]:
    if shown_as is not None or not can_redraw():
        yield FitShow(plan, folder, shown_as)
        return
    show = FitTerminalShow(plan, folder, shown_as)
    with show.live:
        yield show
