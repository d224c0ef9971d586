"""What has to be left of a limit beside the largest that fits: named terms, each with where it is from, added up in the
open. Pure. No share of anything is subtracted: a term is bytes that somebody measured here, or assumes and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

# By name, what a run can measure of itself.
MEASURED = ("spread",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Bytes to leave, and whether they were measured or assumed; None: it was to be measured, and nothing told."""

    name: str
    bytes: int | None
    source: str

    def __str__(self) -> str:
        from sweeper.frontier import readable

        return f"{self.name} {'not measured' if self.bytes is None else f'{readable(self.bytes)} {self.source}'}"


def terms(asked: Mapping[str, int | str], rows: Iterable[Row], counter: str | None) -> list[Term]:
    """The terms as they were asked for: bytes, or `measured` of the points of one search.

    `counter`: the column whose peak is compared with the limit.
    """
    rows = list(rows)
    return [
        Term(name=name, bytes=_spread(rows, counter), source="measured")
        if value == "measured"
        else Term(name=name, bytes=int(value), source="assumed")
        for name, value in asked.items()
    ]


def _spread(rows: Sequence[Row], counter: str | None) -> int | None:
    """The most that attempts at one point lay apart; nothing where no point was measured twice."""
    apart = [json.loads(row["spreads"]).get(counter) for row in rows if row.get("spreads")]
    return max((each for each in apart if each is not None), default=None)


def outside(row: Row) -> list[str]:
    """What the measured workload did not do, and so no margin made of it covers."""
    config = json.loads(row["config"])
    workload, inputs = config.get("workload") or {}, config.get("inputs") or {}
    found = [key for key in ("evaluation", "export") if key in workload and _is_off(workload[key])]
    if "context" in config and config["context"] is not None and inputs.get("name") != "limit":
        found.append(f"inputs longer than {config['context']}")
    if row["device"] != "cpu":
        found.append("what others put on the device later")
    return found


def _is_off(value: Any) -> bool:
    return not value or value == "none" or (isinstance(value, Mapping) and not any(value.values()))
