"""The levers that a run added up until it fits, as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runners.device import CALCULATED, MEASURED, Device, device_named
from sweeper import cards
from sweeper.columns import NAMED
from sweeper.effects.added_levers import LAST, Verdict
from sweeper.effects.lever_runs import DESIGN, LeverRun, lever_runs
from sweeper.plan import Dimension
from sweeper.plan_lines import PlanLine, RunLine
from sweeper.rows import Row
from sweeper.units import format_bytes
from sweeper.views.layout import assignments, indent, table


def dimensions_of(lines: Iterable[PlanLine]) -> Sequence[Dimension]:
    """The dimensions of the last sweep with design=levers in a run's plan; none without one."""
    found = [line.dimensions for line in lines if isinstance(line, RunLine) and line.design == DESIGN]
    return found[-1] if found else ()


def runs_of(rows: Sequence[Row], dimensions: Sequence[Dimension]) -> list[LeverRun]:
    return lever_runs(rows, dimensions, devices_of(rows)) if dimensions else []


def devices_of(rows: Iterable[Row]) -> dict[str, Device]:
    """The devices of a run's rows, with their cards where those come with sweeper."""
    known = cards.of_sweeper()
    named = {row["device"]: device_named(row["device"]) for row in rows}
    return {
        name: replace(device, card=known[card]) if (card := name.removeprefix("sim:")) in known else device
        for name, device in named.items()
    }


def as_json(runs: Iterable[LeverRun]) -> list[dict[str, Any]]:
    """The value for JSON: whole bytes, null for what is not known."""
    return [
        {
            **{name: run.row[name] for name in ("device", "kind", *NAMED)},
            "at": {key: run.row[key] for key in LAST if run.row[key] is not None},
            "counter": device_named(run.row["device"]).deciding_counter,
            "run": _verdict_as_json(run.found.run),
            "trials": [
                {
                    "key": trial.key,
                    "value": trial.value,
                    "choice": dict(trial.choice),
                    "is_back": trial.is_back,
                    "verdict": None if trial.verdict is None else _verdict_as_json(trial.verdict),
                    "kept": trial.kept,
                    "because": trial.because,
                }
                for trial in run.found.trials
            ],
            "changes": dict(run.found.changes),
            "fits": run.found.fits,
        }
        for run in runs
    ]


def _verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    return {"fits": verdict.fits, "peak_bytes": verdict.peak_bytes, "because": verdict.because}


# --- text -------------------------------------------------------------------------------------------------------------

Json = Mapping[str, Any]


def as_text(runs: Iterable[Json]) -> str:
    return "\n\n".join("\n".join(_lines(run)) for run in runs)


def _lines(run: Json) -> list[str]:
    kind = "calculated, not measured" if run["kind"] == CALCULATED else MEASURED
    named = [str(run[name]) for name in ("device", *NAMED) if run[name] is not None]
    steps, before = [["", "as it is", *_ended(run["run"], run["counter"]), ""]], run["run"]
    for trial in run["trials"]:
        if trial["kept"]:
            word = "goes back to" if trial["is_back"] else "and"
            change = _change(before, trial["verdict"])
            steps.append([word, _words(trial), *_ended(trial["verdict"], run["counter"]), change])
            before = trial["verdict"]
    heading = f"LEVERS, ADDED UP UNTIL IT FITS: {'  '.join([*named, assignments(run['at'])])}  ({kind})"
    reasons: dict[str, list[str]] = {}
    for trial in _left_out(run):
        reasons.setdefault(trial["because"], []).append(_words(trial))
    left_out = [f"left out: {', '.join(words)}: {because}" for because, words in reasons.items()]
    return [heading, *indent([*table(steps, "<<<>>"), _conclusion(run), *left_out])]


def _words(trial: Json) -> str:
    return assignments({trial["key"]: trial["value"]})


def _ended(verdict: Json, counter: str) -> list[str]:
    """Whether a choice fits, and its peak: without a limit, where it does not fit."""
    peak = "" if verdict["peak_bytes"] is None else f"{format_bytes(verdict['peak_bytes'])} {counter}"
    if verdict["fits"] is None:
        return [f"undecided: {verdict['because'] or 'not run'}", ""]
    if verdict["fits"]:
        return ["fits", peak]
    return ["does not fit", f"would take {peak}" if peak else "its complete peak is not known"]


def _change(before: Json, after: Json) -> str:
    if before["peak_bytes"] is None or after["peak_bytes"] is None:
        return ""
    change = after["peak_bytes"] - before["peak_bytes"]
    return f"{'-' if change < 0 else '+'}{format_bytes(abs(change))}"


def _conclusion(run: Json) -> str:
    changes = assignments(run["changes"])
    if run["run"]["fits"]:
        return "it fits as it is"
    if run["run"]["fits"] is None:
        return "the run itself is undecided, so nothing was added"
    if run["fits"] is None:
        return "undecided: not every point was run"
    if run["fits"]:
        back = [trial for trial in run["trials"] if trial["is_back"] and not trial["kept"]]
        needed = all(trial["verdict"] is not None and trial["verdict"]["fits"] is False for trial in back)
        return f"it fits with {changes}" + ("; if any one of these goes back, it does not" if needed else "")
    return f"it does not fit, even with {changes}" if changes else "it does not fit, and no change helps"


def _left_out(run: Json) -> list[Json]:
    """The last trial of each value that was not kept, of the keys that are as in the run."""
    last = {_words(trial): trial for trial in run["trials"] if not trial["is_back"]}
    return [trial for trial in last.values() if not trial["kept"] and trial["key"] not in run["changes"]]
