"""Pictures of a run. They need matplotlib: `pip install "sweeper[pictures]"`.

Marks are measured. Dashed lines are calculated from a fit, also between two measured points.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runners import files
from runners.libraries import installation, is_installed
from sweeper.effects.families import SIZE, Family, PeakRange, PhaseKey, title
from sweeper.effects.memory_fit import MemoryFit, NotFitted, Size
from sweeper.errors import Mistake
from sweeper.units import MIB
from sweeper.views.written_file import check_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
MOST_FAMILIES = 4  # a row of panels for each
MOST_PHASES = 6  # drawn in a panel; the lowest ones decide nothing
STEPS = 60  # of a curve
HEADROOM = 1.2  # of an axis, for the text above the curves
GREY, BAND = "#8a8a8a", "#f0e442"
ACROSS = ("data", "axes fraction")
# The palette of Okabe and Ito, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LARGEST_MARK = 9
MARKS = ("o", "s", "^", "D", "v", "P")


def check(file: str) -> None:
    """Raises Mistake for an unknown format, and without matplotlib. Call it before a long read."""
    if Path(file).suffix not in FORMATS:
        raise Mistake(f"--picture {file}: its name must end in {', '.join(FORMATS)}")
    check_place("--picture", file)
    if not is_installed("matplotlib"):
        raise Mistake(f"--picture {file}: matplotlib is not installed; {installation('matplotlib')} installs it")


def draw_effects(families: Sequence[Family], file: str, at: Mapping[str, int] | None = None) -> None:
    """Draw the peak of each phase along batch and along context, with its fit. `at`: how far to extend the axes.

    Raises Mistake if the file cannot be written.
    """
    from matplotlib import rc_context

    path = Path(os.path.realpath(Path(file).parent), Path(file).name)  # its folder may be a link
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Names from the run are text, whatever the user's own settings are: TeX reads files and runs commands.
        with rc_context({"text.usetex": False, "text.parse_math": False}), os.fdopen(files.create(aside), "wb") as out:
            _figure(families, at or {}).savefig(out, dpi=150, format=path.suffix[1:])
        files.replace(aside, path)
    except OSError as error:
        raise Mistake(f"--picture {file}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            files.remove(aside)


def _figure(families: Sequence[Family], at: Mapping[str, int]) -> Figure:
    from matplotlib.figure import Figure

    first = {tuple(title(family, families)): family for family in reversed(families)}  # one counter each
    different = list(reversed(first.values()))
    panels = [(family, _lines(family)) for family in different[:MOST_FAMILIES]]
    columns = max(len(lines) for _, lines in panels)
    figure = Figure(figsize=(7.0 * columns, 4.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), columns, squeeze=False)
    for row, (family, lines) in zip(axes, panels, strict=True):
        for place, panel in enumerate(row):
            if place < len(lines):
                _panel(panel, family, lines[place], dict(at))
                panel.set_title(_title(family, families, lines[place]), fontsize=9, loc="left")
            else:
                panel.set_axis_off()
    if len(different) > len(panels):
        figure.supxlabel(f"{len(different) - len(panels)} more with other settings are not shown", fontsize=8)
    return figure


class Line(NamedTuple):
    """Points that differ in one key, at one value of the other. `ranges`: which phase has the peak where."""

    along: str
    at: int
    sizes: list[Size]
    ranges: Sequence[PeakRange]


def _lines(family: Family) -> list[Line]:
    """For each varied key the line on which most phases have the peak in turn, and the last of equal ones."""
    found: dict[str, Line] = {}
    for along, at, ranges in family.peak_ranges():
        other = SIZE[1 - SIZE.index(along)]
        line = Line(along, at, [size for size in family.sizes if getattr(size, other) == at], ranges)
        before = found.get(along)
        if before is None or (len(ranges), at) >= (len(before.ranges), before.at):
            found[along] = line
    alone = [Line("batch", size.context, [size], []) for size in family.sizes[:1]]
    return list(found.values()) or alone


def _title(family: Family, families: Sequence[Family], line: Line) -> str:
    fixed = f"{SIZE[1 - SIZE.index(line.along)]}={line.at}"
    kind = family.rows[0]["kind"]
    legend = f"peaks of {family.counter} at {fixed}: marks {kind}, dashed calculated"
    return "  ".join(title(family, families)) + "\n" + legend


def _panel(panel: Axes, family: Family, line: Line, at: dict[str, int]) -> None:
    along, sizes = line.along, line.sizes
    values = [getattr(size, along) for size in sizes]
    end = max(values[-1], at.get(along, 0))
    shown = _highest(family, line)
    for place, ((names, phase), colour, mark) in enumerate(zip(shown, COLOURS, MARKS, strict=False)):
        peaks = {getattr(size, along): family.peaks[phase][size] for size in sizes if size in family.peaks[phase]}
        # Equal peaks stay visible: later marks are smaller than the ones below them.
        size = LARGEST_MARK - place
        heights = [peak / MIB for peak in peaks.values()]
        panel.plot(list(peaks), heights, mark, color=colour, label=names, markersize=size, zorder=3)
        curve = _curve(family.fits[phase], sizes[-1], along, values[0], end)
        panel.plot([value for value, _ in curve], [peak for _, peak in curve], "--", color=colour, linewidth=1.2)
    _mark_take_overs(panel, line)
    failed = _mark_failures(panel, family, line)
    if end > values[-1]:
        panel.axvspan(values[-1], end, color=GREY, alpha=0.12, linewidth=0)
        panel.annotate("not measured", ((values[-1] + end) / 2, 0.1), xycoords=ACROSS, ha="center", color=GREY)
    panel.set_xlabel(along)
    panel.set_ylabel(f"{family.counter}, MiB")
    panel.set_xticks(sorted({*values, *failed, end}))
    panel.set_ylim(0, HEADROOM * panel.get_ylim()[1])
    panel.grid(axis="y", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _highest(family: Family, line: Line) -> list[tuple[str, PhaseKey]]:
    """The phases that have the peak somewhere on the line, then the highest others. Equal curves share a name."""
    together: dict[tuple[int | None, ...], list[PhaseKey]] = {}
    for phase, peaks in family.peaks.items():
        together.setdefault(tuple(peaks.get(size) for size in line.sizes), []).append(phase)
    has_peak = {each.phase for each in line.ranges}
    last = {curve: max((peak for peak in curve if peak is not None), default=0) for curve in together}
    order = sorted(together, key=lambda curve: (has_peak.isdisjoint(together[curve]), -last[curve]))
    return [(_names(together[curve]), together[curve][0]) for curve in order[:MOST_PHASES]]


def _names(phases: Sequence[PhaseKey]) -> str:
    several = len({phase.device for phase in phases}) > 1
    return ", ".join(f"{phase.phase} ({phase.device})" if several else phase.phase for phase in phases)


def _curve(found: MemoryFit | NotFitted, last: Size, along: str, first: int, end: int) -> list[tuple[float, float]]:
    """(value, MiB) along a key from `first` to `end`, wherever the fit has a peak."""
    if isinstance(found, NotFitted):
        return []
    values = sorted({first + round(step * (end - first) / STEPS) for step in range(STEPS + 1)})
    peaks = ((value, found.at(last._replace(**{along: value}))) for value in values)
    return [(value, peak / MIB) for value, peak in peaks if not isinstance(peak, NotFitted)]


def _mark_take_overs(panel: Axes, line: Line) -> None:
    """Draw a band from the last point where one phase has the peak to the first where the next phase has it."""
    for before, after in pairwise(line.ranges):
        if before.last is not None and after.last is not None:
            panel.axvspan(before.last, after.first, color=BAND, alpha=0.25, linewidth=0)
            place = ((before.last + after.first) / 2, 0.98)
            text = f"{after.phase.phase}\ntakes over"
            panel.annotate(text, place, xycoords=ACROSS, ha="center", va="top", fontsize=8)


def _mark_failures(panel: Axes, family: Family, line: Line) -> list[int]:
    """Mark the points on the line that did not pass, and return their values."""
    along, sizes = line.along, line.sizes
    key = SIZE[1 - SIZE.index(along)]
    statuses: dict[int, str] = {row[along]: row["status"] for row in family.rows if row[key] == line.at}
    passed = {getattr(size, along) for size in sizes}
    failed = {value: status for value, status in statuses.items() if value is not None and value not in passed}
    for value, status in failed.items():
        panel.plot([value], [0], "x", color="black", markersize=7, clip_on=False, zorder=4)
        panel.annotate(status, (value, 0), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8)
    return list(failed)
