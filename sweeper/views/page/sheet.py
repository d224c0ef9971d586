"""The decision sheet on the page: what was calculated, what was observed and what was assumed, next to each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from sweeper.views import decision_sheet


def sheet_html(folder: Path, tables: Mapping[str, pa.Table]) -> Any:
    """Three columns, as escaped HTML."""
    from markupsafe import Markup

    sheet = decision_sheet.decision_sheet(folder, tables)
    columns = {
        "observed": [
            *decision_sheet._status_lines(sheet["observed"]["points"]),
            *sheet["observed"]["frontier_text"].splitlines(),
        ],
        "calculated": [
            *decision_sheet._status_lines(sheet["calculated"]["points"]),
            *sheet["calculated"]["frontier_text"].splitlines(),
        ],
        "assumed": sheet["assumed"],
    }
    parts = [
        Markup('<div class="{0}"><h3>{1}</h3><ul>{2}</ul></div>').format(
            name,
            name.capitalize(),
            Markup("").join(Markup("<li>{}</li>").format(line.strip()) for line in lines or ["nothing"]),
        )
        for name, lines in columns.items()
    ]
    return Markup('<div class="columns">{}</div>').format(Markup("").join(parts))
