"""Decides whether a sweep can reuse an earlier attempt instead of measuring again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners import launch_command
from runners.device import Card, Device
from runners.fingerprint import code_names
from runners.libraries import needed_by
from runners.outcome import Outcome, Status
from runners.point import Attempt, Point, canonical
from runners.record import attempt_in, outcome_in
from runners.stored_json import Damaged
from sweeper.errors import Mistake
from sweeper.inquiry import TIMEOUT_SECONDS, Inquiry, Unanswered
from sweeper.plan import PlannedPoint, RunKeys
from sweeper.run_folder import RunFolder

# Always measured again: the attempt was stopped, or there was no device to measure on.
NEVER_RECALLED = (Status.INTERRUPTED, Status.UNAVAILABLE)
DESCRIPTIVE = ("sources", "price_per_hour", "bandwidth_bytes_per_s")  # keys of a card that do not affect memory


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The present state of everything that has to be unchanged for an outcome to be recalled."""

    identity: Mapping[str, str | None]  # versions and settings by name
    code: Mapping[str, str | None]  # hash of the code of a workload, by runners.fingerprint.code_names in JSON
    missing: Sequence[str] = ()  # libraries that points need, by the name that is imported
    install: str | None = None  # the command that installs them


def current_fingerprint(python: str, points: Sequence[Point]) -> Fingerprint:
    """The fingerprint in the measured interpreter. Raises Mistake if it cannot be determined."""
    names = {canonical(each): each for each in map(code_names, points)}
    needed = sorted({library for point in points for library in needed_by(point.values)})
    with Inquiry(python, "fingerprint", json.dumps(list(names.values())), json.dumps(needed)) as inquiry:
        try:
            found = inquiry.answer()
        except Unanswered as unanswered:
            if program := launch_command.other_program(python):
                raise Mistake(f"python={python}: is no Python interpreter, but {program}") from None
            why = unanswered.why or f"{_slow(points)} takes longer than {TIMEOUT_SECONDS:g} seconds"
            raise Mistake(f"python={python}: its versions cannot be determined: {why}") from None
    return Fingerprint(
        identity=found["identity"], code=found["code"], missing=found["missing"], install=found["install"]
    )


def _slow(points: Sequence[Point]) -> str:
    """What can take long in a fingerprint: the package that a function is in is imported to find the file."""
    read = dict.fromkeys(name for point in points for name in code_names(point))
    return f"reading the code of {', '.join(read)}"


def recall(
    run: RunFolder, planned: PlannedPoint, device: Device, keys: RunKeys, fingerprint: Fingerprint
) -> tuple[int, Outcome | None]:
    """The number of the point's next attempt, and the outcome of an earlier one that makes it unnecessary.

    The n-th planned attempt at a point recalls its n-th outcome; those that decided whether it fits come first. An
    attempt that did not settle, that never began or whose files are damaged is none of them. Raises
    Mistake if the last outcome was measured under another fingerprint, unless resume=anew.
    """
    number, outcomes, changed = 1, [], None
    for folder in run.attempts(planned.point, device):
        number += 1
        try:
            then = attempt_in(folder)
        except Damaged:
            continue
        outcome = outcome_in(folder, then)
        if not folder.is_settled or outcome.void or outcome.status in {*NEVER_RECALLED, *keys.retry}:
            continue
        changed = difference(then, outcome, fingerprint, device)
        if changed is None:
            outcomes.append(outcome)
    if changed is not None and keys.resume != "anew":
        cure = "resume=anew measures again and keeps both, or take another name"
        raise Mistake(f"name={keys.name}: {changed}; {cure}")
    decided = [outcome for outcome in outcomes if outcome.fits is not None] or outcomes
    return number, decided[planned.nth - 1] if len(decided) >= planned.nth else None


def difference(then: Attempt, outcome: Outcome, now: Fingerprint, device: Device) -> str | None:
    """The first thing that changed since an attempt, with both values; None if its outcome can be recalled."""
    was: dict[str, Any] = {**(then.identity or {}), "the device's UUID": then.device.uuid}
    present: dict[str, Any] = {**now.identity, "the device's UUID": device.uuid}
    if device.card is not None and then.device.card is not None:
        was |= _card(then.device.card)
        present |= _card(device.card)
    code = outcome.environment.get("workload_code")
    if code is not None:  # an attempt that ended before it loaded its workload does not depend on its code
        names = code_names(then.point)
        what = f"the code of {', '.join(names)}"
        was[what], present[what] = code, now.code.get(canonical(names))
    for what, value in was.items():
        if value != present.get(what):
            return f"{what} was {_as_text(value)} when it was measured, and is {_as_text(present.get(what))} now"
    return None


def _card(card: Card) -> dict[str, Any]:
    """The fields of a card that affect a calculation, each under a readable name."""
    return {f"the card's {key}": value for key, value in card.to_json().items() if key not in DESCRIPTIVE}


def _as_text(value: Any) -> str:
    return "absent" if value is None else str(value)
