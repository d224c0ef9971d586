"""What one dimension does, as JSON and as lines for a person; and the command `effects`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
from sweeper.effects.memory_fit import TERMS, MemoryFit, NotFitted, Size
from sweeper.errors import Mistake
from sweeper.plan import typed
from sweeper.rows import Row
from sweeper.tables import loading
from sweeper.units import format_bytes
from sweeper.views import pictures

LONGEST = 24  # steps on the screen; --json has them all
HIGHEST = 5  # phases of a size that was asked for


class Asked(NamedTuple):
    run: str
    as_json: bool
    at: dict[str, int] | None
    picture: str | None


def main(arguments: Sequence[str]) -> int:
    """`effects RUN [--json] [--at batch=16,context=8192] [--picture FILE]`."""
    asked = _asked(arguments)
    if asked.picture is not None:
        pictures.check(asked.picture)
    found = loading.read(loading.run_folder(asked.run))
    swept = [name for name in found["points"].column_names if name not in schema.FIXED]
    points = found["points"].select([*NEEDS, *swept]).to_pylist()
    phases = found["phases"].select(NEEDS_OF_PHASES).to_pylist()
    told = effects(points, phases, asked.at)
    print(json.dumps(told, indent=2) if asked.as_json else as_text(told))
    if asked.picture is not None and told["nothing"] is None:
        pictures.draw_effects(families(points, phases), asked.picture, asked.at)
    return 0


def _asked(arguments: Sequence[str]) -> Asked:
    runs: list[str] = []
    given: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--at", "--picture"):
            given[name] = value if equals else next(words, "")
            if not given[name]:
                raise Mistake(f"effects: {name} needs {'a size, as in --at batch=16' if name == '--at' else 'a file'}")
        elif word.startswith("-") and word != "--json":
            raise Mistake(f"effects: {word} is not known; it takes RUN, --json, --at SIZE and --picture FILE")
        elif word != "--json":
            runs.append(word)
    if len(runs) != 1:
        raise Mistake(f"effects takes one run, the folder of a sweep, got {' '.join(runs) or 'none'}")
    at = _sizes(given["--at"]) if "--at" in given else None
    return Asked(runs[0], "--json" in arguments, at, given.get("--picture"))


def _sizes(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in SIZE or not (value.isascii() and value.isdigit()) or int(value) == 0:
            raise Mistake(f"--at {text}: {part!r} is not batch or context and a number, as in batch=16,context=8192")
        found[key] = int(value)
    return found


def effects(points: Sequence[Row], phases: Iterable[Row], at: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Everything as JSON has it: bytes are bytes, what is not known is null. `at`: a size to calculate the peak of.

    Raises Mistake if `at` leaves open a key that was varied.
    """
    phases = list(phases)
    found, steps = families(points, phases), differences(points, phases)
    told = any(change is not None for step in steps for change in step.bytes.values())
    return {
        "nothing": None if found or told else _nothing(points),
        "differences": [_difference_as_json(step) for step in steps],
        "families": [_family_as_json(family, title(family, found), at) for family in found],
    }


def _nothing(points: Sequence[Row]) -> str:
    """Why there is not one cost."""
    reasons = Counter(why_not(row) or "no phase with its peak" for row in points)
    messages = (f"{row['error_type']}: {row['error_message']}" for row in points if row["error_type"])
    message = " ".join(next(messages, "").split())
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "no points"
    return f"no point passed whole, so that nothing can be compared: {told}" + (f" ({message:.120})" if message else "")


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
        "time_of": found.time_of,
        "because": dict(found.because),
    }


def _family_as_json(family: Family, named: Sequence[str], at: Mapping[str, int] | None) -> dict[str, Any]:
    row, largest = family.rows[0], family.largest
    return {
        **{name: row[name] for name in ("device", "kind", *NAMED)},
        "title": list(named),
        "counter": family.counter,
        "passed": len(family.sizes),
        "range": {name: _ends([getattr(size, name) for size in family.sizes]) for name in SIZE},
        "left_out": family.left_out,
        "fits": [_fit_as_json(phase, found) for phase, found in family.fits.items()],
        "largest": None if largest is None else _largest_as_json(family, largest),
        "peak_phases": [
            {"along": along, "at": {SIZE[1 - SIZE.index(along)]: value}, "phases": [_reign_as_json(r) for r in reigns]}
            for along, value, reigns in family.peak_ranges()
        ],
        "at": None if at is None else _at_as_json(family.at(family.size(at))),
    }


def _ends(values: Sequence[int]) -> list[int]:
    return [min(values), max(values)]


def _fit_as_json(phase: PhaseKey, found: MemoryFit | NotFitted) -> dict[str, Any]:
    told: dict[str, Any] = {"phase": phase.phase, "phase_device": phase.device, "kind": CALCULATED}
    if isinstance(found, NotFitted):
        return told | {f"{term}_bytes": None for term in TERMS} | {"refused": found.because}
    return told | {
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


def _reign_as_json(reign: PeakRange) -> dict[str, Any]:
    return {"phase": reign.phase.phase, "from": reign.first, "to": reign.last, "kind": reign.kind}


def _largest_as_json(family: Family, size: Size) -> dict[str, Any]:
    """The largest point that passed: its peak, what more of it would cost, and what it is made of."""
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
        "levers": [share._asdict() | {"brings_bytes": None} for share in family.shares()],
    }


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


def as_text(found: Mapping[str, Any]) -> str:
    """What `effects` found, as lines."""
    if found["nothing"] is not None:
        return str(found["nothing"])
    lines = _difference_lines(found["differences"])
    shown: dict[tuple[str, ...], str] = {}
    for family in found["families"]:
        name = tuple(family["title"])
        if name not in shown:
            shown[name] = family["counter"]
            lines += ["", *_family_lines(family)]
    others = dict.fromkeys(family["counter"] for family in found["families"])
    unseen = [f"the same of {counter}: with --json" for counter in others if counter not in shown.values()]
    return "\n".join([*lines, *([""] if unseen else []), *unseen])


def _difference_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each step of which anything is known."""
    known = [each for each in found if any(each[column] is not None for column in PEAKS)]
    columns = [column for column in PEAKS if any(each[column] is not None for each in known)]
    kinds = " and ".join(dict.fromkeys(each["kind"] for each in known)) or MEASURED
    lines = [f"ONE STEP OF ONE DIMENSION ({kinds}; the seconds are of one warm repeat)"]
    head = ["", "", *(column.removeprefix("peak_").removesuffix("_bytes") for column in columns), "time"]
    body = [
        [
            f"{each['device']}  {each['dimension']} {typed(each['from'])} -> {typed(each['to'])}",
            _say(each["at"]),
            *("-" if each[column] is None else _signed(each[column]) for column in columns),
            "-" if each["seconds"] is None else f"{each['seconds']:+.3f} s",
        ]
        for each in known[:LONGEST]
    ]
    lines += _table(head, body, "<<" + ">" * len(columns) + ">") if known else ["  no two neighbours passed whole"]
    if len(known) > LONGEST:
        lines.append(f"  ... and {len(known) - LONGEST} more, with --json")
    unknown = Counter(next(iter(each["because"].values())) for each in found if each not in known)
    return lines + [f"  not known: {count}, {reason}" for reason, count in unknown.items()]


def _family_lines(family: Mapping[str, Any]) -> list[str]:
    named = [*family["title"], *(["(calculated, not measured)"] if family["kind"] == CALCULATED else [])]
    left_out = [f"{count} {reason}" for reason, count in family["left_out"].items()]
    points = f"{family['passed']} passed whole" + (f"; left out: {', '.join(left_out)}" if left_out else "")
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
    lines += [f"  {line}" for line in _table(head, body, "<" + ">" * len(terms) + "><")] if fitted else []
    return lines + _reason_lines("not fitted:", family["fits"], "refused")


def _reason_lines(what: str, phases: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """A line for each reason, with the phases that have it."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for phase in phases:
        if phase[key] is not None:
            reasons[phase[key]].append(phase["phase"])
    return [f"    {what} {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _error(fit: Mapping[str, Any]) -> str:
    if fit["worst_residual"] is None:
        return "of no more points than terms: how far it is off is not known"
    return f"off by {fit['worst_residual']:.2%} at most"


HEADS = {"fixed": "fixed", "per_sample": "a sample", "per_token": "a token", "per_token_squared": "a token^2"}


def _fitted_to(fit: Mapping[str, Any], everywhere: Mapping[str, Sequence[int]]) -> str:
    """How many points, and what differs from the rest."""
    left_out = fit["smaller_left_out"]
    said = f"{fit['fitted_to']}" + (f" of {fit['fitted_to'] + left_out}" if left_out else "") + " points"
    said += "".join(f", {_range(name, ends)}" for name, ends in fit["range"].items() if ends != everywhere[name])
    return said + ("; the smallest are another operation's" if left_out else "")


def _peak_lines(family: Mapping[str, Any]) -> list[str]:
    largest = family["largest"]
    at = _say({name: largest[name] for name in SIZE})
    peak = f"{format_bytes(largest['peak_bytes'])}, in {largest['peak_phase']} ({largest['kind']})"
    lines = ["  THE PEAK", f"    at {at}, the largest that passed, it is {peak}"]
    costs = largest["costs"]
    sample = f"sample of {largest['context']} tokens"
    told = [(sample, costs["one_more_sample_bytes"]), ("token in one sample", costs["one_more_token_bytes"])]
    more = [f"one more {what} costs {format_bytes(round(cost))}" for what, cost in told if cost is not None]
    if more:
        lines.append(f"    there {', '.join(more)}")
        lines.append(f"    (calculated: the fit of {largest['peak_phase']}, {_error(costs)})")
    token, logits = costs["one_more_token_bytes"], costs["logits_of_a_token_bytes"]
    if token is not None and logits:
        copies = f"{token / logits:.1f} times its logits, {format_bytes(logits)}"
        lines.append(f"    a token costs {copies} (calculated from vocab_size)")
    found = {(line["along"], _say(line["at"])): line["phases"] for line in family["peak_phases"]}
    if len(phases := {reign["phase"] for reigns in found.values() for reign in reigns}) == 1 < len(found):
        return [*lines, f"    it is in {phases.pop()} at every point ({largest['kind']})"]
    return lines + [f"    {at}: {_reign_line(along, reigns)}" for (along, at), reigns in found.items()]


def _reign_line(along: str, reigns: Sequence[Mapping[str, Any]]) -> str:
    """Which phase has the peak up to where. Between two measured points nobody knows better than between which."""
    told = [reign for reign in reigns if reign["to"] is not None]
    if len(told) == 1:
        said = f"in {told[0]['phase']} throughout, {along}={told[0]['from']} to {told[0]['to']} ({told[0]['kind']})"
    else:
        first, *rest = told
        parts = [f"in {first['phase']} up to {along}={first['to']}"]
        parts += [f"in {reign['phase']} from {along}={reign['from']} on" for reign in rest]
        said = f"{', '.join(parts)} ({first['kind']})"
    beyond = (f"; in {r['phase']} from about {along}={r['from']} on (calculated)" for r in reigns if r["to"] is None)
    return said + "".join(beyond)


def _lever_lines(family: Mapping[str, Any]) -> list[str]:
    largest = family["largest"]
    lines = [f"  WHICH LEVER FIRST, at {_say({name: largest[name] for name in SIZE})} in {largest['peak_phase']}"]
    if not largest["levers"]:
        return [*lines, "    not known: nothing tells fixed costs from the rest"]
    for share in largest["levers"]:
        part = f"{share['share']:4.0%}  {share['of']:<11}  {format_bytes(share['bytes'])}"
        lines += [f"    {part} ({share['kind']}: {share['known_by']})"]
        lines += [f"          {share['lever']}"]
    lines.append("    what each would bring: experiment=training_levers or generation_levers calculates it for a card")
    held = largest["held_when_a_warm_pass_begins_bytes"]
    if held is not None:
        part = f" = {held / largest['peak_bytes']:.0%} of the peak" if largest["peak_bytes"] else ""
        lines.append(f"    held when a warm pass begins: {format_bytes(held)}{part} ({largest['kind']})")
    return lines


def _at_lines(found: Mapping[str, Any]) -> list[str]:
    where = "within what was measured" if found["within_what_was_measured"] else "outside of what was measured"
    lines = [f"  AT {_say({name: found[name] for name in SIZE})} (calculated, {where})"]
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
    return lines + _reason_lines("not known of", found["phases"], "because")


def _table(head: Sequence[str], body: Sequence[Sequence[str]], align: str) -> list[str]:
    """Rows in columns, each `<` to the left or `>` to the right; no line for a head without words."""
    rows = [row for row in (head, *body) if any(row)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(align))]
    return [
        "  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in rows
    ]


def _range(name: str, ends: Sequence[int]) -> str:
    low, high = ends
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


def _say(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={typed(value)}" for key, value in values.items())


def _signed(count: int) -> str:
    return ("-" if count < 0 else "+") + format_bytes(abs(count))
