"""`effects RUN`: what each dimension of a run costs, as JSON and as text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from runners.device import CALCULATED, MEASURED
from sweeper import columns as schema
from sweeper.columns import NAMED
from sweeper.effects.families import (
    NEEDS,
    NEEDS_OF_PHASES,
    PEAKS,
    SIZE,
    Difference,
    Family,
    PeakRange,
    PhaseKey,
    PredictedPeak,
    differences,
    families,
    title,
    why_not,
)
from sweeper.effects.levers import Changes
from sweeper.effects.memory_fit import TERMS, MemoryFit, NotFitted, Size
from sweeper.effects.savings import levers_at
from sweeper.plan import typed_value
from sweeper.plan_lines import PlanLine
from sweeper.rows import Row
from sweeper.units import format_bytes, format_count
from sweeper.views import levers_text
from sweeper.views.layout import assignments, counts, error_text, indent, more, table

LONGEST = 24  # steps on the screen; --json has them all
HIGHEST = 5  # phases listed for the size of --at
HEADS = {"fixed": "fixed", "per_sample": "a sample", "per_token": "a token", "per_token_squared": "a token^2"}


WHAT_ELSE = {"logits": "or, in your own code, a loss in chunks"}
EXPERIMENTS = {"train": "training_levers", "generate": "generation_levers"}  # by workload


def rows_of(tables: Mapping[str, pa.Table]) -> tuple[list[Row], list[Row]]:
    """The rows of a run's points and phases, with the columns that `effects` needs."""
    points = tables["points"]
    swept = [name for name in points.column_names if name not in schema.FIXED]
    return points.select([*NEEDS, *swept]).to_pylist(), tables["phases"].select(NEEDS_OF_PHASES).to_pylist()


def effects(
    points: Sequence[Row],
    phases: Iterable[Row],
    at: Mapping[str, int] | None = None,
    plan: Iterable[PlanLine] = (),
) -> dict[str, Any]:
    """The value for JSON: whole bytes, null for what is not known.

    `at`: a size whose peak to calculate. `plan`: the lines of the run's plan, for what design=levers found. Raises
    Mistake if `at` has no value for a key that was varied.
    """
    phases = list(phases)
    found, steps = families(points, phases), differences(points, phases)
    any_known = any(change is not None for step in steps for change in step.bytes.values())
    added = levers_text.runs_of(points, levers_text.dimensions_of(plan))
    return {
        "nothing": None if found or any_known or added else _nothing(points),
        "added_levers": levers_text.as_json(added),
        "differences": [_difference_as_json(step) for step in steps],
        "families": [_family_as_json(family, title(family, found), at, points) for family in found],
    }


def _nothing(points: Sequence[Row]) -> str:
    """Why nothing can be compared."""
    reasons = Counter(why_not(row) or "no phase with its peak" for row in points)
    messages = (error_text(row["error_type"], row["error_message"]) for row in points)
    message = next(filter(None, messages), "")
    why = counts(reasons) or "no points"
    return f"no point passed completely, so nothing can be compared: {why}" + (f" ({message})" if message else "")


def _difference_as_json(found: Difference) -> dict[str, Any]:
    return {
        "device": found.device,
        "kind": found.kind,
        "dimension": found.dimension,
        "from": found.step[0],
        "to": found.step[1],
        "at": dict(found.at),
        "points": list(found.points),
        **found.bytes,
        "seconds": found.seconds,
        "seconds_spread": found.seconds_spread,
        "time_of": found.time_of,
        "because": dict(found.because),
    }


def _family_as_json(
    family: Family, named: Sequence[str], at: Mapping[str, int] | None, points: Sequence[Row]
) -> dict[str, Any]:
    row, largest = family.rows[0], family.largest
    return {
        **{name: row[name] for name in ("device", "kind", *NAMED)},
        "title": list(named),
        "counter": family.counter,
        "passed": len(family.sizes),
        "range": {name: _ends([getattr(size, name) for size in family.sizes]) for name in SIZE},
        "left_out": family.left_out,
        "fits": [_fit_as_json(phase, found) for phase, found in family.fits.items()],
        "largest": None if largest is None else _largest_as_json(family, largest, points),
        "peak_phases": [
            {
                "along": along,
                "at": {SIZE[1 - SIZE.index(along)]: value},
                "phases": [_range_as_json(each) for each in ranges],
            }
            for along, value, ranges in family.peak_ranges()
        ],
        "at": None if at is None else _at_as_json(family.at(family.size(at))),
    }


def _ends(values: Sequence[int]) -> list[int]:
    return [min(values), max(values)]


def _fit_as_json(phase: PhaseKey, found: MemoryFit | NotFitted) -> dict[str, Any]:
    named: dict[str, Any] = {"phase": phase.phase, "phase_device": phase.device, "kind": CALCULATED}
    if isinstance(found, NotFitted):
        return named | {f"{term}_bytes": None for term in TERMS} | {"refused": found.because}
    return named | {
        **{f"{term}_bytes": found.costs.get(term) for term in TERMS},
        "refused": None,
        "fitted_to": len(found.peaks),
        "range": {name: list(ends) for name, ends in found.range.items()},
        "smaller_left_out": len(found.smaller),
        "worst_residual": None if found.is_exact_by_count else found.worst,
        "residuals": [
            {**size._asdict(), "measured_bytes": found.peaks[size], "residual": residual}
            for size, residual in found.residuals.items()
        ],
    }


def _range_as_json(found: PeakRange) -> dict[str, Any]:
    return {"phase": found.phase.phase, "from": found.first, "to": found.last, "kind": found.kind}


def _largest_as_json(family: Family, size: Size, points: Sequence[Row]) -> dict[str, Any]:
    """The largest point that passed: its peak, the cost of one more sample or token, and the parts of the peak."""
    phase = family.peak_phase(size)
    found = family.fits[phase]
    fitted = None if isinstance(found, NotFitted) else found
    logits = family.logits(Size(1, 1), phase)
    token = None if fitted is None else fitted.of_a_token(size)
    return {
        **size._asdict(),
        "kind": family.rows[0]["kind"],
        "peak_phase": phase.phase,
        "peak_bytes": family.peaks[phase][size],
        "held_when_a_warm_pass_begins_bytes": family.held(size),
        "costs": {
            "kind": CALCULATED,
            "one_more_sample_bytes": None if fitted is None else fitted.of_a_sample(size),
            "one_more_token_bytes": token,
            "logits_of_a_token_bytes": None if logits is None else logits[0],
            "because": found.because if isinstance(found, NotFitted) else None,
            "worst_residual": None if fitted is None or fitted.is_exact_by_count else fitted.worst,
        },
        "parts": _parts_as_json(family, size, points),
    }


def _parts_as_json(family: Family, size: Size, points: Sequence[Row]) -> list[dict[str, Any]]:
    """The parts of a peak with their levers. A change that reduces several parts is listed under the first of them."""
    device = levers_text.devices_of(family.rows)[family.rows[0]["device"]]
    found: list[dict[str, Any]] = []
    above: list[Changes] = []
    for share in family.shares():
        levers = levers_at(family, size, share.of, points, device)
        own = [lever for lever in levers if lever.changes not in above]
        listed = [lever.changes for lever in levers if lever.changes in above]
        found.append(share._asdict() | {"levers": [lever._asdict() for lever in own], "levers_above": listed})
        above += [lever.changes for lever in own]
    return found


def _at_as_json(found: PredictedPeak) -> dict[str, Any]:
    return {
        **found.size._asdict(),
        "kind": CALCULATED,
        "within_what_was_measured": found.is_within_measured,
        "peak_phase": None if found.peak_phase is None else found.peak_phase.phase,
        "peak_bytes": found.bytes,
        "is_a_lower_bound": found.is_lower_bound,
        "measured_peak_bytes": found.measured_bytes,
        "phases": [
            {
                **{"phase": phase.phase, "phase_device": phase.device},
                "bytes": None if isinstance(peak, NotFitted) else peak,
                "because": peak.because if isinstance(peak, NotFitted) else None,
            }
            for phase, peak in found.phases.items()
        ],
    }


def as_text(found: Mapping[str, Any], width: int | None = None) -> str:
    """The result of `effects`, for a person. `width`: the columns that a line of the differences may take."""
    if found["nothing"] is not None:
        return str(found["nothing"])
    lines = _difference_lines(found["differences"], width)
    if found["added_levers"]:
        lines = [*levers_text.as_text(found["added_levers"]).splitlines(), "", *lines]
    shown: dict[tuple[str, ...], str] = {}
    for family in found["families"]:
        name = tuple(family["title"])
        if name not in shown:
            shown[name] = family["counter"]
            lines += ["", *_family_lines(family)]
    others = dict.fromkeys(family["counter"] for family in found["families"])
    hidden = [f"the same for {counter}: use --json" for counter in others if counter not in shown.values()]
    return "\n".join([*lines, *([""] if hidden else []), *hidden])


def _difference_lines(found: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """The steps with a known change, by device."""
    known = [each for each in found if any(each[column] is not None for column in PEAKS)]
    kinds = " and ".join(dict.fromkeys(each["kind"] for each in known)) or MEASURED
    shown = known[:LONGEST]
    times = [each for each in shown if each["seconds"] is not None]
    lines = [f"ONE STEP OF ONE DIMENSION ({kinds})"]
    lines += ["  the seconds are of one warm repeat"] if times else []
    for device in dict.fromkeys(each["device"] for each in shown):
        lines += indent(_steps_of(device, [each for each in shown if each["device"] == device], width))
    lines += [] if known else ["  no two neighbours passed completely"]
    marks = {_certainty(each) for each in times}
    lines += [f"  {mark}: {meaning}" for mark, meaning in MARKS.items() if mark in marks]
    lines += indent(more(len(known), LONGEST))
    unknown = Counter(next(iter(each["because"].values())) for each in found if each not in known)
    return lines + [f"  not known: {count}, {reason}" for reason, count in unknown.items()]


def _steps_of(device: str, steps: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """The steps on one device with the counters that it has. Figures are below a step where a line is too wide."""
    columns = [column for column in PEAKS if any(each[column] is not None for each in steps)]
    has_times = any(each["seconds"] is not None for each in steps)
    head = [column.removeprefix("peak_").removesuffix("_bytes") for column in columns] + ["time"] * has_times
    figures = [
        [
            *("-" if each[column] is None else _signed(each[column]) for column in columns),
            *([_time(each)] if has_times else []),
        ]
        for each in steps
    ]
    labels = [(f"{each['dimension']} {_values(each)}", assignments(each["at"])) for each in steps]
    whole = table(
        [[device, "", *head], *([*label, *row] for label, row in zip(labels, figures, strict=True))],
        "<<" + ">" * len(head),
    )
    if width is None or max(map(len, whole)) + 2 <= width:
        return whole
    first, *rows = table([["", *head], *(["", *row] for row in figures)], "<" + ">" * len(head))
    lines = [device, f"    {first}"]
    for label, row in zip(labels, rows, strict=True):
        lines += ["  ".join(filter(None, label)), f"    {row}"]
    return lines


MARKS = {
    "?": "one repeat, so its spread is not known and the difference may be noise",
    "~": "less than the repeats of one point differ: noise",
}


def _certainty(step: Mapping[str, Any]) -> str:
    """The mark of a difference in time that may be noise; empty if it is more than the repeats differ."""
    if step["seconds_spread"] is None:
        return "?"
    return "~" if abs(step["seconds"]) <= step["seconds_spread"] else ""


def _time(step: Mapping[str, Any]) -> str:
    return "-" if step["seconds"] is None else f"{step['seconds']:+.3f} s {_certainty(step)}".rstrip()


def _values(step: Mapping[str, Any]) -> str:
    before, after = (typed_value(step["dimension"], step[end]) for end in ("from", "to"))
    return f"{before} -> {after}"


def _family_lines(family: Mapping[str, Any]) -> list[str]:
    named = [*family["title"], *(["(calculated, not measured)"] if family["kind"] == CALCULATED else [])]
    left_out = counts(family["left_out"])
    points = f"{family['passed']} passed completely" + (f"; left out: {left_out}" if left_out else "")
    ranges = ", ".join(_range(name, family["range"][name]) for name in SIZE)
    lines = ["  ".join([*named, f"peaks of {family['counter']}"]), f"  points: {points}; {ranges}", ""]
    lines += [*_fit_lines(family), "", *_peak_lines(family), "", *_lever_lines(family)]
    return lines + (["", *_at_lines(family["at"])] if family["at"] is not None else [])


def _fit_lines(family: Mapping[str, Any]) -> list[str]:
    fitted = [fit for fit in family["fits"] if fit["refused"] is None]
    terms = [term for term in TERMS if any(fit[f"{term}_bytes"] is not None for fit in fitted)]
    head = ["", *(HEADS[term] for term in terms), "worst error", "fitted to"]
    body = [
        [
            fit["phase"],
            *("-" if (cost := fit[f"{term}_bytes"]) is None else format_bytes(round(cost)) for term in terms),
            "not known" if fit["worst_residual"] is None else f"{fit['worst_residual']:.2%}",
            _fitted_to(fit, family["range"]),
        ]
        for fit in fitted
    ]
    lines = [f"  WHAT IT COSTS (calculated: fitted to the {family['kind']} peak of each phase)"]
    lines += indent(table([head, *body], "<" + ">" * len(terms) + "><"), 4) if fitted else []
    return lines + _reason_lines("not fitted:", family["fits"], "refused")


def _reason_lines(what: str, phases: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """A line for each reason, with its phases."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for phase in phases:
        if phase[key] is not None:
            reasons[phase[key]].append(phase["phase"])
    return [f"    {what} {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _error(fit: Mapping[str, Any]) -> str:
    if fit["worst_residual"] is None:
        return "with no more points than terms, so its error is not known"
    return f"off by {fit['worst_residual']:.2%} at most"


def _fitted_to(fit: Mapping[str, Any], everywhere: Mapping[str, Sequence[int]]) -> str:
    """The number of points, and the ranges that differ from the family's."""
    left_out = fit["smaller_left_out"]
    both = fit["fitted_to"] + left_out
    text = (f"{fit['fitted_to']} of " if left_out else "") + format_count(both, "point")
    text += "".join(f", {_range(name, ends)}" for name, ends in fit["range"].items() if ends != everywhere[name])
    return text + ("; in the smallest another operation has the peak" if left_out else "")


def _peak_lines(family: Mapping[str, Any]) -> list[str]:
    largest = family["largest"]
    at = assignments(largest, SIZE)
    peak = f"{format_bytes(largest['peak_bytes'])}, in {largest['peak_phase']} ({largest['kind']})"
    lines = ["  THE PEAK", f"    at {at}, the largest that passed, it is {peak}"]
    costs = largest["costs"]
    sample = f"sample of {format_count(largest['context'], 'token')}"
    more_of = [(sample, costs["one_more_sample_bytes"]), ("token in one sample", costs["one_more_token_bytes"])]
    known = [f"one more {what} costs {format_bytes(round(cost))}" for what, cost in more_of if cost is not None]
    if known:
        lines.append(f"    there {', '.join(known)}")
        lines.append(f"    (calculated: the fit of {largest['peak_phase']}, {_error(costs)})")
    token, logits = costs["one_more_token_bytes"], costs["logits_of_a_token_bytes"]
    if token is not None and logits:
        copies = f"{token / logits:.1f} times its logits, {format_bytes(logits)}"
        lines.append(f"    a token costs {copies} (calculated from vocab_size)")
    found = {(line["along"], assignments(line["at"])): line["phases"] for line in family["peak_phases"]}
    if len(phases := {each["phase"] for ranges in found.values() for each in ranges}) == 1 < len(found):
        return [*lines, f"    it is in {phases.pop()} at every point ({largest['kind']})"]
    return lines + [f"    {at}: {_range_line(along, ranges)}" for (along, at), ranges in found.items()]


def _range_line(along: str, ranges: Sequence[Mapping[str, Any]]) -> str:
    """The range of values over which each phase has the peak. A change of phase lies between two measured points."""
    measured = [each for each in ranges if each["to"] is not None]
    first, *rest = measured
    if rest:
        parts = [f"in {first['phase']} up to {along}={first['to']}"]
        parts += [f"in {each['phase']} from {along}={each['from']} on" for each in rest]
        text = f"{', '.join(parts)} ({first['kind']})"
    else:
        text = f"in {first['phase']} throughout, {along}={first['from']} to {first['to']} ({first['kind']})"
    beyond = (each for each in ranges if each["to"] is None)
    return text + "".join(f"; in {each['phase']} from about {along}={each['from']} on (calculated)" for each in beyond)


def _lever_lines(family: Mapping[str, Any]) -> list[str]:
    largest = family["largest"]
    lines = [f"  WHICH LEVER FIRST, at {assignments(largest, SIZE)} in {largest['peak_phase']}"]
    if not largest["parts"]:
        return [*lines, "    not known: fixed costs cannot be separated from the rest"]
    for part in largest["parts"]:
        size = f"{part['share']:4.0%}  {part['of']:<11}  {format_bytes(part['bytes'])}"
        lines += [f"    {size} ({part['kind']}: {part['known_by']})"]
        above = ", ".join(map(assignments, part["levers_above"]))
        lines += indent(
            [*(_lever(lever, part) for lever in part["levers"]), *([f"as above: {above}"] if above else [])], 10
        )
        lines += [] if part["levers"] or above else ["          no key is left that makes it smaller"]
        lines += [f"          {WHAT_ELSE[part['of']]}"] if part["of"] in WHAT_ELSE else []
    if family["workload"] in EXPERIMENTS:
        experiment = EXPERIMENTS[family["workload"]]
        lines.append(f"    experiment={experiment} adds such changes up until a run fits on a card")
    held = largest["held_when_a_warm_pass_begins_bytes"]
    if held is not None:
        share = f" = {held / largest['peak_bytes']:.0%} of the peak" if largest["peak_bytes"] else ""
        lines.append(f"    held when a warm pass begins: {format_bytes(held)}{share} ({largest['kind']})")
    return lines


def _lever(lever: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """One change as it would be typed, and what it saves: of the part that it is listed under, or of others too."""
    words = assignments(lever["changes"])
    if lever["saves_bytes"] is None:
        return words
    others = ", other parts included" if lever["saves_bytes"] > part["bytes"] else ""
    return f"{words} saves {format_bytes(lever['saves_bytes'])}{others} ({lever['kind']}: {lever['known_by']})"


def _at_lines(found: Mapping[str, Any]) -> list[str]:
    where = "within the measured range" if found["within_what_was_measured"] else "outside the measured range"
    lines = [f"  AT {assignments(found, SIZE)} (calculated, {where})"]
    if found["peak_bytes"] is None:
        reasons = dict.fromkeys(phase["because"] for phase in found["phases"])
        return [*lines, f"    not known: {'; '.join(reasons)}"]
    least = "at least " if found["is_a_lower_bound"] else ""
    lines.append(f"    the peak is {least}{format_bytes(found['peak_bytes'])}, in {found['peak_phase']} (calculated)")
    if found["measured_peak_bytes"] is not None:
        lines.append(f"    measured there: {format_bytes(found['measured_peak_bytes'])}")
    known = [phase for phase in found["phases"] if phase["bytes"] is not None]
    highest = sorted(known, key=lambda phase: -phase["bytes"])[:HIGHEST]
    lines.append("    highest: " + ", ".join(f"{phase['phase']} {format_bytes(phase['bytes'])}" for phase in highest))
    return lines + _reason_lines("not known for", found["phases"], "because")


def _range(name: str, ends: Sequence[int]) -> str:
    low, high = ends
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


def _signed(count: int) -> str:
    return ("-" if count < 0 else "+") + format_bytes(abs(count))
