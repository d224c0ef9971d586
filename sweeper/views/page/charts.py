"""Charts in Vega-Lite, drawn without a browser or a network: `pip install "sweeper[report]"`.

A chart takes what the page shows and returns an Altair chart. `as_svg` draws it for the page, in the page's colours;
`as_picture` draws it as a file, in the light ones. Each series has a shape or a place of its own as well as a colour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.estimates.comparison import ESTIMATED
from sweeper.units import GIB, MIB, format_bytes
from sweeper.views.page.compared import Compared
from sweeper.views.page.fitted_memory import FittedMemory
from sweeper.views.page.frontier_grid import FrontierGrid, Panel
from sweeper.views.page.marks import Mark
from sweeper.views.page.phase_bars import PhaseBars
from sweeper.views.page.timeline import Bin, Span, Timeline

Drawn = Any  # a chart of Altair's: its methods are typed as unions of several classes of charts

# Every colour of a chart: its name as a CSS variable of the page, and its value in a file.
COLOURS: Mapping[str, str] = {
    "ink": "#1f2329",
    "muted": "#57606b",
    "line": "#d0d7df",
    "surface": "#fffffe",
    "fits": "#0072b3",
    "fails": "#c2410d",
    "partial": "#8a5a01",
    "unknown": "#6e7782",
    "skipped": "#8c96a0",
    "outer": "#9fcbe8",
    "inner": "#0b5a8f",
    "context": "#b3b9c1",
    "apart": "#0a7a5c",
    "s1": "#0072b1",
    "s2": "#c2410e",
    "s3": "#0a7a5b",
    "s4": "#9c4f86",
    "s5": "#8a5a00",
    "s6": "#3d8fc4",
}
SERIES = tuple(COLOURS[name] for name in ("s1", "s2", "s3", "s4", "s5", "s6"))
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
DASHES = ([6, 3], [2, 2], [8, 2, 2, 2], [1, 3], [10, 4], [4, 4])
MARK_SHAPES = {
    Mark.FITS: "circle",
    Mark.FAILS: "square",
    Mark.PARTIAL: "triangle-up",
    Mark.UNKNOWN: "diamond",
    Mark.SKIPPED: "triangle-down",
}
# Widths of a plot alone: of a chart that fills the page, and of one of two side by side. The narrow variant of each
# fits on a telephone; its text has the same size.
WIDTH, HALF = 920, 370
NARROW = 250
# Names of rows above their marks, where they are too long to stand at their left.
INSIDE: Mapping[str, Any] = {"labelAlign": "left", "labelPadding": -4, "labelOffset": -14, "labelLimit": 310}
FONT = "Helvetica Neue, Arial, Liberation Sans, sans-serif"
PHASES_NARROW = 115  # next to the names of the phases and their peaks
FAR = 4  # a limit more than this many times the highest peak is given in words: as a line it would flatten the rest


def _unit(values: Iterable[int]) -> tuple[int, str]:
    return (GIB, "GiB") if max(values, default=0) >= GIB else (MIB, "MiB")


def _data(rows: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    return alt.InlineData(values=[dict(row) for row in rows])


def phase_chart(found: PhaseBars, narrow: bool = False) -> Drawn:
    """The peaks of each phase as bars: what is part of another is drawn inside it."""
    import altair as alt

    ends = [found.below + peak for bar in found.bars for peak in bar.peaks.values()]
    unit, name = _unit(ends)
    labels = {bar.phase: bar.phase if bar.completed else f"{bar.phase} (partial)" for bar in found.bars}
    order = list(labels.values())
    parts = {"context and libraries": "context", "reserved": "outer", "resident": "outer", "allocated": "inner"}
    parts |= {"before the workload": "context", "tensor": "apart"}
    thick: list[dict[str, Any]] = []
    thin: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for bar in found.bars:
        label = {"phase": labels[bar.phase]}
        sizes = {each: bar.peaks[each] for each in found.shown if each in bar.peaks}
        for counter, peak in sizes.items():
            base = 0 if counter == found.apart else found.below
            part = label | {"part": counter, "from": base / unit, "to": (base + peak) / unit}
            if counter == found.outer or found.outer is None:
                thick.append(part)
            else:
                thin.append(part | {"lane": int(counter == found.apart)})
        if found.outer in sizes and found.below:
            thick.append(label | {"part": "context and libraries", "from": 0, "to": found.below / unit})
        if found.outer in sizes and found.baseline:
            thin.append(label | {"part": "before the workload", "from": 0, "to": found.baseline / unit, "lane": 0})
        each_size = [bar.peaks.get(each) for each in found.shown]
        text = " / ".join("–" if size is None else _size(size, unit, narrow) for size in each_size)
        texts.append(label | {"text": text if bar.completed else f"≥ {text}"})
    drawn = {each["part"] for each in (*thick, *thin)}
    used = [part for part in parts if part in drawn]
    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=used, range=[COLOURS[parts[each]] for each in used]),
        legend=alt.Legend(orient="top", title=None, symbolType="square", offset=20, columns=2 if narrow else 0),
    )
    highest = max(ends, default=0) / unit
    limit = None if found.limit is None or found.limit / unit > FAR * highest else found.limit / unit
    room = max(highest, limit or 0) * 1.03
    across = alt.X("from:Q", title=name, scale=alt.Scale(domain=[0, room], nice=False))
    width = PHASES_NARROW if narrow else HALF
    head = " / ".join(found.shown) + (f", {name}" if narrow else "")
    down = alt.Y("phase:N", sort=order, title=None, scale=alt.Scale(paddingInner=0.25))
    layers: list[Any] = [
        alt.Chart(_data(thick)).mark_bar(height=18).encode(x=across, x2="to:Q", y=down, color=colour),
        alt.Chart(_data([each for each in thin if not each["lane"]]))
        .mark_bar(height=8)
        .encode(x=across, x2="to:Q", y=down, color=colour),
        alt.Chart(_data([each for each in thin if each["lane"]]))
        .mark_bar(height=4, yOffset=9)
        .encode(x=across, x2="to:Q", y=down, color=colour),
        alt.Chart(_data(texts)).mark_text(align="left", x=width + 8, fontSize=11).encode(y=down, text="text:N"),
        alt.Chart(_data([{"text": head}]))
        .mark_text(align="left", x=width + 8, y=-6, fontSize=11, fontWeight="bold")
        .encode(text="text:N"),
    ]
    if limit is not None:
        layers += _limit_line(limit, found.limit_label, vertical=True)
    return _styled(alt.layer(*layers), len(found.bars) * 26, width)


def _size(count: int, unit: int, narrow: bool) -> str:
    return f"{count / unit:.2f}" if narrow else format_bytes(count)


def _limit_line(at: float, text: str, vertical: bool) -> list[Any]:
    import altair as alt

    data = _data([{"at": at, "text": text}])
    line = alt.Chart(data).mark_rule(strokeWidth=2, strokeDash=[7, 4], color=COLOURS["fails"])
    words = alt.Chart(data)
    if vertical:
        label = words.mark_text(align="right", dx=-5, y=-6, fontWeight="bold", color=COLOURS["fails"])
        return [line.encode(x="at:Q"), label.encode(x="at:Q", text="text:N")]
    label = words.mark_text(align="left", x=6, dy=-7, fontWeight="bold", color=COLOURS["fails"])
    return [line.encode(y="at:Q"), label.encode(y="at:Q", text="text:N")]


def memory_chart(found: FittedMemory, narrow: bool = False) -> Drawn:
    """Peaks against tokens: shapes are points that passed, dashed lines are calculated from the fits."""
    import altair as alt

    peaks = [point.bytes for point in found.points]
    ends = [*peaks, *(round(peak) for line in found.lines for _, peak in line.points)]
    limit = found.limit if found.limit is not None and found.limit <= FAR * max(peaks) else None
    unit, name = _unit([*ends, limit or 0])
    contexts = sorted({point.size.context for point in found.points})
    names = [f"context={context}" for context in contexts]
    place = {context: names[at] for at, context in enumerate(contexts)}
    marks = [
        {
            "tokens": point.tokens,
            "peak": point.bytes / unit,
            "context": place[point.size.context],
        }
        for point in found.points
    ]
    within, beyond = [], []
    for line in found.lines:
        for tokens, peak in line.points:
            row = {"tokens": tokens, "peak": peak / unit, "context": place[line.context]}
            if tokens <= line.measured_to:
                within.append(row)
            if tokens >= line.measured_to:
                beyond.append(row)
    cycle = range(len(names))
    colour = alt.Color(
        "context:N",
        scale=alt.Scale(domain=names, range=[SERIES[at % len(SERIES)] for at in cycle]),
        legend=alt.Legend(title=None, orient="top", columns=2 if narrow else 4, symbolStrokeWidth=0),
    )
    shape = alt.Shape("context:N", scale=alt.Scale(domain=names, range=[SHAPES[at % len(SHAPES)] for at in cycle]))
    dash = alt.StrokeDash(
        "context:N", scale=alt.Scale(domain=names, range=[DASHES[at % len(DASHES)] for at in cycle]), legend=None
    )
    x = alt.X(
        "tokens:Q", title="tokens in a pass (batch x context)", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)
    )
    y = alt.Y("peak:Q", title=f"peak {found.counter}, {name}", scale=alt.Scale(domainMin=0))
    layers: list[Any] = [
        alt.Chart(_data(within)).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour, strokeDash=dash),
        alt.Chart(_data(beyond))
        .mark_line(strokeWidth=1.5, opacity=0.4)
        .encode(x=x, y=y, color=colour, strokeDash=dash),
        alt.Chart(_data(marks)).mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ]
    if found.failed_tokens:
        failed = _data([{"tokens": tokens, "peak": 0} for tokens, _ in sorted(set(found.failed_tokens))])
        cross: dict[str, Any] = {"text": "×", "fontSize": 17, "color": COLOURS["fails"], "dy": -5, "fontWeight": "bold"}
        layers.append(alt.Chart(failed).mark_text(**cross).encode(x=x, y=y))
    if limit is not None:
        layers += _limit_line(limit / unit, f"limit {format_bytes(limit)}", vertical=False)
    return _styled(alt.layer(*layers), 260, NARROW if narrow else 520)


def comparison_chart(found: Compared, narrow: bool = False) -> Drawn:
    """The figures of each point that count the same bytes, side by side; None without two of a point."""
    import altair as alt

    rows = [(row.at, figure) for row in found.rows if len(row.known) > 1 for figure in row.known]
    if not rows:
        return None
    unit, name = _unit(figure.bytes for _, figure in rows)
    data: list[dict[str, Any]] = [
        {
            "point": at,
            "bytes": figure.bytes / unit,
            "what": figure.kind if figure.device is None else f"{figure.kind}, {figure.device}",
        }
        for at, figure in rows
    ]
    what = sorted({row["what"] for row in data}, key=lambda each: (not each.startswith(ESTIMATED), each))
    cycle = range(len(what))
    order = list(dict.fromkeys(at for at, _ in rows))
    top = max(row["bytes"] for row in data) * 1.05
    chart = (
        alt.Chart(_data(data))
        .mark_point(filled=False, size=90, strokeWidth=2.2)
        .encode(
            x=alt.X("bytes:Q", title=f"bytes of tensors, {name}", scale=alt.Scale(domain=[0, top], nice=False)),
            y=alt.Y("point:N", sort=order, title=None, axis=alt.Axis(grid=True, **(INSIDE if narrow else {}))),
            color=alt.Color(
                "what:N",
                scale=alt.Scale(domain=what, range=[SERIES[each % len(SERIES)] for each in cycle]),
                legend=alt.Legend(title=None, orient="top", columns=1 if narrow else 3),
            ),
            shape=alt.Shape(
                "what:N", scale=alt.Scale(domain=what, range=[("diamond", "square", "circle")[e % 3] for e in cycle])
            ),
        )
    )
    return _styled(chart, 44 * len(order), 320) if narrow else _styled(chart, 26 * len(order))


def timeline_chart(found: Timeline, narrow: bool = False) -> Drawn:
    """The attempts of each device by their result: a row for each, so that no colour is needed to read it."""
    import altair as alt

    if not found.spans and not found.bins:
        return None
    minutes = found.seconds >= 300
    scale, unit = (60, "minutes") if minutes else (1, "seconds")
    bars: Sequence[Span | Bin] = [*found.spans, *found.bins]
    marks = [mark for mark in Mark if any(each.mark is mark for each in bars)]
    devices = list(dict.fromkeys(each.device for each in bars))
    order = [f"{device}  {mark.value}" for device in devices for mark in marks]
    data = [
        {
            "row": f"{each.device}  {each.mark.value}",
            "mark": each.mark.value,
            "from": each.start / scale,
            "to": each.end / scale,
            "count": each.count if isinstance(each, Bin) else 1,
        }
        for each in bars
    ]
    present = {row["row"] for row in data}
    order = [row for row in order if row in present]
    names = [mark.value for mark in marks]
    chart = (
        alt.Chart(_data(data))
        .mark_bar(height=14, stroke=COLOURS["surface"], strokeWidth=0.5)
        .encode(
            x=alt.X("from:Q", title=f"{unit} after the first attempt began"),
            x2="to:Q",
            y=alt.Y("row:N", sort=order, title=None, axis=alt.Axis(grid=True)),
            color=alt.Color(
                "mark:N", scale=alt.Scale(domain=names, range=[COLOURS[name] for name in names]), legend=None
            ),
        )
    )
    if found.bins:
        chart = chart.encode(opacity=alt.Opacity("count:Q", scale=alt.Scale(range=[0.35, 1]), legend=None))
    return _styled(chart, 24 * len(order), 190 if narrow else WIDTH)


def frontier_chart(panel: Panel, grid: FrontierGrid) -> Drawn:
    """One matrix of the frontier: a shape and the number in each square, the limit as a line."""
    import altair as alt

    cell = 52
    columns, rows = [each or " " for each in panel.columns], [each or " " for each in panel.rows]
    data = [
        {
            **{"x": columns[x], "y": rows[y], "mark": each.mark.value, "text": grid.number(each)},
            **{"right": each.edge_right, "below": each.edge_below},
        }
        for (y, x), each in panel.cells.items()
    ]
    names = [mark.value for mark in Mark if any(row["mark"] == mark.value for row in data)]
    x = alt.X("x:N", sort=columns, title=grid.across, axis=alt.Axis(orient="top", labelAngle=0))
    y = alt.Y("y:N", sort=rows, title=grid.down)
    colour = alt.Color(
        "mark:N",
        scale=alt.Scale(domain=names, range=[COLOURS[name] for name in names]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    shape = alt.Shape("mark:N", scale=alt.Scale(domain=names, range=[MARK_SHAPES[Mark(name)] for name in names]))
    base = alt.Chart(_data(data))
    line: dict[str, Any] = {"strokeWidth": 3, "color": COLOURS["ink"], "strokeCap": "square"}
    layers: list[Any] = [
        base.mark_rect(opacity=0.14, stroke=COLOURS["surface"]).encode(x=x, y=y, color=alt.Color("mark:N")),
        base.mark_point(filled=True, size=60, opacity=1, yOffset=-9).encode(x=x, y=y, color=colour, shape=shape),
        base.mark_text(dy=11, fontSize=11).encode(x=x, y=y, text="text:N"),
        base.transform_filter("datum.right")
        .mark_rule(**line)
        .encode(x=alt.X("x:N", sort=columns, bandPosition=1), y=alt.Y("y:N", sort=rows, bandPosition=0), y2=_end("y")),
        base.transform_filter("datum.below")
        .mark_rule(**line)
        .encode(y=alt.Y("y:N", sort=rows, bandPosition=1), x=alt.X("x:N", sort=columns, bandPosition=0), x2=_end("x")),
    ]
    title = f"{panel.device} ({panel.kind}) {panel.title}".strip()
    below = f"peak {panel.counter}, {grid.unit_name}" + (f", {panel.limit}" if panel.limit else "")
    chart = alt.layer(*layers).properties(
        title=alt.TitleParams(title, subtitle=below, anchor="start", fontSize=12, subtitleFontSize=11, offset=8)
    )
    return _styled(chart, cell * max(1, len(rows)), cell * max(1, len(columns)))


def _end(axis: str) -> Any:
    import altair as alt

    return (alt.X2 if axis == "x" else alt.Y2)(axis, bandPosition=1)


def _styled(chart: Drawn, height: float, width: float = WIDTH) -> Drawn:
    return (
        chart.properties(width=width, height=height)
        .configure(font=FONT, background="transparent", aria=False, padding=6)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
            labelLimit=260,
            labelColor=COLOURS["ink"],
            titleColor=COLOURS["muted"],
            gridColor=COLOURS["line"],
            domainColor=COLOURS["muted"],
            tickColor=COLOURS["muted"],
        )
        .configure_legend(labelColor=COLOURS["ink"], labelFontSize=11, labelLimit=320, symbolOpacity=1)
        .configure_text(color=COLOURS["ink"])
    )


def as_svg(chart: Any, name: str, label: str) -> str:
    """The chart as an element of the page: in the page's colours, as one picture with a label for a screen reader.

    `name`: a prefix for the ids in it, which several charts of a page would share.
    """
    from html import escape

    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(chart.to_dict())
    variables = {value: f"var(--{key})" for key, value in COLOURS.items()}
    svg = re.sub(r'"(#[0-9a-f]{6})"', lambda found: f'"{variables.get(found[1], found[1])}"', svg)
    svg = re.sub(r'\bid="([\w-]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([\w-]+)\)", rf"url(#{name}-\1)", svg)
    # One picture to a screen reader: Vega names every axis and every bar, or none of them rightly.
    svg = re.sub(r' (?:xmlns:xlink|version|role|aria-[a-z]+)="[^"]*"', "", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label, quote=True)}" ', 1)


def as_picture(chart: Drawn, format: str, title: str) -> bytes:
    """The chart as the bytes of a file, `svg` or `png`, on a white ground and with a title if it has none."""
    import vl_convert

    spec = chart.to_dict()
    spec["config"]["background"] = "white"
    spec.setdefault("title", {"text": title, "anchor": "start", "fontSize": 12, "offset": 10})
    if format == "png":
        found: bytes = vl_convert.vegalite_to_png(spec, scale=2)
        return found
    return str(vl_convert.vegalite_to_svg(spec)).encode()
