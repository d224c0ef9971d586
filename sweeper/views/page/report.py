"""`report RUN`: reads a run's tables, and writes its page and its pictures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from runners import files
from runners.device import CALCULATED, MEASURED
from runners.libraries import installation, is_installed
from sweeper import cards
from sweeper.errors import Mistake
from sweeper.plan_lines import read_plan
from sweeper.tariffs import read_tariffs
from sweeper.views.page.content import OF_ATTEMPTS, OF_PHASES, PageContent, page_content
from sweeper.views.written_file import check_place

PAGE = "report.html"
NEEDS = ("altair", "vl_convert", "jinja2")
FORMATS = ("svg", "png")


class Written(NamedTuple):
    page: Path
    pictures: Sequence[Path]


def check(output: str | None, pictures: str | None) -> None:
    """Raises Mistake if a library is missing, or if the page or the pictures cannot be written there. Nothing is read.

    Call it before a long read.
    """
    missing = [name for name in NEEDS if not is_installed(name)]
    if missing:
        raise Mistake(f"report: {', '.join(missing)} is not installed; {installation(*missing)} installs it")
    if output is not None and not Path(output).parent.is_dir():
        raise Mistake(f"--output {output}: there is no folder {Path(output).parent}")
    if output is not None:
        check_place("--output", output)
    if output is not None and Path(output).is_dir():
        raise Mistake(f"--output {output}: is a folder; name a file in it, as in {Path(output) / PAGE}")
    if pictures is not None and Path(pictures).exists() and not Path(pictures).is_dir():
        raise Mistake(f"--pictures {pictures}: is a file; name a folder")


def write_report(
    folder: Path,
    tables: Mapping[str, pa.Table],
    output: str | None = None,
    pictures: str | None = None,
    axes: Sequence[str] = (),
    tariffs: str | None = None,
) -> Written:
    """The page of a run, in its folder unless `output` names another file. Raises Mistake, also for a full disk."""
    from sweeper.views.decision_sheet import decision_sheet
    from sweeper.views.page.html import page_html

    content = content_of(folder, tables, axes, tariffs)
    page = folder / PAGE if output is None else Path(output)
    html = page_html(content, decision_sheet(folder, tables), _environment(tables))
    _write(page, html.encode("utf-8", errors="backslashreplace"), "--output" if output else "report")
    drawn = [] if pictures is None else list(_write_pictures(content, pictures))
    return Written(page, drawn)


def content_of(
    folder: Path, tables: Mapping[str, pa.Table], axes: Sequence[str] = (), tariffs: str | None = None
) -> PageContent:
    points = tables["points"]
    named = [name for name in points.column_names if name not in ("metrics", "notes", "record")]
    return page_content(
        run=folder.name,
        points=points.select(named).to_pylist(),
        attempts=tables["attempts"].select(OF_ATTEMPTS).to_pylist(),
        phases=tables["phases"].select(OF_PHASES).to_pylist(),
        environment=tables["environment"].to_pylist(),
        plan=read_plan(folder),
        cards=dict(cards.of_sweeper()),  # each file is read once
        axes=axes,
        tariffs=None if tariffs is None else read_tariffs(tariffs),
    )


def _environment(tables: Mapping[str, pa.Table]) -> list[tuple[str, str]]:
    return [environment_of(record) for record in tables["environment"].to_pylist()]


def environment_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Measured or calculated, and the line of an environment. A calculated card was in no host."""
    from sweeper.views.decision_text import environment_line

    if record.get("allocator_backend") != CALCULATED:
        return MEASURED, environment_line(record)
    of_host = ("host", "system", "device_name", "device_uuid", "driver", "backend", "backend_version")
    traced_with = {**record, **dict.fromkeys((*of_host, "allocator_backend"))}
    name = record.get("device_name") or "a device"
    return CALCULATED, f"{name}: no such device was used, its figures were calculated; {environment_line(traced_with)}"


def _write_pictures(content: PageContent, folder: str) -> Iterator[Path]:
    """Every chart of the page and every matrix of the frontier, each as SVG and as PNG."""
    from sweeper.views.page import charts

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--pictures {folder}: cannot be made: {error.strerror}") from None
    drawn: list[tuple[str, str, Any]] = []  # name, title, chart
    for place, panel in enumerate(content.grid.panels, 1):
        drawn.append((f"frontier-{place}", panel.device, charts.frontier_chart(panel, content.grid)))
    for place, bars in enumerate(content.bars, 1):
        drawn.append((f"phases-{place}", f"{bars.title} ({bars.kind})", charts.phase_chart(bars)))
    for place, fitted in enumerate(content.fitted.shown, 1):
        title = f"{fitted.title}: {fitted.kind} peaks, dashed calculated"
        drawn.append((f"tokens-{place}", title, charts.memory_chart(fitted)))
    title = f"{content.run}: bytes of tensors, estimated, calculated and measured"
    drawn.append(("compared", title, charts.comparison_chart(content.compared)))
    drawn.append(("timeline", f"{content.run}: attempts", charts.timeline_chart(content.timeline)))
    for name, title, chart in drawn:
        for format in FORMATS if chart is not None else ():
            path = Path(folder) / f"{name}.{format}"
            _write(path, charts.as_picture(chart, format, title), "--pictures")
            yield path


def _write(path: Path, content: bytes, what: str) -> None:
    """Write a file aside and rename it, so that it appears as a whole. Raises Mistake."""
    place = Path(os.path.realpath(path.parent), path.name)  # its folder may be a link
    aside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(files.create(aside), "wb") as out:
            out.write(content)
        files.replace(aside, place)
    except OSError as error:
        raise Mistake(f"{what} {path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            files.remove(aside)


def as_text(found: Written) -> str:
    return "\n".join(map(str, (found.page, *found.pictures)))


def as_json(found: Written) -> dict[str, Any]:
    return {"page": str(found.page), "pictures": [str(path) for path in found.pictures]}
