"""The page as one HTML file: its template, style and script, and the charts, with everything that was typed escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from sweeper.tariffs import EXAMPLE
from sweeper.units import format_bytes, format_count, format_seconds
from sweeper.views.comparison_report import NEVER_ADDED
from sweeper.views.layout import assignments, counts
from sweeper.views.page import charts
from sweeper.views.page.content import PageContent
from sweeper.views.page.fitted_memory import FittedMemory
from sweeper.views.page.marks import MEANINGS
from sweeper.views.page.phase_bars import PhaseBars
from sweeper.views.page.points_table import BYTES, SECONDS, PointsTable

HERE = Path(__file__).resolve().parent
PAGE_SIZE = 100  # rows of the table of points at a time
MOST_FINDINGS = 50
MOST_LISTED = 200
MOST_LOADS = 4  # points of each kind on the decision sheet
MOST_ESTIMATED = 1
NOTHING = "–"
LONG_IN_CELL = 10  # the same in the table of points, as in its script
LONG_WORD = 16  # characters from which on a word is broken after a sign rather than anywhere
SECTIONS = (
    ("answer", "Answer"),
    ("sheet", "Decision sheet"),
    ("frontier", "Frontier"),
    ("phases", "Memory by phase"),
    ("tokens", "Memory against tokens"),
    ("compared", "Estimated, calculated, measured"),
    ("timeline", "Timeline"),
    ("failures", "Failures"),
    ("cards", "Cards"),
    ("costs", "Cost"),
    ("points", "Points"),
    ("environment", "Environment"),
)
CARD_WORDS = {"fits": "fits", "fails": "does not fit", "unknown": "not known"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A chart of the page with the content that it shows, and a name for a screen reader."""

    svg: Any
    narrow: Any
    label: str
    content: Any = None
    counters: Sequence[str] = ()
    limit_drawn: bool = False


def page_html(content: PageContent, sheet: Mapping[str, Any], environment: Sequence[tuple[str, str]]) -> str:
    """`sheet`: of sweeper/views/decision_sheet.py. `environment`: the kind and a line of each environment."""
    import jinja2
    from markupsafe import Markup

    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    loader = jinja2.FileSystemLoader(HERE)
    environ = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    table = content.points
    return environ.get_template("page.html.jinja").render(
        content=content,
        table=table,
        sections=SECTIONS,
        sheet=sheet,
        estimated=_estimated(sheet),
        ended=_ended(sheet["ran"]["points"]),
        settings=_settings(content, sheet),
        assumed=_assumed(sheet),
        assignments=assignments,
        most_loads=MOST_LOADS,
        most_estimated=MOST_ESTIMATED,
        environment=environment,
        charts=_charts(content),
        commands=[shlex.join(["sweeper", *words]) for words in content.commands],
        meanings=MEANINGS,
        card_words=CARD_WORDS,
        never_added=NEVER_ADDED[:1].upper() + NEVER_ADDED[1:],
        tariffs_example=EXAMPLE,
        filter_example=_filter_example(table),
        most_findings=MOST_FINDINGS,
        most_listed=MOST_LISTED,
        page_size=PAGE_SIZE,
        bytes=_bytes,
        breakable=_breakable,
        long_in_cell=LONG_IN_CELL,
        signed=lambda count: f"{'+' if count >= 0 else '−'}{format_bytes(abs(count))}",
        seconds=format_seconds,
        count=format_count,
        money=_money,
        money_time=lambda seconds: f"{seconds:.1f} s" if seconds < 100 else format_seconds(float(seconds)),
        without_cost=_without_cost(content),
        shown=_shown,
        data=Markup(_data(table)),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


def _ended(statuses: Mapping[str, Mapping[str, int]]) -> Mapping[str, str]:
    """How the points of each device ended. Devices on which they ended alike are together, and counted if many."""
    alike: dict[str, list[str]] = {}
    for device, of_device in statuses.items():
        alike.setdefault(counts(of_device), []).append(device)
    return {
        ", ".join(devices) if len(devices) <= MOST_LOADS else format_count(len(devices), "device"): (
            text if len(devices) == 1 else f"{text} on each"
        )
        for text, devices in alike.items()
    }


def _settings(content: PageContent, sheet: Mapping[str, Any]) -> list[str]:
    """The values of each answer of the sheet in which its search differs from the others, as typed."""
    of_point = {
        (row["device"], row["point_id"]): finding.setting
        for finding in content.answer.findings
        for row in finding.group.rows
    }
    choices = [(answer["device"], (answer["choice"] or {}).get("point_id")) for answer in sheet["answer"]]
    return [of_point.get(choice, "") for choice in choices]


def _assumed(sheet: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The assumptions, each with the names of the terms of the estimate that it belongs to."""
    terms: dict[str, list[str]] = {}
    for each in sheet["calculated"]["estimates"]:
        names = terms.setdefault(each["assumption"], [])
        if (name := each["term"].replace("_", " ")) not in names:
            names.append(name)
    return [(", ".join(terms.get(text, ())), text) for text in sheet["assumed"]]


def _estimated(sheet: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The points of the sheet with an estimate, each once: it does not depend on the device."""
    loads = [*sheet["observed"]["loads"], *sheet["calculated"]["loads"]]
    return list({load["point_id"]: load for load in reversed(loads) if load["estimate"]}.values())[::-1]


def _charts(content: PageContent) -> Mapping[str, Any]:
    from markupsafe import Markup

    def drawn(chart: Callable[..., Any], shown: Any, name: str, label: str, **more: Any) -> Drawn | None:
        wide = chart(shown)
        if wide is None:
            return None
        narrow = charts.as_svg(chart(shown, narrow=True), f"{name}-narrow", label)
        return Drawn(svg=Markup(charts.as_svg(wide, name, label)), narrow=Markup(narrow), label=label, **more)

    return {
        "phases": [
            drawn(
                charts.phase_chart,
                bars,
                f"phases{place}",
                f"memory by phase of {bars.title}",
                content=bars,
                counters=_counters(bars),
            )
            for place, bars in enumerate(content.bars)
        ],
        "memory": [
            drawn(
                charts.memory_chart,
                found,
                f"memory{place}",
                f"memory against tokens of {found.title}",
                content=found,
                limit_drawn=_draws_limit(found),
            )
            for place, found in enumerate(content.fitted.shown)
        ],
        "comparison": drawn(charts.comparison_chart, content.compared, "compared", "estimated, calculated, measured"),
        "timeline": drawn(charts.timeline_chart, content.timeline, "timeline", "attempts by device and result"),
    }


def _counters(bars: PhaseBars) -> list[str]:
    return list(dict.fromkeys(counter for bar in bars.bars for counter in bar.peaks))


def _draws_limit(found: FittedMemory) -> bool:
    return found.limit is not None and found.limit <= charts.FAR * max(point.bytes for point in found.points)


def _breakable(text: str, longest: int = LONG_WORD) -> Any:
    """A text whose long words can be broken after the signs in them, and not within a name or a value."""
    from markupsafe import Markup, escape

    def word(each: str) -> Any:
        pieces = re.findall(r"[^.=,/_]+[.=,/_]*|[.=,/_]+", each) if len(each) > longest else [each]
        return Markup("<wbr>").join(escape(piece) for piece in pieces)

    return Markup(" ").join(word(each) for each in text.split(" "))


def _bytes(count: int | None) -> str:
    return NOTHING if count is None else format_bytes(count)


def _money(amount: Decimal) -> str:
    """Two decimals, or three digits of less than one."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.{max(2, 2 - amount.adjusted()) if amount else 2}f}"


def _without_cost(content: PageContent) -> Mapping[str, int]:
    """The number of points that have no cost, by reason."""
    packages = content.costs.packages if content.costs else ()
    return Counter(each.because for each in packages if each.because is not None)


def _shown(value: Any, kind: str) -> str:
    """A number of the table, as the page's script shows it."""
    if value is None:
        return NOTHING
    if kind == BYTES:
        return format_bytes(value)
    return f"{value:.2f}" if kind == SECONDS else str(value)


def _filter_example(table: PointsTable) -> str:
    """Words that would filter this table: the value of its first number."""
    for place, column in enumerate(table.columns):
        if column.kind == "number" and table.rows:
            return f"{column.label}={table.rows[0].values[place]}"
    return "ok"


def _data(table: PointsTable) -> str:
    """The table as JSON for the script. `<` is written as its code, so that nothing in it can end the element."""
    content = {
        "size": PAGE_SIZE,
        "columns": [{"label": column.label, "kind": column.kind} for column in table.columns],
        "rows": [{"v": list(row.values), **({"p": 1} if row.at_least else {})} for row in table.rows],
        "commands": [row.command for row in table.rows],
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
